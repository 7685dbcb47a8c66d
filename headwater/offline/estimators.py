"""Off-policy estimators: what a policy would earn, judged by episodes that another one (the behaviour) played.

Of step t of an episode i let r_it be the reward and rho_it = prod_{k <= t} pi(a_ik | s_ik) / b(a_ik | s_ik) the ratio
of the probabilities that the present policy pi and the behaviour b give to the actions up to there. Over n episodes

    V_prev      = 1/n sum_i sum_t gamma^t r_it                              what the behaviour earned
    V_step_IS   = 1/n sum_i sum_t gamma^t rho_it r_it                       per-decision importance sampling
    V_step_WIS  = sum_t gamma^t (sum_i rho_it r_it) / (sum_i rho_it)        weighted per-decision importance sampling
    V_gain_est  = V_step / V_prev

(Precup, Sutton and Singh 2000, "Eligibility traces for off-policy policy evaluation", section 3). The first is unbiased
and may vary wildly; the second is biased for few episodes and varies far less. In the weighted one an episode that is
over stays in the sums, with the reward 0 and the ratio of its last step. V_gain_est is NaN where V_prev is 0.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from headwater.data.sample_batch import Batch, MultiAgentBatch, SampleBatch
from headwater.errors import ConfigError
from headwater.offline.context import OfflineError
from headwater.offline.episodes import EpisodeJoiner
from headwater.offline.postprocessing import react
from headwater.policy.policy import Policy

_MAX_LOG_RATIO = 80.0  # exp of more overflows in sums of float64 squares

Trace = tuple[NDArray[np.float64], NDArray[np.float64]]  # rewards [T] and log ratios [T] of an episode


class OffPolicyEstimator(ABC):
    """Judges a policy by whole episodes of another's.

    Args:
        policy: the present policy.
        gamma: the discount.
        max_episodes: the latest episodes that an estimate is made of.
    """

    name: ClassVar[str]

    def __init__(self, policy: Policy, gamma: float, max_episodes: int = 1000) -> None:
        self.policy = policy
        self.gamma = gamma
        self._max_episodes = max_episodes
        self._joiner = EpisodeJoiner()
        self._traces: list[Trace] = []

    def process(self, batch: Batch) -> None:
        """Count the episodes that end in a batch; with the policy's weights of now.

        Raises:
            OfflineError: the rows do not say how probable their actions were, or are of several agents.
        """
        if isinstance(batch, MultiAgentBatch):
            raise OfflineError("input_evaluation judges one agent's episodes, and the input has those of several. "
                               "Set it to [].")  # fmt: skip
        assert isinstance(batch, SampleBatch)
        if batch.in_sequences:
            return
        if SampleBatch.ACTION_LOGP not in batch:
            raise OfflineError(
                f"input_evaluation {self.name!r} needs the column 'action_logp', which the input does not have; it has "
                f"{', '.join(batch)}. Set input_evaluation to [], or record it."
            )
        for episode in self._joiner.add(batch):
            self._traces.append(self._trace(episode))
        del self._traces[: -self._max_episodes]

    def get_metrics(self) -> dict[str, float]:
        """The estimates over the episodes since the last call; {} if there were none."""
        traces, self._traces = self._traces, []
        if not traces:
            return {}
        previous = float(np.mean([np.sum(self._discounts(rewards) * rewards) for rewards, _ in traces]))
        step = float(self._estimate(traces))
        gain = step / previous if previous else float("nan")
        return {"V_prev": previous, f"V_step_{self.name.upper()}": step, "V_gain_est": gain, "episodes": len(traces)}

    @abstractmethod
    def _estimate(self, traces: Sequence[Trace]) -> float:
        """What the present policy would earn."""

    def _discounts(self, rewards: NDArray[Any]) -> NDArray[np.float64]:
        return self.gamma ** np.arange(len(rewards), dtype=np.float64)

    def _trace(self, episode: SampleBatch) -> Trace:
        inputs = react(self.policy, np.asarray(episode[SampleBatch.OBS]), np.zeros(1, np.int64)).dist_inputs
        new = np.asarray(self.policy.logp(inputs, np.asarray(episode[SampleBatch.ACTIONS])), np.float64)
        ratios = np.cumsum(new - np.asarray(episode[SampleBatch.ACTION_LOGP], np.float64))
        return np.asarray(episode[SampleBatch.REWARDS], np.float64), np.clip(ratios, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)


class ImportanceSampling(OffPolicyEstimator):
    """Per-decision importance sampling, see the module."""

    name = "is"

    def _estimate(self, traces: Sequence[Trace]) -> float:
        return float(np.mean([np.sum(self._discounts(r) * np.exp(log_rho) * r) for r, log_rho in traces]))


class WeightedImportanceSampling(OffPolicyEstimator):
    """Weighted per-decision importance sampling, see the module."""

    name = "wis"

    def _estimate(self, traces: Sequence[Trace]) -> float:
        longest = max(len(rewards) for rewards, _ in traces)
        rewards = np.zeros((len(traces), longest))
        rho = np.zeros((len(traces), longest))
        for i, (of_episode, log_rho) in enumerate(traces):
            rewards[i, : len(of_episode)] = of_episode
            rho[i] = np.exp(log_rho[-1])
            rho[i, : len(log_rho)] = np.exp(log_rho)
        return float(np.sum(self._discounts(rewards[0]) * np.sum(rho * rewards, axis=0) / np.sum(rho, axis=0)))


ESTIMATORS: dict[str, type[OffPolicyEstimator]] = {
    of.name: of for of in (ImportanceSampling, WeightedImportanceSampling)
}


def make_estimators(names: Sequence[Any], policy: Policy, gamma: float) -> dict[str, OffPolicyEstimator]:
    """Estimators by name: "is", "wis", or classes derived from OffPolicyEstimator.

    Raises:
        ConfigError: there is none of that name.
    """
    made = {}
    for name in names:
        if isinstance(name, type) and issubclass(name, OffPolicyEstimator):
            made[name.name] = name(policy, gamma)
        elif name in ESTIMATORS:
            made[name] = ESTIMATORS[name](policy, gamma)
        else:
            raise ConfigError(f"input_evaluation: {name!r} is none of {', '.join(map(repr, ESTIMATORS))}, nor a class "
                              "derived from headwater.offline.OffPolicyEstimator.")  # fmt: skip
    return made
