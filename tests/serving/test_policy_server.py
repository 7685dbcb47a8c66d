"""The policy server on real sockets: what clients send, well or badly, and what becomes of the episodes."""

from __future__ import annotations

import json
import socket
import threading
import time
from types import SimpleNamespace
from typing import Any

import httpx
import numpy as np
import pytest
from gymnasium import spaces

from headwater.envs.env_context import EnvContext
from headwater.errors import ConfigError, EnvError
from headwater.serving.bodies import ARRAYS_TYPE, decode, encode
from headwater.serving.policy_server import PolicyServerInput
from tests.serving.harness import ACTIONS, OBS


def test_an_episode_by_plain_http(serve: Any) -> None:
    harness = serve(act=lambda obs: int(obs[0]))
    episode = harness.start(episode_id="walk")
    assert episode == "walk"
    assert harness.act(episode, (3.0, 0.5)).json() == {"status": "ready", "action": 3}
    assert harness.post(f"episodes/{episode}/returns", reward=1.5, info={"a": 1}).json() == {"status": "done"}
    assert harness.act(episode, (4.0, 0.5), reward=2.0).json()["action"] == 4
    logged = harness.post(f"episodes/{episode}/log_action", observation=[5, 0], action=7, reward=0.25)
    assert logged.status_code == 200
    assert harness.end(episode, truncated=True, reward=0.25).status_code == 200
    harness.loop.wait_for(lambda: harness.loop.returns)
    assert harness.loop.returns == {"walk": 4.0}
    assert [(step[0].tolist(), step[1], step[2]) for step in harness.loop.steps["walk"]] == [
        ([3.0, 0.5], 3, False), ([4.0, 0.5], 4, False), ([5.0, 0.0], 7, True),
    ]  # fmt: skip
    assert harness.loop.steps["walk"][0][0].dtype == np.float32
    assert harness.loop.ends["walk"][:2] == (False, True)
    assert harness.loop.infos["walk"][1] == {"agent0": {"a": 1}}


def test_arrays_beside_the_message(serve: Any) -> None:
    harness = serve(act=lambda obs: int(obs["image"].sum()), observation_space=spaces.Dict(
        {"image": spaces.Box(0, 255, (20, 20), np.uint8), "pair": spaces.Tuple([OBS, spaces.Discrete(3)])}
    ))  # fmt: skip
    episode = harness.start()
    obs = {"image": np.ones((20, 20), np.uint8), "pair": [np.zeros(2, np.float32), 2]}
    body = encode({"request_id": "a", "observation": obs}, ARRAYS_TYPE)
    url = f"/v1/episodes/{episode}/action"
    assert harness.http.post(url, content=body, headers={"Content-Type": ARRAYS_TYPE}).json()["action"] == 400
    seen = harness.loop.steps[episode][0][0]
    assert seen["image"].dtype == np.uint8 and isinstance(seen["pair"], tuple)
    plain = {"image": [[2] * 20] * 20, "pair": [[0, 0], 1]}
    assert harness.post(f"episodes/{episode}/action", observation=plain).json()["action"] == 800


def assert_undisturbed(harness: Any, episode: str) -> None:
    assert harness.act(episode, (1.0, 0.0), reward=1.0).json()["action"] == 0
    assert harness.loop.error is None


