"""tf: the only package of headwater that imports TensorFlow."""

import os
import re
import sys
import tempfile

from headwater.errors import require

_CHATTER = re.compile(r"[IW]\d{4} |WARNING: All log messages before absl")


def _import_tensorflow() -> None:
    """Without its messages about what the machine has and has not, unless TF_CPP_MIN_LOG_LEVEL=0 asks for all.

    TensorFlow's libraries log while they are loaded, before the level counts; so what they say passes through a file.
    """
    level = os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    if "tensorflow" in sys.modules or level == "0":
        require("tensorflow", "tf")
        return
    sys.stderr.flush()
    stderr = os.dup(2)
    with tempfile.TemporaryFile("w+", errors="replace") as said:
        os.dup2(said.fileno(), 2)
        try:
            require("tensorflow", "tf")
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
            said.seek(0)
            sys.stderr.writelines(line for line in said if not _CHATTER.match(line))


_import_tensorflow()

from headwater.frameworks.tf.distributions import (  # noqa: E402
    Beta,
    BinaryAutoregressiveDistribution,
    Categorical,
    Deterministic,
    DiagGaussian,
    Dirichlet,
    GumbelSoftmax,
    MultiActionDistribution,
    MultiCategorical,
    SquashedGaussian,
    TFActionDistribution,
)
from headwater.frameworks.tf.ops import TF_OPS, TFGenerator, TFOps  # noqa: E402

__all__ = [
    "TF_OPS",
    "Beta",
    "BinaryAutoregressiveDistribution",
    "Categorical",
    "Deterministic",
    "DiagGaussian",
    "Dirichlet",
    "GumbelSoftmax",
    "MultiActionDistribution",
    "MultiCategorical",
    "SquashedGaussian",
    "TFActionDistribution",
    "TFGenerator",
    "TFOps",
]
