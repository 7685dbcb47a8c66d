"""Action adapters: what the env gets for what was sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.envs.nested import make_split, tree_map
from headwater.errors import UnsupportedSpaceError
from headwater.sampling.preprocessors import get_action_adapter
from tests.envs.random_spaces import random_spaces


def f32(*values: Any) -> np.ndarray:
    return np.array(values, np.float32)


def test_the_range_is_stretched_onto_the_bounds() -> None:
    adapter = get_action_adapter(spaces.Box(300, 500, (1,)), clip_actions=True, normalize_actions=True)
    actions = f32([0.0], [1.0], [-1.0], [3.0])
    assert adapter.to_env(actions).ravel().tolist() == [400, 500, 300, 500]
    assert actions.ravel().tolist() == [0, 1, -1, 3] and not adapter.is_identity


def test_half_bounded_and_unbounded_dimensions_keep_their_scale() -> None:
    space = spaces.Box(np.float32([0, -np.inf, -np.inf, -2]), np.float32([np.inf, np.inf, 5, 4]))
    adapter = get_action_adapter(space)
    assert adapter.to_env(f32([7, -8, 9, 0])).tolist() == [[7, -8, 5, 1]]
    assert adapter.to_env(f32([-7, 8, -9, -1])).tolist() == [[0, 8, -9, -2]]
    assert np.isfinite(adapter.to_env(f32([0.3, 0.3, 0.3, 0.3]))).all()


@pytest.mark.parametrize(
    ("clip", "normalize", "wanted"),
    [
        (True, True, [[0.1, -0.05]]),
        (True, False, [[0.1, -0.1]]),
        (False, False, [[3.0, -0.5]]),
        (False, True, [[0.1, -0.05]]),
    ],
)
def test_the_two_settings(clip: bool, normalize: bool, wanted: Any) -> None:
    adapter = get_action_adapter(spaces.Box(-0.1, 0.1, (2,)), clip_actions=clip, normalize_actions=normalize)
    sampled = f32([3.0, -0.5])
    np.testing.assert_allclose(adapter.to_env(sampled), wanted, rtol=1e-6)
    assert sampled.tolist() == [[3.0, -0.5]]  # the batch keeps what was sampled


def test_what_needs_no_change_is_passed_on() -> None:
    for space, actions in (
        (spaces.Discrete(3), np.array([0, 2])),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), np.zeros((2, 2, 2), np.int64)),
        (spaces.Box(-np.inf, np.inf, (2,)), f32([1, 2], [3, 4])),
        (spaces.Tuple([spaces.Discrete(3), spaces.Discrete(2)]), (np.array([0]), np.array([1]))),
    ):
        adapter = get_action_adapter(space)
        assert adapter.is_identity
        taken = adapter.to_env(actions)
        assert taken is actions or np.shares_memory(taken, actions)
    unit = get_action_adapter(spaces.Box(-1, 1, (2,)))
    assert not unit.is_identity and unit.to_env(f32([0.5, 2])).tolist() == [[0.5, 1]]  # stretches nothing, clips


def test_integers_count_from_their_start() -> None:
    assert get_action_adapter(spaces.Discrete(3, start=5)).to_env(np.array([0, 2])).tolist() == [5, 7]
    multi = get_action_adapter(spaces.MultiDiscrete([[2, 3]], start=[[1, -1]]))
    assert multi.to_env(np.array([[[1, 0]]])).tolist() == [[[2, -1]]]
    binary = get_action_adapter(spaces.MultiBinary(2)).to_env(np.array([[1, 0]]))
    assert binary.dtype == np.int8 and binary.tolist() == [[1, 0]]


def test_a_box_of_integers_is_rounded() -> None:
    adapter = get_action_adapter(spaces.Box(0, 10, (3,), np.int32))
    env_actions = adapter.to_env(f32([0.33, -0.5, 9.0]))
    assert env_actions.dtype == np.int32 and env_actions.tolist() == [[7, 2, 10]]
    wide = get_action_adapter(spaces.Box(0, 255, (1,), np.uint8), clip_actions=False, normalize_actions=False)
    assert wide.to_env(f32([300.0], [-4.0])).ravel().tolist() == [255, 0]  # rather than wrapping around


def test_nested_actions() -> None:
    space = spaces.Dict({"turn": spaces.Discrete(3, start=1), "push": spaces.Tuple([spaces.Box(0, 4, (2,))])})
    adapter = get_action_adapter(space)
    sampled = {"turn": np.array([0, 2]), "push": (f32([0, 1], [-1, 0.5]),)}
    env_actions = adapter.to_env(sampled)
    assert env_actions["turn"].tolist() == [1, 3] and env_actions["push"][0].tolist() == [[2, 4], [0, 3]]
    assert sampled["turn"].tolist() == [0, 2]
    flat = adapter.flatten(sampled)
    assert adapter.is_nested and adapter.flat_width == 3
    assert flat.dtype == np.float32 and flat.tolist() == [[0, 1, 0], [-1, 0.5, 2]]  # "push" before "turn"
    again = adapter.unflatten(flat)
    assert again["turn"].dtype == np.int64
    tree_map(np.testing.assert_array_equal, again, {key: sampled[key] for key in again})


def test_actions_that_are_not_nested_are_stored_as_they_are() -> None:
    adapter = get_action_adapter(spaces.MultiDiscrete([[2, 3]]))
    actions = np.array([[[1, 2]]])
    assert adapter.flatten(actions) is actions and adapter.unflatten(actions) is actions
    assert adapter.flat_width == 2 and not adapter.is_nested


def sample_like_a_distribution(space: spaces.Space, num_rows: int, rng: np.random.Generator) -> Any:
    if isinstance(space, spaces.Dict):
        return {key: sample_like_a_distribution(part, num_rows, rng) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(sample_like_a_distribution(part, num_rows, rng) for part in space.spaces)
    if isinstance(space, spaces.Box):
        return rng.normal(0, 3, (num_rows, *space.shape)).astype(np.float32)
    counts = space.n if isinstance(space, spaces.Discrete) else getattr(space, "nvec", 2)
    return rng.integers(0, counts, (num_rows, *space.shape))


@settings(max_examples=150, deadline=None)
@given(space=random_spaces(), num_rows=st.integers(1, 3), seed=st.integers(0, 99), normalize=st.booleans())
def test_every_env_action_lies_in_its_space(space: spaces.Space, num_rows: int, seed: int, normalize: bool) -> None:
    sampled = sample_like_a_distribution(space, num_rows, np.random.default_rng(seed))
    before = tree_map(np.copy, sampled)
    adapter = get_action_adapter(space, clip_actions=True, normalize_actions=normalize)
    for action in make_split(space)(adapter.to_env(sampled)):
        assert space.contains(action)
    tree_map(np.testing.assert_array_equal, sampled, before)
    flat = adapter.flatten(sampled)
    if adapter.is_nested:
        assert flat.shape == (num_rows, adapter.flat_width) and flat.dtype == np.float32
    tree_map(np.testing.assert_array_equal, adapter.unflatten(flat), sampled)


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2))])
def test_unsupported_spaces_are_named_by_their_path(space: spaces.Space) -> None:
    with pytest.raises(UnsupportedSpaceError, match=r"at action\['a'\]\[0\] is " + type(space).__name__):
        get_action_adapter(spaces.Dict({"a": spaces.Tuple([space])}))


def test_more_values_than_a_batch_column_can_tell_apart_are_refused() -> None:
    with pytest.raises(UnsupportedSpaceError, match="more than 16777216 values"):
        get_action_adapter(spaces.Discrete(2**24 + 1))
