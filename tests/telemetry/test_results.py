import csv
import json
import logging
import math
import os
import resource
import signal
import subprocess
import sys

import pytest

from headwater.telemetry.results import ResultWriter, read_results
from tests.telemetry.sample_results import make_result


@pytest.fixture
def writer(tmp_path):
    writer = ResultWriter(tmp_path, {"lr": 3e-4, "vf_clip_param": math.inf, "env": str})
    yield writer
    writer.close()


def read_table(tmp_path):
    with open(tmp_path / "progress.csv", newline="") as file:
        header, *rows = csv.reader(file)
    assert all(len(row) == len(header) for row in rows)
    return [dict(zip(header, row, strict=True)) for row in rows]


def test_each_file_has_its_part(writer, tmp_path):
    writer.on_result(make_result(1))
    writer.on_result(make_result(2, 20.5))
    first, second = read_results(tmp_path)
    assert first["episode_reward_mean"] is None and second["episode_reward_mean"] == 20.5
    assert "config" not in first and len(second["hist_stats"]["episode_reward"]) == 100
    table = read_table(tmp_path)
    assert [row["episode_reward_mean"] for row in table] == ["", "20.5"]
    assert table[1]["info/learner/default_policy/kl"] == "0.0071" and "config/lr" not in table[1]
    assert json.loads((tmp_path / "params.json").read_text()) == {"lr": 3e-4, "vf_clip_param": "inf", "env": str(str)}
    environment = json.loads((tmp_path / "env.json").read_text())
    assert (
        environment["argv"] == sys.argv and {"numpy", "torch", "gymnasium", "python"} <= environment["versions"].keys()
    )
    assert environment["hardware"]["usable_cpus"] >= 1 and environment["hardware"]["memory_bytes"] > 2**20


def test_a_config_object_is_written_by_its_settings(tmp_path):
    class Config:
        def to_dict(self):
            return {"lr": 1e-4, "nested": {"betas": (0.9, 0.999)}}

    ResultWriter(tmp_path, Config()).close()
    assert json.loads((tmp_path / "params.json").read_text()) == {"lr": 1e-4, "nested": {"betas": [0.9, 0.999]}}


def test_columns_stay_and_new_ones_come_on_the_right(writer, tmp_path):
    for iteration in range(1, 5):
        extra = {"evaluation": {"episode_reward_mean": 7.0}} if iteration == 3 else {}
        writer.on_result(make_result(iteration, 1.0, note='odd, "text"\nof two lines', **extra))
    table = read_table(tmp_path)
    assert [row["evaluation/episode_reward_mean"] for row in table] == ["", "", "7.0", ""]
    assert list(table[0])[-1] == "evaluation/episode_reward_mean"
    assert table[0]["note"] == 'odd, "text" of two lines' and table[3]["training_iteration"] == "4"


def test_columns_that_never_end_do_not_rewrite_for_ever(writer, tmp_path, caplog):
    for iteration in range(200):
        writer.on_result({"training_iteration": iteration, f"custom_{iteration}": 1.0})
    table = read_table(tmp_path)
    assert len(table) == 200 and 40 < len(table[0]) < 60 and "takes no more columns" in caplog.text
    assert read_results(tmp_path)[199]["custom_199"] == 1.0


def test_a_later_process_continues_the_files(tmp_path):
    for start in (1, 3):
        writer = ResultWriter(tmp_path, {})
        writer.on_result(make_result(start, 1.0))
        writer.on_result(make_result(start + 1, 1.0, late=start))
        writer.close()
    assert [row["training_iteration"] for row in read_results(tmp_path)] == [1, 2, 3, 4]
    assert [row["late"] for row in read_table(tmp_path)] == ["", "1", "", "3"]
    environment = json.loads((tmp_path / "env.json").read_text())
    assert len(environment["resumes"]) == 1 and environment["resumes"][0]["pid"] == os.getpid()


