"""PPO in one file: read it from top to bottom to know the algorithm; run it to watch CartPole being solved.

    python examples/ppo_single_file.py --env CartPole-v1 --steps 100000 --seed 1

Only torch and Gymnasium are used, in the plainest way; the library does the same faster and for any space. The loop:

    1. collect   T steps in each of N envs with the current policy                                  (collect)
    2. judge     each action: how much better did it turn out than the critic had expected?         (advantages)
    3. improve   the policy and the critic on these T * N rows, for a few epochs of minibatches     (improve)
    4. throw the rows away (they are of the old policy) and begin again

Shapes: T steps of a fragment, N envs, B = T * N rows of a batch, A actions. Names with `b_` are of a whole batch,
with `mb_` of a minibatch.
"""

from __future__ import annotations

import argparse
import time
from collections import deque

import gymnasium as gym
import numpy as np
import torch
from torch import Tensor, nn

NUM_ENVS, FRAGMENT = 8, 64  # N, T
EPOCHS, MINIBATCH = 10, 256
GAMMA, LAMBDA = 0.98, 0.9
CLIP, VF_CLIP, VF_COEFF, KL_COEFF, ENTROPY_COEFF = 0.2, None, 0.5, 0.0, 0.0
LR, MAX_GRAD_NORM = 1e-3, 0.5


