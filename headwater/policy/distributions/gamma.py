"""Gamma variates out of uniform and normal numbers, so that any source of those serves."""

from __future__ import annotations

from headwater.frameworks.ops import Array, Ops, RandomSource

# Each try is accepted with a probability of 0.95 and more, so that all fail once in 10^10 draws; the last one is then
# taken. A fixed number makes what a row draws independent of what other rows need.
_TRIES = 8

_TINY = 1e-30


def log_gamma_variates(ops: Ops, rng: RandomSource | None, concentration: Array) -> Array:
    """[*] -> [*]: logarithms of Gamma(concentration, 1) variates, without gradients.

    Marsaglia and Tsang 2000 (doi:10.1145/358407.358414): with d = a - 1/3, x ~ N(0, 1) and v = (1 + x / (3 sqrt d))^3,
    d v is accepted where log u < x^2 / 2 + d - d v + d log v. For a < 1 a variate of a + 1 is multiplied by u^(1/a).
    Logarithms, for with a small concentration the variates themselves underflow.

    Args:
        ops: The framework's operations.
        rng: Where numbers are drawn from.
        concentration: a > 0.
    """
    a = ops.stop_gradient(concentration)
    shape = (*ops.shape(a), _TRIES)
    is_small = a < 1.0
    d = (ops.where(is_small, a + 1.0, a) - 1.0 / 3.0)[..., None]
    x = ops.normal(rng, shape, a)
    u = ops.maximum(ops.uniform(rng, shape, a), _TINY)
    boost = ops.maximum(ops.uniform(rng, ops.shape(a), a), _TINY)
    root = 1.0 + x / (3.0 * ops.sqrt(d))
    v = ops.maximum(root, _TINY ** (1.0 / 3.0)) ** 3
    accepted = (root > 0.0) & (ops.log(u) < 0.5 * ops.square(x) + d * (1.0 - v + ops.log(v)))
    chosen = ops.pick(v, ops.argmax(ops.to_float(accepted, like=a)))
    log_variate = ops.log(d[..., 0] * chosen)
    return ops.where(is_small, log_variate + ops.log(boost) / a, log_variate)
