"""The plan: iterators, and the operators that a plan is made of."""

from headwater.execution.concurrency_ops import Concurrently, Dequeue, Enqueue
from headwater.execution.iterators import LocalIterator, ParallelIterator
from headwater.execution.metric_ops import (
    CollectMetrics,
    OncePerTimeInterval,
    OncePerTimestepsElapsed,
    StandardMetricsReporting,
)
from headwater.execution.rollout_ops import ConcatBatches, ParallelRollouts, SelectExperiences, StandardizeFields
from headwater.execution.shared_metrics import PlanError, PlanTypeError, SharedMetrics, TimerStat
from headwater.execution.train_ops import (
    ApplyGradients,
    AverageGradients,
    ComputeGradients,
    Gradients,
    KeepInfo,
    TrainOneStep,
    TrainResult,
    UpdateTargetNetwork,
)
from headwater.execution.weight_sync import SyncWeights

__all__ = [
    "ApplyGradients",
    "AverageGradients",
    "CollectMetrics",
    "ComputeGradients",
    "ConcatBatches",
    "Concurrently",
    "Dequeue",
    "Enqueue",
    "Gradients",
    "KeepInfo",
    "LocalIterator",
    "OncePerTimeInterval",
    "OncePerTimestepsElapsed",
    "ParallelIterator",
    "ParallelRollouts",
    "PlanError",
    "PlanTypeError",
    "SelectExperiences",
    "SharedMetrics",
    "StandardMetricsReporting",
    "StandardizeFields",
    "SyncWeights",
    "TimerStat",
    "TrainOneStep",
    "TrainResult",
    "UpdateTargetNetwork",
]
