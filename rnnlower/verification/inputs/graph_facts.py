"""Collection of facts about a graph: requirements of its inputs, its recurrent nodes, its thresholds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.shape_inference import InferenceError, infer_shapes

from rnnlower.errors import InvalidModelError
from rnnlower.files.metadata import PadMetadata
from rnnlower.graph.inference import infer_guarded
from rnnlower.verification.inputs.tracing import Tracer
from rnnlower.verification.inputs.uses import RECURRENT, Dims, GraphFacts, dims_of, unnamed_dim
from rnnlower.verification.models import default_opset, drop_large_weights, graphs_in, op_types

# Larger numbers stand for the end of a type's range.
_MAX_THRESHOLD = 1e8
_BENDING_ATTRIBUTES = ("clip", "activation_alpha", "activation_beta", "alpha", "min", "max")
_COMPARING = ("Clip", "Greater", "Less", "GreaterOrEqual", "LessOrEqual", "Where", "Max", "Min")
_MOVING = ("Cast", "CastLike", "Expand", "Identity", "Reshape", "Squeeze", "Unsqueeze")
_FLOATS = (onnx.TensorProto.FLOAT, onnx.TensorProto.FLOAT16, onnx.TensorProto.DOUBLE)
_RANDOM = ("Random", "Bernoulli", "Multinomial")
"""The prefixes of the names of random operators."""
_POOLING = ("AveragePool", "LpPool", "MaxPool")


def gather_facts(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int] | Sequence[str]] | None = None
) -> GraphFacts:
    """Collect facts about ``model``; ``shapes`` replaces the shapes of its inputs by sizes or names."""
    facts = Tracer(_infer_shapes(model, shapes)).facts
    facts.random_outputs = _random_outputs(model)
    facts.threshold = largest_threshold(model)
    if not op_types(model).isdisjoint(_POOLING):
        facts.has_narrow_pooling = partial(_has_narrow_pooling, model)
    padding = PadMetadata.read({entry.key: entry.value for entry in model.metadata_props})
    if padding is not None:
        facts.padded = {
            given: (padding.least[name], padding.max[name]) for name, given in padding.lengths.items()
        }
    return facts


def _infer_shapes(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int] | Sequence[str]] | None
) -> onnx.ModelProto:
    """Return a copy without large weights and with the shapes that follow from those of the inputs."""
    inferred = drop_large_weights(model)
    _forget_negative_sizes(inferred)
    for value in inferred.graph.input:
        if shapes and value.name in shapes:
            del value.type.tensor_type.shape.dim[:]
            for size in shapes[value.name]:
                named = isinstance(size, str)
                value.type.tensor_type.shape.dim.add(**{"dim_param" if named else "dim_value": size})
        _name_dims(value)
    if shapes:
        _forget_shapes(inferred.graph)
    # Shape inference is optional: without it, fewer limits are known.
    # An abort is the model's fault, unless the sizes are only tried.
    help_only = (InferenceError, ValueError, RuntimeError, *((InvalidModelError,) if shapes else ()))
    with suppress(*help_only):
        inferred = infer_guarded(op_types(model), partial(infer_shapes, data_prop=True), inferred)
    return inferred


def _has_narrow_pooling(model: onnx.ModelProto, shapes: Mapping[str, Sequence[int]]) -> bool:
    """Return whether a pooling window is larger than what it pools if the inputs have ``shapes``.

    The ONNX spec rounds the number of windows down, to none. onnxruntime rounds it toward zero: a window of 2
    over one element gives one element at a stride of 2. Other runtimes give none or refuse the size.
    """
    dims = dict[str, Dims | None]()
    for graph in graphs_in(_infer_shapes(model, shapes).graph):
        dims |= {value.name: dims_of(value) for value in (*graph.input, *graph.value_info)}
        for node in (each for each in graph.node if each.op_type in _POOLING and not each.domain):
            if any(size < window for window, size in _windows(node, (dims.get(node.input[0]) or ())[2:])):
                return True
    return False


def _windows(node: onnx.NodeProto, sizes: Dims) -> Iterator[tuple[int, int]]:
    """Yield the extent of a pooling node's window and the padded size of X, by axis, where known."""
    attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
    if attributes.get("auto_pad", b"").startswith(b"SAME"):
        return
    kernel, rank = attributes["kernel_shape"], len(sizes)
    pads = attributes.get("pads", [0] * 2 * rank)
    strides, dilations = (attributes.get(name, [1] * rank) for name in ("strides", "dilations"))
    for axis, size in enumerate(sizes):
        # The last window may be incomplete if the number of windows is rounded up.
        lacking = strides[axis] - 1 if attributes.get("ceil_mode") else 0
        if isinstance(size, int):
            extent = (kernel[axis] - 1) * dilations[axis] + 1
            yield extent - lacking, size + pads[axis] + pads[axis + rank]


def gather_recurrent_facts(model: onnx.ModelProto) -> GraphFacts:
    """Collect facts if the model has recurrent nodes: a large graph without any costs nothing."""
    return GraphFacts() if op_types(model).isdisjoint(RECURRENT) else gather_facts(model)


