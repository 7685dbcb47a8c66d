"""What is asked of a `gymnasium.vector.VectorEnv`: batches of the right form, and a known way to go on after ends."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

from headwater.envs.env_checks.actions import Chooser
from headwater.envs.env_checks.findings import Findings, Stopped, shown
from headwater.envs.env_checks.values import check_action_space, check_observation_space, copied
from headwater.envs.env_checks.world import differ
from headwater.envs.gymnasium_modes import autoreset_mode, seed_argument
from headwater.envs.nested import make_gather
from headwater.envs.space_check import Mismatch, check_value
from headwater.errors import EnvError


class VectorCheck:
    """Checks a vector env.

    Args:
        env: the vector env.
        findings: where faults go.
    """

    def __init__(self, env: VectorEnv, findings: Findings) -> None:
        self._env = env
        self._findings = findings

    def run(self, steps: int, seed: int) -> None:
        """Check the spaces, then steps of random actions, twice from the same seed.

        Raises:
            Stopped: the env cannot be followed; the reason is among the findings.
        """
        env, findings = self._env, self._findings
        self._space: Any = getattr(env, "single_observation_space", None)
        self._action_space: Any = getattr(env, "single_action_space", None)
        spaces_there = check_observation_space(findings, self._space), check_action_space(findings, self._action_space)
        self._num_envs: Any = getattr(env, "num_envs", None)
        if not isinstance(self._num_envs, int) or self._num_envs < 1:
            findings.error("num-envs", "a number of envs from 1", shown(self._num_envs), "Set self.num_envs.")
        mode = None
        try:
            mode = autoreset_mode(env, type(env).__name__)
        except (EnvError, AttributeError):
            findings.error(
                "autoreset-mode", "metadata['autoreset_mode'] of gymnasium.vector.AutoresetMode",
                repr((getattr(env, "metadata", None) or {}).get("autoreset_mode")),
                "Set it to what the env does after an episode's end: NEXT_STEP, SAME_STEP or DISABLED.",
            )  # fmt: skip
        if not all(spaces_there) or findings.has("num-envs"):
            raise Stopped
        history = self._episodes(steps, seed, mode)
        if differ(history, self._episodes(steps, seed, mode)) is not None:
            findings.where = ""
            findings.error(
                "not-reproducible", f"the same episodes from the same seed ({seed}) and actions", "others",
                "Begin reset with super().reset(seed=seed), and draw from self.np_random only.",
            )  # fmt: skip

    def _episodes(self, steps: int, seed: int, mode: AutoresetMode | None) -> list[Any]:
        env, findings, num_envs = self._env, self._findings, self._num_envs
        findings.where = "reset"
        seeds = seed_argument(env, list(range(seed, seed + num_envs)))
        result = findings.call("reset-raised", lambda: env.reset(seed=seeds))
        if not (isinstance(result, tuple) and len(result) == 2):
            findings.error(
                "reset-result", "(observations, infos) from reset()", shown(result), "Return a dict beside the batch."
            )
            raise Stopped
        self._check_batch(result[0])
        history = [copied(result[0])]
        chooser, gather = Chooser(self._action_space, seed), make_gather(self._action_space, "action")
        for number in range(1, steps + 1):
            findings.where = f"step {number}"
            actions = gather([chooser.choose(None) for _ in range(num_envs)])
            result = findings.call("step-raised", lambda actions=actions: env.step(actions))  # type: ignore[misc]
            if not (isinstance(result, tuple) and len(result) == 5):
                came = f"a tuple of {len(result)}" if isinstance(result, tuple) else shown(result)
                findings.error(
                    "step-result", "(observations, rewards, terminateds, truncateds, infos) from step()", came,
                    "Return these five.",
                )  # fmt: skip
                raise Stopped
            obs, rewards, terminateds, truncateds, infos = result
            self._check_batch(obs)
            self._check_rows("rewards", rewards, "biuf")
            if np.shape(rewards) == (num_envs,) and not np.isfinite(np.asarray(rewards, np.float64)).all():
                findings.error("reward-finite", "finite rewards", shown(rewards), "Find where the number comes from.")
            ended = self._check_rows("terminateds", terminateds, "b") | self._check_rows("truncateds", truncateds, "b")
            if not isinstance(infos, dict):
                findings.error("info-type", "a dict of arrays as infos", shown(infos), "Return {}.")
                raise Stopped
            history.append((copied(obs), copied(rewards), ended))
            if ended.any():
                if mode is AutoresetMode.SAME_STEP and not ("final_obs" in infos or "final_observation" in infos):
                    findings.error(
                        "no-final-observation", "infos['final_obs'] where an episode ended", str(list(infos)),
                        "Put the final observations there: the value of what follows a cut is computed from them.",
                    )  # fmt: skip
                if mode is AutoresetMode.DISABLED:
                    options = {"reset_mask": ended}
                    findings.call("reset-raised", lambda options=options: env.reset(options=options))  # type: ignore[misc]
        return history

    def _check_batch(self, obs: Any) -> None:
        try:
            check_value(self._space, obs, "obs", self._num_envs)
        except Mismatch as mismatch:
            self._findings.error(
                "obs-batch", f"arrays of {self._num_envs} rows, each in {self._space}", str(mismatch),
                "Return batches as the single space says, one row for each env.",
            )  # fmt: skip

    def _check_rows(self, name: str, value: Any, kinds: str) -> np.ndarray:
        """Check an array with one entry for each env; return its truth."""
        array = np.asarray(value)
        if array.shape != (self._num_envs,) or array.dtype.kind not in kinds:
            self._findings.error(
                f"{name}-shape", f"{name} as an array [{self._num_envs}] of {'bool' if kinds == 'b' else 'numbers'}",
                f"shape {array.shape}, {array.dtype}", "Return one entry for each env.",
            )  # fmt: skip
            raise Stopped
        return array.astype(bool)
