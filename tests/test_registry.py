"""The registry: what may be given as an env, algorithms by name, callables by reference."""

from __future__ import annotations

import functools
import subprocess
import sys
from typing import Any

import gymnasium
import pytest

from headwater import registry
from headwater.errors import ConfigError, EnvError
from headwater.registry import (
    callable_reference,
    check_env_id,
    env_creator_for,
    get_config_class,
    named_env,
    register_env,
    registered_envs,
    resolve_reference,
)


class Tiny(gymnasium.Env[Any, Any]):
    """An env by Gymnasium's convention: keyword arguments."""

    observation_space = action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, size: int = 1) -> None:
        self.size = size


class Sized(Tiny):
    def __init__(self, size: int) -> None:
        super().__init__(size)


class Contextual(Tiny):
    """An env by the 1.x convention: the env context."""

    def __init__(self, config: dict[str, Any] | None = None) -> None:
        super().__init__((config or {}).get("size", 1))
        self.config = config


class Unnamed(Tiny):
    def __init__(self, _: dict[str, Any]) -> None:
        super().__init__(_["size"])


def make_tiny(context: dict[str, Any]) -> Tiny:
    return Tiny(context.get("size", 1))


class Outer:
    class Inner:
        pass


@pytest.fixture(autouse=True)
def clean_registry(monkeypatch):
    monkeypatch.setattr(registry, "_ENV_CREATORS", {})


