"""DefaultCallbacks: where users hook into sampling, learning and results; what is not overridden costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headwater.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable


class DefaultCallbacks:
    """Base of user callbacks: override what you need, accept `**kwargs`, give the class as `config["callbacks"]`.

    Everything arrives by keyword. One instance serves one rollout worker, one policy or one trainer, unless an instance
    was given. `episode` has total_reward, length, episode_id, agent_rewards, custom_metrics, user_data and hist_data:
    what is written to custom_metrics and hist_data when an episode ends comes out in the results.

    Example:
        >>> class PrintReturns(DefaultCallbacks):
        ...     def on_train_result(self, *, trainer, result, **kwargs):
        ...         print(result["episode_reward_mean"])
        >>> overridden(PrintReturns(), "on_train_result"), overridden(PrintReturns(), "on_episode_step")
        (True, False)
    """

    def on_episode_start(
        self, *, worker: Any, base_env: Any, policies: dict[str, Any], episode: Any, env_index: int, **kwargs: Any
    ) -> None:
        """An episode began: its sub-env was reset, nothing was stepped."""

    def on_episode_step(self, *, worker: Any, base_env: Any, episode: Any, env_index: int, **kwargs: Any) -> None:
        """One env step of the episode is recorded."""

    def on_episode_end(
        self, *, worker: Any, base_env: Any, policies: dict[str, Any], episode: Any, env_index: int, **kwargs: Any
    ) -> None:
        """The episode terminated or was truncated; its metrics are complete and may be added to."""

    def on_postprocess_trajectory(
        self, *, worker: Any, episode: Any, agent_id: Any, policy_id: str, policies: dict[str, Any],
        postprocessed_batch: Any, original_batches: dict[Any, Any], **kwargs: Any,
    ) -> None:  # fmt: skip
        """A trajectory has its advantages; `postprocessed_batch` may be changed in place."""

    def on_sample_end(self, *, worker: Any, samples: Any, **kwargs: Any) -> None:
        """A worker finished `sample()`; `samples` is the batch that it returns."""

    def on_learn_on_batch(self, *, policy: Any, train_batch: Any, **kwargs: Any) -> None:
        """A policy is about to learn from `train_batch`."""

    def on_train_result(self, *, trainer: Any, result: dict[str, Any], **kwargs: Any) -> None:
        """One `train()` ended; what is added to `result` reaches the loggers."""


def overridden(callbacks: Any, name: str) -> bool:
    """Whether calling `callbacks.name` does anything: a subclass (or the instance itself) defines it anew."""
    if callbacks is None:
        return False
    if name in getattr(callbacks, "__dict__", ()):
        return True
    method = getattr(type(callbacks), name, None)
    return method is not None and method is not getattr(DefaultCallbacks, name)


def make_callbacks(spec: type | Callable[[], Any] | DefaultCallbacks | str | None) -> DefaultCallbacks:
    """The object for a config's `callbacks`: an instance as it is, a class or function called, a reference imported.

    Raises:
        ConfigError: what came out is no DefaultCallbacks.
    """
    made: Any = spec
    if isinstance(made, str):
        from headwater.registry import resolve_reference

        made = resolve_reference(made)
    if made is None:
        made = DefaultCallbacks
    if not isinstance(made, DefaultCallbacks):
        if not callable(made):
            raise ConfigError(f"callbacks: must be a DefaultCallbacks class or instance, but {made!r} came")
        made = made()
    if not isinstance(made, DefaultCallbacks):
        raise ConfigError(
            f"callbacks: {spec!r} gives a {type(made).__name__}, which does not derive from DefaultCallbacks"
        )
    return made
