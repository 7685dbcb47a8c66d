"""Lanes: what one policy does in a BaseEnv's envs: who waits for its action, and the rows of what was done.

A lane is one agent's place in one env; episode after episode of it follow each other in one lane. Rows are written in
the order in which they happen, whichever lanes they belong to, and put in order once, when the fragment is finished:

    ready agents -> encode -> filter, act -> rows           each poll, one batch whoever is in it
                                              -> Trajectory  each fragment, lane by lane

A row is given away when it is closed: when its agent has observed again, or ended. What is still open at the end of a
fragment (an agent that waits for others' turns) stays for the next one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from headwater.data.sample_batch import SampleBatch
from headwater.envs.base_env import LoggedAction
from headwater.envs.nested import as_row, make_split, tree_map
from headwater.envs.space_check import Mismatch
from headwater.envs.step_checker import StepChecker
from headwater.sampling.exported_policy import ActingChain
from headwater.sampling.multi_agent_episode import Agent, MultiAgentEpisode
from headwater.sampling.policy_encoder import PolicyEncoder, learned_rewards
from headwater.sampling.streams import LaneStreams
from headwater.sampling.trajectory import Memory, Trajectory

LANE, STATE = "lane", "state"  # columns of the rows that do not leave


class BadObservation(Exception):
    """An agent observed what is not in its space."""

    def __init__(self, agent: Agent, mismatch: Mismatch) -> None:
        super().__init__(str(mismatch))
        self.agent = agent


class _Ending(NamedTuple):
    """The end of an agent's episode."""

    row: int
    raw_obs: Any  # None: there was no final one
    before: Any  # [P] what the policy would see of the step before
    state: Any  # [S] what it remembers


