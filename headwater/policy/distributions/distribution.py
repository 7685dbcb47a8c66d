"""What every action distribution offers, whatever its family and framework."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Self

from headwater.frameworks.ops import Array, DistributionError, Ops, RandomSource, Shape


class ActionDistribution(ABC):
    """A distribution over actions for each row of a network's output.

    It stands between a policy's network and the world: the sampler draws actions from it, the loss asks it for
    log-probability, entropy and KL divergence. A family writes its mathematics once, over `self.ops`; a framework
    binds `ops` in a subclass (`NumpyCategorical`, `TorchCategorical`, ...). Shapes: B rows (any leading axes serve),
    K the width of the inputs; every number about a row is `[B]`, summed over the dimensions of its action.

    Args:
        inputs: [B, K], the network's output.
        model: what made the inputs; kept as `self.model`, for distributions that go on computing with it.

    Attributes:
        last_sample: what `sample` or `deterministic_sample` gave last; None before.
        rng: where `sample` without an `rng`, and estimates, draw from; None means the framework's global generator.
        exact_entropy: whether `entropy` is a closed form; if not, it is an unbiased one-sample estimate with gradients.
        exact_kl: the same of `kl`.
    """

    ops: ClassVar[Ops]
    exact_entropy: bool = True
    exact_kl: bool = True
    rng: RandomSource | None = None

    def __init__(self, inputs: Array, model: Any = None) -> None:
        self.model = model
        self.last_sample: Any = None
        self._bind(inputs)

    def sample(self, rng: RandomSource | None = None) -> Any:
        """One action for each row: [B, *action_shape]."""
        self.last_sample = self._sample(self.rng if rng is None else rng)
        return self.last_sample

    def deterministic_sample(self) -> Any:
        """The action of each row without chance: [B, *action_shape]."""
        self.last_sample = self._deterministic_sample()
        return self.last_sample

    def sampled_action_logp(self) -> Array:
        """[B]: the log-probability of `last_sample`.

        Raises:
            DistributionError: nothing was sampled yet.
        """
        if self.last_sample is None:
            raise DistributionError(
                f"{type(self).__name__}.sampled_action_logp() was called before anything was sampled: "
                "call sample() or deterministic_sample() first, or logp(actions) for actions of your own"
            )
        return self.logp(self.last_sample)

    @abstractmethod
    def logp(self, actions: Any) -> Array:
        """[B]: log-probability (density, where continuous) of actions [B, *action_shape].

        An action outside the support gives -inf or raises DistributionError, never a plausible number.
        """

    @abstractmethod
    def entropy(self) -> Array:
        """[B], in nats."""

    @abstractmethod
    def kl(self, other: Self) -> Array:
        """[B]: KL(self || other), in nats."""

    def multi_entropy(self) -> Array:
        """The entropies of independent parts, [B, parts], where a distribution has such; else `entropy`."""
        return self.entropy()

    def multi_kl(self, other: Self) -> Array:
        """The divergences of independent parts, [B, parts], where a distribution has such; else `kl`."""
        return self.kl(other)

    @staticmethod
    @abstractmethod
    def required_model_output_shape(action_space: Any, model_config: Any = None) -> int:
        """K: how wide the network's output must be for this action space."""

    @property
    @abstractmethod
    def action_shape(self) -> Shape:
        """The shape of one row's action; () for a scalar."""

    def masked(self, mask: Array) -> Self:
        """The same distribution, with the inputs of rows where boolean `mask` [B] is False replaced by zeros.

        Neither values nor gradients of the replaced inputs survive, be they NaN: for losses over padded batches.
        """
        return self.with_inputs(self.ops.where(mask[..., None], self.inputs, 0.0))

    def with_inputs(self, inputs: Array) -> Self:
        """The same distribution of other inputs, [B, K]."""
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other.last_sample = None
        other._bind(inputs)
        return other

    # -- for families

    def _bind(self, inputs: Array) -> None:
        """Takes the inputs and derives from them; the family's parameters are already set."""
        self.inputs = inputs

    @abstractmethod
    def _sample(self, rng: RandomSource | None) -> Any: ...

    @abstractmethod
    def _deterministic_sample(self) -> Any: ...

    def _batch_shape(self) -> Shape:
        return self.ops.shape(self.inputs)[:-1]

    def _as_actions(self, actions: Any) -> Array:
        """`actions` as an array of this framework, [B, *action_shape]; [B, A] is unflattened."""
        actions = self.ops.asarray(actions, like=self.inputs)
        batch, shape = self._batch_shape(), self.action_shape
        wanted, got = (*batch, *shape), tuple(self.ops.shape(actions))
        if got == wanted:
            return actions
        if len(shape) > 1 and got == (*batch, math.prod(shape)):
            return self.ops.reshape(actions, wanted)
        raise DistributionError(
            f"{type(self).__name__} has actions of shape {wanted} (one for each row of its inputs), but got {got}: "
            "pass actions as sample() gives them"
        )


def require_width(distribution: ActionDistribution, inputs: Array, width: int, reason: str) -> None:
    """Refuses inputs whose last axis is not `width` wide.

    Raises:
        DistributionError: names both widths and the reason.
    """
    got = distribution.ops.shape(inputs)[-1]
    if got != width:
        raise DistributionError(
            f"{type(distribution).__name__} needs inputs of width {width} ({reason}), but got {got}: "
            "the network's output width must be required_model_output_shape(action_space, model_config)"
        )
