"""The policy server's HTTP side: what each request does to the episodes, and what is answered.

    bytes -> [size, token, type] -> message -> [values in their spaces] -> ExternalEpisodes -> reply

All runs in one event loop, which never waits for the sampler: an action is a future, and a client that has waited
`hold_s` is told to ask again, so that a client which is gone is noticed.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from gymnasium import spaces
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headwater import __version__
from headwater.envs.base_env import AGENT_ID, PerAgent
from headwater.envs.external_episodes import (
    EpisodeConflict,
    EpisodeLost,
    Stopped,
    TooManyEpisodes,
    UnknownEpisode,
)
from headwater.envs.space_check import Mismatch
from headwater.envs.space_json import space_to_json
from headwater.errors import EnvError, HeadwaterError
from headwater.serving import openapi, protocol
from headwater.serving.bodies import ARRAYS_TYPE, JSON_TYPE, BadBody, decode, encode
from headwater.serving.served_steps import add_steps, checked_steps
from headwater.serving.values import checked

if TYPE_CHECKING:
    from headwater.serving.policy_server import PolicyServerInput

logger = logging.getLogger(__name__)

REMEMBERED_REPLIES = 10_000
LARGE_BODY = 256 * 1024  # bytes; larger ones are decoded beside the event loop
TICKS = 8  # looks at the clients in client_timeout_s
_FAULTS: list[tuple[type[Exception], int, str]] = [
    (UnknownEpisode, 404, "unknown_episode"),
    (EpisodeLost, 410, "episode_lost"),
    (EpisodeConflict, 409, "conflict"),
    (TooManyEpisodes, 429, "too_many_episodes"),
    (Stopped, 503, "stopping"),
    (BadBody, 400, "bad_body"),
    (Mismatch, 422, "bad_value"),
    (ValidationError, 422, "bad_message"),
    (EnvError, 409, "conflict"),
    (HeadwaterError, 409, "refused"),
]


class Refused(Exception):
    """The answer is an error."""

    def __init__(self, status: int, error: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.error = status, error


class Served:
    """An episode of a client.

    Attributes:
        owner: the client; its id, or where it gives none, one that stands for the episode alone.
        num_steps: steps that came by /v1/steps.
        asked: the request that waits for an action, and its future.
    """

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.num_steps = 0
        self.asked: tuple[str, asyncio.Future[Any]] | None = None


class ServerApp:
    """The handlers.

    Args:
        env: the server.

    Attributes:
        hold_s: how long a request waits for the sampler before it is answered "wait".
    """

    def __init__(self, env: PolicyServerInput) -> None:
        self.env = env
        self.episodes = env.episodes
        self.hold_s = min(20.0, env.client_timeout_s / 3)
        self._served: dict[str, Served] = {}
        self._idle: dict[str, int] = {}  # owner -> looks since its last request
        self._busy: dict[str, int] = {}  # owner -> its requests that are being answered
        self._replies: OrderedDict[tuple[str, str, str], Response] = OrderedDict()

    def starlette(self) -> Starlette:
        """The application."""

        def post(path: str, model: type[BaseModel], handler: Any) -> Route:
            return Route(path, self._posted(model, handler), methods=["POST"])

        def get(path: str, handler: Any) -> Route:
            return Route(path, self._guarded(handler), methods=["GET"])

        one = "/v1/episodes/{episode_id}"
        return Starlette(
            routes=[
                post("/v1/episodes", protocol.StartRequest, self.start),
                post(f"{one}/action", protocol.ActionRequest, self.action),
                post(f"{one}/log_action", protocol.LogActionRequest, self.log_action),
                post(f"{one}/returns", protocol.ReturnsRequest, self.returns),
                post(f"{one}/end", protocol.EndRequest, self.end),
                post("/v1/steps", protocol.StepsRequest, self.steps),
                get("/v1/policy", self.policy),
                get("/v1/info", self.info),
                get("/openapi.json", self.openapi),
            ],
            exception_handlers={HTTPException: _http_error},
            lifespan=self._lifespan,
        )

    # What requests do. Each is called with (message, episode_id, owner, request).

    async def start(self, message: protocol.StartRequest, episode_id: str, owner: str, request: Request) -> Any:
        started = self.episodes.start(message.episode_id, message.training_enabled)
        self._served[started] = Served(owner or f"episode {started}")
        self._idle.setdefault(self._served[started].owner, 0)
        return protocol.StartReply(episode_id=started)

    async def action(self, message: protocol.ActionRequest, episode_id: str, owner: str, request: Request) -> Any:
        served = self._served.get(episode_id)
        if served is not None and served.asked is not None and served.asked[0] == message.request_id:
            future = served.asked[1]  # a retry: the first try waits still
        else:
            obs = self._by_agent(self.env.get_observation_space, message.observation, "observation")
            self._pay(episode_id, message)
            future = _awaitable(self.episodes.ask(episode_id, obs))
            if served is not None:
                served.asked = message.request_id, future
        await asyncio.wait({future}, timeout=self.hold_s)
        if not future.done():
            return Response(b'{"status":"wait","action":null}', 202, media_type=JSON_TYPE)
        if served is not None and served.asked is not None and served.asked[1] is future:
            served.asked = None
        actions = future.result()
        return {"status": "ready", "action": actions if self.env.is_multi_agent else actions[AGENT_ID]}

    async def log_action(
        self, message: protocol.LogActionRequest, episode_id: str, owner: str, request: Request
    ) -> Any:
        obs = self._by_agent(self.env.get_observation_space, message.observation, "observation")
        actions = self._by_agent(self.env.get_action_space, message.action, "action")
        if blind := sorted(set(actions) - set(obs)):
            raise Refused(422, "bad_value", f"action names agents that do not observe: {blind}")
        if (reply := await self._room(message, owner, request)) is not None:
            return reply
        self._pay(episode_id, message)
        self.episodes.log(episode_id, obs, actions)
        return protocol.DoneReply()

    async def returns(self, message: protocol.ReturnsRequest, episode_id: str, owner: str, request: Request) -> Any:
        self._pay(episode_id, message)
        return protocol.DoneReply()

    async def end(self, message: protocol.EndRequest, episode_id: str, owner: str, request: Request) -> Any:
        obs = self._by_agent(self.env.get_observation_space, message.observation, "observation")
        terminated = not message.truncated if message.terminated is None else message.terminated
        if not (terminated or message.truncated):
            raise Refused(422, "bad_message", "an end must be terminated or truncated")
        self._pay(episode_id, message)
        self.episodes.end(episode_id, obs, terminated, message.truncated)
        self._forget(episode_id)
        return protocol.DoneReply()

    async def steps(self, message: protocol.StepsRequest, _: str, owner: str, request: Request) -> Any:
        if self.env.is_multi_agent:
            raise Refused(409, "refused", "steps are of one agent each; clients of several agents act remotely")
        steps = checked_steps(self.env, message)
        episode_id = message.episode_id
        self._check_owner(episode_id, owner)
        if (reply := await self._room(message, owner, request)) is not None:
            return reply
        if message.first_step == 0 and episode_id not in self._served:
            self.episodes.start(episode_id, message.training_enabled)
            self._served[episode_id] = Served(owner or f"episode {episode_id}")
            self._idle.setdefault(self._served[episode_id].owner, 0)
        served = self._served.get(episode_id)
        if served is None:
            self.episodes.pay(episode_id, {})  # says why not
            raise Refused(404, "unknown_episode", f"There is no episode {episode_id!r} here.")
        if served.num_steps != message.first_step:
            raise Refused(409, "conflict", f"step {message.first_step} came where {served.num_steps} was to come")
        add_steps(self.episodes, episode_id, steps)
        served.num_steps += steps.num_steps
        if steps.end is not None:
            self._forget(episode_id)
        return protocol.StepsReply(num_steps=served.num_steps)

    async def policy(self, request: Request) -> Response:
        shelf = self.env.shelf
        if shelf.worker is None or self.env.is_multi_agent:
            what = "several agents" if self.env.is_multi_agent else "no policy attached"
            raise Refused(409, "refused", f"The server has {what}: act remotely (inference_mode='remote').")
        if not shelf.is_fresh():
            future = _awaitable(shelf.refresh())
            await asyncio.wait({future}, timeout=self.hold_s)
            if not future.done():
                raise Refused(503, "policy_not_ready", "The policy learns, and cannot be read now; try again.")
            future.result()
        etag = f'"{shelf.version}"'
        if request.headers.get("if-none-match") == etag:
            return Response(status_code=304, headers={"ETag": etag})
        return Response(shelf.body, media_type=ARRAYS_TYPE, headers={"ETag": etag})

    async def info(self, request: Request) -> Response:
        env = self.env
        return _reply(
            protocol.InfoReply(
                protocol=protocol.PROTOCOL,
                library_version=__version__,
                algorithm=env.shelf.algorithm(),
                multi_agent=env.is_multi_agent,
                observation_space=_spaces_to_json(env.observation_space),
                action_space=_spaces_to_json(env.action_space),
                max_body_bytes=env.max_body_bytes,
                client_timeout_s=env.client_timeout_s,
            )
        )

    async def openapi(self, request: Request) -> Response:
        return JSONResponse(openapi.document(__version__))

    # Parts of them.

    def _by_agent(self, space_of: Callable[[Any], Any], value: Any, path: str) -> PerAgent:
        """A value from the network by agent, checked."""
        if not self.env.is_multi_agent:
            return {AGENT_ID: checked(space_of(AGENT_ID), value, path)}
        if not isinstance(value, dict):
            raise Mismatch(f"{path} is a {type(value).__name__}, expected an object {{agent id: value}}")
        try:
            return {agent: checked(space_of(agent), part, f"{path}[{agent!r}]") for agent, part in value.items()}
        except EnvError as error:
            raise Mismatch(str(error)) from error

    def _pay(self, episode_id: str, message: protocol.Paid) -> None:
        """Do what a message says was paid; where nothing was, see that the episode runs all the same."""
        if isinstance(message.reward, dict) != self.env.is_multi_agent and message.reward != 0.0:
            raise Mismatch("reward must be a number with one agent, and {agent id: number} with several")
        if not self.env.is_multi_agent:
            if message.terminateds or message.truncateds:
                raise Mismatch("terminateds and truncateds are of several agents: end the episode by /end")
            info = {AGENT_ID: message.info} if message.info else None
            self.episodes.pay(episode_id, {AGENT_ID: message.reward}, info)
            return
        rewards = message.reward if isinstance(message.reward, dict) else {}
        infos = message.info or {}
        if not all(isinstance(info, dict) for info in infos.values()):
            raise Mismatch("info must be {agent id: object} with several agents")
        flags = message.terminateds or {}, message.truncateds or {}
        if any("__all__" in each for each in flags):
            raise Mismatch("all agents end by /end, not by '__all__'")
        try:
            for agent in {*rewards, *infos, *flags[0], *flags[1]}:
                self.env.get_observation_space(agent)
        except EnvError as error:
            raise Mismatch(str(error)) from error
        self.episodes.pay(episode_id, rewards, infos, *flags)

    async def _room(self, message: protocol.Request, owner: str, request: Request) -> Response | None:
        """Wait until few enough logged steps wait; the reply, where a first try was answered meanwhile."""
        future = _awaitable(self.episodes.room())
        if not future.done():
            await asyncio.wait({future}, timeout=self.hold_s)
        if not future.done():
            raise Refused(429, "busy", "Too many steps wait to be learned from; send this again.")
        future.result()
        return self._replies.get((owner, request.url.path, message.request_id))

    def _check_owner(self, episode_id: str, owner: str) -> None:
        served = self._served.get(episode_id)
        if served is not None and owner != served.owner and not served.owner.startswith("episode "):
            raise Refused(409, "conflict", f"Episode {episode_id!r} is another client's.")

    def _forget(self, episode_id: str) -> None:
        served = self._served.pop(episode_id, None)
        if served is not None and served.owner.startswith("episode "):
            self._idle.pop(served.owner, None)

    # Around them.

    def _guarded(self, handler: Callable[[Request], Coroutine[Any, Any, Response]]) -> Any:
        """A handler with the checks of all requests, whose errors are replies."""

        async def endpoint(request: Request) -> Response:
            try:
                self._check_headers(request)
                return await handler(request)
            except ClientDisconnect:
                return Response(status_code=499)
            except Exception as error:
                return _error_reply(error)

        return endpoint

    def _check_headers(self, request: Request) -> None:
        token = self.env.token
        if token is not None:
            given = request.headers.get("authorization", "")
            if not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
                raise Refused(401, "unauthorized", "The bearer token is missing or wrong.")
        version = request.headers.get(protocol.PROTOCOL_HEADER, protocol.PROTOCOL)
        if version != protocol.PROTOCOL:
            raise Refused(
                400, "bad_protocol", f"The client speaks protocol {version[:20]!r}, the server {protocol.PROTOCOL!r}."
            )
        owner = _owner_of(request)
        if owner in self._idle:
            self._idle[owner] = 0

    def _posted(self, model: type[BaseModel], handler: Any) -> Any:
        """A handler of a message: read it, and answer as before what was answered before."""

        async def post(request: Request) -> Response:
            body = await self._body(request)
            kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
            if kind not in (JSON_TYPE, ARRAYS_TYPE):
                raise Refused(415, "bad_type", f"The content type must be {JSON_TYPE} or {ARRAYS_TYPE}.")
            large = len(body) > LARGE_BODY
            content = await asyncio.to_thread(decode, body, kind) if large else decode(body, kind)
            message: Any = model.model_validate(content)
            episode_id = request.path_params.get("episode_id", "")
            owner = _owner_of(request)
            key = owner, request.url.path, message.request_id
            if key in self._replies:
                return self._replies[key]
            self._check_owner(episode_id, owner)
            who = owner or f"episode {episode_id or getattr(message, 'episode_id', '')}"
            self._busy[who] = self._busy.get(who, 0) + 1
            try:
                reply = _reply(await handler(message, episode_id, owner, request))
            finally:
                self._busy[who] -= 1
                if not self._busy[who]:
                    del self._busy[who]
                if who in self._idle:
                    self._idle[who] = 0
            if reply.status_code == 200:
                self._replies[key] = reply
                if len(self._replies) > REMEMBERED_REPLIES:
                    self._replies.popitem(last=False)
            return reply

        return self._guarded(post)

    async def _body(self, request: Request) -> bytes:
        limit = self.env.max_body_bytes
        length = request.headers.get("content-length", "0")
        chunks, size = [], 0
        too_large = length.isdigit() and int(length) > limit
        if not too_large:
            async for chunk in request.stream():
                size += len(chunk)
                if size > limit:
                    too_large = True
                    break
                chunks.append(chunk)
        if too_large:
            raise Refused(413, "too_large", f"The body has more than {limit} bytes; send fewer steps at once.")
        return b"".join(chunks)

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        watch = asyncio.create_task(self._watch_clients())
        try:
            yield
        finally:
            watch.cancel()

    async def _watch_clients(self) -> None:
        """Give up clients that are silent. Looks are counted, not seconds: a loop that lags gives up nobody."""
        while True:
            await asyncio.sleep(self.env.client_timeout_s / TICKS)
            for owner in list(self._idle):
                self._idle[owner] = 0 if owner in self._busy else self._idle[owner] + 1
            silent = {owner for owner, looks in self._idle.items() if looks > TICKS}
            for episode_id, served in list(self._served.items()):
                if not self.episodes.is_running(episode_id):
                    self._forget(episode_id)  # the sampler cut it
                elif served.owner in silent:
                    reason = f"its client was silent for {self.env.client_timeout_s} s"
                    logger.warning("Policy server: episode %r is abandoned: %s.", episode_id, reason)
                    self._forget(episode_id)
                    self.episodes.abandon(episode_id, reason)
            for owner in silent:
                self._idle.pop(owner, None)


def make_app(env: PolicyServerInput) -> Starlette:
    """The application of a policy server."""
    return ServerApp(env).starlette()


def _owner_of(request: Request) -> str:
    return request.headers.get(protocol.CLIENT_HEADER, "")[:200]


def _awaitable(future: Future[Any]) -> asyncio.Future[Any]:
    wrapped = asyncio.wrap_future(future)
    wrapped.add_done_callback(lambda done: done.cancelled() or done.exception())  # its waiter may be gone
    return wrapped


def _reply(content: Any) -> Response:
    if isinstance(content, Response):
        return content
    if isinstance(content, BaseModel):
        content = content.model_dump()
    return Response(encode(content, JSON_TYPE), media_type=JSON_TYPE)


def _error_reply(error: Exception) -> Response:
    if isinstance(error, Refused):
        return _refusal(error.status, error.error, str(error))
    for kind, status, code in _FAULTS:
        if isinstance(error, kind):
            return _refusal(status, code, _problems(error) if isinstance(error, ValidationError) else str(error))
    logger.exception("Policy server: a request failed.", exc_info=error)
    return _refusal(500, "internal", f"{type(error).__name__}; see the server's log.")


def _refusal(status: int, error: str, reason: str) -> Response:
    return JSONResponse({"error": error, "reason": reason[:2000]}, status)


def _problems(error: ValidationError) -> str:
    return "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    return _refusal(
        status, "no_such_request", f"{request.method} {request.url.path[:200]} is not part of the protocol."
    )


def _spaces_to_json(given: Any) -> dict[str, Any]:
    if isinstance(given, spaces.Space):
        return space_to_json(given)
    return {"by_agent": {agent: space_to_json(space) for agent, space in given.items()}}