@pytest.mark.parametrize(
    ("body", "kind", "status", "code"),
    [
        (b"", "application/json", 400, "bad_body"),
        (b"\xff\xfe\x00garbage", "application/json", 400, "bad_body"),
        (b"[" * 100_000, "application/json", 400, "bad_body"),
        (b"[1, 2]", "application/json", 400, "bad_body"),
        (b'{"request_id": "x", "observation": [NaN, 0]}', "application/json", 400, "bad_body"),
        (b'{"request_id": "x", "observation": [1e999, 0]}', "application/json", 422, "bad_value"),
        (b'{"request_id": "x", "observation": [99, 0]}', "application/json", 422, "bad_value"),
        (b'{"request_id": "x", "observation": [0, 0, 0]}', "application/json", 422, "bad_value"),
        (b'{"request_id": "x", "observation": [0]}', "application/json", 422, "bad_value"),
        (b'{"request_id": "x", "observation": [[0], 0]}', "application/json", 422, "bad_value"),
        (b'{"request_id": "x", "observation": ["a", "b"]}', "application/json", 422, "bad_value"),
        (b'{"request_id": "x", "observation": null}', "application/json", 422, "bad_value"),
        (b'{"request_id": "x", "observation": {"$array": "0"}}', "application/json", 422, "bad_value"),
        (b'{"request_id": "x"}', "application/json", 422, "bad_message"),
        (b'{"observation": [0, 0]}', "application/json", 422, "bad_message"),
        (b'{"request_id": "x y", "observation": [0, 0]}', "application/json", 422, "bad_message"),
        (b'{"request_id": "x", "observation": [0, 0], "rewards": 1}', "application/json", 422, "bad_message"),
        (b'{"request_id": "x", "observation": [0, 0], "reward": 1e999}', "application/json", 422, "bad_message"),
        (b'{"request_id": "x", "observation": [0, 0], "reward": {"a": 1}}', "application/json", 422, "bad_value"),
        (b'{"request_id": "x", "observation": [0, 0],"truncateds": {"a": true}}', "application/json", 422, "bad_value"),
        (b'{"request_id": "x", "observation": [0, 0]}', "text/plain", 415, "bad_type"),
        (b'{"request_id": "x", "observation": [0, 0]}', "", 415, "bad_type"),
        (b"", ARRAYS_TYPE, 400, "bad_body"),
        (b"\xff" * 64, ARRAYS_TYPE, 400, "bad_body"),
        (b"\x80\x04}q\x00.", ARRAYS_TYPE, 400, "bad_body"),
        (encode({"request_id": "x", "observation": np.array([0, np.nan])}, ARRAYS_TYPE), ARRAYS_TYPE, 422, "bad_value"),
        (encode({"request_id": "x", "observation": np.zeros((2, 1))}, ARRAYS_TYPE), ARRAYS_TYPE, 422, "bad_value"),
        (encode({"request_id": "x", "observation": {"$array": "9"}}, ARRAYS_TYPE), ARRAYS_TYPE, 400, "bad_body"),
    ],
)  # fmt: skip
def test_nonsense_is_refused_and_disturbs_nobody(serve: Any, body: bytes, kind: str, status: int, code: str) -> None:
    harness = serve()
    mine, other = harness.start(), harness.start()
    headers = {"Content-Type": kind} if kind else {}
    response = harness.http.post(f"/v1/episodes/{mine}/action", content=body, headers=headers)
    assert (response.status_code, response.json()["error"]) == (status, code)
    assert len(response.json()["reason"]) > 5
    assert_undisturbed(harness, other)
    assert_undisturbed(harness, mine)
    harness.end(mine)
    harness.loop.wait_for(lambda: mine in harness.loop.returns)
    assert harness.loop.returns[mine] == 1.0  # what came with the nonsense was not paid


def test_bytes_that_are_no_http(serve: Any) -> None:
    harness = serve()
    episode = harness.start()
    with socket.create_connection(("127.0.0.1", harness.server.port)) as raw:
        raw.sendall(b"\x16\x03\x01 not http at all\r\n\r\n")
        raw.recv(1000)
    with socket.create_connection(("127.0.0.1", harness.server.port)) as raw:  # a body that never ends
        raw.sendall(f"POST /v1/episodes/{episode}/action HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{{".encode())
    assert_undisturbed(harness, episode)


@pytest.mark.parametrize("declared", [True, False])
def test_bodies_that_are_too_large(serve: Any, declared: bool) -> None:
    harness = serve(max_body_bytes=10_000)
    episode = harness.start()
    content = b"x" * 20_000
    body: Any = content if declared else iter([content[:9000], content[9000:]])
    url = f"/v1/episodes/{episode}/action"
    response = harness.http.post(url, content=body, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["error"]) == (413, "too_large")
    assert_undisturbed(harness, episode)


def test_tokens(serve: Any) -> None:
    harness = serve(token="secret")
    episode = harness.start()
    for given in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}):
        for method, path in (("POST", f"/v1/episodes/{episode}/action"), ("GET", "/v1/info"), ("GET", "/openapi.json")):
            response = httpx.request(method, harness.address + path, headers=given, trust_env=False)
            assert (response.status_code, response.json()["error"]) == (401, "unauthorized")
    assert harness.http.get("/v1/info").status_code == 200


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "192.168.0.1", "example.org"])
def test_an_address_that_others_reach_needs_a_token(address: str) -> None:
    with pytest.raises(ConfigError, match="token"):
        PolicyServerInput(address=address, port=0, observation_space=OBS, action_space=ACTIONS)