@pytest.fixture
def module(tmp_path, monkeypatch):
    """A module `shop` with envs of both kinds, one of them registered with Gymnasium."""
    (tmp_path / "shop.py").write_text(
        "import gymnasium\n"
        "from tests.test_registry import Tiny, make_tiny\n"
        "gymnasium.register('Shop-v0', entry_point=Tiny, disable_env_checker=True)\n"
        "value = 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield "shop"
    gymnasium.registry.pop("Shop-v0", None)
    sys.modules.pop("shop", None)


@pytest.mark.parametrize(
    ("spec", "env_id", "context", "size"),
    [
        (Tiny, "Tiny", {"size": 3}, 3),
        (Tiny, "Tiny", {}, 1),
        (Sized, "Sized", {"size": 3}, 3),
        (Contextual, "Contextual", {"size": 3}, 3),
        (Unnamed, "Unnamed", {"size": 3}, 3),
        (make_tiny, "make_tiny", {"size": 3}, 3),
        (lambda c: Tiny(**c), "<lambda>", {"size": 3}, 3),
        (lambda: Tiny(4), "<lambda>", {}, 4),
        (functools.partial(Tiny, size=5), "Tiny", {}, 5),
        (f"{__name__}:Tiny", f"{__name__}:Tiny", {"size": 3}, 3),
        (f"{__name__}:make_tiny", f"{__name__}:make_tiny", {"size": 3}, 3),
    ],
)
def test_classes_and_callables(spec, env_id, context, size):
    found, creator = env_creator_for(spec)
    assert found.endswith(env_id)
    assert creator(context).size == size and creator.gym_id is None


def test_a_1x_class_gets_the_context_itself():
    context = {"size": 2}
    assert env_creator_for(Contextual)[1](context).config is context


def test_gymnasium_ids_take_env_config():
    env_id, creator = env_creator_for("CartPole-v1")
    assert env_id == creator.gym_id == "CartPole-v1"
    env = creator({"sutton_barto_reward": True})
    assert env.spec.id == "CartPole-v1" and env.unwrapped._sutton_barto_reward is True
    with pytest.raises(EnvError, match="'CartPole-v1' could not be made .*'speed': 3.*unexpected keyword"):
        creator({"speed": 3})


def test_a_module_registers_its_ids_or_has_them_as_attributes(module):
    _, creator = env_creator_for("shop:Shop-v0")
    assert creator.gym_id == "shop:Shop-v0" and creator({"size": 2}).unwrapped.size == 2
    assert env_creator_for("shop:Tiny")[1].gym_id is None
    assert named_env("shop:Tiny") is Tiny and named_env("shop:Shop-v0") is named_env("Tiny") is None
    with pytest.raises(EnvError, match="no env 'shop:Shop-v9'.* Did you mean Shop-v0"):
        env_creator_for("shop:Shop-v9")[1]({})
    with pytest.raises(EnvError, match="no env 'shop:value'"):
        env_creator_for("shop:value")[1]({})
    with pytest.raises(EnvError, match="the module 'shop' has no class or function of.* Did you mean shop:Tiny"):
        env_creator_for("shop:Tinny")[1]({})
    with pytest.raises(EnvError, match="No module named 'shopp'. For a file of your own, start where it is"):
        env_creator_for("shopp:Tiny")


def test_a_missing_module_is_named():
    with pytest.raises(EnvError, match="'no_such_shop:X-v0': importing the module 'no_such_shop' failed"):
        env_creator_for("no_such_shop:X-v0")
    with pytest.raises(EnvError, match="''"):
        env_creator_for(":X-v0")


def test_an_unknown_id_has_neighbours():
    creator = env_creator_for("CartPol-v1")[1]
    with pytest.raises(EnvError, match="There is no env 'CartPol-v1'.* Did you mean CartPole-v1"):
        creator({})
    with pytest.raises(EnvError, match="module:EnvId"):
        check_env_id("Zzzzzzzz")
    check_env_id("CartPole")  # Gymnasium takes its newest version


def test_registered_names_come_first_and_may_be_replaced():
    register_env("CartPole-v1", make_tiny)
    register_env("mine", Tiny)
    assert registered_envs() == ["CartPole-v1", "mine"]
    env_id, creator = env_creator_for("CartPole-v1")
    assert env_id == "CartPole-v1" and creator.gym_id is None and creator({"size": 2}).size == 2
    register_env("mine", lambda context: Tiny(9))
    assert env_creator_for("mine")[1]({}).size == 9
    with pytest.raises(EnvError, match="Did you mean mine"):
        env_creator_for("minee")[1]({})


@pytest.mark.parametrize("spec", [None, "", 3, ["CartPole-v1"], Tiny()])
def test_invalid_specifications(spec):
    with pytest.raises(ConfigError, match="is an invalid env specification"):
        env_creator_for(spec)


def test_register_env_checks_what_it_gets():
    with pytest.raises(ConfigError, match="non-empty string"):
        register_env("", make_tiny)
    with pytest.raises(ConfigError, match="function of the env context"):
        register_env("x", Tiny())  # type: ignore[arg-type]


def test_what_a_creator_gives_must_be_an_env():
    with pytest.raises(EnvError, match=r"gave None \(is a return statement missing\?\)"):
        env_creator_for(lambda context: None)[1]({})
    with pytest.raises(EnvError, match="'Inner': its creator gave a Outer.Inner, which is no env: it has no obs.*step"):
        env_creator_for(Outer.Inner)[1]({})
    with pytest.raises(EnvError, match="'Sized' could not be made .*missing 1 required positional argument: 'size'"):
        env_creator_for(Sized)[1]({})


def test_the_users_callable_stays_as_it_is():
    env_creator_for(make_tiny)
    assert not hasattr(make_tiny, "gym_id")


# Algorithms.


def test_algorithms_by_name():
    from headwater.algorithms.ppo.config import PPOConfig

    assert get_config_class("PPO") is get_config_class("ppo") is PPOConfig
    with pytest.raises(ConfigError, match="no algorithm 'PPP'. Did you mean PPO"):
        get_config_class("PPP")
    with pytest.raises(ConfigError, match="There are: PPO"):
        get_config_class("xyzzy")


# References.


def test_references():
    assert callable_reference(make_tiny) == f"{__name__}:make_tiny"
    assert callable_reference(Outer.Inner) == f"{__name__}:Outer.Inner"
    for thing in (make_tiny, Outer.Inner, Tiny, gymnasium.make):
        reference = callable_reference(thing)
        assert reference is not None and resolve_reference(reference) is thing

    def local() -> None: ...

    for thing in (local, lambda: 1, functools.partial(make_tiny), Tiny(), 3):
        assert callable_reference(thing) is None


def test_what_main_defines_is_not_importable(monkeypatch):
    monkeypatch.setattr(make_tiny, "__module__", "__main__")
    monkeypatch.setattr(sys.modules["__main__"], "make_tiny", make_tiny, raising=False)
    assert callable_reference(make_tiny) is None


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("make_tiny", "form 'module:name'"),
        (":x", "form 'module:name'"),
        ("x:", "form 'module:name'"),
        ("no_such_module:x", "importing the module 'no_such_module' failed"),
        (f"{__name__}:make_tin", "has no 'make_tin'. Did you mean make_tiny"),
        (f"{__name__}:Outer.Iner", "has no 'Iner'. Did you mean Inner"),
    ],
)
def test_references_that_lead_nowhere(reference, words):
    with pytest.raises(ConfigError) as caught:
        resolve_reference(reference)
    assert words in str(caught.value)


ABSENT = """
import sys
sys.modules[sys.argv[1]] = None
from headwater.errors import HeadwaterError
from headwater.registry import env_creator_for
from headwater.envs.env_context import EnvContext
try:
    env_creator_for(sys.argv[2])[1](EnvContext({}))
except HeadwaterError as error:
    print(error)
env_creator_for("CartPole-v1")[1](EnvContext({})).reset()
"""


@pytest.mark.parametrize(
    ("package", "env_id", "extra"),
    [
        ("Box2D", "LunarLander-v3", "box2d"),
        ("mujoco", "HalfCheetah-v5", "mujoco"),
        ("ale_py", "ale_py:ALE/Pong-v5", "atari"),
        ("ale_py", "ALE/Pong-v5", "atari"),
    ],
)
def test_an_absent_extra_is_named_and_other_envs_work(package, env_id, extra):
    command = [sys.executable, "-c", ABSENT, package, env_id]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"pip install 'headwater[{extra}]'" in done.stdout