@pytest.mark.parametrize("restored, left", [(3, [1, 2, 3]), (0, []), (9, [1, 2, 3, 4, 5])])
def test_rows_after_a_restored_iteration_are_made_anew(tmp_path, restored, left):
    writer = ResultWriter(tmp_path, {})
    for iteration in range(1, 6):
        writer.on_result(make_result(iteration, 1.0))
    writer.on_restore(restored)
    assert [row["training_iteration"] for row in read_results(tmp_path)] == left
    writer.on_result(make_result(restored + 1, 2.0))
    writer.close()
    assert [row["training_iteration"] for row in read_results(tmp_path)] == [*left, restored + 1]
    assert [int(row["training_iteration"]) for row in read_table(tmp_path)] == [*left, restored + 1]


def test_a_torn_last_line_is_passed_over_and_cut_at_the_next_start(tmp_path, caplog):
    writer = ResultWriter(tmp_path, {})
    writer.on_result(make_result(1, 1.0))
    writer.close()
    for name in ("result.jsonl", "progress.csv"):
        with open(tmp_path / name, "ab") as file:
            file.write(b'{"training_iteration": 2, "epi')
    assert [row["training_iteration"] for row in read_results(tmp_path / "result.jsonl")] == [1] and not caplog.text
    writer = ResultWriter(tmp_path, {})
    writer.on_result(make_result(2, 1.0))
    writer.close()
    assert [row["training_iteration"] for row in read_results(tmp_path)] == [1, 2]
    assert len(read_table(tmp_path)) == 2


def test_a_damaged_line_is_passed_over_with_a_warning(tmp_path, caplog):
    (tmp_path / "result.jsonl").write_bytes(b'{"a": 1}\n\xff\xfe\n[]\n{"a": 2}\n' + b"[" * 100_000 + b"\n")
    assert read_results(tmp_path) == [{"a": 1}, {"a": 2}]
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 3
    with pytest.raises(FileNotFoundError):
        read_results(tmp_path / "none.jsonl")


def test_a_full_disk_costs_one_warning_and_rows(tmp_path, caplog):
    writer = ResultWriter(tmp_path, {})
    writer.on_result(make_result(1, 1.0))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, limits[1]))
    try:
        for iteration in range(2, 40):
            writer.on_result(make_result(iteration, 1.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.on_result(make_result(40, 1.0))
    writer.close()
    assert writer.num_write_errors > 30
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "Training goes on" in caplog.text and "File too large" in caplog.text
    iterations = [row["training_iteration"] for row in read_results(tmp_path)]
    assert iterations[0] == 1 and iterations[-1] == 40 and 2 < len(iterations) < 20
    assert [int(row["training_iteration"]) for row in read_table(tmp_path)][-1] == 40


@pytest.mark.parametrize("name", ["result.jsonl", "progress.csv"])
def test_a_device_that_is_always_full_costs_only_its_own_file(tmp_path, caplog, name):
    os.symlink("/dev/full", tmp_path / name)
    writer = ResultWriter(tmp_path, {})
    for iteration in range(1, 4):
        writer.on_result(make_result(iteration, 1.0))
    writer.close()
    assert writer.num_write_errors == 3 and len(caplog.records) == 1 and "No space left" in caplog.text
    assert len(read_results(tmp_path) if name == "progress.csv" else read_table(tmp_path)) == 3


def test_a_directory_that_vanishes_costs_one_warning(tmp_path, caplog):
    writer = ResultWriter(tmp_path / "gone", {})
    writer.on_result(make_result(1))
    writer.close()
    assert writer.num_write_errors == 4 and len(caplog.records) == 1


KILLED = """
import sys, itertools
from headwater.telemetry.results import ResultWriter
from tests.telemetry.sample_results import make_result
writer = ResultWriter(sys.argv[1], {})
for iteration in itertools.count(1):
    writer.on_result(make_result(iteration, 1.0))
    print(iteration, flush=True)
"""


def test_a_kill_loses_no_row(tmp_path, request):
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(tmp_path)], stdout=subprocess.PIPE, text=True, cwd=request.config.rootpath
    )
    for _ in range(50):
        process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    rest = process.communicate()[0].split("\n")
    reported = max([50, *(int(line) for line in rest[:-1])])
    iterations = [row["training_iteration"] for row in read_results(tmp_path)]
    assert iterations in ([*range(1, reported + 1)], [*range(1, reported + 2)])
    assert len(read_table(tmp_path)) >= reported
