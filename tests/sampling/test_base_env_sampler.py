"""BaseEnvSampler: the same batches as the array path where that can be compared, and as a slow reference elsewhere."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.algorithms.ppo.ppo import PPOConfig, get_policy_class
from headwater.data.sample_batch import MultiAgentBatch, SampleBatch
from headwater.envs.adapters import make_env, to_base_env
from headwater.registry import env_creator_for
from headwater.sampling.base_env_sampler import BaseEnvSampler
from headwater.sampling.rollout_worker import RolloutWorker
from headwater.sampling.sampler import VectorSampler
from tests.envs.toys import ScriptEnv
from tests.sampling.schedules import RandomSchedule, Row


def make_worker(env: Any, on_base_env: bool = False, **changes: Any) -> RolloutWorker:
    """A worker for an env spec; with `on_base_env` its vector env goes through the adapter to BaseEnv."""
    config = PPOConfig(**{"seed": 7, "num_envs_per_worker": 2, "sgd_minibatch_size": 0, **changes})
    env_id, creator = env_creator_for(env)

    def creator_of_base(context: Any) -> Any:
        inner = make_env(creator, env_id, config.num_envs_per_worker, config, context)
        return to_base_env(inner, env_id=env_id, config=config)

    return RolloutWorker(
        env_creator=creator_of_base if on_base_env else creator,
        env_id=env_id, policy_class=get_policy_class(config), config=config,
    )  # fmt: skip


SCRIPT = {"lengths": [3, 5, 1, 4], "kinds": ["truncated", "terminated", "both", "truncated"]}
# Envs that wait for others' episodes to end draw action noise on the array path only: whole episodes do not explore.
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "whole episodes": {"batch_mode": "complete_episodes", "explore": False},
    "filter": {"observation_filter": "MeanStdFilter"},
    "horizon": {"horizon": 2},
    "memory": {"model": {"memory": "lstm", "max_seq_len": 4}},
    "memory, filter, whole": {
        "model": {"memory": "gru", "max_seq_len": 3, "use_prev_action": True, "use_prev_reward": True},
        "observation_filter": "MeanStdFilter", "batch_mode": "complete_episodes", "explore": False,
    },
    "step before": {"model": {"use_prev_action": True, "use_prev_reward": True}, "clip_rewards": 2.0},
    "no exploring": {"explore": False},
}  # fmt: skip


@pytest.mark.parametrize("env", ["CartPole-v1", "Pendulum-v1", "script"])
@pytest.mark.parametrize("case", CASES)
def test_the_same_batches_as_the_array_path(env: str, case: str) -> None:
    spec = env if env != "script" else lambda context: ScriptEnv(context.vector_index, **SCRIPT)
    changes = {"train_batch_size": 40, "vectorization": "sync", **CASES[case]}
    arrays, dicts = make_worker(spec, **changes), make_worker(spec, on_base_env=True, **changes)
    assert isinstance(arrays.sampler, VectorSampler) and isinstance(dicts.sampler, BaseEnvSampler)
    try:
        for _ in range(3):
            expected, batch = arrays.sample(), dicts.sample()
            assert isinstance(batch, SampleBatch) and batch.keys() == expected.keys()
            if changes.get("batch_mode") == "complete_episodes":  # whose rows may come in another order
                assert batch.count == expected.count
                expected, batch = in_order(expected), in_order(batch)
            for name, column in expected.items():
                np.testing.assert_allclose(batch[name], column, rtol=1e-5, atol=1e-6, err_msg=name)
            assert dicts.get_metrics() == arrays.get_metrics()
    finally:
        arrays.stop()
        dicts.stop()


def in_order(batch: SampleBatch) -> SampleBatch:
    episodes = np.asarray(batch["eps_id"])
    episodes = episodes[:, 0] if batch.in_sequences else episodes
    order = np.argsort(episodes, kind="stable")
    return SampleBatch({name: column[order] for name, column in batch.items()})


@pytest.mark.parametrize("mode", ["NEXT_STEP", "SAME_STEP"])
def test_the_same_rows_in_each_autoreset_mode(mode: str) -> None:
    autoreset = gym.vector.AutoresetMode[mode]

    def creator(context: Any) -> Any:
        copies = [lambda i=i: ScriptEnv(i, **SCRIPT) for i in range(2)]
        return gym.vector.SyncVectorEnv(copies, autoreset_mode=autoreset)

    rows = []
    for on_base_env in (False, True):
        worker = make_worker(creator, on_base_env=on_base_env, train_batch_size=80, explore=False)
        batch = SampleBatch.concat_samples([worker.sample() for _ in range(2)])
        worker.stop()
        keys = ("obs", "rewards", "terminateds", "truncateds", "advantages")
        table = np.column_stack([np.asarray(batch[key], np.float64).reshape(len(batch["obs"]), -1) for key in keys])
        rows.append(table[np.lexsort(table[:, :4].T[::-1])])
    count = min(map(len, rows))
    assert count >= 150 and not (rows[1][:, 2] >= 5).any(), "a final observation became a row"
    first = [{tuple(row[:7]) for row in table} for table in rows]
    assert len(first[0] & first[1]) >= 140


# Multi-agent: against what the env wrote down.


def gae_of(rows: list[dict[str, Any]], values: Any, gamma: float, lambda_: float) -> list[float]:
    """Advantages of one agent's rows in one fragment, the slow and obvious way."""
    advantages, following = [], 0.0
    for k in reversed(range(len(rows))):
        row: Row = rows[k]["row"]
        ends = row.terminated or row.truncated
        successor = 0.0 if row.terminated else values(row.next_obs)
        delta = row.reward + gamma * successor - values(row.obs)
        following = delta + (0.0 if ends or k == len(rows) - 1 else gamma * lambda_ * following)
        advantages.append(following)
    return advantages[::-1]


