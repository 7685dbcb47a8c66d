"""The contract of `headwater.frameworks.ops` in torch.

Checks that read values run on the CPU only: on a GPU the host would have to wait for the device, and while
compiling they would break the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from headwater.frameworks.numpy.ops import NUMPY_OPS, index_message
from headwater.frameworks.ops import DistributionError, Ops, RandomGenerator, RandomSource, Shape

# Several steps without a mask run in torch's own kernels. Forward and backward of 32 steps, 64 wide, on one core,
# milliseconds, against the loops below: LSTM 1.4 / 4.2 for 8 sequences, 3.4 / 8.0 for 32; GRU 3.6 / 4.3 and 5.4 / 7.1.
# Of one step, as when acting, the loop is faster: LSTM 41 us against 106 for 8 rows; GRU 38 against 42.
# The kernels' settings: biases, layers, dropout, training, both directions, rows before steps.
_ONE_LAYER = (True, 1, 0.0, True, False, True)


class TorchGenerator:
    """A seeded torch generator on one device.

    Example:
        >>> rng = TorchGenerator(7)
        >>> state = rng.get_state()
        >>> first = rng.normal((3,))
        >>> rng.set_state(state)
        >>> bool((rng.normal((3,)) == first).all())
        True
    """

    def __init__(self, seed: int, device: torch.device | str = "cpu") -> None:
        self._rng = torch.Generator(device).manual_seed(seed)

    def uniform(self, shape: Shape) -> Tensor:
        return torch.rand(shape, generator=self._rng, device=self._rng.device)

    def normal(self, shape: Shape) -> Tensor:
        return torch.randn(shape, generator=self._rng, device=self._rng.device)

    def get_state(self) -> dict[str, Any]:
        return {"device": self._rng.device.type, "state": self._rng.get_state().numpy().copy()}

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues where `get_state` was called.

        Raises:
            DistributionError: the state is of a generator on another kind of device; their numbers differ.
        """
        if state["device"] != self._rng.device.type:
            raise DistributionError(
                f"This random state is of a generator on {state['device']!r}, and this one runs on "
                f"{self._rng.device.type!r}: continue on the same kind of device, or seed anew"
            )
        self._rng.set_state(torch.from_numpy(np.array(state["state"], np.uint8)))


