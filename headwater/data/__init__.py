"""What flows: batches of experience, and the advantages computed on them."""

from headwater.data.advantages import compute_advantages, gae, returns
from headwater.data.sample_batch import (
    DEFAULT_POLICY_ID,
    Batch,
    BatchError,
    MultiAgentBatch,
    SampleBatch,
    batch_from_state,
)

__all__ = [
    "DEFAULT_POLICY_ID",
    "Batch",
    "BatchError",
    "MultiAgentBatch",
    "SampleBatch",
    "batch_from_state",
    "compute_advantages",
    "gae",
    "returns",
]
