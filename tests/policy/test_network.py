"""Networks over ops: the same numbers and derivatives in every framework, and what a memory must do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import expit, softmax

from headwater.frameworks.numpy import NUMPY_OPS
from headwater.policy.network import MASKED_LOGIT, Network
from headwater.policy.network_description import NetworkDescription
from headwater.policy.weights import by_name, flattened
from tests.frameworks.all_ops import ALL, LEARNING, gradient, load_ops
from tests.policy.networks import NETWORKS, OUTPUTS, WITH_MEMORY, described, observations, states, weights_of

LENGTHS = (2, 5, 1)
REAL = np.arange(5) < np.array(LENGTHS)[:, None]
MEMORIES = ["lstm", "gru", "attention", "attention, deep"]


def inputs_of(network: NetworkDescription) -> tuple[np.ndarray, np.ndarray | None, np.ndarray | None]:
    """Observations, and with memory the state and which rows are real."""
    if network.has_memory:
        return observations(network, *REAL.shape), states(network, len(REAL)), REAL
    return observations(network, 6), None, None


def run(
    framework: str, network: NetworkDescription, obs: Any, state: Any = None, mask: Any = None, **keep: bool
) -> Any:
    """Outputs [B, K], values [B] and the state afterwards, as NumPy arrays."""
    ops = load_ops(framework)
    weights = {name: ops.asarray(w) for name, w in weights_of(network).items()}
    given = (None if x is None else ops.asarray(x) for x in (obs, state, mask))
    outputs = Network(network, ops).forward(weights, *given, **keep)
    return [None if x is None else ops.to_numpy(x) for x in outputs]


def loss_of(ops: Any, network: NetworkDescription, weights: Any, obs: Any, state: Any, mask: Any) -> Any:
    """A number that every output of a real row has its own influence on."""
    given = (None if x is None else ops.asarray(x) for x in (obs, state, mask))
    dist_inputs, values, _ = Network(network, ops).forward(weights, *given, keep_state=False)
    rng = np.random.default_rng(3)
    rows = REAL.size if mask is not None else len(obs)
    targets, shares = rng.normal(size=(rows, OUTPUTS)), rng.normal(size=rows)
    real = np.ones(rows) if mask is None else mask.ravel()
    per_row = ops.sum(ops.tanh(dist_inputs) * ops.asarray(np.float32(targets)), -1)
    per_row = ops.where(ops.asarray(real > 0), per_row + values * ops.asarray(np.float32(shares)), 0.0)
    return ops.sum(per_row)


def gradients(framework: str, network: NetworkDescription, *given: Any) -> np.ndarray:
    """Of `loss_of` by all weights, [P]."""
    ops, shapes = load_ops(framework), network.weight_shapes()
    vector = flattened(weights_of(network), shapes)
    return gradient(framework, lambda vector: loss_of(ops, network, by_name(ops, vector, shapes), *given), vector)


@pytest.mark.parametrize("framework", LEARNING)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_framework_computes_the_same(framework: str, name: str) -> None:
    network = described(name)
    given = inputs_of(network)
    expected, got = run("numpy", network, *given), run(framework, network, *given)
    real = slice(None) if given[2] is None else given[2].ravel()
    for ours, theirs in zip(expected[:2], got[:2], strict=True):
        assert ours.dtype == theirs.dtype == np.float32
        np.testing.assert_allclose(theirs[real], ours[real], rtol=1e-5, atol=1e-5)
    if network.has_memory:
        np.testing.assert_allclose(got[2], expected[2], rtol=1e-5, atol=1e-5)
    else:
        assert got[2] is expected[2] is None


@pytest.mark.parametrize("framework", LEARNING)
@pytest.mark.parametrize("name", NETWORKS)
def test_every_framework_has_the_same_gradients(framework: str, name: str) -> None:
    """Along random directions they are the differences of the loss in float64; one by one they are torch's."""
    network = described(name)
    given, shapes = inputs_of(network), network.weight_shapes()
    found = gradients(framework, network, *given)
    vector = flattened(weights_of(network), shapes).astype(np.float64)
    rng = np.random.default_rng(4)
    for _ in range(4):
        direction = rng.normal(size=vector.shape) / np.sqrt(len(vector))
        after, before = (
            float(loss_of(NUMPY_OPS, network, by_name(NUMPY_OPS, vector + step * direction, shapes), *given))
            for step in (1e-6, -1e-6)
        )
        assert found @ direction == pytest.approx((after - before) / 2e-6, rel=1e-4, abs=1e-4)
    assert np.count_nonzero(found) > 0.5 * len(found)
    np.testing.assert_allclose(found, gradients("torch", network, *given), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", [name for name in NETWORKS if name not in WITH_MEMORY])
def test_either_half_alone_is_that_of_both(name: str) -> None:
    network = described(name)
    obs, weights = observations(network, 6), weights_of(network)
    dist_inputs, values, _ = Network(network, NUMPY_OPS).forward(weights, obs)
    np.testing.assert_allclose(Network(network, NUMPY_OPS).dist_inputs(weights, obs), dist_inputs, atol=1e-6)
    np.testing.assert_allclose(Network(network, NUMPY_OPS).values(weights, obs), values, atol=1e-6)


# Memory.


@pytest.mark.parametrize("framework", ALL)
@pytest.mark.parametrize("name", WITH_MEMORY)
def test_p23_the_last_state_is_that_of_the_last_real_row(framework: str, name: str) -> None:
    """Sequences of 2, 5 and 1 steps, padded to 5, are what each is by itself; so are the outputs of real rows."""
    network = described(name)
    obs, state, mask = inputs_of(network)
    dist_inputs, values, after = run(framework, network, obs, state, mask)
    for i, length in enumerate(LENGTHS):
        alone = run(framework, network, obs[i : i + 1, :length], state[i : i + 1])
        rows = slice(5 * i, 5 * i + length)
        for got, expected in zip((dist_inputs[rows], values[rows], after[i : i + 1]), alone, strict=True):
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("framework", ALL)
@pytest.mark.parametrize("name", [name for name in WITH_MEMORY if described(name).scale == 1])
@pytest.mark.parametrize("padding", [1e9, np.nan])
def test_p22_padding_reaches_nothing(framework: str, name: str, padding: float) -> None:
    network = described(name)
    obs, state, mask = inputs_of(network)
    spoiled = np.where(mask[..., None], obs, np.float32(padding))
    real = mask.ravel()
    for keep_state in (True, False):
        expected = run(framework, network, obs, state, mask, keep_state=keep_state)
        got = run(framework, network, spoiled, state, mask, keep_state=keep_state)
        np.testing.assert_array_equal(got[0][real], expected[0][real])
        np.testing.assert_array_equal(got[1][real], expected[1][real])
        assert got[2] is None if not keep_state else np.array_equal(got[2], expected[2])
        assert all(np.isfinite(x).all() for x in got[:2])
    if framework != "numpy":
        expected = gradients(framework, network, obs, state, mask)
        np.testing.assert_array_equal(gradients(framework, network, spoiled, state, mask), expected)


@settings(max_examples=30, deadline=None)
@given(name=st.sampled_from(MEMORIES), cuts=st.sets(st.integers(1, 11)), seed=st.integers(0, 99))
def test_wherever_a_sequence_is_cut_it_is_the_same(name: str, cuts: set[int], seed: int) -> None:
    """Also step by step, as acting goes, and though attention's window is shorter than the sequence."""
    network = described(name)
    obs, state = observations(network, 3, 12, seed=seed), states(network, 3, seed)
    *expected, last = run("numpy", network, obs, state)
    for ends in (sorted({*cuts, 12}), range(1, 13)):
        start, now, parts = 0, state, []
        for end in ends:
            *outputs, now = run("numpy", network, obs[:, start:end], now)
            parts.append([x.reshape(3, end - start, -1) for x in outputs])
            start = end
        np.testing.assert_allclose(now, last, rtol=1e-4, atol=1e-5)
        for got, whole in zip(zip(*parts, strict=True), expected, strict=True):
            np.testing.assert_allclose(np.concatenate(got, 1).reshape(whole.shape), whole, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MEMORIES)
def test_outputs_depend_on_what_was_and_not_on_what_comes(name: str) -> None:
    network = described(name)
    obs, state = observations(network, 2, 6), states(network, 2)
    changed = obs.copy()
    changed[:, 3] += 1
    before, after = (run("numpy", network, x, state)[0].reshape(2, 6, OUTPUTS) for x in (obs, changed))
    np.testing.assert_array_equal(before[:, :3], after[:, :3])
    assert (abs(before - after)[:, 3:].max(2) > 1e-5).all()


def test_halves_that_share_nothing_remember_apart() -> None:
    network = described("lstm")
    obs, state = observations(network, 2, 3), states(network, 2)
    width = network.state_size // 2
    assert list(network.state_shapes()) == ["policy/lstm/h", "policy/lstm/c", "value/lstm/h", "value/lstm/c"]
    changed = state.copy()
    changed[:, width:] += 0.5
    first, second = run("numpy", network, obs, state), run("numpy", network, obs, changed)
    np.testing.assert_array_equal(first[0], second[0])
    np.testing.assert_array_equal(first[2][:, :width], second[2][:, :width])
    assert (first[1] != second[1]).all()


# Attention.


def test_attention_sees_its_window_and_no_further() -> None:
    network = described("attention")  # a window of 4
    obs = observations(network, 1, 9)
    state = np.zeros((1, network.state_size), np.float32)
    expected = run("numpy", network, obs, state)[0]
    for back in range(9):
        changed = obs.copy()
        changed[:, 8 - back] += 1
        moved = np.abs(run("numpy", network, changed, state)[0][8] - expected[8]).max()
        assert moved > 1e-5 if back <= 4 else moved == 0


def test_attention_sees_nothing_from_before_the_episode() -> None:
    network = described("attention, deep")
    obs = observations(network, 2, 3)
    empty = np.zeros((2, network.state_size), np.float32)
    rubbish, start = empty.copy(), 0
    for name, shape in network.state_shapes().items():
        size = int(np.prod(shape))
        rubbish[:, start : start + size] = 0 if name.endswith("age") else 77
        start += size
    for got, expected in zip(
        run("numpy", network, obs, rubbish)[:2], run("numpy", network, obs, empty)[:2], strict=True
    ):
        np.testing.assert_array_equal(got, expected)


def test_attention_counts_what_is_real() -> None:
    network = described("attention")
    state = np.zeros((1, network.state_size), np.float32)
    width = network.state_size // 2
    for steps in range(1, 8):
        *_, state = run("numpy", network, observations(network, 1, 1, seed=steps), state)
        memory, age = state[0, : width - 1].reshape(4, 6), state[0, width - 1]
        assert age == min(steps, 4)
        assert [row.any() for row in memory] == [False] * (4 - int(age)) + [True] * int(age)


def attention_by_heart(w: dict[str, np.ndarray], xs: list[np.ndarray], heads: int, window: int) -> np.ndarray:
    """The block's output for the last of the inputs `xs`, all from one episode; written head by head, step by step."""

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        return (x - x.mean()) / np.sqrt(x.var() + 1e-5) * w[f"{name}/scale"] + w[f"{name}/bias"]

    def gate(x: np.ndarray, y: np.ndarray, name: str) -> np.ndarray:
        """Parisotto et al. 2019, section 3.2: the GRU-type gate."""
        w_r, w_z, w_h = np.split(w[f"{name}/kernel"], 3, 1)
        u_r, u_z = np.split(w[f"{name}/recurrent"], 2, 1)
        r, z = expit(y @ w_r + x @ u_r), expit(y @ w_z + x @ u_z - w[f"{name}/bias"])
        return (1 - z) * x + z * np.tanh(y @ w_h + (r * x) @ w[f"{name}/candidate"])

    x, seen = xs[-1], xs[-1 - window :]
    width = len(x) // heads
    w_k, w_v = np.split(w["key_value/kernel"], 2, 1)
    mixed = []
    for head in range(heads):
        columns = slice(head * width, (head + 1) * width)
        query = (norm(x, "norm") @ w["query/kernel"])[columns]
        keys = [(norm(other, "norm") @ w_k)[columns] for other in seen]
        bias = [w["distance"][len(seen) - 1 - j, head] for j in range(len(seen))]
        shares = softmax([query @ key / np.sqrt(width) + b for key, b in zip(keys, bias, strict=True)])
        mixed.append(sum(share * (norm(o, "norm") @ w_v)[columns] for share, o in zip(shares, seen, strict=True)))
    x = gate(x, np.maximum(np.concatenate(mixed) @ w["out/kernel"] + w["out/bias"], 0), "gate")
    wide = np.maximum(norm(x, "wide_norm") @ w["wide/kernel"] + w["wide/bias"], 0)
    return gate(x, np.maximum(wide @ w["narrow/kernel"] + w["narrow/bias"], 0), "wide_gate")


def test_attention_is_what_the_paper_says() -> None:
    network = described("attention, deep", fcnet_hiddens=[])
    weights = {name: w.astype(np.float64) for name, w in weights_of(network).items()}
    obs = observations(network, 1, 7)
    state = np.zeros((1, network.state_size))
    got, values, _ = Network(network, NUMPY_OPS).forward(weights, obs, state)
    xs = [row @ weights["shared/embed/kernel"] + weights["shared/embed/bias"] for row in obs[0].astype(np.float64)]
    for block in ("shared/attention_0/", "shared/attention_1/"):
        own = {name.removeprefix(block): w for name, w in weights.items() if name.startswith(block)}
        xs = [attention_by_heart(own, xs[: i + 1], heads=2, window=4) for i in range(len(xs))]
    for part, outputs in (("policy", got), ("value", values[:, None])):
        expected = np.stack(xs) @ weights[f"{part}/out/kernel"] + weights[f"{part}/out/bias"]
        np.testing.assert_allclose(outputs, expected, rtol=1e-6, atol=1e-6)


# What comes in, and what goes out.


@pytest.mark.parametrize("name", ["convolutions", "gru over images"])
def test_bytes_are_scaled(name: str) -> None:
    network = described(name)
    floats = NetworkDescription.from_json({**network.to_json(), "scale": 1.0})
    obs, state, _ = inputs_of(network)
    scaled = np.float32(obs) / np.float32(255)
    for got, expected in zip(run("numpy", network, obs, state)[:2], run("numpy", floats, scaled, state), strict=False):
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_parts_of_a_row_go_their_own_ways() -> None:
    """Each image through its convolutions, the vectors and what was before through dense layers, the mask nowhere."""
    network = described("parts")
    obs, w = observations(network, 4), weights_of(network)

    def image(name: str, columns: slice, shape: tuple[int, ...]) -> np.ndarray:
        x = torch.tensor(obs[:, columns].reshape(4, *shape)).permute(0, 3, 1, 2)
        for layer, stride in (("conv_0", 2), ("conv_1", 1)):
            kernel = torch.tensor(w[f"shared/{name}/{layer}/kernel"]).permute(0, 3, 1, 2)
            x = torch.relu(
                torch.nn.functional.conv2d(x, kernel, torch.tensor(w[f"shared/{name}/{layer}/bias"]), stride)
            )
        flat = x.permute(0, 2, 3, 1).reshape(4, -1).numpy()
        return np.maximum(flat @ w[f"shared/{name}/post_0/kernel"] + w[f"shared/{name}/post_0/bias"], 0)

    vectors = np.concatenate([obs[:, 42:46], obs[:, 96:100]], 1)
    parts = [image("image_0", slice(0, 42), (7, 6, 1)), image("image_1", slice(46, 96), (5, 5, 2))]
    parts.append(np.tanh(vectors @ w["shared/dense_0/kernel"] + w["shared/dense_0/bias"]))
    features = np.concatenate(parts, 1)
    expected = features @ w["policy/out/kernel"] + w["policy/out/bias"]
    expected = np.insert(expected, 2, w["log_std"], 1)
    expected[:, [4, 1, 0]] = np.where(obs[:, 100:] > 0.5, expected[:, [4, 1, 0]], MASKED_LOGIT)
    dist_inputs, values, _ = run("numpy", network, obs)
    np.testing.assert_allclose(dist_inputs, expected, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        values, (features @ w["value/out/kernel"])[:, 0] + w["value/out/bias"], rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", ["dense, masked, free", "parts", "lstm over parts"])
def test_the_mask_forbids_its_columns_only_and_is_not_seen(name: str) -> None:
    network = described(name)
    obs, state, mask = inputs_of(network)
    free = obs.copy()
    free[..., network.mask.start :] = 1
    masked, values, after = run("numpy", network, obs, state, mask)
    expected, same_values, same_after = run("numpy", network, free, state, mask)
    choices = np.ones((len(masked), OUTPUTS), bool)
    rows = obs.reshape(len(masked), -1).copy()
    if mask is not None:
        rows[~mask.ravel()] = 0
    choices[:, list(network.mask.columns)] = rows[:, network.mask.start :] > 0.5
    real = slice(None) if mask is None else mask.ravel()
    np.testing.assert_array_equal(masked[real], np.where(choices, expected, MASKED_LOGIT)[real])
    np.testing.assert_array_equal(values[real], same_values[real])
    assert (masked[real] == MASKED_LOGIT).any() and (after is None or np.array_equal(after, same_after))
