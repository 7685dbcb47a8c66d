"""Action distributions: each family's mathematics once, over `ops`; `frameworks/NAME/distributions.py` binds them."""

from headwater.frameworks.ops import DistributionError
from headwater.policy.distributions.beta import Beta
from headwater.policy.distributions.binary_autoregressive import BinaryAutoregressiveDistribution
from headwater.policy.distributions.categorical import Categorical
from headwater.policy.distributions.deterministic import Deterministic
from headwater.policy.distributions.dirichlet import Dirichlet
from headwater.policy.distributions.distribution import ActionDistribution
from headwater.policy.distributions.gaussian import DiagGaussian
from headwater.policy.distributions.gumbel_softmax import GumbelSoftmax
from headwater.policy.distributions.multi import MultiActionDistribution
from headwater.policy.distributions.multi_categorical import MultiCategorical
from headwater.policy.distributions.squashed import SquashedGaussian

__all__ = [
    "ActionDistribution",
    "Beta",
    "BinaryAutoregressiveDistribution",
    "Categorical",
    "Deterministic",
    "DiagGaussian",
    "Dirichlet",
    "DistributionError",
    "GumbelSoftmax",
    "MultiActionDistribution",
    "MultiCategorical",
    "SquashedGaussian",
]