@pytest.mark.parametrize("batch_mode", ["truncate_episodes", "complete_episodes"])
@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6), p_observe=st.sampled_from([0.15, 0.6, 1.0]), p_end=st.sampled_from([0.0, 0.05, 0.4]),
    fragment=st.integers(1, 40), by_agent=st.booleans(),
)  # fmt: skip
def test_random_schedules_give_the_rows_that_were_written_down(
    batch_mode: str, seed: int, p_observe: float, p_end: float, fragment: int, by_agent: bool
) -> None:
    envs: dict[int, RandomSchedule] = {}

    def creator(context: Any) -> RandomSchedule:
        i = context.vector_index
        envs[i] = RandomSchedule(seed + 1000 * i, p_observe=p_observe, p_end=p_end)
        return envs[i]

    mapping = {f"agent{i}": ("even", "odd")[i % 2] for i in range(4)}
    worker = make_worker(
        creator, train_batch_size=2 * fragment, batch_mode=batch_mode, gamma=0.9, **{"lambda": 0.5},
        multiagent={
            "policies": ["even", "odd"], "policy_mapping_fn": mapping,
            "count_steps_by": "agent_steps" if by_agent else "env_steps",
        },
    )  # fmt: skip
    policies = worker.policy_map
    seen: dict[tuple[int, int, int], list[Row]] = {}  # env, episode, agent -> rows, over all fragments
    ended: dict[int, set[int]] = {0: set(), 1: set()}
    for _ in range(4):
        batch = worker.sample()
        assert isinstance(batch, MultiAgentBatch)
        if by_agent:
            assert batch.agent_steps() >= 2 * fragment
        elif batch_mode == "truncate_episodes":
            assert batch.count == 2 * fragment
        for policy_id, part in batch.policy_batches.items():
            check_part(part, policies[policy_id], policy_id, envs, mapping, seen)
    for metrics in worker.get_metrics():
        assert metrics.episode_reward == pytest.approx(sum(metrics.agent_rewards.values()))
    written = {(env, *where): rows for env, made in envs.items() for where, rows in made.rows.items()}
    for (env, episode, agent), rows in seen.items():
        expected = written[env, episode, f"agent{agent}"]
        assert rows == expected[: len(rows)], "the agent's rows, in order, none twice and none lost"
        finished = episode < envs[env].episode
        if finished:
            ended[env].add(episode)
            assert len(rows) == len(expected)
    for (env, episode, agent), expected in written.items():
        if episode in ended[env]:
            assert seen[env, episode, int(agent[-1])] == expected, "no agent of a finished episode is missing"
    worker.stop()


def check_part(
    part: SampleBatch, policy: Any, policy_id: str, envs: Any, mapping: dict[str, str], seen: dict[Any, list[Row]]
) -> None:
    config = policy.config

    def value(obs: float) -> float:
        return float(policy.values(np.array([[obs]], np.float32))[0])

    pieces: dict[Any, list[dict[str, Any]]] = {}
    written = {
        (env, row.obs): (episode, agent, row)
        for env, made in envs.items() for (episode, agent), rows in made.rows.items() for row in rows
    }  # fmt: skip
    for k in range(part.count):
        env = int(part["eps_id"][k]) % 2
        episode, agent, row = written[env, float(part["obs"][k, 0])]
        assert mapping[agent] == policy_id and int(part["eps_id"][k]) // 2 == episode
        assert int(part["actions"][k]) == row.action and float(part["rewards"][k]) == row.reward
        assert (bool(part["terminateds"][k]), bool(part["truncateds"][k])) == (row.terminated, row.truncated)
        pieces.setdefault((env, episode, int(agent[-1])), []).append({"row": row, "k": k})
    for where, rows in pieces.items():
        assert [entry["k"] for entry in rows] == list(range(rows[0]["k"], rows[0]["k"] + len(rows)))
        expected = gae_of(rows, value, config.gamma, config.lambda_)
        advantages = part["advantages"][rows[0]["k"] : rows[-1]["k"] + 1]
        np.testing.assert_allclose(advantages, expected, rtol=1e-4, atol=1e-4)
        seen.setdefault(where, []).extend(entry["row"] for entry in rows)
