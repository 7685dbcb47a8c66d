"""ExternalEpisodes: the desk between those who run episodes and the sampler that acts in them.

    start, ask, log, pay, end, abandon  ->  [one queue for each episode]  ->  hand_out, a Poll  ->  sampler
    the future that `ask` returned      <-                    answer      <-  its actions       <-

Callers may be many threads, each with any number of episodes; nobody waits but on futures and conditions. Values are
`{agent_id: value}` throughout.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

from headwater.envs.base_env import ALL_DONE, LostEpisode, PerAgent, Poll, poll_of_start
from headwater.errors import EnvError

REMEMBERED = 10_000  # how many of the episodes that are over are known by name
OFFER_AGAIN_S = 0.05  # after which an episode that the sampler did not begin is offered again
MAX_WAITING_STEPS = 1000  # logged steps that wait for the sampler before `log_action` waits too


class UnknownEpisode(EnvError):
    """No episode of this id runs."""


class EpisodeConflict(EnvError):
    """An id that is in use or was, or two callers in one episode."""


class EpisodeLost(EnvError):
    """The episode cannot be gone on with: it was abandoned, or whoever knew it is gone. Start a new one."""


class TooManyEpisodes(EnvError):
    """More episodes than `max_concurrent` would run at once."""


class Stopped(EnvError):
    """The sampler has gone: nobody answers any more."""


class _Step(NamedTuple):
    """What one poll hands out of an episode."""

    obs: PerAgent
    rewards: PerAgent
    terminateds: PerAgent
    truncateds: PerAgent
    infos: PerAgent
    actions: PerAgent | None  # taken already; None: the sampler is asked


class _Episode:
    __slots__ = ("answer", "asked", "began", "infos", "is_over", "num_actions", "paid", "steps", "terminateds",
                 "training_enabled", "truncateds", "unanswered")  # fmt: skip

    def __init__(self, training_enabled: bool) -> None:
        self.training_enabled = training_enabled
        self.steps: deque[_Step] = deque()
        self.began = self.is_over = False  # the sampler knows it; it was ended
        self.num_actions = 0
        self.asked: Future[PerAgent] | None = None
        self.unanswered: _Step | None = None  # handed out, and not answered yet
        self.paid: PerAgent = {}
        self.infos: PerAgent = {}
        self.terminateds: PerAgent = {}
        self.truncateds: PerAgent = {}

    def take_step(self, obs: PerAgent, actions: PerAgent | None, over: tuple[PerAgent, PerAgent] = ({}, {})) -> _Step:
        """The step that these observations complete; what was paid before the first action stays for the next."""
        infos = {agent: self.infos.get(agent, {}) for agent in obs}
        if not self.training_enabled:
            infos = {agent: {**info, "training_enabled": False} for agent, info in infos.items()}
        if not self.num_actions:
            return _Step(obs, {}, {}, {}, infos, actions)
        step = _Step(obs, self.paid, self.terminateds | over[0], self.truncateds | over[1], infos, actions)
        self.paid, self.infos, self.terminateds, self.truncateds = {}, {}, {}, {}
        return step


class ExternalEpisodes:
    """See the module's docstring.

    Args:
        max_concurrent: how many episodes may run at once.

    Example:
        >>> desk = ExternalEpisodes(max_concurrent=2)
        >>> desk.start("walk"), desk.ask("walk", {"agent0": 0.5}).done()
        ('walk', False)
        >>> desk.hand_out(lambda: None).obs
        {'walk': {'agent0': 0.5}}
    """

    def __init__(self, max_concurrent: int) -> None:
        self.max_concurrent = max_concurrent
        self._lock = threading.RLock()
        self._ready_or_job = threading.Condition(self._lock)
        self._episodes: dict[str, _Episode] = {}
        self._ready: OrderedDict[str, None] = OrderedDict()  # episodes with something to hand out
        self._handed_out: set[str] = set()  # in the last poll, and waiting for an answer
        self._declined: OrderedDict[str, None] = OrderedDict()  # ready, but the sampler did not begin them
        self._declined_at = 0.0
        self._lost: dict[str, str] = {}  # known to the sampler, which is to be told
        self._over: OrderedDict[str, str | None] = OrderedDict()  # why lost, or None where it ended
        self._jobs: deque[tuple[Callable[[], Any], Future[Any]]] = deque()
        self._rooms: list[Future[None]] = []
        self._num_running = 0
        self._num_logged = 0
        self._closed: str | None = None
        self._poll_seconds = 0.0
        self._polling_since: float | None = None

    # What callers do.

    def start(self, episode_id: str | None = None, training_enabled: bool = True) -> str:
        """Begin an episode.

        Raises:
            EpisodeConflict: its id is in use, or was.
            TooManyEpisodes: as many run as may.
        """
        with self._lock:
            self._check_open()
            if episode_id is None:
                episode_id = uuid.uuid4().hex
            if episode_id in self._episodes:
                raise EpisodeConflict(f"Episode {episode_id!r} is in use already; give each episode an id of its own.")
            if episode_id in self._over:
                raise EpisodeConflict(f"There was an episode {episode_id!r} already; give each an id of its own.")
            if self._num_running >= self.max_concurrent:
                raise TooManyEpisodes(
                    f"{self._num_running} external episodes are running, which is max_concurrent. End some first, or "
                    "give the env a larger max_concurrent."
                )
            self._episodes[episode_id] = _Episode(training_enabled)
            self._num_running += 1
            return episode_id

    def ask(self, episode_id: str, obs: PerAgent) -> Future[PerAgent]:
        """Have the sampler act; the future gets its actions, or the error that ended the wait."""
        with self._lock:
            episode = self._running(episode_id)
            step = episode.take_step(obs, None)
            episode.num_actions += 1
            episode.asked = Future()
            episode.asked.set_running_or_notify_cancel()  # a waiter's cancellation is none of the sampler's business
            self._queue(episode_id, episode, step)
            return episode.asked

    def log(self, episode_id: str, obs: PerAgent, actions: PerAgent) -> None:
        """Tell of actions that were taken already."""
        with self._lock:
            episode = self._running(episode_id)
            step = episode.take_step(obs, actions)
            episode.num_actions += 1
            self._num_logged += bool(actions)
            self._queue(episode_id, episode, step)

    def room(self) -> Future[None]:
        """Done as soon as few enough logged steps wait for the sampler."""
        with self._lock:
            future: Future[None] = Future()
            future.set_running_or_notify_cancel()
            if self._closed is not None:
                future.set_exception(Stopped(self._closed))
            elif self._num_logged < MAX_WAITING_STEPS:
                future.set_result(None)
            else:
                self._rooms.append(future)
            return future

    def pay(
        self,
        episode_id: str,
        rewards: PerAgent,
        infos: PerAgent | None = None,
        terminateds: PerAgent | None = None,
        truncateds: PerAgent | None = None,
    ) -> None:
        """Add to what the next observations come with."""
        with self._lock:
            episode = self._running(episode_id)
            for agent, reward in rewards.items():
                episode.paid[agent] = episode.paid.get(agent, 0.0) + reward
            for agent, info in (infos or {}).items():
                episode.infos[agent] = {**episode.infos.get(agent, {}), **info}
            episode.terminateds.update(terminateds or {})
            episode.truncateds.update(truncateds or {})

    def end(self, episode_id: str, obs: PerAgent, terminated: bool, truncated: bool) -> None:
        """End an episode with its final observations; one without an action leaves no trace."""
        with self._lock:
            episode = self._running(episode_id)
            episode.is_over = True
            if episode.num_actions:
                step = episode.take_step(obs, {}, ({ALL_DONE: terminated}, {ALL_DONE: truncated}))
                self._num_running -= 1
                self._queue(episode_id, episode, step)
            else:
                self._forget(episode_id, None)

    def abandon(self, episode_id: str, reason: str) -> None:
        """Drop an episode: nothing of it is learned from. Whoever waits in it gets an EpisodeLost."""
        with self._lock:
            self._check_open()
            self._known(episode_id)
            self._lose(episode_id, reason)

    def is_running(self, episode_id: str) -> bool:
        """Whether it has begun and not ended."""
        with self._lock:
            episode = self._episodes.get(episode_id)
            return episode is not None and not episode.is_over

    def poll_seconds(self) -> float:
        """How long the sampler has waited for episodes, all in all: it answers at once while it does."""
        with self._lock:
            since = self._polling_since
            return self._poll_seconds + (0.0 if since is None else time.monotonic() - since)

    # What the sampler's thread does.

    def hand_out(self, check: Callable[[], None], warn_after_s: float | None = None, warn: Any = None) -> Poll:
        """All that is ready, waiting until something is.

        Args:
            check: called before a wait; raises where waiting is in vain.
            warn_after_s: call `warn` once when nothing came for so long.
        """
        with self._lock:
            self._polling_since = time.monotonic()
            try:
                while True:
                    self._check_open()
                    self._run_jobs()
                    check()
                    if self._declined and time.monotonic() - self._declined_at >= OFFER_AGAIN_S:
                        self._ready.update(self._declined)
                        self._declined.clear()
                    if self._ready or self._lost:
                        return self._poll()
                    if self._declined:
                        self._ready_or_job.wait(OFFER_AGAIN_S)
                    elif not self._ready_or_job.wait(warn_after_s) and warn is not None:
                        warn_after_s = None
                        warn()
            finally:
                self._poll_seconds += time.monotonic() - self._polling_since
                self._polling_since = None

    def has_work(self) -> bool:
        """Whether there is something to hand out."""
        return bool(self._ready or self._lost or self._declined)

    def wake(self) -> None:
        """Have a waiting `hand_out` look again."""
        with self._lock:
            self._ready_or_job.notify_all()

    def in_poll(self, job: Callable[[], Any]) -> Future[Any]:
        """Run `job()` in the sampler's thread, while it polls; the future gets what it returns or raises."""
        with self._lock:
            future: Future[Any] = Future()
            future.set_running_or_notify_cancel()
            if self._closed is not None:
                future.set_exception(Stopped(self._closed))
            else:
                self._jobs.append((job, future))
                self._ready_or_job.notify_all()
            return future

    def answer(self, actions: dict[str, PerAgent]) -> None:
        """Give the sampler's actions to those who wait for them. Who is not among them is asked about again later."""
        with self._lock:
            handed_out, self._handed_out = self._handed_out, set()
            for episode_id, of_agents in actions.items():
                episode = self._episodes.get(episode_id)
                if episode is None or episode.unanswered is None:
                    continue  # it was lost meanwhile
                step, episode.unanswered = episode.unanswered, None
                if step.actions is None and episode.asked is not None:
                    future, episode.asked = episode.asked, None
                    future.set_result(of_agents)
            for episode_id in handed_out - actions.keys():
                episode = self._episodes.get(episode_id)
                if episode is not None and self._take_back(episode):
                    self._ready.pop(episode_id, None)
                    self._declined[episode_id] = None
                    self._declined_at = time.monotonic()

    def drop(self, episode_id: str, reason: str) -> None:
        """The sampler ended an episode of its own accord."""
        with self._lock:
            episode = self._episodes.get(episode_id)
            if episode is not None:
                episode.began = False  # it need not be told
                self._lose(episode_id, reason)

    def restart(self) -> None:
        """The sampler forgot what was running: what goes on is new to it."""
        with self._lock:
            self._lost.clear()
            self._handed_out.clear()
            for episode_id, episode in list(self._episodes.items()):
                if self._take_back(episode) or episode_id in self._declined:
                    self._set_ready(episode_id)
                episode.began = False
                episode.paid, episode.infos, episode.terminateds, episode.truncateds = {}, {}, {}, {}
                episode.num_actions = len(episode.steps) - episode.is_over
                if episode.is_over and not episode.num_actions:
                    self._ready.pop(episode_id, None)
                    self._forget(episode_id, None, was_running=False)
            self._declined.clear()

    def close(self, reason: str) -> None:
        """End every wait with an error."""
        with self._lock:
            if self._closed is not None:
                return
            self._closed = reason
            waiting: list[Future[Any]] = [episode.asked for episode in self._episodes.values() if episode.asked]
            waiting += [future for _, future in self._jobs] + self._rooms
            self._episodes.clear()
            self._ready.clear()
            self._declined.clear()
            self._lost.clear()
            self._jobs.clear()
            self._rooms = []
            self._ready_or_job.notify_all()
        for future in waiting:
            future.set_exception(Stopped(reason))

    # Within.

    def _check_open(self) -> None:
        if self._closed is not None:
            raise Stopped(self._closed)

    def _known(self, episode_id: str) -> _Episode:
        self._check_open()
        episode = self._episodes.get(episode_id)
        if episode is not None and not episode.is_over:
            return episode
        if episode is None and episode_id not in self._over:
            raise UnknownEpisode(f"There is no episode {episode_id!r}. Begin one by start_episode().")
        reason = self._over.get(episode_id)
        if reason is None:
            raise EpisodeConflict(f"Episode {episode_id!r} has ended. Begin a new one by start_episode().")
        raise EpisodeLost(f"Episode {episode_id!r} is lost: {reason}. Begin a new one by start_episode().")

    def _running(self, episode_id: str) -> _Episode:
        """The episode, in which nobody waits."""
        episode = self._known(episode_id)
        if episode.asked is not None:
            raise EpisodeConflict(
                f"Episode {episode_id!r} waits for an action already; only one caller at a time may act in an episode."
            )
        return episode

    def _take_back(self, episode: _Episode) -> bool:
        """Put what was handed out and not answered back in front; whether there was something."""
        step, episode.unanswered = episode.unanswered, None
        if step is None:
            return False
        episode.steps.appendleft(step)
        self._num_logged += bool(step.actions)
        episode.began = False
        return True

    def _queue(self, episode_id: str, episode: _Episode, step: _Step) -> None:
        episode.steps.append(step)
        self._set_ready(episode_id)

    def _set_ready(self, episode_id: str) -> None:
        self._declined.pop(episode_id, None)
        self._ready[episode_id] = None
        self._ready_or_job.notify_all()

    def _poll(self) -> Poll:
        poll = poll_of_start({})
        for episode_id, reason in self._lost.items():
            poll.obs[episode_id] = LostEpisode(reason)
        self._lost.clear()
        for episode_id in list(self._ready):
            episode = self._episodes[episode_id]
            step = episode.steps.popleft()
            poll.obs[episode_id], poll.infos[episode_id] = step.obs, step.infos
            starts = not episode.began  # also where the sampler forgot what came before
            poll.rewards[episode_id] = {} if starts else step.rewards
            poll.terminateds[episode_id] = step.terminateds
            poll.truncateds[episode_id] = step.truncateds
            episode.began = True
            is_end = episode.is_over and not episode.steps
            if not is_end:
                episode.unanswered = step
                self._handed_out.add(episode_id)
            if step.actions:
                poll.off_policy_actions[episode_id] = step.actions
                self._num_logged -= 1
            if not episode.steps:
                del self._ready[episode_id]
            if is_end:
                self._forget(episode_id, None, was_running=False)
        self._make_room()
        return poll

    def _make_room(self) -> None:
        if self._num_logged < MAX_WAITING_STEPS:
            rooms, self._rooms = self._rooms, []
            for future in rooms:
                future.set_result(None)

    def _lose(self, episode_id: str, reason: str) -> None:
        episode = self._episodes[episode_id]
        self._num_logged -= sum(1 for step in episode.steps if step.actions)
        future, episode.asked = episode.asked, None
        self._ready.pop(episode_id, None)
        self._declined.pop(episode_id, None)
        self._forget(episode_id, reason, was_running=not episode.is_over)
        if episode.began:
            self._lost[episode_id] = reason
            self._ready_or_job.notify_all()
        if future is not None:
            future.set_exception(EpisodeLost(f"Episode {episode_id!r} is lost: {reason}. Begin a new one."))
        self._make_room()

    def _forget(self, episode_id: str, reason: str | None, was_running: bool = True) -> None:
        del self._episodes[episode_id]
        self._num_running -= was_running
        self._over[episode_id] = reason
        if len(self._over) > REMEMBERED:
            self._over.popitem(last=False)

    def _run_jobs(self) -> None:
        while self._jobs:
            job, future = self._jobs.popleft()
            try:
                future.set_result(job())
            except Exception as error:
                future.set_exception(error)
