"""How fast several agents are sampled, next to as many envs of one agent each: agent steps per second of `sample()`.

All have 16 CartPoles, two tanh layers of 64 (policy and value function), fragments of 64 steps, one thread: as 16 envs
of one agent behind the array path, as 4 envs of 4 agents that step together, played by one policy and by two, as
PettingZoo gives them, and as 4 envs whose agents end one by one. They take turns in one process.

    python benchmarks/multi_agent.py
    python benchmarks/multi_agent.py --rounds 15 --record
"""

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[1])]

from gymnasium.envs.classic_control.cartpole import CartPoleEnv  # noqa: E402
from pettingzoo import ParallelEnv  # noqa: E402
from records import append_results, table  # noqa: E402

from examples.envs import MultiAgentCartPole  # noqa: E402
from headwater.algorithms.ppo.ppo import PPOConfig, get_policy_class  # noqa: E402
from headwater.registry import env_creator_for  # noqa: E402
from headwater.sampling.rollout_worker import RolloutWorker  # noqa: E402

NUM_POLES, STEPS = 4, 64
HALVES = {"policies": ["left", "right"], "policy_mapping_fn": {"0": "left", "1": "left", "2": "right", "3": "right"}}


class Together(MultiAgentCartPole):
    """The episode ends for all when the first pole falls."""

    def step(self, actions: dict[Any, Any]) -> tuple[dict, dict, dict, dict, dict]:
        obs, rewards, terminateds, truncateds, infos = super().step(actions)
        return obs, rewards, {"__all__": len(terminateds) > 1}, truncateds, infos


class TogetherInPettingZoo(ParallelEnv):
    """The same as one of PettingZoo's parallel envs."""

    metadata = {"name": "together_v0"}

    def __init__(self) -> None:
        self.inner = Together(NUM_POLES)
        self.possible_agents = self.inner.possible_agents
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> Any:
        return self.inner.observation_space

    def action_space(self, agent: str) -> Any:
        return self.inner.action_space

    def reset(self, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self.agents = list(self.possible_agents)
        return self.inner.reset(seed=seed)

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        obs, rewards, terminateds, truncateds, infos = self.inner.step(actions)
        over, cut = terminateds["__all__"], truncateds["__all__"]
        agents = self.agents
        if over or cut:
            self.agents = []
        return obs, rewards, dict.fromkeys(agents, over), dict.fromkeys(agents, cut), dict.fromkeys(agents, infos)


CONTENDERS: dict[str, tuple[Any, int, dict[str, Any]]] = {
    "16 envs of one agent, arrays": (lambda context: CartPoleEnv(), 16, {"vectorization": "sync"}),
    "4 x 4 agents together, one policy": (Together, 4, {}),
    "4 x 4 agents together, two policies": (Together, 4, {"multiagent": HALVES}),
    "4 x 4 agents of PettingZoo, one policy": (lambda context: TogetherInPettingZoo(), 4, {}),
    "4 x 4 agents that end one by one, one policy": (MultiAgentCartPole, 4, {}),
    "4 x 4 agents that end one by one, two policies": (MultiAgentCartPole, 4, {"multiagent": HALVES}),
}


def make_worker(env: Any, num_envs: int, settings: dict[str, Any]) -> RolloutWorker:
    config = PPOConfig(num_envs_per_worker=num_envs, train_batch_size=num_envs * STEPS, seed=0, **settings)
    env_id, creator = env_creator_for(env)
    return RolloutWorker(env_creator=creator, env_id=env_id, policy_class=get_policy_class(config), config=config)


def agent_steps_per_s(worker: RolloutWorker, fragments: int) -> float:
    started, steps = time.perf_counter(), 0
    for _ in range(fragments):
        steps += worker.sample().as_multi_agent().agent_steps()
    return steps / (time.perf_counter() - started)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--fragments", type=int, default=20, help="in each round")
    parser.add_argument("--record", action="store_true", help="append the table to results.md")
    arguments = parser.parse_args()
    workers = {name: make_worker(*contender) for name, contender in CONTENDERS.items()}
    rates: dict[str, list[float]] = {name: [] for name in workers}
    for number in range(arguments.rounds + 1):
        for name, worker in workers.items():
            rate = agent_steps_per_s(worker, arguments.fragments)
            if number:  # the first round warms up
                rates[name].append(rate)
    medians = {name: statistics.median(found) for name, found in rates.items()}
    base = next(iter(medians.values()))
    rows = [
        (name, f"{medians[name]:,.0f}", f"{min(found):,.0f} to {max(found):,.0f}", f"{base / medians[name]:.2f}")
        for name, found in rates.items()
    ]
    text = table(("sampled", "agent steps/s (median)", "range over rounds", "times the cost of a step"), rows)
    print(text)
    if arguments.record:
        append_results(f"Several agents, {arguments.rounds} rounds", text)
    for worker in workers.values():
        worker.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main())
