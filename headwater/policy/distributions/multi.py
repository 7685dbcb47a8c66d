"""MultiActionDistribution: one distribution for each part of a Dict or Tuple action."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Self

from headwater.frameworks.ops import Array, DistributionError, RandomSource, Shape
from headwater.policy.distributions.distribution import ActionDistribution, require_width


class MultiActionDistribution(ActionDistribution):
    """Independent distributions over the leaves of a nested action space.

    Leaves are taken in the space's flattened order: Dict entries by sorted key, Tuple entries by place.
    Log-probability, entropy and KL are sums over the leaves; `multi_entropy` and `multi_kl` give them leaf by leaf,
    [B, leaves].

    Args:
        inputs: [B, sum(input_lens)], the leaves' inputs side by side.
        model: see ActionDistribution.
        child_distributions: for each leaf a class, or anything called with (inputs, model) that makes a distribution.
        input_lens: for each leaf the width of its inputs.
        action_space: the Dict or Tuple space (of spaces, to any depth).

    Raises:
        DistributionError: the numbers of leaves, distributions and input_lens differ, or the inputs' width is not the
            sum of input_lens.

    Example:
        >>> import numpy as np
        >>> from gymnasium.spaces import Box, Dict, Discrete
        >>> from headwater.frameworks.numpy import NumpyCategorical, NumpyDiagGaussian, NumpyMultiActionDistribution
        >>> space = Dict({"turn": Discrete(3), "push": Box(-1, 1, (2,))})
        >>> dist = NumpyMultiActionDistribution(
        ...     np.zeros((1, 7)),
        ...     child_distributions=[NumpyDiagGaussian, NumpyCategorical],
        ...     input_lens=[4, 3],
        ...     action_space=space,
        ... )
        >>> sorted(dist.sample())
        ['push', 'turn']
        >>> dist.logp({"turn": np.array([2]), "push": np.zeros((1, 2))}).round(4).tolist()
        [-2.9365]
        >>> dist.logp(np.array([[0.0, 0.0, 2.0]])).round(4).tolist()
        [-2.9365]
    """

    def __init__(
        self,
        inputs: Array,
        model: Any = None,
        *,
        child_distributions: Sequence[Callable[..., ActionDistribution]],
        input_lens: Sequence[int],
        action_space: Any,
    ) -> None:
        self.child_distributions = list(child_distributions)
        self.input_lens = [int(n) for n in input_lens]
        self.action_space = action_space
        leaves = len(_leaves(action_space, action_space))
        if not leaves == len(self.child_distributions) == len(self.input_lens):
            raise DistributionError(
                f"{type(self).__name__}: the action space has {leaves} leaves, but there are "
                f"{len(self.child_distributions)} child_distributions and {len(self.input_lens)} input_lens: "
                "give one of each for each leaf, in flattened order (Dict keys sorted)"
            )
        super().__init__(inputs, model)

    def _bind(self, inputs: Array) -> None:
        require_width(self, inputs, sum(self.input_lens), f"the sum of input_lens {self.input_lens}")
        self.inputs = inputs
        parts = self.ops.split(inputs, self.input_lens)
        self.flat_child_distributions = [
            make(part, self.model) for make, part in zip(self.child_distributions, parts, strict=True)
        ]
        self.exact_entropy = all(child.exact_entropy for child in self.flat_child_distributions)
        self.exact_kl = all(child.exact_kl for child in self.flat_child_distributions)

    @property
    def action_shape(self) -> Shape:
        """Of the flat form: (A,), all leaves side by side."""
        return (sum(self._leaf_widths()),)

    def _sample(self, rng: RandomSource | None) -> Any:
        """Nested like the action space, each leaf [B, *its shape]."""
        return _nest(self.action_space, iter([child.sample(rng) for child in self._children()]))

    def _deterministic_sample(self) -> Any:
        return _nest(self.action_space, iter([child.deterministic_sample() for child in self._children()]))

    def logp(self, actions: Any) -> Array:
        """[B]: of actions nested like the space, or one flat array [B, A] (a Discrete leaf is one column)."""
        if isinstance(actions, (dict, tuple, list)):
            parts = _leaves(self.action_space, actions)
        else:
            parts = self._cut(self._as_actions(actions))
        return sum(child.logp(part) for child, part in zip(self._children(), parts, strict=True))

    def entropy(self) -> Array:
        return sum(child.entropy() for child in self._children())

    def kl(self, other: Self) -> Array:
        return sum(child.kl(peer) for child, peer in self._pairs(other))

    def multi_entropy(self) -> Array:
        return self.ops.stack([child.entropy() for child in self._children()])

    def multi_kl(self, other: Self) -> Array:
        return self.ops.stack([child.kl(peer) for child, peer in self._pairs(other)])

    def required_model_output_shape(self, action_space: Any = None, model_config: Any = None) -> int:  # type: ignore[override]
        """K, which depends on the children chosen: so this one is asked of an instance."""
        return sum(self.input_lens)

    def _children(self) -> list[ActionDistribution]:
        for child in self.flat_child_distributions:
            child.rng = self.rng
        return self.flat_child_distributions

    def _pairs(self, other: Self) -> Any:
        return zip(self._children(), other.flat_child_distributions, strict=True)

    def _leaf_widths(self) -> list[int]:
        return [math.prod(child.action_shape) for child in self.flat_child_distributions]

    def _cut(self, flat: Array) -> list[Array]:
        """[B, A] -> for each leaf [B, *its shape]."""
        batch = self._batch_shape()
        parts = zip(self.flat_child_distributions, self.ops.split(flat, self._leaf_widths()), strict=True)
        return [self.ops.reshape(part, (*batch, *child.action_shape)) for child, part in parts]


def _leaves(space: Any, actions: Any) -> list[Any]:
    """The leaves of `actions`, which is nested like `space`, in flattened order."""
    children = getattr(space, "spaces", None)
    if children is None:
        return [actions]
    keys = sorted(children) if isinstance(children, dict) else range(len(children))
    if len(actions) != len(children) or (isinstance(children, dict) and set(actions) != set(children)):
        raise DistributionError(
            f"Actions must be nested like the action space {space}: expected the entries {list(keys)}, "
            f"but got {sorted(actions) if isinstance(actions, dict) else len(actions)}"
        )
    return [leaf for key in keys for leaf in _leaves(children[key], actions[key])]


def _nest(space: Any, leaves: Any) -> Any:
    """Leaves in flattened order -> dicts and tuples nested like `space`."""
    children = getattr(space, "spaces", None)
    if children is None:
        return next(leaves)
    if isinstance(children, dict):
        return {key: _nest(children[key], leaves) for key in sorted(children)}
    return tuple(_nest(child, leaves) for child in children)
