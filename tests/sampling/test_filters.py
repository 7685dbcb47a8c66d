import json
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from headwater.errors import ConfigError
from headwater.sampling.filters import FilterError, FilterManager, MeanStdFilter, NoFilter, RunningStat, get_filter

rows_of_numbers = npst.arrays(
    np.float32, st.tuples(st.integers(1, 20), st.just(3)), elements=st.floats(-1000, 1000, width=32)
)


@settings(max_examples=100, deadline=None)
@given(st.lists(rows_of_numbers, min_size=1, max_size=4))
def test_statistics_in_parts_equal_those_of_all_rows(parts):
    stat, merged = RunningStat((3,)), RunningStat((3,))
    for part in parts:
        stat.push_batch(part)
        alone = RunningStat((3,))
        alone.push_batch(part)
        merged.update(alone)
    rows = np.concatenate(parts).astype(np.float64)
    for each in (stat, merged):
        assert each.n == len(rows)
        np.testing.assert_allclose(each.mean, rows.mean(0), rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(each.var, rows.var(0, ddof=1) if len(rows) > 1 else 0, rtol=1e-6, atol=1e-6)


def test_large_means_lose_no_precision():
    stat = RunningStat(())
    for start in range(0, 1000, 10):
        stat.push_batch(1e9 + np.arange(start, start + 10) % 10)
    assert stat.std == pytest.approx(np.std(np.arange(1000) % 10, ddof=1), rel=1e-9)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_non_finite_rows_never_enter(bad):
    stat = RunningStat((2,))
    with np.errstate(all="raise"):
        stat.push_batch(np.array([[1.0, 2.0], [bad, 0.0], [bad, -bad], [3.0, 4.0]]))
        stat.push_batch(np.array([[0.0, bad]]))
    assert stat.n == 2 and stat.mean.tolist() == [2.0, 3.0]
    f = MeanStdFilter((2,))
    f(np.array([[1.0, 2.0], [bad, 0.0]]))
    assert f.rs.n == f.buffer.n == 1


def test_normalises_batches_and_single_observations():
    f = MeanStdFilter((2,))
    x = np.random.default_rng(0).normal(3.0, 2.0, size=(500, 2)).astype(np.float32)
    y = f(x)
    assert y.dtype == np.float32 and y.shape == x.shape
    np.testing.assert_allclose(y, (x - x.mean(0)) / x.std(0, ddof=1), atol=1e-4)
    np.testing.assert_allclose(f(x[0], update=False), y[0], atol=1e-6)
    assert f.rs.n == 500
    f(x[0])
    assert f.rs.n == 501


def test_without_update_nothing_is_counted():
    f = MeanStdFilter((1,))
    f(np.arange(10.0)[:, None])
    before = f.get_state()
    for _ in range(100):
        f(np.random.default_rng(1).normal(size=(8, 1)), update=False)
    assert f.get_state() == before and f.rs.n == 10


def test_before_two_rows_and_for_constant_dimensions():
    f = MeanStdFilter((2,))
    assert f(np.array([[5.0, 6.0]]), update=False).tolist() == [[5.0, 6.0]]
    assert f(np.array([[5.0, 6.0]])).tolist() == [[0.0, 0.0]]
    assert f(np.array([[5.0, 8.0]]))[0, 0] == 0.0
    assert f(np.array([6.0, 8.0]), update=False)[0] == 1.0  # only centred


def test_clipping():
    f = get_filter("MeanStdFilter", (1,))
    x = np.zeros((10_000, 1))
    x[-1] = 1e6
    assert f(x)[-1, 0] == 10.0
    assert MeanStdFilter((1,))(x)[-1, 0] > 50


def test_shapes_that_do_not_fit():
    for bad in (np.zeros((2, 3)), np.zeros(3), np.zeros(()), np.zeros((1, 2, 2))):
        with pytest.raises(FilterError, match=r"shape \(2,\)"):
            MeanStdFilter((2,))(bad)
    with pytest.raises(FilterError):
        MeanStdFilter((2,)).sync(MeanStdFilter((3,)))
    with pytest.raises(FilterError):
        RunningStat((2,)).update(RunningStat((3,)))
    with pytest.raises(FilterError):
        MeanStdFilter((2,)).set_state(MeanStdFilter((3,)).get_state())
    assert MeanStdFilter(())(np.arange(3.0)).shape == (3,)


def test_image_shaped_observations():
    f = MeanStdFilter((4, 4, 3))
    assert f(np.zeros((5, 4, 4, 3), np.uint8)).shape == (5, 4, 4, 3)


class Worker:
    """Sees rows; its filters are asked for and set as a remote worker's."""

    def __init__(self):
        self.filters = {"default_policy": MeanStdFilter((1,))}

    def observe(self, *values):
        self.filters["default_policy"](np.array(values, dtype=np.float32)[:, None])

    def get_filters(self, flush_after=False):
        copies = {pid: f.as_serializable() for pid, f in self.filters.items()}
        if flush_after:
            for f in self.filters.values():
                f.clear_buffer()
        return copies

    def sync_filters(self, filters):
        for pid, f in filters.items():
            self.filters[pid].sync(f)


@pytest.mark.parametrize("local_samples_too", [False, True])
def test_each_row_is_counted_once_however_often_filters_are_synced(local_samples_too):
    local, remotes = Worker(), [Worker(), Worker()]
    seen = []
    rng = np.random.default_rng(0)
    for _ in range(5):
        for worker in [*remotes, *([local] if local_samples_too else [])]:
            values = rng.normal(size=rng.integers(1, 9))
            seen.extend(values.astype(np.float32))
            worker.observe(*values)
        FilterManager.synchronize(local.filters, remotes)
        FilterManager.synchronize(local.filters, remotes)
        for worker in (local, *remotes):
            f = worker.filters["default_policy"]
            assert f.rs.n == len(seen) and f.buffer.n == 0
            np.testing.assert_allclose(f.rs.mean, np.mean(seen, dtype=np.float64), rtol=1e-9)
            np.testing.assert_allclose(f.rs.std, np.std(np.array(seen, np.float64), ddof=1), rtol=1e-9)


def test_rows_zero_to_nine_over_two_workers():
    local, remotes = Worker(), [Worker(), Worker()]
    for k in range(5):
        remotes[0].observe(2 * k)
        remotes[1].observe(2 * k + 1)
        FilterManager.synchronize(local.filters, remotes)
    rs = local.filters["default_policy"].rs
    assert rs.n == 10 and rs.mean == pytest.approx(4.5) and rs.std == pytest.approx(3.027650, abs=1e-6)


def test_rows_seen_between_collecting_and_sending_back_are_kept():
    local, remote = Worker(), Worker()
    remote.observe(1, 2)

    def gather(workers, method, *args):
        results = [getattr(worker, method)(*args) for worker in workers]
        if method == "get_filters":
            remote.observe(3)
        return results

    FilterManager.synchronize(local.filters, [remote], gather=gather)
    assert local.filters["default_policy"].rs.n == 2
    assert remote.filters["default_policy"].rs.n == 3 and remote.filters["default_policy"].buffer.n == 1
    FilterManager.synchronize(local.filters, [remote])
    assert local.filters["default_policy"].rs.n == remote.filters["default_policy"].rs.n == 3


def test_without_sending_back_remotes_keep_their_own():
    local, remote = Worker(), Worker()
    local.observe(1)
    remote.observe(2, 3)
    FilterManager.synchronize(local.filters, [remote], update_remote=False)
    assert local.filters["default_policy"].rs.n == 3 and remote.filters["default_policy"].rs.n == 2


def test_apply_changes_with_buffer():
    a, b = MeanStdFilter((1,)), MeanStdFilter((1,))
    b(np.ones((3, 1)))
    a.apply_changes(b, with_buffer=True)
    assert a.rs.n == a.buffer.n == 3


def test_copies_are_independent():
    f = MeanStdFilter((1,))
    f(np.arange(4.0)[:, None])
    other = f.copy()
    other(np.arange(100.0)[:, None])
    assert f.rs.n == 4 and f.rs.mean == 1.5 and other.rs.n == 104


def test_state_round_trip_is_exact():
    f = MeanStdFilter((3,))
    f(np.random.default_rng(0).normal(size=(17, 3)))
    state = f.get_state()
    as_json = json.loads(json.dumps(state, default=lambda array: array.tolist()))
    again = MeanStdFilter((3,))
    again(np.ones((4, 3)))
    again.set_state(as_json)
    x = np.random.default_rng(1).normal(size=(8, 3))
    assert (again(x, update=False) == f(x, update=False)).all()
    assert (again(x) == f(x)).all() and again.rs.n == again.buffer.n == 25


def test_get_filter_and_no_filter():
    f = get_filter("NoFilter", (2,))
    image = np.zeros((2, 2), np.uint8)
    assert f.is_identity and f(image) is image and f.get_state() == {} and f.copy() is f
    f.set_state({})
    f.sync(f)
    f.apply_changes(f)
    f.clear_buffer()
    assert isinstance(f, NoFilter) and not get_filter("MeanStdFilter", (2,)).is_identity
    assert get_filter(lambda shape: MeanStdFilter(shape, clip=3.0), (2,)).clip == 3.0
    with pytest.raises(ConfigError, match="MeanStdFilter"):
        get_filter("Kalman", (2,))


def test_a_step_of_eight_envs_takes_microseconds():
    f = MeanStdFilter((4,))
    x = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)

    def run():
        start = time.perf_counter()
        for _ in range(100):
            f(x)
        return (time.perf_counter() - start) / 100

    assert min(run() for _ in range(20)) < 50e-6


@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 6), features=st.integers(1, 3), others=st.integers(1, 3), seed=st.integers(0, 99))
def test_columns_behind_the_features_pass_as_they_are(rows: int, features: int, others: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    width = features + others
    whole, part = get_filter("MeanStdFilter", (width,), features), get_filter("MeanStdFilter", (features,))
    for _ in range(3):
        x = rng.normal(size=(rows, width)).astype(np.float32)
        before = x.copy()
        y = whole(x)
        np.testing.assert_array_equal(y[:, :features], part(x[:, :features]))
        np.testing.assert_array_equal(y[:, features:], x[:, features:])
        np.testing.assert_array_equal(x, before)
        np.testing.assert_array_equal(whole(x[0], update=False), whole(x, update=False)[0])
    assert whole.get_state().keys() == part.get_state().keys()
    np.testing.assert_array_equal(whole.get_state()["rs"]["mean"], part.get_state()["rs"]["mean"])
    twin = whole.copy()
    twin.sync(whole)
    twin.apply_changes(whole)
    other = get_filter("MeanStdFilter", (width,), features)
    other.set_state(whole.get_state())
    np.testing.assert_array_equal(other(x, update=False), whole(x, update=False))
