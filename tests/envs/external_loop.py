"""A tiny sampler over external episodes: it acts by a rule and keeps what it saw."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from headwater.envs.base_env import AGENT_ID, ALL_DONE, LostEpisode
from headwater.envs.external_to_base import _ExternalEnvToBaseEnv


class Loop:
    """Polls and acts, in the calling thread or in one of its own.

    Attributes:
        returns: env id -> sum of rewards, of all episodes that ended.
        steps: env id -> [(obs, action, was logged)], of all.
        ends: env id -> (terminated, truncated, final obs).
        lost: env id -> reason.
        sizes: how many episodes each poll had.
    """

    def __init__(self, env: Any, act: Callable[[Any], Any] = lambda obs: 0) -> None:
        self.env, self.act = _ExternalEnvToBaseEnv(env), act
        self.returns: dict[Any, float] = {}
        self.running: dict[Any, float] = {}
        self.steps: dict[Any, list[Any]] = {}
        self.infos: dict[Any, list[Any]] = {}
        self.ends: dict[Any, Any] = {}
        self.lost: dict[Any, str] = {}
        self.sizes: list[int] = []
        self.error: BaseException | None = None
        self.changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.gate = threading.Event()  # cleared: "learning"
        self.gate.set()
        self.env.start_episodes()

    def once(self) -> None:
        poll = self.env.poll()
        actions: dict[Any, Any] = {}
        with self.changed:
            self.sizes.append(len(poll.obs))
            for env_id, obs in poll.obs.items():
                if isinstance(obs, LostEpisode):
                    self.lost[env_id] = obs.reason
                    self.running.pop(env_id, None)
                    continue
                assert (env_id in self.running) or not poll.rewards[env_id]
                self.running[env_id] = self.running.get(env_id, 0.0) + sum(poll.rewards[env_id].values())
                self.infos.setdefault(env_id, []).append(poll.infos[env_id])
                ended = poll.terminateds[env_id].get(ALL_DONE, False), poll.truncateds[env_id].get(ALL_DONE, False)
                if any(ended):
                    self.ends[env_id] = (*ended, obs)
                    self.returns[env_id] = self.running.pop(env_id)
                    assert self.env.try_reset(env_id) is None
                    continue
                logged = poll.off_policy_actions.get(env_id, {})
                over = {a for flags in (poll.terminateds[env_id], poll.truncateds[env_id]) for a in flags if flags[a]}
                actions[env_id] = {a: self.act(o) for a, o in obs.items() if a not in logged and a not in over}
                for agent, value in obs.items():
                    taken = logged.get(agent, actions[env_id].get(agent))
                    self.steps.setdefault(env_id, []).append((value, taken, agent in logged))
            self.changed.notify_all()
        self.env.send_actions(actions)

    def start(self) -> Loop:
        self._thread.start()
        return self

    def _run(self) -> None:
        try:
            while True:
                self.gate.wait()
                self.once()
        except Exception as error:
            with self.changed:
                self.error = error
                self.changed.notify_all()

    def wait_for(self, what: Callable[[], Any], timeout: float = 20.0) -> None:
        with self.changed:
            assert self.changed.wait_for(what, timeout), f"waited in vain; error: {self.error!r}"

    def stop(self) -> None:
        self.gate.set()
        self.env.stop()
        if self._thread.ident is not None:
            self._thread.join(5)
            assert not self._thread.is_alive()


__all__ = ["AGENT_ID", "Loop"]
