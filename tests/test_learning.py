"""The tuned files of examples/envs solve them in every framework; without what an env asks for it stays unsolved."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater import PPOTrainer
from headwater.cli.run_request import merge_nested, read_request

TUNED = Path(__file__).parents[1] / "tuned"

pytestmark = pytest.mark.slow


def best_mean(name: str, max_steps: int, **settings) -> float:
    """The best mean return of 100 episodes, until the file's own threshold or `max_steps`."""
    request = read_request(TUNED / f"{name}.yaml", None, known=())
    trainer = PPOTrainer(config=merge_nested(request.config, {"seed": 1, **settings}), env=request.env)
    best, steps = float("-inf"), 0
    while steps < max_steps and best < request.stop["episode_reward_mean"]:
        result = trainer.train()
        steps = result["timesteps_total"]
        if result["episodes_total"] >= 100:
            best = max(best, result["episode_reward_mean"])
    trainer.stop()
    return best


@pytest.mark.parametrize("framework", ["torch", "tf2", "jax"])
@pytest.mark.parametrize(
    ("name", "threshold", "max_steps"),
    [
        ("pixel_grid", 0.9, 200_000), ("masked_choice", 6.2, 100_000), ("switching_pair", 9, 100_000),
        ("repeat_previous", 22, 100_000), ("t_maze", 0.95, 100_000), ("cart_pole_hidden", 475, 500_000),
    ],
)  # fmt: skip
def test_examples_are_solved(name, threshold, max_steps, framework):
    assert best_mean(name, max_steps, framework=framework) >= threshold


@pytest.mark.parametrize(
    ("name", "bound", "settings"),
    [
        ("switching_pair", 5, {"model": {"custom_action_dist": None}}),
        ("repeat_previous", 6, {"model": {"memory": None}}),
        ("t_maze", 0, {"model": {"memory": None}}),
        ("cart_pole_hidden", 51, {"model": {"memory": None}}),
    ],
)
def test_without_what_they_ask_for_they_stay_near_the_bound(name, bound, settings):
    # The mean of 100 episodes, at its luckiest.
    assert best_mean(name, 100_000, **settings) < bound + max(0.35, 0.25 * bound)


@pytest.mark.parametrize("memory", ["lstm", "gru", "attention"])
def test_every_memory_remembers(memory):
    assert best_mean("repeat_previous", 200_000, model={"memory": memory}) >= 22