class ActorCritic(nn.Module):
    """Two separate networks: the actor gives logits [B, A] of the actions, the critic the value [B] of a state."""

    def __init__(self, obs_size: int, num_actions: int) -> None:
        super().__init__()
        self.actor = mlp(obs_size, num_actions, last_gain=0.01)  # near 0: at first all actions are about equally likely
        self.critic = mlp(obs_size, 1, last_gain=1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.actor(obs), self.critic(obs).squeeze(-1)


def mlp(size_in: int, size_out: int, last_gain: float) -> nn.Sequential:
    layers = [nn.Linear(size_in, 64), nn.Linear(64, 64), nn.Linear(64, size_out)]
    for layer, gain in zip(layers, (2**0.5, 2**0.5, last_gain), strict=True):
        nn.init.orthogonal_(layer.weight, gain)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(layers[0], nn.Tanh(), layers[1], nn.Tanh(), layers[2])


def collect(envs: gym.vector.VectorEnv, obs: np.ndarray, policy: ActorCritic) -> tuple[dict[str, Tensor], np.ndarray]:
    """T steps in each env -> columns [T, N, ...], and the observations to go on from.

    When an episode ends, the env (in SAME_STEP mode) has begun the next one already, and hands the last observation
    of the ended one over in `info`. The value of *that* observation is what a cut episode would have gone on to earn:
    an episode that the time limit cut (truncated) did not end in failure, one that `terminated` earns nothing more.
    """
    columns: dict[str, list[Tensor]] = {}
    for _ in range(FRAGMENT):
        with torch.no_grad():
            logits, values = policy(torch.as_tensor(obs))
        actions = torch.multinomial(torch.softmax(logits, -1), 1).squeeze(-1)
        next_obs, rewards, terminated, truncated, info = envs.step(actions.numpy())

        successors = next_obs.copy()
        for i in np.flatnonzero(terminated | truncated):
            successors[i] = info["final_obs"][i]
        with torch.no_grad():
            _, next_values = policy(torch.as_tensor(successors))
        row = {
            "obs": torch.as_tensor(obs),
            "actions": actions,
            "logits": logits,
            "logp": torch.log_softmax(logits, -1).gather(-1, actions[:, None]).squeeze(-1),
            "values": values,
            "next_values": next_values * torch.as_tensor(~terminated),
            "rewards": torch.as_tensor(rewards, dtype=torch.float32),
            "ended": torch.as_tensor(terminated | truncated),
        }
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
        obs = next_obs
    return {name: torch.stack(values) for name, values in columns.items()}, obs


def advantages(rewards: Tensor, values: Tensor, next_values: Tensor, ended: Tensor) -> tuple[Tensor, Tensor]:
    """Generalised advantage estimation (Schulman et al. 2016, arXiv:1506.02438), all [T, N].

    delta_t = r_t + gamma V(s_t+1) - V(s_t) says how much better one step went than expected. The advantage sums the
    deltas to come, discounted by gamma * lambda: lambda 0 trusts the critic, lambda 1 the rewards that came in fact.
    The sum stops where an episode ends. What the critic should have said is V + advantage.
    """
    deltas = rewards + GAMMA * next_values - values
    result = torch.zeros_like(deltas)
    running = torch.zeros_like(deltas[0])
    for t in reversed(range(len(deltas))):
        running = deltas[t] + GAMMA * LAMBDA * ~ended[t] * running
        result[t] = running
    return result, result + values


def ppo_loss(
    logits: Tensor,
    values: Tensor,
    old_logits: Tensor,
    actions: Tensor,
    old_logp: Tensor,
    advantages: Tensor,
    old_values: Tensor,
    value_targets: Tensor,
    *,
    clip_param: float,
    vf_clip_param: float | None,
    vf_loss_coeff: float,
    kl_coeff: float,
    entropy_coeff: float,
) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of PPO (Schulman et al. 2017, arXiv:1707.06347) over B rows.

    The ratio r = pi(a|s) / pi_old(a|s) says how much likelier an action has become since it was taken. Raising r where
    the advantage is positive, and lowering it where negative, improves the policy, but the rows say little about a
    policy far from the one that collected them. So the objective min(r A, clip(r, 1-c, 1+c) A) pays nothing for moving
    r out of [1-c, 1+c] to the good side, and all of it back for the bad side.
    """
    log_probs, old_log_probs = torch.log_softmax(logits, -1), torch.log_softmax(old_logits, -1)
    logp = log_probs.gather(-1, actions[:, None]).squeeze(-1)
    ratio = torch.exp(logp - old_logp)
    surrogate = torch.min(ratio * advantages, ratio.clamp(1 - clip_param, 1 + clip_param) * advantages)
    policy_loss = -surrogate.mean()

    # The critic learns by squared error; clipping, where wanted, slows it in the same way as the policy.
    errors = (values - value_targets) ** 2
    if vf_clip_param is not None:
        near_old = old_values + (values - old_values).clamp(-vf_clip_param, vf_clip_param)
        errors = torch.max(errors, (near_old - value_targets) ** 2)
    vf_loss = errors.mean()

    # KL(old || new) measures the step taken; entropy is what is left of exploring.
    kl = (old_log_probs.exp() * (old_log_probs - log_probs)).sum(-1).mean()
    entropy = -(log_probs.exp() * log_probs).sum(-1).mean()
    loss = policy_loss + vf_loss_coeff * vf_loss + kl_coeff * kl - entropy_coeff * entropy
    return loss, {"policy_loss": policy_loss, "vf_loss": vf_loss, "kl": kl, "entropy": entropy}


def improve(policy: ActorCritic, optimizer: torch.optim.Optimizer, columns: dict[str, Tensor]) -> dict[str, float]:
    """A few epochs of minibatches over the fragment; the statistics of the last minibatch."""
    ends = {name: columns[name] for name in ("rewards", "values", "next_values", "ended")}
    columns["advantages"], columns["value_targets"] = advantages(**ends)
    batch = {name: column.flatten(0, 1) for name, column in columns.items()}  # [T, N, ...] -> [B, ...]
    b_advantages = batch["advantages"]
    batch["advantages"] = (b_advantages - b_advantages.mean()) / (b_advantages.std(correction=0) + 1e-8)

    for _ in range(EPOCHS):
        for rows in torch.randperm(FRAGMENT * NUM_ENVS).split(MINIBATCH):
            mb = {name: column[rows] for name, column in batch.items()}
            logits, values = policy(mb["obs"])
            loss, parts = ppo_loss(
                logits, values, mb["logits"], mb["actions"], mb["logp"], mb["advantages"], mb["values"],
                mb["value_targets"], clip_param=CLIP, vf_clip_param=VF_CLIP, vf_loss_coeff=VF_COEFF,
                kl_coeff=KL_COEFF, entropy_coeff=ENTROPY_COEFF,
            )  # fmt: skip
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(policy.parameters(), MAX_GRAD_NORM)
            optimizer.step()
    return {name: value.item() for name, value in parts.items()}


def train(env_id: str, total_steps: int, seed: int) -> float:
    """Trains until `total_steps` env steps; the mean return of the last 100 episodes."""
    torch.manual_seed(seed)
    torch.set_num_threads(1)  # networks this small are faster on one
    mode = {"autoreset_mode": gym.vector.AutoresetMode.SAME_STEP}
    envs = gym.wrappers.vector.RecordEpisodeStatistics(
        gym.make_vec(env_id, NUM_ENVS, vectorization_mode="sync", vector_kwargs=mode)
    )
    policy = ActorCritic(envs.single_observation_space.shape[0], int(envs.single_action_space.n))
    optimizer = torch.optim.Adam(policy.parameters(), LR, eps=1e-5)

    obs, _ = envs.reset(seed=seed)
    start, num_updates = time.time(), max(1, total_steps // (FRAGMENT * NUM_ENVS))
    returns: deque[float] = envs.return_queue
    for update in range(1, num_updates + 1):
        optimizer.param_groups[0]["lr"] = LR * (1 - (update - 1) / num_updates)
        columns, obs = collect(envs, obs, policy)
        stats = improve(policy, optimizer, columns)
        if update % 20 == 0 or update == num_updates:
            steps = update * FRAGMENT * NUM_ENVS
            speed = steps / (time.time() - start)
            print(
                f"{steps:8d} steps  return {np.mean(returns or [np.nan]):7.1f}  kl {stats['kl']:.4f}  "
                f"entropy {stats['entropy']:.3f}  vf_loss {stats['vf_loss']:8.2f}  {speed:6.0f} steps/s"
            )
    envs.close()
    return float(np.mean(returns or [np.nan]))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="PPO in one file, for envs of flat observations and discrete actions.")
    parser.add_argument("--env", default="CartPole-v1")
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    train(arguments.env, arguments.steps, arguments.seed)
