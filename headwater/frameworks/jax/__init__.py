"""JAX: the only package of headwater that imports it."""

from headwater.errors import require

require("jax", "jax")

from headwater.frameworks.jax.distributions import (  # noqa: E402
    JAXBeta,
    JAXBinaryAutoregressiveDistribution,
    JAXCategorical,
    JAXDeterministic,
    JAXDiagGaussian,
    JAXDirichlet,
    JAXDistribution,
    JAXGumbelSoftmax,
    JAXMultiActionDistribution,
    JAXMultiCategorical,
    JAXSquashedGaussian,
)
from headwater.frameworks.jax.generator import JaxGenerator  # noqa: E402
from headwater.frameworks.jax.ops import JAX_OPS, JaxOps  # noqa: E402

__all__ = [
    "JAX_OPS",
    "JAXBeta",
    "JAXBinaryAutoregressiveDistribution",
    "JAXCategorical",
    "JAXDeterministic",
    "JAXDiagGaussian",
    "JAXDirichlet",
    "JAXDistribution",
    "JAXGumbelSoftmax",
    "JAXMultiActionDistribution",
    "JAXMultiCategorical",
    "JAXSquashedGaussian",
    "JaxGenerator",
    "JaxOps",
]
