"""Videos of a trained policy: one env, rendered off screen, one file an episode."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from headwater.errors import ConfigError, EnvError, MissingExtraError, require
from headwater.registry import install_hint


def record_episodes(
    path: Path, directory: Path, episodes: int, explore: bool, seed: int | None, trust: bool
) -> dict[str, Any]:
    """Run `episodes` with the policy of the checkpoint at `path`, each recorded to `directory`; the summary of them.

    Raises:
        ConfigError: `directory` is a file.
        MissingExtraError: what writes or renders videos is not installed.
        EnvError: the env cannot be rendered to pixels.
    """
    from headwater.cli.evaluate import summarize
    from headwater.cli.run_files import open_for_evaluation

    if directory.exists() and not directory.is_dir():
        raise ConfigError(f"--record: {directory} is a file; name a directory for the videos.")
    require("moviepy", "video")
    trainer = open_for_evaluation(path, {}, trust)
    try:
        env = _make_recorded_env(trainer, directory, f"iteration-{trainer.iteration}")
        try:
            returns, lengths = _run(trainer, env, episodes, explore, seed)
        finally:
            env.close()
        return summarize(path, trainer, returns, lengths, explore) | {"videos": str(directory)}
    finally:
        trainer.stop()


def _make_recorded_env(trainer: Any, directory: Path, prefix: str) -> Any:
    import gymnasium

    from headwater.envs.env_context import EnvContext
    from headwater.registry import env_creator_for

    os.environ.setdefault("SDL_VIDEODRIVER", "dummy")  # pygame opens no window
    os.environ.setdefault("MUJOCO_GL", "egl")
    env_id, creator = env_creator_for(trainer.config["env"])
    context = EnvContext({**trainer.config["env_config"], "render_mode": "rgb_array"})
    try:
        env = _make_env(env_id, creator, context)
        if getattr(env, "render_mode", None) != "rgb_array":
            raise EnvError(
                f"{env_id} cannot be recorded: it does not render to pixels (render_mode='rgb_array' in its "
                f"env_config gave {getattr(env, 'render_mode', None)!r})."
            )
        env.reset()
        env.render()  # a missing renderer shows here, before any episode runs
        return gymnasium.wrappers.RecordVideo(
            env, str(directory), episode_trigger=lambda episode: True, name_prefix=prefix, disable_logger=True
        )
    except gymnasium.error.DependencyNotInstalled as error:
        raise MissingExtraError(f"{env_id} cannot be rendered: {error}.{install_hint(env_id)}") from error


def _make_env(env_id: str, creator: Any, context: Any) -> Any:
    try:
        return creator(context)
    except (EnvError, TypeError) as error:
        if "render_mode" not in str(error):
            raise
        raise EnvError(
            f"{env_id} cannot be recorded: its creator does not take render_mode ({error}). Let it take "
            "render_mode=None, keep that as env.render_mode, and return an RGB array from render()."
        ) from error


def _run(trainer: Any, env: Any, episodes: int, explore: bool, seed: int | None) -> tuple[list[float], list[int]]:
    returns: list[float] = []
    lengths: list[int] = []
    for episode in range(episodes):
        observation, _ = env.reset(seed=None if seed is None else seed + episode)
        total, length, over = 0.0, 0, False
        horizon = trainer.config["horizon"]
        state, action, reward = trainer.get_policy().get_initial_state(), None, None
        while not over:
            action, state, _ = trainer.compute_action(
                observation, state, action, reward, explore=explore, full_fetch=True
            )
            observation, reward, terminated, truncated, _ = env.step(action)
            total, length = total + float(reward), length + 1
            over = bool(terminated or truncated) or (horizon is not None and length >= horizon)
        returns.append(total)
        lengths.append(length)
    return returns, lengths
