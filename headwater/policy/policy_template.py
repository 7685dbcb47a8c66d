"""build_policy: a policy class from a loss, for each framework."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from headwater.errors import ConfigError
from headwater.policy.policy import Policy

Loss = Callable[..., tuple[Any, dict[str, Any]]]

# Framework -> "module:class" of the policy that learns with it.
FRAMEWORK_POLICIES = {
    "torch": "headwater.frameworks.torch.policy:TorchPolicy",
    "tf2": "headwater.frameworks.tf.policy:TFPolicy",
    "jax": "headwater.frameworks.jax.policy:JAXPolicy",
}


def build_policy(
    name: str,
    *,
    loss: Loss,
    framework: str = "torch",
    postprocess: Callable[[Policy, Any], None] | None = None,
    stats: Callable[[Policy], Mapping[str, float]] | None = None,
    coefficients: Sequence[str] = (),
    mixins: Sequence[type] = (),
) -> type[Policy]:
    """A policy class that learns by `loss`.

    Args:
        name: The class's name, e.g. "PPOTorchPolicy".
        loss: `loss(ops, dist, old_dist, values, batch, coeffs, config) -> (scalar, {name: scalar})`, written over
            `ops` (see `headwater.frameworks.ops`), so that one loss serves every framework. `dist` and `values` are the
            network's for the minibatch `batch`, with gradients; `old_dist` is made from its `action_dist_inputs` (None
            where it has none). The batch is a mapping; columns that the loss does not read cost nothing. A loss that
            also takes `report` may leave the statistics out where that is False: only the last epoch's are kept.
        framework: What learns.
        postprocess: `postprocess(policy, trajectory)` adds the columns that the loss needs to a fragment.
        stats: Further numbers to report of a policy after it learned.
        coefficients: Settings that the loss finds in `coeffs`. Each starts at `config[name]`. If there is a setting
            `<name>_schedule`, it follows that, and is reported as `<name>`; else it belongs to the policy's state, a
            plan may adapt it, and it is reported as `cur_<name>`.
        mixins: Classes before the framework's in the order of resolution; the first has precedence.

    Returns:
        A subclass of `Policy`, constructed as `cls(observation_space, action_space, config)`.

    Raises:
        ConfigError: no such framework.

    Example:
        >>> def imitation_loss(ops, dist, old_dist, values, batch, coeffs, config):
        ...     loss = -ops.mean(dist.logp(batch["actions"]))
        ...     return loss, {"imitation_loss": loss}
        >>> build_policy("ImitationPolicy", loss=imitation_loss).__name__
        'ImitationPolicy'
    """
    base = framework_policy(framework)
    members: dict[str, Any] = {
        "loss": staticmethod(loss if "report" in inspect.signature(loss).parameters else _reporting(loss)),
        "coefficient_names": tuple(coefficients),
        "__doc__": f"{name}: made by build_policy for {framework}.",
        "__module__": getattr(loss, "__module__", __name__),
    }
    if postprocess is not None:
        members["postprocess_trajectory"] = postprocess
    if stats is not None:
        members["extra_stats"] = stats
    return type(name, (*mixins, base), members)


def framework_policy(framework: str) -> type[Policy]:
    """The policy class of a framework, whose package this imports.

    Raises:
        ConfigError: there is no such framework.
        MissingExtraError: it is not installed.
    """
    if framework not in FRAMEWORK_POLICIES:
        raise ConfigError(f"framework: must be one of {sorted(FRAMEWORK_POLICIES)}, but {framework!r} came.")
    module, _, class_name = FRAMEWORK_POLICIES[framework].partition(":")
    return getattr(importlib.import_module(module), class_name)


def _reporting(loss: Loss) -> Loss:
    """The loss, given `report` as well, and reporting always."""

    def with_report(*args: Any, report: bool = True) -> tuple[Any, dict[str, Any]]:
        return loss(*args)

    return with_report
