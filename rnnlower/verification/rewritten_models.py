"""Models rewritten for a comparison: as the user asks to read them, in another float type, or rounded.

`dequantize`: DynamicQuantizeLSTM is LSTM with the dequantized weights.
`assume_linear_before_reset`: every GRU has linear_before_reset=1.
In float64, neither rounding nor range matters much; in float16 both do.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from copy import deepcopy
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from rnnlower.engines.session import Array
from rnnlower.verification.inputs.uses import QUANTIZED_LSTM, RECURRENT
from rnnlower.verification.models import FLOATS, Graph, HeldModel, graphs_in, nodes_in

_OF_LSTM = 8
_INTEGER_PRODUCTS = {"MatMulInteger": ("MatMul", 0), "ConvInteger": ("Conv", 1)}
"""The products of floats, and the factor whose rows or channels, not columns, have zero points."""


def as_read(
    model: HeldModel, *, dequantize: bool | Collection[str], assume_linear_before_reset: bool
) -> HeldModel:
    """Return the model with these meanings written down, or itself if there are none.

    `dequantize` may be outputs of the nodes that it applies to.
    """
    if not (dequantize or assume_linear_before_reset):
        return model

    def read(node: NodeProto) -> Iterable[NodeProto]:
        if node.op_type == QUANTIZED_LSTM and (
            any(name in dequantize for name in node.output if name)
            if isinstance(dequantize, Collection)
            else dequantize
        ):
            return _dequantized(node)
        if assume_linear_before_reset and node.op_type == "GRU" and node.domain in ("", "ai.onnx"):
            kept = [attribute for attribute in node.attribute if attribute.name != "linear_before_reset"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("linear_before_reset", 1)])
        return [node]

    proto = deepcopy(model.with_data())
    _rewrite([proto.graph, *proto.functions], read)
    return model.changed(proto)


def _rewrite(graphs: Iterable[Graph], read: Callable[[NodeProto], Iterable[NodeProto]]) -> None:
    """Replace each node of the graphs, and of their subgraphs first, by those that it is read as."""
    for graph in reversed([*graphs_in(*graphs)]):
        nodes = [copy for node in graph.node for copy in read(node)]
        copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)


def _dequantized(node: NodeProto) -> Iterable[NodeProto]:
    """Yield an LSTM, and the nodes that dequantize its W and R."""
    inputs = list(node.input)
    scales = {"W": inputs[8:10], "R": inputs[10:12]}
    label = node.name or next(filter(None, node.output))
    for index, (name, (scale, zero_point)) in enumerate(scales.items(), 1):
        start = f"{label}/{name}"
        shape = helper.make_tensor("shape", TensorProto.INT64, [3], [0, 1, -1])
        yield helper.make_node("Constant", [], [f"{start}/shape"], value=shape)
        yield helper.make_node("Cast", [inputs[index]], [f"{start}/values"], to=TensorProto.FLOAT)
        yield helper.make_node("Cast", [zero_point], [f"{start}/zero"], to=TensorProto.FLOAT)
        yield helper.make_node("Reshape", [f"{start}/zero", f"{start}/shape"], [f"{start}/zeros"])
        yield helper.make_node("Reshape", [scale, f"{start}/shape"], [f"{start}/scales"])
        yield helper.make_node("Sub", [f"{start}/values", f"{start}/zeros"], [f"{start}/centered"])
        yield helper.make_node("Mul", [f"{start}/centered", f"{start}/scales"], [f"{start}/columns"])
        yield helper.make_node("Transpose", [f"{start}/columns"], [f"{start}/float"], perm=[0, 2, 1])
        inputs[index] = f"{start}/float"
    lstm = NodeProto(name=node.name, op_type="LSTM", input=inputs[:_OF_LSTM], output=node.output)
    lstm.attribute.extend(node.attribute)
    yield lstm


def with_float_activations(model: HeldModel) -> HeldModel:
    """Return the model with its weights rounded as they are, but its activations in float32.

    Products of integers become products of floats: what remains is the error of the weights.
    """
    proto = deepcopy(model.with_data())
    _rewrite([proto.graph], lambda node: _dequantized(node) if node.op_type == QUANTIZED_LSTM else [node])
    for graph in [*graphs_in(proto.graph)]:
        del graph.value_info[:]
    rounded = {
        node.output[0]: node.input[0]
        for graph in graphs_in(proto.graph)
        for node in graph.node
        if node.op_type == "QuantizeLinear"
    }
    _rewrite([proto.graph], lambda node: _in_floats(node, rounded))
    return model.changed(proto)


def _in_floats(node: NodeProto, rounded: Mapping[str, str]) -> Iterable[NodeProto]:
    if node.op_type == "DynamicQuantizeLinear":
        yield helper.make_node("Identity", node.input, node.output[:1])
        for name, value in zip(node.output[1:], (1.0, 0.0), strict=False):
            yield helper.make_node(
                "Constant", [], [name], value=helper.make_tensor("", TensorProto.FLOAT, [], [value])
            )
    elif node.op_type == "DequantizeLinear" and node.input[0] in rounded:
        yield helper.make_node("Identity", [rounded[node.input[0]]], node.output)
    elif node.op_type in _INTEGER_PRODUCTS:
        factors = []
        op_type, by_rows = _INTEGER_PRODUCTS[node.op_type]
        for index, own in enumerate(node.input[:2]):
            factors.append(f"{node.output[0]}/float{index}")
            yield helper.make_node("Cast", [own], [factors[-1]], to=TensorProto.FLOAT)
            if len(node.input) > index + 2 and node.input[index + 2]:
                zero = f"{factors[-1]}/zero"
                yield helper.make_node("Cast", [node.input[index + 2]], [zero], to=TensorProto.FLOAT)
                yield from _centered(factors[-1], zero, of_rows=index == by_rows)
                factors[-1] += "/centered"
        product = helper.make_node(op_type, factors, node.output)
        product.attribute.extend(node.attribute)
        yield product
    else:
        yield node


def _centered(name: str, zero: str, *, of_rows: bool) -> Iterable[NodeProto]:
    """Yield nodes that subtract zero points; those of rows fit once the axes are turned around."""
    end, operands = f"{name}/centered", [name, zero]
    if not of_rows:
        yield helper.make_node("Sub", operands, [end])
        return
    turned = [f"{each}/turned" for each in (*operands, end)]
    for old, new in zip(operands, turned, strict=False):
        yield helper.make_node("Transpose", [old], [new])
    yield helper.make_node("Sub", turned[:2], turned[2:])
    yield helper.make_node("Transpose", turned[2:], [end])


SMALL_FLOATS = {TensorProto.FLOAT16: "float16", TensorProto.BFLOAT16: "bfloat16"}
# onnxruntime.transformers and onnxconverter_common replace smaller numbers by one of these.
_LEAST_OF_CONVERTERS = (2.0**-24, 2.0**-23)
# Attributes by which a node states its output type.
_TYPE_ATTRIBUTES = {"to", "dtype"}


def in_float_type(model: HeldModel, dtype: np.dtype[Any], kinds: Collection[int] = FLOATS) -> HeldModel:
    """Return the model with inputs, weights, constants and casts of these kinds in one float type."""
    other = deepcopy(model.with_data())
    kind = helper.np_dtype_to_tensor_dtype(dtype)
    for graph in graphs_in(other.graph):
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in kinds:
                value.type.tensor_type.elem_type = kind
    for node in nodes_in(other.graph, *other.functions):
        for attribute in node.attribute:
            if attribute.name in _TYPE_ATTRIBUTES and attribute.i in kinds:
                attribute.i = kind

    def cast(array: Array) -> Array:
        with np.errstate(over="ignore"):
            return array.astype(dtype)

    _change_tensors(other, kinds, cast)
    return model.changed(other)


def moved_by_rounding(array: Array, kind: str, rng: np.random.Generator, largest: int | None = None) -> Array:
    """Return floats as far off as rounding to a type may take them.

    The `largest` of integers (by default, of their type) stands for the largest float.

    The small numbers of a type are coarse: an epsilon of 1e-12 is 0 in float16, or what converters make of
    it. It keeps its sign. A whole number that the type has, such as an exponent, is not rounded.
    """
    sizes = np.abs(array.astype(np.float64))
    finite = np.where(np.isfinite(sizes), sizes, 0.0)
    if kind in SMALL_FLOATS.values():
        limits = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
        steps = np.maximum(
            float(limits.eps) * finite, 2 * max(_LEAST_OF_CONVERTERS) if kind == "float16" else 0.0
        )
    else:
        steps = np.full(array.shape, finite.max(initial=0.0) / (largest or np.iinfo(kind).max))
    with np.errstate(over="ignore"):
        moved = (array + rng.uniform(-0.5, 0.5, array.shape) * steps).astype(array.dtype)
    if kind not in SMALL_FLOATS.values():
        return moved
    with np.errstate(over="ignore", invalid="ignore"):
        exact = (array.astype(kind).astype(array.dtype) == array) & (array == np.rint(array))
    return np.where(exact, array, np.copysign(moved, array))


def rounded_as_in(candidate: HeldModel, model: HeldModel, kind: str) -> tuple[HeldModel, Collection[float]]:
    """Return the model with the constants rounded that the candidate has rounded to this type.

    An epsilon that float16 lacks becomes the one that the candidate has. Also return the magnitudes of the
    constants that the candidate has as many times, rounded or not, and of biases of which it has the sum: no
    further rounding moves them.
    """
    theirs = _magnitudes(candidate)

    def rounded(array: Array) -> Array:
        found = array
        with np.errstate(over="ignore"):
            others = [array.astype(kind).astype(array.dtype)]
        if kind == "float16":
            tiny = (array != 0) & (np.abs(array) < max(_LEAST_OF_CONVERTERS))
            least = [np.copysign(np.array(size, array.dtype), array) for size in _LEAST_OF_CONVERTERS]
            others += [np.where(tiny, each, array) for each in least]
        # The last that the candidate has is taken, itself before all.
        for other in (*others, array):
            found = np.where(np.isin(np.abs(other), theirs[0]), other, found)
        return found

    same = _changed(model, rounded)
    ours = _magnitudes(same)
    places = np.searchsorted(theirs[0], ours[0]).clip(max=max(0, len(theirs[0]) - 1))
    found = theirs[0][places] == ours[0] if len(theirs[0]) else np.zeros(len(ours[0]), bool)
    kept = ours[0][found & (theirs[1][places] >= ours[1])] if found.any() else np.zeros(0)
    return same, np.union1d(kept, _biases_added(same, theirs[0]))


def _biases_added(model: HeldModel, magnitudes: Array) -> Array:
    """Return the magnitudes in biases ``[Wb | Rb]`` that are all among these, alone or as a sum of both."""
    found: list[Array] = [np.zeros(0, np.float32)]

    def look(array: Array) -> Array:
        if array.ndim == 2 and array.shape[1] % 2 == 0:
            halves = np.stack(np.split(array.astype(np.float32), 2, axis=1))
            alone = np.isin(np.abs(halves), magnitudes).all(axis=0)
            if (alone | np.isin(np.abs(halves.sum(axis=0)), magnitudes)).all():
                found.append(np.abs(halves).ravel())
        return array

    _changed(model, look)
    return np.concatenate(found)


def largest_weight(model: HeldModel, kind: str) -> int | None:
    """Return 63 if a model's int8 weights use 7 bits, lest products saturate; ``None``: they use all bits."""
    spans = [0]

    def look(array: Array) -> Array:
        values = array.astype(np.int64)
        if array.ndim > 1 and array.size:
            # Only those without a sign have a zero point.
            spans.append(int(np.ptp(values) if array.dtype == np.uint8 else 2 * np.abs(values).max()))
        return array

    _change_tensors(deepcopy(model.with_data()), {TensorProto.INT8, TensorProto.UINT8}, look)
    return 63 if kind == "int8" and 0 < max(spans) <= 128 else None