@pytest.mark.parametrize("place", ["context", "settings", "env_config", "config"])
def test_where_spaces_are_looked_for(place: str) -> None:
    given = {"observation_space": OBS, "action_space": ACTIONS}
    config = SimpleNamespace(env_config=given if place == "env_config" else {}, **(given if place == "config" else {}))
    context: Any = SimpleNamespace(config=config, settings=given if place == "settings" else {})
    server = PolicyServerInput(EnvContext(given) if place == "context" else context, port=0)
    assert (server.observation_space, server.action_space) == (OBS, ACTIONS)
    server.stop()


def test_missing_spaces_and_a_port_in_use(serve: Any) -> None:
    with pytest.raises(ConfigError, match="action_space is missing"):
        PolicyServerInput({"observation_space": OBS}, port=0)
    harness = serve()
    with pytest.raises(EnvError, match="cannot listen"):
        PolicyServerInput(port=harness.server.port, observation_space=OBS, action_space=ACTIONS)


def test_unknown_ended_and_double_episodes(serve: Any) -> None:
    harness = serve()
    for what in ("action", "end", "returns", "log_action"):
        fields = {} if what == "returns" else {"observation": [0, 0]}
        fields |= {"action": 1} if what == "log_action" else {}
        response = harness.post(f"episodes/nobody/{what}", **fields)
        assert (response.status_code, response.json()["error"]) == (404, "unknown_episode")
    harness.start(episode_id="one")
    assert harness.post("episodes", episode_id="one").status_code == 409
    assert harness.post("episodes", episode_id="a/b").status_code == 422
    assert harness.end("one", terminated=False).status_code == 422
    assert harness.end("one").status_code == 200
    assert harness.post("episodes", episode_id="one").status_code == 409
    assert harness.act("one").status_code == 409
    assert harness.http.get("/v1/nothing").json()["error"] == "no_such_request"
    assert harness.http.get("/v1/episodes").status_code == 405
    response = harness.http.get("/v1/info", headers={"X-Headwater-Protocol": "7"})
    assert (response.status_code, response.json()["error"]) == (400, "bad_protocol")


def test_another_client_may_not_act_in_an_episode(serve: Any) -> None:
    harness = serve()
    mine, other = {"X-Headwater-Client": "mine"}, {"X-Headwater-Client": "other"}
    episode = harness.start(headers=mine)
    assert harness.act(episode, headers=mine).status_code == 200
    for headers in (other, {}):
        response = harness.act(episode, headers=headers)
        assert (response.status_code, response.json()["error"]) == (409, "conflict")
    assert harness.post("episodes", episode_id=episode, headers=other).status_code == 409
    assert harness.act(episode, headers=mine).status_code == 200


def test_two_requests_at_once_in_one_episode(serve: Any) -> None:
    harness = serve()
    episode = harness.start()
    harness.act(episode)
    harness.loop.gate.clear()  # learning; the loop may be in a last poll, which this request ends
    harness.act(harness.start())
    replies: list[Any] = []
    waiting = threading.Thread(target=lambda: replies.append(harness.act(episode, request_id="first")))
    waiting.start()
    while not harness.server.episodes._episodes[episode].asked:
        time.sleep(0.001)
    assert harness.act(episode, request_id="second").status_code == 409
    harness.loop.gate.set()
    waiting.join(20)
    assert replies[0].status_code == 200


def test_a_retry_gets_the_same_answer_and_counts_once(serve: Any) -> None:
    answers = iter(range(1000))
    harness = serve(act=lambda obs: next(answers))
    first = harness.post("episodes", request_id="start")
    assert harness.post("episodes", request_id="start").json() == first.json()
    episode = first.json()["episode_id"]
    acted = harness.act(episode, request_id="act", reward=0.0)
    assert harness.act(episode, request_id="act", reward=0.0).json() == acted.json()
    harness.post(f"episodes/{episode}/returns", request_id="pay", reward=1.0)
    harness.post(f"episodes/{episode}/returns", request_id="pay", reward=1.0)
    for _ in range(2):
        harness.post(f"episodes/{episode}/log_action", request_id="log", observation=[0, 0], action=9, reward=2.0)
    assert harness.end(episode, request_id="end", reward=4.0).status_code == 200
    assert harness.end(episode, request_id="end", reward=4.0).status_code == 200
    harness.loop.wait_for(lambda: harness.loop.returns)
    assert harness.loop.returns == {episode: 7.0}
    assert [step[1] for step in harness.loop.steps[episode]] == [0, 9]


