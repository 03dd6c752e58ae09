"""Models rewritten for a comparison: reinterpreted by options, in another float type, or rounded.

`dequantize`: DynamicQuantizeLSTM is LSTM with the dequantized weights.
`assume_linear_before_reset`: every GRU has linear_before_reset=1.
A Slice whose bounds are scalars, which onnxruntime refuses, gets vectors of one element.
In float64, neither rounding nor range matters much; in float16 both do.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import NodeProto, TensorProto, helper, numpy_helper

from rnnlower.engines.session import Array
from rnnlower.verification.inputs.uses import QUANTIZED_LSTM, RECURRENT
from rnnlower.verification.models import FLOATS, Graph, ParsedModel, graphs_in, nodes_in

_LSTM_INPUTS = 8
_INTEGER_PRODUCTS = {"MatMulInteger": ("MatMul", 0), "ConvInteger": ("Conv", 1)}
"""The float operator for each, and the index of the factor whose zero points are per row or channel."""


def reinterpret(
    model: ParsedModel, *, dequantize: bool | Collection[str], assume_linear_before_reset: bool
) -> ParsedModel:
    """Return the model with its nodes replaced by what they are read as; itself if there is none to replace.

    `dequantize` may name outputs of the nodes that it applies to.
    """
    scalars = _scalar_bounds([model.proto.graph, *model.proto.functions])
    if not (dequantize or assume_linear_before_reset or scalars):
        return model

    def read(node: NodeProto) -> Iterable[NodeProto]:
        if node.op_type == QUANTIZED_LSTM and (
            any(name in dequantize for name in node.output if name)
            if isinstance(dequantize, Collection)
            else dequantize
        ):
            return _dequantize_lstm(node)
        if assume_linear_before_reset and node.op_type == "GRU" and node.domain in ("", "ai.onnx"):
            kept = [attribute for attribute in node.attribute if attribute.name != "linear_before_reset"]
            del node.attribute[:]
            node.attribute.extend([*kept, helper.make_attribute("linear_before_reset", 1)])
        if node.op_type == "Slice" and node.domain in ("", "ai.onnx"):
            return _make_bounds_vectors(node, scalars)
        return [node]

    proto = deepcopy(model.with_data())
    _rewrite([proto.graph, *proto.functions], read)
    return model.with_proto(proto)


def _scalar_bounds(graphs: Collection[Graph]) -> set[str]:
    """Return the scalar constants that Slices take as bounds, as PyTorch's exporter wrote them."""
    nodes = [*nodes_in(*graphs)]
    initializers = (graph.initializer for graph in graphs_in(*graphs) if isinstance(graph, onnx.GraphProto))
    scalars = {tensor.name for tensor in itertools.chain(*initializers) if not tensor.dims}
    scalars |= {
        node.output[0]
        for node in nodes
        if node.op_type == "Constant"
        for value in node.attribute
        if value.name == "value_int" or (value.name == "value" and not value.t.dims)
    }
    return scalars & {name for node in nodes if node.op_type == "Slice" for name in node.input[1:]}


def _make_bounds_vectors(node: NodeProto, scalars: Collection[str]) -> list[NodeProto]:
    """Return the Slice, after a Reshape of each of its bounds that is a scalar."""
    made = []
    for place, name in enumerate(node.input):
        if place and name in scalars:
            shape, vector = (f"{node.output[0]}_{place}_{what}" for what in ("shape", "vector"))
            # Not to one element: elsewhere, the name may be that of a vector.
            flat = numpy_helper.from_array(np.array([-1], np.int64))
            made += [
                helper.make_node("Constant", [], [shape], value=flat),
                helper.make_node("Reshape", [name, shape], [vector]),
            ]
            node.input[place] = vector
    return [*made, node]


def _rewrite(graphs: Iterable[Graph], read: Callable[[NodeProto], Iterable[NodeProto]]) -> None:
    """Replace each node by the nodes that `read` returns, in subgraphs first."""
    for graph in reversed([*graphs_in(*graphs)]):
        nodes = [copy for node in graph.node for copy in read(node)]
        copies = [NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)


def _dequantize_lstm(node: NodeProto) -> Iterable[NodeProto]:
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
    lstm = NodeProto(name=node.name, op_type="LSTM", input=inputs[:_LSTM_INPUTS], output=node.output)
    lstm.attribute.extend(node.attribute)
    yield lstm


