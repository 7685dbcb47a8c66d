"""Random numbers in JAX: keys are explicit, so a generator is a key that is split at each draw."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from headwater.frameworks.ops import DistributionError, RandomSource, Shape

_KIND = "threefry2x32"


class JaxGenerator:
    """A seeded generator. It may be made and used inside a transformed function, from a key that came in.

    Args:
        seed: An integer from 0 to 2**64 - 1, or a key of `jax.random`.

    Example:
        >>> rng = JaxGenerator(7)
        >>> state = rng.get_state()
        >>> first = rng.normal((3,))
        >>> rng.set_state(state)
        >>> bool((rng.normal((3,)) == first).all())
        True
    """

    def __init__(self, seed: int | jax.Array) -> None:
        self.key = seed if isinstance(seed, jax.Array) else make_key(seed)

    def split(self) -> jax.Array:
        """A fresh key; the generator goes on from another."""
        self.key, key = jax.random.split(self.key)
        return key

    def uniform(self, shape: Shape) -> jax.Array:
        return jax.random.uniform(self.split(), shape, np.float32)

    def normal(self, shape: Shape) -> jax.Array:
        return jax.random.normal(self.split(), shape, np.float32)

    def get_state(self) -> dict[str, Any]:
        key = self.key
        return {"key": np.array(jax.random.key_data(key) if _is_typed(key) else key)}

    def set_state(self, state: dict[str, Any]) -> None:
        self.key = jax.random.wrap_key_data(jnp.array(state["key"], jnp.uint32), impl=_KIND)


def make_key(seed: int) -> jax.Array:
    """A key from all 64 bits of `seed`; `jax.random.key` takes 32 of them."""
    return jax.random.wrap_key_data(jnp.array(divmod(seed, 2**32), jnp.uint32), impl=_KIND)


def source_of(rng: RandomSource | jax.Array | None) -> RandomSource:
    """A source from a key of `jax.random`; a source as it is.

    Raises:
        DistributionError: None came; JAX has no global generator.
    """
    if rng is None:
        raise DistributionError(
            "JAX has no global random generator: give rng=JaxGenerator(seed) or a key such as jax.random.key(seed) "
            "to sample, or set the distribution's rng"
        )
    return JaxGenerator(rng) if isinstance(rng, jax.Array) else rng


def _is_typed(key: jax.Array) -> bool:
    return jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key)
