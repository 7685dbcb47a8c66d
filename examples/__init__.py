"""Read or run one by one; `examples.envs` holds small environments whose best and whose chance returns are known."""
