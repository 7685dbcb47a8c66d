"""What a worker's `input` and `output` settings become: `make_input(worker)` and `make_output(worker)`.

reader -> estimators -> postprocessing -> shuffle buffer -> OfflineInput.next()
sampled batch -> OfflineOutput.write() -> writer
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from headwater.data.sample_batch import Batch, MultiAgentBatch, SampleBatch
from headwater.errors import ConfigError
from headwater.offline.context import IOContext
from headwater.offline.episodes import StepCounter
from headwater.offline.estimators import OffPolicyEstimator, make_estimators
from headwater.offline.mixing import CallableReader, ShuffledReader
from headwater.offline.postprocessing import postprocess_as_needed
from headwater.offline.reader import InputReader
from headwater.offline.sources import SAMPLER, expected_shapes, make_reader, make_writer
from headwater.offline.tables import rows_of
from headwater.offline.writer import MAX_FILE_SIZE, OutputWriter
from headwater.policy.policy import Policy
from headwater.sampling.policy_encoder import learned_rewards

logger = logging.getLogger(__name__)

READER_SETTINGS = ("batch_rows", "shuffle", "epochs")


class OfflineInput(InputReader):
    """A worker's experience from elsewhere, ready to be learned from.

    Args:
        reader: gives the rows.
        policies: by policy id.
        estimators: see every batch as it was read.
        postprocess_inputs: postprocess all rows; False: only those without advantages.
        shuffle_buffer_size: rows among which those of a batch are drawn; 0: in order.
        clip_rewards: the setting, for rows that were recorded as the env paid them.
        seed: of the draws.
    """

    def __init__(
        self,
        reader: InputReader,
        policies: Mapping[str, Policy],
        *,
        estimators: Mapping[str, OffPolicyEstimator] | None = None,
        postprocess_inputs: bool = False,
        shuffle_buffer_size: int = 0,
        clip_rewards: bool | float | None = None,
        seed: int | None = None,
    ) -> None:
        self.reader = reader
        self.estimators = dict(estimators or {})
        self._policies = dict(policies)
        self._always = postprocess_inputs
        self._clip_rewards = clip_rewards
        self._last: InputReader = _Stage(self._read, reader)
        if shuffle_buffer_size:
            self._last = ShuffledReader(self._last, shuffle_buffer_size, seed)

    def next(self) -> Batch:
        return self._last.next()

    def get_estimates(self) -> dict[str, dict[str, float]]:
        """{estimator: its numbers} over the episodes since the last call, see `headwater.offline.estimators`."""
        return {name: estimator.get_metrics() for name, estimator in self.estimators.items()}

    def get_state(self) -> dict[str, Any]:
        return self._last.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        if state:
            self._last.set_state(state)

    def close(self) -> None:
        self.reader.close()

    def _read(self) -> Batch:
        batch = self.reader.next()
        for estimator in self.estimators.values():
            estimator.process(batch)
        if self._clip_rewards not in (None, False):
            batch = _map_rows(batch, self._clipped)
        return postprocess_as_needed(self._policies, batch, self._always)

    def _clipped(self, rows: SampleBatch) -> SampleBatch:
        rows = rows.copy(shallow=True)
        rows[SampleBatch.REWARDS] = learned_rewards(np.asarray(rows[SampleBatch.REWARDS]), self._clip_rewards)
        return rows


class OfflineOutput:
    """Writes what a worker samples. A disk that is full costs rows and a warning, never the training.

    Attributes:
        num_errors: writes that failed.
    """

    def __init__(self, writer: OutputWriter) -> None:
        self.writer = writer
        self.num_errors = 0
        self._counters: dict[str, StepCounter] = {}

    @property
    def num_rows_lost(self) -> int:
        """Rows that errors kept from the disk."""
        return self.writer.num_rows_lost

    def write(self, batch: Batch) -> None:
        """Take a batch as it was sampled and postprocessed."""
        counted = self._with_steps(batch)
        if counted is not None:
            self._guarded(lambda: self.writer.write(counted))

    def flush(self) -> None:
        """Bring to the disk what was taken."""
        self._guarded(self.writer.flush)

    def close(self) -> None:
        """Flush, and write no more."""
        self._guarded(self.writer.close)

    def _with_steps(self, batch: Batch) -> Batch | None:
        """The rows with `t`; None where there are none."""
        counted = {
            policy_id: self._counters.setdefault(policy_id, StepCounter()).add(rows)
            for policy_id, rows in rows_of(batch).items()
        }
        if isinstance(batch, MultiAgentBatch):
            return MultiAgentBatch(counted, batch.count)
        return next(iter(counted.values()), None)

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except OSError as error:
            self.num_errors += 1
            if self.num_errors == 1:
                logger.warning(
                    "Experience could not be written and is lost: %s. Training goes on; further losses are counted "
                    "(num_rows_lost) and not reported.",
                    error,
                )


class _Stage(InputReader):
    """A function over a reader, with the reader's state."""

    def __init__(self, function: Callable[[], Batch], reader: InputReader) -> None:
        self._function, self._reader = function, reader

    def next(self) -> Batch:
        return self._function()

    def get_state(self) -> dict[str, Any]:
        return self._reader.get_state()

    def set_state(self, state: Mapping[str, Any]) -> None:
        self._reader.set_state(state)


