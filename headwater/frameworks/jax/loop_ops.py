"""JAX's ops as they are faster inside compiled loops on the CPU, where networks learn."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from headwater.frameworks.jax.ops import JaxOps


class JaxLoopOps(JaxOps):
    """Convolutions as one matrix product each.

    XLA's own are some forty times slower inside a loop than outside, where they still are slower to differentiate.
    (Outside, without gradients, they are up to four times as fast: acting keeps to them.)
    """

    def conv(self, x: jax.Array, kernel: jax.Array, bias: jax.Array, stride: tuple[int, int]) -> jax.Array:
        # A stride is taken out first: what it steps over becomes channels, and each patch a few contiguous pieces.
        outputs, height, width, _ = kernel.shape
        down, right = (x.shape[1] - height) // stride[0] + 1, (x.shape[2] - width) // stride[1] + 1
        blocks = -(-height // stride[0]), -(-width // stride[1])
        kernel = _as_blocks(kernel, blocks, stride)
        x = _as_blocks(x, (down - 1 + blocks[0], right - 1 + blocks[1]), stride)
        parts = [x[:, i : i + down, j : j + right] for i in range(blocks[0]) for j in range(blocks[1])]
        patches = jnp.concatenate(parts, -1)
        y = patches.reshape(-1, patches.shape[-1]) @ kernel.reshape(outputs, -1).T
        return y.reshape(-1, down, right, outputs) + bias


def _as_blocks(x: jax.Array, blocks: tuple[int, int], size: tuple[int, int]) -> jax.Array:
    """[B, height, width, C] -> [B, *blocks, size[0] * size[1] * C]: cut off or filled up with zeros to fit."""
    height, width = blocks[0] * size[0], blocks[1] * size[1]
    x = x[:, :height, :width]
    x = jnp.pad(x, ((0, 0), (0, height - x.shape[1]), (0, width - x.shape[2]), (0, 0)))
    rows, channels = len(x), x.shape[-1]
    x = x.reshape(rows, blocks[0], size[0], blocks[1], size[1] * channels).transpose(0, 1, 3, 2, 4)
    return x.reshape(rows, *blocks, size[0] * size[1] * channels)


JAX_LOOP_OPS = JaxLoopOps()
