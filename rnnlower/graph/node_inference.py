"""Inference of the types and shapes of a node's outputs from its inputs."""

from __future__ import annotations

import functools
from collections.abc import Container, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import InvalidModelError
from rnnlower.graph.evaluation import DTYPE_KINDS, Array, Dims
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.graph.slicing import keeps_split_axis
from rnnlower.graph.walk import operand, qualified_op_type

Inferred = tuple[ir.TypeProtocol | None, Dims | None]
"""Type and shape of a value; ``None`` for what is not known."""
_INFERENCE_ELEMENTS = 1024
_ABORTS_ON_NEGATIVE = ("GatherND", "Slice")
_LIKE_STANDARD = {
    "com.microsoft.DynamicQuantizeLSTM": ("LSTM", range(8)),
    "com.microsoft.DynamicQuantizeMatMul": ("MatMul", range(2)),
    "com.microsoft.FusedConv": ("Conv", range(3)),
    "com.microsoft.FusedGemm": ("Gemm", range(3)),
    "com.microsoft.FusedMatMul": ("MatMul", range(2)),
    "com.microsoft.MatMulIntegerToFloat": ("MatMul", range(2)),
    "com.microsoft.QLinearAdd": ("Add", (0, 3)),
    "com.microsoft.QLinearMul": ("Mul", (0, 3)),
}
"""Operators with the outputs of a standard one, which reads these inputs only."""
_FUSED = """
    BiasGelu FastGelu Gelu QLinearLeakyRelu QLinearSigmoid QuickGelu RotaryEmbedding SkipLayerNormalization
    SkipSimplifiedLayerNormalization
"""
_LIKE_FIRST_INPUT = {
    *("GroupNormalization", "SimplifiedLayerNormalization"),
    *(f"com.microsoft.{name}" for name in _FUSED.split()),
}
"""Operators that onnx has no inference for, with a first output like the first input."""
_QUANTIZERS = {"com.microsoft.DequantizeLinear": 1, "com.microsoft.QuantizeLinear": 2}
"""Quantizers of more types than those of the opset: the input that has the output's type."""
_DEFAULTS: Mapping[str, Mapping[str, ir.Attr]] = {"STFT": {"onesided": ir.AttrInt64("onesided", 1)}}
"""Default values that onnx's inference gets wrong."""
_NEGATIVE_AXES_SINCE_11 = ("Concat", "Squeeze", "Unsqueeze")
"""Operators whose older versions onnx's inference gets wrong for axes below 0, which runtimes take."""


def may_be_sizes(content: Array | ir.TensorProtocol) -> bool:
    """Return whether the inference of a shape may need this content: it is short, and no weight."""
    dtype = content.dtype if isinstance(content, np.ndarray) else content.dtype.numpy()
    return content.size <= _INFERENCE_ELEMENTS and dtype.kind in DTYPE_KINDS


def infer_outputs(
    node: ir.Node,
    types: Sequence[ir.TypeProtocol | None],
    shapes: Sequence[Dims | None],
    constants: Sequence[Array | None],
    opset_imports: Mapping[str, int],
    ir_version: int,
    *,
    strict: bool = False,
) -> list[Inferred]:
    """Infer type and shape of each output of a node without subgraphs, with onnx's inference.

    Args:
        types, shapes, constants: The known data of each of its inputs; of contents those that `may_be_sizes`.
        strict: Raise an InferenceError where onnx's inference finds a fault; otherwise nothing is known then.

    Raises:
        InvalidModelError: A size below 0 would make onnx's inference abort the process.
    """
    unknown: list[Inferred] = [(None, None) for _ in node.outputs]
    if (first := _first_output(node, types, shapes, constants)) is not None:
        return [first, *unknown[1:]]
    op_type, domain, used = node.op_type, node.domain, [*range(len(node.inputs))]
    if (kind := qualified_op_type(node)) in _LIKE_STANDARD:
        (op_type, read), domain = _LIKE_STANDARD[kind], ""
        used = [index for index in read if index < len(node.inputs)]
        types, shapes = _as_standard(node, op_type, types, shapes)
    version = opset_imports.get(domain)
    if version is None:
        return unknown
    inputs = [(node.inputs[index] is not None, types[index], shapes[index]) for index in used]
    if op_type in _ABORTS_ON_NEGATIVE and any(isinstance(dim, int) and dim < 0 for dim in shapes[0] or ()):
        raise negative_size_error()
    attributes = []
    left_out = {} if domain else _DEFAULTS.get(op_type, {})
    for attribute in {**left_out, **node.attributes}.values():
        if attribute.is_ref() or attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
            return unknown
        attributes.append(ir.serde.serialize_attribute(attribute).SerializeToString())
    if not domain and op_type in _NEGATIVE_AXES_SINCE_11:
        axes = node.attributes.get_int("axis", 0), *node.attributes.get_ints("axes", ())
        version = max(version, 11 if min(axes) < 0 else 1)
    contents = [
        (array.dtype, array.shape, array.tobytes()) if array is not None else None
        for array in (constants[index] for index in used)
    ]
    return [
        *_infer(
            (op_type, domain, version, max(ir_version, FREE_INITIALIZERS_IR)),
            tuple(attributes),
            tuple((*each, content) for each, content in zip(inputs, contents, strict=True)),
            tuple(bool(out.name) for out in node.outputs),
            strict,
        )
    ]


