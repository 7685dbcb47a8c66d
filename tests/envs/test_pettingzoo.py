from __future__ import annotations

import importlib
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from headwater.envs.adapters import make_env
from headwater.envs.base_env import ALL_DONE, BaseEnv
from headwater.envs.env_context import EnvContext
from headwater.envs.pettingzoo import (
    PettingZooAEC,
    PettingZooParallel,
    from_pettingzoo,
    is_pettingzoo,
    make_pettingzoo,
)
from headwater.errors import EnvError
from headwater.registry import env_creator_for
from tests.envs.toys import make_config

pytest.importorskip("pettingzoo")
pytest.importorskip("mpe2")
from tests.envs.pettingzoo_toys import Crowd, Guess, Turns  # noqa: E402

PISTONS = {"n_pistons": 4, "max_cycles": 6}


def choice(space: spaces.Space, obs: Any, rng: np.random.Generator) -> Any:
    if isinstance(obs, dict):
        return int(rng.choice(np.flatnonzero(obs["action_mask"])))
    return int(rng.integers(space.n)) if isinstance(space, spaces.Discrete) else space.sample()


def flags_of(parts: dict[Any, bool]) -> set[Any]:
    return {agent for agent, flag in parts.items() if flag and agent != ALL_DONE}


# Parallel envs.


def played(env: Any, seed: int) -> tuple[Counter[str], dict[str, tuple[str, int]]]:
    """A random game: what each was paid, and how it ended in which step."""
    rng = np.random.default_rng(seed)
    obs, _ = env.reset(seed=seed)
    paid: Counter[str] = Counter()
    ends: dict[str, tuple[str, int]] = {}
    for step in range(1, 1000):
        acting = [agent for agent in obs if agent not in ends]
        obs, rewards, terminateds, truncateds, infos = env.step(
            {agent: choice(env.get_action_space(agent), obs[agent], rng) for agent in acting}
        )
        assert set(obs) == set(acting)  # no more, and final ones
        assert set(infos) == set(obs)
        paid.update(rewards)
        for kind, flags in (("terminated", terminateds), ("truncated", truncateds)):
            for agent in flags_of(flags):
                assert agent in obs and agent not in ends
                ends[agent] = (kind, step)
        if terminateds[ALL_DONE] or truncateds[ALL_DONE]:
            return paid, ends
    raise AssertionError("no end")


@pytest.mark.parametrize(("name", "kwargs"), [("mpe/simple_spread_v3", {"max_cycles": 7}), ("pistonball_v6", PISTONS)])
def test_parallel_envs_are_cut_at_max_cycles(name: str, kwargs: dict[str, Any]) -> None:
    env = make_pettingzoo(name, **kwargs)
    assert isinstance(env, PettingZooParallel)
    _, ends = played(env, 3)
    assert ends == dict.fromkeys(env.possible_agents or [], ("truncated", kwargs["max_cycles"]))
    obs, _ = env.reset(seed=3)
    for agent in env.possible_agents or []:
        assert env.get_observation_space(agent).contains(obs[agent])
    env.close()


def test_parallel_rewards_are_the_envs_own() -> None:
    module = importlib.import_module("mpe2.simple_spread_v3")
    raw = module.parallel_env(max_cycles=9)
    rng = np.random.default_rng(5)
    obs, _ = raw.reset(seed=5)
    own: Counter[str] = Counter()
    while raw.agents:
        obs, rewards, *_ = raw.step({a: choice(raw.action_space(a), obs[a], rng) for a in obs})
        own.update(rewards)
    env = PettingZooParallel(module.parallel_env(max_cycles=9))
    assert played(env, 5)[0] == own
    assert env.unwrapped is not env and env.possible_agents == ["agent_0", "agent_1", "agent_2"]


def test_seeds_repeat_episodes() -> None:
    env = make_pettingzoo("simple_spread_v3")
    first, again, other = (env.reset(seed=seed)[0]["agent_0"] for seed in (1, 1, 2))
    assert (first == again).all() and (first != other).any()


def test_agents_that_die_leave() -> None:
    env = make_pettingzoo("knights_archers_zombies_v11", line_death=True)
    _, ends = played(env, 0)
    assert set(ends) == set(env.possible_agents or [])
    assert len({step for _, step in ends.values()}) > 1 and {kind for kind, _ in ends.values()} == {"terminated"}
    env.close()


