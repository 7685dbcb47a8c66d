"""TensorFlow's threads and devices."""

from __future__ import annotations

import functools
import logging

import tensorflow as tf

logger = logging.getLogger(__name__)


@functools.cache
def prepare(num_threads: int) -> None:
    """Threads of one operation, and GPU memory as it is needed rather than all of it; before TensorFlow first computes.

    Afterwards neither can be changed in this process.
    """
    try:
        tf.config.threading.set_intra_op_parallelism_threads(num_threads)
        tf.config.threading.set_inter_op_parallelism_threads(num_threads)
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError:
        logger.warning(
            "num_threads: TensorFlow computed in this process before the first policy was made, so that its threads "
            "and its GPU memory stay as they are. Make the trainer first to let the setting count."
        )


def count_gpus() -> int:
    """How many GPUs TensorFlow sees."""
    return len(tf.config.list_physical_devices("GPU"))
