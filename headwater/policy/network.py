"""Network: what a `NetworkDescription` says, computed over `ops`; so one network serves every framework.

    observations -> shared layers -> policy layers -> the distribution's inputs, masked
                                  -> value layers  -> values

Layers without memory see rows `[B, ...]`. Those with memory see sequences `[M, L, ...]`, whose rows, B = M * L, follow
one another; when acting, each env is a sequence of one step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from headwater.frameworks.ops import Array, Ops
from headwater.policy.distributions.categorical import MASKED_LOGIT
from headwater.policy.network_description import (
    ActionMask,
    Attention,
    Branches,
    Conv,
    Dense,
    Gru,
    Layer,
    Lstm,
    NetworkDescription,
)

_LOWEST_SCORE = -1e9  # of what attention must not see
_EPSILON = 1e-5  # keeps layer norm from dividing by 0

Weights = Mapping[str, Array]
State = dict[str, Array]  # the parts of a state, [M, *shape] each


class Network:
    """A described network over a framework's ops.

    It holds no weights: they are given at each call, by the description's names, and gradients flow to them.

    Args:
        description: What to compute.
        ops: The framework's operations.
    """

    def __init__(self, description: NetworkDescription, ops: Ops) -> None:
        self.description = description
        self._ops = ops
        self._state_shapes = description.state_shapes()
        self._in_order = description.output_order is None
        self._runs = description.output_runs()

    def forward(
        self,
        weights: Weights,
        obs: Array,
        state: Array | None = None,
        mask: Array | None = None,
        keep_state: bool = True,
    ) -> tuple[Array, Array, Array | None]:
        """Distribution inputs, values, and what is remembered.

        Args:
            weights: By name.
            obs: [B, *observation shape]; with memory [M, L, *observation shape].
            state: With memory, [M, S]: before each sequence's first step.
            mask: With memory, bool [M, L]: which rows are real; padding is at the end of a sequence. What padded rows
                hold, be it NaN, reaches neither outputs of real rows nor gradients. None: all are real.
            keep_state: False: nobody asks for the state afterwards, which spares finding the last real rows.

        Returns:
            [B, K]; [B]; and with memory and `keep_state` [M, S]: after each sequence's last real row. B = M * L, row by
            row.
        """
        call = _Call(self._ops, weights, obs, self._split(state), mask, keep_state)
        rows = call.rows()
        features, scale = call.run(self.description.shared, self._features(rows), self.description.scale)
        dist_inputs, _ = call.run(self.description.policy, features, scale)
        values, _ = call.run(self.description.value, features, scale)
        state = self._join(call.state) if keep_state else None
        return self._outputs(weights, rows, dist_inputs), values[:, 0], state

    def dist_inputs(self, weights: Weights, obs: Array) -> Array:
        """[B, *observation shape] -> [B, K]; without memory, and without the value network where that is separate."""
        call = _Call(self._ops, weights, obs)
        features, scale = call.run(self.description.shared, self._features(obs), self.description.scale)
        return self._outputs(weights, obs, call.run(self.description.policy, features, scale)[0])

    def values(self, weights: Weights, obs: Array) -> Array:
        """[B, *observation shape] -> [B]; without memory, and without the policy network where that is separate."""
        call = _Call(self._ops, weights, obs)
        features, scale = call.run(self.description.shared, self._features(obs), self.description.scale)
        return call.run(self.description.value, features, scale)[0][:, 0]

    def _features(self, rows: Array) -> Array:
        description, ops = self.description, self._ops
        rows = ops.to_float(rows)
        if description.num_features is not None:
            return rows[:, : description.num_features]
        if len(description.observation_shape) == 2:
            return rows[..., None]
        return rows

    def _outputs(self, weights: Weights, rows: Array, outputs: Array) -> Array:
        if self.description.free_columns:
            outputs = self._with_log_std(outputs, weights["log_std"])
        if self.description.mask is not None:
            outputs = masked_logits(self._ops, self.description.mask, self.description.num_outputs, rows, outputs)
        return outputs

    def _with_log_std(self, outputs: Array, log_std: Array) -> Array:
        ops = self._ops
        repeated = ops.zeros((ops.shape(outputs)[0], len(self.description.free_columns)), outputs) + log_std
        if self._in_order:
            return ops.concat([outputs, repeated])
        return ops.concat([(repeated if free else outputs)[:, start:stop] for free, start, stop in self._runs])

    def _split(self, state: Array | None) -> State:
        """[M, S] -> the parts by name."""
        if state is None:
            return {}
        ops = self._ops
        parts = ops.split(state, [math.prod(shape) for shape in self._state_shapes.values()])
        rows = ops.shape(state)[0]
        return {
            name: part[:, 0] if shape == () else ops.reshape(part, (rows, *shape))
            for (name, shape), part in zip(self._state_shapes.items(), parts, strict=True)
        }

    def _join(self, state: State) -> Array | None:
        if not state:
            return None
        ops = self._ops
        rows = ops.shape(next(iter(state.values())))[0]
        return ops.concat([ops.reshape(state[name], (rows, -1)) for name in self._state_shapes])


def masked_logits(ops: Ops, mask: ActionMask, num_outputs: int, rows: Array, outputs: Array) -> Array:
    """[B, K] outputs with `MASKED_LOGIT` where the observations [B, D] forbid a choice."""
    choices = rows[:, mask.start : mask.start + len(mask.columns)]
    if len(mask.columns) == num_outputs:
        return ops.where(choices > 0.5, outputs, MASKED_LOGIT)
    spread = np.zeros((len(mask.columns), num_outputs), np.float32)
    spread[np.arange(len(mask.columns)), list(mask.columns)] = 1.0
    always = 1.0 - spread.sum(0)
    allowed = ops.matmul(ops.to_float(choices), ops.asarray(spread, like=outputs)) + ops.asarray(always, like=outputs)
    return ops.where(allowed > 0.5, outputs, MASKED_LOGIT)


class _Call:
    """One pass through a network: its weights, and the state as it goes."""

    def __init__(
        self,
        ops: Ops,
        weights: Weights,
        obs: Array,
        state: State | None = None,
        mask: Array | None = None,
        keep_state: bool = True,
    ) -> None:
        self.ops = ops
        self.state: State = state or {}
        self._weights = weights
        self._obs = obs
        self._mask = mask
        # Padding is at the end: without it a memory gives the real rows the same outputs, and is faster.
        self._state_mask = mask if keep_state else None
        self._sequences = ops.shape(obs)[:2] if self.state else None  # (M, L)

    def rows(self) -> Array:
        """The observations as rows [B, ...], those of padding 0."""
        ops, obs = self.ops, self._obs
        if self._sequences is None:
            return obs
        shape = ops.shape(obs)
        if self._mask is not None:
            obs = ops.where(ops.reshape(self._mask, (*self._sequences, *(1,) * len(shape[2:]))), obs, 0)
        return ops.reshape(obs, (-1, *shape[2:]))

    def run(self, layers: Sequence[Layer], x: Array, scale: float) -> tuple[Array, float]:
        """The layers' output, and what the next layer still has to scale its input by."""
        for layer in layers:
            if isinstance(layer, Dense | Conv):
                x, scale = self._connected(layer, x, scale), 1.0
            elif isinstance(layer, Branches):
                x, scale = self._branches(layer, x), 1.0
            else:
                remember = {Lstm: self._lstm, Gru: self._gru, Attention: self._attention}[type(layer)]
                assert self._sequences is not None, f"{layer.name} needs a state"
                x = self._flat(x)
                y = remember(layer, self.ops.reshape(x, (*self._sequences, layer.inputs)))  # type: ignore[operator]
                x = self.ops.reshape(y, (-1, layer.outputs))
        return x, scale

    def _weight(self, layer: Layer, name: str) -> Array:
        return self._weights[f"{layer.name}/{name}"]

    def _flat(self, x: Array) -> Array:
        """[B, ...] -> [B, width]."""
        shape = self.ops.shape(x)
        return x if len(shape) == 2 else self.ops.reshape(x, (-1, math.prod(shape[1:])))

    def _connected(self, layer: Dense | Conv, x: Array, scale: float) -> Array:
        kernel, bias = self._weight(layer, "kernel"), self._weight(layer, "bias")
        if scale != 1.0:
            kernel = kernel * scale  # cheaper than scaling images
        if isinstance(layer, Conv):
            x = self.ops.conv(x, kernel, bias, layer.stride)
        else:
            x = self.ops.dense(self._flat(x), kernel, bias)
        return x if layer.activation == "linear" else getattr(self.ops, layer.activation)(x)

    def _branches(self, layer: Branches, rows: Array) -> Array:
        ops, parts = self.ops, []
        for branch in layer.branches:
            ranges = [rows[:, start:stop] for start, stop in branch.columns]
            x = ranges[0] if len(ranges) == 1 else ops.concat(ranges)
            if len(branch.shape) > 1:
                x = ops.reshape(x, (-1, *branch.shape))
            parts.append(self._flat(self.run(branch.layers, x, 1.0)[0]))
        return parts[0] if len(parts) == 1 else ops.concat(parts)

    def _lstm(self, layer: Lstm, x: Array) -> Array:
        h, c = f"{layer.name}/h", f"{layer.name}/c"
        kernel, recurrent, bias = (self._weight(layer, name) for name in ("kernel", "recurrent", "bias"))
        y, self.state[h], self.state[c] = self.ops.lstm(
            x, self.state[h], self.state[c], kernel, recurrent, bias, self._state_mask
        )
        return y

    def _gru(self, layer: Gru, x: Array) -> Array:
        h = f"{layer.name}/h"
        kernel, recurrent = self._weight(layer, "kernel"), self._weight(layer, "recurrent")
        bias, recurrent_bias = self._weight(layer, "bias"), self._weight(layer, "recurrent_bias")
        y, self.state[h] = self.ops.gru(x, self.state[h], kernel, recurrent, bias, recurrent_bias, self._state_mask)
        return y

    def _attention(self, layer: Attention, x: Array) -> Array:
        """[M, L, D] -> [M, L, D]."""
        seen = self._remembered(layer, x)
        x = self._gate(layer, "gate", x, self.ops.relu(self._attended(layer, x, seen)))
        wide = self._dense(layer, "wide", self._norm(layer, "wide_norm", x))
        return self._gate(layer, "wide_gate", x, self.ops.relu(self._dense(layer, "narrow", self.ops.relu(wide))))

    def _remembered(self, layer: Attention, x: Array) -> tuple[Array, Array]:
        """The inputs of before and of now, [M, W + L, D], and how many of before are real, [M]; updates the state."""
        ops, window = self.ops, layer.window
        memory, age = f"{layer.name}/memory", f"{layer.name}/age"
        real_before = self.state[age]
        seen = ops.concat([ops.stop_gradient(self.state[memory]), x], 1)
        length = ops.shape(x)[1]
        kept = ops.stop_gradient(seen)
        if self._state_mask is None:
            self.state[memory] = kept[:, length:]
            self.state[age] = ops.clip(real_before + float(length), 0.0, float(window))
        else:
            # The last W inputs before the first padded row, of each sequence by itself.
            count = ops.sum(self._state_mask, 1)
            index = ops.cumsum(ops.zeros((ops.shape(x)[0],), count) + 1) - 1
            places = (index * (window + length) + count)[:, None] + ops.asarray(np.arange(window), like=x)
            flat = ops.reshape(kept, (-1, layer.inputs))
            taken = ops.take_rows(flat, ops.reshape(places, (-1,)))
            count = ops.to_float(count)
            self.state[memory] = ops.reshape(taken, (-1, window, layer.inputs))
            self.state[age] = ops.clip(real_before + count, 0.0, float(window))
        return seen, real_before

    def _attended(self, layer: Attention, x: Array, seen: tuple[Array, Array]) -> Array:
        ops, heads, window = self.ops, layer.heads, layer.window
        width = layer.outputs // heads
        inputs, real_before = seen
        sequences, length = ops.shape(x)[:2]
        # Row i of now stands at W + i among what is seen; it looks at most W back, and never at what was not there.
        places = np.arange(window + length)
        distance = (window + np.arange(length))[:, None] - places
        in_reach = ops.asarray((distance >= 0) & (distance <= window), like=x)
        was_there = ops.asarray(np.float32(places), like=x) >= window - real_before[:, None]
        allowed = in_reach[None] & was_there[:, None]
        bias = ops.take_rows(self._weight(layer, "distance"), ops.asarray(np.clip(distance, 0, window).ravel(), like=x))
        bias = ops.transpose(ops.reshape(bias, (length, window + length, heads)), (2, 0, 1))

        normed = self._norm(layer, "norm", inputs)
        query = ops.matmul(normed[:, window:], self._weight(layer, "query/kernel"))
        key, value = ops.split(
            ops.matmul(normed, self._weight(layer, "key_value/kernel")), [layer.outputs, layer.outputs]
        )
        query = ops.transpose(ops.reshape(query, (sequences, length, heads, width)), (0, 2, 1, 3))
        key = ops.transpose(ops.reshape(key, (sequences, window + length, heads, width)), (0, 2, 3, 1))
        value = ops.transpose(ops.reshape(value, (sequences, window + length, heads, width)), (0, 2, 1, 3))
        scores = ops.matmul(query, key) / math.sqrt(width) + bias
        shares = ops.softmax(ops.where(allowed[:, None], scores, _LOWEST_SCORE))
        mixed = ops.transpose(ops.matmul(shares, value), (0, 2, 1, 3))
        return self._dense(layer, "out", ops.reshape(mixed, (sequences, length, layer.outputs)))

    def _gate(self, layer: Attention, name: str, x: Array, y: Array) -> Array:
        """GTrXL's gate between a skip connection x and what a part of the block made of it, y: `[M, L, D]` all."""
        ops, width = self.ops, layer.outputs
        y_r, y_z, y_h = ops.split(ops.matmul(y, self._weight(layer, f"{name}/kernel")), [width] * 3)
        x_r, x_z = ops.split(ops.matmul(x, self._weight(layer, f"{name}/recurrent")), [width] * 2)
        z = ops.sigmoid(y_z + x_z - self._weight(layer, f"{name}/bias"))
        reset = ops.sigmoid(y_r + x_r) * x
        candidate = ops.tanh(y_h + ops.matmul(reset, self._weight(layer, f"{name}/candidate")))
        return x + z * (candidate - x)

    def _norm(self, layer: Attention, name: str, x: Array) -> Array:
        ops = self.ops
        centred = x - ops.mean(x, -1)[..., None]
        deviation = ops.sqrt(ops.var(x) + _EPSILON)[..., None]
        return centred / deviation * self._weight(layer, f"{name}/scale") + self._weight(layer, f"{name}/bias")

    def _dense(self, layer: Attention, name: str, x: Array) -> Array:
        return self.ops.dense(x, self._weight(layer, f"{name}/kernel"), self._weight(layer, f"{name}/bias"))
