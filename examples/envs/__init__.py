"""Small environments whose best returns are known, and what a policy reaches at most that lacks what they ask for.

    headwater train PPO --env examples.envs:PixelGrid
    headwater train PPO --env examples.envs:RepeatPrevious --set model.memory=gru --set env_config.delay=3

| env | asks for | best mean return | without it |
|---|---|---|---|
| `PixelGrid` | a convolutional network | 0.96 | 0.09 for a random policy |
| `CartPoleHidden` | memory | 500 | about 51, the best that random search found |
| `RepeatPrevious` | memory | 24 | 6, exactly |
| `TMaze` | memory | 1 | 0, exactly |
| `SwitchingPair` | a second choice that depends on the first | 10 | 5 at most |
| `MaskedChoice` | action masks | 6.53 | an error at the first forbidden choice |
| `MultiAgentCartPole` | several agents, each with 500 at best | 2,000 | about 88 for random policies |
"""

from examples.envs.cart_pole_hidden import CartPoleHidden
from examples.envs.masked_choice import MaskedChoice
from examples.envs.multi_agent_cart_pole import MultiAgentCartPole
from examples.envs.pixel_grid import PixelGrid
from examples.envs.repeat_previous import RepeatPrevious
from examples.envs.switching_pair import SwitchingPair
from examples.envs.t_maze import TMaze

__all__ = [
    "CartPoleHidden", "MaskedChoice", "MultiAgentCartPole", "PixelGrid", "RepeatPrevious", "SwitchingPair", "TMaze",
]  # fmt: skip