def test_agents_come_and_go() -> None:
    script = [
        {"a": "", "b": "terminated"},
        {"a": "truncated", "c": ""},
        {"c": "terminated", "d": ""},
        {"d": "truncated"},
    ]
    env = PettingZooParallel(Crowd(script))
    assert set(env.reset()[0]) == {"a", "b"}
    expected = [({"b"}, set()), (set(), {"a"}), ({"c"}, set()), (set(), {"d"})]
    acting = {"a", "b"}
    for step, (terminated, truncated) in enumerate(expected):
        obs, rewards, terminateds, truncateds, _ = env.step(dict.fromkeys(acting, 0))
        assert (flags_of(terminateds), flags_of(truncateds)) == (terminated, truncated)
        assert rewards == dict.fromkeys(acting, 1.0)
        coming = set(script[step + 1]) if step < 3 else set()
        assert set(obs) == acting | coming
        acting = coming
    assert (terminateds[ALL_DONE], truncateds[ALL_DONE]) == (False, True)


def test_ends_are_told_once_though_the_env_repeats_them() -> None:
    env = PettingZooParallel(Crowd([{"a": "", "b": "terminated"}, {"a": ""}, {"a": "truncated"}], haunted=True))
    env.reset()
    told = []
    for acting in ("ab", "a", "a"):
        obs, _, terminateds, truncateds, _ = env.step(dict.fromkeys(acting, 0))
        told.append((set(obs), flags_of(terminateds), flags_of(truncateds)))
    assert told[:2] == [({"a", "b"}, {"b"}, set()), ({"a"}, set(), set())]
    assert terminateds[ALL_DONE] or truncateds[ALL_DONE]


# Envs of turns.


def own_game(env: Any, seed: int) -> tuple[list[tuple[str, Any]], Counter[str], dict[str, str]]:
    """A random game as PettingZoo's own loop plays it: the moves, what each was paid, how it ended."""
    rng = np.random.default_rng(seed)
    env.reset(seed=seed)
    moves, paid, ends = [], Counter[str](), {}
    for agent in env.agent_iter():
        obs, reward, terminated, truncated, _ = env.last()
        paid[agent] += reward
        if terminated or truncated:
            ends[agent] = "terminated" if terminated else "truncated"
            env.step(None)
        else:
            moves.append((agent, choice(env.action_space(agent), obs, rng)))
            env.step(moves[-1][1])
    return moves, paid, ends


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(
    ("path", "kwargs"),
    [
        ("pettingzoo.classic.tictactoe_v3", {}),
        ("pettingzoo.classic.connect_four_v3", {}),
        ("pettingzoo.classic.rps_v2", {"max_cycles": 5}),
        ("mpe2.simple_spread_v3", {"max_cycles": 5}),
        ("mpe2.simple_tag_v3", {"max_cycles": 5}),
        ("pettingzoo.butterfly.knights_archers_zombies_v11", {"line_death": True}),
        ("pettingzoo.butterfly.pistonball_v6", PISTONS),
        ("pettingzoo.sisl.multiwalker_v9", {"max_cycles": 40}),
    ],
)
def test_a_game_by_turns_pays_and_ends_as_pettingzoos_own_loop(path: str, kwargs: dict[str, Any], seed: int) -> None:
    pytest.importorskip("Box2D") if "multiwalker" in path else None
    moves, own_paid, own_ends = own_game(importlib.import_module(path).env(**kwargs), seed)
    env = from_pettingzoo(importlib.import_module(path).env(**kwargs))
    assert isinstance(env, PettingZooAEC)
    obs, _ = env.reset(seed=seed)
    paid, ends = Counter[str](), {}
    for number, (agent, action) in enumerate(moves):
        live = [each for each in obs if each not in ends]
        assert live == [agent]
        assert {each for each in env.unwrapped.agents} == set(env.possible_agents or []) - set(ends)
        space = env.get_observation_space(agent)
        assert "knights" in path or space.contains(obs[agent])
        obs, rewards, terminateds, truncateds, infos = env.step({agent: action})
        paid.update(rewards)
        for kind, flags in (("terminated", terminateds), ("truncated", truncateds)):
            for each in flags_of(flags):
                assert obs[each] is not None and each in infos and each not in ends
                ends[each] = kind
        over = terminateds[ALL_DONE] or truncateds[ALL_DONE]
        assert over == (number == len(moves) - 1)
    assert ends == own_ends
    assert {a: pytest.approx(own_paid[a]) for a in own_paid} == {a: paid[a] for a in own_paid}
    env.close()


