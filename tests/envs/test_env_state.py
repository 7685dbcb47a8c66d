"""A saved env goes on exactly where it was, in another process too."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

from headwater.envs.env_state import get_env_state, get_generator_state, has_env_state, make_generator, set_env_state
from headwater.envs.gymnasium_copies import CopiesVectorEnv
from headwater.envs.gymnasium_vector import GymnasiumVectorEnv
from headwater.envs.vector_env import VectorEnv
from headwater.errors import EnvError
from headwater.storage.state_tree import flatten_state, unflatten_state
from tests.envs.toys import ScriptEnv, make_config

ENVS = ["CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1", "Pendulum-v1"]


def make(env_id: str, native: bool = False, num_envs: int = 3) -> VectorEnv:
    if native:
        return GymnasiumVectorEnv(gym.make_vec(env_id, num_envs, max_episode_steps=30), env_id, make_config())
    return CopiesVectorEnv(lambda i: gym.make(env_id, max_episode_steps=15), num_envs, env_id, make_config())


def go_on(env: VectorEnv, start: int, num_steps: int) -> list[Any]:
    """Steps from `start` on with actions that depend on the step only; returns all that came of them, exactly."""
    seen = []
    for t in range(start, start + num_steps):
        rng = np.random.default_rng(t)
        if isinstance(env.action_space, gym.spaces.Discrete):
            actions = rng.integers(0, env.action_space.n, env.num_envs)
        else:
            actions = rng.uniform(-1, 1, (env.num_envs, *env.action_space.shape)).astype(np.float32)
        result = env.step(actions)
        done = result.terminateds | result.truncateds
        obs = env.reset_done(done) if done.any() else result.obs
        valid = [True] * env.num_envs if result.valid is None else result.valid.tolist()
        seen.append([result.obs.tolist(), obs.tolist(), result.rewards.tolist(), done.tolist(), valid])
    return seen


def through_files(state: Any, path: Path) -> Any:
    document, arrays = flatten_state(state)
    path.write_text(json.dumps(document))
    np.savez(path.with_suffix(".npz"), **{f"a{i}": array for i, array in enumerate(arrays.values())})
    loaded = np.load(path.with_suffix(".npz"))
    names = {name: loaded[f"a{i}"] for i, name in enumerate(arrays)}
    return unflatten_state(json.loads(path.read_text()), names)


IN_A_NEW_PROCESS = """
import json, sys
from pathlib import Path
import numpy as np
from headwater.storage.state_tree import unflatten_state
from tests.envs.test_env_state import go_on, make

