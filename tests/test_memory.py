"""Trainers of policies with memory: learning, acting with a state, saving and going on, leaving the trainer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headwater import ExportedPolicy, PPOTrainer, Trainer
from headwater.cli.recording import _run
from headwater.errors import ConfigError, HeadwaterError
from tests.toy_envs import CounterEnv, HiddenVelocities, Recall
from tests.trainers import SMALL, flat_weights, without_times

MODEL = {"memory": "lstm", "memory_size": 8, "max_seq_len": 10, "fcnet_hiddens": [8]}
SETTINGS = {**SMALL, "model": MODEL, "observation_filter": "MeanStdFilter"}


@pytest.mark.parametrize("memory", ["lstm", "gru", "attention", None])
def test_what_was_seen_is_learned_to_be_remembered(memory: str | None, made: list[Trainer]) -> None:
    """In some 4,000 steps; without memory half of the guesses are right."""
    model = {"memory": memory, "memory_size": 16, "max_seq_len": 16, "fcnet_hiddens": [16]}
    settings = {"num_envs_per_worker": 8, "train_batch_size": 512, "lr": 3e-3, "gamma": 1.0, "seed": 0, "model": model}
    made.append(PPOTrainer(settings, env=lambda context: Recall(), logger_creator=False))
    means = [made[0].train()["episode_reward_mean"] for _ in range(16)]
    assert max(means) < 0.65 if memory is None else max(means) > 0.95


@pytest.mark.parametrize("memory", ["lstm", "gru", "attention"])
@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
def test_steps_are_counted_without_padding(memory: str, batch_mode: str, made: list[Trainer]) -> None:
    settings = {**SETTINGS, "model": {**MODEL, "memory": memory, "attention_window": 4}, "batch_mode": batch_mode}
    made.append(PPOTrainer(settings, env=lambda context: CounterEnv(7, "terminated"), logger_creator=False))
    before = flat_weights(made[0])
    for iteration in (1, 2):
        result = made[0].train()
        steps = result["timesteps_total"]
        assert steps == 128 * iteration if batch_mode == "truncate_episodes" else steps % 7 == 0
        assert result["info"]["num_steps_trained"] == steps
        assert result["episode_len_mean"] == 7 and np.isfinite(result["info"]["learner"]["default_policy"]["kl"])
    assert not np.array_equal(before, flat_weights(made[0]))


def test_a_resumed_run_is_the_one_that_went_on(tmp_path: Path, made: list[Trainer]) -> None:
    made.append(PPOTrainer(SETTINGS, env="CartPole-v1", logger_creator=False))
    made[0].train()
    checkpoint = made[0].save(tmp_path)
    made.append(PPOTrainer.from_checkpoint(checkpoint, logger_creator=False))
    for _ in range(2):
        assert without_times(made[0].train()) == without_times(made[1].train())
    assert np.array_equal(flat_weights(made[0]), flat_weights(made[1]))


def observations(steps: int) -> list[np.ndarray]:
    return list(np.random.default_rng(3).normal(size=(steps, 2)).astype(np.float32) * 0.1)


def step_by_step(act: Any, steps: int = 6) -> tuple[list[Any], list[np.ndarray]]:
    """The values of a made-up episode, and the state after it."""
    state, values = act.get_initial_state(), []
    for observation in observations(steps):
        _, state, extra = act.compute_action(observation, explore=False, state=state)
        values.append(extra["vf_preds"])
    return values, state


def test_acting_with_a_state(tmp_path: Path, made: list[Trainer]) -> None:
    """Case S8: the exported policy carries its state as the trainer does."""
    made.append(PPOTrainer(SETTINGS, env=lambda context: HiddenVelocities(), logger_creator=False))
    trainer: Any = made[0]
    trainer.train()
    trainer.get_initial_state = trainer.get_policy().get_initial_state
    values, state = step_by_step(trainer)
    assert [part.shape for part in state] == [(8,)] * len(state) and len(state) == len(trainer.get_initial_state())
    exported = ExportedPolicy.load(trainer.export_policy_model(tmp_path))
    np.testing.assert_allclose(step_by_step(exported)[0], values, atol=1e-5)

    first = observations(1)[0]
    action, after, extra = trainer.compute_action(first, full_fetch=True, explore=False)
    assert extra["vf_preds"] == values[0] and len(after) == len(state)
    assert trainer.compute_action(first, explore=False) == action == exported.compute_action(first, explore=False)
    assert trainer.compute_action(first, state, full_fetch=True)[2]["vf_preds"] != values[0]

    # Many at once, each with its own state: "old" is far into an episode, "new" begins one.
    batch = {"old": first, "new": first}
    actions, states, extra = trainer.compute_actions(batch, {"old": state}, explore=False)
    assert actions.keys() == states.keys() == batch.keys()
    np.testing.assert_allclose(extra["vf_preds"][1], values[0], atol=1e-6)
    alone = trainer.compute_action(first, state, explore=False)
    np.testing.assert_allclose(extra["vf_preds"][0], alone[2]["vf_preds"], atol=1e-6)
    np.testing.assert_allclose(np.concatenate(states["old"]), np.concatenate(alone[1]), atol=1e-6)
    mine = exported.compute_actions([first, first], explore=False, states=[state, exported.get_initial_state()])
    np.testing.assert_allclose(mine[2]["vf_preds"], extra["vf_preds"], atol=1e-5)
    np.testing.assert_allclose(np.concatenate(mine[1][0]), np.concatenate(states["old"]), atol=1e-5)


def test_states_that_do_not_fit(made: list[Trainer]) -> None:
    made.append(PPOTrainer(SETTINGS, env=lambda context: HiddenVelocities(), logger_creator=False))
    trainer, observation = made[0], np.zeros(2, np.float32)
    policy: Any = trainer.get_policy()
    state = policy.get_initial_state()
    with pytest.raises(ConfigError, match="1 state parts came.*get_initial_state"):
        trainer.compute_action(observation, state[:1])
    with pytest.raises(ConfigError, match=r"policy/lstm/h.*\(1, 3\)"):
        trainer.compute_action(observation, [np.zeros(3), *state[1:]])
    with pytest.raises(HeadwaterError, match="states given do not fit together"):
        trainer.compute_actions({1: observation, 2: observation}, {1: state, 2: state[:1]})
    worker = trainer.workers.local_worker()
    with pytest.raises(HeadwaterError, match="1 states for 2 observations"):
        worker.compute_actions([observation] * 2, states=[state])


def test_evaluation_and_training_remember_apart(made: list[Trainer]) -> None:
    for interval in (None, 1):
        settings = {**SETTINGS, "evaluation_interval": interval, "evaluation_num_episodes": 3}
        made.append(PPOTrainer(settings, env="CartPole-v1", logger_creator=False))
        for _ in range(2):
            result = made[-1].train()
    assert result["evaluation"]["episodes_this_iter"] == 3
    assert np.array_equal(flat_weights(made[0]), flat_weights(made[1]))


def test_a_recorded_episode_is_acted_with_its_memory(made: list[Trainer]) -> None:
    made.append(PPOTrainer(SETTINGS, env=lambda context: HiddenVelocities(), logger_creator=False))
    network: Any = made[0].get_policy().acting_network  # type: ignore[union-attr]
    before, after, forward = [], [], network.forward

    def watched(obs: np.ndarray, state: np.ndarray) -> Any:
        result = forward(obs, state)
        before.append(state)
        after.append(result[2])
        return result

    network.forward = watched
    _, lengths = _run(made[0], HiddenVelocities(), 2, False, 1)
    starts = {0, lengths[0]}
    for step, state in enumerate(before):
        np.testing.assert_array_equal(state, 0 if step in starts else after[step - 1])
    assert len(before) == sum(lengths) and after[-1].any()
