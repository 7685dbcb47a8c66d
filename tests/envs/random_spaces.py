"""Random spaces of the supported kinds, for property tests."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from hypothesis import strategies as st

SHAPES = st.sampled_from([(), (0,), (1,), (3,), (2, 2), (2, 3, 1), (2, 3, 4), (1, 2, 2, 2)])


@st.composite
def boxes(draw: st.DrawFn) -> spaces.Box:
    shape = draw(SHAPES)
    dtype = draw(st.sampled_from([np.float32, np.float64, np.uint8, np.int64, np.int8, np.float16]))
    if np.dtype(dtype).kind == "f":
        low = draw(st.sampled_from([-np.inf, -3.0, 0.0]))
        high = draw(st.sampled_from([np.inf, 1.0, 300.0]))
        return spaces.Box(low, high, shape, dtype)
    low = 0 if dtype == np.uint8 else -7
    return spaces.Box(low, draw(st.sampled_from([3, 100])), shape, dtype)


discretes = st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), st.integers(-4, 4))


@st.composite
def multi_discretes(draw: st.DrawFn) -> spaces.MultiDiscrete:
    shape = draw(st.sampled_from([(1,), (3,), (2, 2)]))
    nvec = np.array(draw(st.lists(st.integers(1, 4), min_size=int(np.prod(shape)), max_size=int(np.prod(shape)))))
    start = draw(st.sampled_from([0, -2, 5]))
    return spaces.MultiDiscrete(nvec.reshape(shape), start=np.full(shape, start))


multi_binaries = st.sampled_from([(1,), (4,), (2, 3)]).map(spaces.MultiBinary)
plain_spaces = st.one_of(boxes(), discretes, multi_discretes(), multi_binaries)


def nestings(children: st.SearchStrategy[spaces.Space]) -> st.SearchStrategy[spaces.Space]:
    parts = st.lists(children, min_size=1, max_size=3)
    dicts = parts.map(lambda p: spaces.Dict({"zyx"[i]: part for i, part in enumerate(p)}))  # in reversed order
    return st.one_of(dicts, parts.map(spaces.Tuple))


def random_spaces() -> st.SearchStrategy[spaces.Space]:
    """Plain spaces, and Dict and Tuple of them to some depth."""
    return st.recursive(plain_spaces, nestings, max_leaves=5)