def test_an_illegal_move_ends_the_game_for_both() -> None:
    env = make_pettingzoo("tictactoe_v3")
    env.reset()
    env.step({"player_1": 4})
    obs, rewards, terminateds, truncateds, _ = env.step({"player_2": 4})
    assert rewards == {"player_2": -1.0}
    assert set(obs) == flags_of(terminateds) == {"player_1", "player_2"}
    assert (terminateds[ALL_DONE], truncateds[ALL_DONE]) == (True, False)


def test_three_players_with_unequal_turns() -> None:
    turns = [
        ("a", {"b": 1.0}, {}),
        ("b", {}, {}),
        ("a", {"a": 2.0, "b": 3.0, "c": 4.0}, {}),
        ("c", {"b": 5.0}, {"b": "terminated"}),
        ("a", {"c": 6.0}, {}),
        ("c", {"a": 7.0}, {"a": "truncated", "c": "truncated"}),
    ]
    raw = Turns(turns)
    env = PettingZooAEC(raw)
    obs, _ = env.reset(seed=11)
    assert raw.seeds == [11] and {a: o.tolist() for a, o in obs.items()} == {"a": [0, 0]}
    told = []
    for number, (agent, *_) in enumerate(turns):
        obs, rewards, terminateds, truncateds, infos = env.step({agent: number})
        assert set(infos) == set(obs)
        told.append(({a: o.tolist() for a, o in obs.items()}, rewards, terminateds, truncateds))
    on = {ALL_DONE: False}
    assert told == [
        ({"b": [1, 1]}, {"b": 1.0}, on, on),
        ({"a": [2, 0]}, {}, on, on),
        ({"c": [3, 2]}, {"a": 2.0, "b": 3.0, "c": 4.0}, on, on),
        ({"b": [4, 1], "a": [4, 0]}, {"b": 5.0}, {"b": True, **on}, on),
        ({"c": [5, 2]}, {"c": 6.0}, on, on),
        ({"a": [6, 0], "c": [6, 2]}, {"a": 7.0}, on, {"a": True, "c": True, ALL_DONE: True}),
    ]
    assert raw.taken == [
        ("a", 0),
        ("b", 1),
        ("a", 2),
        ("c", 3),
        ("b", None),
        ("a", 4),
        ("c", 5),
        ("a", None),
        ("c", None),
    ]


def test_who_ended_is_paid_until_its_last_step_is_due() -> None:
    """b ends at the first turn, but leaves after the second, which pays it; its leaving pays the others."""
    turns = [
        ("a", {}, {"b": "terminated"}),
        ("c", {"b": 5.0}, {}),
        ("a", {"a": 1.0}, {"a": "terminated"}),
        ("c", {}, {}),
    ]
    raw = Turns(turns, dead_at={"b": 2}, dead_pay=0.5)
    raw.possible_agents = ["a", "b", "c"]
    env = PettingZooAEC(raw)
    env.reset()
    obs, rewards, terminateds, *_ = env.step({"a": 0})
    assert (set(obs), rewards, flags_of(terminateds)) == ({"c"}, {}, set())
    obs, rewards, terminateds, *_ = env.step({"c": 0})
    assert (set(obs), rewards, flags_of(terminateds)) == ({"b", "a"}, {"b": 5.0, "a": 0.5, "c": 0.5}, {"b"})
    obs, rewards, terminateds, *_ = env.step({"a": 0})
    assert (rewards, flags_of(terminateds)) == ({"a": 1.0, "c": 0.5}, {"a"})


def test_an_action_out_of_turn_is_refused() -> None:
    env = make_pettingzoo("tictactoe_v3")
    env.reset()
    with pytest.raises(
        EnvError, match=r"'tictactoe_v3': actions came for \['player_2'\], but the turn is agent 'player_1"
    ):
        env.step({"player_2": 0})
    for number, square in enumerate((0, 3, 1, 4, 2)):
        env.step({f"player_{number % 2 + 1}": square})
    with pytest.raises(EnvError, match="the episode is over: call reset"):
        env.step({"player_2": 5})


# Masks in infos.


