"""Calls of a policy server: tried again where the answer was lost, with errors that say what the server said."""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Mapping
from typing import Any

from headwater.envs.external_episodes import EpisodeLost
from headwater.errors import ConfigError, EnvError, require
from headwater.serving.bodies import JSON_TYPE, BadBody, decode, encode
from headwater.serving.protocol import CLIENT_HEADER, PROTOCOL, PROTOCOL_HEADER

logger = logging.getLogger(__name__)

LONGEST_PAUSE_S = 2.0  # between tries
READ_TIMEOUT_S = 60.0  # longer than any server holds a request


class ServerRefused(EnvError):
    """The server answered with an error; `code` is the protocol's."""

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class Calls:
    """HTTP calls of one server.

    Args:
        address: "http://host:port"; without a scheme, http.
        token: the bearer token.
        reconnect_s: how long a server that cannot be reached is tried again.

    Attributes:
        closed: set once nothing is to be tried any more.
    """

    def __init__(self, address: str, token: str | None, reconnect_s: float) -> None:
        httpx = require("httpx", "serve")
        self.address = (address if "://" in address else f"http://{address}").rstrip("/")
        self.reconnect_s = reconnect_s
        self.closed = threading.Event()
        headers = {PROTOCOL_HEADER: PROTOCOL, CLIENT_HEADER: uuid.uuid4().hex}
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        self._transport_errors = (httpx.TransportError,)
        self._client = httpx.Client(
            base_url=self.address, headers=headers, trust_env=False,
            timeout=httpx.Timeout(READ_TIMEOUT_S, connect=5.0, pool=None),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=None),
        )  # fmt: skip

    def post(self, path: str, message: Mapping[str, Any], content_type: str = JSON_TYPE) -> dict[str, Any]:
        """Send a message until it is answered; its request id makes that safe.

        Raises:
            EpisodeLost: the server does not know the episode, or gave it up.
            EnvError: the server refused the message, or cannot be reached.
        """
        try:
            body = encode({"request_id": uuid.uuid4().hex, **message}, content_type)
        except (TypeError, ValueError) as error:
            raise EnvError(f"{self.address}{path}: this cannot be sent: {error}.") from error
        while True:
            response = self._send("POST", path, content=body, headers={"Content-Type": content_type})
            if response.status_code == 202:
                continue  # the server held it for a while already
            content = self._content(response)
            if response.status_code == 200:
                return content
            if response.status_code == 429 and content.get("error") == "busy":
                self._pause(0.05)
                continue
            raise self._error(path, response.status_code, content)

    def get(self, path: str, headers: Mapping[str, str] | None = None, wait: bool = True) -> Any:
        """A response with status 200 or 304; None with `wait=False` where the server is not ready.

        Raises:
            EnvError: as of `post`.
        """
        while True:
            response = self._send("GET", path, headers=dict(headers or {}))
            if response.status_code in (200, 304):
                return response
            content = self._content(response)
            if content.get("error") != "policy_not_ready":
                raise self._error(path, response.status_code, content)
            if not wait:
                return None
            self._pause(0.1)

    def get_message(self, path: str) -> dict[str, Any]:
        """The message that a GET is answered with."""
        return self._content(self.get(path))

    def close(self) -> None:
        """Let nothing be tried again, and close the connections."""
        self.closed.set()
        self._client.close()

    def _send(self, method: str, path: str, **parts: Any) -> Any:
        """A response, however often the way there breaks, for `reconnect_s`."""
        pause, failed_since = 0.05, None
        while True:
            if self.closed.is_set():
                raise EnvError(f"{self.address}: the client is closed.")
            try:
                response = self._client.request(method, path, **parts)
                if response.status_code != 503 or b"policy_not_ready" in response.content:
                    return response
                what = "it is stopping"
            except self._transport_errors as error:
                what = f"{type(error).__name__}: {error}"
            except RuntimeError as error:  # closed by another thread meanwhile
                raise EnvError(f"{self.address}: the client is closed.") from error
            now = time.monotonic()
            failed_since = now if failed_since is None else failed_since
            if now - failed_since > self.reconnect_s:
                raise EnvError(
                    f"The policy server at {self.address} could not be reached for {self.reconnect_s} s ({what}). "
                    "Start it, give its address, or give the client a larger reconnect_s."
                )
            logger.info("The policy server at %s cannot be reached (%s); trying again.", self.address, what)
            self._pause(pause)
            pause = min(LONGEST_PAUSE_S, 2 * pause)

    def _pause(self, seconds: float) -> None:
        self.closed.wait(seconds)

    def _content(self, response: Any) -> dict[str, Any]:
        try:
            return decode(response.content, response.headers.get("content-type", "").partition(";")[0])
        except BadBody as error:
            raise EnvError(
                f"{self.address} answered {response.status_code} with what is no message ({error}). Is it a policy "
                "server?"
            ) from error

    def _error(self, path: str, status: int, content: Mapping[str, Any]) -> Exception:
        code, reason = str(content.get("error")), str(content.get("reason"))
        if code == "unknown_episode":
            return EpisodeLost(f"{reason} The server was started anew, or gave it up.")
        if code == "episode_lost":
            return EpisodeLost(reason)
        if status == 401:
            return ConfigError(f"{self.address}: {reason} Give the client token=..., as the server has it.")
        return ServerRefused(f"{self.address}{path} refused ({code}): {reason}", code)
