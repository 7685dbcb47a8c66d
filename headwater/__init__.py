"""headwater trains reinforcement-learning policies: experience flows downstream.

    env -> sampler -> batch -> learner -> weights -> back to the samplers

The public names below are imported when they are first used, so that `import headwater` costs no framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> the module that bears it.
_PUBLIC = {
    # train
    "Trainer": "headwater.trainer",
    "build_trainer": "headwater.trainer_template",
    "PPOTrainer": "headwater.algorithms.ppo",
    "TrainerConfig": "headwater.config",
    "PPOConfig": "headwater.algorithms.ppo.config",
    "DefaultCallbacks": "headwater.callbacks",
    # the world
    "register_env": "headwater.registry",
    "EnvContext": "headwater.envs.env_context",
    "VectorEnv": "headwater.envs.vector_env",
    "MultiAgentEnv": "headwater.envs.multi_agent_env",
    "ExternalEnv": "headwater.envs.external_env",
    "ExternalMultiAgentEnv": "headwater.envs.external_env",
    "BaseEnv": "headwater.envs.base_env",
    "PolicySpec": "headwater.config",
    "PolicyServerInput": "headwater.serving.policy_server",
    "PolicyClient": "headwater.serving.policy_client",
    # who steps it
    "RolloutWorker": "headwater.sampling.rollout_worker",
    "WorkerSet": "headwater.sampling.worker_set",
    # what flows
    "SampleBatch": "headwater.data.sample_batch",
    "MultiAgentBatch": "headwater.data.sample_batch",
    # who decides and learns
    "Policy": "headwater.policy.policy",
    "build_policy": "headwater.policy.policy_template",
    "ModelCatalog": "headwater.policy.catalog",
    "ExportedPolicy": "headwater.sampling.exported_policy",
    # the plan
    "LocalIterator": "headwater.execution.iterators",
    # what can go wrong
    "HeadwaterError": "headwater.errors",
    "ConfigError": "headwater.errors",
    "EnvError": "headwater.errors",
    "UnsupportedSpaceError": "headwater.errors",
    "CheckpointError": "headwater.errors",
    "TrainingError": "headwater.errors",
    "MissingExtraError": "headwater.errors",
}

if TYPE_CHECKING:
    from headwater.algorithms.ppo import PPOTrainer as PPOTrainer
    from headwater.algorithms.ppo.config import PPOConfig as PPOConfig
    from headwater.callbacks import DefaultCallbacks as DefaultCallbacks
    from headwater.config import PolicySpec as PolicySpec
    from headwater.config import TrainerConfig as TrainerConfig
    from headwater.data.sample_batch import MultiAgentBatch as MultiAgentBatch
    from headwater.data.sample_batch import SampleBatch as SampleBatch
    from headwater.envs.base_env import BaseEnv as BaseEnv
    from headwater.envs.env_context import EnvContext as EnvContext
    from headwater.envs.external_env import ExternalEnv as ExternalEnv
    from headwater.envs.external_env import ExternalMultiAgentEnv as ExternalMultiAgentEnv
    from headwater.envs.multi_agent_env import MultiAgentEnv as MultiAgentEnv
    from headwater.envs.vector_env import VectorEnv as VectorEnv
    from headwater.errors import CheckpointError as CheckpointError
    from headwater.errors import ConfigError as ConfigError
    from headwater.errors import EnvError as EnvError
    from headwater.errors import HeadwaterError as HeadwaterError
    from headwater.errors import MissingExtraError as MissingExtraError
    from headwater.errors import TrainingError as TrainingError
    from headwater.errors import UnsupportedSpaceError as UnsupportedSpaceError
    from headwater.execution.iterators import LocalIterator as LocalIterator
    from headwater.policy.catalog import ModelCatalog as ModelCatalog
    from headwater.policy.policy import Policy as Policy
    from headwater.policy.policy_template import build_policy as build_policy
    from headwater.registry import register_env as register_env
    from headwater.sampling.exported_policy import ExportedPolicy as ExportedPolicy
    from headwater.sampling.rollout_worker import RolloutWorker as RolloutWorker
    from headwater.sampling.worker_set import WorkerSet as WorkerSet
    from headwater.serving.policy_client import PolicyClient as PolicyClient
    from headwater.serving.policy_server import PolicyServerInput as PolicyServerInput
    from headwater.trainer import Trainer as Trainer
    from headwater.trainer_template import build_trainer as build_trainer

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    try:
        module = _PUBLIC[name]
    except KeyError:
        raise AttributeError(f"module 'headwater' has no attribute {name!r}") from None
    value = getattr(importlib.import_module(module), name)
    globals()[name] = value  # found here next time
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