def test_a_retry_joins_the_first_try_while_the_server_learns(serve: Any) -> None:
    harness = serve(client_timeout_s=0.6)
    episode = harness.start()
    harness.act(episode, request_id="before")
    harness.loop.gate.clear()
    assert harness.act(harness.start(), request_id="last.poll").status_code in (200, 202)
    assert harness.act(episode, request_id="held", reward=1.0).status_code == 202
    assert harness.act(episode, request_id="held", reward=1.0).json()["status"] == "wait"
    harness.loop.gate.set()
    reply = harness.act(episode, request_id="held", reward=1.0)
    while reply.status_code == 202:
        reply = harness.act(episode, request_id="held", reward=1.0)
    assert reply.json() == {"status": "ready", "action": 0}
    harness.end(episode)
    harness.loop.wait_for(lambda: episode in harness.loop.returns)
    assert harness.loop.returns[episode] == 1.0


def test_a_vanished_client_is_given_up_and_a_slow_one_is_not(serve: Any) -> None:
    harness = serve(client_timeout_s=0.8)
    slow, gone = {"X-Headwater-Client": "slow"}, {"X-Headwater-Client": "gone"}
    kept, lost, unseen = harness.start(headers=slow), harness.start(headers=gone), harness.start(headers=gone)
    harness.act(kept, headers=slow)
    harness.act(lost, headers=gone)
    alone = harness.start()  # of a client that gives no name
    harness.act(alone)
    while not {lost, alone} <= harness.loop.lost.keys():
        time.sleep(0.3)  # slow, yet within the limit
        assert harness.act(kept, headers=slow).status_code == 200
    assert set(harness.loop.lost) == {lost, alone} and "silent" in harness.loop.lost[lost]
    response = harness.act(lost, headers=gone)
    assert (response.status_code, response.json()["error"]) == (410, "episode_lost")
    assert not harness.server.episodes.is_running(unseen) and harness.server.episodes.is_running(kept)


def test_too_many_episodes(serve: Any) -> None:
    harness = serve(max_concurrent=1)
    harness.start()
    response = harness.post("episodes")
    assert (response.status_code, response.json()["error"]) == (429, "too_many_episodes")


def test_a_hundred_clients_at_once(serve: Any) -> None:
    harness = serve(act=lambda obs: int(obs[0]))
    begin = threading.Barrier(100)
    failures: list[Any] = []

    def episode(number: int) -> None:
        try:
            with httpx.Client(base_url=harness.address, timeout=60, trust_env=False) as http:
                begin.wait(30)
                name = http.post("/v1/episodes", json={"request_id": f"{number}"}).json()["episode_id"]
                for t in range(5):
                    body = {"request_id": f"{number}.{t}", "observation": [t, 0], "reward": 1.0 if t else 0.0}
                    assert http.post(f"/v1/episodes/{name}/action", json=body).json()["action"] == t
                end = {"request_id": f"{number}.end", "observation": [0, 0], "reward": 1.0}
                assert http.post(f"/v1/episodes/{name}/end", json=end).status_code == 200
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=episode, args=(k,)) for k in range(100)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures
    harness.loop.wait_for(lambda: len(harness.loop.returns) == 100)
    assert set(harness.loop.returns.values()) == {5.0}
    assert max(harness.loop.sizes) > 1


def test_several_agents(serve: Any) -> None:
    one = spaces.Box(0, 1, (1,))
    harness = serve(
        act=lambda obs: 1,
        observation_space={"a": OBS, "b": one},
        action_space=spaces.Discrete(2),
    )
    assert harness.http.get("/v1/info").json()["multi_agent"] is True
    episode = harness.start()
    url = f"episodes/{episode}/action"
    assert harness.post(url, observation={"a": [0, 0], "c": [0]}).status_code == 422
    assert harness.post(url, observation=[0, 0]).status_code == 422
    both = {"a": [0, 0], "b": [0.5]}
    assert harness.post(url, observation=both).json()["action"] == {"a": 1, "b": 1}
    assert harness.post(url, observation=both, reward=1.0).status_code == 422
    assert harness.post(url, observation=both, reward={"c": 1.0}).status_code == 422
    assert harness.post(url, observation=both, terminateds={"__all__": True}).status_code == 422
    reply = harness.post(url, observation=both, reward={"a": 1.0, "b": 2.0}, terminateds={"a": True})
    assert reply.json()["action"] == {"b": 1}
    logged = {"observation": {"b": [0]}, "action": {"a": 1}}
    assert harness.post(f"episodes/{episode}/log_action", **logged).status_code == 422
    assert harness.post(f"episodes/{episode}/end", observation={"b": [0]}, reward={"b": 4.0}).status_code == 200
    harness.loop.wait_for(lambda: harness.loop.returns)
    assert harness.loop.returns == {episode: 7.0}
    assert harness.http.get("/v1/policy").status_code == 409
    assert (
        harness.post("steps", episode_id="x", first_step=0, observations=[], actions=[], rewards=[]).status_code == 409
    )


