"""TensorBoard event files, written with TensorBoard's own message types and nothing that imports TensorFlow."""

from __future__ import annotations

import io
import logging
import math
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from headwater.storage.files import AppendFile
from headwater.telemetry.flat_result import flatten_result

_logger = logging.getLogger(__name__)

# A result's path -> the tag that users of the other library know. Learner statistics are named without their policy.
_SB3 = {
    "episode_reward_mean": "rollout/ep_rew_mean",
    "episode_len_mean": "rollout/ep_len_mean",
    "training_iteration": "time/iterations",
    "time_total_s": "time/time_elapsed",
    "timesteps_total": "time/total_timesteps",
    "steps_per_second": "time/fps",
    "evaluation/episode_reward_mean": "eval/mean_reward",
    "evaluation/episode_len_mean": "eval/mean_ep_length",
    "learner/cur_lr": "train/learning_rate",
    "learner/kl": "train/approx_kl",
    "learner/entropy": "train/entropy_loss",  # its negative, as there
    "learner/policy_loss": "train/policy_gradient_loss",
    "learner/vf_loss": "train/value_loss",
    "learner/total_loss": "train/loss",
    "learner/vf_explained_var": "train/explained_variance",
    "learner/clip_fraction": "train/clip_fraction",
}
_CLEANRL = {
    "episode_reward_mean": "charts/episodic_return",
    "episode_len_mean": "charts/episodic_length",
    "steps_per_second": "charts/SPS",
    "learner/cur_lr": "charts/learning_rate",
    "learner/kl": "losses/approx_kl",
    "learner/entropy": "losses/entropy",
    "learner/policy_loss": "losses/policy_loss",
    "learner/vf_loss": "losses/value_loss",
    "learner/vf_explained_var": "losses/explained_variance",
    "learner/clip_fraction": "losses/clipfrac",
}
TAGS: dict[str, dict[str, str]] = {"rllib": {}, "sb3": _SB3, "cleanrl": _CLEANRL}

_RLLIB_PREFIX = "ray/tune/"
_LEARNER = "info/learner/"
_DEFAULT_POLICY = "default_policy"
_LEFT_OUT = {"pid", "timestamp", "done"}  # numbers that draw no curve


class _Curve(NamedTuple):
    tag: str
    sign: float


class TensorBoardWriter:
    """Writes the numbers of each result as scalars over `timesteps_total`.

    Nothing is opened or imported before the first result. A file that cannot be written costs a warning, never the run.

    Attributes:
        num_write_errors: How many writes failed.
    """

    def __init__(self, directory: str | Path, tags: str = "rllib") -> None:
        """Name the directory of the event files.

        Args:
            directory: Made at the first result.
            tags: How curves are named: "rllib" (`ray/tune/` and the result's path), "sb3" or "cleanrl" (the names that
                those libraries give; results that they do not have keep their path).
        """
        if tags not in TAGS:
            raise ValueError(f"tags is one of {', '.join(map(repr, TAGS))}; got {tags!r}.")
        self.directory = Path(directory)
        self.tags = tags
        self.num_write_errors = 0
        self._aliases = TAGS[tags]
        self._curves: dict[str, _Curve | None] = {}
        self._file: AppendFile | None = None
        self._purge_step: int | None = None

    def on_result(self, result: Mapping[str, Any]) -> None:
        """Write one result."""
        try:
            self._write(result)
        except (OSError, ImportError) as error:
            self.num_write_errors += 1
            if self.num_write_errors == 1:
                _logger.warning("TensorBoard cannot be written to %s: %s. Training goes on.", self.directory, error)

    def on_restore(self, timesteps_total: int) -> None:
        """Say that the run goes on from a checkpoint: TensorBoard then drops the points after it."""
        self.close()
        if self.directory.is_dir():
            self._purge_step = timesteps_total + 1

    def close(self) -> None:
        """Close the file; a later result begins another one."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, result: Mapping[str, Any]) -> None:
        from tensorboard.compat.proto import event_pb2

        file = self._file or self._open()
        if file.is_empty:
            header = [event_pb2.Event(wall_time=time.time(), file_version="brain.Event:2")]
            if self._purge_step is not None:
                start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
                header.append(event_pb2.Event(wall_time=time.time(), step=self._purge_step, session_log=start))
            file.append(b"".join(_record(event.SerializeToString()) for event in header))
        event = event_pb2.Event(wall_time=time.time(), step=int(result.get("timesteps_total") or 0))
        add = event.summary.value.add
        for name, value in _numbers(result):
            if name not in self._curves:
                self._curves[name] = self._curve(name)
            if (curve := self._curves[name]) is not None:
                add(tag=curve.tag, simple_value=curve.sign * value)
        file.append(_record(event.SerializeToString()))

    def _open(self) -> AppendFile:
        self.directory.mkdir(parents=True, exist_ok=True)
        name = f"events.out.tfevents.{time.time_ns():020d}.{platform.node()}.{os.getpid()}"
        self._file = AppendFile(self.directory / name, lines=False)
        return self._file

    def _curve(self, name: str) -> _Curve | None:
        if name in _LEFT_OUT:
            return None
        if self.tags == "rllib":
            return _Curve(_RLLIB_PREFIX + name, 1.0)
        if not name.startswith(_LEARNER):
            return _Curve(self._aliases.get(name, name), 1.0)
        policy, _, stat = name.removeprefix(_LEARNER).partition("/")
        tag = self._aliases.get(f"learner/{stat}")
        if tag is None:
            return _Curve(name, 1.0)
        sign = -1.0 if tag == "train/entropy_loss" else 1.0
        return _Curve(tag if policy == _DEFAULT_POLICY else f"{tag}/{policy}", sign)


def _numbers(result: Mapping[str, Any]) -> list[tuple[str, float]]:
    """The finite numbers; a point of NaN, before the first episode ends, would only mark the curve's start."""
    numbers = [
        (name, value)
        for name, value in flatten_result(result).items()
        if isinstance(value, (float, int)) and math.isfinite(value)
    ]
    steps, seconds = result.get("timesteps_this_iter"), result.get("time_this_iter_s")
    if steps and seconds:
        numbers.append(("steps_per_second", steps / seconds))
    return numbers


def _record(data: bytes) -> bytes:
    """A message framed by TensorBoard's RecordWriter, whole, so that a full disk never leaves half of one."""
    from tensorboard.summary.writer.record_writer import RecordWriter

    framed = io.BytesIO()
    RecordWriter(framed).write(data)
    return framed.getvalue()
