import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from headwater.data import BatchError, SampleBatch, compute_advantages, gae, returns

GAMMA, LAMBDA = 0.9, 0.5


def column(*values):
    return np.array(values, dtype=np.float32)[:, None]


def linear(obs):
    """A critic: V(obs) = obs + 1."""
    return np.asarray(obs, dtype=np.float32) + 1


def flags(*values):
    return np.array(values, dtype=bool)[:, None]


# One env whose observation counts steps (0, 1, 2, ...), reward 1 each step, and the critic above.
GOLDEN = {
    "truncation": dict(obs=[0, 1, 2], next_obs=[1, 2, 3], terminated=[0, 0, 0], cut=[0, 0, 1], adv=[2.889, 2.42, 1.6]),
    "termination": dict(obs=[0, 1, 2], next_obs=[1, 2, 3], terminated=[0, 0, 1], cut=[0, 0, 1], adv=[2.16, 0.8, -2.0]),
    "two terminated episodes": dict(
        obs=[0, 1, 0, 1], next_obs=[1, 2, 1, 2], terminated=[0, 1, 0, 1], cut=[0, 1, 0, 1], adv=[1.35, -1, 1.35, -1]
    ),
    "two truncated episodes": dict(
        obs=[0, 1, 0, 1], next_obs=[1, 2, 1, 2], terminated=[0] * 4, cut=[0, 1, 0, 1], adv=[2.565, 1.7, 2.565, 1.7]
    ),
    "fragment cut in mid-episode": dict(obs=[0, 1], next_obs=[1, 2], terminated=[0, 0], cut=[0, 1], adv=[2.565, 1.7]),
    "the last row is cut without being told": dict(
        obs=[0, 1], next_obs=[1, 2], terminated=[0, 0], cut=[0, 0], adv=[2.565, 1.7]
    ),
}


@pytest.mark.parametrize("case", GOLDEN.values(), ids=GOLDEN.keys())
def test_golden_values(case):
    values = linear(column(*case["obs"]))
    next_values = linear(column(*case["next_obs"])) * ~flags(*case["terminated"])
    copies = [np.repeat(x, 2, axis=1) for x in (np.ones_like(values), values, next_values, flags(*case["cut"]))]
    advantages, targets = gae(*copies, GAMMA, LAMBDA)
    assert advantages.dtype == targets.dtype == np.float32
    for env in range(2):
        np.testing.assert_allclose(advantages[:, env], case["adv"], atol=1e-5)
        np.testing.assert_allclose(targets[:, env], np.array(case["adv"]) + values[:, 0], atol=1e-5)


def test_value_targets_of_a_truncated_episode():
    values = linear(column(0, 1, 2))
    _, targets = gae(column(1, 1, 1), values, linear(column(1, 2, 3)), flags(0, 0, 1), GAMMA, LAMBDA)
    np.testing.assert_allclose(targets[:, 0], [3.889, 4.42, 4.6], atol=1e-5)


def slow_reference(rewards, values, next_values, cuts, gamma, lambda_):
    """Each advantage as the sum that defines it, one at a time."""
    steps, envs = rewards.shape
    advantages, totals = np.zeros((steps, envs)), np.zeros((steps, envs))
    for n in range(envs):
        for t in range(steps):
            for k in range(t, steps):
                delta = float(rewards[k, n]) + gamma * float(next_values[k, n]) - float(values[k, n])
                advantages[t, n] += (gamma * lambda_) ** (k - t) * delta
                totals[t, n] += gamma ** (k - t) * float(rewards[k, n])
                if cuts[k, n] or k == steps - 1:
                    totals[t, n] += gamma ** (k - t + 1) * float(next_values[k, n])
                    break
    return advantages, totals


@st.composite
def trajectories(draw):
    """Rewards, values, and per row: nothing, a termination, a truncation (time limit or horizon), or both at once."""
    steps, envs = draw(st.integers(1, 12)), draw(st.integers(1, 3))
    numbers = st.floats(-10, 10, width=32)
    rewards, values, finals = (draw(npst.arrays(np.float32, (steps, envs), elements=numbers)) for _ in range(3))
    ends = draw(npst.arrays(np.int8, (steps, envs), elements=st.sampled_from([0, 0, 0, 1, 2, 3])))
    terminated, truncated = (ends & 1) > 0, (ends & 2) > 0
    cuts = terminated | truncated
    cuts[-1] = True
    following = np.concatenate([values[1:], finals[-1:]])
    next_values = np.where(terminated, 0, np.where(cuts, finals, following)).astype(np.float32)
    return rewards, values, next_values, cuts


