"""The loss against an independent float64 one, its gradients against finite differences; padding."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import scipy.special
import torch

from headwater.algorithms.ppo.loss import ppo_loss
from headwater.frameworks.numpy import NUMPY_OPS, NumpyCategorical, NumpyDiagGaussian
from headwater.frameworks.torch import (
    TORCH_OPS,
    TorchCategorical,
    TorchDiagGaussian,
    TorchMultiCategorical,
    TorchSquashedGaussian,
)

torch.set_num_threads(1)

B = 64
CONFIG = {"clip_param": 0.2, "use_critic": True, "vf_clip_param": 0.5, "vf_loss_coeff": 0.7}
COEFFS = {"kl_coeff": 0.3, "entropy_coeff": 0.02}


def numbers(kind: str, seed: int = 0, rows: int = B) -> tuple[np.ndarray, np.ndarray, np.ndarray, dict]:
    """New inputs, old inputs, values and a batch, in float64; ratios lie on both sides of the clip."""
    rng = np.random.default_rng(seed)
    width = 4 if kind == "Categorical" else 6
    old = rng.normal(size=(rows, width)) * (1.0 if kind == "Categorical" else 0.5)
    new = old + (0.5 if kind == "Categorical" else 0.1) * rng.normal(size=(rows, width))
    actions = rng.integers(0, 4, rows) if kind == "Categorical" else rng.normal(size=(rows, 3))
    old_dist = NumpyCategorical(old) if kind == "Categorical" else NumpyDiagGaussian(old)
    vf_preds = rng.normal(size=rows)
    batch = {
        "actions": actions,
        "action_logp": old_dist.logp(actions),
        "advantages": rng.normal(size=rows),
        "vf_preds": vf_preds,
        "value_targets": rng.normal(size=rows),
    }
    return new, old, vf_preds + rng.normal(size=rows), batch


def reference(kind, new, old, values, batch, coeffs, config) -> dict[str, float]:
    """The published formulas, row by row, with nothing of the library."""
    totals = {"surrogate": 0.0, "kl": 0.0, "entropy": 0.0, "vf": 0.0}
    for i in range(len(new)):
        if kind == "Categorical":
            p, q = scipy.special.softmax(new[i]), scipy.special.softmax(old[i])
            logp = np.log(p[batch["actions"][i]])
            entropy = -(p * np.log(p)).sum()
            kl = (q * np.log(q / p)).sum()
        else:
            (m, ls), (m0, ls0) = np.split(new[i], 2), np.split(old[i], 2)
            s, s0 = np.exp(ls), np.exp(ls0)
            logp = (-(((batch["actions"][i] - m) / s) ** 2) / 2 - ls - np.log(2 * np.pi) / 2).sum()
            entropy = (ls + np.log(2 * np.pi * np.e) / 2).sum()
            kl = (ls - ls0 + (s0**2 + (m - m0) ** 2) / (2 * s**2) - 0.5).sum()
        ratio, advantage = np.exp(logp - batch["action_logp"][i]), batch["advantages"][i]
        clipped = min(max(ratio, 1 - config["clip_param"]), 1 + config["clip_param"])
        totals["surrogate"] += min(ratio * advantage, clipped * advantage)
        totals["kl"] += kl
        totals["entropy"] += entropy
        if config["use_critic"]:
            error = (values[i] - batch["value_targets"][i]) ** 2
            if config["vf_clip_param"] is not None:
                old_value, c = batch["vf_preds"][i], config["vf_clip_param"]
                kept = old_value + min(max(values[i] - old_value, -c), c)
                error = max(error, (kept - batch["value_targets"][i]) ** 2)
            totals["vf"] += error
    means = {name: total / len(new) for name, total in totals.items()}
    stats = {"policy_loss": -means["surrogate"], "vf_loss": means["vf"], "kl": means["kl"], "entropy": means["entropy"]}
    stats["total_loss"] = (
        -means["surrogate"] + coeffs["kl_coeff"] * means["kl"] - coeffs["entropy_coeff"] * means["entropy"]
        + (config["vf_loss_coeff"] * means["vf"] if config["use_critic"] else 0.0)
    )  # fmt: skip
    targets = batch["value_targets"]
    stats["vf_explained_var"] = (
        max(-1.0, 1 - np.var(targets - values) / np.var(targets)) if config["use_critic"] else 0.0
    )
    return stats


KINDS = {"Categorical": (NumpyCategorical, TorchCategorical), "DiagGaussian": (NumpyDiagGaussian, TorchDiagGaussian)}
SETTINGS = {
    "all terms": (COEFFS, CONFIG),
    "no value clipping": (COEFFS, CONFIG | {"vf_clip_param": None}),
    "no critic": (COEFFS, CONFIG | {"use_critic": False}),
    "no coefficients": ({"kl_coeff": 0.0, "entropy_coeff": 0.0}, CONFIG),
    "wide clip": (COEFFS, CONFIG | {"clip_param": 1.5}),
}


def tensors(batch: dict[str, np.ndarray]) -> dict[str, torch.Tensor]:
    return {name: torch.from_numpy(np.array(column)) for name, column in batch.items()}


def torch_loss(make, new, old, values, batch, coeffs=COEFFS, config=CONFIG):
    """Loss, stats, and the gradients by `new` and `values`; all given as arrays."""
    new, values = torch.tensor(new, requires_grad=True), torch.tensor(values, requires_grad=True)
    loss, stats = ppo_loss(TORCH_OPS, make(new), make(torch.tensor(old)), values, tensors(batch), coeffs, config)
    loss.backward()
    return loss.detach(), stats, new.grad, torch.zeros_like(values) if values.grad is None else values.grad


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_it_is_the_published_loss(kind, setting):
    coeffs, config = SETTINGS[setting]
    new, old, values, batch = numbers(kind)
    expected = reference(kind, new, old, values, batch, coeffs, config)
    of_numpy, of_torch = KINDS[kind]
    loss, stats = ppo_loss(NUMPY_OPS, of_numpy(new), of_numpy(old), values, batch, coeffs, config)
    torch_total, torch_stats, _, _ = torch_loss(of_torch, new, old, values, batch, coeffs, config)
    assert set(stats) == set(torch_stats) == set(expected)
    for name in expected:
        assert float(stats[name]) == pytest.approx(expected[name], rel=1e-5, abs=1e-7), name
        assert float(torch_stats[name]) == pytest.approx(expected[name], rel=1e-5, abs=1e-7), name
        assert torch_stats[name].shape == () and not torch_stats[name].requires_grad
    assert float(loss) == pytest.approx(expected["total_loss"], rel=1e-5)
    assert float(torch_total) == pytest.approx(expected["total_loss"], rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_float32_is_near_float64(kind):
    new, old, values, batch = numbers(kind)
    single = {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in batch.items()}
    make = KINDS[kind][1]
    exact, _, by_inputs, by_values = torch_loss(make, new, old, values, batch)
    loss, _, inputs_grad, values_grad = torch_loss(
        make, new.astype(np.float32), old.astype(np.float32), values.astype(np.float32), single
    )
    assert loss.dtype == torch.float32
    assert float(loss) == pytest.approx(float(exact), rel=1e-5)
    torch.testing.assert_close(inputs_grad, by_inputs.float(), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(values_grad, by_values.float(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("setting", SETTINGS)
def test_gradients_equal_finite_differences_of_the_reference(kind, setting):
    coeffs, config = SETTINGS[setting]
    new, old, values, batch = numbers(kind, rows=6)
    _, _, by_inputs, by_values = torch_loss(KINDS[kind][1], new, old, values, batch, coeffs, config)
    step = 1e-6
    for array, gradient in ((new, by_inputs), (values, by_values)):
        for place in np.ndindex(array.shape):
            kept = array[place]
            sides = []
            for moved in (kept + step, kept - step):
                array[place] = moved
                sides.append(reference(kind, new, old, values, batch, coeffs, config)["total_loss"])
            array[place] = kept
            assert float(gradient[place]) == pytest.approx((sides[0] - sides[1]) / (2 * step), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("junk", [1e9, -1e9, np.nan, np.inf])
@pytest.mark.parametrize("kind", [*KINDS, "MultiCategorical", "SquashedGaussian"])
@pytest.mark.parametrize("coeffs", [COEFFS, {"kl_coeff": 0.0, "entropy_coeff": 0.0}])
def test_padding_carries_nothing(kind, junk, coeffs):
    config = CONFIG
    new, old, values, batch = numbers("Categorical" if "Categorical" in kind else "DiagGaussian", rows=10)
    new, old, values = (x.astype(np.float32) for x in (new, old, values))
    batch = {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in batch.items()}
    make = {
        "MultiCategorical": lambda x: TorchMultiCategorical(x, input_lens=[2, 2]),
        "SquashedGaussian": lambda x: seeded(TorchSquashedGaussian(x, low=-3.0, high=3.0)),
    }.get(kind) or KINDS[kind][1]
    if kind == "MultiCategorical":
        batch["actions"] = np.stack([batch["actions"] % 2, batch["actions"] // 2], -1)
    if kind == "SquashedGaussian":
        batch["actions"] = np.tanh(batch["actions"])
    mask = np.arange(10) % 10 < 7
    batch["mask"] = mask
    spoilt = {name: x.copy() for name, x in batch.items()}
    for name in ("action_logp", "advantages", "vf_preds", "value_targets"):
        spoilt[name][~mask] = junk
    spoilt["actions"][~mask] = 10**9 if spoilt["actions"].dtype.kind == "i" else junk
    spoilt_new, spoilt_old, spoilt_values = new.copy(), old.copy(), values.copy()
    for array in (spoilt_new, spoilt_old, spoilt_values):
        array[~mask] = junk
    clean = torch_loss(make, new, old, values, batch, coeffs, config)
    padded = torch_loss(make, spoilt_new, spoilt_old, spoilt_values, spoilt, coeffs, config)
    for ours, theirs in zip((clean[0], *clean[2:]), (padded[0], *padded[2:]), strict=True):
        assert torch.equal(ours, theirs)
    assert all(torch.equal(clean[1][name], padded[1][name]) for name in clean[1])
    assert not padded[2][~torch.from_numpy(mask)].any() and not padded[3][~torch.from_numpy(mask)].any()

    if kind != "SquashedGaussian":  # whose entropy estimate draws other numbers for fewer rows
        valid = {name: x[mask] for name, x in batch.items() if name != "mask"}
        short = torch_loss(make, new[mask], old[mask], values[mask], valid, coeffs, config)
        for name in short[1]:
            assert float(short[1][name]) == pytest.approx(float(padded[1][name]), rel=1e-5, abs=1e-6)
        torch.testing.assert_close(padded[2][torch.from_numpy(mask)], short[2])


def seeded(dist):
    dist.rng = np.random.default_rng(0)
    return dist


def test_a_batch_of_padding_alone_gives_zero():
    new, old, values, batch = numbers("Categorical", rows=4)
    batch["mask"] = np.zeros(4, bool)
    loss, stats, gradient, _ = torch_loss(TorchCategorical, new, old, values, batch)
    assert float(loss) == 0.0 and not gradient.any()
    assert all(np.isfinite(float(value)) for value in stats.values())


@pytest.mark.parametrize("coeffs", [COEFFS, {"kl_coeff": 0.0, "entropy_coeff": 0.0}])
def test_policies_far_apart_give_a_finite_loss_and_gradients(coeffs):
    rng = np.random.default_rng(0)
    new, old = (rng.choice([-1e4, 1e4, 0.0, -200.0], (B, 4)).astype(np.float32) for _ in range(2))
    _, _, values, batch = numbers("Categorical")
    batch = {name: x.astype(np.float32) if x.dtype == np.float64 else x for name, x in batch.items()}
    batch["action_logp"] = NumpyCategorical(old).logp(batch["actions"])
    loss, stats, gradient, _ = torch_loss(TorchCategorical, new, old, values.astype(np.float32), batch, coeffs)
    assert torch.isfinite(loss) and torch.isfinite(gradient).all()
    assert all(torch.isfinite(value) for value in stats.values())
    assert float(stats["kl"]) >= 0


@pytest.mark.parametrize("masked", [-np.inf, -1e38])
def test_masked_choices_give_no_nan(masked):
    new, old, values, batch = numbers("Categorical")
    batch["actions"] = batch["actions"] % 2
    batch["action_logp"] = NumpyCategorical(old[:, :2]).logp(batch["actions"])
    expected = torch_loss(TorchCategorical, new[:, :2], old[:, :2], values, batch)
    new[:, 2:] = old[:, 2:] = masked
    loss, _, gradient, _ = torch_loss(TorchCategorical, new, old, values, batch)
    assert float(loss) == pytest.approx(float(expected[0]), rel=1e-9)
    torch.testing.assert_close(gradient[:, :2], expected[2])
    assert not gradient[:, 2:].any()


@pytest.mark.parametrize("setting", SETTINGS)
def test_without_a_report_the_loss_is_the_same(setting):
    coeffs, config = SETTINGS[setting]
    new, old, values, batch = numbers("Categorical")
    expected, _, by_inputs, _ = torch_loss(TorchCategorical, new, old, values, batch, coeffs, config)
    logits = torch.tensor(new, requires_grad=True)
    dists = TorchCategorical(logits), TorchCategorical(torch.tensor(old))
    loss, stats = ppo_loss(TORCH_OPS, *dists, torch.tensor(values), tensors(batch), coeffs, config, report=False)
    loss.backward()
    assert stats == {} and torch.equal(loss.detach(), expected) and torch.equal(logits.grad, by_inputs)


def test_divergence_is_from_old_to_new():
    new, old, values, batch = numbers("Categorical")
    _, stats = ppo_loss(NUMPY_OPS, NumpyCategorical(new), NumpyCategorical(old), values, batch, COEFFS, CONFIG)
    assert float(stats["kl"]) == pytest.approx(NumpyCategorical(old).kl(NumpyCategorical(new)).mean())


def test_an_unmoved_policy_has_the_advantages_gradient_and_no_divergence():
    _, old, values, batch = numbers("Categorical")
    _, stats, _, _ = torch_loss(TorchCategorical, old, old, values, batch)
    assert float(stats["policy_loss"]) == pytest.approx(-batch["advantages"].mean())
    assert float(stats["kl"]) == 0.0


def test_explained_variance_of_constant_targets_is_finite():
    new, old, values, batch = numbers("Categorical")
    batch["value_targets"] = np.full(B, 3.0)
    _, stats, _, _ = torch_loss(TorchCategorical, new, old, values, batch)
    assert float(stats["vf_explained_var"]) == -1.0


def test_compiled_it_is_the_same_and_takes_coefficients_as_tensors():
    new, old, values, batch = numbers("Categorical")

    def loss(new, old, values, batch, coeffs):
        return ppo_loss(TORCH_OPS, TorchCategorical(new), TorchCategorical(old), values, batch, coeffs, CONFIG)[0]

    arguments = [torch.tensor(new, requires_grad=True), torch.tensor(old), torch.tensor(values), tensors(batch)]
    compiled = torch.compile(loss, backend="eager", fullgraph=True)
    for coeffs in (COEFFS, {name: torch.tensor(value) for name, value in COEFFS.items()}):
        torch.testing.assert_close(compiled(*arguments, coeffs), loss(*arguments, COEFFS))


def example():
    path = Path(__file__).parents[2] / "examples" / "ppo_single_file.py"
    spec = importlib.util.spec_from_file_location("ppo_single_file", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("vf_clip", [None, 0.5])
def test_the_example_that_teaches_ppo_has_the_same_loss(vf_clip):
    new, old, values, batch = numbers("Categorical")
    config = CONFIG | {"vf_clip_param": vf_clip}
    expected, stats, by_inputs, by_values = torch_loss(TorchCategorical, new, old, values, batch, COEFFS, config)
    logits, value = torch.tensor(new, requires_grad=True), torch.tensor(values, requires_grad=True)
    columns = tensors(batch)
    loss, parts = example().ppo_loss(
        logits, value, torch.tensor(old), columns["actions"], columns["action_logp"], columns["advantages"],
        columns["vf_preds"], columns["value_targets"], clip_param=0.2, vf_clip_param=vf_clip, vf_loss_coeff=0.7,
        kl_coeff=0.3, entropy_coeff=0.02,
    )  # fmt: skip
    loss.backward()
    torch.testing.assert_close(loss.detach(), expected, rtol=1e-6, atol=0)
    torch.testing.assert_close(logits.grad, by_inputs, rtol=1e-5, atol=1e-9)
    torch.testing.assert_close(value.grad, by_values, rtol=1e-5, atol=1e-9)
    for name in ("policy_loss", "vf_loss", "kl", "entropy"):
        assert float(parts[name].detach()) == pytest.approx(float(stats[name]), rel=1e-6)


def test_the_example_runs(capsys):
    assert example().train("CartPole-v1", total_steps=1024, seed=1) > 0
    assert "1024 steps" in capsys.readouterr().out
