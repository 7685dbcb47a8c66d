"""MultiAgentEnv: agents in groups; and the adapters' own rules."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from headwater.envs.adapters import _MultiAgentEnvToBaseEnv, _VectorEnvToBaseEnv, to_base_env
from headwater.envs.base_env import AGENT_ID, LostEpisode
from headwater.envs.gymnasium_copies import CopiesVectorEnv
from headwater.envs.multi_agent_env import MultiAgentEnv
from headwater.errors import ConfigError, EnvError
from tests.envs.multi_agent_toys import ALTERNATING, UNEQUAL, Script
from tests.envs.toys import ScriptEnv, make_config
from tests.sampling.test_base_env_sampler import make_worker

TEAM = [
    (["a", "b", "c"], {}, {}, {}),
    (["a", "b", "c"], {"a": 1.0, "b": 2.0, "c": 4.0}, {}, {}),
    (["b", "c"], {"a": 1.0, "b": 2.0}, {"a": True}, {}),
    (["c"], {"b": 2.0, "c": 4.0}, {"b": True}, {}),
    (["c"], {"c": 8.0}, {}, {"__all__": True}),
]


def test_a_group_acts_as_one() -> None:
    inner = Script(TEAM)
    env = inner.with_agent_groups({"team": ["b", "a"]})
    assert env.possible_agents == ["team", "c"]
    assert env.get_observation_space("team") == spaces.Tuple([inner.observation_space] * 2)
    assert env.get_action_space("team") == spaces.Tuple([inner.action_space] * 2)
    obs, _ = env.reset()
    assert set(obs) == {"team", "c"} and [float(part[0]) for part in obs["team"]] == [0, 0]
    obs, rewards, terminateds, _, infos = env.step({"team": (5, 6), "c": 7})
    assert inner.taken[-1] == {"b": 5, "a": 6, "c": 7} and rewards == {"team": 3.0, "c": 4.0}
    assert infos["team"]["individual_rewards"] == {"a": 1.0, "b": 2.0} and not terminateds.get("team")
    obs, rewards, terminateds, _, _ = env.step({"team": (1, 2), "c": 3})
    assert [float(part[0]) for part in obs["team"]] == [2, 1], "a has ended and keeps its last observation"
    assert not terminateds.get("team")
    obs, _, terminateds, truncateds, _ = env.step({"team": (1, 9), "c": 3})
    assert inner.taken[-1] == {"b": 1, "c": 3}, "nobody acts for who has ended"
    assert terminateds["team"] and not truncateds.get("team")
    obs, _, _, truncateds, _ = env.step({"c": 0})
    assert truncateds["__all__"] and set(obs) == {"c"}


def test_a_group_trains() -> None:
    settings = {"policies": ["team", "c"]}
    worker = make_worker(
        lambda context: Script(TEAM[:2] + TEAM[-1:]).with_agent_groups({"team": ["a", "b"]}), num_envs_per_worker=1,
        train_batch_size=8, multiagent=settings,
    )  # fmt: skip
    batch = worker.sample()
    assert batch.policy_batches["team"]["actions"].shape == (8, 2)
    assert batch.policy_batches["team"]["rewards"].tolist() == [3.0, 0.0] * 4
    assert sorted(worker.learn_on_batch(batch)) == ["c", "team"]


def test_what_groups_cannot_be() -> None:
    with pytest.raises(EnvError, match="an agent is in two groups"):
        Script(TEAM).with_agent_groups({"x": ["a", "b"], "y": ["b", "c"]})
    env = Script(ALTERNATING).with_agent_groups({"both": ["0", "1"]})
    with pytest.raises(EnvError, match="Group 'both': its members .'1'. have not observed"):
        env.reset()


def test_spaces_by_agent_or_for_all() -> None:
    class Nothing(Script):
        observation_space = None

    with pytest.raises(EnvError, match="'Nothing' has no observation space: set observation_space"):
        Nothing(TEAM).get_observation_space("a")
    env = Script(TEAM)
    env.action_spaces = {"a": spaces.Discrete(3)}
    assert env.get_action_space("a") == spaces.Discrete(3)
    with pytest.raises(EnvError, match="agent 'b' appeared, but action_spaces has a"):
        env.get_action_space("b")


def base_env_of(steps: list[Any] = UNEQUAL, num_envs: int = 2, **settings: Any) -> Any:
    config = make_config(**settings)
    return to_base_env(Script(steps), lambda index: Script(steps), num_envs, env_id="Toy", config=config)


def test_polls_hand_out_what_came_once() -> None:
    env = base_env_of()
    assert isinstance(env, _MultiAgentEnvToBaseEnv) and env.possible_agents == ["a", "b", "c"]
    env.start_episodes([11, 12])
    assert [copy.seeds for copy in env.envs] == [[11], [12]]
    poll = env.poll()
    assert {i: sorted(obs) for i, obs in poll.obs.items()} == {0: ["a", "b"], 1: ["a", "b"]}
    assert poll.rewards == {0: {}, 1: {}} and not env.poll().obs
    env.send_actions({1: {"a": 1, "b": 2}})
    poll = env.poll()
    assert list(poll.obs) == [1] and poll.rewards[1] == {"a": 1.0, "b": 10.0}
    assert poll.terminateds[1]["__all__"] is False
    for _ in range(4):
        env.send_actions({1: {}})
        poll = env.poll()
    assert poll.truncateds[1]["__all__"]
    with pytest.raises(EnvError, match="actions came for sub-env 1, whose episode has ended"):
        env.send_actions({1: {}})
    assert sorted(env.try_reset(1)) == ["a", "b"]
    env.stop()


def test_a_lost_episode_is_told_before_the_next_begins() -> None:
    class Breaks(Script):
        broken = False

        def step(self, actions: Any) -> Any:
            if not Breaks.broken:
                Breaks.broken = True
                raise OSError("gone")
            return super().step(actions)

    config = make_config(on_env_error="reset")
    env = to_base_env(Breaks(UNEQUAL), lambda index: Breaks(UNEQUAL), 2, env_id="Toy", config=config)
    env.start_episodes([1, 2])
    env.poll()
    env.send_actions({0: {"a": 0}, 1: {"a": 0}})
    poll = env.poll()
    assert isinstance(poll.obs[0], LostEpisode) and "gone" in poll.obs[0].reason and sorted(poll.obs[1]) == ["a", "c"]
    env.send_actions({1: {"a": 0, "c": 0}})
    poll = env.poll()
    assert sorted(poll.obs[0]) == ["a", "b"] and poll.rewards[0] == {} and env.num_faults == 1
    assert env.envs[0].seeds[0] not in (None, 1), "the new copy has a seed of its own"


def test_a_vector_env_as_a_base_env() -> None:
    copies = CopiesVectorEnv(lambda i: ScriptEnv(i, [2], ["truncated"]), 2, "Toy", make_config())
    env = to_base_env(copies)
    assert isinstance(env, _VectorEnvToBaseEnv) and not env.is_multi_agent and env.get_unwrapped() == copies.envs
    env.start_episodes([1, 2])
    assert sorted(env.poll().obs) == [0, 1]
    env.send_actions({0: {AGENT_ID: 3}, 1: {AGENT_ID: 4}})
    poll = env.poll()
    assert [poll.rewards[i][AGENT_ID] for i in range(2)] == [3.0, 4.0]
    env.send_actions({0: {AGENT_ID: 3}, 1: {AGENT_ID: 4}})
    poll = env.poll()
    assert poll.truncateds[0]["__all__"] and float(poll.obs[0][AGENT_ID][2]) == 2
    assert float(env.try_reset(0)[AGENT_ID][2]) == 0
    env.send_actions({0: {AGENT_ID: 1}})
    assert list(env.poll().obs) == [0], "an env that nobody asked to begin is left alone"
    env.stop()


def test_to_base_env_of_all_kinds() -> None:
    inner = base_env_of()
    assert to_base_env(inner) is inner
    single = to_base_env(gym.make("CartPole-v1"), config=make_config())
    assert isinstance(single, _VectorEnvToBaseEnv) and single.num_envs == 1
    single.stop()
    with pytest.raises(ConfigError, match="2 envs of 'env' need make_env"):
        to_base_env(Script(UNEQUAL), num_envs=2)


def test_the_doc_example_is_a_whole_env() -> None:
    class Alone(MultiAgentEnv):
        observation_space = spaces.Box(0, 9, (1,), np.float32)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            self.t = 0
            return {"me": np.zeros(1, np.float32)}, {}

        def step(self, actions: Any) -> Any:
            self.t += 1
            return {"me": np.full(1, self.t, np.float32)}, {"me": 1.0}, {"__all__": self.t == 3}, {}, {}

    batch = make_worker(lambda context: Alone(), num_envs_per_worker=1, train_batch_size=6).sample()
    assert batch.policy_batches["default_policy"]["obs"][:, 0].tolist() == [0, 1, 2] * 2
