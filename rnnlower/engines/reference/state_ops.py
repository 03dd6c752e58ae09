"""LinearAttention and CausalConvWithState as operators for ``onnx.reference.ReferenceEvaluator``.

Written from the ONNX spec (version 27 of both) and com.microsoft's version 1, which is wider: keys and
queries may have fewer heads than values, each shared by heads next to each other; inputs that the rule does
not read are ignored; a convolution may be dilated and have its channels last. Both compute in float64, one
step at a time, and round at the end. Sequences and batches may be empty.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import NodeProto
from onnx.reference.op_run import OpRun

from rnnlower.engines.reference.activation_functions import Array
from rnnlower.errors import InvalidModelError, UnsupportedModelError

_ATTRIBUTES = {
    "LinearAttention": {"chunk_size", "kv_num_heads", "q_num_heads", "scale", "update_rule"},
    "CausalConvWithState": {"activation", "channels_last", "dilation"},
}
_UNUSED = {"state_channels_last": -1, "ndim": 1}


class _StateOp(OpRun):  # type: ignore[misc,unused-ignore]
    """The common part of both operators: which attributes they have."""

    # The attributes of com.microsoft's operators have no schema to check them by.
    op_schema = None

    def __init__(self, onnx_node: NodeProto, run_params: dict[str, Any], schema: Any = None) -> None:
        self.where = f"{onnx_node.op_type} node {onnx_node.name or ', '.join(onnx_node.output)!r}"
        for attribute in onnx_node.attribute:
            if attribute.name in _ATTRIBUTES[onnx_node.op_type]:
                continue
            if attribute.i != _UNUSED.get(attribute.name, 0) or attribute.type != attribute.INT:
                raise UnsupportedModelError(f"{self.where}: attribute {attribute.name!r} is not supported")
        super().__init__(onnx_node, run_params, schema)


class LinearAttention(_StateOp):
    """LinearAttention-27, and com.microsoft's LinearAttention-1."""

    def _run(
        self, query: Array, key: Array, value: Array, *optional: Array | None, **attributes: Any
    ) -> tuple[Any, ...]:
        past, decay, beta = (*optional, None, None, None)[:3]
        rule = attributes.get("update_rule") or "gated_delta"
        queries, heads = attributes["q_num_heads"], attributes["kv_num_heads"]
        rows, steps = query.shape[:2]
        size, value_size = query.shape[2] // queries, value.shape[2] // heads
        wide = (rows, steps, max(queries, heads), size)
        q = self._heads(query, size, wide[2]) * (attributes.get("scale") or 1 / np.sqrt(size))
        k = self._heads(key, size, heads)
        v = self._heads(value, value_size, heads)
        g = b = np.zeros((rows, steps, heads, 1))
        if "gated" in rule:
            decay = self._given("decay", decay)
            g = decay.astype(np.float64).reshape(rows, steps, heads, decay.shape[2] // heads)
        if "delta" in rule:
            b = np.broadcast_to(self._given("beta", beta).astype(np.float64), (rows, steps, heads))[..., None]
        state = np.zeros((rows, heads, size, value_size)) if past is None else past.astype(np.float64)
        output = np.zeros((rows, steps, wide[2], value_size))
        for t in range(steps):
            state = np.exp(g[:, t])[..., None] * state
            new = v[:, t]
            if "delta" in rule:
                new = b[:, t] * (new - np.einsum("nhkv,nhk->nhv", state, k[:, t]))
            state = state + np.einsum("nhk,nhv->nhkv", k[:, t], new)
            read = np.repeat(state, wide[2] // heads, axis=1)
            output[:, t] = np.einsum("nhk,nhkv->nhv", q[:, t], read)
        present = state.astype(query.dtype if past is None else past.dtype)
        return output.reshape(rows, steps, wide[2] * value_size).astype(query.dtype), present

    def _given(self, name: str, value: Array | None) -> Array:
        if value is None:
            raise InvalidModelError(f"{self.where}: its update_rule needs input {name}")
        return value

    @staticmethod
    def _heads(packed: Array, size: int, heads: int) -> Array:
        """Return ``[batch, steps, heads, size]``; fewer heads are each repeated."""
        rows, steps, width = packed.shape
        parted = packed.astype(np.float64).reshape(rows, steps, width // size, size)
        return np.repeat(parted, heads // (width // size), axis=2)


class CausalConvWithState(_StateOp):
    """CausalConvWithState-27, and com.microsoft's CausalConvWithState-1."""

    def _run(
        self, signal: Array, weight: Array, *optional: Array | None, **attributes: Any
    ) -> tuple[Any, ...]:
        bias, past = (*optional, None, None)[:2]
        last, dilation = attributes.get("channels_last"), attributes.get("dilation") or 1
        if signal.ndim != 3:
            raise UnsupportedModelError(f"{self.where}: only inputs of rank 3 are supported")
        x = np.swapaxes(signal, 1, 2) if last else signal
        rows, channels, steps = x.shape
        width = weight.shape[2]
        before = np.zeros((rows, channels, (width - 1) * dilation), x.dtype)
        if past is not None:
            before = np.swapaxes(past, 1, 2) if last else past
        whole = np.concatenate([before, x], axis=2).astype(np.float64)
        output = np.zeros((rows, channels, steps))
        for tap in range(width):
            start = tap * dilation
            output += whole[:, :, start : start + steps] * weight[:, 0, tap, None].astype(np.float64)
        if bias is not None:
            output += bias[:, None].astype(np.float64)
        if attributes.get("activation", "none") in ("silu", "swish"):
            output /= 1 + np.exp(-output)
        state = whole[:, :, steps:]
        if last:
            output, state = np.swapaxes(output, 1, 2), np.swapaxes(state, 1, 2)
        return tuple(np.ascontiguousarray(each.astype(signal.dtype)) for each in (output, state))


STATE_OPS: tuple[type[_StateOp], ...] = (LinearAttention, CausalConvWithState)
