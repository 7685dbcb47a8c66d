import os
import resource
import subprocess
import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from headwater.telemetry.tensorboard import TensorBoardWriter
from tests.telemetry.sample_results import make_result


def write(directory, results, tags="rllib"):
    writer = TensorBoardWriter(directory, tags)
    for result in results:
        writer.on_result(result)
    writer.close()
    return writer


def read(directory):
    accumulator = EventAccumulator(str(directory), size_guidance={"scalars": 0})
    accumulator.Reload()
    return {tag: [(e.step, e.value) for e in accumulator.Scalars(tag)] for tag in accumulator.Tags()["scalars"]}


def test_tensorboard_reads_what_is_written(tmp_path):
    write(tmp_path / "tb", [make_result(1), make_result(2, 20.5), make_result(3, 30.5, evaluation={"a": {"b": 1}})])
    curves = read(tmp_path / "tb")
    assert curves["ray/tune/episode_reward_mean"] == [(2048, 20.5), (3072, 30.5)]  # no point before an episode ended
    kl = curves["ray/tune/info/learner/default_policy/kl"]
    assert [step for step, _ in kl] == [1024, 2048, 3072] and kl[0][1] == pytest.approx(0.0071)
    assert curves["ray/tune/evaluation/a/b"] == [(3072, 1.0)]
    assert curves["ray/tune/steps_per_second"][0][1] == pytest.approx(1024 / 0.03)
    assert not [tag for tag in curves if "pid" in tag or "hist_stats" in tag or "hostname" in tag or "config" in tag]


@pytest.mark.parametrize(
    "tags, expected",
    [
        (
            "sb3",
            {
                "rollout/ep_rew_mean": 20.5,
                "rollout/ep_len_mean": 20.5,
                "time/fps": 1024 / 0.03,
                "train/approx_kl": 0.0071,
                "train/entropy_loss": -0.5312,
                "train/explained_variance": 0.8123,
                "train/learning_rate": 3e-4,
                "eval/mean_reward": 7.0,
                "timers/learn_time_ms": 1.234,
            },
        ),
        (
            "cleanrl",
            {
                "charts/episodic_return": 20.5,
                "charts/SPS": 1024 / 0.03,
                "charts/learning_rate": 3e-4,
                "losses/entropy": 0.5312,
                "losses/value_loss": 12.5,
                "info/learner/default_policy/grad_gnorm": 0.7,
            },
        ),
    ],
)
def test_curves_may_bear_the_names_of_other_libraries(tmp_path, tags, expected):
    result = make_result(2, 20.5, evaluation={"episode_reward_mean": 7.0})
    result["info"]["learner"]["other"] = {"kl": 0.5}
    write(tmp_path, [result], tags)
    curves = read(tmp_path)
    for tag, value in expected.items():
        assert curves[tag] == [(2048, pytest.approx(value))]
    assert curves[{"sb3": "train/approx_kl/other", "cleanrl": "losses/approx_kl/other"}[tags]] == [(2048, 0.5)]
    with pytest.raises(ValueError, match="tags is one of 'rllib', 'sb3', 'cleanrl'"):
        TensorBoardWriter(tmp_path, "wandb")


def test_points_after_a_restored_step_are_dropped(tmp_path):
    writer = write(tmp_path, [make_result(iteration, 1.0) for iteration in range(1, 6)])
    writer.on_restore(3 * 1024)
    writer.on_result(make_result(4, 2.0))
    writer.close()
    rewards = read(tmp_path)["ray/tune/episode_reward_mean"]
    assert rewards == [(1024, 1.0), (2048, 1.0), (3072, 1.0), (4096, 2.0)]


IMPORTS = """
import sys, tempfile
from headwater.telemetry.tensorboard import TensorBoardWriter
from tests.telemetry.sample_results import make_result
writer = TensorBoardWriter(tempfile.mkdtemp())
assert "tensorboard" not in sys.modules
writer.on_result(make_result(1))
writer.on_result(make_result(2))
writer.close()
assert writer.num_write_errors == 0
assert "tensorboard" in sys.modules
for name in ("tensorflow", "torch", "gymnasium"):
    assert name not in sys.modules, name
"""


def test_nothing_heavy_is_imported(tmp_path, request):
    """A TensorFlow that is installed is not touched: this one ends the process that imports it."""
    (tmp_path / "tensorflow").mkdir()
    (tmp_path / "tensorflow" / "__init__.py").write_text("import os; os._exit(3)")
    path = os.pathsep.join([str(tmp_path), str(request.config.rootpath)])
    subprocess.run([sys.executable, "-c", IMPORTS], env={**os.environ, "PYTHONPATH": path}, check=True)
    imported = subprocess.run([sys.executable, "-c", "import tensorflow"], env={**os.environ, "PYTHONPATH": path})
    assert imported.returncode == 3  # the trap works


def test_without_tensorboard_a_warning_is_all(tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto", None)
    writer = write(tmp_path, [make_result(1), make_result(2)])
    assert writer.num_write_errors == 2 and len(caplog.records) == 1 and "Training goes on" in caplog.text


def test_a_full_disk_costs_one_warning_and_whole_points(tmp_path, caplog):
    writer = TensorBoardWriter(tmp_path)
    writer.on_result(make_result(1, 1.0))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (6000, limits[1]))
    try:
        for iteration in range(2, 30):
            writer.on_result(make_result(iteration, 1.0))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    writer.on_result(make_result(30, 1.0))
    writer.close()
    assert writer.num_write_errors > 10 and len(caplog.records) == 1
    steps = [step for step, _ in read(tmp_path)["ray/tune/episode_reward_mean"]]
    assert steps[0] == 1024 and steps[-1] == 30 * 1024 and 2 < len(steps) < 20
