"""How a world behaves over episodes: it ends, begins anew, repeats itself by its seed, and keeps what it gave."""

from __future__ import annotations

from typing import Any, NamedTuple

from headwater.envs.env_checks.actions import Chooser, Mode, has_numbers, mask_for
from headwater.envs.env_checks.findings import Findings, Severity, Stopped
from headwater.envs.env_checks.values import copied, same
from headwater.envs.env_checks.world import World, differ

OTHER_SEEDS = 3
FEW_STEPS = 10  # for what shows at once
SEED_REMEDY = "Begin reset with super().reset(seed=seed), and draw from self.np_random only."


class Tried(NamedTuple):
    """What a world did from a seed, and where it did otherwise when it was asked again (None: nowhere)."""

    history: list[Any]
    differed_at: int | None


def check_conduct(world: World, steps: int, seed: int) -> Tried:
    """Run episodes of random actions in a world, again with the same seed, with others, and at the bounds.

    Returns:
        What `check_reproducible` judges.

    Raises:
        Stopped: the env cannot be followed; the reason is among the findings.
    """
    history, ends = _run(world, steps, seed, watch=True)
    world.findings.where = ""
    if not ends and (world.limit is None or world.limit <= steps):
        world.findings.warning(
            "no-end", f"an episode's end within {steps} steps", "none",
            "Where episodes are meant to be longer, try more steps; where they never end, set horizon to cut them.",
        )  # fmt: skip
    world.ranges.report(world.findings)
    differed_at = None
    if world.takes_seed:
        differed_at = differ(history, _run(world, steps, seed)[0])
        _check_other_seeds(world, steps, seed)
    _check_bounds(world, seed)
    return Tried(history, differed_at)


def check_reproducible(findings: Findings, tried: Tried, steps: int, seed: int, fresh: World | None) -> None:
    """Say whether a seed decides what an env does.

    Args:
        fresh: the same env made anew, None where it cannot be. It tells an env that draws unseeded numbers from one
            that carries something over from the episodes before.

    Raises:
        Stopped: the fresh env cannot be followed.
    """
    differed_at = tried.differed_at
    severity: Severity = "error"
    if fresh is not None:
        fresh_at = differ(tried.history, _run(fresh, steps, seed)[0])
        if fresh_at is None and differed_at is not None:
            severity = "warning"
        else:
            differed_at = fresh_at
    if differed_at is None:
        return
    findings.where = "first observation" if differed_at == 0 else f"answer {differed_at} after the reset"
    if severity == "error":
        findings.error(
            "not-reproducible", f"the same episodes from the same seed ({seed}) and actions", "others", SEED_REMEDY
        )
    else:
        findings.warning(
            "carried-over", f"the same episodes from the same seed ({seed}), whatever was before",
            "others than in a new env", "Let reset put everything back that an episode changes.",
        )  # fmt: skip


def _run(
    world: World, steps: int, seed: int, actions_seed: int | None = None, watch: bool = False, mode: Mode = "random"
) -> tuple[list[Any], int]:
    """Take steps, over several episodes where they end.

    Args:
        watch: whether to look for observations that change after they were given.

    Returns:
        All that came, and how many episodes ended.
    """
    choosers: dict[Any, Chooser] = {}
    ends = 0
    world.begin(1)
    moment = world.reset(seed)
    history: list[Any] = [copied(moment.obs)]
    for _ in range(steps):
        actions = {}
        for agent in moment.acting:
            space = world.action_space(agent)
            if agent not in choosers:
                choosers[agent] = Chooser(space, (seed if actions_seed is None else actions_seed) + len(choosers), mode)
            info = moment.infos.get(agent)
            mask = mask_for(world.findings, space, moment.obs[agent], info, world.named(agent))
            actions[agent] = choosers[agent].choose(mask)
        held, kept = moment.obs, copied(moment.obs) if watch else None
        moment = world.step(actions)
        if watch:
            _check_kept(world, held, kept)
        history.append((copied(moment.obs), copied(moment.rewards), list(moment.acting), moment.over))
        if moment.over:
            ends += 1
            world.begin(ends + 1)
            moment = world.reset(None)
            history.append(copied(moment.obs))
    return history, ends


def _check_kept(world: World, held: dict[Any, Any], kept: Any) -> None:
    for agent, obs in held.items():
        if not same(obs, kept[agent]):
            world.findings.warning(
                "obs-reused", "a new array for every observation", "one that changed after it had been returned",
                "Return a copy: obs.copy().", world.named(agent),
            )  # fmt: skip


def _check_other_seeds(world: World, steps: int, seed: int) -> None:
    if world.findings.has_errors:
        return  # what is broken may well be the same for all seeds
    few = min(FEW_STEPS, steps)
    first, _ = _run(world, few, seed)
    for other in range(seed + 1, seed + 1 + OTHER_SEEDS):
        if differ(first, _run(world, few, other, actions_seed=seed)[0]) is not None:
            return
    world.findings.where = f"seeds {seed} to {seed + OTHER_SEEDS}"
    world.findings.warning(
        "seed-ignored", "other episodes from other seeds", "the same observations and rewards",
        f"Where nothing is meant to be random, that is right. Else: {SEED_REMEDY}",
    )  # fmt: skip


def _check_bounds(world: World, seed: int) -> None:
    """Take actions at the ends of their space, which a policy will take too."""
    world.begin(1)
    first = world.reset(seed)
    if not any(has_numbers(world.action_space(agent)) for agent in first.acting):
        return
    modes: tuple[Mode, ...] = ("low", "high")
    for mode in modes:
        try:
            _run(world, 2, seed, mode=mode)
        except Stopped:
            if world.findings.has("step-raised"):
                world.findings.error(
                    "bounds-refused", "actions at the bounds to be taken", f"an exception at the {mode} end",
                    "Take every action of the space, or make the space smaller.",
                )  # fmt: skip
            raise
