"""PolicyClient: runs episodes in another process than the trainer's, without a framework or the server's packages.

client = PolicyClient("http://127.0.0.1:9900", inference_mode="remote")
episode = client.start_episode()
action = client.get_action(episode, observation)
client.log_returns(episode, reward)
client.end_episode(episode, observation)
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from gymnasium import spaces

from headwater.envs.external_episodes import EpisodeLost as EpisodeLost
from headwater.envs.nested import as_row, tree_map
from headwater.envs.space_check import Mismatch, check_value
from headwater.envs.space_json import space_from_json
from headwater.errors import ConfigError, EnvError, HeadwaterError
from headwater.serving.bodies import content_type_for
from headwater.serving.http_calls import Calls, ServerRefused
from headwater.serving.protocol import PROTOCOL

logger = logging.getLogger(__name__)


class PolicyClient:
    """A client of a `PolicyServerInput`. All methods may be called from any thread.

    In mode "remote" the server acts. In mode "local" a copy of its policy does, in NumPy: faster, and with a policy
    that is up to `update_interval` old, which the learner corrects for; steps are sent in the background, and what goes
    wrong there is raised by the next call.

    Args:
        address: "http://host:port" of the server; it may start later, within `reconnect_s`.
        inference_mode: "local" or "remote".
        update_interval: seconds between two looks for a newer policy in mode "local"; None: only when told.
        token: what the server asks for.
        reconnect_s: how long a server that cannot be reached is tried again.
        seed: of the actions that are sampled in mode "local".
        max_unsent_steps: steps that may wait to be sent in mode "local"; then `get_action` waits, as it does in mode
            "remote", while the server learns.

    Attributes:
        observation_space, action_space: as the server has them.

    Raises:
        ConfigError: an unknown mode, a wrong token, or a mode that the server cannot serve.
        EnvError: the server cannot be reached, or is none.

    Example:
        >>> PolicyClient("http://127.0.0.1:9", reconnect_s=0)
        Traceback (most recent call last):
        headwater.errors.EnvError: The policy server at http://127.0.0.1:9 could not be reached for 0 s ...
    """

    def __init__(
        self,
        address: str = "http://127.0.0.1:9900",
        inference_mode: str = "local",
        update_interval: float | None = 10.0,
        token: str | None = None,
        *,
        reconnect_s: float = 60.0,
        seed: int | None = None,
        max_unsent_steps: int = 1000,
    ) -> None:
        if inference_mode not in ("local", "remote"):
            raise ConfigError(f"inference_mode must be 'local' or 'remote', not {inference_mode!r}.")
        self.inference_mode = inference_mode
        self.update_interval = update_interval
        self._lock = threading.RLock()
        self._local: dict[str, Any] = {}
        self._paid: dict[str, dict[str, Any]] = {}  # mode remote: what is told with the next request
        self._error: HeadwaterError | None = None
        self._threads: list[threading.Thread] = []
        self._sender: Any = None
        self._copy: Any = None
        self._calls = Calls(address, token, reconnect_s)
        try:
            self._read_info()
            if inference_mode == "local":
                self._begin_local(seed, max_unsent_steps)
            self._begin_thread(self._say_alive)
        except BaseException:
            self.close()
            raise

    # Episodes.

    def start_episode(self, episode_id: str | None = None, training_enabled: bool = True) -> str:
        """Begin an episode; see `ExternalEnv.start_episode`."""
        self._raise_error()
        if self._sender is None:
            message = {"episode_id": episode_id, "training_enabled": training_enabled}
            episode_id = str(self._calls.post("/v1/episodes", message)["episode_id"])
            self._paid[episode_id] = {}
            return episode_id
        from headwater.serving.local_acting import LocalEpisode

        episode_id = uuid.uuid4().hex if episode_id is None else episode_id
        with self._lock:
            if episode_id in self._local:
                raise EnvError(f"Episode {episode_id!r} is in use already; give each episode an id of its own.")
            self._local[episode_id] = LocalEpisode(episode_id, training_enabled)
        return episode_id

    def get_action(self, episode_id: str, observation: Any) -> Any:
        """The action for an observation, with several agents {agent id: action}.

        Raises:
            EpisodeLost: the server was started anew, or gave the episode up: begin a new one.
            EnvError: the server refused it, or cannot be reached.
        """
        self._raise_error()
        if self._sender is not None:
            return self._act_locally(episode_id, observation)
        reply = self._post_paid(episode_id, "action", {"observation": self._obs(observation)})
        return self._action(reply["action"])

    def log_action(self, episode_id: str, observation: Any, action: Any) -> None:
        """Tell of an action that was taken already, as the env takes it.

        Raises:
            EpisodeLost, EnvError: as of `get_action`.
        """
        self._raise_error()
        if self._sender is not None:
            self._log_locally(episode_id, observation, action)
            return
        content = {"observation": self._obs(observation), "action": self._values(self.action_space, action, "action")}
        self._post_paid(episode_id, "log_action", content)

    def log_returns(
        self,
        episode_id: str,
        reward: float | Mapping[Any, float],
        info: Mapping[Any, Any] | None = None,
        terminateds: Mapping[Any, bool] | None = None,
        truncateds: Mapping[Any, bool] | None = None,
    ) -> None:
        """Pay the latest action; adds up until the next observation, and is sent with it.

        Args:
            episode_id: of the episode.
            reward, info: with several agents by agent.
            terminateds, truncateds: agents that have ended while the others go on.

        Raises:
            EpisodeLost, EnvError: as of `get_action`.
        """
        self._raise_error()
        if self._sender is not None:
            with self._lock:
                episode = self._episode(episode_id)
                if episode.open is None:
                    episode.early_reward += float(reward)  # type: ignore[arg-type]
                else:
                    episode.open["reward"] += float(reward)  # type: ignore[arg-type]
                    episode.open["info"] = {**(episode.open["info"] or {}), **(info or {})} or None
            return
        with self._lock:
            paid = self._paid_of(episode_id)
            if isinstance(reward, Mapping):
                before = paid.get("reward", {})
                paid["reward"] = before | {agent: before.get(agent, 0.0) + float(r) for agent, r in reward.items()}
            else:
                paid["reward"] = paid.get("reward", 0.0) + float(reward)
            for name, given in (("terminateds", terminateds), ("truncateds", truncateds)):
                if given:
                    paid[name] = paid.get(name, {}) | {agent: bool(flag) for agent, flag in given.items()}
            if info and self.is_multi_agent:
                infos = paid.setdefault("info", {})
                infos.update({agent: infos.get(agent, {}) | dict(each) for agent, each in info.items()})
            elif info:
                paid["info"] = paid.get("info", {}) | dict(info)

    def end_episode(
        self, episode_id: str, observation: Any, terminated: bool | None = None, truncated: bool = False
    ) -> None:
        """End an episode; see `ExternalEnv.end_episode`.

        Raises:
            EpisodeLost, EnvError: as of `get_action`.
        """
        self._raise_error()
        terminated = not truncated if terminated is None else terminated
        if not (terminated or truncated):
            raise EnvError(f"Episode {episode_id!r}: end_episode() needs terminated=True or truncated=True.")
        end = {"observation": self._obs(observation), "terminated": bool(terminated), "truncated": bool(truncated)}
        if self._sender is None:
            try:
                self._post_paid(episode_id, "end", end)
            finally:
                self._paid.pop(episode_id, None)
            return
        with self._lock:
            episode = self._episode(episode_id)
            del self._local[episode_id]
            self._sender.complete(episode, end)

    def update_policy_weights(self) -> bool:
        """Fetch the server's present policy, in mode "local"; whether it is another one."""
        return self._copy is not None and bool(self._copy.update())

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all complete steps are sent, in mode "local"; whether they are."""
        sent = self._sender is None or bool(self._sender.flush(timeout))
        self._raise_error()
        return sent

    def close(self, timeout: float = 5.0) -> None:
        """Send what is complete, and let go of the server. Running episodes are given up by it after a while."""
        if self._sender is not None:
            self._sender.flush(timeout)
            self._sender.close()
        self._calls.closed.set()
        if self._sender is not None:
            self._sender.join()
        for thread in self._threads:
            thread.join(timeout=5.0)
        self._calls.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # Within.

    def _read_info(self) -> None:
        info = self._calls.get("/v1/info").json()
        if info.get("protocol") != PROTOCOL:
            raise EnvError(
                f"The server at {self._calls.address} speaks protocol {info.get('protocol')!r}, this {PROTOCOL!r}."
            )
        self.is_multi_agent = bool(info["multi_agent"])
        self.observation_space = _spaces_from_json(info["observation_space"])
        self.action_space = _spaces_from_json(info["action_space"])
        self._max_body_bytes = int(info["max_body_bytes"])
        self._client_timeout_s = float(info["client_timeout_s"])

    def _begin_local(self, seed: int | None, max_unsent_steps: int) -> None:
        if self.is_multi_agent:
            raise ConfigError(
                "The server has several agents, whose policies it maps itself: set inference_mode='remote'."
            )
        from headwater.serving.local_acting import ActingCopy, StepSender

        self._copy = ActingCopy(self._calls, seed)
        spaces_of = self.observation_space, self.action_space
        self._sender = StepSender(self._calls, spaces_of, self._max_body_bytes, max_unsent_steps)
        if self.update_interval is not None:
            self._begin_thread(self._keep_updated)

    def _begin_thread(self, target: Callable[[], None]) -> None:
        thread = threading.Thread(target=target, name=f"policy-client {target.__name__}", daemon=True)
        thread.start()
        self._threads.append(thread)

    def _say_alive(self) -> None:
        """Let the server know that the episodes go on, however slow their envs are."""
        while not self._calls.closed.wait(self._client_timeout_s / 4):
            try:
                self._calls.get("/v1/info")
            except HeadwaterError as error:
                logger.debug("A sign of life did not arrive: %s", error)  # calls that matter say so themselves

    def _keep_updated(self) -> None:
        while not self._calls.closed.wait(self.update_interval):
            try:
                if self._copy.version is not None:
                    self._copy.update(wait=False)
            except HeadwaterError as error:
                if not self._calls.closed.is_set():
                    self._error = error

    def _raise_error(self) -> None:
        if self._calls.closed.is_set():
            raise EnvError(f"This client of {self._calls.address} is closed; make a new one.")
        for holder, name in ((self, "_error"), (self._sender, "error")):
            error = getattr(holder, name, None)
            if error is not None:
                setattr(holder, name, None)
                raise error

    def _episode(self, episode_id: str) -> Any:
        episode = self._local.get(episode_id)
        if episode is None:
            raise EnvError(f"There is no episode {episode_id!r} in this client. Begin one by start_episode().")
        if episode.error is not None:
            del self._local[episode_id]
            raise episode.error
        return episode

    def _act_locally(self, episode_id: str, observation: Any) -> Any:
        if self._copy.version is None:
            self._copy.update()
        self._sender.wait_for_room()
        with self._lock:
            episode = self._episode(episode_id)
            acted = self._copy.act(observation, episode.state, *episode.prev)
            self._take_step(episode, observation, acted.sampled, acted.dist_inputs, acted.action)
            episode.state = acted.state
        return acted.action

    def _log_locally(self, episode_id: str, observation: Any, action: Any) -> None:
        observation, action = self._obs(observation), self._values(self.action_space, action, "action")
        self._sender.wait_for_room()
        with self._lock:
            episode = self._episode(episode_id)
            if self._copy.version is not None and episode.state is not None:
                episode.state = self._copy.act(observation, episode.state, *episode.prev).state
            self._take_step(episode, observation, action, None, action)

    def _take_step(self, episode: Any, observation: Any, action: Any, dist_inputs: Any, taken: Any) -> None:
        from headwater.serving.local_acting import step_of

        self._sender.complete(episode)
        early, episode.early_reward = episode.early_reward, 0.0
        episode.open = step_of(self.observation_space, observation, action, dist_inputs, taken, early)

    def _paid_of(self, episode_id: str) -> dict[str, Any]:
        if episode_id not in self._paid:
            raise EnvError(f"There is no episode {episode_id!r} in this client. Begin one by start_episode().")
        return self._paid[episode_id]

    def _post_paid(self, episode_id: str, what: str, content: dict[str, Any]) -> dict[str, Any]:
        """Send a request of a running episode together with what was paid before it."""
        with self._lock:
            paid = dict(self._paid_of(episode_id))
            self._paid[episode_id] = {}
        try:
            message = {**content, **paid}
            return self._calls.post(f"/v1/episodes/{episode_id}/{what}", message, content_type_for(message))
        except EpisodeLost:
            self._paid.pop(episode_id, None)
            raise
        except ServerRefused:
            self._paid[episode_id] = paid  # nothing was done
            raise

    def _obs(self, observation: Any) -> Any:
        return self._values(self.observation_space, observation, "observation")

    def _values(self, space: Any, value: Any, path: str) -> Any:
        """A value of the user's as arrays, checked here, where the traceback shows whose it is."""
        try:
            if not self.is_multi_agent:
                check_value(space, value, path)
                return as_row(space, value)
            rows = {}
            for agent, part in value.items():
                own = space if isinstance(space, spaces.Space) else space[agent]
                check_value(own, part, f"{path}[{agent!r}]")
                rows[agent] = as_row(own, part)
            return rows
        except (Mismatch, KeyError, AttributeError) as error:
            raise EnvError(f"{path} does not fit the server's space {space}: {error}.") from error

    def _action(self, plain: Any) -> Any:
        space = self.action_space
        if not self.is_multi_agent:
            return _row(space, plain)
        return {agent: _row(space if isinstance(space, spaces.Space) else space[agent], part)
                for agent, part in plain.items()}  # fmt: skip


def _row(space: Any, plain: Any) -> Any:
    return tree_map(lambda leaf: leaf[()], as_row(space, plain))


def _spaces_from_json(description: Mapping[str, Any]) -> Any:
    if "by_agent" in description:
        return {agent: space_from_json(part) for agent, part in description["by_agent"].items()}
    return space_from_json(description)
