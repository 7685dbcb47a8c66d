"""What ParquetWriter writes, ParquetReader reads: exactly, once in an epoch, and whole or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headwater.data.sample_batch import MultiAgentBatch, SampleBatch
from headwater.data.sequences import fold
from headwater.offline.context import EndOfInput, OfflineError
from headwater.offline.reader import ParquetReader
from headwater.offline.writer import ParquetWriter

DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"]


def rows(count: int, start: int = 0, **more: Any) -> SampleBatch:
    numbers = np.arange(start, start + count)
    columns = {
        "obs": np.stack([numbers] * 3, axis=1).astype(np.float32), "actions": numbers % 2, "rewards": np.ones(count),
        "terminateds": np.zeros(count, bool), "truncateds": np.zeros(count, bool), "row": numbers,
    }  # fmt: skip
    return SampleBatch({**columns, **more})


def write(path: Path, *batches: Any, **kwargs: Any) -> None:
    with ParquetWriter(path, **kwargs) as writer:
        for batch in batches:
            writer.write(batch)


def read(path: Any, **kwargs: Any) -> list[Any]:
    return list(ParquetReader(path, epochs=1, **kwargs))


def assert_equal(a: SampleBatch, b: SampleBatch) -> None:
    assert a.keys() == b.keys()
    for name in a:
        assert a[name].dtype == b[name].dtype, name
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@st.composite
def batches(draw: Any) -> SampleBatch:
    count = draw(st.integers(1, 7))
    columns = {}
    for index in range(draw(st.integers(1, 4))):
        shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4))
        columns[f"column {index}"] = draw(hnp.arrays(draw(st.sampled_from(DTYPES)), (count, *shape)))
    return SampleBatch(columns)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(batch=batches(), piece=st.integers(1, 8), compress=st.booleans())
def test_any_columns_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, batch: SampleBatch, piece: int, compress: bool
) -> None:
    path = tmp_path_factory.mktemp("round")
    write(path, batch, compress_columns=list(batch) if compress else ())
    pieces = read(path, batch_rows=piece, needed=())
    assert [part.num_rows for part in pieces[:-1]] == [piece] * (len(pieces) - 1)
    assert_equal(SampleBatch.concat_samples(pieces), batch)


def test_read_arrays_can_be_written_to(tmp_path: Path) -> None:
    write(tmp_path, rows(4, image=np.ones((4, 5, 5, 3), np.uint8)))
    [batch] = read(tmp_path)
    for column in batch.values():
        column[0] = 0
    assert batch["image"][1].all()


def test_sequences_are_written_as_their_real_rows(tmp_path: Path) -> None:
    flat = rows(5)
    write(tmp_path, fold(flat, np.array([0, 3]), 3, np.zeros((2, 4), np.float32)))
    [batch] = read(tmp_path)
    assert_equal(batch, flat)


def test_what_no_file_can_hold_is_left_out_with_a_word(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, rows(2, infos_of_this_test=np.array([{}, {"a": 1}], object)))
    [batch] = read(tmp_path)
    assert "infos_of_this_test" not in batch and "infos_of_this_test" in caplog.text


def multi_agent(steps: int, start: int = 0) -> MultiAgentBatch:
    t = np.arange(start, start + steps)
    red = SampleBatch(rows(steps, start), eps_id=np.zeros(steps, np.int64), t=t)
    both = np.repeat(t, 2)
    blue = SampleBatch(
        rows(2 * steps, 100 + start), eps_id=np.zeros(2 * steps, np.int64), t=both, agent_index=np.tile([1, 2], steps)
    )
    blue["obs"] = np.zeros((2 * steps, 6), np.float64) + both[:, None]
    return MultiAgentBatch({"red": red, "blue": blue}, steps)


def test_policies_of_different_shapes_share_a_file(tmp_path: Path) -> None:
    batch = multi_agent(5)
    write(tmp_path, batch)
    assert len(list(tmp_path.iterdir())) == 1
    [back] = read(tmp_path)
    assert isinstance(back, MultiAgentBatch) and back.count == 5
    assert_equal(back.policy_batches["red"], batch.policy_batches["red"])
    blue = back.policy_batches["blue"]
    assert blue["agent_index"].tolist() == [1] * 5 + [2] * 5 and blue["t"].tolist() == [*range(5)] * 2
    assert blue["obs"].dtype == np.float64


def test_pieces_of_several_agents_are_of_whole_env_steps(tmp_path: Path) -> None:
    write(tmp_path, multi_agent(4))
    pieces = read(tmp_path, batch_rows=6)
    assert [(piece.count, piece.agent_steps()) for piece in pieces] == [(2, 6), (2, 6)]


def test_a_policy_that_acts_late_begins_a_file_and_its_absence_does_not(tmp_path: Path) -> None:
    both = multi_agent(3)
    alone = MultiAgentBatch({"red": both.policy_batches["red"]}, 3)
    write(tmp_path, alone, both, alone, both)
    assert len(list(tmp_path.iterdir())) == 2
    assert sum(piece.agent_steps() for piece in read(tmp_path)) == 3 + 9 + 3 + 9


def test_files_are_rolled_by_size(tmp_path: Path) -> None:
    noise = np.random.default_rng(0)
    parts = [rows(100, i * 100, noise=noise.normal(size=(100, 50))) for i in range(20)]
    write(tmp_path, *parts, max_file_size_bytes=200_000)
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) >= 4 and max(sizes) < 300_000
    assert sorted(int(i) for batch in read(tmp_path) for i in batch["row"]) == list(range(2000))


def test_files_are_completed_by_age(tmp_path: Path) -> None:
    with ParquetWriter(tmp_path, max_file_age_s=0.0) as writer:
        writer.write(rows(2))
        assert [path.suffix for path in tmp_path.iterdir()] == [".parquet"]


def test_names_tell_worker_and_number(tmp_path: Path) -> None:
    with ParquetWriter(tmp_path, worker_index=3) as writer:
        for _ in range(2):
            writer.write(rows(1))
            writer.flush()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert [name.split("-worker")[1] for name in names] == ["3-0.parquet", "3-1.parquet"]
    assert all(name.startswith("output-2") for name in names)


def test_only_the_columns_named_are_compressed(tmp_path: Path) -> None:
    write(tmp_path, rows(10), compress_columns=["obs"])
    [path] = tmp_path.iterdir()
    with pq.ParquetFile(path) as file:
        group = file.metadata.row_group(0)
        codecs = {group.column(i).path_in_schema: group.column(i).compression for i in range(group.num_columns)}
    assert codecs.pop("obs.list.element") == "ZSTD" and set(codecs.values()) == {"UNCOMPRESSED"}


@pytest.mark.parametrize("files", [1, 2, 7])
@pytest.mark.parametrize("shards", [1, 2, 5])
def test_shards_share_all_rows_without_one_twice(tmp_path: Path, files: int, shards: int) -> None:
    for i in range(files):
        write(tmp_path, rows(50, 50 * i), worker_index=i, row_group_rows=50)
    seen: list[int] = []
    for shard in range(shards):
        part = read(tmp_path, batch_rows=16, shard=shard, num_shards=shards, shuffle_seed=4)
        assert part, "a shard without rows"
        seen += [int(i) for batch in part for i in batch["row"]]
    assert sorted(seen) == list(range(50 * files))


def test_epochs_are_counted_and_ordered_anew(tmp_path: Path) -> None:
    with ParquetWriter(tmp_path, row_group_rows=1) as writer:
        for i in range(8):
            writer.write(rows(4, 4 * i))
    reader = ParquetReader(tmp_path, batch_rows=32, shuffle_seed=1)
    epochs = [reader.next()["row"].tolist() for _ in range(3)]
    assert reader.num_epochs == 3
    assert all(sorted(epoch) == list(range(32)) for epoch in epochs) and epochs[0] != epochs[1] != epochs[2]


def test_a_reader_goes_on_from_its_state(tmp_path: Path) -> None:
    write(tmp_path, rows(30), rows(30, 30), row_group_rows=10)
    reader = ParquetReader(tmp_path, batch_rows=7, shuffle_seed=2)
    for _ in range(11):
        reader.next()
    state = reader.get_state()
    twin = ParquetReader(tmp_path, batch_rows=7, shuffle_seed=2)
    twin.set_state(state)
    for _ in range(12):
        assert_equal(twin.next(), reader.next())


def test_the_end_of_the_epochs_is_said(tmp_path: Path) -> None:
    write(tmp_path, rows(3))
    reader = ParquetReader(tmp_path, batch_rows=2, epochs=1)
    assert [reader.next().count, reader.next().count] == [2, 1]
    with pytest.raises(EndOfInput, match="read 1 times"):
        reader.next()


@pytest.mark.parametrize("spec", ["nothing/*.parquet", "missing.parquet", ["*.parquet", "none-*.parquet"]])
def test_what_names_no_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, spec: Any) -> None:
    write(tmp_path, rows(3))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OfflineError, match="nothing|missing|none-"):
        ParquetReader(spec)


def damaged(path: Path, how: str) -> None:
    content = bytearray(path.read_bytes())
    if how == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "foreign":
        pq.write_table(pa.table({"obs": [1.0, 2.0]}), path)
    elif how == "text":
        path.write_text("obs,actions\n1,2\n")
    elif how == "metadata":
        table = pq.read_table(path)
        pq.write_table(table.replace_schema_metadata({b"headwater": b'{"format": "headwater-experience"'}), path)
    elif how == "newer":
        metadata = {b"headwater": b'{"format": "headwater-experience", "version": 99}'}
        pq.write_table(pq.read_table(path).replace_schema_metadata(metadata), path)
    elif how == "dropped":
        pq.write_table(pq.read_table(path).drop_columns(["rewards"]), path)


@pytest.mark.parametrize("how", ["truncated", "empty", "foreign", "text", "metadata", "newer", "dropped"])
def test_a_damaged_file_is_named_with_the_reason(tmp_path: Path, how: str) -> None:
    write(tmp_path, rows(50))
    [path] = tmp_path.iterdir()
    damaged(path, how)
    with pytest.raises(OfflineError, match="cannot be read") as caught:
        ParquetReader(tmp_path)
    assert str(path) in str(caught.value)


def test_a_flipped_bit_is_found(tmp_path: Path) -> None:
    write(tmp_path, rows(500), compress_columns=())
    [path] = tmp_path.iterdir()
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 0x10
    path.write_bytes(content)
    with pytest.raises(OfflineError, match="output-.*parquet"):
        read(tmp_path)


def test_columns_and_shapes_are_checked_against_what_is_expected(tmp_path: Path) -> None:
    write(tmp_path, rows(5))
    expects = {"default_policy": {"obs": (3,), "new_obs": (3,), "actions": ()}}
    assert ParquetReader(tmp_path, expects=expects).next().count == 1024
    with pytest.raises(OfflineError, match=r"'obs' has rows of shape \[3\], but 'default_policy' takes \[4\]"):
        ParquetReader(tmp_path, expects={"default_policy": {"obs": (4,)}})
    with pytest.raises(OfflineError, match="policy 'default_policy'; this run's policies are red"):
        ParquetReader(tmp_path, expects={"red": {}})
    with pytest.raises(OfflineError, match="no column 'action_logp'"):
        ParquetReader(tmp_path, needed=["action_logp"])


def test_a_kill_leaves_whole_files_only(tmp_path: Path) -> None:
    code = """
        import sys, numpy as np
        from headwater.data.sample_batch import SampleBatch
        from headwater.offline.writer import ParquetWriter
        writer, i = ParquetWriter(sys.argv[1], max_file_size_bytes=100_000, row_group_rows=100), 0
        while True:
            n = np.arange(i, i + 100)
            zeros = np.zeros(100, bool)
            writer.write(SampleBatch(obs=np.random.rand(100, 20), actions=n, rewards=n, terminateds=zeros,
                                     truncateds=zeros))
            i += 100
            print(i, flush=True)
    """
    for kill_at in (3_000, 5_700, 10_100):
        command = [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / str(kill_at))]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if int(line) >= kill_at:
                    os.kill(process.pid, signal.SIGKILL)
                    break
        batches = read(str(tmp_path / str(kill_at) / "*.parquet"), batch_rows=None)
        numbers = sorted(int(i) for batch in batches for i in batch["actions"])
        assert len(numbers) >= kill_at - 1500 and numbers == list(range(len(numbers)))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is full")
def test_an_error_leaves_no_temporary_and_can_be_survived(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "out"
    with ParquetWriter(target) as writer:
        writer.write(rows(4))
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", _full)
            with pytest.raises(OSError, match="No space"):
                writer.flush()
        assert writer.num_rows_lost == 4 and list(target.iterdir()) == []
        writer.write(rows(4))
    assert sum(batch.count for batch in read(target)) == 4


def _full(descriptor: int) -> None:
    with open("/dev/full", "wb", buffering=0) as device:
        device.write(b"x")
