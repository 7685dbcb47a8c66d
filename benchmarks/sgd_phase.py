"""How long PPO's SGD phase takes in each framework, and by each of torch's ways: the same batch, the same minibatches.

4 epochs of minibatches of 256 rows over 1,024, CartPole's shapes, two tanh layers of 64 for the policy and two of their
own for the value. Each contender is a process of its own with one thread; they take turns, so that a busy minute falls
on all.

    python benchmarks/sgd_phase.py
    python benchmarks/sgd_phase.py --only torch jax --rounds 15 --record
    python benchmarks/sgd_phase.py --hiddens 256 256
"""

import argparse
import multiprocessing
import statistics
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent / "works"), str(Path(__file__).parents[1])]

import measure  # noqa: E402
import numpy as np  # noqa: E402
from records import append_results, table  # noqa: E402

CONTENDERS: dict[str, dict[str, Any]] = {
    "torch": {"framework": "torch"},  # differentiates dense networks by hand
    "torch, autograd": {"framework": "torch", "by_hand": False},
    "torch, compile": {"framework": "torch", "compile": True},
    "tf2": {"framework": "tf2"},
    "jax": {"framework": "jax"},
}


def make_batch() -> dict[str, np.ndarray]:
    """A train batch as sampling makes it: the old policy's numbers and standardised advantages."""
    rng = np.random.default_rng(0)
    rows = measure.BATCH_ROWS
    inputs = (rng.normal(size=(rows, 2)) * 0.1).astype(np.float32)
    actions = rng.integers(0, 2, rows)
    logp = inputs - np.log(np.exp(inputs).sum(1, keepdims=True))
    floats = {name: rng.normal(size=rows).astype(np.float32) for name in ("vf_preds", "advantages", "value_targets")}
    obs = rng.normal(size=(rows, 4)).astype(np.float32)
    chosen = logp[np.arange(rows), actions]
    return {"obs": obs, "actions": actions, "action_dist_inputs": inputs, "action_logp": chosen, **floats}


def contend(name: str, hiddens: list[int], pipe: Connection) -> None:
    """A contender's process: answers how many phases to run with the wall-clock and CPU seconds of each."""
    from gymnasium import spaces

    from headwater.algorithms.ppo.config import PPOConfig
    from headwater.algorithms.ppo.ppo import get_policy_class

    chosen = dict(CONTENDERS[name])
    if not chosen.pop("by_hand", True):
        from headwater.frameworks.torch.mlp import DenseLayers

        DenseLayers.supports = staticmethod(lambda description: False)  # type: ignore[method-assign]
    config = PPOConfig(lr=measure.LEARNING_RATE, model={"fcnet_hiddens": hiddens}, device="cpu", seed=0, **chosen)
    policy = get_policy_class(config)(spaces.Box(-1, 1, (4,)), spaces.Discrete(2), config)
    batch = make_batch()
    while count := pipe.recv():
        times = []
        for _ in range(count):
            cpu_s, wall_s = time.process_time(), time.perf_counter()
            policy.learn_on_batch(batch, measure.NUM_EPOCHS, measure.MINIBATCH_ROWS)
            times.append((time.perf_counter() - wall_s, time.process_time() - cpu_s))
        pipe.send(times)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--phases", type=int, default=20, help="in each round")
    parser.add_argument("--hiddens", nargs="+", type=int, default=list(measure.HIDDEN_UNITS))
    parser.add_argument("--record", action="store_true", help="append the table to results.md")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    pipes, processes, first, medians = {}, [], {}, {}
    for name in arguments.only:
        pipes[name], other = context.Pipe()
        processes.append(context.Process(target=contend, args=(name, arguments.hiddens, other), daemon=True))
        processes[-1].start()
        other.close()  # so that a contender which dies ends the wait for it
        pipes[name].send(1)
        first[name], medians[name] = pipes[name].recv()[0][0], []
        print(f"{name}: first phase {first[name]:.1f} s", file=sys.stderr, flush=True)
    for number in range(arguments.rounds + 1):
        for name, pipe in pipes.items():
            pipe.send(arguments.phases)
            round_medians = np.median(pipe.recv(), axis=0) * 1e3
            if number:  # the first round warms up
                medians[name].append(round_medians)
    for pipe in pipes.values():
        pipe.send(0)
    for process in processes:
        process.join()
    base = statistics.median(cpu for _, cpu in medians[arguments.only[0]])
    rows = []
    for name, found in medians.items():
        wall, cpu = sorted(x for x, _ in found), sorted(x for _, x in found)
        middle = statistics.median(cpu)
        rows.append(
            (name, f"{statistics.median(wall):.2f}", f"{middle:.2f}", f"{cpu[0]:.2f} to {cpu[-1]:.2f}",
             f"{base / middle:.2f}", f"{first[name]:.1f}")
        )  # fmt: skip
    header = ("SGD phase", "ms (median)", "CPU ms (median)", "range over rounds", "times as fast", "first phase, s")
    text = table(header, rows)
    print(text)
    if arguments.record:
        append_results(f"SGD phase: hidden layers {arguments.hiddens}, {arguments.rounds} rounds", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