def with_float_activations(model: ParsedModel) -> ParsedModel:
    """Return the model with its rounded weights, but with activations in float32.

    Integer products become float products: only the rounding error of the weights remains.
    """
    proto = deepcopy(model.with_data())
    _rewrite([proto.graph], lambda node: _dequantize_lstm(node) if node.op_type == QUANTIZED_LSTM else [node])
    for graph in [*graphs_in(proto.graph)]:
        del graph.value_info[:]
    rounded = {
        node.output[0]: node.input[0]
        for graph in graphs_in(proto.graph)
        for node in graph.node
        if node.op_type == "QuantizeLinear"
    }
    _rewrite([proto.graph], lambda node: _float_equivalent(node, rounded))
    return model.with_proto(proto)


def _float_equivalent(node: NodeProto, rounded: Mapping[str, str]) -> Iterable[NodeProto]:
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
                yield from _subtract_zero_point(factors[-1], zero, of_rows=index == by_rows)
                factors[-1] += "/centered"
        product = helper.make_node(op_type, factors, node.output)
        product.attribute.extend(node.attribute)
        yield product
    else:
        yield node


def _subtract_zero_point(name: str, zero: str, *, of_rows: bool) -> Iterable[NodeProto]:
    """Yield nodes that subtract zero points; for those of rows, the axes are reversed meanwhile."""
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
# onnxruntime.transformers and onnxconverter_common raise smaller numbers to one of these.
_CONVERTER_MINIMA = (2.0**-24, 2.0**-23)
# Attributes by which a node states its output type.
_TYPE_ATTRIBUTES = {"to", "dtype"}


def convert_floats(model: ParsedModel, dtype: np.dtype[Any], kinds: Collection[int] = FLOATS) -> ParsedModel:
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

    _map_tensors(other, kinds, cast)
    return model.with_proto(other)


