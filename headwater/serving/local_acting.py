"""Acting in the client: a copy of the server's policy, refreshed now and then, and the steps that it took.

get_action -> ActingCopy -> action
                        \\-> StepSender -> POST /v1/steps, by a thread of its own
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import Any, NamedTuple

import numpy as np

from headwater.envs.external_episodes import EpisodeLost
from headwater.envs.nested import as_row, take_rows, tree_map
from headwater.errors import ConfigError, EnvError, HeadwaterError
from headwater.sampling.exported_policy import ActingChain
from headwater.serving.bodies import ARRAYS_TYPE
from headwater.serving.http_calls import Calls, ServerRefused
from headwater.serving.policy_packing import unpack

logger = logging.getLogger(__name__)

BATCH_STEPS = 64  # steps that are sent at once at least
FLUSH_S = 0.25  # or those that are there after so long


class LocalAction(NamedTuple):
    """What the copy did for one observation."""

    action: Any  # as the env takes it
    sampled: Any  # as it was drawn
    dist_inputs: Any  # what it was drawn from
    state: Any  # what a policy with memory remembers after it


class _AsSampled:
    """Stands where an action adapter does, and leaves actions as they were sampled."""

    def __init__(self, adapter: Any) -> None:
        self.space, self.from_env = adapter.space, adapter.from_env

    def to_env(self, actions: Any) -> Any:
        return actions


class ActingCopy:
    """The server's policy, as it was fetched last.

    Args:
        calls: to the server.
        seed: of the actions that are sampled.
    """

    def __init__(self, calls: Calls, seed: int | None) -> None:
        self._calls = calls
        self._seeds = np.random.SeedSequence(seed)
        self._lock = threading.Lock()
        self._chain: ActingChain | None = None
        self._adapter: Any = None
        self._etag: str | None = None

    @property
    def version(self) -> str | None:
        """Which policy it is; None: none yet."""
        return self._etag

    def update(self, wait: bool = True) -> bool:
        """Fetch the present policy.

        Args:
            wait: until the server has it at hand, where it is learning.

        Returns:
            Whether it is another one.

        Raises:
            ConfigError: the server has none that could be fetched.
            EnvError: the server cannot be reached.
        """
        headers = {} if self._etag is None else {"If-None-Match": self._etag}
        try:
            response = self._calls.get("/v1/policy", headers, wait)
        except ServerRefused as error:
            raise ConfigError(f"{error} Local inference is not possible: set inference_mode='remote'.") from error
        if response is None or response.status_code == 304:
            return False
        chain = unpack(response.content, int(self._seeds.spawn(1)[0].generate_state(1)[0])).chain
        with self._lock:
            self._adapter = chain.action_adapter
            self._chain = chain._replace(action_adapter=_AsSampled(chain.action_adapter))  # type: ignore[arg-type]
            self._etag = response.headers["etag"]
        return True

    def act(self, observation: Any, state: Any, prev_action: Any, prev_reward: float | None) -> LocalAction:
        """Act for one observation; `state` as the step before returned it, None where an episode begins."""
        with self._lock:
            chain = self._chain
            assert chain is not None, "update() comes first"
            start = chain.policy.get_initial_state()
            states = [state or start] if start else None
            sampled, states_after, extra = chain.compute_actions(
                [observation], None, states, [prev_action], [prev_reward]
            )
            batched = tree_map(lambda leaf: np.asarray(leaf)[None], sampled[0])
            action = take_rows(self._adapter.to_env(batched), 0)
            after = states_after[0] if start else None
            return LocalAction(action, sampled[0], extra["action_dist_inputs"][0], after)


class LocalEpisode:
    """A running episode of a client that acts by itself."""

    def __init__(self, episode_id: str, training_enabled: bool) -> None:
        self.episode_id, self.training_enabled = episode_id, training_enabled
        self.num_sent = 0
        self.open: dict[str, Any] | None = None  # the latest step, which may still be paid
        self.early_reward = 0.0
        self.state: Any = None
        self.done: deque[dict[str, Any]] = deque()
        self.end: dict[str, Any] | None = None
        self.error: HeadwaterError | None = None

    def close_step(self) -> int:
        """The latest step is complete; how many that are."""
        if self.open is None:
            return 0
        self.done.append(self.open)
        self.open = None
        return 1

    @property
    def prev(self) -> tuple[Any, float | None]:
        """The action before, as the env took it, and what it was paid."""
        return (None, None) if self.open is None else (self.open["taken"], self.open["reward"])


class StepSender:
    """Sends complete steps from a thread of its own.

    Args:
        calls: to the server.
        spaces: observation and action space.
        max_body_bytes: of a request.
        max_unsent: steps that may wait before `wait_for_room` does.
    """

    def __init__(self, calls: Calls, spaces: tuple[Any, Any], max_body_bytes: int, max_unsent: int) -> None:
        self._calls, self._spaces = calls, spaces
        self._max_body_bytes, self._max_unsent = max_body_bytes, max_unsent
        self._changed = threading.Condition()
        self._waiting: dict[str, LocalEpisode] = {}
        self._num_unsent = 0
        self._urgent = self._closing = self._is_sending = False
        self.error: HeadwaterError | None = None
        self._thread = threading.Thread(target=self._run, name="policy-client-sender", daemon=True)
        self._thread.start()

    def complete(self, episode: LocalEpisode, end: dict[str, Any] | None = None) -> None:
        """An episode's latest step is complete, and maybe the episode."""
        with self._changed:
            num_steps = episode.close_step()
            episode.end = end
            if num_steps or end is not None:
                self._waiting[episode.episode_id] = episode
                self._num_unsent += num_steps
                self._urgent |= end is not None
                self._changed.notify_all()

    def wait_for_room(self) -> None:
        """Wait while too many steps are unsent: the server takes no more while it learns."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._num_unsent < self._max_unsent or self.error is not None or self._closing
            )

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all is sent; whether it is."""
        with self._changed:
            self._urgent = True
            self._changed.notify_all()
            return self._changed.wait_for(lambda: not (self._waiting or self._is_sending), timeout)

    def close(self) -> None:
        """End the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()

    def join(self) -> None:
        """Wait for the thread's end."""
        self._thread.join(timeout=5.0)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._closing)
                self._changed.wait_for(
                    lambda: self._urgent or self._num_unsent >= BATCH_STEPS or self._closing, FLUSH_S
                )
                if self._closing:
                    return
                episodes = [(episode, list(episode.done), episode.end) for episode in self._waiting.values()]
                for episode, _, _ in episodes:
                    episode.done.clear()
                self._waiting, self._urgent, self._is_sending = {}, False, True
            for episode, steps, end in episodes:
                self._send(episode, steps, end)
                with self._changed:
                    self._num_unsent -= len(steps)
                    self._changed.notify_all()
            with self._changed:
                self._is_sending = False
                self._changed.notify_all()

    def _send(self, episode: LocalEpisode, steps: list[dict[str, Any]], end: dict[str, Any] | None) -> None:
        try:
            runs = self._runs(steps)
            if not runs and end is not None and episode.num_sent:
                runs = [[]]
            for k, run in enumerate(runs):
                if episode.error is not None:
                    return
                self._calls.post(
                    "/v1/steps", self._message(episode, run, end if k == len(runs) - 1 else None), ARRAYS_TYPE
                )
                episode.num_sent += len(run)
        except HeadwaterError as error:
            episode.error = error
            if isinstance(error, EpisodeLost) and end is not None:
                logger.warning("Policy client: the end of an episode did not arrive: %s", error)
            if not isinstance(error, EpisodeLost):
                with self._changed:
                    self.error = error
                    self._changed.notify_all()
        except Exception as error:
            episode.error = EnvError(f"Steps of episode {episode.episode_id!r} could not be sent: {error!r}")
            with self._changed:
                self.error = episode.error
                self._changed.notify_all()

    def _runs(self, steps: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
        """Steps that can go in one message: all sampled or all logged, and not too large."""
        runs: list[list[dict[str, Any]]] = []
        size = 0
        for step in steps:
            own = 512 + sum(leaf.nbytes for leaf in _leaves((step["obs"], step["action"], step["dist_inputs"])))
            same = runs and (runs[-1][-1]["dist_inputs"] is None) == (step["dist_inputs"] is None)
            if same and size + own < self._max_body_bytes // 2:
                runs[-1].append(step)
                size += own
            else:
                runs.append([step])
                size = own
        return runs

    def _message(self, episode: LocalEpisode, run: list[dict[str, Any]], end: dict[str, Any] | None) -> dict[str, Any]:
        infos = [step["info"] for step in run]
        inputs = [step["dist_inputs"] for step in run]
        return {
            "episode_id": episode.episode_id,
            "first_step": episode.num_sent,
            "training_enabled": episode.training_enabled,
            "observations": _stacked([step["obs"] for step in run]) if run else None,
            "actions": _stacked([step["action"] for step in run]) if run else None,
            "dist_inputs": None if not run or inputs[0] is None else np.stack(inputs),
            "rewards": np.array([step["reward"] for step in run], np.float64),
            "infos": infos if any(infos) else None,
            "end": end,
        }


def step_of(space: Any, observation: Any, action: Any, dist_inputs: Any, taken: Any, reward: float) -> dict[str, Any]:
    """A step that has just been taken."""
    return {"obs": as_row(space, observation), "action": tree_map(np.asarray, action), "dist_inputs": dist_inputs,
            "taken": taken, "reward": reward, "info": None}  # fmt: skip


def _stacked(rows: list[Any]) -> Any:
    return tree_map(lambda *leaves: np.stack(leaves), rows[0], *rows[1:])


def _leaves(tree: Any) -> Any:
    if isinstance(tree, dict):
        tree = tuple(tree.values())
    if isinstance(tree, tuple):
        for part in tree:
            yield from _leaves(part)
    elif tree is not None:
        yield np.asarray(tree)
