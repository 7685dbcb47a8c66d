"""Readers of readers: mixtures, the shuffle buffer, users' own sources."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwater.data.sample_batch import MultiAgentBatch, SampleBatch
from headwater.errors import ConfigError
from headwater.offline import InputReader, IOContext, OfflineError, make_reader
from headwater.offline.mixing import CallableReader, MixedReader, ShuffledReader
from tests.offline.test_parquet import rows, write


def constant(value: int) -> CallableReader:
    return CallableReader(lambda: SampleBatch({"obs": np.full(4, value)}))


def test_a_mixture_keeps_to_its_shares() -> None:
    reader = MixedReader({"a": constant(1), "b": constant(2), "c": constant(3)}, {"a": 0.5, "b": 0.3, "c": 0.2}, seed=0)
    drawn = Counter(int(reader.next()["obs"][0]) for _ in range(4000))
    for value, share in ((1, 0.5), (2, 0.3), (3, 0.2)):
        assert abs(drawn[value] / 4000 - share) < 4 * np.sqrt(share * (1 - share) / 4000)


def test_a_mixture_goes_on_from_its_state() -> None:
    def make() -> MixedReader:
        return MixedReader({"a": constant(1), "b": constant(2)}, {"a": 0.5, "b": 0.5}, seed=3)

    first, second = make(), make()
    for _ in range(5):
        first.next()
    second.set_state(first.get_state())
    assert [first.next()["obs"][0] for _ in range(20)] == [second.next()["obs"][0] for _ in range(20)]


@pytest.mark.parametrize("shares", [{"a": 0.5, "b": 0.4}, {"a": 1.5, "b": -0.5}, {"a": "half"}, {"a": True}, {}])
def test_shares_are_checked(shares: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="input: the (share|mixture)"):
        make_reader(shares)


def test_a_mixture_of_files_the_own_env_and_what_is_missing(tmp_path: Path) -> None:
    write(tmp_path, rows(10))
    context = IOContext(sampler=lambda: rows(3, 1000))
    reader = make_reader({str(tmp_path / "*.parquet"): 0.5, "sampler": 0.5}, context, batch_rows=5, seed=0)
    assert {reader.next().num_rows for _ in range(30)} == {3, 5}
    with pytest.raises(ConfigError, match="this worker has none"):
        make_reader({"sampler": 1.0})
    with pytest.raises(OfflineError, match="not-there"):
        make_reader({str(tmp_path): 0.5, str(tmp_path / "not-there"): 0.5})


def test_a_shuffle_buffer_gives_every_row_once_and_parts_neighbours() -> None:
    source = iter([rows(10, 10 * i) for i in range(30)])
    batches = list(ShuffledReader(CallableReader(source), buffer_size=100, seed=0))
    assert {batch.num_rows for batch in batches} == {10}
    order = [int(i) for batch in batches for i in batch["row"]]
    assert sorted(order) == list(range(300))
    assert np.mean(np.diff(order) == 1) < 0.1
    assert all((batch["obs"][:, 0] == batch["row"]).all() for batch in batches)


def test_a_shuffle_buffer_of_several_policies_and_of_unlike_columns() -> None:
    def batch(i: int) -> MultiAgentBatch:
        more = {"extra": np.zeros(4)} if i % 2 else {}
        return MultiAgentBatch({"red": rows(4, 4 * i, **more), "blue": rows(2, 2 * i)}, 4)

    source = iter([batch(i) for i in range(10)])
    batches = list(ShuffledReader(CallableReader(source), buffer_size=20, seed=0))
    for policy_id, total in (("red", 40), ("blue", 20)):
        seen = [int(i) for part in batches if policy_id in part.policy_batches
                for i in part.policy_batches[policy_id]["row"]]  # fmt: skip
        assert sorted(seen) == list(range(total))


def test_a_shuffle_buffer_goes_on_from_its_state(tmp_path: Path) -> None:
    write(tmp_path, rows(64), row_group_rows=8)

    def make() -> ShuffledReader:
        return ShuffledReader(make_reader(tmp_path, batch_rows=8), 24, seed=1)

    first, second = make(), make()
    for _ in range(4):
        first.next()
    second.set_state(first.get_state())
    for _ in range(10):
        assert first.next()["row"].tolist() == second.next()["row"].tolist()


class Own(InputReader):
    def next(self) -> SampleBatch:
        return rows(2)


@pytest.mark.parametrize("make", [lambda context: Own(), lambda context: iter([rows(2)]), lambda context: Own().next])
def test_users_own_sources(make: Any) -> None:
    assert make_reader(make, IOContext(worker_index=1)).next().count == 2


def test_a_users_source_is_told_where_it_stands() -> None:
    seen: list[IOContext] = []
    make_reader(lambda context: seen.append(context) or Own(), IOContext(worker_index=2, num_workers=3))
    assert (seen[0].worker_index, seen[0].shard, seen[0].num_shards) == (2, 1, 3)


@pytest.mark.parametrize(
    ("spec", "error"), [(5, ConfigError), (lambda context: 5, ConfigError), ([], ConfigError), ([3], ConfigError)]
)
def test_what_is_no_source_is_refused(spec: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="input"):
        make_reader(spec)


def test_what_is_no_batch_is_refused() -> None:
    with pytest.raises(OfflineError, match="gave a dict"):
        CallableReader(lambda: {"obs": [1]}).next()