def make_input(worker: Any, sampler: Callable[[], Batch] | None = None, made: Any = None) -> OfflineInput | None:
    """A worker's input by its config; None where that is the env ("sampler").

    Read are input, input_config (batch_rows, shuffle, epochs; all of it for a callable), input_evaluation,
    postprocess_inputs, shuffle_buffer_size, clip_rewards and gamma.

    Args:
        worker: a RolloutWorker, or what has its config, seed, worker_index, num_workers, policy_map, acting_chain.
        sampler: gives the next batch of the worker's env, for mixtures.
        made: what a callable `input` gave, where it was called already.
    """
    config = worker.config
    spec = _setting(config, "input", SAMPLER)
    if spec == SAMPLER:
        return None
    if made is not None:
        spec = made if isinstance(made, InputReader) else CallableReader(made)
    settings = dict(_setting(config, "input_config", {}))
    if made is None and not callable(spec):
        unknown = sorted(settings.keys() - set(READER_SETTINGS))
        if unknown:
            raise ConfigError(f"input_config: {unknown[0]!r} is none of {', '.join(READER_SETTINGS)}.")
    chains = {policy_id: worker.acting_chain(policy_id) for policy_id in worker.policy_map}
    [only, *others] = worker.policy_map
    seed = int(np.random.SeedSequence([worker.seed, 7, worker.worker_index]).generate_state(1)[0])
    reader = make_reader(
        spec,
        IOContext(config, worker.worker_index, worker.num_workers, None, settings, sampler),
        batch_rows=settings.get("batch_rows", _batch_rows(config)),
        shuffle_seed=seed if settings.get("shuffle", True) else None,
        epochs=settings.get("epochs"),
        expects=expected_shapes(chains),
        chain=None if others else chains[only],
        seed=seed,
    )
    return OfflineInput(
        reader,
        worker.policy_map,
        estimators=make_estimators(_setting(config, "input_evaluation", []), worker.policy_map[only], config["gamma"]),
        postprocess_inputs=_setting(config, "postprocess_inputs", False),
        shuffle_buffer_size=_setting(config, "shuffle_buffer_size", 0),
        clip_rewards=config["clip_rewards"],
        seed=seed,
    )


def make_output(worker: Any, log_dir: str | Path | None = None) -> OfflineOutput | None:
    """A worker's output by its config; None where nothing is written.

    Read are output, output_config (arguments of the writer), output_compress_columns and output_max_file_size.

    Args:
        worker: as of `make_input`.
        log_dir: the run's directory, which "logdir" means.
    """
    config = worker.config
    spec = _setting(config, "output", None)
    if spec is None:
        return None
    settings = dict(_setting(config, "output_config", {}))
    directory = None if log_dir is None else Path(log_dir)
    writer = make_writer(
        spec,
        IOContext(config, worker.worker_index, worker.num_workers, directory, settings),
        chain=worker.acting_chain(next(iter(worker.policy_map))) if len(worker.policy_map) == 1 else None,
        compress_columns=_setting(config, "output_compress_columns", (SampleBatch.OBS, SampleBatch.NEW_OBS)),
        max_file_size_bytes=_setting(config, "output_max_file_size", MAX_FILE_SIZE),
        metadata={"env": worker.env_id, "gamma": config["gamma"]},
        env_spec=_env_spec(worker.env_id),
    )
    return OfflineOutput(writer)


def _batch_rows(config: Any) -> int:
    """Rows of a sampled fragment, or of the train batch where that is not fixed."""
    fragment = config["rollout_fragment_length"]
    if isinstance(fragment, int) and not isinstance(fragment, bool):
        return fragment * int(config["num_envs_per_worker"])
    return int(config["train_batch_size"])


def _env_spec(env_id: str) -> str | None:
    """What Minari keeps of a Gymnasium env, to make it again."""
    try:
        return gymnasium.spec(env_id).to_json()
    except (gymnasium.error.Error, ImportError, TypeError, ValueError):
        return None


def _setting(config: Any, name: str, default: Any) -> Any:
    """A setting; its default in configs that do not have it."""
    try:
        return config[name]
    except (KeyError, AttributeError):
        return default


def _map_rows(batch: Batch, function: Callable[[SampleBatch], SampleBatch]) -> Batch:
    if isinstance(batch, MultiAgentBatch):
        parts = {policy_id: function(rows) for policy_id, rows in batch.policy_batches.items()}
        return MultiAgentBatch(parts, batch.count)
    assert isinstance(batch, SampleBatch)
    return function(batch)