class TorchOps(Ops):
    """torch's side of the contract; see `Ops` for what each function means."""

    def asarray(self, x: Any, like: Tensor | None = None) -> Tensor:
        device = None if like is None else like.device
        if isinstance(x, Tensor):
            return x if device is None else x.to(device)
        if isinstance(x, np.ndarray):
            if not torch.compiler.is_compiling() and not x.flags.writeable:
                x = x.copy()  # torch warns of sharing read-only memory, which views into batches may be
            return torch.as_tensor(x, device=device)
        if isinstance(x, (list, tuple)) and any(isinstance(entry, Tensor) for entry in x):
            return torch.stack([self.asarray(entry, like) for entry in x])
        if isinstance(x, (int, float)) or (isinstance(x, (list, tuple)) and all(type(e) in (int, float) for e in x)):
            return torch.tensor(x, device=device)
        array = np.asarray(x)
        if array.dtype == np.float64 and not isinstance(x, np.generic):
            array = array.astype(np.float32)
        return torch.tensor(array, device=device)

    def to_numpy(self, x: Tensor) -> np.ndarray:
        return x.detach().cpu().numpy()

    def to_float(self, x: Tensor, like: Tensor | None = None) -> Tensor:
        return x.to(torch.float32 if like is None else like.dtype)

    def to_index(self, x: Tensor, name: str = "index") -> Tensor:
        if not x.is_floating_point():
            return x.long()
        whole = (x == torch.floor(x)) & (x.abs() < 2**31)
        if _values_are_at_hand(x) and not bool(whole.all()):
            raise DistributionError(f"{name} {x[~whole][0].item()} is not a whole number: give integers")
        return torch.where(whole, x, -1.0).long()

    def stop_gradient(self, x: Tensor) -> Tensor:
        return x.detach()

    def shape(self, x: Tensor) -> Shape:
        return tuple(x.shape)

    def zeros(self, shape: Shape, like: Tensor) -> Tensor:
        return torch.zeros(shape, dtype=like.dtype, device=like.device)

    def check(self, ok: Tensor, message: Callable[[], str]) -> None:
        if _values_are_at_hand(ok) and not bool(ok.all()):
            raise DistributionError(message())

    def exp(self, x: Tensor) -> Tensor:
        return torch.exp(x)

    def log(self, x: Tensor) -> Tensor:
        return torch.log(x)

    def tanh(self, x: Tensor) -> Tensor:
        return torch.tanh(x)

    def atanh(self, x: Tensor) -> Tensor:
        return torch.atanh(x)

    def sigmoid(self, x: Tensor) -> Tensor:
        return torch.sigmoid(x)

    def softplus(self, x: Tensor) -> Tensor:
        # torch's own softplus turns into the identity above a threshold; the logarithm is exact throughout.
        return torch.logaddexp(x, x.new_zeros(()))

    def square(self, x: Tensor) -> Tensor:
        return x * x

    def sqrt(self, x: Tensor) -> Tensor:
        return torch.sqrt(x)

    def abs(self, x: Tensor) -> Tensor:
        return torch.abs(x)

    def lgamma(self, x: Tensor) -> Tensor:
        return torch.lgamma(x)

    def digamma(self, x: Tensor) -> Tensor:
        return torch.digamma(x)

    def isfinite(self, x: Tensor) -> Tensor:
        return torch.isfinite(x)

    def minimum(self, x: Tensor, y: Tensor | float) -> Tensor:
        return torch.minimum(x, y) if isinstance(y, Tensor) else x.clamp_max(y)

    def maximum(self, x: Tensor, y: Tensor | float) -> Tensor:
        return torch.maximum(x, y) if isinstance(y, Tensor) else x.clamp_min(y)

    def clip(self, x: Tensor, low: Tensor | float | None = None, high: Tensor | float | None = None) -> Tensor:
        # A clip that changes nothing is left out of the graph: looking costs a quarter of its way forth and back.
        by_numbers = not isinstance(low, Tensor) and not isinstance(high, Tensor)
        if by_numbers and x.requires_grad and x.numel() and _values_are_at_hand(x):
            smallest, largest = torch.aminmax(x.detach())
            if (low is None or smallest.item() >= low) and (high is None or largest.item() <= high):
                return x
        return torch.clamp(x, low, high)  # type: ignore[arg-type]

    def where(self, condition: Tensor, x: Tensor | float, y: Tensor | float) -> Tensor:
        return torch.where(condition, x, y)

    def sum(self, x: Tensor, axis: int | None = None, keepdims: bool = False) -> Tensor:
        return x.sum() if axis is None else x.sum(axis, keepdim=keepdims)

    def mean(self, x: Tensor, axis: int | None = None) -> Tensor:
        return x.mean() if axis is None else x.mean(axis)

    def var(self, x: Tensor) -> Tensor:
        return x.var(-1, correction=0)

    def max(self, x: Tensor, axis: int, keepdims: bool = False) -> Tensor:
        return x.amax(axis, keepdim=keepdims)

    def all(self, x: Tensor, axis: int | None = None) -> Tensor:
        return x.all() if axis is None else x.all(axis)

    def argmax(self, x: Tensor) -> Tensor:
        return x.argmax(-1)

    def cumsum(self, x: Tensor) -> Tensor:
        return x.cumsum(-1)

    def logsumexp(self, x: Tensor, keepdims: bool = False) -> Tensor:
        return torch.logsumexp(x, -1, keepdim=keepdims)

    def softmax(self, x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    def log_softmax(self, x: Tensor) -> Tensor:
        return torch.log_softmax(x, -1)

    def pick(self, x: Tensor, index: Tensor, name: str = "index") -> Tensor:
        if not _values_are_at_hand(x):
            width = x.shape[-1]
            inside = (index >= 0) & (index < width)
            safe = torch.where(inside, index, 0)
            return torch.where(inside, x.gather(-1, safe.unsqueeze(-1)).squeeze(-1), -torch.inf)
        try:
            return x.gather(-1, index.unsqueeze(-1)).squeeze(-1)
        except RuntimeError as error:  # gather finds a wrong index for nothing; it only says so less clearly
            values = index.cpu().numpy()
            if ((values >= 0) & (values < x.shape[-1])).all():
                raise
            raise DistributionError(index_message(values, x.shape[-1], name)) from error

    def searchsorted(self, rows: Tensor, value: Tensor) -> Tensor:
        return (~(rows > value.unsqueeze(-1))).sum(-1)

    def one_hot(self, index: Tensor, width: int, like: Tensor) -> Tensor:
        return (index.unsqueeze(-1) == torch.arange(width, device=index.device)).to(like.dtype)

    def reshape(self, x: Tensor, shape: Shape) -> Tensor:
        return x.reshape(shape)

    def split(self, x: Tensor, sizes: Sequence[int]) -> list[Tensor]:
        return list(torch.split(x, list(sizes), -1))

    def concat(self, parts: Sequence[Tensor], axis: int = -1) -> Tensor:
        return torch.cat(list(parts), axis)

    def stack(self, parts: Sequence[Tensor], axis: int = -1) -> Tensor:
        return torch.stack(list(parts), axis)

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        return x.permute(*axes)

    def take_rows(self, x: Tensor, index: Tensor) -> Tensor:
        return x.index_select(0, index)

    def relu(self, x: Tensor) -> Tensor:
        return torch.relu(x)

    def elu(self, x: Tensor) -> Tensor:
        return functional.elu(x)

    def silu(self, x: Tensor) -> Tensor:
        return functional.silu(x)

    def matmul(self, x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    def dense(self, x: Tensor, kernel: Tensor, bias: Tensor) -> Tensor:
        return torch.addmm(bias, x, kernel) if x.ndim == 2 else x @ kernel + bias

    def conv(self, x: Tensor, kernel: Tensor, bias: Tensor, stride: tuple[int, int]) -> Tensor:
        # Channels first in name; in memory they stay last, which is torch's faster way.
        return functional.conv2d(x.permute(0, 3, 1, 2), kernel.permute(0, 3, 1, 2), bias, stride).permute(0, 2, 3, 1)

    def lstm(
        self, x: Tensor, h: Tensor, c: Tensor, kernel: Tensor, recurrent: Tensor, bias: Tensor,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        if mask is None and x.shape[1] > 1:
            weights = (kernel.t(), recurrent.t(), bias, torch.zeros_like(bias))
            y, h_last, c_last = torch.lstm(x, (h[None], c[None]), weights, *_ONE_LAYER)
            return y, h_last[0], c_last[0]
        gates, outputs = self.dense(x, kernel, bias), []
        for t in range(x.shape[1]):
            i, f, g, o = (gates[:, t] + h @ recurrent).chunk(4, -1)
            c_next = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h_next = torch.sigmoid(o) * torch.tanh(c_next)
            h, c = (h_next, c_next) if mask is None else _where_real(mask[:, t], (h_next, c_next), (h, c))
            outputs.append(h)
        return torch.stack(outputs, 1), h, c

    def gru(
        self, x: Tensor, h: Tensor, kernel: Tensor, recurrent: Tensor, bias: Tensor, recurrent_bias: Tensor,
        mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:  # fmt: skip
        if mask is None and x.shape[1] > 1:
            recurrent_biases = torch.cat([torch.zeros_like(bias[: 2 * h.shape[-1]]), recurrent_bias])
            weights = (kernel.t(), recurrent.t(), bias, recurrent_biases)
            y, h_last = torch.gru(x, h[None], weights, *_ONE_LAYER)
            return y, h_last[0]
        gates, outputs = self.dense(x, kernel, bias), []
        for t in range(x.shape[1]):
            a_r, a_z, a_n = gates[:, t].chunk(3, -1)
            b_r, b_z, b_n = (h @ recurrent).chunk(3, -1)
            z = torch.sigmoid(a_z + b_z)
            n = torch.tanh(a_n + torch.sigmoid(a_r + b_r) * (b_n + recurrent_bias))
            h_next = n + z * (h - n)
            h = h_next if mask is None else _where_real(mask[:, t], (h_next,), (h,))[0]
            outputs.append(h)
        return torch.stack(outputs, 1), h

    def generator(self, seed: int, like: Tensor | None = None) -> RandomGenerator:
        return TorchGenerator(seed, "cpu" if like is None else like.device)

    def uniform(self, rng: RandomSource | None, shape: Shape, like: Tensor | None = None) -> Tensor:
        if rng is None or isinstance(rng, torch.Generator):
            return torch.rand(shape, generator=rng, **_placed_like(like))
        if isinstance(rng, np.random.Generator):
            return _drawn_elsewhere(NUMPY_OPS.uniform(rng, shape), like)
        return _drawn_elsewhere(rng.uniform(shape), like)

    def normal(self, rng: RandomSource | None, shape: Shape, like: Tensor | None = None) -> Tensor:
        if rng is None or isinstance(rng, torch.Generator):
            return torch.randn(shape, generator=rng, **_placed_like(like))
        if isinstance(rng, np.random.Generator):
            return _drawn_elsewhere(NUMPY_OPS.normal(rng, shape), like)
        return _drawn_elsewhere(rng.normal(shape), like)


def _where_real(real: Tensor, new: tuple[Tensor, ...], old: tuple[Tensor, ...]) -> list[Tensor]:
    return [torch.where(real[:, None], a, b) for a, b in zip(new, old, strict=True)]


def _values_are_at_hand(x: Tensor) -> bool:
    return x.is_cpu and not torch.compiler.is_compiling()


def _placed_like(like: Tensor | None) -> dict[str, Any]:
    return {"dtype": torch.float32} if like is None else {"dtype": like.dtype, "device": like.device}


def _drawn_elsewhere(drawn: Any, like: Tensor | None) -> Tensor:
    if isinstance(drawn, np.ndarray) and like is not None and like.device.type != "cpu":
        drawn = drawn.astype(np.float32, copy=False)  # half the bytes to move
    return torch.as_tensor(drawn).to(**_placed_like(like))


TORCH_OPS = TorchOps()
