"""Off-policy estimates against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from headwater.data.sample_batch import MultiAgentBatch, SampleBatch
from headwater.errors import ConfigError
from headwater.offline import OfflineError
from headwater.offline.estimators import make_estimators
from tests.offline.workers import make_worker, sample


class Coin:
    """A policy that takes action 1 with the probability 0.8, whatever it sees."""

    state_size = 0

    def compute_actions(self, obs: Any, explore: bool) -> Any:
        return None, [], {"action_dist_inputs": np.zeros((len(obs), 2)), "vf_preds": np.zeros(len(obs))}

    def logp(self, inputs: Any, actions: Any) -> Any:
        return np.log(np.where(np.asarray(actions) == 1, 0.8, 0.2))


def episode(eps_id: int, actions: list[int], rewards: list[float], behaviour: float = 0.5) -> SampleBatch:
    steps = len(actions)
    return SampleBatch(
        obs=np.zeros((steps, 1)), actions=np.array(actions), rewards=np.array(rewards), eps_id=np.full(steps, eps_id),
        t=np.arange(steps), terminateds=np.arange(steps) == steps - 1, truncateds=np.zeros(steps, bool),
        action_logp=np.full(steps, np.log(behaviour)),
    )  # fmt: skip


def estimates(*batches: SampleBatch, gamma: float = 0.5) -> dict[str, dict[str, float]]:
    made = make_estimators(["is", "wis"], Coin(), gamma)  # type: ignore[arg-type]
    for batch in batches:
        for estimator in made.values():
            estimator.process(batch)
    return {name: estimator.get_metrics() for name, estimator in made.items()}


def test_known_values() -> None:
    # Ratios: action 1 has 0.8 / 0.5 = 1.6, action 0 has 0.4.
    found = estimates(episode(0, [1, 1], [1.0, 2.0]), episode(1, [0], [3.0]))
    previous = ((1 + 0.5 * 2) + 3) / 2
    step_is = ((1.6 * 1 + 0.5 * 2.56 * 2) + 0.4 * 3) / 2
    # t = 0: (1.6 * 1 + 0.4 * 3) / (1.6 + 0.4); t = 1: (2.56 * 2 + 0.4 * 0) / (2.56 + 0.4)
    step_wis = 2.8 / 2.0 + 0.5 * 5.12 / 2.96
    assert found["is"] == pytest.approx(
        {"V_prev": previous, "V_step_IS": step_is, "V_gain_est": step_is / previous, "episodes": 2}
    )
    assert found["wis"] == pytest.approx(
        {"V_prev": previous, "V_step_WIS": step_wis, "V_gain_est": step_wis / previous, "episodes": 2}
    )


def test_pieces_of_an_episode_are_joined_and_one_without_beginning_is_not() -> None:
    whole = episode(0, [1, 0, 1], [1.0, 2.0, 3.0])
    assert estimates(whole.slice(0, 2), whole.slice(2, 3)) == estimates(whole)
    assert estimates(whole.slice(1, 3)) == {"is": {}, "wis": {}}


def test_both_converge_on_the_true_value() -> None:
    rng = np.random.default_rng(0)
    batches = []
    for i in range(1000):
        actions = rng.integers(0, 2, 3)
        batches.append(episode(i, actions.tolist(), actions.astype(float).tolist()))
    found = estimates(*batches, gamma=1.0)
    assert found["is"]["V_prev"] == pytest.approx(1.5, abs=0.1)
    assert found["is"]["V_step_IS"] == pytest.approx(2.4, abs=0.25)
    assert found["wis"]["V_step_WIS"] == pytest.approx(2.4, abs=0.1)


def test_the_behaviour_itself_gains_nothing() -> None:
    worker = make_worker(train_batch_size=1024)
    made = make_estimators(["is", "wis"], worker.policy_map["default_policy"], 0.99)
    from headwater.offline.episodes import StepCounter

    batch = StepCounter().add(sample(worker))
    for estimator in made.values():
        estimator.process(batch)
        metrics = estimator.get_metrics()
        assert metrics["episodes"] > 10 and metrics["V_gain_est"] == pytest.approx(1.0, abs=1e-3)
    worker.stop()


def test_what_cannot_be_judged_is_said() -> None:
    without = episode(0, [1], [1.0])
    del without["action_logp"]
    with pytest.raises(OfflineError, match="needs the column 'action_logp'"):
        estimates(without)
    [estimator] = make_estimators(["is"], Coin(), 0.9).values()  # type: ignore[arg-type]
    with pytest.raises(OfflineError, match="several"):
        estimator.process(MultiAgentBatch({"red": episode(0, [1], [1.0])}, 1))
    with pytest.raises(ConfigError, match="'dr' is none of 'is', 'wis'"):
        make_estimators(["dr"], Coin(), 0.9)  # type: ignore[arg-type]
