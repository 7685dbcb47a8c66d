"""Random actions and StochasticSampling."""

import numpy as np
import pytest
from gymnasium import spaces

from headwater.config import ModelConfig, TrainerConfig
from headwater.errors import UnsupportedSpaceError
from headwater.frameworks.numpy.ops import NUMPY_OPS
from headwater.policy.catalog import ModelCatalog
from headwater.policy.exploration import StochasticSampling, random_actions

RNG = NUMPY_OPS.generator(3)


def test_random_choices_are_uniform_and_count_from_zero():
    actions = random_actions(spaces.Discrete(5, start=-2), 20000, RNG, True)
    counts = np.bincount(actions, minlength=5)
    assert actions.dtype == np.int64
    assert counts.sum() == 20000
    assert counts.min() > 3700


def test_random_multi_choices_have_the_shape_of_the_space():
    actions = random_actions(spaces.MultiDiscrete([[2, 3], [4, 5]]), 2000, RNG, True)
    assert actions.shape == (2000, 2, 2)
    assert (actions.max(0) == [[1, 2], [3, 4]]).all()
    assert set(np.unique(random_actions(spaces.MultiBinary(3), 100, RNG, True))) == {0, 1}


@pytest.mark.parametrize(("normalized", "low", "high"), [(True, -1, 1), (False, 300, 500)])
def test_random_box_actions_fill_the_policys_range(normalized, low, high):
    actions = random_actions(spaces.Box(300, 500, (2,)), 5000, RNG, normalized)
    assert actions.dtype == np.float32
    assert low <= actions.min() < low + 0.05 * (high - low)
    assert high >= actions.max() > high - 0.05 * (high - low)


def test_unbounded_dimensions_are_normal():
    space = spaces.Box(np.array([-np.inf, 0.0], np.float32), np.array([np.inf, np.inf], np.float32))
    actions = random_actions(space, 5000, RNG, True)
    assert np.isfinite(actions).all()
    assert actions.std(0) == pytest.approx([1, 1], abs=0.1)


def test_nested_actions():
    space = spaces.Dict({"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.Box(-1, 1, ())])})
    actions = random_actions(space, 4, RNG, True)
    assert actions["a"].shape == (4,)
    assert actions["b"][0].shape == (4,)


def test_unknown_spaces_are_named():
    with pytest.raises(UnsupportedSpaceError, match="Text"):
        random_actions(spaces.Text(5), 1, RNG, True)


def test_random_timesteps_come_first():
    space = spaces.Discrete(2)
    config = TrainerConfig(exploration_config={"type": "StochasticSampling", "random_timesteps": 100})
    exploration = StochasticSampling.from_config(config, space)
    factory, _ = ModelCatalog.get_action_dist(space, ModelConfig())
    dist = factory(np.tile(np.array([[-30.0, 30.0]], np.float32), (50, 1)))
    assert exploration.get_actions(dist, RNG, True, timestep=0).min() == 0
    assert exploration.get_actions(dist, RNG, True, timestep=100).min() == 1
    assert exploration.get_actions(dist, RNG, False, timestep=0).min() == 1
