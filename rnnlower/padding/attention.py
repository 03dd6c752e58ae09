"""Attention as one operator: keys behind the end of their sequence are masked."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from rnnlower.padding.flow import PadFlow, Rule
from rnnlower.padding.ruling import broadcast
from rnnlower.padding.sizes import Axes, NoRuleError

_MASK, _PADDING_MASK, _MASK_INDEX = 3, 4, 3


def _refuse_others(node: ir.Node, first: int, allowed: tuple[int, ...] = ()) -> None:
    given = [index for index, each in enumerate(node.inputs) if each is not None]
    if any(index >= first and index not in allowed for index in given):
        raise NoRuleError("has masks, lengths or earlier keys of its own")


def _attention(flow: PadFlow, node: ir.Node) -> list[Axes]:
    """Mask the keys of the operator of the ONNX spec, which takes three or four axes."""
    query, key = node.inputs[:2]
    rank, axes, of_keys = len(flow.shape(query)), flow.axes_of(query), flow.axes_of(key)
    time = rank - 2
    _refuse_others(node, _MASK + 1)
    if {rank - 1} & {*axes, *of_keys}:
        raise NoRuleError("has features over time")
    if time in of_keys:
        _fill_keys(flow, node, (1, 2), time)
        emitter, dtype = flow.emitter_for(node), flow.dtype(query)
        size = of_keys[time]
        around = {0: of_keys[0], 3: size} if 0 in of_keys else {3: size}
        valid = flow.mask(size, 3, around, 4)
        own = node.inputs[_MASK] if len(node.inputs) > _MASK else None
        if own is not None and flow.dtype(own).kind == "b":
            mask = emitter.op("And", own, valid)
        else:
            none = emitter.constant(np.zeros((flow.shape(query)[time], size.full), dtype))
            lowest = emitter.constant(np.array(-math.inf, dtype))
            mask = emitter.op("Where", valid, none if own is None else own, lowest)
        flow.place(emitter, node)
        if len(node.inputs) <= _MASK:
            node.resize_inputs(_MASK + 1)
        node.replace_input_with(_MASK, mask)
    return [axes]


def _fill_keys(flow: PadFlow, node: ir.Node, indices: tuple[int, ...], time: int) -> None:
    """Fill keys and values, which may be NaN: its product with a weight of zero is."""
    for index in indices:
        if time in flow.axes_of(node.inputs[index]):
            flow.fill(node, index, time, 0.0)


def _by_lengths(keys: tuple[int, ...], lengths: int) -> Rule:
    """Return the rule of an operator of onnxruntime, which takes the number of keys in each row."""

    def rule(flow: PadFlow, node: ir.Node) -> Axes:
        _refuse_others(node, lengths)
        values = [node.inputs[index] for index in (0, *keys)]
        if any(each is None or len(flow.shape(each)) != 3 for each in values):
            raise NoRuleError("has queries, keys and values in one")
        axes, of_keys = flow.axes_of(node.inputs[0]), flow.axes_of(node.inputs[keys[0]])
        if 2 in {*axes, *of_keys}:
            raise NoRuleError("has features over time")
        if 1 in of_keys:
            _fill_keys(flow, node, keys, 1)
            emitter, value = flow.emitter_for(node), values[0]
            assert value is not None
            count = emitter.cast(flow.count(of_keys[1]), ir.DataType.INT32)
            if flow.rows is None:
                rows = emitter.dim(value, 0) if flow.is_open(value, 0) else flow.shape(value)[0]
                count = emitter.op("Expand", count, emitter.size_vector([rows]))
            flow.place(emitter, node)
            node.resize_inputs(max(len(node.inputs), lengths + 1))
            node.replace_input_with(lengths, count)
        return axes

    return rule


def _rotary(flow: PadFlow, node: ir.Node) -> Axes:
    axes = flow.axes_of(node.inputs[0])
    if len(flow.shape(node.inputs[0])) - 1 in axes:
        raise NoRuleError("has features over time")
    return axes


def _skip_norm(flow: PadFlow, node: ir.Node) -> list[Axes]:
    rank = len(flow.shape(node.inputs[0]))
    axes = broadcast(flow, node, [0, 1], rank)
    if rank - 1 in axes or any(map(flow.axes_of, node.inputs[2:])):
        raise NoRuleError("has parameters that differ from step to step")
    return [axes] * len(node.outputs)


def _either(flow: PadFlow, node: ir.Node) -> Axes | list[Axes]:
    """Apply the rule of the domain's Attention."""
    return _by_lengths((0,), _MASK_INDEX)(flow, node) if node.domain else _attention(flow, node)


ATTENTION: dict[str, Rule] = {
    "Attention": _either,
    "MultiHeadAttention": _by_lengths((1, 2), _PADDING_MASK),
    "RotaryEmbedding": _rotary,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
}
