"""The contract between the mathematics and the frameworks.

Distributions (`headwater/policy/distributions`) and losses (`headwater/algorithms/*/loss.py`) are written once, over an
`Ops` object; each framework folder supplies one (`NUMPY_OPS`, `TORCH_OPS`). Code over `ops` imports no framework and
never asks for one's name: what the contract lacks is added here, to every framework, with parity cases in the tests.

Besides the methods below, shared code uses only what the arrays of all frameworks have: the operators `+ - * / **`,
comparisons, `& | ~` on booleans, `.ndim`, `.dtype`, and basic slicing. Shapes: `[*]` is any shape, `[*, K]` any shape
whose last axis has width K. Elementwise functions broadcast, keep the floating type, and carry gradients.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from headwater.errors import HeadwaterError

Array = Any  # an array of the framework whose ops are in use
Shape = tuple[int, ...]


class DistributionError(HeadwaterError, ValueError):
    """A distribution got inputs, parameters or actions that it cannot hold."""


class RandomSource(Protocol):
    """What `ops.uniform` and `ops.normal` draw from: a framework's generator, or the sampler's per-env streams.

    The arrays may be NumPy's, of any float width, whatever the framework: the ops convert them. So one stream
    gives the same actions in every framework.
    """

    def uniform(self, shape: Shape) -> Array:
        """Numbers in [0, 1), of `shape`."""

    def normal(self, shape: Shape) -> Array:
        """Numbers from N(0, 1), of `shape`."""


class RandomGenerator(RandomSource, Protocol):
    """A seeded source whose state can be stored (`ops.generator(seed)` makes one)."""

    def get_state(self) -> dict[str, Any]:
        """The state, as JSON values and NumPy arrays."""

    def set_state(self, state: dict[str, Any]) -> None:
        """Continues exactly where `get_state` was called."""


class Ops(ABC):
    """About forty array operations and a random generator; see the module's docstring for the rules."""

    # -- conversion

    @abstractmethod
    def asarray(self, x: Any, like: Array | None = None) -> Array:
        """`x` on the device of `like`: arrays keep their type and are not copied where avoidable.

        Python floats become float32, Python ints int64; a list may mix them with scalars of the framework.
        """

    @abstractmethod
    def to_numpy(self, x: Array) -> Any:
        """The values as a NumPy array on the host, without gradients."""

    @abstractmethod
    def to_float(self, x: Array, like: Array | None = None) -> Array:
        """`x` in the floating type of `like`, else float32; booleans become 0 and 1."""

    @abstractmethod
    def to_index(self, x: Array, name: str = "index") -> Array:
        """[*] -> int64 [*]. Floats that are whole become integers.

        Other floats raise DistributionError where values can be seen without waiting for a device, else become -1.
        """

    @abstractmethod
    def stop_gradient(self, x: Array) -> Array:
        """The same values, through which no gradient flows."""

    @abstractmethod
    def shape(self, x: Array) -> Shape:
        """The shape; entries may be symbolic where a framework traces."""

    @abstractmethod
    def zeros(self, shape: Shape, like: Array) -> Array:
        """Zeros of `shape` with the type and device of `like`."""

    @abstractmethod
    def check(self, ok: Array, message: Callable[[], str]) -> None:
        """Raises DistributionError(message()) if any entry of the boolean `ok` is False.

        Does nothing where the answer would make the host wait for a device, or under tracing.
        """

    # -- elementwise: [*] -> [*]

    @abstractmethod
    def exp(self, x: Array) -> Array:
        """e to the power x."""

    @abstractmethod
    def log(self, x: Array) -> Array:
        """Natural logarithm of x > 0."""

    @abstractmethod
    def tanh(self, x: Array) -> Array:
        """Hyperbolic tangent."""

    @abstractmethod
    def atanh(self, x: Array) -> Array:
        """Inverse hyperbolic tangent of |x| < 1."""

    @abstractmethod
    def sigmoid(self, x: Array) -> Array:
        """1 / (1 + exp(-x)), without overflow."""

    @abstractmethod
    def softplus(self, x: Array) -> Array:
        """log(1 + exp(x)), without overflow."""

    @abstractmethod
    def square(self, x: Array) -> Array:
        """x * x."""

    @abstractmethod
    def sqrt(self, x: Array) -> Array:
        """Square root of x >= 0."""

    @abstractmethod
    def abs(self, x: Array) -> Array:
        """|x|."""

    @abstractmethod
    def lgamma(self, x: Array) -> Array:
        """log Gamma(x) for x > 0."""

    @abstractmethod
    def digamma(self, x: Array) -> Array:
        """The derivative of lgamma, for x > 0."""

    @abstractmethod
    def isfinite(self, x: Array) -> Array:
        """Boolean: neither NaN nor infinite."""

    @abstractmethod
    def minimum(self, x: Array, y: Array | float) -> Array:
        """The smaller of each pair; NaN if either is."""

    @abstractmethod
    def maximum(self, x: Array, y: Array | float) -> Array:
        """The larger of each pair; NaN if either is."""

    @abstractmethod
    def clip(self, x: Array, low: Array | float | None = None, high: Array | float | None = None) -> Array:
        """x kept within [low, high]; the gradient is 0 outside, NaN stays NaN."""

    @abstractmethod
    def where(self, condition: Array, x: Array | float, y: Array | float) -> Array:
        """x where the boolean condition holds, else y.

        No gradient passes to the values that were not taken. NaN is kept out of a loss by selecting before the
        arithmetic: after it, the arithmetic's own gradient makes NaN again from 0 * NaN.
        """

    # -- reductions

    @abstractmethod
    def sum(self, x: Array, axis: int | None = None, keepdims: bool = False) -> Array:
        """The sum over `axis`, or over everything; booleans are counted as int64."""

    @abstractmethod
    def mean(self, x: Array, axis: int | None = None) -> Array:
        """The mean over `axis`, or over everything."""

    @abstractmethod
    def var(self, x: Array) -> Array:
        """[*, K] -> [*]: the population variance of each row, exact also where it is small against the mean."""

    @abstractmethod
    def max(self, x: Array, axis: int, keepdims: bool = False) -> Array:
        """The largest value along `axis`."""

    @abstractmethod
    def all(self, x: Array, axis: int | None = None) -> Array:
        """Whether all booleans along `axis`, or all of them, hold."""

    @abstractmethod
    def argmax(self, x: Array) -> Array:
        """[*, K] -> int64 [*]: where the largest value of each row is; the first of equals."""

    @abstractmethod
    def cumsum(self, x: Array) -> Array:
        """[*, K] -> [*, K]: running sums along each row."""

    @abstractmethod
    def logsumexp(self, x: Array, keepdims: bool = False) -> Array:
        """[*, K] -> [*] or [*, 1]: log of the sum of exponentials of each row, without overflow."""

    @abstractmethod
    def softmax(self, x: Array) -> Array:
        """[*, K] -> [*, K]: probabilities of each row of logits; exactly 0 for a logit of -inf."""

    @abstractmethod
    def log_softmax(self, x: Array) -> Array:
        """[*, K] -> [*, K]: x - logsumexp(x) by rows."""

    # -- rows and shapes

    @abstractmethod
    def pick(self, x: Array, index: Array, name: str = "index") -> Array:
        """x [*, K], int64 index [*] -> [*]: from each row the value at its index.

        An index outside [0, K) raises DistributionError where values can be seen without waiting for a device,
        else gives -inf.
        """

    @abstractmethod
    def searchsorted(self, rows: Array, value: Array) -> Array:
        """Ascending rows [*, K], value [*] -> int64 [*]: how many entries of each row are <= its value.

        NaN, which ends a running sum, counts too: a row of NaN gives K.
        """

    @abstractmethod
    def one_hot(self, index: Array, width: int, like: Array) -> Array:
        """int64 index [*] -> [*, width], with the type of `like`; all zeros for an index outside [0, width)."""

    @abstractmethod
    def reshape(self, x: Array, shape: Shape) -> Array:
        """The same entries in row-major order; one entry of `shape` may be -1."""

    @abstractmethod
    def split(self, x: Array, sizes: Sequence[int]) -> list[Array]:
        """[*, sum(sizes)] -> one [*, size] for each size, cut along the last axis."""

    @abstractmethod
    def concat(self, parts: Sequence[Array], axis: int = -1) -> Array:
        """The parts joined along an axis that they have."""

    @abstractmethod
    def stack(self, parts: Sequence[Array], axis: int = -1) -> Array:
        """Parts of equal shape joined along a new axis."""

    @abstractmethod
    def transpose(self, x: Array, axes: Sequence[int]) -> Array:
        """The axes in the given order."""

    @abstractmethod
    def take_rows(self, x: Array, index: Array) -> Array:
        """x [B, *], int64 index [M] -> [M, *]: the rows at these places."""

    # -- networks

    @abstractmethod
    def relu(self, x: Array) -> Array:
        """max(x, 0)."""

    @abstractmethod
    def elu(self, x: Array) -> Array:
        """x where positive, else exp(x) - 1."""

    @abstractmethod
    def silu(self, x: Array) -> Array:
        """x * sigmoid(x)."""

    @abstractmethod
    def matmul(self, x: Array, y: Array) -> Array:
        """[*, n, k], [*, k, m] -> [*, n, m]: matrix products, over leading axes that broadcast."""

    @abstractmethod
    def dense(self, x: Array, kernel: Array, bias: Array) -> Array:
        """[*, in], [in, out], [out] -> [*, out]: x @ kernel + bias."""

    @abstractmethod
    def conv(self, x: Array, kernel: Array, bias: Array, stride: tuple[int, int]) -> Array:
        """[B, height, width, in], [out, kernel height, kernel width, in], [out] -> [B, height', width', out].

        Without padding: height' = (height - kernel height) // stride[0] + 1, and so the width.
        """

    @abstractmethod
    def lstm(
        self, x: Array, h: Array, c: Array, kernel: Array, recurrent: Array, bias: Array, mask: Array | None = None
    ) -> tuple[Array, Array, Array]:
        """A long short-term memory (Hochreiter and Schmidhuber 1997) along the time axis.

        With [i, f, g, o] = x kernel + h recurrent + bias at each step: c = sigmoid(f) c + sigmoid(i) tanh(g) and
        h = sigmoid(o) tanh(c).

        Args:
            x: [B, T, in].
            h: [B, H], before the first step.
            c: [B, H], likewise.
            kernel: [in, 4 H], gates in the order i, f, g, o.
            recurrent: [H, 4 H].
            bias: [4 H].
            mask: bool [B, T]: where it is False, h and c stay what they are.

        Returns:
            h after each step, [B, T, H], and h and c after the last one.
        """

    @abstractmethod
    def gru(
        self,
        x: Array,
        h: Array,
        kernel: Array,
        recurrent: Array,
        bias: Array,
        recurrent_bias: Array,
        mask: Array | None = None,
    ) -> tuple[Array, Array]:
        """A gated recurrent unit (Cho et al. 2014, arXiv:1406.1078) along the time axis.

        With [r, z, n] = x kernel + bias and [r', z', n'] = h recurrent at each step: r = sigmoid(r + r'),
        z = sigmoid(z + z'), n = tanh(n + r (n' + recurrent_bias)) and h = (1 - z) n + z h.

        Args:
            x: [B, T, in].
            h: [B, H], before the first step.
            kernel: [in, 3 H], gates in the order r, z, n.
            recurrent: [H, 3 H].
            bias: [3 H].
            recurrent_bias: [H], of the candidate n.
            mask: bool [B, T]: where it is False, h stays what it is.

        Returns:
            h after each step, [B, T, H], and after the last one.
        """

    # -- random numbers

    @abstractmethod
    def generator(self, seed: int, like: Array | None = None) -> RandomGenerator:
        """A generator of this framework, on the device of `like`; the same seed gives the same numbers."""

    @abstractmethod
    def uniform(self, rng: RandomSource | None, shape: Shape, like: Array | None = None) -> Array:
        """Uniform numbers, in the floating type and on the device of `like` (else float32).

        They lie in [0, 1], 1 being a rounding of a source's float64. Without `rng` the framework's own global
        generator draws; a framework that has none raises DistributionError.
        """

    @abstractmethod
    def normal(self, rng: RandomSource | None, shape: Shape, like: Array | None = None) -> Array:
        """Standard normal numbers, otherwise as `uniform`."""
