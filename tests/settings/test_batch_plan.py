"""The one equation of fragment, envs, workers and train batch."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.config import TrainerConfig
from headwater.errors import ConfigError
from headwater.settings.batch_plan import solve


def test_auto_makes_one_round():
    plan = TrainerConfig(train_batch_size=400, num_envs_per_worker=4).batch_plan()
    assert (plan.rollout_fragment_length, plan.rounds, plan.rows_per_fragment) == (100, 1, 400)


def test_a_given_fragment_makes_rounds():
    plan = TrainerConfig(train_batch_size=400, num_envs_per_worker=4, rollout_fragment_length=25).batch_plan()
    assert (plan.rounds, plan.rows_per_fragment) == (4, 100)
    assert plan.text == "train batch: 400 rows = 4 rounds x 1 sampler x 4 envs x 25 steps"


def test_a_native_width_takes_the_place_of_num_envs():
    config = TrainerConfig(train_batch_size=400)
    assert config.batch_plan(num_envs=2).rollout_fragment_length == 200
    with pytest.raises(ConfigError, match="3 envs"):
        config.batch_plan(num_envs=3)


def test_whole_episodes_bring_at_least_the_rows():
    plan = TrainerConfig(batch_mode="complete_episodes", train_batch_size=1000, num_envs_per_worker=3).batch_plan()
    assert (plan.rollout_fragment_length, plan.rounds, plan.exact) == (334, 1, False)
    assert "at least 1000 rows" in plan.text


@settings(deadline=None, max_examples=200)
@given(
    size=st.integers(1, 5000), workers=st.integers(0, 5), envs=st.integers(1, 40),
    fragment=st.one_of(st.just("auto"), st.integers(1, 300)),
)  # fmt: skip
def test_the_equation_holds_or_the_numbers_named_instead_work(size, workers, envs, fragment):
    try:
        plan = solve(size, workers, envs, fragment, exact=True)
    except ValueError as error:
        remedies = str(error).partition("Nearest that work: ")[2]
        for name, values in re.findall(r"(\w+) (\d+(?: or \d+)?)", remedies):
            for value in map(int, values.split(" or ")):
                new = {"train_batch_size": size, "num_envs_per_worker": envs, "rollout_fragment_length": fragment}
                new[name] = value
                plan = solve(
                    new["train_batch_size"], workers, new["num_envs_per_worker"], new["rollout_fragment_length"], True
                )
                assert plan.rounds >= 1
        assert remedies.startswith("train_batch_size")
        return
    assert plan.rounds * max(1, workers) * envs * plan.rollout_fragment_length == size
    assert plan.rounds == 1 or fragment != "auto"


@settings(deadline=None, max_examples=100)
@given(size=st.integers(1, 5000), envs=st.integers(1, 40), fragment=st.one_of(st.just("auto"), st.integers(1, 300)))
def test_inexact_plans_cover_the_batch_without_a_needless_round(size, envs, fragment):
    plan = solve(size, 0, envs, fragment, exact=False)
    assert plan.rounds * plan.rows_per_fragment >= size > (plan.rounds - 1) * plan.rows_per_fragment
