"""Several agents and policies through a worker: who gets what reward, who learns, who is played by whom, what fails."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from headwater.callbacks import DefaultCallbacks
from headwater.config import PolicySpec
from headwater.errors import ConfigError, EnvError
from headwater.sampling.rollout_worker import RolloutWorker
from tests.envs.multi_agent_toys import ALTERNATING, UNEQUAL, Script
from tests.envs.pettingzoo_toys import Turns
from tests.envs.toys import ScriptEnv
from tests.sampling.test_base_env_sampler import make_worker


def worker_of(steps: list[Any], **changes: Any) -> RolloutWorker:
    changes = {"num_envs_per_worker": 1, "train_batch_size": len(steps) - 1, **changes}
    return make_worker(lambda context: Script(steps), **changes)


def per_agent(batch: Any, columns: list[str]) -> dict[int, list[tuple[Any, ...]]]:
    """Rows by agent index, of all policies."""
    found: dict[int, list[tuple[Any, ...]]] = {}
    for part in batch.policy_batches.values():
        for k in range(part.count):
            row = tuple(np.asarray(part[name][k]).ravel()[0].item() for name in columns)
            found.setdefault(int(part["agent_index"][k]), []).append(row)
    return found


def test_the_loser_of_a_turn_based_game_hears_of_it() -> None:
    worker = worker_of(ALTERNATING)
    batch = worker.sample()
    rows = per_agent(batch, ["obs", "rewards", "terminateds", "truncateds"])
    assert rows == {
        0: [(0, 0, False, False), (2, -1, True, False)],
        1: [(1, 0, False, False), (3, 1, True, False)],
    }
    [metrics] = worker.get_metrics()
    assert metrics.episode_reward == 0 and metrics.episode_length == 4
    assert metrics.agent_rewards == {("0", "default_policy"): -1, ("1", "default_policy"): 1}
    assert (batch.count, batch.agent_steps()) == (4, 4)


def test_unequal_turns_exactly() -> None:
    worker = worker_of(UNEQUAL, batch_mode="complete_episodes")
    batch = worker.sample()
    rows = per_agent(batch, ["obs", "t", "rewards", "terminateds", "truncateds"])
    assert rows == {
        0: [(0, 0, 1, False, False), (1, 1, 2, False, False), (2, 2, 3, False, False), (3, 3, 4, False, False),
            (4, 4, 5, False, True)],
        1: [(0, 0, 30, False, False), (3, 3, 70, False, True)],
        2: [(1, 1, 300, False, False), (3, 3, 300, True, False)],
    }  # fmt: skip
    assert (batch.count, batch.agent_steps()) == (5, 9)
    [metrics] = worker.get_metrics()
    paid = {("a", "default_policy"): 15, ("b", "default_policy"): 100, ("c", "default_policy"): 600}
    assert metrics.agent_rewards == paid and metrics.episode_reward == 715


@pytest.mark.parametrize("fragment", [1, 2, 3, 4, 7])
def test_fragments_cut_anywhere_give_the_same_rows(fragment: int) -> None:
    worker = worker_of(UNEQUAL, train_batch_size=fragment)
    columns = ["eps_id", "obs", "t", "rewards", "terminateds", "truncateds"]
    rows: dict[int, list[Any]] = {}
    for _ in range(40 // fragment):
        for agent, more in per_agent(worker.sample(), columns).items():
            rows.setdefault(agent, []).extend(more)
    whole = per_agent(worker_of(UNEQUAL, train_batch_size=35).sample(), columns)
    for agent, expected in whole.items():
        assert rows[agent][: len(expected)] == expected


def test_rewards_before_the_first_action_are_not_lost() -> None:
    steps = [
        (["a"], {}, {}, {}),
        (["a"], {"a": 1.0, "late": 5.0}, {}, {}),
        (["a", "late"], {"a": 1.0, "late": 6.0}, {}, {}),
        (["a", "late"], {"late": 7.0}, {}, {"__all__": True}),
    ]
    rows = per_agent(worker_of(steps).sample(), ["rewards"])
    assert rows == {0: [(1,), (1,), (0,)], 1: [(18,)]}


def test_cuts_bootstrap_from_the_agents_own_successor() -> None:
    """V is a line, so that advantages tell which observation was bootstrapped from."""
    worker = worker_of(UNEQUAL, train_batch_size=2, gamma=0.9, **{"lambda": 0.5})
    policy = worker.policy_map["default_policy"]
    policy.values = lambda obs, state=None: obs[:, 0] + 1  # type: ignore[method-assign]
    first = worker.sample()
    rows = per_agent(first, ["obs", "rewards", "advantages"])
    # a: observations 0, 1, then 2 is next; b waits, its row stays open; c waits too.
    delta_1 = 2 + 0.9 * 3 - 2
    assert rows[0] == [(0, 1, pytest.approx(1 + 0.9 * 2 - 1 + 0.45 * delta_1)), (1, 2, pytest.approx(delta_1))]
    assert set(rows) == {0}
    second = per_agent(worker.sample(), ["obs", "rewards", "advantages"])
    # b's open row of before closes at 3 with 30; its next one is open at the fragment's end.
    assert second[1] == [(0, 30, pytest.approx(30 + 0.9 * 4 - 1))]
    delta = 300 + 0.0 - 4
    assert second[2] == [(1, 300, pytest.approx(300 + 0.9 * 4 - 2 + 0.45 * delta)), (3, 300, pytest.approx(delta))]


def test_policies_by_table_by_function_and_by_name() -> None:
    table = {"a": "fast", "b": "slow", "c": "slow"}
    asked: list[tuple[Any, Any]] = []

    def function(agent_id: Any, episode: Any, worker: Any, **kwargs: Any) -> str:
        asked.append((agent_id, None if episode is None else episode.episode_id))
        return table[agent_id]

    for mapping in (table, function, lambda agent_id: table[agent_id], lambda agent_id, **kwargs: table[agent_id]):
        worker = worker_of(UNEQUAL, multiagent={"policies": ["slow", "fast"], "policy_mapping_fn": mapping},
                           batch_mode="complete_episodes")  # fmt: skip
        batch = worker.sample()
        counts = {policy_id: part.count for policy_id, part in batch.policy_batches.items()}
        assert counts == {"fast": 5, "slow": 4}
    assert [pair for pair in asked if pair[1] is not None] == [("a", 0), ("b", 0), ("c", 0)], (
        "once per agent and episode"
    )
    worker = worker_of(UNEQUAL, multiagent={"policies": ["a", "b", "c"]})
    assert sorted(worker.sample().policy_batches) == ["a", "b", "c"]


def test_a_mapping_may_change_from_episode_to_episode() -> None:
    def mapping(agent_id: str, episode: Any, **kwargs: Any) -> str:
        return "even" if episode is None or (episode.episode_id + int(agent_id)) % 2 == 0 else "odd"

    worker = worker_of(
        ALTERNATING, train_batch_size=16, multiagent={"policies": ["even", "odd"], "policy_mapping_fn": mapping}
    )
    batch = worker.sample()
    assert {policy_id: part.count for policy_id, part in batch.policy_batches.items()} == {"even": 8, "odd": 8}
    for policy_id, part in batch.policy_batches.items():
        players = (part["eps_id"] + part["agent_index"]) % 2
        assert (players == (0 if policy_id == "even" else 1)).all()
        assert part["rewards"].sum() == 0


def test_policies_have_their_own_settings_and_weights() -> None:
    worker = worker_of(UNEQUAL, multiagent={
        "policies": {"a": None, "b": PolicySpec(config={"gamma": 0.5, "model": {"fcnet_hiddens": [8]}}), "c": None},
        "policies_to_train": ["a", "b"],
    })  # fmt: skip
    gammas = {policy_id: policy.config.gamma for policy_id, policy in worker.policy_map.items()}
    assert gammas == {"a": 0.99, "b": 0.5, "c": 0.99}
    weights = worker.get_weights()
    first = {policy_id: next(iter(w.values())) for policy_id, w in weights.items()}
    assert first["b"].shape != first["a"].shape and not np.array_equal(first["a"], first["c"])
    batch = worker.sample()
    info = worker.learn_on_batch(batch)
    assert sorted(info) == ["a", "b"]
    after = worker.get_weights()
    assert all(np.array_equal(after["c"][name], weights["c"][name]) for name in weights["c"])
    assert not all(np.array_equal(after["a"][name], weights["a"][name]) for name in weights["a"])


def test_observation_fn_sees_all_and_changes_what_is_seen() -> None:
    def with_number(
        agent_obs: dict[str, Any], worker: Any, base_env: Any, policies: Any, episode: Any
    ) -> dict[str, Any]:
        return {agent: np.array([obs[0], len(agent_obs)], np.float32) for agent, obs in agent_obs.items()}

    spec = PolicySpec(observation_space=spaces.Box(-1e6, 1e6, (2,), np.float32))
    settings = {"policies": {"default_policy": spec}, "observation_fn": with_number}
    batch = worker_of(UNEQUAL, multiagent=settings).sample()
    obs = batch.policy_batches["default_policy"]["obs"]
    assert obs.shape[1] == 2 and set(obs[:, 1]) == {1.0, 2.0, 3.0}


def test_callbacks_see_the_episode() -> None:
    seen: list[Any] = []

    class Watch(DefaultCallbacks):
        def on_episode_start(self, *, episode: Any, **kwargs: Any) -> None:
            episode.user_data["steps"] = 0

        def on_episode_step(self, *, episode: Any, **kwargs: Any) -> None:
            episode.user_data["steps"] += 1
            seen.append((episode.last_reward_for("1"), episode.last_action_for("0") is not None))

        def on_episode_end(self, *, episode: Any, policies: Any, **kwargs: Any) -> None:
            episode.custom_metrics["steps"] = episode.user_data["steps"]
            assert episode.policy_for("0") == "default_policy" and episode.length == 4
            assert episode.agent_rewards[("1", "default_policy")] == 1

        def on_postprocess_trajectory(self, *, agent_id: Any, postprocessed_batch: Any, **kwargs: Any) -> None:
            assert set(postprocessed_batch["agent_index"]) == {agent_id}

    worker = worker_of(ALTERNATING, callbacks=Watch)
    worker.sample()
    [metrics] = worker.get_metrics()
    assert metrics.custom_metrics == {"steps": 4} and seen[-1] == (1.0, True)


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ([(["a"], {}, {}, {}), (["a"], {"a": float("nan")}, {}, {})], "agent 'a': the reward is nan"),
        ([(["a"], {}, {}, {}), (["a"], {"a": float("inf")}, {}, {})], "agent 'a': the reward is inf"),
        (
            [(["a", "b"], {}, {}, {}), (["b"], {}, {"a": True}, {}), (["a", "b"], {}, {}, {})],
            "'a' observed after its end",
        ),
        (
            [(["a", "b"], {}, {}, {}), (["b"], {}, {"a": True}, {}), (["b"], {"a": 1.0}, {}, {})],
            "'a' was paid 1.0 after",
        ),
        (
            [(["a", "b"], {}, {}, {}), (["b"], {}, {}, {"__all__": True})],
            "'a' was truncated without a final observation",
        ),
    ],
)
def test_broken_rules_name_env_agent_and_step(steps: list[Any], message: str) -> None:
    with pytest.raises(EnvError, match=rf"sub-env 0, step {len(steps) - 1} of its episode.*{message}"):
        worker_of(steps).sample()


class Misshapen(Script):
    """The second observation of agent "b" is wrong."""

    def __init__(self, wrong: Any, faults: int = 10**9) -> None:
        super().__init__(
            [(["a", "b"], {}, {}, {})]
            + [(["a", "b"], {"a": 1.0, "b": 1.0}, {}, {})] * 3
            + [(["a", "b"], {}, {"__all__": True}, {})]
        )
        self.wrong, self.faults = wrong, faults

    def _obs(self) -> dict[str, Any]:
        obs = super()._obs()
        if self.t == 2 and self.faults > 0:
            self.faults -= 1
            obs["b"] = self.wrong
        return obs


WRONG = [
    np.array([np.nan], np.float32), np.array([np.inf], np.float32), np.zeros(2, np.float32),
    np.array([2e6], np.float32), "text", None,
]  # fmt: skip


@pytest.mark.parametrize("wrong", WRONG, ids=repr)
def test_bad_observations_are_refused_or_dropped(wrong: Any) -> None:
    with pytest.raises(EnvError, match="sub-env 0, step 2 of its episode.*agent 'b'"):
        changes = {"num_envs_per_worker": 1, "check_env_steps": True}
        make_worker(lambda context: Misshapen(wrong), train_batch_size=8, **changes).sample()
    worker = make_worker(
        lambda context: Misshapen(wrong, faults=1), num_envs_per_worker=1, train_batch_size=8, on_bad_values="reset",
        check_env_steps=True, observation_filter="MeanStdFilter",
    )  # fmt: skip
    batch = worker.sample()
    assert worker.num_env_faults == 1 and batch.count == 8
    part = batch.policy_batches["default_policy"]
    assert np.isfinite(part["obs"]).all() and np.isfinite(part["advantages"]).all()
    assert len(set(part["eps_id"])) == 2 and 0 not in part["eps_id"], "nothing of the lost episode is learned from"
    assert all(metrics.episode_length == 4 for metrics in worker.get_metrics())
    assert np.isfinite(worker.filters["default_policy"](np.zeros((1, 1), np.float32), update=False)).all()


class Raises(Script):
    """Raises at its third step, each time a copy gets there, `times` times in all."""

    left = 0

    def step(self, actions: dict[str, Any]) -> Any:
        if self.t == 2 and Raises.left > 0:
            Raises.left -= 1
            raise ZeroDivisionError("the simulator broke")
        return super().step(actions)


def test_an_env_that_raises() -> None:
    steps = Misshapen(None, 0).steps
    Raises.left = 1
    with pytest.raises(
        EnvError, match=r"sub-env 0, step 3 .*step\(\) raised ZeroDivisionError: the simulator broke"
    ) as caught:
        make_worker(lambda context: Raises(steps), train_batch_size=16).sample()
    assert isinstance(caught.value.__cause__, ZeroDivisionError)
    Raises.left = 2
    worker = make_worker(lambda context: Raises(steps), train_batch_size=16, on_env_error="reset")
    batch = worker.sample()
    assert worker.num_env_faults == 2 and batch.count >= 16
    whole = [metrics.episode_length for metrics in worker.get_metrics()]
    assert set(whole) == {4}
    Raises.left = 10**6
    worker = make_worker(
        lambda context: Raises(steps), train_batch_size=16, on_env_error="reset", max_env_errors_in_a_row=2
    )
    with pytest.raises(EnvError, match="Gave up after 3 faults in a row"):
        worker.sample()


def test_an_env_that_hangs_is_told_of(caplog: pytest.LogCaptureFixture) -> None:
    import threading

    told = threading.Event()

    class Waits(Script):
        def step(self, actions: dict[str, Any]) -> Any:
            if not told.is_set():
                assert told.wait(20), "nobody warned"
            return super().step(actions)

    import logging

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if (
                "Waits" in record.getMessage()
                or "has not come back" in record.getMessage()
                or "hang" in record.getMessage()
            ):
                told.set()

    listener = Listener()
    logger = logging.getLogger("headwater.envs.hang_watchdog")
    logger.addHandler(listener)
    try:
        make_worker(lambda context: Waits(ALTERNATING), train_batch_size=8, env_hang_warn_s=0.2).sample()
    finally:
        logger.removeHandler(listener)
    assert told.is_set()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ("four", "1.x line's `dones` are split now"),
        ("no all", "no '__all__' in terminateds or truncateds"),
        ("none", "step.. must return five dicts.*NoneType"),
    ],
)
def test_what_step_must_return(returned: str, message: str) -> None:
    class Wrong(Script):
        def step(self, actions: dict[str, Any]) -> Any:
            five = super().step(actions)
            return {"four": five[:4], "no all": (*five[:2], {}, {}, {}), "none": None}[returned]

    with pytest.raises(EnvError, match=message):
        make_worker(lambda context: Wrong(ALTERNATING), train_batch_size=8).sample()


def test_what_reset_must_return() -> None:
    class Old(Script):
        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            return super().reset(seed=seed)[0]

    with pytest.raises(EnvError, match="at reset.*expected .observation, info."):
        make_worker(lambda context: Old(ALTERNATING), train_batch_size=8).sample()


def test_settings_that_cannot_work() -> None:
    with pytest.raises(ConfigError, match="env .* has a single agent"):
        make_worker(lambda context: ScriptEnv(), multiagent={"policies": ["a", "b"]})
    with pytest.raises(ConfigError, match="gave 'nobody' for agent 'a'.*the policies are x, y"):
        worker_of(UNEQUAL, multiagent={"policies": ["x", "y"], "policy_mapping_fn": lambda agent_id: "nobody"}).sample()
    with pytest.raises(ConfigError, match="names z, but the policies are x"):
        worker_of(UNEQUAL, multiagent={"policies": ["x"], "policies_to_train": ["z"]}).config.check()
    with pytest.raises(ConfigError, match="framework cannot differ between policies"):
        worker_of(UNEQUAL, multiagent={"policies": {"x": PolicySpec(config={"framework": "jax"})}})
    with pytest.raises(ConfigError, match="no entry for agent 'b'; it has a"):
        worker_of(UNEQUAL, multiagent={"policies": ["x"], "policy_mapping_fn": {"a": "x"}}).sample()
    with pytest.raises(ConfigError, match="'async' gives single Gymnasium envs"):
        worker_of(UNEQUAL, vectorization="async")


class TwoKinds(Script):
    """Agents "a" and "c" see one number, "b" sees two."""

    def __init__(self) -> None:
        super().__init__(UNEQUAL)
        self.observation_spaces = {
            "a": self.observation_space, "c": self.observation_space, "b": spaces.Box(-9, 9, (2,), np.float32)
        }  # fmt: skip

    def _obs(self) -> dict[str, Any]:
        obs = super()._obs()
        return {agent: np.repeat(value, 2) if agent == "b" else value for agent, value in obs.items()}


def test_agents_of_different_spaces() -> None:
    with pytest.raises(ConfigError, match="'a' and 'b' of env .* different observation spaces"):
        make_worker(lambda context: TwoKinds(), num_envs_per_worker=1)
    table = {"a": "one", "b": "two", "c": "one"}
    settings = {"policies": ["one", "two"], "policy_mapping_fn": table}
    batch = make_worker(lambda context: TwoKinds(), train_batch_size=20, multiagent=settings).sample()
    assert batch.policy_batches["one"]["obs"].shape[1] == 1 and batch.policy_batches["two"]["obs"].shape[1] == 2
    wrong = {
        "policies": ["one", "two"],
        "policy_mapping_fn": lambda agent_id, episode: "one" if episode else table[agent_id],
    }
    with pytest.raises(ConfigError, match="agent 'b' has the observation space"):
        make_worker(lambda context: TwoKinds(), train_batch_size=20, multiagent=wrong).sample()


def test_seeds_reach_each_env_and_reproduce() -> None:
    seeds: list[list[int | None]] = []
    actions: list[Any] = []
    for _ in range(2):
        worker = make_worker(lambda context: Script(ALTERNATING), num_envs_per_worker=3, train_batch_size=24)
        batches = [worker.sample() for _ in range(2)]
        seeds.append([env.seeds[0] for env in worker.env.envs])
        actions.append(np.concatenate([batch.policy_batches["default_policy"]["actions"] for batch in batches]))
    assert np.array_equal(*actions)
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 3


def test_exactly_as_many_episodes_as_asked_for() -> None:
    worker = make_worker(lambda context: Script(ALTERNATING), num_envs_per_worker=3, train_batch_size=24)
    worker.sample()
    worker.sampler.restart(1)
    metrics = worker.sample_episodes(5)
    assert len(metrics) == 5 and all(m.episode_length == 4 for m in metrics)


def test_a_horizon_truncates_all_agents() -> None:
    worker = worker_of(UNEQUAL, horizon=2, train_batch_size=10)
    batch = worker.sample()
    part = batch.policy_batches["default_policy"]
    assert part["truncateds"].sum() == 15 and not part["terminateds"].any()
    assert {metrics.episode_length for metrics in worker.get_metrics()} == {2}


def test_a_pettingzoo_game_of_three_gives_these_rows() -> None:
    """Turns a, b, a, c, a, c; b ends at the fourth, a and c are cut at the last."""
    turns = [
        ("a", {"b": 1.0}, {}), ("b", {}, {}), ("a", {"a": 2.0, "b": 3.0, "c": 4.0}, {}),
        ("c", {"b": 5.0}, {"b": "terminated"}), ("a", {"c": 6.0}, {}),
        ("c", {"a": 7.0}, {"a": "truncated", "c": "truncated"}),
    ]  # fmt: skip
    worker = make_worker(
        lambda context: Turns(turns), num_envs_per_worker=1, train_batch_size=6, gamma=1.0, **{"lambda": 1.0}
    )
    worker.policy_map["default_policy"].values = lambda obs, state=None: obs[:, 0]  # type: ignore[method-assign]
    batch = worker.sample()
    assert (batch.count, batch.agent_steps()) == (6, 6)
    part = batch.policy_batches["default_policy"]
    found: dict[int, list[Any]] = {}
    for k in range(part.count):
        row = (
            *part["obs"][k].tolist(),
            float(part["rewards"][k]),
            bool(part["terminateds"][k]),
            bool(part["truncateds"][k]),
        )
        found.setdefault(int(part["obs"][k, 1]), []).append((*row, round(float(part["value_targets"][k]), 4)))
    # A row is (turn, player, reward, terminated, truncated, value target); V is the turn's number.
    assert found == {
        0: [(0, 0, 0.0, False, False, 15.0), (2, 0, 2.0, False, False, 15.0), (4, 0, 7.0, False, True, 13.0)],
        1: [(1, 1, 9.0, True, False, 9.0)],  # 1 before its first turn, 3 and 5 after it
        2: [(3, 2, 6.0 + 4.0, False, False, 16.0), (5, 2, 0.0, False, True, 6.0)],
    }  # fmt: skip
    [metrics] = worker.get_metrics()
    assert {agent: reward for (agent, _), reward in metrics.agent_rewards.items()} == {"a": 9.0, "b": 9.0, "c": 10.0}