def moved_weights(
    model: HeldModel, kind: str, seed: int, kept: Any = (), largest: int | None = None
) -> HeldModel:
    """Return the model with its float constants as far off as rounding to a type may take them.

    Those of the magnitudes `kept` stay; for an integer type, biases, and all that have fewer than two axes.
    """
    rng = np.random.default_rng(seed)
    whole = kind not in SMALL_FLOATS.values()
    nodes = nodes_in(model.proto.graph, *model.proto.functions) if whole else ()
    biases = {name for node in nodes if node.op_type in RECURRENT for name in node.input[3:]}

    def move(array: Array) -> Array:
        if whole and array.ndim < 2:
            return array
        return np.where(np.isin(np.abs(array), kept), array, moved_by_rounding(array, kind, rng, largest))

    return _changed(model, move, attributes=not whole, kept=biases)


def _changed(
    model: HeldModel, change: Callable[[Array], Array], attributes: bool = True, kept: Collection[str] = ()
) -> HeldModel:
    """Return the model with its float constants changed: tensors, and `attributes` that may become some."""
    other = deepcopy(model.with_data())
    _change_tensors(other, FLOATS, change, kept)
    # A clip is such a constant, too: lowered, it is a tensor.
    for node in nodes_in(other.graph, *other.functions) if attributes else ():
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.FLOAT:
                attribute.f = float(change(np.array(attribute.f, np.float32)))
            attribute.floats[:] = [float(change(np.array(value, np.float32))) for value in attribute.floats]
    return model.changed(other)