def test_masks_in_infos_come_to_the_observations() -> None:

    for env in (
        PettingZooParallel(Guess()),
        PettingZooAEC(importlib.import_module("pettingzoo.utils").parallel_to_aec(Guess())),
    ):
        space = env.get_observation_space("a")
        assert space == spaces.Dict({"observation": spaces.Discrete(5), "action_mask": spaces.Box(0, 1, (3,), np.int8)})
        obs, _ = env.reset()
        assert obs["a"]["observation"] == 0 and obs["a"]["action_mask"].tolist() == [1, 0, 0]
        assert space.contains(obs["a"])
        for _ in range(4):
            obs, _, terminateds, *_ = env.step({agent: 0 for agent in obs})
            assert all(env.get_observation_space(agent).contains(value) for agent, value in obs.items())
            if terminateds[ALL_DONE]:
                break
        assert terminateds[ALL_DONE] and obs["a"]["action_mask"].tolist() == [0, 0, 0]  # nobody acts on it


def test_spaces_are_asked_for_without_a_reset_where_they_can_be() -> None:
    raw = Guess()
    env = PettingZooParallel(raw)
    env.reset()
    env.get_observation_space("a")
    assert raw.resets == 1
    masked = make_pettingzoo("tictactoe_v3")
    assert isinstance(masked.get_observation_space("player_1"), spaces.Dict)
    masked.close()  # before any reset
    make_pettingzoo("pistonball_v6", **PISTONS).close()


@pytest.mark.parametrize(
    ("mask", "says"), [(None, "agent 'a' has no 'action_mask'"), ([1, 0], "wrong action mask: action has 3 choices")]
)
def test_wrong_masks_in_infos_are_named(mask: Any, says: str) -> None:
    env = PettingZooParallel(Guess(mask))
    obs, _ = env.reset()
    with pytest.raises(EnvError, match=f"'guess_v0'.*{says}"):
        env.step(dict.fromkeys(obs, 0))


# Names.


def test_kinds_and_families() -> None:
    assert isinstance(make_pettingzoo("classic/tictactoe_v3"), PettingZooAEC)
    assert isinstance(make_pettingzoo("simple_spread_v3"), PettingZooParallel)
    assert isinstance(make_pettingzoo("mpe2/simple_spread_v3", aec=True), PettingZooAEC)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        (
            "knights_archers_zombies_v10",
            "no env 'pettingzoo:knights_archers_zombies_v10'.*mean knights_archers_zombies_v11",
        ),
        ("tictacto_v3", "Did you mean tictactoe_v3"),
        ("butterflies/pistonball_v6", "no family 'butterflies'.*Did you mean butterfly"),
        ("classic/pistonball_v6", "family classic"),
    ],
)
def test_unknown_names_have_near_ones(name: str, says: str) -> None:
    with pytest.raises(EnvError, match=says):
        make_pettingzoo(name)


def test_what_cannot_be_made_says_why() -> None:
    with pytest.raises(EnvError, match=r"with the settings \{'n_piston': 3\}: TypeError"):
        make_pettingzoo("pistonball_v6", n_piston=3)
    try:
        importlib.import_module("rlcard")
    except ImportError:
        with pytest.raises(
            EnvError, match=r"needs what is not installed: .*rlcard.*pip install 'pettingzoo\[classic\]'"
        ):
            make_pettingzoo("leduc_holdem_v4")
    with pytest.raises(EnvError, match="from_pettingzoo: a builtins.int came"):
        from_pettingzoo(3)
    env = PettingZooParallel(importlib.import_module("mpe2.simple_spread_v3").parallel_env())
    with pytest.raises(EnvError, match=r"action_space\('nobody'\) raised KeyError"):
        env.get_action_space("nobody")


def test_nothing_is_imported_for_other_envs() -> None:
    code = (
        "import sys, headwater.envs.foreign as f, headwater.envs.pettingzoo as p, gymnasium\n"
        "assert not p.is_pettingzoo(object()); f.as_known_env(gymnasium.make('CartPole-v1'), 'x')\n"
        "assert not {'pettingzoo', 'shimmy', 'envpool', 'gym'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert is_pettingzoo(Guess()) and is_pettingzoo(Turns([("a", {}, {})]))


def test_a_run_makes_them_by_name() -> None:
    env_id, creator = env_creator_for("pettingzoo:simple_spread_v3")
    base = make_env(creator, env_id, 2, make_config(remote_worker_envs=False), EnvContext({"max_cycles": 2, "N": 2}))
    assert isinstance(base, BaseEnv) and base.possible_agents == ["agent_0", "agent_1"]
    base.start_episodes([1, 2])
    poll = base.poll()
    for _ in range(2):
        base.send_actions({i: dict.fromkeys(obs, 0) for i, obs in poll.obs.items()})
        poll = base.poll()
    assert all(poll.truncateds[i] == {"agent_0": True, "agent_1": True, ALL_DONE: True} for i in (0, 1))
    base.stop()