path, env_id, native, start = Path(sys.argv[1]), sys.argv[2], sys.argv[3] == "1", int(sys.argv[4])
names = json.loads(path.with_suffix(".names").read_text())
loaded = np.load(path.with_suffix(".npz"))
state = unflatten_state(json.loads(path.read_text()), {n: loaded[f"a{i}"] for i, n in enumerate(names)})
env = make(env_id, native)
obs = env.set_state(state)
print(json.dumps([obs.tolist(), go_on(env, start, 60)]))
"""


@pytest.mark.parametrize(
    ("env_id", "native", "start"), [*((name, False, 40) for name in ENVS), ("CartPole-v1", True, 41)]
)
def test_it_goes_on_in_another_process(env_id: str, native: bool, start: int, tmp_path: Path) -> None:
    env = make(env_id, native)
    assert env.has_state
    env.reset([1, 2, 3])
    go_on(env, 0, start)
    state = env.get_state()
    path = tmp_path / "state.json"
    through_files(state, path)
    path.with_suffix(".names").write_text(json.dumps(list(flatten_state(state)[1])))
    wanted = go_on(env, start, 60)
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", IN_A_NEW_PROCESS, str(path), env_id, str(int(native)), str(start)]
    answer = subprocess.run(command, capture_output=True, text=True, cwd=root, check=False)
    assert answer.returncode == 0, answer.stderr
    obs, seen = json.loads(answer.stdout.splitlines()[-1])
    assert seen == wanted
    assert any(any(row[3]) for row in wanted)  # resets were among them


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("start", range(1, 40, 3))
def test_any_moment_will_do(native: bool, start: int, tmp_path: Path) -> None:
    env = make("CartPole-v1", native)
    env.reset([4, 5, 6])
    go_on(env, 0, start)
    state = through_files(env.get_state(), tmp_path / "state.json")
    wanted = go_on(env, start, 40)
    other = make("CartPole-v1", native)
    other.set_state(state)
    assert go_on(other, start, 40) == wanted
    env.set_state(state)  # and back in time
    assert go_on(env, start, 40) == wanted


def test_between_an_end_and_its_reset(tmp_path: Path) -> None:
    env = CopiesVectorEnv(lambda i: gym.make("Pendulum-v1", max_episode_steps=2), 2, "Pendulum-v1", make_config())
    env.reset([1, 2])
    env.step(np.zeros((2, 1), np.float32))
    env.step(np.zeros((2, 1), np.float32))
    state = through_files(env.get_state(), tmp_path / "state.json")
    wanted = env.reset_done(np.ones(2, bool))
    env.set_state(state)
    with pytest.raises(EnvError, match="reset_done"):
        env.step(np.zeros((2, 1), np.float32))
    assert np.array_equal(env.reset_done(np.ones(2, bool)), wanted)


def test_there_is_no_state_before_the_first_reset() -> None:
    assert make("CartPole-v1").get_state() is None
    assert make("CartPole-v1", native=True).get_state() is None


class OwnState(gym.Env):
    """An env that says itself what it is."""

    observation_space = gym.spaces.Box(-100, 100, (2,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.position = self.np_random.uniform(size=2)
        return self.position, {}

    def step(self, action: Any) -> Any:
        self.position = self.position + self.np_random.uniform(size=2)
        return self.position, 1.0, bool(self.position[0] > 5), False, {}

    def get_state(self) -> Any:
        return {"position": self.position, "note": ["any", 1, None]}

    def set_state(self, state: Any) -> None:
        self.position = state["position"]


def test_an_env_s_own_state_is_used_within_its_wrappers(tmp_path: Path) -> None:
    def wrapped() -> CopiesVectorEnv:
        return CopiesVectorEnv(
            lambda i: gym.wrappers.RecordEpisodeStatistics(gym.wrappers.TimeLimit(OwnState(), 4)),
            2,
            "Own",
            make_config(),
        )

    env = wrapped()
    assert env.has_state
    env.reset([1, 2])
    go_on(env, 0, 7)
    state = through_files(env.get_state(), tmp_path / "state.json")
    other = wrapped()
    other.set_state(state)
    assert go_on(env, 7, 20) == go_on(other, 7, 20)


def test_a_wrapper_may_speak_for_all_beneath(tmp_path: Path) -> None:
    class Speaks(gym.Wrapper):
        def get_state(self) -> Any:
            return {"t": self.unwrapped.t, "episode": self.unwrapped.episode}

        def set_state(self, state: Any) -> None:
            self.unwrapped.t, self.unwrapped.episode, self.unwrapped.running = state["t"], state["episode"], True

    env = gym.wrappers.TimeLimit(Speaks(ScriptEnv(0, [9])), 5)
    assert has_env_state(env) and not has_env_state(ScriptEnv())
    env.reset()
    env.step(1)
    other = gym.wrappers.TimeLimit(Speaks(ScriptEnv(0, [9])), 5)
    set_env_state(other, through_files(get_env_state(env), tmp_path / "state.json"))
    assert [env.step(2)[0].tolist() for _ in range(4)] == [other.step(2)[0].tolist() for _ in range(4)]
    assert other.step(2)[3]  # TimeLimit has counted on


def test_what_is_not_understood_has_no_state() -> None:
    class Sub(type(gym.make("CartPole-v1").unwrapped)):  # type: ignore[misc]
        pass

    class MuJoCoLike(ScriptEnv):
        def get_state(self) -> Any:
            return {}

        def set_state(self, position: Any, velocity: Any) -> None: ...

    unknown_wrapper = gym.wrappers.NormalizeObservation(gym.make("CartPole-v1"))
    users_function = gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda reward: 2 * reward)
    for env in (Sub(), MuJoCoLike(), unknown_wrapper, users_function):
        assert not has_env_state(env)
    copies = CopiesVectorEnv(lambda i: MuJoCoLike(), 1, "toy", make_config())
    copies.reset([1])
    assert not copies.has_state and copies.get_state() is None
    async_like = GymnasiumVectorEnv(gym.vector.SyncVectorEnv([ScriptEnv]), "toy", make_config())
    assert not async_like.has_state and async_like.get_state() is None
    with pytest.raises(EnvError):
        copies.set_state({"kind": "CopiesVectorEnv", "num_envs": 2})


def test_a_state_that_cannot_be_saved_does_not_stop_a_run(caplog: pytest.LogCaptureFixture) -> None:
    class Foreign(OwnState):
        def get_state(self) -> Any:
            return {"handle": [object()]}

    env = CopiesVectorEnv(lambda i: Foreign(), 1, "toy", make_config())
    env.reset([1])
    assert env.has_state and env.get_state() is None and not env.has_state
    assert "get_state()['handle'][0] is a object" in caplog.text


def test_a_state_of_something_else_is_refused(tmp_path: Path) -> None:
    env = make("CartPole-v1")
    env.reset([1, 2, 3])
    state = env.get_state()
    assert state is not None
    with pytest.raises(EnvError, match="of 3 envs, but this is a CopiesVectorEnv of 2"):
        make("CartPole-v1", num_envs=2).set_state(state)
    with pytest.raises(EnvError, match="but this is a GymnasiumVectorEnv of 3"):
        make("CartPole-v1", native=True).set_state(state)
    with pytest.raises(EnvError, match="saved state is that of a CartPoleEnv.*this env is a PendulumEnv"):
        make("Pendulum-v1").set_state(state)


@pytest.mark.parametrize("name", ["PCG64", "PCG64DXSM", "MT19937", "Philox", "SFC64"])
def test_generators_go_on(name: str, tmp_path: Path) -> None:
    generator = np.random.Generator(getattr(np.random, name)(5))
    generator.random(3)
    other = make_generator(through_files(get_generator_state(generator), tmp_path / "state.json"))
    assert generator.random(5).tolist() == other.random(5).tolist()
    assert generator.integers(9, size=5).tolist() == other.integers(9, size=5).tolist()


def test_only_known_generators_are_made() -> None:
    with pytest.raises(EnvError, match="'system'"):
        make_generator({"bit_generator": "system"})