def _magnitudes(model: HeldModel) -> tuple[Array, Array]:
    """Return the magnitudes of the model's float constants, and the number of times it has each."""
    found: list[Array] = [np.zeros(0, np.float32)]

    def look(array: Array) -> Array:
        found.append(np.abs(array).astype(np.float32).ravel())
        return array

    _changed(model, look)
    return np.unique(np.concatenate(found), return_counts=True)


def small_floats(model: onnx.ModelProto) -> set[str]:
    """Return the names of the floats of two bytes that the model computes in."""
    found = {value.type.tensor_type.elem_type for graph in graphs_in(model.graph) for value in graph.input}
    found |= {tensor.data_type for graph in graphs_in(model.graph) for tensor in graph.initializer}
    for node in nodes_in(model.graph, *model.functions):
        for attribute in node.attribute:
            found |= {attribute.t.data_type}
            found |= {attribute.i} if attribute.name in _TYPE_ATTRIBUTES else set()
    return {SMALL_FLOATS[kind] for kind in found if kind in SMALL_FLOATS}


def _change_tensors(
    model: onnx.ModelProto,
    kinds: Collection[int],
    change: Callable[[Array], Array],
    kept: Collection[str] = (),
) -> None:
    """Change the arrays of initializers and constants of these types, but not those of the names `kept`."""

    def change_one(tensor: TensorProto) -> None:
        if tensor.data_type in kinds and tensor.name not in kept:
            tensor.CopyFrom(numpy_helper.from_array(change(numpy_helper.to_array(tensor)), tensor.name))

    for graph in graphs_in(model.graph):
        for tensor in graph.initializer:
            change_one(tensor)
    for node in nodes_in(model.graph, *model.functions):
        for attribute in node.attribute:
            if attribute.HasField("t"):
                change_one(attribute.t)
            elif TensorProto.FLOAT in kinds and attribute.name in ("value_float", "value_floats"):
                given = attribute.f if attribute.name == "value_float" else list(attribute.floats)
                values = change(np.array(given, np.float32))
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(values)))