def perturb(array: Array, kind: str, rng: np.random.Generator, largest: int | None = None) -> Array:
    """Return floats moved randomly by up to the rounding error of a type.

    For integer types, the largest float maps to `largest`, by default the type's maximum.

    float16 is coarse near zero: an epsilon of 1e-12 becomes 0, or the least number of a converter. Signs are
    kept, and so are whole numbers that the type can represent, such as an exponent.
    """
    sizes = np.abs(array.astype(np.float64))
    finite = np.where(np.isfinite(sizes), sizes, 0.0)
    if kind in SMALL_FLOATS.values():
        limits = ml_dtypes.finfo(kind)  # type: ignore[no-untyped-call]
        steps = np.maximum(
            float(limits.eps) * finite, 2 * max(_CONVERTER_MINIMA) if kind == "float16" else 0.0
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


def round_like(
    candidate: ParsedModel, model: ParsedModel, kind: str
) -> tuple[ParsedModel, Collection[float]]:
    """Return the model with those constants rounded that the candidate has rounded to this type.

    An epsilon too small for float16 becomes the candidate's. Also return the magnitudes of constants that
    the candidate has equally often, rounded or not, and of biases that it has as a sum: they are exact.
    """
    theirs = _count_magnitudes(candidate)

    def rounded(array: Array) -> Array:
        found = array
        with np.errstate(over="ignore"):
            others = [array.astype(kind).astype(array.dtype)]
        if kind == "float16":
            tiny = (array != 0) & (np.abs(array) < max(_CONVERTER_MINIMA))
            smallest = [np.copysign(np.array(size, array.dtype), array) for size in _CONVERTER_MINIMA]
            others += [np.where(tiny, each, array) for each in smallest]
        # The last that the candidate has is taken, itself before all.
        for other in (*others, array):
            found = np.where(np.isin(np.abs(other), theirs[0]), other, found)
        return found

    same = _map_constants(model, rounded)
    ours = _count_magnitudes(same)
    places = np.searchsorted(theirs[0], ours[0]).clip(max=max(0, len(theirs[0]) - 1))
    found = theirs[0][places] == ours[0] if len(theirs[0]) else np.zeros(len(ours[0]), bool)
    kept = ours[0][found & (theirs[1][places] >= ours[1])] if found.any() else np.zeros(0)
    exact, rounded_sums = _shared_biases(same, theirs[0])
    return same, np.setdiff1d(np.union1d(kept, exact), rounded_sums)


def _shared_biases(model: ParsedModel, magnitudes: Array) -> tuple[Array, Array]:
    """Return the magnitudes in biases ``[Wb | Rb]`` whose elements are known, alone or as sums of halves.

    Of other biases, also return the magnitudes whose sums are not known.
    """
    found: tuple[list[Array], list[Array]] = ([np.zeros(0, np.float32)], [np.zeros(0, np.float32)])
    for array in _constants(model):
        if array.ndim == 2 and array.shape[1] % 2 == 0:
            halves = np.stack(np.split(array.astype(np.float32), 2, axis=1))
            alone = np.isin(np.abs(halves), magnitudes).all(axis=0)
            known = alone | np.isin(np.abs(halves.sum(axis=0)), magnitudes)
            found[not known.all()].append(np.abs(halves if known.all() else halves[:, ~known]).ravel())
    return np.concatenate(found[0]), np.concatenate(found[1])


def largest_int8_weight(model: ParsedModel, kind: str) -> int | None:
    """Return 63 if int8 weights use only 7 bits, which avoids saturating products; otherwise ``None``."""
    kinds = {TensorProto.INT8, TensorProto.UINT8}
    weights = [each for each in _constants(model, kinds) if each.ndim > 1 and each.size]
    # Only those without a sign have a zero point.
    spans = [
        int(np.ptp(each) if each.dtype == np.uint8 else 2 * np.abs(each.astype(int)).max())
        for each in weights
    ]
    return 63 if kind == "int8" and 0 < max(spans, default=0) <= 128 else None


def perturb_weights(model: ParsedModel, kind: str, seed: int, kept: Any, largest: int | None) -> ParsedModel:
    """Return the model with its float constants moved by up to the rounding error of a type.

    Constants with magnitudes in `kept` stay; for an integer type, so do biases and constants of rank 0 or 1.
    """
    rng = np.random.default_rng(seed)
    whole = kind not in SMALL_FLOATS.values()
    nodes = nodes_in(model.proto.graph, *model.proto.functions) if whole else ()
    biases = {name for node in nodes if node.op_type in RECURRENT for name in node.input[3:]}

    def move(array: Array) -> Array:
        if whole and array.ndim < 2:
            return array
        return np.where(np.isin(np.abs(array), kept), array, perturb(array, kind, rng, largest))

    return _map_constants(model, move, attributes=not whole, kept=biases)


def _map_constants(
    model: ParsedModel, change: Callable[[Array], Array], attributes: bool = True, kept: Collection[str] = ()
) -> ParsedModel:
    """Apply `change` to the model's float tensors, and with `attributes`, to float attributes."""
    other = deepcopy(model.with_data())
    _map_tensors(other, FLOATS, change, kept)
    # A clip is such a constant, too: lowered, it is a tensor.
    for node in nodes_in(other.graph, *other.functions) if attributes else ():
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.FLOAT:
                attribute.f = float(change(np.array(attribute.f, np.float32)))
            attribute.floats[:] = [float(change(np.array(value, np.float32))) for value in attribute.floats]
    return model.with_proto(other)


def _constants(model: ParsedModel, kinds: Collection[int] = FLOATS) -> Iterator[Array]:
    """Yield the model's tensors of these types, and the numbers of attributes, if they are floats."""
    proto = model.with_data()
    attributes = [each for node in nodes_in(proto.graph, *proto.functions) for each in node.attribute]
    tensors = [tensor for graph in graphs_in(proto.graph) for tensor in graph.initializer]
    tensors += [each.t for each in attributes if each.HasField("t")]
    yield from (numpy_helper.to_array(tensor) for tensor in tensors if tensor.data_type in kinds)
    for each in attributes if kinds is FLOATS else ():
        yield np.array([each.f] if each.type == onnx.AttributeProto.FLOAT else each.floats, np.float32)


def _count_magnitudes(model: ParsedModel) -> tuple[Array, Array]:
    """Return the magnitudes of the model's float constants, and the number of times it has each."""
    found = [np.abs(array).astype(np.float32).ravel() for array in _constants(model)]
    return np.unique(np.concatenate([np.zeros(0, np.float32), *found]), return_counts=True)


def small_floats(model: onnx.ModelProto) -> set[str]:
    """Return the names of the 16-bit float types that the model computes in."""
    found = {value.type.tensor_type.elem_type for graph in graphs_in(model.graph) for value in graph.input}
    found |= {tensor.data_type for graph in graphs_in(model.graph) for tensor in graph.initializer}
    for node in nodes_in(model.graph, *model.functions):
        for attribute in node.attribute:
            found |= {attribute.t.data_type}
            found |= {attribute.i} if attribute.name in _TYPE_ATTRIBUTES else set()
    return {SMALL_FLOATS[kind] for kind in found if kind in SMALL_FLOATS}


def _map_tensors(
    model: onnx.ModelProto,
    kinds: Collection[int],
    change: Callable[[Array], Array],
    kept: Collection[str] = (),
) -> None:
    """Apply `change` to initializers and constants of these types, except those named in `kept`."""

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
            elif attribute.ref_attr_name:
                continue
            elif TensorProto.FLOAT in kinds and attribute.name in ("value_float", "value_floats"):
                values = change(np.array(helper.get_attribute_value(attribute), np.float32))
                attribute.CopyFrom(helper.make_attribute("value", numpy_helper.from_array(values)))
