"""A run imports the framework that learns, and no other; one that is missing says how to install it."""

import json
import subprocess
import sys

import pytest

from headwater.errors import ConfigError, MissingExtraError
from headwater.policy.policy_template import build_policy, framework_policy
from tests.frameworks.policies import FRAMEWORKS, PACKAGES

_RUN = """
import json, sys
from headwater import PPOTrainer
config = {{"env": "CartPole-v1", "framework": "{framework}", "num_envs_per_worker": 2, "train_batch_size": 64,
          "sgd_minibatch_size": 32, "num_sgd_iter": 1, "evaluation_interval": 1, "evaluation_num_episodes": 1,
          "local_dir": {directory!r}}}
with PPOTrainer(config) as trainer:
    trainer.train()
    path = trainer.save()
    trainer.restore(path)
    trainer.compute_action([0.0, 0.0, 0.0, 0.0])
ours = [name for name in ("torch", "tf", "jax") if "headwater.frameworks." + name in sys.modules]
print(json.dumps([ours, [name for name in ("torch", "tensorflow", "jax") if name in sys.modules]]))
"""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_run_imports_no_other_framework(framework, tmp_path):
    code = _RUN.format(framework=framework, directory=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    ours, packages = json.loads(done.stdout.splitlines()[-1])
    assert ours == ["tf" if framework == "tf2" else framework]
    brought = {"jax"} if framework == "tf2" else set()  # TensorFlow itself imports it, where it is installed
    assert set(packages) - brought == {PACKAGES[framework]}


def test_a_framework_that_is_not_there_says_how_to_install_it(monkeypatch):
    for name in ("jax", "tensorflow"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in [
        name for name in sys.modules if name.startswith(("headwater.frameworks.jax", "headwater.frameworks.tf"))
    ]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingExtraError, match=r"'jax', which is not installed.*pip install 'headwater\[jax\]'"):
        framework_policy("jax")
    with pytest.raises(MissingExtraError, match=r"pip install 'headwater\[tf\]'"):
        framework_policy("tf2")


def test_unknown_framework():
    with pytest.raises(ConfigError, match="framework: must be one of"):
        build_policy("Nothing", loss=lambda: None, framework="caffe")
