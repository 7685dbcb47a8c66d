"""DefaultCallbacks: which methods cost anything, and what may be given as callbacks."""

from __future__ import annotations

import pytest

from headwater.callbacks import DefaultCallbacks, make_callbacks, overridden
from headwater.errors import ConfigError

NAMES = [name for name in vars(DefaultCallbacks) if name.startswith("on_")]


class Steps(DefaultCallbacks):
    def on_episode_step(self, **kwargs):
        pass


class MoreSteps(Steps):
    pass


def test_there_are_seven():
    assert len(NAMES) == 7


def test_only_what_is_overridden_costs_anything():
    assert not any(overridden(DefaultCallbacks(), name) for name in NAMES)
    for callbacks in (Steps(), MoreSteps()):
        assert [name for name in NAMES if overridden(callbacks, name)] == ["on_episode_step"]
    assert not overridden(None, "on_episode_step")


def test_a_function_set_on_an_instance_counts():
    callbacks = DefaultCallbacks()
    callbacks.on_train_result = lambda **kwargs: None  # type: ignore[method-assign]
    assert overridden(callbacks, "on_train_result") and not overridden(callbacks, "on_sample_end")


def test_defaults_take_any_further_keyword():
    DefaultCallbacks().on_train_result(trainer=None, result={}, something_new=1)


def test_forms():
    instance = Steps()
    assert make_callbacks(instance) is instance
    assert type(make_callbacks(Steps)) is type(make_callbacks(lambda: Steps())) is Steps
    assert type(make_callbacks(f"{__name__}:Steps")) is Steps
    assert type(make_callbacks(None)) is DefaultCallbacks


@pytest.mark.parametrize(
    ("spec", "words"), [(dict, "gives a dict"), (3, "but 3 came"), ("builtins:int", "gives a int")]
)
def test_refusals(spec, words):
    with pytest.raises(ConfigError, match=words):
        make_callbacks(spec)