class Lanes:
    """The lanes and rows of one policy.

    Args:
        policy_id: of the policy.
        chain: encoder, filter, policy, action adapter.
        config: the policy's.
        episodes: the running ones, a view that stays up to date.
        sequence_length: L, of a policy with memory.
        is_multi_agent: whether rows say which agent's they are, and at what step.
        check_every_step: see the setting check_env_steps.

    Attributes:
        ready: agents that observed and have not acted; `raw` what they observed.
    """

    def __init__(
        self,
        policy_id: str,
        chain: ActingChain,
        config: Any,
        episodes: Iterable[MultiAgentEpisode],
        sequence_length: int,
        is_multi_agent: bool,
        check_every_step: bool,
    ) -> None:
        self.policy_id = policy_id
        self.chain = chain
        self.policy = chain.policy
        self.ready: list[Agent] = []
        self.raw: list[Any] = []
        self._config = config
        self._episodes = episodes
        self._sequence_length = sequence_length
        self._is_multi_agent = is_multi_agent
        self._view = chain.encoder if isinstance(chain.encoder, PolicyEncoder) else None
        self._space = chain.encoder.original_space
        self._checker = StepChecker(self._space, 0, check_every_step)
        self._split = make_split(chain.action_adapter.space)
        self._num_checks = 0
        self._explore = bool(config.explore)
        self._updates_filter = not (config.in_evaluation and config.synchronize_filters)
        self.clear()

    def clear(self) -> None:
        """Forget all lanes and rows."""
        self.ready, self.raw = [], []
        self._streams = LaneStreams()
        self._lane_of: dict[tuple[Any, Any], int] = {}
        self._env_of: list[int] = []
        size = self.policy.state_size
        self._state = np.zeros((0, size), np.float32) if size else None
        before = self._view.before_size if self._view is not None else 0
        self._before = np.zeros((0, before), np.float32) if before else None
        self._columns: dict[str, NDArray] = {}
        self._rewards: list[float] = []
        self._count = 0
        self._endings: list[_Ending] = []  # not encoded yet
        self._ends: list[tuple[int, NDArray, NDArray | None]] = []  # row, the observation after it, the state after it
        self._x: NDArray | None = None  # the encoded observations of `ready`
        self._x_of: list[Agent] = []
        self._lanes_of_x = np.empty(0, np.int64)

    # Agents.

    def open_lane(self, episode: MultiAgentEpisode, agent_id: Any, index: int, key: Sequence[int]) -> Agent:
        """The agent in its lane, at the beginning of its episode.

        Args:
            key: names the lane's random numbers, where it is new.
        """
        place = (episode.env_id, agent_id)
        lane = self._lane_of.get(place)
        if lane is None:
            lane = self._lane_of[place] = self._streams.add(key)
            self._env_of.append(episode.env_index)
            if self._state is not None:
                self._state = np.concatenate([self._state, np.zeros((1, self._state.shape[1]), np.float32)])
            if self._before is not None:
                self._before = np.concatenate([self._before, np.zeros((1, self._before.shape[1]), np.float32)])
        if self._state is not None:
            self._state[lane] = 0.0
        if self._before is not None:
            self._before[lane] = 0.0
        return Agent(episode, agent_id, index, self, lane)

    def pay(self, row: int, reward: float) -> None:
        """Add to the reward of a row that is not given away yet."""
        self._rewards[row] += reward

    def end(self, agent: Agent, raw_obs: Any, terminated: bool, truncated: bool) -> None:
        """Close the agent's latest row: its episode ended with the observation `raw_obs` (None: with none)."""
        row = agent.row
        if row < 0:
            return
        agent.row = -1
        self._columns[SampleBatch.TERMINATEDS][row] = terminated
        self._columns[SampleBatch.TRUNCATEDS][row] = truncated
        before = None
        if self._before is not None:
            before = self._before[agent.lane] + self._paid_columns([row])[0]
        state = None if self._state is None else self._state[agent.lane].copy()
        self._endings.append(_Ending(row, raw_obs, before, state))

    def check(self, agent: Agent, raw_obs: Any) -> None:
        """Raise BadObservation where an observation is not in its space."""
        try:
            if self._checker.passes(self.chain.gather([raw_obs])):
                return
        except (TypeError, ValueError, KeyError, IndexError):
            pass  # the whole check says what is wrong, or that it only has to be cast
        mismatch = self._checker.row_mismatch(raw_obs)
        if mismatch is not None:
            raise BadObservation(agent, mismatch)

    def wait(self, agent: Agent, raw_obs: Any) -> None:
        """Let an agent that observed wait for its action, beside those that do already."""
        self.ready.append(agent)
        self.raw.append(raw_obs)
        self._x = None

    def num_closed(self, episode_id: int) -> int:
        """Rows of an episode that could be given away."""
        if not self._count:
            return 0
        rows = int((self._columns[SampleBatch.EPS_ID][: self._count] == episode_id).sum())
        return rows - sum(agent.row >= 0 and agent.episode.episode_id == episode_id for agent in self._agents())

    def forget(self, agents: Iterable[Agent]) -> None:
        """Take agents out of those that wait for an action."""
        gone = {id(agent) for agent in agents}
        kept = [k for k, agent in enumerate(self.ready) if id(agent) not in gone]
        self.ready, self.raw = [self.ready[k] for k in kept], [self.raw[k] for k in kept]
        self._x = None

    # Acting.

    def encode(self) -> None:
        """Encode what the ready agents observed.

        Raises:
            BadObservation: one of them is not in its space.
            EnvError: an action mask allows nothing.
        """
        if self._endings:
            self._encode_endings()
        if self._x is not None or not self.ready:
            return
        batch = self._batch(self.ready, self.raw)
        if self._view is None:
            self._x = self.chain.encoder.encode(batch)
            return
        before = None
        if self._before is not None:
            before = self._before[[agent.lane for agent in self.ready]]
            before += self._paid_columns([agent.row for agent in self.ready])
        self._x = self._view.encode(batch, before)
        if self._view.has_mask:
            self._view.check_masks(self._x, noun=self._name_of)

    def act(self, off_policy: dict[int, Any]) -> list[Any]:
        """Let the policy act for the ready agents, and write a row for each.

        Args:
            off_policy: place among the ready -> the action that was taken already.

        Returns:
            The actions, as the env takes them, in the order of `ready`.
        """
        agents, x = self.ready, self._x
        assert x is not None, "encode() comes first"
        if agents != self._x_of:
            self._lanes_of_x = np.array([agent.lane for agent in agents], np.int64)
            self._x_of = agents
        lanes = self._streams.lanes = self._lanes_of_x
        x = self.chain.obs_filter(x, update=self._updates_filter)
        state = None if self._state is None else self._state[lanes]
        acted = self.policy.act(x, self._streams, self._explore, state)
        actions, dist_inputs = acted.actions, acted.dist_inputs
        flat = self.chain.action_adapter.flatten(actions)
        env_actions = list(self._split(self.chain.action_adapter.to_env(actions)))
        if off_policy:
            actions, flat, dist_inputs = self._with_logged(off_policy, flat, dist_inputs)
        start = self._append(x, flat, dist_inputs, acted.values, state)
        if self._before is not None and self._view is not None:
            self._before[lanes] = self._view.before(len(agents), actions)
        if self._state is not None:
            self._state[lanes] = acted.state
        rewards = self._rewards
        for row, agent in enumerate(agents, start):
            agent.row = row
            rewards.append(agent.early_reward)
            agent.early_reward = 0.0
        self.ready, self.raw, self._x = [], [], None
        return env_actions

    def _batch(self, agents: list[Agent], raw: list[Any]) -> Any:
        """Observations as one batch, checked."""
        try:
            batch = self.chain.gather(raw)
            passes = self._checker.passes(batch)
        except (TypeError, ValueError, KeyError, IndexError):
            batch, passes = None, False
        self._num_checks += 1
        if not passes or self._checker.checks_all(self._num_checks):
            for agent, value in zip(agents, raw, strict=True):
                mismatch = self._checker.row_mismatch(value)
                if mismatch is not None:
                    raise BadObservation(agent, mismatch)
            if batch is None:  # all lie in the space, and only have to be cast
                batch = self._cast(raw)
        return batch

    def _cast(self, raw: list[Any]) -> Any:
        return self.chain.gather([as_row(self._space, value) for value in raw])

    def _encode_endings(self) -> None:
        """Encode the final observations, which were checked one by one."""
        endings, self._endings = self._endings, []
        seen = [ending for ending in endings if ending.raw_obs is not None]
        rows: Any = iter(())
        if seen:
            try:
                batch = self.chain.gather([ending.raw_obs for ending in seen])
            except (TypeError, ValueError, KeyError, IndexError):
                batch = self._cast([ending.raw_obs for ending in seen])
            if self._view is None:
                rows = iter(self.chain.encoder.encode(batch))
            else:
                before = None if self._before is None else np.stack([ending.before for ending in seen])
                rows = iter(self._view.encode(batch, before))
        space = self.chain.encoder.space
        for ending in endings:
            x = np.zeros(space.shape, space.dtype) if ending.raw_obs is None else next(rows)
            self._ends.append((ending.row, x, ending.state))

    def _paid_columns(self, rows: list[int]) -> NDArray[np.float32]:
        """What a policy sees of the rewards of rows [M] (-1: none yet), as columns of the step before, [M, P]."""
        assert self._view is not None
        paid = np.array([self._rewards[row] if row >= 0 else 0.0 for row in rows], np.float32)
        return self._view.before(len(rows), rewards=paid)

    def _with_logged(self, off_policy: dict[int, Any], flat: NDArray, dist_inputs: NDArray) -> tuple[Any, Any, Any]:
        flat, dist_inputs = np.array(flat), np.array(dist_inputs)
        adapter = self.chain.action_adapter
        for place, logged in off_policy.items():
            if isinstance(logged, LoggedAction):
                sampled = tree_map(lambda leaf: np.asarray(leaf)[None], logged.action)
                dist_inputs[place] = logged.dist_inputs
            else:
                taken = tree_map(lambda leaf: np.asarray(leaf)[None], as_row(adapter.space, logged))
                sampled = adapter.from_env(taken)
            flat[place] = np.asarray(adapter.flatten(sampled)).reshape(flat[place].shape)
        return adapter.unflatten(flat), flat, dist_inputs

    def _name_of(self, row: int) -> str:
        agent = self.ready[row]
        return f"sub-env {agent.episode.env_id}, agent {agent.agent_id!r}"

    # Rows.

    def _append(self, x: NDArray, flat: NDArray, dist_inputs: NDArray, values: Any, state: Any) -> int:
        start, end = self._count, self._count + len(x)
        agents = self.ready
        episodes = [agent.episode for agent in agents]
        row: dict[str, Any] = {
            SampleBatch.OBS: x, SampleBatch.ACTIONS: flat, SampleBatch.ACTION_DIST_INPUTS: dist_inputs,
            SampleBatch.TERMINATEDS: np.False_, SampleBatch.TRUNCATEDS: np.False_, LANE: self._lanes_of_x,
            SampleBatch.EPS_ID: np.array([episode.episode_id for episode in episodes], np.int64),
        }  # fmt: skip
        if self._is_multi_agent:
            row[SampleBatch.T] = np.array([episode.length for episode in episodes], np.int64)
            row[SampleBatch.AGENT_INDEX] = np.array([agent.index for agent in agents], np.int64)
        if values is not None:
            row[SampleBatch.VF_PREDS] = values
        if state is not None:
            row[STATE] = state
        if not self._columns or end > len(self._columns[LANE]):
            self._grow(row, end)
        for name, value in row.items():
            self._columns[name][start:end] = value
        self._count = end
        return start

    def _grow(self, row: dict[str, Any], end: int) -> None:
        capacity = max(2 * end, 256)
        for name, value in row.items():
            column = np.empty((capacity, *np.shape(value)[1:]), np.asarray(value).dtype)
            if name in self._columns:
                column[: self._count] = self._columns[name][: self._count]
            self._columns[name] = column

    def finish(self, held: set[int], dropped: set[int], unroll: int, stride: int) -> Trajectory | None:
        """Give away the rows that are closed, lane by lane and each lane's in order of time; None without any.

        Args:
            held: ids of episodes whose rows all stay for a later fragment.
            dropped: ids of episodes of which nothing is learned.
            unroll: the fragment's number, for the column unroll_id.
            stride: between the ids of fragments.
        """
        count, columns = self._count, {name: column[: self._count] for name, column in self._columns.items()}
        if not count:
            return None
        episode_of, lane_of = columns[SampleBatch.EPS_ID], columns[LANE]
        open_rows = self._open_rows()
        is_gone = np.isin(episode_of, list(dropped)) if dropped else np.zeros(count, bool)
        is_held = np.isin(episode_of, list(held)) if held else np.zeros(count, bool)
        is_held[open_rows] = True
        order = np.flatnonzero(~(is_gone | is_held))
        order = order[np.argsort(lane_of[order], kind="stable")]
        trajectory = None
        if len(order):
            trajectory = self._trajectory(columns, order, open_rows, unroll, stride)
        self._carry(np.flatnonzero(is_held & ~is_gone), order)
        return trajectory

    def _open_rows(self) -> list[int]:
        """Rows of agents which neither observed again nor ended."""
        waiting = {id(agent) for agent in self.ready}
        return [agent.row for agent in self._agents() if agent.row >= 0 and id(agent) not in waiting]

    def _agents(self) -> list[Agent]:
        """The agents of running episodes in these lanes."""
        return [agent for episode in self._episodes for agent in episode.agents.values() if agent.lanes is self]

    def _trajectory(
        self, columns: dict[str, NDArray], order: NDArray[np.int64], open_rows: list[int], unroll: int, stride: int
    ) -> Trajectory:
        lanes = columns[LANE][order]
        place = np.full(self._count, -1, np.int64)
        place[order] = np.arange(len(order))
        ends, obs, states = self._successors(columns, order, place, lanes, open_rows)
        first = np.flatnonzero(np.append(True, lanes[1:] != lanes[:-1]))
        lengths = np.diff(first, append=len(lanes))
        is_even = bool((lengths == lengths[0]).all())
        envs, steps = (len(first), int(lengths[0])) if is_even else (1, len(lanes))

        def shaped(rows: NDArray) -> NDArray:
            return rows.reshape(envs, steps, *rows.shape[1:]).swapaxes(0, 1)

        fields = {name: shaped(column[order]) for name, column in columns.items() if name not in (LANE, STATE)}
        rewards = shaped(np.array(self._rewards, np.float32)[order])
        fields[SampleBatch.REWARDS] = learned_rewards(rewards, self._config.clip_rewards)
        fields[SampleBatch.UNROLL_ID] = shaped(unroll * stride + np.array(self._env_of, np.int64)[lanes])
        t, n = ends % steps, ends // steps
        is_last = t == steps - 1
        memory = None
        if states is not None:
            grid = shaped((np.arange(len(lanes)) - np.repeat(first, lengths)) % self._sequence_length == 0)
            before = shaped(columns[STATE][order])
            memory = Memory(self._sequence_length, grid, lambda t, n: before[t, n], states, states[is_last])
        return Trajectory(fields, obs[is_last], np.stack([t, n], axis=1), obs, None, memory)

    def _successors(
        self,
        columns: dict[str, NDArray],
        order: NDArray[np.int64],
        place: NDArray[np.int64],
        lanes: NDArray[np.int64],
        open_rows: list[int],
    ) -> tuple[NDArray[np.int64], NDArray, NDArray | None]:
        """Where pieces end among the ordered rows, ascending; the observations after them, filtered; the states."""
        ends = [(int(place[row]), x, state) for row, x, state in self._ends if place[row] >= 0]
        if self._x is not None:
            for agent, x in zip(self.ready, self._x, strict=True):
                if agent.row >= 0 and place[agent.row] >= 0:
                    state = None if self._state is None else self._state[agent.lane].copy()
                    ends.append((int(place[agent.row]), x, state))
        places = [end[0] for end in ends]
        obs = np.array([end[1] for end in ends], columns[SampleBatch.OBS].dtype)
        if len(obs):
            obs = self.chain.obs_filter(obs, update=False)
        rows = [obs] if len(obs) else []
        states = [end[2] for end in ends]
        for row in open_rows:  # what comes before an open row ends with that row's own observation
            last = int(np.searchsorted(lanes, columns[LANE][row], side="right")) - 1
            same = last >= 0 and lanes[last] == columns[LANE][row]
            if same and columns[SampleBatch.EPS_ID][order[last]] == columns[SampleBatch.EPS_ID][row]:
                places.append(last)
                rows.append(columns[SampleBatch.OBS][row][None])
                states.append(None if self._state is None else columns[STATE][row].copy())
        by_place = np.argsort(places)
        stacked = None if self._state is None else np.array(states, np.float32)[by_place]
        return np.array(places, np.int64)[by_place], np.concatenate(rows)[by_place], stacked

    def _carry(self, held: NDArray[np.int64], given: NDArray[np.int64]) -> None:
        """Begin the next fragment with the rows that stay, and with the lanes that are in use."""
        new_row = {int(row): k for k, row in enumerate(held)}
        running = self._agents()
        used = np.union1d(self._columns[LANE][given], self._columns[LANE][held])
        used = np.union1d(used, np.array([agent.lane for agent in running], np.int64))
        rewards = [self._rewards[row] for row in held]
        for column in self._columns.values():
            column[: len(held)] = column[held]
        self._rewards, self._count = rewards, len(held)
        self._ends = [(new_row[row], x, state) for row, x, state in self._ends if row in new_row]
        for agent in running:
            agent.row = new_row.get(agent.row, -1)
        if len(used) < len(self._env_of):
            self._keep_lanes(used, running)

    def _keep_lanes(self, used: NDArray[np.int64], running: list[Agent]) -> None:
        new_lane = {int(lane): k for k, lane in enumerate(used)}
        self._streams.keep(used)
        self._lane_of = {at: new_lane[lane] for at, lane in self._lane_of.items() if lane in new_lane}
        self._env_of = [self._env_of[lane] for lane in used]
        if self._state is not None:
            self._state = self._state[used]
        if self._before is not None:
            self._before = self._before[used]
        lanes = self._columns[LANE][: self._count]
        lanes[...] = [new_lane[int(lane)] for lane in lanes]
        for agent in running:
            agent.lane = new_lane[agent.lane]
        self._x_of = []


def agent_key(agent_id: Any) -> int:
    """A number for an agent's id that is the same in every process."""
    return zlib.crc32(repr(agent_id).encode())
