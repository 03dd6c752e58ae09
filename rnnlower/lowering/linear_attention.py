"""LinearAttention-27 in primitive operators: products within chunks of time, a state between chunks.

With ``b`` the sum of the decays from the start of a chunk, ``D[i, j] = exp(b[i] - b[j])`` for ``j <= i``,
and ``S`` the state before the chunk, the ONNX spec's recurrence over a chunk of ``C`` steps is::

    linear, gated        u = v
    delta, gated_delta   u = (I + A)^-1 beta (v - exp(b) k S)
                         A[i, j] = beta[i] (k[i] . k[j]) D[i, j] for j < i
    all                  o = scale (exp(b) q S + ((q k^T) D) u)
                         S' = exp(b[C]) S + (exp(b[C] - b) k)^T u

Every exponent is a sum over a segment, not a difference of two sums from the start: differences lose
all digits next to a decay such as -1e4. A chunk of one step is the recurrence itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.lowering.decays import Decays, emit_constant_mask
from rnnlower.lowering.emitter import Emitter, RuntimeDim
from rnnlower.lowering.strategies.repeating import InitialState, Recurrence, Run, Stepped
from rnnlower.lowering.strategies.unroll import run_unrolled
from rnnlower.lowering.timeseries import Axes, States, TimeSeries
from rnnlower.recurrent.state_operators import AttentionNode

_NOTHING_LEFT = -1e3
"""A decay below which nothing is left of a state in float32; a product of a mask and -inf would be NaN."""

_EVERYTHING = 1e3
"""A decay above which a state overflows in one step."""

_BLOCK = 16
"""Steps of the blocks whose triangular matrices are inverted."""

Results = tuple[ir.Value, ir.Value]
"""The output ``[B, T, H_q * d_v]`` and the state ``[B, H, d_k, d_v]``."""


class Chunks:
    """The chunks of a node: values ``[chunks, rows, steps, width]``, with a row for each head of a batch.

    Args:
        e: The emitter, whose type is the compute type.
        node: The node, the sizes of whose heads are known.
        inputs: Its inputs, in the compute type.
        size: Steps of a chunk, a power of two.
    """

    def __init__(self, e: Emitter, node: AttentionNode, inputs: Mapping[str, ir.Value], size: int) -> None:
        self.e, self.node, self.inputs, self.size = e, node, inputs, size
        query = inputs["query"]
        self.batch: RuntimeDim = e.dim(query, 0) if node.batch is None else node.batch
        self.steps: RuntimeDim = e.dim(query, 1) if node.steps is None else node.steps
        outer = max(node.query_heads, node.heads)
        self.group, self.decays = outer // node.heads, node.key_size if node.decay_per_key else 1
        self.query = self._repeat(query, node.query_heads, outer)
        self.key = self._repeat(inputs["key"], node.key_heads, node.heads)
        self.rows = e.dim_arithmetic("Mul", self.batch, node.heads)
        # No steps are one chunk, too, of steps that change nothing.
        after = e.dim_arithmetic("Add", self.steps, 1)
        some = e.dim_arithmetic("Add", self.steps, e.dim_arithmetic("Div", 1, after))
        self.count = e.dim_arithmetic("Div", e.dim_arithmetic("Add", some, size - 1), size)
        self.total = e.dim_arithmetic("Mul", self.count, size)
        self._lines = e.dim_arithmetic("Mul", self.count, self.rows)

    def emit(self, run: Run | None) -> Results:
        """Emit the node.

        With a strategy that takes the state from chunk to chunk; ``None``: with one triangular product, which
        the rules without delta allow.
        """
        e, n = self.e, self.node
        decay, rate = self.inputs.get("decay"), self.inputs.get("beta")
        query = self._split(e.op("Mul", self.query, e.scalar(n.scale)), n.key_size, self.group)
        key = self._split(self.key, n.key_size)
        update = self._split(self.inputs["value"], n.value_size)
        decays = None
        if decay is not None:
            kept = e.clip(decay, _NOTHING_LEFT, _EVERYTHING)
            decays = Decays(e, self._split(kept, self.decays), self.size)
        beta = None if rate is None else self._beta(rate)
        scaled = None if beta is None else e.op("Mul", key, beta)
        pairs, overlap = self._pairs(query, scaled, key, decays)
        from_state = None
        if beta is not None and scaled is not None:
            known = e.op("Mul", update, beta)
            read = scaled if decays is None else e.op("Mul", scaled, decays.since_start())
            update, from_state = self._solve(overlap, [known, read])
        to_end = e.transpose(
            _emit_scaled(e, key, None if decays is None else decays.until_end()), [0, 1, 3, 2]
        )
        total = None if decays is None else decays.total()
        query = _emit_scaled(e, query, None if decays is None else decays.since_start(self.group))
        if run is None:
            assert from_state is None
            before, after = self._triangular(to_end, update, total)
            output = e.op("MatMul", query, before)
        else:
            output, update, after = self._one_by_one(run, to_end, update, from_state, query, total)
        output = e.op("Add", output, e.op("MatMul", pairs, update))
        state = e.reshape(after, [self.batch, n.heads, n.key_size, n.value_size])
        return self._join(output), state

    # Layout.

    def _repeat(self, value: ir.Value, own: int, heads: int) -> ir.Value:
        """Return ``[B, T, heads * d_k]`` with each head several times, next to each other."""
        e, width = self.e, self.node.key_size
        if own == heads:
            return value
        parted = e.reshape(value, [self.batch, self.steps, own, 1, width])
        ones = e.constant(np.ones((heads // own, 1), e.dtype.numpy()))
        return e.reshape(e.op("Mul", parted, ones), [self.batch, self.steps, heads * width])

    def _split(self, value: ir.Value, width: int, group: int = 1) -> ir.Value:
        """Pad ``[B, T, H * group * width]``; return ``[chunks, rows, size * group, width]``."""
        e, n = self.e, self.node
        missing = e.dim_arithmetic("Sub", self.total, self.steps)
        if missing != 0:
            value = e.concat([value, e.zeros([self.batch, missing, n.heads * group * width])], 1)
        several = e.dim_arithmetic("Mul", self.batch, self.count)
        value = e.reshape(value, [several, self.size, n.heads, group * width])
        value = e.transpose(value, [0, 2, 1, 3])
        if self.batch != 1:
            value = e.reshape(value, [self.batch, self.count, n.heads, self.size * group * width])
            value = e.transpose(value, [1, 0, 2, 3])
        return e.reshape(value, [self.count, self.rows, self.size * group, width])

    def _join(self, value: ir.Value) -> ir.Value:
        """Return ``[B, T, H * group * d_v]`` of ``[chunks, rows, size * group, d_v]``."""
        e, n = self.e, self.node
        width = self.group * n.value_size
        if self.batch != 1:
            value = e.reshape(value, [self.count, self.batch, n.heads, self.size * width])
            value = e.transpose(value, [1, 0, 2, 3])
        several = e.dim_arithmetic("Mul", self.batch, self.count)
        value = e.transpose(e.reshape(value, [several, n.heads, self.size, width]), [0, 2, 1, 3])
        value = e.reshape(value, [self.batch, self.total, n.heads * width])
        if isinstance(self.total, int) and self.total == self.steps:
            return value
        return e.slice(value, [0], [self.steps], [1])

    def _beta(self, beta: ir.Value) -> ir.Value:
        if not self.node.beta_per_head:
            beta = self.e.op("Mul", beta, emit_constant_mask(self.e, np.ones((1, 1, self.node.heads))))
        return self._split(beta, 1)

    # Within a chunk.

    def _pairs(
        self, query: ir.Value, scaled: ir.Value | None, key: ir.Value, decays: Decays | None
    ) -> tuple[ir.Value, ir.Value | None]:
        """Return the decayed products of queries, and of scaled keys, with the keys of the steps before.

        Those of a scaled key with the keys of its own step and later ones may be anything.
        """
        e, group = self.e, self.group
        if decays is not None and self.node.decay_per_key:
            return self._pairs_per_key(query, scaled, key, decays)
        keys = e.transpose(key, [0, 1, 3, 2])
        pairs = _emit_scaled(
            e, e.op("MatMul", query, keys), None if decays is None else decays.between(group)
        )
        pairs = e.op("Mul", pairs, emit_constant_mask(e, np.repeat(np.tri(self.size), group, axis=0)))
        if scaled is None:
            return pairs, None
        return pairs, _emit_scaled(
            e, e.op("MatMul", scaled, keys), None if decays is None else decays.between()
        )

    def _pairs_per_key(
        self, query: ir.Value, scaled: ir.Value | None, key: ir.Value, decays: Decays
    ) -> tuple[ir.Value, ir.Value | None]:
        e, n, size, lines = self.e, self.node, self.size, self._lines
        group, keys, width = self.group, n.key_size, size * n.key_size
        if group > 1:
            query = e.transpose(e.reshape(query, [lines, size, group, keys]), [0, 2, 1, 3])
        query, key = e.reshape(query, [lines, group, size, keys]), e.reshape(key, [lines, 1, size, keys])
        own = e.with_axes("ReduceSum", e.op("Mul", query, key), [3], keepdims=1)
        pairs = e.op("Mul", own, emit_constant_mask(e, np.eye(size)))
        overlap = None
        if size > 1:
            factors, masks = decays.halves()
            levels, rows = len(masks), group * size
            left = [e.reshape(query, [lines, 1, group, width])]
            if scaled is not None:
                left.append(e.reshape(scaled, [lines, 1, 1, width]))
                rows += size
            factors = e.reshape(factors, [lines, levels, 1, width])
            decayed = e.reshape(e.op("Mul", e.concat(left, 2), factors), [lines, levels, rows, keys])
            right = e.op("Mul", e.reshape(key, [lines, 1, 1, width]), factors)
            right = e.transpose(e.reshape(right, [lines, levels, size, keys]), [0, 1, 3, 2])
            product = e.op("MatMul", decayed, right)
            product = e.op("Mul", product, emit_constant_mask(e, np.tile(masks, (1, rows // size, 1))))
            total = e.with_axes("ReduceSum", product, [1], keepdims=0)
            earlier, *rest = e.split(total, [group * size, rows - group * size][: len(left)], 1)
            overlap = e.reshape(rest[0], [self.count, self.rows, size, size]) if rest else None
            pairs = e.op("Add", pairs, e.reshape(earlier, [lines, group, size, size]))
        if group > 1:
            pairs = e.transpose(pairs, [0, 2, 1, 3])
        return e.reshape(pairs, [self.count, self.rows, size * group, size]), overlap

    def _solve(self, lower: ir.Value | None, right: Sequence[ir.Value]) -> list[ir.Value]:
        """Return the solutions of ``(I + lower) x = right`` of a strictly lower triangular matrix.

        The blocks on the diagonal are inverted; forward substitution goes from block to block.
        """
        e, size = self.e, self.size
        if lower is None:
            return [*right]
        if size <= _BLOCK or size % _BLOCK:
            inverse = self._inverse(lower, size)
            return [each if inverse is None else e.op("MatMul", inverse, each) for each in right]
        count = size // _BLOCK
        starts = range(0, size, _BLOCK)
        diagonal = [e.slice(lower, [at, at], [at + _BLOCK] * 2, [2, 3]) for at in starts]
        blocks = e.reshape(e.concat(diagonal, 2), [self._lines, count, _BLOCK, _BLOCK])
        inverse = self._inverse(blocks, _BLOCK)
        assert inverse is not None
        inverse = e.reshape(inverse, [self.count, self.rows, size, _BLOCK])
        inverses = e.split_evenly(inverse, count, 2, _BLOCK)
        left = [e.slice(lower, [at, 0], [at + _BLOCK, at], [2, 3]) for at in starts[1:]]
        found = []
        for each in right:
            solved: list[ir.Value] = []
            for number, part in enumerate(e.split_evenly(each, count, 2, _BLOCK)):
                rest = part
                if solved:
                    rest = e.op("Sub", part, e.op("MatMul", left[number - 1], e.concat(solved, 2)))
                solved.append(e.op("MatMul", inverses[number], rest))
            found.append(e.concat(solved, 2))
        return found

    def _inverse(self, lower: ir.Value, size: int) -> ir.Value | None:
        """Return the inverse of ``I + lower`` of a strictly lower triangular matrix; ``None`` is I.

        Blocks are inverted, then blocks of twice the size: the series of powers overflows if keys are alike.
        """
        e, inverse, width = self.e, None, 1
        while width < size:
            numbers = np.arange(size) // width
            mask = (numbers[:, None] == numbers[None] + 1) & (numbers[:, None] % 2 == 1)
            block = e.op("Mul", lower, emit_constant_mask(e, mask))
            if inverse is None:
                inverse = e.op("Sub", emit_constant_mask(e, np.eye(size)), block)
            else:
                change = e.op("MatMul", inverse, e.op("MatMul", block, inverse))
                inverse = e.op("Sub", inverse, change)
            width *= 2
        return inverse

    # Between chunks.

    def _one_by_one(
        self,
        run: Run,
        to_end: ir.Value,
        update: ir.Value,
        from_state: ir.Value | None,
        query: ir.Value,
        total: ir.Value | None,
    ) -> tuple[ir.Value, ir.Value, ir.Value]:
        """Return what each query reads of the state, what each step adds, and the last state."""
        e, n, size, rows = self.e, self.node, self.size, self.rows
        keys, values, queries = n.key_size, n.value_size, size * self.group
        factor = None if total is None else e.op("Exp", total)
        if factor is not None:
            factor = e.reshape(factor, [self.count, rows, self.decays, 1])
        given = {"k": to_end, "u": update, "q": query, "w": from_state, "g": factor}
        shapes = {"k": (keys, size), "u": (size, values), "q": (queries, keys), "w": (size, keys)}
        shapes["g"] = (self.decays, 1)
        axes = Axes(self.count, rows)
        inputs = {
            name: TimeSeries(e, axes, shapes[name], stacked=value, name=name)
            for name, value in given.items()
            if value is not None
        }

        def step(b: Emitter, parts: Sequence[ir.Value], states: States, number: int | None) -> Stepped:
            part = dict(zip(inputs, parts, strict=True))
            (state,) = states
            added = part["u"]
            if state is None:
                new = b.op("MatMul", part["k"], added)
                read = b.zeros([rows, queries, values])
            else:
                read = b.op("MatMul", part["q"], state)
                if "w" in part:
                    added = b.op("Sub", added, b.op("MatMul", part["w"], state))
                new = b.op("MatMul", part["k"], added)
                new = b.op("Add", b.op("Mul", state, part["g"]) if "g" in part else state, new)
            return [new], [read, *([added] if from_state is not None else [])]

        past = self.inputs.get("past_state")
        initial = None if past is None else e.reshape(past, [rows, keys, values])
        widths = [(queries, values), *([(size, values)] if from_state is not None else [])]
        recurrence = Recurrence(
            axes,
            list(inputs.values()),
            [InitialState(initial, (keys, values))],
            step,
            widths,
            [False] * len(widths),
        )
        results = (run_unrolled if self.count == 1 else run)(e, recurrence)
        read, *added = (series.stacked() for series in results.outputs)
        return read, added[0] if added else update, results.states[0]

    def _triangular(
        self, to_end: ir.Value, update: ir.Value, total: ir.Value | None
    ) -> tuple[ir.Value, ir.Value]:
        """Return the state before each chunk and after the last: sums of the decayed changes before it."""
        e, n, rows = self.e, self.node, self.rows
        shape = [n.key_size, n.value_size]
        given = self.inputs.get("past_state")
        past = e.zeros([1, rows, *shape]) if given is None else e.reshape(given, [1, rows, *shape])
        changes = e.concat([past, e.op("MatMul", to_end, update)], 0)
        count = e.dim_arithmetic("Add", self.count, 1)
        if total is None:
            one = e.dim_arithmetic("Mul", rows, n.key_size * n.value_size)
            states = e.op("MatMul", _causal_mask(e, count, count, 0), e.reshape(changes, [count, one]))
        else:
            # [rows, decays, chunks, 1] and [rows, decays, chunks + 1, d_k / decays * d_v].
            decay = e.transpose(e.reshape(total, [self.count, rows, self.decays, 1]), [1, 2, 0, 3])
            wide = n.key_size // self.decays * n.value_size
            changes = e.transpose(e.reshape(changes, [count, rows, self.decays, wide]), [1, 2, 0, 3])
            since = e.op(
                "MatMul",
                _causal_mask(e, count, self.count, 1),
                e.op("Mul", decay, _causal_mask(e, self.count, count, 0)),
            )
            factor = e.op("Mul", e.op("Exp", since), _causal_mask(e, count, count, 0))
            states = e.transpose(e.op("MatMul", factor, changes), [2, 0, 1, 3])
        states = e.reshape(states, [count, rows, *shape])
        return e.slice(states, [0], [self.count], [0]), e.slice(states, [self.count], [count], [0])


def _causal_mask(e: Emitter, rows: RuntimeDim, columns: RuntimeDim, distance: int) -> ir.Value:
    """Emit 1 where the column's number is at least `distance`, 0 or 1, below the row's, else 0."""
    if isinstance(rows, int) and isinstance(columns, int):
        return emit_constant_mask(e, np.tri(rows, columns, -distance))
    row, column = e.arange(rows), e.arange(columns)
    row = e.reshape(row, [rows, 1])
    held = e.op("Less", column, row, since=9) if distance else e.op("Not", e.op("Less", row, column, since=9))
    return e.cast(held, e.dtype)


def _emit_scaled(e: Emitter, value: ir.Value, factor: ir.Value | None) -> ir.Value:
    return value if factor is None else e.op("Mul", value, factor)
