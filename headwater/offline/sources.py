"""From what `input` and `output` may be set to, to readers and writers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from headwater.data.sample_batch import SampleBatch
from headwater.errors import ConfigError
from headwater.offline.context import IOContext, OfflineError
from headwater.offline.minari_files import PREFIX
from headwater.offline.minari_reader import MinariReader
from headwater.offline.minari_writer import writer_for_chain
from headwater.offline.mixing import CallableReader, MixedReader, callable_source, check_probabilities
from headwater.offline.reader import InputReader, ParquetReader
from headwater.offline.writer import MAX_FILE_SIZE, OutputWriter, ParquetWriter

SAMPLER = "sampler"
LOGDIR = "logdir"


def make_reader(
    spec: Any,
    context: IOContext | None = None,
    *,
    batch_rows: int | None = 1024,
    shuffle_seed: int | None = None,
    epochs: int | None = None,
    expects: Mapping[str, Mapping[str, tuple[int, ...]]] | None = None,
    chain: Any = None,
    seed: int | None = None,
) -> InputReader:
    """The reader of what `input` may be.

    Args:
        spec: a file, directory, glob or list of these; "minari:ID or path"; {source: share of the batches}, where a
            source may also be "sampler", the worker's own env; a callable that takes an IOContext and gives an
            InputReader or anything else with `next()`.
        context: where the reader stands.
        batch_rows: rows of a batch; None: as they are stored.
        shuffle_seed: of the order of what is stored together; None: in order.
        epochs: how often all is read; None: for ever.
        expects: see `ParquetReader`.
        chain: the `acting_chain` of the worker, by which Minari datasets are encoded; None: the default encoding.
        seed: of a mixture's draws.

    Raises:
        ConfigError: the setting is none of these.
        OfflineError: the files are missing, damaged or unfit.
    """
    context = context or IOContext()
    common: dict[str, Any] = {
        "batch_rows": batch_rows, "shuffle_seed": shuffle_seed, "epochs": epochs,
        "shard": context.shard, "num_shards": context.num_shards,
    }  # fmt: skip
    if isinstance(spec, Mapping):
        if not spec:
            raise ConfigError("input: the mixture {} has no source; give {source: share}, shares adding up to 1.")
        check_probabilities(spec)
        readers = {
            source: make_reader(source, context, batch_rows=batch_rows, shuffle_seed=shuffle_seed, epochs=epochs,
                                expects=expects, chain=chain, seed=seed)
            for source in spec
        }  # fmt: skip
        return MixedReader(readers, spec, seed)
    if spec == SAMPLER:
        if context.sampler is None:
            raise ConfigError("input: 'sampler' in a mixture is the worker's own env, and this worker has none.")
        return CallableReader(context.sampler)
    if isinstance(spec, str) and spec.startswith(PREFIX):
        own = {} if chain is None else {
            "encoder": chain.encoder, "action_adapter": chain.action_adapter, "obs_filter": chain.obs_filter,
        }  # fmt: skip
        return MinariReader(spec.removeprefix(PREFIX), **own, **common)
    if isinstance(spec, (str, Path)) or (
        isinstance(spec, Sequence) and spec and all(isinstance(item, (str, Path)) for item in spec)
    ):
        return ParquetReader(spec, expects=expects, **common)
    if isinstance(spec, InputReader):
        return spec
    if callable(spec):
        return callable_source(spec, context)
    if hasattr(spec, "next"):
        return CallableReader(spec)
    raise ConfigError(
        f"input: {spec!r} is no source of experience. Give a path, a glob, a list of them, 'minari:ID or path', "
        "{source: share}, or a function that takes an IOContext and returns an InputReader."
    )


def make_writer(
    spec: Any,
    context: IOContext | None = None,
    *,
    chain: Any = None,
    compress_columns: Sequence[str] = (SampleBatch.OBS, SampleBatch.NEW_OBS),
    max_file_size_bytes: int = MAX_FILE_SIZE,
    metadata: Mapping[str, Any] | None = None,
    env_spec: str | None = None,
) -> OutputWriter:
    """The writer of what `output` may be.

    Args:
        spec: a directory, "logdir" for the run's own, "minari:ID or path", or a callable that takes an IOContext and
            gives an OutputWriter.
        context: where the writer stands.
        chain: the `acting_chain` of the worker; needed for Minari.
        compress_columns, max_file_size_bytes, metadata: see `ParquetWriter`.
        env_spec: see `MinariWriter`.

    Raises:
        ConfigError: the setting is none of these.
    """
    context = context or IOContext()
    settings = dict(context.settings)
    try:
        if spec == LOGDIR:
            if context.log_dir is None:
                raise ConfigError(
                    "output: 'logdir' is the run's directory, and this run writes none. Name a directory."
                )
            spec = context.log_dir
        if isinstance(spec, str) and spec.startswith(PREFIX):
            if chain is None:
                raise OfflineError("output: a Minari dataset holds what an env of one agent saw and took; this run has "
                                   "several policies. Name a directory: Parquet files hold all of them.")  # fmt: skip
            name, index = spec.removeprefix(PREFIX), context.worker_index
            return writer_for_chain(name, chain, worker_index=index, env_spec=env_spec, **settings)
        if isinstance(spec, (str, Path)):
            return ParquetWriter(
                spec, worker_index=context.worker_index, max_file_size_bytes=max_file_size_bytes,
                compress_columns=compress_columns, metadata=metadata, **settings,
            )  # fmt: skip
    except TypeError as error:
        if "unexpected keyword" in str(error):
            raise ConfigError(f"output_config: {error}. Its keys are arguments of the writer.") from error
        raise
    made = spec(context) if callable(spec) else spec
    if isinstance(made, OutputWriter):
        return made
    raise ConfigError(
        f"output: {spec!r} is no place for experience. Give a directory, 'logdir', 'minari:ID or path', or a function "
        "that takes an IOContext and returns an OutputWriter."
    )


def expected_shapes(chains: Mapping[str, Any]) -> dict[str, dict[str, tuple[int, ...]]]:
    """What rows must look like for the policies of a worker; `chains` are its acting chains by policy id."""
    expects = {}
    for policy_id, chain in chains.items():
        shape = tuple(chain.encoder.space.shape)
        adapter = chain.action_adapter
        actions = (adapter.flat_width,) if adapter.is_nested else tuple(adapter.space.shape or ())
        expects[policy_id] = {SampleBatch.OBS: shape, SampleBatch.NEW_OBS: shape, SampleBatch.ACTIONS: actions}
        assert int(np.prod(actions)) == adapter.flat_width
    return expects