def _name_dims(value: onnx.ValueInfoProto) -> None:
    """Name the nameless dimensions of an input, so that shape inference shows where they reappear."""
    dims = dims_of(value) or ()
    for axis, (dim, proto) in enumerate(zip(dims, value.type.tensor_type.shape.dim, strict=False)):
        if dim is None:
            proto.dim_param = unnamed_dim(value.name, axis)


def _forget_shapes(main: onnx.GraphProto) -> None:
    """Drop recorded shapes, which may be those of other input shapes."""
    for graph in graphs_in(main):
        del graph.value_info[:]
        for output in graph.output:
            output.type.tensor_type.ClearField("shape")


def _forget_negative_sizes(model: onnx.ModelProto) -> None:
    """Replace the size -1 by unknown: onnx's shape inference aborts the process on it."""
    for graph in graphs_in(model.graph, *model.functions):
        ends = () if isinstance(graph, onnx.FunctionProto) else (*graph.input, *graph.output)
        for value in (*graph.value_info, *ends):
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_value < 0:
                    dim.ClearField("dim_value")


def largest_threshold(model: onnx.ModelProto) -> float:
    """Return the largest magnitude at which the model clips, bends, or compares with a constant.

    Covering the model's behavior needs larger inputs.
    """
    found = [0.0]
    constants: dict[str, float] = {}
    functions = {(function.domain, function.name) for function in model.functions}
    for graph in graphs_in(model.graph, *model.functions):
        is_function = isinstance(graph, onnx.FunctionProto)
        for tensor in () if is_function else graph.initializer:
            _record_scalar(tensor.name, tensor, constants)
        # Any number that a function is given may be a threshold in it.
        found += _floats_in(graph.attribute_proto) if is_function else []
        for node in graph.node:
            _record_node(node, constants)
            found += _floats_in(node.attribute) if (node.domain, node.op_type) in functions else []
            found += _breakpoints(node)
            if node.op_type in _COMPARING:
                found += [constants[name] for name in node.input if name in constants]
    return max(value for value in map(abs, found) if math.isfinite(value) and value <= _MAX_THRESHOLD)


def _floats_in(attributes: Iterable[onnx.AttributeProto]) -> list[float]:
    return [value for attribute in attributes for value in (attribute.f, *attribute.floats)]


def _record_node(node: onnx.NodeProto, constants: dict[str, float]) -> None:
    """Record the scalar that a Constant holds, or that a node moves or converts."""
    if node.op_type in _MOVING and node.input and node.input[0] in constants:
        constants[node.output[0]] = constants[node.input[0]]
    for attribute in node.attribute if node.op_type == "Constant" else ():
        if attribute.HasField("t"):
            _record_scalar(node.output[0], attribute.t, constants)
        elif attribute.name == "value_float" or len(attribute.floats) == 1:
            constants[node.output[0]] = max(_floats_in([attribute]), key=abs)


def _record_scalar(name: str, tensor: onnx.TensorProto, constants: dict[str, float]) -> None:
    stored = tensor.data_location != onnx.TensorProto.EXTERNAL
    if stored and tensor.data_type in _FLOATS and math.prod(tensor.dims) == 1:
        constants[name] = float(np.ravel(numpy_helper.to_array(tensor))[0])


def _breakpoints(node: onnx.NodeProto) -> Iterable[float]:
    """Return the breakpoints of a node's activations that its attributes determine."""
    values = _floats_in(a for a in node.attribute if a.name in _BENDING_ATTRIBUTES)
    names = [s for a in node.attribute if a.name == "activations" for s in a.strings]
    if node.op_type == "HardSigmoid" or any(name.lower() == b"hardsigmoid" for name in names):
        # alpha x + beta bends at 0 and 1.
        values += [2 / v for v in values if v]
    return values


def _random_outputs(model: onnx.ModelProto) -> set[str]:
    """Return the graph outputs whose values are random or undefined, and cannot be compared."""
    opset = default_opset(model.opset_import)
    functions = {(f.domain, f.name, f.overload): f for f in model.functions}
    random: set[str] = set()

    def draws(node: onnx.NodeProto) -> bool:
        if node.op_type.startswith(_RANDOM):
            return True
        if node.op_type == "Dropout":
            tests = any(a.name == "is_test" and a.i for a in node.attribute)
            return (opset < 7 and not tests) or (len(node.input) > 2 and bool(node.input[2]))
        function = functions.get((node.domain, node.op_type, node.overload))
        inner = [*(function.node if function else ()), *(n for a in node.attribute for n in a.g.node)]
        return any(draws(n) or any(name in random for name in n.input) for n in inner)

    for node in model.graph.node:
        if any(name in random for name in node.input) or draws(node):
            random.update(name for name in node.output if name)
        if node.op_type == "BatchNormalization" and opset < 14:
            # saved_mean and saved_var: "to speed up gradient computation", in any form that does so.
            random.update(name for name in node.output[3:] if name)
    return {o.name for o in model.graph.output if o.name in random}