def _first_output(
    node: ir.Node,
    types: Sequence[ir.TypeProtocol | None],
    shapes: Sequence[Dims | None],
    constants: Sequence[Array | None],
) -> Inferred | None:
    """Return type and shape of the first output of an operator that onnx has no inference for, or another."""
    kind = qualified_op_type(node)
    if kind == "SplitToSequence" and shapes[0] is not None and isinstance(types[0], ir.TensorType):
        split = constants[1] if operand(node, 1) is not None else None
        if split is not None and split.size == 1 and split.item() == 1 and not keeps_split_axis(node, split):
            axis = node.attributes.get_int("axis", 0) % len(shapes[0])
            return ir.SequenceType(types[0]), (*shapes[0][:axis], *shapes[0][axis + 1 :])
    if kind in _LIKE_FIRST_INPUT:
        return types[0], shapes[0]
    if (like := _QUANTIZERS.get(kind)) is not None:
        has_type = like < len(node.inputs) and node.inputs[like] is not None
        return types[like] if has_type else ir.TensorType(ir.DataType.UINT8), shapes[0]
    if kind == "com.microsoft.Attention" and shapes[0] and shapes[1]:
        sizes, many = node.attributes.get_ints("qkv_hidden_sizes"), shapes[1][1]
        features = sizes[2] if sizes else many // 3 if isinstance(many, int) else None
        return types[0], (*shapes[0][:-1], features)
    if kind == "com.microsoft.MultiHeadAttention":
        return types[0], _multi_head_shape(node, shapes)
    return None


def _multi_head_shape(node: ir.Node, shapes: Sequence[Dims | None]) -> Dims | None:
    """Return the shape of a MultiHeadAttention's result, which has the features of V or of a packed input."""
    query, source = shapes[0], shapes[0] if operand(node, 2) is None else shapes[2]
    if query is None or source is None:
        return None
    if len(source) < 4:
        return (*query[:2], source[-1])
    # V of four axes has heads, steps and features after the rows; a packed input steps, heads, 3, features.
    heads, size = (source[1], source[3]) if len(source) == 4 else (source[2], source[4])
    return (*query[:2], heads * size if isinstance(heads, int) and isinstance(size, int) else None)


def _as_standard(
    node: ir.Node, op_type: str, types: Sequence[ir.TypeProtocol | None], shapes: Sequence[Dims | None]
) -> tuple[Sequence[ir.TypeProtocol | None], Sequence[Dims | None]]:
    """Return the types and shapes of a node's inputs as the standard operator would have them."""
    if op_type == "LSTM":
        # Its weights have another type and layout; inference reads X and the attributes.
        return [types[0]] * 3 + [*types[3:]], [shapes[0], None, None, *shapes[3:]]
    if op_type != "MatMul":
        return types, shapes
    turned = []
    for side, dims in zip("AB", shapes, strict=False):
        batch, turn = (node.attributes.get_int(f"trans{part}{side}", 0) for part in ("Batch", ""))
        if dims and len(dims) > 2 and batch:
            dims = (*dims[1:-1], dims[0], dims[-1])
        if dims and len(dims) > 1 and turn:
            dims = (*dims[:-2], dims[-1], dims[-2])
        turned.append(dims)
    # The product of integers has the type of their scales.
    return [types[2 if node.op_type == "MatMulIntegerToFloat" else 0]] * 2, turned


def negative_size_error() -> InvalidModelError:
    """Return the error for a size below 0, at which onnx's inference aborts the process."""
    return InvalidModelError(
        "a size in the model falls below 0: a pooling, Split or the like takes more than there is",
        remedy="look at the sizes that the model declares, or that "
        f"{wording.option('dim')} and {wording.option('input-shape')} give",
    )


@functools.lru_cache(maxsize=4096)
def _infer(
    operator: tuple[str, str, int, int],
    attributes: tuple[bytes, ...],
    inputs: tuple[tuple[bool, ir.TypeProtocol | None, Dims | None, tuple[Any, Any, bytes] | None], ...],
    outputs: tuple[bool, ...],
    strict: bool,
) -> tuple[Inferred, ...]:
    """Infer the outputs of a node; a straight line repeats the nodes of a step many times."""
    op_type, domain, version, ir_version = operator
    model = onnx.ModelProto(ir_version=ir_version)
    model.opset_import.append(onnx.helper.make_opsetid(domain, version))
    node = model.graph.node.add(op_type=op_type, domain=domain)
    node.attribute.extend(map(onnx.AttributeProto.FromString, attributes))
    node.output.extend(f"o{index}" if named else "" for index, named in enumerate(outputs))
    names = set()
    for index, (given, type_, dims, content) in enumerate(inputs):
        node.input.append(f"i{index}" if given else "")
        if type_ is None:
            continue
        if content is None:
            declared = model.graph.input.add(name=f"i{index}", type=ir.serde.serialize_type(type_))
            if dims is not None:
                ir.serde.serialize_shape_into(declared.type, ir.Shape(dims))
                names |= {dim.value for dim in dims if isinstance(dim, ir.SymbolicDim)}
        else:
            dtype, shape, buffer = content
            array = np.frombuffer(buffer, dtype).reshape(shape)
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, f"i{index}"))
    try:
        graph = onnx.shape_inference.infer_shapes(model, strict_mode=strict).graph
    except (onnx.shape_inference.InferenceError, RuntimeError, ValueError):
        if strict:
            raise
        return tuple((None, None) for _ in outputs)
    found = {value.name: value.type for value in graph.value_info}
    return tuple(_from_proto(found.get(f"o{index}"), names) for index in range(len(outputs)))


def _from_proto(proto: onnx.TypeProto | None, names: Container[str | None]) -> Inferred:
    """Return type and shape, without symbols that inference has made up."""
    type_ = None if proto is None else ir.serde.deserialize_type_proto_for_type(proto)
    if proto is None or type_ is None or type_.dtype == ir.DataType.UNDEFINED:
        return None, None
    shape = ir.serde.deserialize_type_proto_for_shape(proto)
    return type_, None if shape is None else tuple(
        dim if isinstance(dim, int) or dim.value in names else None for dim in shape
    )