@settings(max_examples=300, deadline=None)
@given(trajectories(), st.sampled_from([0.0, 0.5, 0.9, 0.99, 1.0]), st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_equals_the_definition(trajectory, gamma, lambda_):
    rewards, values, next_values, cuts = trajectory
    expected, totals = slow_reference(rewards, values, next_values, cuts, gamma, lambda_)
    advantages, targets = gae(rewards, values, next_values, cuts, gamma, lambda_)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(targets, expected + values, rtol=1e-5, atol=1e-4)
    np.testing.assert_allclose(returns(rewards, next_values, cuts, gamma), totals, rtol=1e-5, atol=1e-4)


@settings(max_examples=100, deadline=None)
@given(trajectories(), st.data())
def test_nothing_after_a_cut_matters_before_it(trajectory, data):
    rewards, values, next_values, cuts = trajectory
    env = data.draw(st.integers(0, rewards.shape[1] - 1))
    row = data.draw(st.sampled_from(np.flatnonzero(cuts[:, env]).tolist()))
    before = gae(rewards, values, next_values, cuts, 0.99, 0.95)[0][: row + 1, env].copy()
    for changed in (rewards, values, next_values):
        changed[row + 1 :, env] += 1000
    assert (gae(rewards, values, next_values, cuts, 0.99, 0.95)[0][: row + 1, env] == before).all()


def test_an_env_alone_and_among_others_has_the_same_bits():
    rng = np.random.default_rng(0)
    rewards, values, next_values = (rng.normal(size=(8, 128)).astype(np.float32).T for _ in range(3))
    cuts = (rng.random((8, 128)) < 0.05).T
    together, _ = gae(rewards, values, next_values, cuts, 0.99, 0.95)
    columns = (rewards, values, next_values, cuts)
    halves = [gae(*(x[:, part] for x in columns), 0.99, 0.95)[0] for part in (slice(4), slice(4, 8))]
    assert (np.concatenate(halves, axis=1) == together).all()
    assert together.T.flags.c_contiguous  # the layout of the inputs


def test_shapes_are_checked_and_empty_fragments_allowed():
    with pytest.raises(BatchError, match=r"next_values has shape \(2, 1\) where rewards has \(3, 1\)"):
        gae(np.zeros((3, 1)), np.zeros((3, 1)), np.zeros((2, 1)), np.zeros((3, 1), bool), 0.9, 0.5)
    empty = np.zeros((0, 2))
    assert gae(empty, empty, empty, empty.astype(bool), 0.9, 0.5)[0].shape == (0, 2)
    assert returns(empty, empty, empty.astype(bool), 0.9).shape == (0, 2)


def rollout(**more):
    return SampleBatch({"rewards": np.ones(3, np.float32), "vf_preds": np.full(3, 0.5, np.float32)}, **more)


def test_compute_advantages():
    def run(**kwargs):
        batch = rollout()
        assert compute_advantages(batch, 2.0, 0.9, 0.5, **kwargs) is batch
        assert batch["advantages"].dtype == batch["value_targets"].dtype == np.float32
        return batch["advantages"], batch["value_targets"]

    for kwargs, advantages, targets in (
        ({}, [1.84325, 1.985, 2.3], [2.34325, 2.485, 2.8]),
        ({"use_gae": False}, [3.668, 3.02, 2.3], [4.168, 3.52, 2.8]),
        ({"use_gae": False, "use_critic": False}, [4.168, 3.52, 2.8], [0, 0, 0]),
    ):
        got = run(**kwargs)
        np.testing.assert_allclose(got[0], advantages, atol=1e-5)
        np.testing.assert_allclose(got[1], targets, atol=1e-5)


def test_compute_advantages_refusals():
    with pytest.raises(BatchError, match="GAE needs a critic"):
        compute_advantages(rollout(), 0.0, use_critic=False)
    with pytest.raises(BatchError, match="no column 'vf_preds'"):
        compute_advantages(SampleBatch({"rewards": [1.0]}), 0.0)
    with pytest.raises(BatchError, match="split_by_episode"):
        compute_advantages(rollout(truncateds=[False, True, False]), 0.0)
    compute_advantages(rollout(terminateds=[False, False, True]), 0.0)


def test_a_fragment_of_128_steps_takes_well_under_a_millisecond():
    rewards = np.ones((128, 8), np.float32)
    cuts = np.zeros((128, 8), bool)

    def run():
        start = time.perf_counter()
        gae(rewards, rewards, rewards, cuts, 0.99, 0.95)
        return time.perf_counter() - start

    assert min(run() for _ in range(50)) < 0.7e-3
