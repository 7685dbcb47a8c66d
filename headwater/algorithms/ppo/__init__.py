"""Proximal policy optimisation: `config.py` (settings), `loss.py` (mathematics), `ppo.py` (plan, PPOTrainer)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.algorithms.ppo.ppo import PPOTrainer as PPOTrainer

_HERE = (
    "PPOTrainer", "PPOTorchPolicy", "PPOTFPolicy", "PPOJAXPolicy", "execution_plan", "get_policy_class", "UpdateKL",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    # Lazily, so that the config alone (`headwater config PPO`) imports neither the plan nor a framework.
    if name in _HERE:
        from headwater.algorithms.ppo import ppo

        return getattr(ppo, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
