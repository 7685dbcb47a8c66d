"""External envs as a BaseEnv: any interleaving of episodes, what may go wrong in them, and their threads."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gymnasium import spaces

from headwater.envs import external_episodes
from headwater.envs.base_env import LoggedAction
from headwater.envs.external_env import EpisodeLost, ExternalEnv, ExternalMultiAgentEnv
from headwater.envs.external_to_base import _ExternalEnvToBaseEnv
from headwater.errors import EnvError
from tests.envs.external_loop import Loop

NUMBERS = spaces.Discrete(1000)


class Scripted(ExternalEnv):
    """Runs a function."""

    def __init__(self, script: Callable[[Any], None], **kwargs: Any) -> None:
        super().__init__(NUMBERS, NUMBERS, **kwargs)
        self.script = script

    def run(self) -> None:
        self.script(self)


class ScriptedMany(ExternalMultiAgentEnv):
    def __init__(self, script: Callable[[Any], None], **kwargs: Any) -> None:
        super().__init__(NUMBERS, NUMBERS, **kwargs)
        self.script = script

    def run(self) -> None:
        self.script(self)


@pytest.fixture
def loop() -> Iterator[Callable[..., Loop]]:
    loops: list[Loop] = []

    def make(script: Callable[[Any], None], kind: type = Scripted, act: Any = lambda obs: obs, **kwargs: Any) -> Loop:
        loops.append(Loop(kind(script, **kwargs), act))
        return loops[-1]

    yield make
    for each in loops:
        each.stop()


def until_error(loop: Loop) -> str:
    with pytest.raises(EnvError) as caught:
        while True:
            loop.once()
    return str(caught.value)


def test_ten_interleaved_episodes_in_random_order(loop: Any) -> None:
    lengths = {f"episode {k}": k for k in range(10)}  # one of them starts and ends without an action
    answers: list[bool] = []

    def script(env: Any) -> None:
        rng = random.Random(0)
        left = dict(lengths)
        for episode in lengths:
            env.start_episode(episode)
        while left:
            episode = rng.choice(sorted(left))
            if left[episode] == 0:
                del left[episode]
                env.end_episode(episode, 0)
                continue
            answers.append(env.get_action(episode, left[episode]) == left[episode])
            env.log_returns(episode, 1.0)
            env.log_returns(episode, 0.5)
            left[episode] -= 1

    made = loop(script)
    until_error(made)
    assert made.returns == {name: 1.5 * length for name, length in lengths.items() if length}
    assert all(answers) and len(answers) == 45
    assert {name: len(steps) for name, steps in made.steps.items()} == {n: k for n, k in lengths.items() if k}
    assert all(end == (True, False, {"agent0": 0}) for end in made.ends.values())
    desk = made.env.external_env.episodes
    assert not desk._episodes and not desk._ready and desk._num_running == 0


def test_many_threads_run_episodes_at_once(loop: Any) -> None:
    def script(env: Any) -> None:
        def episodes() -> None:
            for length in (3, 7):
                episode = env.start_episode()
                for _ in range(length):
                    assert env.get_action(episode, 5) == 5
                    env.log_returns(episode, 1.0)
                env.end_episode(episode, 0)

        threads = [threading.Thread(target=episodes) for _ in range(20)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    made = loop(script)
    assert "returned" in until_error(made)
    assert sorted(made.returns.values()) == [3.0] * 20 + [7.0] * 20
    assert max(made.sizes) > 1


def test_logged_actions_are_recorded_and_not_asked(loop: Any) -> None:
    logged = LoggedAction(4, [0.0] * 3)

    def script(env: Any) -> None:
        episode = env.start_episode("logged")
        env.log_action(episode, 1, 7)
        env.log_returns(episode, 2.0)
        env.log_action(episode, 2, logged)
        env.log_returns(episode, 3.0)
        assert env.get_action(episode, 3) == 3
        env.end_episode(episode, 4, truncated=True)

    made = loop(script)
    until_error(made)
    assert made.steps["logged"] == [(1, 7, True), (2, logged, True), (3, 3, False)]
    assert made.returns == {"logged": 5.0}
    assert made.ends["logged"] == (False, True, {"agent0": 4})


def test_what_is_paid_before_the_first_action_is_not_lost(loop: Any) -> None:
    def script(env: Any) -> None:
        episode = env.start_episode("early")
        env.log_returns(episode, 1.0)
        env.get_action(episode, 0)
        env.end_episode(episode, 0)

    made = loop(script)
    until_error(made)
    assert made.returns == {"early": 1.0}


def test_logging_waits_where_the_sampler_lags(loop: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_episodes, "MAX_WAITING_STEPS", 3)
    told: list[int] = []

    def script(env: Any) -> None:
        episode = env.start_episode("fast")
        for k in range(10):
            env.log_action(episode, k, k)
            told.append(k)
        env.end_episode(episode, 0)

    made = loop(script)
    made.once()
    assert len(told) <= 4
    until_error(made)
    assert [step[0] for step in made.steps["fast"]] == list(range(10)) == told


def test_infos_and_episodes_that_are_not_trained_on(loop: Any) -> None:
    def script(env: Any) -> None:
        watched = env.start_episode("watched", training_enabled=False)
        for _ in range(2):
            env.get_action(watched, 1)
            env.log_returns(watched, 0.0, {"a": 1})
            env.log_returns(watched, 0.0, {"b": 2})
        env.end_episode(watched, 1)

    made = loop(script)
    until_error(made)
    first, *others = made.infos["watched"]
    assert first == {"agent0": {"training_enabled": False}}
    assert others == [{"agent0": {"a": 1, "b": 2, "training_enabled": False}}] * 2


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (lambda env: env.get_action("nobody", 0), "no episode 'nobody'"),
        (lambda env: env.log_returns("nobody", 0.0), "no episode 'nobody'"),
        (lambda env: env.end_episode("nobody", 0), "no episode 'nobody'"),
        (lambda env: env.start_episode("one"), "'one' is in use"),
        (lambda env: env.start_episode("over"), "was an episode 'over'"),
        (lambda env: env.log_action("over", 0, 0), "'over' has ended"),
        (lambda env: env.start_episode(), "max_concurrent"),
        (lambda env: env.end_episode("one", 0, terminated=False), "terminated=True or truncated=True"),
        (lambda env: env.get_action("gone", 0), "'gone' is lost: why not"),
    ],
)
def test_misuse_is_named(misuse: Callable[[Any], Any], message: str) -> None:
    env = Scripted(lambda env: None, max_concurrent=1)
    env.end_episode(env.start_episode("over"), 0)
    env.abandon_episode(env.start_episode("gone"), "why not")
    env.start_episode("one")
    with pytest.raises(EnvError, match=message):
        misuse(env)
    env.stop()


def test_only_a_bounded_number_of_past_episodes_is_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(external_episodes, "REMEMBERED", 10)
    env = Scripted(lambda env: None)
    for k in range(50):
        env.end_episode(env.start_episode(str(k)), 0)
    assert len(env.episodes._over) == 10 and not env.episodes._episodes


def test_two_callers_in_one_episode() -> None:
    env = Scripted(lambda env: None)
    env.start_episode("one")
    env.episodes.ask("one", {"agent0": 0})
    for misuse in (lambda: env.get_action("one", 0), lambda: env.end_episode("one", 0)):
        with pytest.raises(EnvError, match="one caller at a time"):
            misuse()
    env.stop()


def test_an_abandoned_episode_is_lost_to_both_sides(loop: Any) -> None:
    caught: list[Exception] = []
    asked = threading.Event()

    def script(env: Any) -> None:
        unknown = env.start_episode("never seen")
        env.log_action(unknown, 1, 1)
        env.abandon_episode(unknown, "no reason")  # before the sampler saw it: it need not know
        env.get_action(env.start_episode("lost"), 1)
        future = env.episodes.ask("lost", {"agent0": 2})
        asked.set()
        caught.append(future.exception(10))

    made = loop(script)
    made.once()
    assert asked.wait(10)
    made.env.external_env.abandon_episode("lost", "the lights went out")
    assert "returned" in until_error(made)
    assert made.lost == {"lost": "the lights went out"} and not made.returns
    assert isinstance(caught[0], EpisodeLost) and "the lights went out" in str(caught[0])


def test_the_sampler_may_cut_an_episode(loop: Any) -> None:
    caught: list[BaseException] = []

    def script(env: Any) -> None:
        episode = env.start_episode("long")
        try:
            env.get_action(episode, 1)
        except EpisodeLost as error:
            caught.append(error)
        env.get_action(env.start_episode("next"), 1)

    made = loop(script)
    assert set(made.env.poll().obs) == {"long"}
    assert made.env.try_reset("long") is None
    made.once()
    assert "gave it up" in str(caught[0])
    assert set(made.steps) == {"next"} and not made.lost


def test_an_episode_that_the_sampler_does_not_begin_now_is_offered_again(loop: Any) -> None:
    def script(env: Any) -> None:
        asked = env.episodes.ask(env.start_episode("a"), {"agent0": 1})
        env.log_action(env.start_episode("b"), 1, 2)
        env.end_episode("b", 1)
        asked.result(10)

    made = loop(script)
    poll = made.env.poll()
    seen = set(poll.obs)
    while seen != {"a", "b"}:
        seen |= set(made.env.poll().obs)
    made.env.send_actions({})  # as one does that wants no more episodes now
    again: dict[str, Any] = {}
    while not again:
        again = made.env.poll().obs
    assert again == {"a": {"agent0": 1}, "b": {"agent0": 1}}
    made.env.send_actions({"a": {"agent0": 1}, "b": {}})
    assert made.env.poll().terminateds == {"b": {"__all__": True}}
    with pytest.raises(EnvError, match="returned"):
        made.env.poll()


def test_starting_anew_keeps_the_callers(loop: Any) -> None:
    answers: list[int] = []

    def script(env: Any) -> None:
        episode = env.start_episode("kept")
        for k in range(3):
            answers.append(env.get_action(episode, k))
            env.log_returns(episode, 1.0)
        env.end_episode(episode, 0)

    made = loop(script)
    made.once()
    assert set(made.env.poll().obs) == {"kept"}  # handed out, and never answered
    made.running.clear()
    made.env.start_episodes()
    until_error(made)
    assert answers == [0, 1, 2]
    assert made.returns == {"kept": 2.0}


def test_an_error_in_the_thread_reaches_the_sampler(loop: Any) -> None:
    def script(env: Any) -> None:
        raise ZeroDivisionError("the simulator burst")

    message = until_error(loop(script))
    assert "the simulator burst" in message and "Traceback" in message and "in script" in message


def test_an_env_without_run(loop: Any) -> None:
    env = _ExternalEnvToBaseEnv(ExternalEnv(NUMBERS, NUMBERS))
    with pytest.raises(EnvError, match="override run"):
        env.poll()


def test_a_missing_super_init() -> None:
    class Careless(ExternalEnv):
        def __init__(self) -> None:
            self.action_space = self.observation_space = NUMBERS

    with pytest.raises(EnvError, match=r"super\(\).__init__"):
        _ExternalEnvToBaseEnv(Careless())


def test_callers_wait_while_nobody_samples(loop: Any) -> None:
    answered = threading.Event()

    def script(env: Any) -> None:
        episode = env.start_episode()
        env.get_action(episode, 1)
        answered.set()
        env.end_episode(episode, 1)

    made = loop(script, timeout_s=0.01)
    poll = made.env.poll()
    assert not answered.wait(0.2)  # learning takes twenty times timeout_s
    made.env.send_actions({env_id: {"agent0": 0} for env_id in poll.obs})
    assert answered.wait(10)


def test_an_action_that_never_comes_though_the_sampler_polls(loop: Any) -> None:
    def script(env: Any) -> None:
        env.get_action(env.start_episode("forgotten"), 1)

    made = loop(script, timeout_s=0.05)
    made.env.poll()
    with pytest.raises(EnvError, match="no action came"):
        made.env.poll()  # a sampler that forgets to answer


def test_stopping_ends_all_waits() -> None:
    errors: list[BaseException] = []

    def script(env: Any) -> None:
        episode = env.start_episode()
        try:
            env.get_action(episode, 1)
        except EnvError as error:
            errors.append(error)
            raise

    env = _ExternalEnvToBaseEnv(Scripted(script))
    env.poll()
    polled: list[BaseException] = []

    def poll() -> None:
        try:
            env.poll()
        except EnvError as error:
            polled.append(error)

    poller = threading.Thread(target=poll)
    poller.start()
    env.stop()
    env.stop()
    poller.join(10)
    assert "was stopped" in str(errors[0]) and "was stopped" in str(polled[0])
    with pytest.raises(EnvError, match="was stopped"):
        env.external_env.start_episode()


def test_agents_come_and_go(loop: Any) -> None:
    answers: list[Any] = []

    def script(env: Any) -> None:
        episode = env.start_episode("many")
        answers.append(env.get_action(episode, {"a": 1, "b": 2}))
        env.log_returns(episode, {"a": 1.0, "b": 10.0}, {"a": {"x": 1}}, terminateds={"a": True})
        answers.append(env.get_action(episode, {"a": 3, "b": 4}))
        env.log_returns(episode, {"a": 5.0})
        env.log_action(episode, {"b": 6}, {"b": 7})
        env.end_episode(episode, {"b": 8}, truncated=True)

    made = loop(script, ScriptedMany)
    until_error(made)
    assert answers == [{"a": 1, "b": 2}, {"b": 4}]
    assert made.returns == {"many": 16.0}
    assert made.infos["many"][1] == {"a": {"x": 1}, "b": {}}
    assert made.ends["many"] == (False, True, {"b": 8})
    assert made.env.is_multi_agent and made.env.num_envs == 0


def test_spaces_by_agent() -> None:
    env = _ExternalEnvToBaseEnv(ExternalMultiAgentEnv({"a": NUMBERS}, {"a": spaces.Dict({"x": NUMBERS})}))
    assert env.possible_agents == ["a"]
    assert env.action_space_of("a") == NUMBERS
    with pytest.raises(EnvError, match="'b' appeared"):
        env.observation_space_of("b")
    alike = _ExternalEnvToBaseEnv(ExternalMultiAgentEnv(NUMBERS, spaces.Dict({"x": NUMBERS})))
    assert alike.possible_agents is None and alike.observation_space_of("anyone") == spaces.Dict({"x": NUMBERS})


def test_ending_all_is_said_by_ending_the_episode() -> None:
    env = ExternalMultiAgentEnv(NUMBERS, NUMBERS)
    env.start_episode("one")
    with pytest.raises(EnvError, match="end_episode"):
        env.log_returns("one", {}, terminateds={"__all__": True})


def test_the_clock_of_waiting_is_quiet(loop: Any, caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()

    def script(env: Any) -> None:
        go.wait(10)
        env.get_action(env.start_episode(), 1)

    made = loop(script, timeout_s=0.05)
    made.env._warn = lambda: go.set()
    made.once()
    assert made.sizes == [1]