def test_steps_of_an_episode_together(serve: Any) -> None:
    harness = serve()
    part = {
        "episode_id": "far",
        "first_step": 0,
        "observations": [[1, 0], [2, 0]],
        "actions": [5, 6],
        "rewards": [1, 2],
    }
    assert harness.post("steps", request_id="a", **part).json() == {"num_steps": 2}
    assert harness.post("steps", request_id="a", **part).json() == {"num_steps": 2}
    assert harness.post("steps", **part).status_code == 409  # another request for steps that are there
    assert harness.post("steps", **{**part, "first_step": 5}).status_code == 409
    assert harness.post("steps", **{**part, "episode_id": "no", "first_step": 5}).status_code == 404
    rest = {**part, "first_step": 2, "end": {"observation": [0, 0], "terminated": False, "truncated": True}}
    assert harness.post("steps", **rest).json() == {"num_steps": 4}
    harness.loop.wait_for(lambda: harness.loop.returns)
    assert harness.loop.returns == {"far": 6.0}
    assert [(step[1], step[2]) for step in harness.loop.steps["far"]] == [(5, True), (6, True)] * 2
    assert harness.post("steps", **{**rest, "first_step": 4}).status_code == 409  # it has ended


@pytest.mark.parametrize(
    "change",
    [
        {"rewards": [1.0]}, {"rewards": [[1.0], [2.0]]}, {"rewards": ["a", "b"]}, {"rewards": None},
        {"rewards": [1, 1e999]},
        {"observations": [[1, 0]]}, {"observations": [[1, 0], [99, 0]]}, {"observations": None},
        {"actions": [5, -1]}, {"actions": [5]}, {"actions": [5, 1000]}, {"actions": [0.5, 1.0]}, {"actions": {}},
        {"infos": [{}]}, {"first_step": -1}, {"dist_inputs": [[0.0]] * 2},
        {"end": {"observation": [0], "terminated": True, "truncated": False}},
        {"end": {"observation": [0, 0], "terminated": False, "truncated": False}},
    ],
)  # fmt: skip
def test_steps_that_do_not_fit(serve: Any, change: dict[str, Any]) -> None:
    harness = serve()
    part = {
        "episode_id": "far",
        "first_step": 0,
        "observations": [[1, 0], [2, 0]],
        "actions": [5, 6],
        "rewards": [1, 2],
    }
    text = json.dumps({"request_id": "x", **part, **change}).replace("Infinity", "1e999")
    response = harness.http.post("/v1/steps", content=text, headers={"Content-Type": "application/json"})
    assert response.status_code == 422, response.text
    assert not harness.server.episodes._episodes
    assert harness.post("steps", **part).status_code == 200


def test_stopping_answers_those_who_wait(serve: Any) -> None:
    harness = serve()
    episode = harness.start()
    harness.act(episode)
    harness.loop.gate.clear()
    harness.act(harness.start())
    replies: list[Any] = []
    waiting = threading.Thread(target=lambda: replies.append(harness.act(episode)))
    waiting.start()
    while not harness.server.episodes._episodes[episode].asked:
        time.sleep(0.001)
    began = time.monotonic()
    harness.loop.env.stop()
    waiting.join(10)
    assert replies[0].status_code == 503
    assert time.monotonic() - began < 5


def test_the_answer_of_a_body_as_arrays_is_read_back() -> None:
    message = {
        "a": np.arange(6, dtype=np.int16).reshape(2, 3),
        "b": [np.float32(0.1), {"c": np.zeros((0, 3))}],
        "d": "x",
    }
    read = decode(encode(message, ARRAYS_TYPE), ARRAYS_TYPE)
    assert read["a"].dtype == np.int16 and read["a"].tolist() == [[0, 1, 2], [3, 4, 5]]
    assert read["b"][1]["c"].shape == (0, 3) and read["d"] == "x"
    assert np.float32(read["b"][0]) == np.float32(0.1)
