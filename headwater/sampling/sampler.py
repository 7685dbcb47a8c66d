"""VectorSampler: the loop that steps a vector env with one policy and fills `[T, N]` columns.

    vector env -> encode, filter -> policy.act -> env actions -> vector env        (each step, arrays all the way)
               -> Trajectory                                                       (each fragment)

Nothing in the loop is a Python object per env and step. What is rare leaves the straight line: an episode's end, an
autoreset row, a lost episode, a callback that somebody overrode.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.callbacks import overridden
from headwater.config import TrainerConfig
from headwater.data.sample_batch import SampleBatch
from headwater.data.sequences import sequence_length
from headwater.envs.nested import take_rows
from headwater.envs.vector_env import StepResult, VectorEnv, info_of_row
from headwater.errors import ConfigError
from headwater.policy.policy import Policy
from headwater.sampling.episode import Episode
from headwater.sampling.filters import Filter
from headwater.sampling.metrics import PERF_KEYS, RolloutMetrics
from headwater.sampling.policy_encoder import PolicyEncoder, learned_rewards
from headwater.sampling.preprocessors import ActionAdapter, Encoder
from headwater.sampling.streams import EnvStreams
from headwater.sampling.trajectory import Memory, MemoryBuilder, Trajectory, TrajectoryBuilder

MayStart = Callable[[int, int], bool]  # (env index, rows collected so far) -> whether another episode may begin


class VectorSampler:
    """Collects fragments from one vector env.

    Args:
        env: the vector env; the sampler owns its episodes.
        policy: acts.
        encoder, obs_filter, action_adapter: from the env's spaces to the policy's and back.
        config: fragment length, batch mode, reward clipping, exploration.
        key: integers that name the run and the purpose; they seed the envs and the action noise.
        env_indices: [N] each sub-env's index in the whole run.
        num_envs_total: sub-envs in the whole run, so that episode ids are unique.
        worker: given to callbacks.
    """

    def __init__(
        self,
        env: VectorEnv,
        policy: Policy,
        encoder: Encoder,
        obs_filter: Filter,
        action_adapter: ActionAdapter,
        config: TrainerConfig,
        key: Sequence[int],
        env_indices: Sequence[int],
        num_envs_total: int,
        callbacks: Any = None,
        worker: Any = None,
    ) -> None:
        self.env = env
        self.policy = policy
        self.encoder = encoder
        self.filter = obs_filter
        self.action_adapter = action_adapter
        self.config = config
        self.worker = worker
        self.callbacks = callbacks
        self.fragment_length = config.batch_plan(env.num_envs).rollout_fragment_length
        self.sequence_length = sequence_length(
            None if config.batch_mode == "complete_episodes" else self.fragment_length, config.model.max_seq_len
        )
        self.episode_returns = np.zeros(env.num_envs)
        self.episode_lengths = np.zeros(env.num_envs, np.int64)
        self._streams = EnvStreams(key, env_indices)
        self._key, self._env_indices, self._stride = list(key), np.asarray(env_indices, np.int64), num_envs_total
        self._restarts = 0  # names the seeds of the last reset of all envs
        self._seeded = False  # whether that reset has happened
        self._fragments = 0
        self._episode_counts = np.zeros(env.num_envs, np.int64)
        self._obs: Any = None  # what the envs wait to be acted on; None = they are to be reset
        self._autoreset: NDArray[np.bool_] | None = None  # rows whose next step is the env's own reset
        # [N, S]: what the policy remembers of the running episodes, 0 before their first step; None without memory.
        self._state = np.zeros((env.num_envs, policy.state_size), np.float32) if policy.state_size else None
        self._view = encoder if isinstance(encoder, PolicyEncoder) else None
        # [N, P]: what the policy sees of the step before, 0 at an episode's start; None where it sees nothing of it.
        self._before: NDArray[np.float32] | None = None
        if self._view is not None and self._view.before_size:
            self._before = self._view.before(env.num_envs)
        self._finished: list[RolloutMetrics] = []
        self._perf_s = [0.0, 0.0, 0.0, 0.0]  # env, encoding, policy, actions
        self._steps = 0
        watched = ("on_episode_start", "on_episode_step", "on_episode_end")
        if config.horizon is not None and not env.can_reset_rows:
            raise ConfigError(
                f"horizon={config.horizon}: env {env.env_id!r} is a vector env that cannot reset a single env. "
                "Leave horizon out and give the env itself a time limit, or vectorise copies (vectorization='sync')."
            )
        self._episodes: list[Episode] | None = [] if any(overridden(callbacks, name) for name in watched) else None
        self._watch_steps = overridden(callbacks, "on_episode_step")
        self._last: tuple[Any, ...] = ()

    # What a worker calls.

    def sample(self) -> Trajectory:
        """One fragment of at least `rollout_fragment_length` rows per env, all from the policy's present weights.

        truncate_episodes: exactly that many steps (fewer than N rows more where the env's autoreset rows are no
        transitions). complete_episodes: whole episodes only. An episode begins as long as rows are wanted, and each
        one that has begun is run to its end, so that long episodes are as likely as short ones.
        """
        wanted = self.fragment_length * self.env.num_envs
        if self.config.batch_mode == "truncate_episodes":
            return self._collect(wanted, self.fragment_length)
        self._obs = None
        return self._collect(wanted, self.fragment_length, may_start=lambda _, rows: rows < wanted)

    def sample_episodes(self, num_episodes: int) -> Trajectory:
        """Exactly `num_episodes` whole, fresh episodes, shared out evenly over the envs."""
        share, rest = divmod(num_episodes, self.env.num_envs)
        left = [share + (i < rest) for i in range(self.env.num_envs)]

        def may_start(env_index: int, _: int) -> bool:
            left[env_index] -= 1
            return left[env_index] >= 0

        self._obs = None
        return self._collect(0, 64, may_start=may_start)

    def restart(self, number: int) -> None:
        """Make all envs begin new episodes, seeded by the run, the env's index and `number`, at the next fragment."""
        self._restarts = number
        self._obs = None
        self._seeded = False
        if self.config.in_evaluation:  # a round draws the same numbers whatever was evaluated before it
            self._streams = EnvStreams([*self._key, number], self._env_indices.tolist())

    @property
    def num_env_faults(self) -> int:
        """Faults of envs that were survived."""
        return self.env.num_faults

    def get_metrics(self) -> list[RolloutMetrics]:
        """The episodes that ended since the last call."""
        finished, self._finished = self._finished, []
        return finished

    def perf_stats(self) -> dict[str, float]:
        """Mean milliseconds per step of all envs since the last call."""
        if not self._steps:
            return dict.fromkeys(PERF_KEYS, float("nan"))
        means = [1000.0 * seconds / self._steps for seconds in self._perf_s]
        self._perf_s = [0.0, 0.0, 0.0, 0.0]
        self._steps = 0
        return dict(zip(PERF_KEYS, means, strict=True))

    def get_state(self) -> dict[str, Any]:
        """Everything that the next fragment depends on, as arrays and JSON. `env` is None where episodes restart."""
        return {
            "env": self.env.get_state() if self._seeded else None,
            "running": self._obs is not None,
            "seeded": self._seeded,
            "restarts": self._restarts,
            "fragments": self._fragments,
            "episode_counts": self._episode_counts.copy(),
            "episode_returns": self.episode_returns.copy(),
            "episode_lengths": self.episode_lengths.copy(),
            "autoreset": None if self._autoreset is None else self._autoreset.copy(),
            "policy_state": None if self._state is None else self._state.copy(),
            "before": None if self._before is None else self._before.copy(),
            "streams": self._streams.get_state(),
            "finished": [metrics.to_state() for metrics in self._finished],
            "episodes": [episode.get_state() for episode in self._episodes or ()],
        }

    def set_state(self, state: dict[str, Any]) -> bool:
        """Continue from a `get_state()`; False where the running episodes could not be, and will restart."""
        self._fragments = int(state["fragments"])
        self._episode_counts = np.array(state["episode_counts"], np.int64)
        self._streams.set_state(state["streams"])
        self._finished = [RolloutMetrics.from_state(metrics) for metrics in state["finished"]]
        self._restarts = int(state["restarts"])
        self._seeded = bool(state["seeded"])
        self._obs = None
        if not self._seeded:
            return True
        if state["env"] is None or not self.env.has_state:
            self.restart(self._restarts + 1)
            return False
        obs = self.env.set_state(state["env"])
        if state["running"]:
            self._obs = obs
            self.episode_returns = np.array(state["episode_returns"], np.float64)
            self.episode_lengths = np.array(state["episode_lengths"], np.int64)
            self._autoreset = None if state["autoreset"] is None else np.array(state["autoreset"], bool)
            self._state = None if state["policy_state"] is None else np.array(state["policy_state"], np.float32)
            self._before = None if state["before"] is None else np.array(state["before"], np.float32)
            self._reopen_episodes(state["episodes"])
        return True

    def last_of(self, env_index: int, name: str) -> Any:
        """The latest raw_obs, obs, action, reward or info of one env, for `Episode`."""
        raw_obs, obs, actions, rewards, infos = self._last
        if name == "raw_obs":
            return take_rows(raw_obs, env_index)
        if name == "info":
            return info_of_row(infos, env_index)
        column = {"obs": obs, "action": actions, "reward": rewards}[name]
        return None if column is None else take_rows(column, env_index)

    # The loop.

    def _collect(self, wanted_rows: int, length: int, may_start: MayStart | None = None) -> Trajectory:
        env, num_envs = self.env, self.env.num_envs
        if self._obs is None:
            self._reset()
        active = None
        if may_start is not None:
            active = np.array([may_start(i, 0) for i in range(num_envs)], bool)
        update_filter = not (self.config.in_evaluation and self.config.synchronize_filters)
        explore, horizon = self.config.explore, self.config.horizon
        to_env = self.action_adapter.to_env
        columns = TrajectoryBuilder(num_envs, length + 1 + length // 4 if env.autoreset_rows or may_start else length)
        invalid_rows = 0
        t = 0
        obs, self._obs = self._obs, None  # whatever is raised below, the next fragment begins with a reset
        act, stored, step = self.policy.act, self.action_adapter.flatten, env.step
        state = self._state
        memory = None if state is None else MemoryBuilder(state, self.sequence_length)
        finals: list[tuple[int, NDArray[np.int64], NDArray]] = []
        begins: list[tuple[int, NDArray[np.int64]]] = []  # (t, envs): an episode ended there, by its end or its loss
        first_episodes = self._episode_counts.copy()
        env_s = encode_s = policy_s = actions_s = 0.0
        while True:
            if may_start is None:
                if t >= length and t * num_envs - invalid_rows >= wanted_rows:
                    break
            elif not active.any():  # type: ignore[union-attr]
                break
            clock_0 = perf_counter()
            x = self._filtered(self._encoded(obs), update_filter, active)
            clock_1 = perf_counter()
            actions, dist_inputs, state, values = act(x, self._streams, explore, state)
            clock_2 = perf_counter()
            env_actions = to_env(actions)
            clock_3 = perf_counter()
            result = step(env_actions) if active is None or not env.can_skip else step(env_actions, active)
            clock_4 = perf_counter()
            env_s += clock_4 - clock_3
            encode_s += clock_1 - clock_0
            policy_s += clock_2 - clock_1
            actions_s += clock_3 - clock_2

            self.episode_returns += result.rewards
            self.episode_lengths += 1
            if horizon is not None:
                result = self._cut_at(horizon, result)
            columns.write(t, x, stored(actions), dist_inputs, result, values)
            if self._view is not None and self._before is not None:
                self._before = self._view.before(num_envs, actions, result.rewards)
            env_done = done = result.terminateds | result.truncateds
            if active is not None:
                done = env_done & active
            over = env_done if result.valid is None else env_done | ~result.valid  # nothing is remembered after these
            if memory is not None:
                assert state is not None, "a policy that has a state_size gives its state"
                state = memory.after_step(state, done, over)
            if result.valid is not None or active is not None:
                invalid_rows += self._mark_invalid(columns, t, result, active, begins)
            self._autoreset = None
            obs = result.obs
            if self._episodes is not None:
                self._last = (obs, x, actions, result.rewards, result.infos)
                self._step_callbacks(result, active)
            if env_done.any():
                ended = np.flatnonzero(done)
                finals.append((t, ended, self._encoded(obs)[ended]))
                begins.append((t, ended))
                self._end_episodes(ended)
                begun, again = done, env_done
                if active is not None and may_start is not None:
                    rows = (t + 1) * num_envs - invalid_rows
                    active[ended] = [may_start(int(i), rows) for i in ended]
                    begun = done & active
                    again = begun if env.can_skip else env_done
                obs = env.reset_done(again)
                self._autoreset = env.resets_next(again)
                self._begin_episodes(np.flatnonzero(begun), obs)
            if self._before is not None:
                self._before[over] = 0.0
            t += 1
        self._obs, self._state = obs if may_start is None else None, state
        self._steps += t
        self._perf_s = [a + b for a, b in zip(self._perf_s, (env_s, encode_s, policy_s, actions_s), strict=True)]
        remembered = None if memory is None else memory.finish()
        return self._finish(columns, t, obs, finals, first_episodes, begins, remembered)

    def _reset(self) -> None:
        seeds = None
        if not self._seeded:
            seeds = episode_seeds(self._key, self._env_indices, self._restarts)
            self._seeded = True
        self._obs = self.env.reset(seeds)
        self._autoreset = None
        if self._state is not None:
            self._state = np.zeros_like(self._state)
        if self._before is not None:
            self._before = np.zeros_like(self._before)
        self.episode_returns[:] = 0.0
        self.episode_lengths[:] = 0
        self._episode_counts += 1
        self._open_episodes()

    def _encoded(self, obs: Any) -> NDArray:
        """The rows that the policy sees of observations."""
        return self.encoder.encode(obs) if self._view is None else self._view.encode(obs, self._before)

    def _filtered(self, x: NDArray, update: bool, active: NDArray[np.bool_] | None) -> NDArray:
        """Filter the encoded observations; those which nobody acts on do not enter the statistics."""
        idle = self._autoreset
        if active is not None:
            idle = ~active if idle is None else idle | ~active
        if self._view is not None:
            self._view.check_masks(x, idle)
        if not update or idle is None:
            return self.filter(x, update=update)
        if not idle.all():
            self.filter(x[~idle], update=True)
        return self.filter(x, update=False)

    def _cut_at(self, horizon: int, result: StepResult) -> StepResult:
        """Truncate the episodes that have reached the horizon."""
        cut = (self.episode_lengths >= horizon) & ~result.terminateds
        if result.valid is not None:
            cut &= result.valid
        return result._replace(truncateds=result.truncateds | cut) if cut.any() else result

    def _mark_invalid(
        self,
        columns: TrajectoryBuilder,
        t: int,
        result: StepResult,
        active: NDArray[np.bool_] | None,
        begins: list[tuple[int, NDArray[np.int64]]],
    ) -> int:
        """Mark the rows of step t that are no transitions, and all rows of a lost episode; the number of new ones."""
        valid = np.ones(len(result.rewards), bool) if result.valid is None else result.valid.copy()
        if active is not None:
            valid &= active
        before = columns.count_invalid(t)
        idle = np.flatnonzero(~valid)
        columns.invalidate(t, t + 1, idle)
        if result.dropped is not None and result.dropped.any():
            lost = np.flatnonzero(result.dropped)
            begins.append((t, lost))
            for i in lost:
                columns.invalidate(max(0, t + 1 - int(self.episode_lengths[i])), t + 1, np.array([i]))
            self._episode_counts[lost] += 1
        self.episode_returns[idle] = 0.0
        self.episode_lengths[idle] = 0
        if self._episodes is not None and result.dropped is not None:
            self._begin_episodes(np.flatnonzero(result.dropped), result.obs, counted=True)
        return columns.count_invalid(t + 1) - before

    def _end_episodes(self, ended: NDArray[np.int64]) -> None:
        for i in ended.tolist():
            metrics = RolloutMetrics(int(self.episode_lengths[i]), float(self.episode_returns[i]))
            if self._episodes is not None:
                episode = self._episodes[i]
                self._call("on_episode_end", i, policies=self.worker.policy_map)
                metrics = metrics.with_custom(episode.custom_metrics, episode.hist_data)
                episode.close()
            self._finished.append(metrics)

    def _begin_episodes(self, begun: NDArray[np.int64], obs: Any, counted: bool = False) -> None:
        self.episode_returns[begun] = 0.0
        self.episode_lengths[begun] = 0
        if not counted:
            self._episode_counts[begun] += 1
        if self._episodes is not None:
            self._last = (obs, None, None, None, None)
            for i in begun.tolist():
                self._episodes[i] = Episode(self, i, self._episode_id(i))
                self._call("on_episode_start", i, policies=self.worker.policy_map)

    def _open_episodes(self) -> None:
        """Give callbacks an Episode for each env, after a reset of all."""
        if self._episodes is not None:
            self._reopen_episodes(())
            for i in range(self.env.num_envs):
                self._call("on_episode_start", i, policies=self.worker.policy_map)

    def _reopen_episodes(self, states: Sequence[dict[str, Any]]) -> None:
        """Give callbacks an Episode for each running one, with what was saved of it."""
        if self._episodes is not None:
            self._last = (self._obs, None, None, None, None)
            self._episodes = [Episode(self, i, self._episode_id(i)) for i in range(self.env.num_envs)]
            for episode, state in zip(self._episodes, states, strict=False):
                episode.set_state(state)

    def _episode_id(self, env_index: int) -> int:
        return int((self._episode_counts[env_index] - 1) * self._stride + self._env_indices[env_index])

    def _step_callbacks(self, result: StepResult, active: NDArray[np.bool_] | None) -> None:
        if self._watch_steps:
            for i in range(self.env.num_envs):
                if (result.valid is None or result.valid[i]) and (active is None or active[i]):
                    self._call("on_episode_step", i)

    def _call(self, name: str, env_index: int, **kwargs: Any) -> None:
        assert self._episodes is not None
        getattr(self.callbacks, name)(
            worker=self.worker, base_env=self.env, episode=self._episodes[env_index], env_index=env_index, **kwargs
        )

    def _finish(
        self,
        columns: TrajectoryBuilder,
        steps: int,
        obs: Any,
        finals: list[tuple[int, NDArray[np.int64], NDArray]],
        first_episodes: NDArray[np.int64],
        begins: list[tuple[int, NDArray[np.int64]]],
        memory: Memory | None,
    ) -> Trajectory:
        """Put the fragment together: ids, clipped rewards, and the observations that are not rows."""
        final_rows = np.concatenate([_rows_at(t, ended) for t, ended, _ in finals] or [np.empty((0, 2), np.int64)])
        last = self._encoded(obs)
        final_obs = np.concatenate([x for *_, x in finals] or [last[:0]])
        fields, valid = columns.cut(steps)
        episodes = np.zeros((steps + 1, self.env.num_envs), np.int64)
        episodes[0] = first_episodes - 1
        for t, env_indices in begins:
            episodes[t + 1, env_indices] += 1
        fields[SampleBatch.EPS_ID] = np.cumsum(episodes, axis=0)[:-1] * self._stride + self._env_indices
        unroll = np.int64(self._fragments) * self._stride + self._env_indices
        fields[SampleBatch.UNROLL_ID] = np.broadcast_to(unroll, fields[SampleBatch.EPS_ID].shape)
        self._fragments += 1
        fields[SampleBatch.REWARDS] = learned_rewards(fields[SampleBatch.REWARDS], self.config.clip_rewards)
        last = self.filter(last, update=False)
        final_obs = self.filter(final_obs, update=False) if len(final_obs) else final_obs
        return Trajectory(fields, np.array(last), final_rows, final_obs, valid, memory)


def episode_seeds(key: Sequence[int], env_indices: Sequence[int] | NDArray[np.int64], restart: int) -> list[int]:
    """One reproducible seed per env: different for each env, run seed, purpose and restart."""
    return [int(np.random.SeedSequence([*key, int(i), restart]).generate_state(1)[0] >> 1) for i in env_indices]


def _rows_at(t: int, env_indices: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.stack([np.full_like(env_indices, t), env_indices], axis=1)
