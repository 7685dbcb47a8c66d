"""EnvStreams: noise belongs to envs, and can be saved."""

import json

import numpy as np
import pytest

from headwater.sampling.streams import BLOCK, EnvStreams


def draws(streams: EnvStreams, n: int, kind: str = "uniform", shape: tuple[int, ...] = (2,)) -> np.ndarray:
    return np.stack([getattr(streams, kind)(shape).copy() for _ in range(n)])


@pytest.mark.parametrize("kind", ["uniform", "normal"])
def test_an_envs_numbers_do_not_depend_on_its_neighbours(kind: str) -> None:
    together = draws(EnvStreams((3, 0), range(4)), BLOCK + 5, kind, (4,))
    apart = [draws(EnvStreams((3, 0), pair), BLOCK + 5, kind) for pair in ([0, 1], [2, 3])]
    np.testing.assert_array_equal(together, np.concatenate(apart, axis=1))


def test_envs_seeds_purposes_and_kinds_differ() -> None:
    first = draws(EnvStreams((3, 0), range(2)), 50)
    assert not np.array_equal(first[:, 0], first[:, 1])
    assert not np.array_equal(first, draws(EnvStreams((4, 0), range(2)), 50))
    assert not np.array_equal(first, draws(EnvStreams((3, 1), range(2)), 50))


@pytest.mark.parametrize("drawn", [0, 1, BLOCK - 1, BLOCK, BLOCK + 3])
def test_state_goes_on_exactly(drawn: int) -> None:
    streams = EnvStreams((5, 0), range(2))
    for _ in range(drawn):
        streams.uniform((2,))
        streams.normal((2, 2))
    state = json.loads(json.dumps(streams.get_state()))
    other = EnvStreams((5, 0), range(2))
    other.set_state(state)
    for kind in ("uniform", "normal"):
        np.testing.assert_array_equal(draws(streams, 300, kind), draws(other, 300, kind))


def test_the_numbers_have_their_distributions() -> None:
    from scipy import stats

    streams = EnvStreams((11, 0), range(3))
    uniform = draws(streams, 4000, "uniform", (3,)).ravel()
    normal = draws(streams, 2000, "normal", (3, 2)).ravel()
    assert uniform.min() >= 0.0 and uniform.max() < 1.0
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3
    assert stats.kstest(normal, "norm").pvalue > 1e-3


def test_rows_must_be_the_envs() -> None:
    with pytest.raises(ValueError, match="2 envs"):
        EnvStreams((0, 0), range(2)).uniform((3,))
