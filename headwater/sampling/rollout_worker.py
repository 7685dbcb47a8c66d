"""RolloutWorker: policies and an env together; it makes experience, and (the local one) learns from it.

env -> sampler -> Trajectory -> postprocess -> SampleBatch          sample()
SampleBatch -> policies                                             learn_on_batch()
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from headwater.callbacks import DefaultCallbacks, make_callbacks, overridden
from headwater.config import TrainerConfig
from headwater.data.advantages import standardized
from headwater.data.sample_batch import DEFAULT_POLICY_ID, Batch, MultiAgentBatch, SampleBatch
from headwater.envs.adapters import make_env
from headwater.envs.base_env import AGENT_ID, BaseEnv
from headwater.envs.env_context import EnvContext
from headwater.envs.external_env import ExternalEnv
from headwater.envs.nested import make_gather
from headwater.envs.vector_env import VectorEnv
from headwater.errors import CheckpointError, ConfigError, TrainingError
from headwater.policy.encoded_space import num_features
from headwater.policy.policy import Policy
from headwater.sampling.base_env_sampler import BaseEnvSampler
from headwater.sampling.exported_policy import ActingChain, write_exported_policy
from headwater.sampling.filters import Filter, get_filter
from headwater.sampling.lanes import agent_key
from headwater.sampling.metrics import RolloutMetrics
from headwater.sampling.policies import ResolvedPolicy, make_mapping, resolve_policies, single_policy
from headwater.sampling.policy_encoder import policy_encoder
from headwater.sampling.preprocessors import get_action_adapter
from headwater.sampling.sampler import VectorSampler, episode_seeds
from headwater.sampling.trajectory import Trajectory

if TYPE_CHECKING:
    from headwater.offline import OfflineInput, OfflineOutput

TRAINING, EVALUATION = 0, 1  # purposes: they keep the random numbers of the two apart


class RolloutWorker:
    """Wraps envs of any kind and the policies that act in them.

    Args:
        env_creator: makes one env from an `EnvContext`.
        policy_class: of the default policy.
        config: the whole config; worker, sampler and policy read their settings there.
        env_id: for messages.
        validate_env: called with (env, env_context) wherever an env is made; raises where it does not suit.
        worker_index: 0 for the local worker.
        num_workers: remote workers of the run.
        callbacks: an instance; default: made from the config.
        log_dir: the run's directory, for `output`.

    Example:
        >>> from headwater.algorithms.ppo.ppo import PPOConfig, get_policy_class
        >>> from headwater.registry import env_creator_for
        >>> config = PPOConfig(num_envs_per_worker=4, train_batch_size=64, sgd_minibatch_size=64, seed=0)
        >>> env_id, creator = env_creator_for("CartPole-v1")
        >>> policy_class = get_policy_class(config)
        >>> worker = RolloutWorker(env_creator=creator, env_id=env_id, policy_class=policy_class, config=config)
        >>> batch = worker.sample()
        >>> batch.count >= 64, sorted(worker.learn_on_batch(batch))
        (True, ['default_policy'])
        >>> worker.stop()
    """

    def __init__(
        self,
        *,
        env_creator: Callable[[EnvContext], Any],
        policy_class: type[Policy],
        config: TrainerConfig,
        env_id: str = "env",
        validate_env: Callable[[Any, EnvContext], None] | None = None,
        worker_index: int = 0,
        num_workers: int = 0,
        callbacks: DefaultCallbacks | None = None,
        log_dir: str | Path | None = None,
    ) -> None:
        self.config = config
        self.env_id = env_id
        self.worker_index = worker_index
        self.num_workers = num_workers
        self.callbacks = make_callbacks(config.callbacks) if callbacks is None else callbacks
        self.seed = secrets.randbits(31) if config.seed is None else config.seed
        self.global_vars: dict[str, Any] = {"timestep": 0}
        key = (self.seed, EVALUATION if config.in_evaluation else TRAINING)
        first = max(0, worker_index - 1) * config.num_envs_per_worker
        indices = range(first, first + config.num_envs_per_worker)
        made_input = self._call_input()
        if isinstance(made_input, ExternalEnv):  # as the 1.x line gives a policy server
            external = made_input

            def env_creator(context: EnvContext) -> Any:
                return external

        self.env: VectorEnv | BaseEnv = make_env(
            env_creator,
            env_id,
            config.num_envs_per_worker,
            config,
            EnvContext(config.env_config, worker_index, num_workers=num_workers, num_envs=config.num_envs_per_worker),
            seeds=episode_seeds(key, indices, 0),
            validate_env=validate_env,
        )
        try:
            self._make_policies(policy_class)
            self.sampler = self._make_sampler(key)
            self.input, self.output = self._open_files(made_input, log_dir)
            if hasattr(self._source, "attach"):
                self._source.attach(self)
        except BaseException:
            self._close_env()
            raise
        self._watch_postprocess = overridden(self.callbacks, "on_postprocess_trajectory")

    def _make_policies(self, policy_class: type[Policy]) -> None:
        config = self.config
        mapping = self._mapping = make_mapping(config, self)
        if isinstance(self.env, BaseEnv):
            resolved = resolve_policies(self.env, policy_class, config, mapping)
        else:
            resolved = single_policy(self.env, policy_class, config, self.env_id)
        self._configs = {policy_id: policy.config for policy_id, policy in resolved.items()}
        self._chains = {policy_id: self._make_chain(policy_id, policy) for policy_id, policy in resolved.items()}
        self.policy_map = {policy_id: chain.policy for policy_id, chain in self._chains.items()}
        self.filters = {policy_id: chain.obs_filter for policy_id, chain in self._chains.items()}
        trained = config.multiagent.policies_to_train
        self.policies_to_train = [policy_id for policy_id in self.policy_map if trained is None or policy_id in trained]

    def _make_chain(self, policy_id: str, policy: ResolvedPolicy) -> ActingChain:
        config, space = policy.config, policy.action_space
        encoder = policy_encoder(policy.observation_space, space, config, self.env_id)
        seed = self.seed
        if policy_id != DEFAULT_POLICY_ID:
            seed = int(np.random.SeedSequence([seed, agent_key(policy_id)]).generate_state(1)[0])
        return ActingChain(
            encoder,
            get_filter(config.observation_filter, encoder.space.shape, num_features(encoder.space)),
            policy.policy_class(encoder.space, space, config.model_copy(update={"seed": seed})),
            get_action_adapter(space, clip_actions=config.clip_actions, normalize_actions=config.normalize_actions),
            make_gather(policy.observation_space),
            self.env_id,
        )

    def _make_sampler(self, key: tuple[int, int]) -> VectorSampler | BaseEnvSampler:
        env, samplers = self.env, max(1, self.num_workers)
        width = env.num_envs or 1
        first = max(0, self.worker_index - 1) * width
        common: dict[str, Any] = {
            "key": key, "env_indices": range(first, first + width), "num_envs_total": samplers * width,
            "callbacks": self.callbacks, "worker": self,
        }  # fmt: skip
        if isinstance(env, BaseEnv):
            return BaseEnvSampler(env, self._chains, self._configs, self.config, self._mapping, **common)
        [(policy_id, chain)] = self._chains.items()
        return VectorSampler(
            env, chain.policy, chain.encoder, chain.obs_filter, chain.action_adapter, self._configs[policy_id], **common
        )

    def _call_input(self) -> Any:
        """What a function given as `input` makes, which is an external env, a reader, or anything with `next()`."""
        if not callable(self.config.input):
            return None
        from headwater.offline import IOContext

        settings = self.config.input_config
        return self.config.input(
            IOContext(self.config, self.worker_index, self.num_workers, None, settings, self._sample)
        )

    def _open_files(self, made_input: Any, log_dir: Any) -> tuple[OfflineInput | None, OfflineOutput | None]:
        config = self.config
        reads = config.input != "sampler" and not isinstance(made_input, ExternalEnv)
        if not reads and config.output is None:
            return None, None
        from headwater.offline import make_input, make_output

        output = make_output(self, log_dir)
        try:
            return make_input(self, self._sample, made_input) if reads else None, output
        except BaseException:
            if output is not None:
                output.close()
            raise

    @property
    def _source(self) -> Any:
        """The external env behind the adapter, where there is one."""
        return getattr(self.env, "external_env", None)

    # Experience.

    def sample(self) -> Batch:
        """Step the envs for one fragment and postprocess it; or read as much, where `input` says so.

        Returns:
            A SampleBatch of at least `rollout_fragment_length * num_envs` rows, sampled with the present weights. Rows
            run env by env, each env's in order of time; those of a policy with memory are folded into sequences.
        """
        if hasattr(self._source, "on_sample"):
            self._source.on_sample(self)
        batch = self._sample() if self.input is None else self.input.next()
        if self.output is not None:
            self.output.write(batch)
            for part in batch.as_multi_agent().policy_batches.values():
                part.pop(SampleBatch.NEW_OBS, None)  # for the files only: on-policy losses do not read it
        self.callbacks.on_sample_end(worker=self, samples=batch)
        return batch

    def _sample(self) -> Batch:
        if isinstance(self.sampler, VectorSampler):
            [policy_id] = self.policy_map
            batch = self._postprocess(policy_id, self.sampler.sample())
            return MultiAgentBatch.wrap_as_needed({policy_id: batch}, batch.count)
        fragment = self.sampler.sample()
        batches = {
            policy_id: self._postprocess(policy_id, trajectory)
            for policy_id, trajectory in fragment.trajectories.items()
        }
        if not self.sampler.env.is_multi_agent:
            return MultiAgentBatch.wrap_as_needed(batches, fragment.env_steps)
        return MultiAgentBatch(batches, fragment.env_steps)

    def sample_with_count(self) -> tuple[Batch, int]:
        """`sample()` and the env steps in it."""
        batch = self.sample()
        return batch, batch.count

    def sample_episodes(self, num_episodes: int) -> list[RolloutMetrics]:
        """Run exactly `num_episodes` fresh, whole episodes and return their metrics; nothing is postprocessed."""
        self.sampler.get_metrics()
        self.sampler.sample_episodes(num_episodes)
        return self.sampler.get_metrics()

    def _postprocess(self, policy_id: str, trajectory: Trajectory) -> SampleBatch:
        policy = self.policy_map[policy_id]
        policy.postprocess_trajectory(trajectory)
        if self.output is not None:
            trajectory.add(SampleBatch.NEW_OBS, trajectory.new_obs())
        batch = trajectory.to_batch()
        if self._watch_postprocess:
            for piece in batch.split_by_episode():
                agent: Any = AGENT_ID
                if SampleBatch.AGENT_INDEX in piece:
                    agent = int(piece[SampleBatch.AGENT_INDEX][0])
                self.callbacks.on_postprocess_trajectory(
                    worker=self,
                    episode=int(piece[SampleBatch.EPS_ID][0]),
                    agent_id=agent,
                    policy_id=policy_id,
                    policies=self.policy_map,
                    postprocessed_batch=piece,
                    original_batches={agent: (policy, piece)},
                )
        return trajectory.fold(batch)

    # Acting for users.

    def compute_actions(
        self,
        observations: Sequence[Any],
        policy_id: str = DEFAULT_POLICY_ID,
        explore: bool | None = None,
        states: Sequence[Sequence[Any]] | None = None,
        **kwargs: Any,
    ) -> tuple[list[Any], list[list[NDArray]], dict[str, Any]]:
        """Actions for raw observations, by the same encoder, filter and action adapter as in sampling.

        Args:
            observations: B observations as the env gives them.
            policy_id: who acts.
            explore: None takes the config's.
            states: of a policy with memory, B lists of state parts; None: as at an episode's start.
            kwargs: prev_action_batch and prev_reward_batch, as the env took and paid them, B each, None where an
                episode begins; others go to the policy.

        Returns:
            B actions as the env takes them; B states after them; the policy's extra fetches ([B, ...] each).
        """
        return self.acting_chain(policy_id).compute_actions(observations, explore, states, **kwargs)

    def acting_chain(self, policy_id: str = DEFAULT_POLICY_ID) -> ActingChain:
        """From raw observations to env actions with one policy."""
        self.for_policy(policy_id)
        return self._chains[policy_id]

    def export_policy(self, path: str | Path, policy_id: str = DEFAULT_POLICY_ID) -> Path:
        """Write a policy to a directory, with all that acting needs; see `ExportedPolicy`."""
        return write_exported_policy(path, self.acting_chain(policy_id), self.config)

    # Learning.

    def compute_gradients(self, samples: Batch) -> tuple[Any, dict[str, Any]]:
        """Gradients of a batch, and its statistics with `batch_count`; of several policies, {policy id: each}."""
        if isinstance(samples, SampleBatch):
            gradients, info = self.policy_map[DEFAULT_POLICY_ID].compute_gradients(samples)
            return gradients, {**info, "batch_count": samples.count}
        parts = samples.as_multi_agent().policy_batches
        computed = {
            policy_id: self.for_policy(policy_id).compute_gradients(batch)
            for policy_id, batch in parts.items()
            if policy_id in self.policies_to_train and batch.count
        }
        infos: dict[str, Any] = {policy_id: info for policy_id, (_, info) in computed.items()}
        return {policy_id: gradients for policy_id, (gradients, _) in computed.items()}, infos

    def apply_gradients(self, gradients: Any) -> None:
        """Take one optimizer step along gradients: of the default policy, or of each in {policy id: gradients}."""
        if set(gradients) <= set(self.policy_map):
            for policy_id, of_policy in gradients.items():
                self.policy_map[policy_id].apply_gradients(of_policy)
        else:
            self.policy_map[DEFAULT_POLICY_ID].apply_gradients(gradients)

    def learn_on_batch(
        self, samples: Batch, num_sgd_iter: int = 1, sgd_minibatch_size: int = 0, policies: Sequence[str] = ()
    ) -> dict[str, dict[str, Any]]:
        """Train policies on their parts of a batch.

        Args:
            samples: the batch.
            num_sgd_iter: passes over it.
            sgd_minibatch_size: rows per update; 0 = the whole batch.
            policies: ids of those to train; empty = all of `policies_to_train`.

        Returns:
            {policy id: statistics} of the policies that had rows to learn from.
        """
        info = {}
        for policy_id, batch in samples.as_multi_agent().policy_batches.items():
            if policy_id in (policies or self.policies_to_train) and batch.count:
                policy = self.policy_map[policy_id]
                self.callbacks.on_learn_on_batch(policy=policy, train_batch=batch)
                info[policy_id] = policy.learn_on_batch(batch, num_sgd_iter, sgd_minibatch_size)
        return info

    def sample_and_learn(
        self, expected_batch_size: int, num_sgd_iter: int, sgd_minibatch_size: int, standardize_fields: Sequence[str]
    ) -> tuple[dict[str, dict[str, Any]], int]:
        """Sample, bring `standardize_fields` to mean 0 and deviation 1, and run the SGD phase, all in this worker.

        Returns:
            {policy id: statistics}, and the env steps.

        Raises:
            TrainingError: the batch has fewer than `expected_batch_size` env steps.
        """
        batch = self.sample()
        if batch.count < expected_batch_size:
            raise TrainingError(
                f"Worker {self.worker_index} sampled {batch.count} env steps, not the {expected_batch_size} expected; "
                "make rollout_fragment_length * num_envs_per_worker the expected size."
            )
        for part in batch.as_multi_agent().policy_batches.values():
            for name in standardize_fields:
                part[name] = standardized(np.asarray(part[name]), part.get(SampleBatch.MASK))
        return self.learn_on_batch(batch, num_sgd_iter, sgd_minibatch_size), batch.count

    # Policies, weights, filters, metrics.

    def get_policy(self, policy_id: str = DEFAULT_POLICY_ID) -> Policy | None:
        """The policy, or None where there is none of that id."""
        return self.policy_map.get(policy_id)

    def for_policy(self, policy_id: str) -> Policy:
        """The policy.

        Raises:
            ConfigError: there is none of that id; names those that there are.
        """
        if policy_id not in self.policy_map:
            raise ConfigError(f"There is no policy {policy_id!r}; there are: {', '.join(sorted(self.policy_map))}.")
        return self.policy_map[policy_id]

    def foreach_policy(self, function: Callable[[Policy, str], Any]) -> list[Any]:
        """`function(policy, policy_id)` for each policy."""
        return [function(policy, policy_id) for policy_id, policy in self.policy_map.items()]

    def foreach_trainable_policy(self, function: Callable[[Policy, str], Any]) -> list[Any]:
        """`function(policy, policy_id)` for each policy that is trained."""
        return [function(self.policy_map[policy_id], policy_id) for policy_id in self.policies_to_train]

    def foreach_env(self, function: Callable[[Any], Any]) -> list[Any]:
        """`function(env)` for each env; for all of them as one where they are not objects in this process."""
        return [function(env) for env in self.env.envs or [self.env]]

    def get_weights(self, policies: Sequence[str] | None = None) -> dict[str, dict[str, NDArray]]:
        """{policy id: {parameter name: array}} of the policies named; None = all."""
        wanted = self.policy_map if policies is None else policies
        return {policy_id: self.for_policy(policy_id).get_weights() for policy_id in wanted}

    def set_weights(
        self, weights: Mapping[str, Mapping[str, NDArray]], global_vars: dict[str, Any] | None = None
    ) -> None:
        """Set the weights of the policies in `weights`, and the global variables where given."""
        for policy_id, policy_weights in weights.items():
            self.for_policy(policy_id).set_weights(policy_weights)
        if global_vars:
            self.set_global_vars(global_vars)

    def get_global_vars(self) -> dict[str, Any]:
        """{"timestep": env steps sampled in the whole run}."""
        return dict(self.global_vars)

    def set_global_vars(self, global_vars: dict[str, Any]) -> None:
        """Tell the policies how far the run is: schedules follow it."""
        self.global_vars = dict(global_vars)
        for policy in self.policy_map.values():
            policy.on_global_var_update(global_vars)

    def get_filters(self, flush_after: bool = False) -> dict[str, Filter]:
        """Copies of the filters by policy id; `flush_after` empties what they gathered since the last sync."""
        copies = {policy_id: obs_filter.as_serializable() for policy_id, obs_filter in self.filters.items()}
        if flush_after:
            for obs_filter in self.filters.values():
                obs_filter.clear_buffer()
        return copies

    def sync_filters(self, new_filters: Mapping[str, Filter]) -> None:
        """Take over the statistics of `new_filters`, one for each policy."""
        for policy_id, obs_filter in self.filters.items():
            obs_filter.sync(new_filters[policy_id])

    def get_metrics(self) -> list[RolloutMetrics]:
        """The episodes that ended since the last call."""
        return self.sampler.get_metrics()

    def get_estimates(self) -> dict[str, dict[str, float]]:
        """{estimator: numbers} of the policy from what was read since the last call; {} where nothing is read."""
        return {} if self.input is None else self.input.get_estimates()

    def perf_stats(self) -> dict[str, float]:
        """Mean milliseconds per step of all envs since the last call: env, observations, inference, actions."""
        return self.sampler.perf_stats()

    def apply(self, function: Callable[..., Any], *args: Any) -> Any:
        """`function(worker, *args)`."""
        return function(self, *args)

    # State.

    def get_state(self) -> dict[str, Any]:
        """Policies, filters and sampler, as arrays and JSON values: all that this worker's future depends on."""
        return {
            "seed": self.seed,
            "global_vars": self.global_vars,
            "policies": {policy_id: policy.get_state() for policy_id, policy in self.policy_map.items()},
            "filters": {policy_id: obs_filter.get_state() for policy_id, obs_filter in self.filters.items()},
            "sampler": self.sampler.get_state(),
            "input": None if self.input is None else self.input.get_state(),
        }

    def set_state(self, state: Mapping[str, Any]) -> bool:
        """Go on from a `get_state()`; False where running episodes could not be saved, so that new ones start.

        Raises:
            CheckpointError: it is that of another kind of policy or filter.
        """
        for policy_id, obs_filter in self.filters.items():
            saved, own = (sorted(of) for of in (state["filters"].get(policy_id, {}), obs_filter.get_state()))
            if saved != own:
                raise CheckpointError(
                    f"The state has filter statistics {saved} for {policy_id!r}, and those of the observation_filter "
                    f"{self.config.observation_filter!r} are {own}: go on with the filter that it was saved with."
                )
        for policy_id, policy_state in state["policies"].items():
            self.for_policy(policy_id).set_state(policy_state)
        for policy_id, filter_state in state["filters"].items():
            self.filters[policy_id].set_state(filter_state)
        self.global_vars = dict(state["global_vars"])
        if self.input is not None and state["input"] is not None:
            self.input.set_state(state["input"])
        return self.sampler.set_state(state["sampler"])

    def save(self) -> dict[str, Any]:
        """What other workers need of this one: policies and filters, without the sampler's own episodes."""
        return {name: value for name, value in self.get_state().items() if name not in ("sampler", "input")}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Take over another worker's `save()`."""
        self.set_weights({policy_id: state["weights"] for policy_id, state in saved["policies"].items()})
        self.set_global_vars(saved["global_vars"])
        for policy_id, filter_state in saved["filters"].items():
            self.filters[policy_id].set_state(filter_state)
            self.filters[policy_id].clear_buffer()  # those rows are the other worker's to report

    @property
    def num_env_faults(self) -> int:
        """Faults of envs so far that were survived."""
        return self.sampler.num_env_faults

    @property
    def spaces(self) -> dict[str, dict[str, Any]]:
        """{policy id: {"observation": of its agents, "action": of its agents}}."""
        return {
            policy_id: {"observation": chain.encoder.original_space, "action": chain.action_adapter.space}
            for policy_id, chain in self._chains.items()
        }

    def flush_output(self) -> None:
        """Bring to the disk what was sampled, where `output` says so."""
        if self.output is not None:
            self.output.flush()

    def stop(self) -> None:
        """Close envs and files."""
        for files in (self.output, self.input):
            if files is not None:
                files.close()
        self._close_env()

    def _close_env(self) -> None:
        if isinstance(self.env, BaseEnv):
            self.env.stop()
        else:
            self.env.close()
