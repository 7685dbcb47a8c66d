"""PolicyClient against real servers: both modes, lost answers, servers that stop and start anew."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import gymnasium as gym
import httpx
import numpy as np
import pytest
from gymnasium import spaces

from headwater.algorithms.ppo.ppo import PPOConfig, get_policy_class
from headwater.envs.base_env import LoggedAction
from headwater.errors import ConfigError, EnvError, MissingExtraError
from headwater.registry import env_creator_for
from headwater.sampling.rollout_worker import RolloutWorker
from headwater.serving import EpisodeLost
from tests.serving.harness import ACTIONS, OBS, Harness

ZERO = np.zeros(2, np.float32)


def make_worker(env: str = "CartPole-v1", **settings: Any) -> RolloutWorker:
    config = PPOConfig(seed=0, train_batch_size=64, sgd_minibatch_size=64, **settings)
    env_id, creator = env_creator_for(env)
    return RolloutWorker(env_creator=creator, env_id=env_id, policy_class=get_policy_class(config), config=config)


@pytest.fixture
def worker() -> Iterator[Callable[..., RolloutWorker]]:
    made: list[RolloutWorker] = []

    def make(*args: Any, **kwargs: Any) -> RolloutWorker:
        made.append(make_worker(*args, **kwargs))
        return made[-1]

    yield make
    for each in made:
        each.stop()


def spaces_of(worker: RolloutWorker) -> dict[str, Any]:
    return {"observation_space": worker.env.observation_space, "action_space": worker.env.action_space}


# Mode "remote".


def test_remote_episodes(serve: Any, connect: Any) -> None:
    harness = serve(act=lambda obs: int(obs[0]))
    client = connect(harness.address, "remote")
    assert (client.observation_space, client.action_space) == (OBS, ACTIONS)
    first, second = client.start_episode("first"), client.start_episode(training_enabled=False)
    for t in range(3):
        action = client.get_action(first, [t, 0.0])
        assert action == t and isinstance(action, np.int64)
        assert client.get_action(second, np.array([t, 0.0])) == t
        client.log_returns(first, 1.0, {"t": t})
        client.log_returns(first, 0.5)
    client.log_action(first, ZERO, 8)
    client.log_returns(first, 2.0)
    client.end_episode(first, ZERO, truncated=True)
    client.end_episode(second, ZERO)
    harness.loop.wait_for(lambda: len(harness.loop.returns) == 2)
    assert harness.loop.returns == {"first": 6.5, second: 0.0}
    assert harness.loop.ends["first"][:2] == (False, True) and harness.loop.ends[second][:2] == (True, False)
    assert harness.loop.infos["first"][1] == {"agent0": {"t": 0}}
    assert all(info["agent0"]["training_enabled"] is False for info in harness.loop.infos[second])
    assert [step[1:] for step in harness.loop.steps["first"]] == [(0, False), (1, False), (2, False), (8, True)]


def test_large_observations_and_nested_actions(serve: Any, connect: Any) -> None:
    obs_space = spaces.Dict({"image": spaces.Box(0, 255, (30, 30, 3), np.uint8), "pair": spaces.Tuple([OBS, OBS])})
    act_space = spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (2,))])
    given = (np.int64(2), np.array([0.25, -0.5], np.float32))
    harness = serve(act=lambda obs: given, observation_space=obs_space, action_space=act_space)
    client = connect(harness.address, "remote")
    obs = {"image": np.full((30, 30, 3), 7, np.uint8), "pair": (ZERO, ZERO)}
    action = client.get_action(client.start_episode(), obs)
    assert isinstance(action, tuple) and act_space.contains(action) and action[1].tolist() == [0.25, -0.5]


def test_remote_agents(serve: Any, connect: Any) -> None:
    harness = serve(act=lambda obs: int(obs[0]), observation_space={"a": OBS, "b": OBS}, action_space=ACTIONS)
    client = connect(harness.address, "remote")
    episode = client.start_episode()
    assert client.get_action(episode, {"a": [1, 0], "b": [2, 0]}) == {"a": 1, "b": 2}
    client.log_returns(episode, {"a": 1.0}, {"a": {"x": 1}}, terminateds={"a": True})
    client.log_returns(episode, {"a": 2.0, "b": 4.0}, {"a": {"y": 2}})
    assert client.get_action(episode, {"a": [1, 0], "b": [3, 0]}) == {"b": 3}
    client.end_episode(episode, {"b": [0, 0]})
    harness.loop.wait_for(lambda: harness.loop.returns)
    assert harness.loop.returns == {episode: 7.0}
    assert harness.loop.infos[episode][1]["a"] == {"x": 1, "y": 2}
    with pytest.raises(ConfigError, match="inference_mode='remote'"):
        connect(harness.address, "local")


@pytest.mark.parametrize("mode", ["remote", "local"])
def test_misuse_is_named(serve: Any, connect: Any, worker: Any, mode: str) -> None:
    made = worker()
    harness = serve(worker=made, **spaces_of(made))
    client = connect(harness.address, mode)
    episode = client.start_episode()
    for misuse, message in (
        (lambda: client.get_action("nobody", np.zeros(4)), "'nobody'"),
        (lambda: client.log_returns("nobody", 1.0), "'nobody'"),
        (lambda: client.get_action(episode, [np.nan] * 4), "observation|NaN"),
        (lambda: client.get_action(episode, [0, 0]), "observation"),
        (lambda: client.log_action(episode, np.zeros(4), 7), "action"),
        (lambda: client.end_episode(episode, np.zeros(4), terminated=False), "terminated=True or"),
    ):
        with pytest.raises(Exception, match=message):
            misuse()
    assert client.get_action(episode, np.zeros(4)) in (0, 1)
    client.close()
    client.close()
    with pytest.raises(EnvError, match="closed"):
        client.get_action(episode, np.zeros(4))


def test_settings_and_servers_that_are_none(serve: Any, connect: Any) -> None:
    with pytest.raises(ConfigError, match="inference_mode"):
        connect("http://127.0.0.1:1", "psychic")
    harness = serve(token="secret")
    with pytest.raises(ConfigError, match="token"):
        connect(harness.address, "remote", token="wrong")
    client = connect(f"127.0.0.1:{harness.server.port}", "remote", token="secret")
    assert client.get_action(client.start_episode(), ZERO) == 0
    with pytest.raises(EnvError, match="could not be reached"):
        connect("http://127.0.0.1:9", reconnect_s=0.1)


class LosesAnswers(httpx.BaseTransport):
    """Does every request, and loses the answer of each first try; a request that comes again is let through."""

    def __init__(self, inner: httpx.BaseTransport) -> None:
        self.inner, self.seen = inner, set[bytes]()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        response = self.inner.handle_request(request)
        key = request.url.path.encode() + request.read()
        if key not in self.seen:
            self.seen.add(key)
            response.read()
            response.close()
            raise httpx.ReadError("the answer was lost")
        return response

    def close(self) -> None:
        self.inner.close()


@pytest.mark.parametrize("mode", ["remote", "local"])
def test_lost_answers_count_once(serve: Any, connect: Any, worker: Any, mode: str) -> None:
    made = worker()
    harness = serve(worker=made, **spaces_of(made))
    client = connect(harness.address, mode)
    http = client._calls._client
    http._transport = LosesAnswers(http._transport)
    names = [client.start_episode() for _ in range(2)]
    for name in names:
        for _ in range(3):
            client.get_action(name, np.zeros(4))
            client.log_returns(name, 1.0)
        client.end_episode(name, np.zeros(4))
    client.flush(20)
    harness.loop.wait_for(lambda: len(harness.loop.returns) == 2)
    assert harness.loop.returns == dict.fromkeys(names, 3.0)
    assert {name: len(steps) for name, steps in harness.loop.steps.items()} == dict.fromkeys(names, 3)


def restarted(serve: Any, harness: Harness, **kwargs: Any) -> Harness:
    port = harness.server.port
    harness.stop()
    new: Harness = serve(port=port, **kwargs)
    return new


@pytest.mark.parametrize("mode", ["remote", "local"])
def test_a_server_that_starts_anew_is_rejoined(serve: Any, connect: Any, worker: Any, mode: str) -> None:
    made = worker()
    harness = serve(worker=made, **spaces_of(made))
    client = connect(harness.address, mode)
    episode = client.start_episode()
    client.get_action(episode, np.zeros(4))
    client.get_action(episode, np.zeros(4))
    client.flush(20)
    anew = restarted(serve, harness, worker=made, **spaces_of(made))
    with pytest.raises(EpisodeLost, match="start"):
        for _ in range(3):  # mode local learns of it when it sends
            client.get_action(episode, np.zeros(4))
            client.flush(20)
    with pytest.raises(EnvError, match="no episode"):
        client.get_action(episode, np.zeros(4))
    episode = client.start_episode()
    client.get_action(episode, np.zeros(4))
    client.log_returns(episode, 2.0)
    client.end_episode(episode, np.zeros(4))
    anew.loop.wait_for(lambda: anew.loop.returns)
    assert anew.loop.returns == {episode: 2.0}


def test_a_client_that_starts_before_its_server(serve: Any, connect: Any) -> None:
    harness = serve()
    port = harness.server.port
    harness.stop()
    clients: list[Any] = []
    thread = threading.Thread(target=lambda: clients.append(connect(f"http://127.0.0.1:{port}", "remote")))
    thread.start()
    serve(port=port)
    thread.join(20)
    assert clients[0].get_action(clients[0].start_episode(), ZERO) == 0


def test_waiting_for_an_action_ends_when_the_episode_is_lost(serve: Any, connect: Any) -> None:
    harness = serve(client_timeout_s=0.6)
    client = connect(harness.address, "remote")
    episode = client.start_episode()
    client.get_action(episode, ZERO)
    harness.server.abandon_episode(episode, "the operator said so")
    with pytest.raises(EpisodeLost, match="the operator said so"):
        client.get_action(episode, ZERO)


@pytest.mark.parametrize("mode", ["remote", "local"])
def test_a_slow_env_is_not_given_up(serve: Any, connect: Any, worker: Any, mode: str) -> None:
    made = worker()
    harness = serve(worker=made, **spaces_of(made), client_timeout_s=1.0)
    client = connect(harness.address, mode)
    episode = client.start_episode()
    client.get_action(episode, np.zeros(4))
    time.sleep(2.5)  # more than twice the limit
    client.get_action(episode, np.zeros(4))
    client.flush(20)
    assert harness.server.episodes.is_running(episode)
    client.close()
    harness.loop.wait_for(lambda: episode in harness.loop.lost)


# Mode "local".


def run_cartpole(client: Any, num_episodes: int, seed: int = 0) -> dict[str, list[Any]]:
    """episode id -> [(observation, action)]."""
    env = gym.make("CartPole-v1")
    taken: dict[str, list[Any]] = {}
    for k in range(num_episodes):
        episode, (obs, _) = client.start_episode(), env.reset(seed=seed + k)
        taken[episode] = []
        over = False
        while not over:
            action = client.get_action(episode, obs)
            taken[episode].append((obs, action))
            obs, reward, terminated, truncated, info = env.step(action)
            client.log_returns(episode, reward, {"t": len(taken[episode])})
            over = terminated or truncated
        client.end_episode(episode, obs, terminated, truncated)
    env.close()
    return taken


def test_local_steps_say_what_they_were_drawn_from(serve: Any, connect: Any, worker: Any) -> None:
    made = worker()
    harness = serve(worker=made, **spaces_of(made))
    client = connect(harness.address, "local", seed=1)
    taken = run_cartpole(client, 3)
    client.flush(20)
    harness.loop.wait_for(lambda: len(harness.loop.returns) == 3)
    assert harness.loop.returns == {name: float(len(steps)) for name, steps in taken.items()}
    policy = made.policy_map["default_policy"]
    for name, steps in taken.items():
        got = harness.loop.steps[name]
        assert all(was_logged and isinstance(logged, LoggedAction) for _, logged, was_logged in got)
        assert [int(logged.action) for _, logged, _ in got] == [int(action) for _, action in steps]
        obs = np.stack([row for row, _, _ in got])
        assert np.array_equal(obs, np.stack([row for row, _ in steps]))
        _, _, extra = policy.compute_actions(obs)
        inputs = np.stack([logged.dist_inputs for _, logged, _ in got])
        np.testing.assert_allclose(inputs, extra["action_dist_inputs"], atol=1e-5)
        assert harness.loop.infos[name][1] == {"agent0": {"t": 1}}
    assert len({int(action) for steps in taken.values() for _, action in steps}) == 2  # it explores


def test_the_policy_is_packed_only_when_it_is_asked_for(serve: Any, connect: Any, worker: Any) -> None:
    made = worker()
    exports: list[Any] = []
    export = made.export_policy
    made.export_policy = lambda *args: exports.append(threading.current_thread()) or export(*args)
    harness = serve(worker=made, **spaces_of(made))
    harness.server.on_sample(made)
    client = connect(harness.address, "local", update_interval=None)
    assert not exports
    assert client.update_policy_weights() is True
    assert client.update_policy_weights() is False
    assert exports == [harness.loop._thread]  # the sampler's own, and once
    harness.server.on_sample(made)
    assert client.update_policy_weights() is False and len(exports) == 2  # it might have changed, and did not
    weights = made.get_weights()
    made.set_weights({"default_policy": {k: v + 1 for k, v in weights["default_policy"].items()}})
    harness.server.on_sample(made)
    version = client._copy.version
    assert client.update_policy_weights() is True and client._copy.version != version
    response = harness.http.get("/v1/policy", headers={"If-None-Match": client._copy.version})
    assert response.status_code == 304 and not response.content


def test_a_newer_policy_comes_by_itself(serve: Any, connect: Any, worker: Any) -> None:
    made = worker()
    harness = serve(worker=made, **spaces_of(made))
    client = connect(harness.address, "local", update_interval=0.05)
    client.update_policy_weights()
    version = client._copy.version
    updated = threading.Event()
    update = client._copy.update
    client._copy.update = lambda wait: update(wait) and updated.set()
    weights = made.get_weights()
    made.set_weights({"default_policy": {k: v + 1 for k, v in weights["default_policy"].items()}})
    harness.server.on_sample(made)
    assert updated.wait(20) and client._copy.version != version


def test_local_acting_goes_on_while_the_server_learns(serve: Any, connect: Any, worker: Any) -> None:
    made = worker()
    harness = serve(worker=made, **spaces_of(made), client_timeout_s=3.0)
    client = connect(harness.address, "local", max_unsent_steps=10_000)
    run_cartpole(client, 1)
    client.flush(20)
    harness.loop.wait_for(lambda: len(harness.loop.returns) == 1)
    harness.loop.gate.clear()
    taken = run_cartpole(client, 60, seed=1)  # more than the server lets wait
    assert len(harness.loop.returns) <= 2
    harness.loop.gate.set()
    assert client.flush(60)
    harness.loop.wait_for(lambda: len(harness.loop.returns) == 61)
    assert {name: harness.loop.returns[name] for name in taken} == {n: float(len(s)) for n, s in taken.items()}


def test_local_acting_with_memory_and_what_came_before(serve: Any, connect: Any, worker: Any) -> None:
    made = worker(model={"memory": "lstm", "use_prev_action": True, "use_prev_reward": True})
    harness = serve(worker=made, **spaces_of(made))
    client = connect(harness.address, "local", seed=3)
    taken = run_cartpole(client, 2)
    client.flush(20)
    harness.loop.wait_for(lambda: len(harness.loop.returns) == 2)
    for name, steps in taken.items():
        states: Any = [made.policy_map["default_policy"].get_initial_state()]
        before: Any = (None, None)
        for (obs, action), (_, logged, _) in zip(steps, harness.loop.steps[name], strict=True):
            _, states, extra = made.compute_actions(
                [obs], states=states, prev_action_batch=[before[0]], prev_reward_batch=[before[1]]
            )
            np.testing.assert_allclose(logged.dist_inputs, extra["action_dist_inputs"][0], atol=1e-5)
            before = action, 1.0


def test_local_box_actions_are_sent_as_sampled(serve: Any, connect: Any, worker: Any) -> None:
    made = worker("Pendulum-v1")
    harness = serve(worker=made, **spaces_of(made))
    client = connect(harness.address, "local", seed=0)
    episode = client.start_episode()
    obs = made.env.observation_space.sample()
    actions = [client.get_action(episode, obs) for _ in range(20)]
    client.log_action(episode, obs, [1.5])
    client.end_episode(episode, obs)
    harness.loop.wait_for(lambda: harness.loop.ends)
    steps = harness.loop.steps[episode]
    sampled = np.stack([logged.action for _, logged, _ in steps[:20]])
    np.testing.assert_allclose(np.stack(actions), np.clip(2 * sampled, -2, 2), atol=1e-5)
    assert steps[20][1].tolist() == [1.5] and not isinstance(steps[20][1], LoggedAction)
    with pytest.raises(EnvError, match="in use|was an episode"):
        client.start_episode(episode)  # its end was told already; the server says so
        client.get_action(episode, obs)
        client.end_episode(episode, obs)
        client.flush(20)
    assert client.get_action(client.start_episode(), obs).shape == (1,)


@pytest.mark.parametrize(
    "change",
    [
        {"dist_inputs": [[0.0, 0.0, 0.0]]},
        {"dist_inputs": [[0.0, 1e999]]},
        {"dist_inputs": [0.0, 0.0]},
        {"actions": [2]},
    ],
)
def test_steps_that_would_not_fit_the_policy(serve: Any, worker: Any, change: dict[str, Any]) -> None:
    made = worker()
    harness = serve(worker=made, **spaces_of(made))
    steps = {"episode_id": "x", "first_step": 0, "observations": [[0] * 4], "actions": [1], "rewards": [1.0],
             "dist_inputs": [[0.0, 0.0]]}  # fmt: skip
    text = str({"request_id": "a", **steps, **change}).replace("'", '"').replace("inf", "1e999")
    response = harness.http.post("/v1/steps", content=text, headers={"Content-Type": "application/json"})
    assert response.status_code == 422, response.text
    assert harness.post("steps", **steps).status_code == 200


def test_a_server_without_a_policy_serves_no_copies(serve: Any, connect: Any) -> None:
    harness = serve()
    client = connect(harness.address, "local")
    with pytest.raises(ConfigError, match="no policy attached"):
        client.get_action(client.start_episode(), ZERO)


def test_the_client_needs_neither_a_framework_nor_the_servers_packages() -> None:
    program = (
        "import sys\n"
        "from headwater.serving import PolicyClient\n"
        "import headwater.serving.local_acting\n"
        "wrong = {'torch', 'tensorflow', 'jax', 'starlette', 'uvicorn', 'ray'} & set(sys.modules)\n"
        "sys.exit(f'imported {wrong}' if wrong else 0)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, connect: Any) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises((MissingExtraError, ImportError), match="httpx"):
        connect("http://127.0.0.1:9")
