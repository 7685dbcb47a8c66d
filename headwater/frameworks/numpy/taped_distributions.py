"""The distributions bound to NumPy with gradients: what small losses on the CPU are differentiated with."""

from __future__ import annotations

from headwater.frameworks.numpy.taped_ops import TAPED_OPS
from headwater.policy import distributions as families


class TapedDistributionWrapper(families.ActionDistribution):
    """Binds a family to `TAPED_OPS`; inputs are arrays or `Taped`."""

    ops = TAPED_OPS


class TapedCategorical(TapedDistributionWrapper, families.Categorical):
    pass


class TapedMultiCategorical(TapedDistributionWrapper, families.MultiCategorical):
    _categorical = TapedCategorical


class TapedDiagGaussian(TapedDistributionWrapper, families.DiagGaussian):
    pass


class TapedSquashedGaussian(TapedDistributionWrapper, families.SquashedGaussian):
    pass


class TapedDeterministic(TapedDistributionWrapper, families.Deterministic):
    pass


class TapedMultiActionDistribution(TapedDistributionWrapper, families.MultiActionDistribution):
    pass
