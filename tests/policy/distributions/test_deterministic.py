from __future__ import annotations

import numpy as np
import pytest

from headwater.frameworks.numpy import NumpyDeterministic
from headwater.frameworks.torch import TorchDeterministic
from headwater.policy.distributions import DistributionError

from .families import numpy_of


@pytest.mark.parametrize("make", [NumpyDeterministic, TorchDeterministic])
def test_the_output_is_the_action_and_all_else_is_zero(make):
    inputs = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    dist = make(inputs)
    np.testing.assert_array_equal(numpy_of(dist.sample()), inputs)
    np.testing.assert_array_equal(numpy_of(dist.deterministic_sample()), inputs)
    for numbers in (dist.sampled_action_logp(), dist.logp(inputs + 1), dist.entropy(), dist.kl(make(inputs + 1))):
        assert numpy_of(numbers).tolist() == [0.0, 0.0, 0.0]
    shaped = make(inputs, action_shape=(2, 2))
    assert numpy_of(shaped.sample()).shape == (3, 2, 2)
    with pytest.raises(DistributionError, match="width 4"):
        make(inputs[:, :3], action_shape=(2, 2))
