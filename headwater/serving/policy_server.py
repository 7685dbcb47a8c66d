"""PolicyServerInput: an external env whose episodes are run by clients, over HTTP."""

from __future__ import annotations

import ipaddress
import logging
import secrets
import socket
import time
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from gymnasium import spaces

from headwater.data.sample_batch import DEFAULT_POLICY_ID
from headwater.envs.external_env import ExternalEnv
from headwater.errors import ConfigError, EnvError, require
from headwater.serving.policy_packing import pack

logger = logging.getLogger(__name__)

MIN_EXPORT_INTERVAL_S = 0.2  # where nobody says when the weights changed


class PolicyServerInput(ExternalEnv):
    """Listens for `PolicyClient`s, or whatever speaks the protocol in `headwater.serving.protocol`.

    What a client sends is checked before it is used: nothing that one does disturbs the episodes of others. Clients in
    mode "remote" ask the server for each action; those in mode "local" fetch the policy and send whole steps.

    Args:
        context: the EnvContext that the env's creator got, or the IOContext of an input; "observation_space" and
            "action_space" are looked for in it, in its settings and in its config, where they are not given.
        address: where to listen. Any but this machine's own needs a token.
        port: 0 takes a free one, then in `port`.
        observation_space, action_space: of the agent; with several agents of each, or {agent id: space} with strings
            as ids.
        token: what clients must send as bearer token.
        multi_agent: default: whether a space is given by agent.
        max_concurrent: how many episodes may run at once.
        max_body_bytes: of a request.
        client_timeout_s: a client that is silent for so long is given up, and its episodes with it. `PolicyClient`
            gives signs of life, however slow its env is.
        timeout_s: see `ExternalEnv`.

    Attributes:
        address, port: where it listens.

    Raises:
        ConfigError: an address that others can reach, without a token; or spaces are missing.
        EnvError: it cannot listen there.

    Example:
        >>> server = PolicyServerInput(
        ...     {"observation_space": spaces.Box(-1, 1, (4,)), "action_space": spaces.Discrete(2)}, port=0
        ... )
        >>> server.address, server.port > 0
        ('127.0.0.1', True)
        >>> server.stop()
    """

    def __init__(
        self,
        context: Any = None,
        address: str = "127.0.0.1",
        port: int = 9900,
        *,
        observation_space: Any = None,
        action_space: Any = None,
        token: str | None = None,
        multi_agent: bool | None = None,
        max_concurrent: int = 1000,
        max_body_bytes: int = 16 * 1024 * 1024,
        client_timeout_s: float = 60.0,
        timeout_s: float = 60.0,
    ) -> None:
        require("starlette", "serve")
        require("uvicorn", "serve")
        observation_space = _given("observation_space", observation_space, context)
        action_space = _given("action_space", action_space, context)
        super().__init__(action_space, observation_space, max_concurrent, timeout_s)
        by_agent = any(not isinstance(space, spaces.Space) for space in (observation_space, action_space))
        self.is_multi_agent = by_agent if multi_agent is None else multi_agent
        if token is None and not _is_loopback(address):
            raise ConfigError(
                f"PolicyServerInput: at {address!r} others can reach it: give it a token=..., which its clients must "
                "send, or let it listen at 127.0.0.1."
            )
        self.token = token
        self.max_body_bytes = max_body_bytes
        self.client_timeout_s = client_timeout_s
        self.shelf = PolicyShelf(self)
        self._server: Any = None
        self._stopping = False
        self._socket = _listen(address, port)
        self.address, self.port = address, int(self._socket.getsockname()[1])

    def attach(self, worker: Any) -> None:
        """Serve the policy of this worker, and begin to listen."""
        self.shelf.worker = worker
        self.start()

    def on_sample(self, worker: Any) -> None:
        """The worker begins a fragment: its policy may have changed since the last."""
        self.shelf.worker = worker
        self.shelf.num_changes += 1

    def run(self) -> None:
        """Serve, until stopped."""
        import uvicorn

        from headwater.serving.server_app import make_app

        config = uvicorn.Config(
            make_app(self), log_level="warning", access_log=False, ws="none", lifespan="on", http="h11",
            timeout_graceful_shutdown=2, timeout_keep_alive=75,
        )  # fmt: skip
        self._server = uvicorn.Server(config)
        if not self._stopping:
            self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        self._stopping = True
        if self._server is not None:
            self._server.should_exit = True
        super().stop()
        if self._thread is not None:
            self._thread.join(timeout=5.0)
        self._socket.close()


class PolicyShelf:
    """The policy as clients fetch it: packed in the sampler's thread while it polls, and only where one was asked for.

    Attributes:
        worker: whose policy it is; None: there is none to fetch.
        num_changes: how often the policy may have changed.
        version, body: of the policy packed last; the version stays where nothing changed.
    """

    def __init__(self, env: ExternalEnv) -> None:
        self._env = env
        self.worker: Any = None
        self.num_changes = 0
        self.version = ""
        self.body = b""
        self._hash = ""
        self._run, self._count = secrets.token_hex(4), 0
        self._packed_at = -1
        self._packed_when = 0.0
        self._pending: Future[Any] | None = None

    def is_fresh(self) -> bool:
        """Whether `body` is the present policy."""
        if self.num_changes:
            return self._packed_at == self.num_changes
        return bool(self.body) and time.monotonic() - self._packed_when < MIN_EXPORT_INTERVAL_S

    def refresh(self) -> Future[Any]:
        """A future that is done when `body` is fresh."""
        if self._pending is None or self._pending.done():
            self._pending = self._env.episodes.in_poll(self._pack)
        return self._pending

    def num_outputs(self) -> int | None:
        """K, the width of the distribution's inputs; None where that is not known."""
        policies = getattr(self.worker, "policy_map", {})
        return getattr(policies.get(DEFAULT_POLICY_ID), "num_outputs", None)

    def algorithm(self) -> str | None:
        """The name of the algorithm that learns."""
        config = getattr(self.worker, "config", None)
        return None if config is None else type(config).__name__.removesuffix("Config")

    def _pack(self) -> None:
        changes = self.num_changes
        if self._packed_at == changes and self.is_fresh():
            return
        body, digest = pack(self.worker, DEFAULT_POLICY_ID)
        if digest != self._hash:
            self._count += 1
            self._hash, self.body, self.version = digest, body, f"{self._run}-{self._count}"
        self._packed_at, self._packed_when = changes, time.monotonic()


def _given(name: str, space: Any, context: Any) -> Any:
    config = getattr(context, "config", None)
    for place in (context, getattr(context, "settings", None), getattr(config, "env_config", None), config):
        if space is None and isinstance(place, Mapping):
            space = place.get(name)
        if space is None:
            space = getattr(place, name, None)
    if space is None:
        raise ConfigError(
            f"PolicyServerInput: {name} is missing. Give {name}=..., or set it in env_config: a server cannot know "
            "what its clients' envs look like."
        )
    return space


def _is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _listen(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((address, port))
        listener.listen(1024)
    except (OSError, OverflowError) as error:
        listener.close()
        raise EnvError(
            f"PolicyServerInput cannot listen at {address}:{port}: {error}. Give another port; where several workers "
            "have one each, port + context.worker_index."
        ) from error
    return listener
