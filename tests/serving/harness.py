"""A policy server with a tiny sampler behind it, on a real socket."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import httpx
from gymnasium import spaces

from headwater.serving.policy_server import PolicyServerInput
from tests.envs.external_loop import Loop

OBS = spaces.Box(-10, 10, (2,))
ACTIONS = spaces.Discrete(1000)


class Harness:
    """A server, its sampler, and plain HTTP to it."""

    def __init__(self, act: Callable[[Any], Any] = lambda obs: 0, worker: Any = None, **kwargs: Any) -> None:
        given = {"observation_space": OBS, "action_space": ACTIONS, "port": 0, **kwargs}
        self.server = PolicyServerInput(**given)
        self.loop = Loop(self.server, act)
        if worker is not None:
            self.server.attach(worker)
        self.loop.start()
        self.address = f"http://127.0.0.1:{self.server.port}"
        headers = {} if self.server.token is None else {"Authorization": f"Bearer {self.server.token}"}
        self.http = httpx.Client(base_url=self.address, headers=headers, timeout=30, trust_env=False)
        self._ids = itertools.count()

    def post(self, path: str, **message: Any) -> httpx.Response:
        message.setdefault("request_id", f"r{next(self._ids)}")
        headers = message.pop("headers", {})
        return self.http.post(f"/v1/{path}", json=message, headers=headers)

    def start(self, **message: Any) -> str:
        response = self.post("episodes", **message)
        assert response.status_code == 200, response.text
        return str(response.json()["episode_id"])

    def act(self, episode: str, obs: Any = (0.0, 0.0), **message: Any) -> httpx.Response:
        return self.post(f"episodes/{episode}/action", observation=list(obs), **message)

    def end(self, episode: str, **message: Any) -> httpx.Response:
        return self.post(f"episodes/{episode}/end", observation=[0.0, 0.0], **message)

    def stop(self) -> None:
        self.http.close()
        self.loop.stop()
