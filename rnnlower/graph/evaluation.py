"""Evaluation of single nodes on constants, and inference of types and shapes from their inputs."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Container, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from rnnlower import wording
from rnnlower.errors import InvalidModelError
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.graph.operator_kinds import POINTWISE, REARRANGING
from rnnlower.graph.walk import operand, qualified_op_type

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

Array: TypeAlias = NDArray[Any]
Dim = int | ir.SymbolicDim | None
Dims = tuple[Dim, ...]
Shape = tuple[int | None, ...]

_NAMES = """
    Abs Add And ArgMax ArgMin BitShift Cast CastLike Ceil Clip Compress Concat Constant ConstantOfShape CumSum
    Div Equal Exp Expand EyeLike Flatten Floor Gather GatherElements GatherND Gemm Greater
    GreaterOrEqual Identity Less LessOrEqual Log MatMul Max Min Mod Mul Neg NonZero Not OneHot Or Pad
    Pow Range Reciprocal ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum Relu Reshape Round
    ScatterElements ScatterND Shape Sigmoid Sign Size Slice Split Sqrt Squeeze Sub Sum Tanh Tile TopK
    Transpose Trilu Unsqueeze Where Xor
"""
FOLDABLE = frozenset(_NAMES.split())
"""Operators that onnx's reference implementation computes according to onnx's node tests; a test checks it.

Quantizing and dequantizing are left out: runtimes look for these nodes.
"""

_FIRST_OPSET = 7
"""The first opset with NumPy's broadcasting; below, only operators that move data are evaluated."""
DATA_MOVEMENT = REARRANGING | {"Concat", "Constant", "Gather", "Shape", "Size", "Slice"}
_FIRST_DEQUANTIZE_LINEAR = 19
_DTYPE_KINDS = "fiub"
_INFERENCE_ELEMENTS = 1024
_MAX_CACHED_BYTES = 4096
"""Bytes of a node whose evaluator is kept for nodes like it."""
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
# The errors that onnx's reference implementations raise on inputs that do not fit.
_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, MemoryError)


def evaluate(
    node: ir.Node,
    inputs: Sequence[Array | None],
    opset: int,
    failures: dict[ir.Node, Exception] | None = None,
    *,
    all_types: bool = False,
) -> list[Array] | None:
    """Compute the outputs of a node of the default domain on constants; ``None`` if that is not supported.

    A node that fails on these inputs is left alone, so that the runtime fails on it if it ever runs; the
    error is added to ``failures``. Numbers of other types than NumPy's are left out unless ``all_types``, or
    if a Cast makes one of NumPy's types of them.
    """
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    if opset < _FIRST_OPSET and node.op_type not in DATA_MOVEMENT:
        return None
    kinds = _DTYPE_KINDS + "V" * all_types
    reads = kinds if node.op_type != "Cast" else kinds + "V"
    if any(array is not None and array.dtype.kind not in reads for array in inputs):
        return None
    divides = node.op_type in ("Div", "Mod") and inputs[1] is not None and inputs[1].dtype.kind in "iu"
    if divides and not np.all(inputs[1]):
        return None
    if node.op_type == "DequantizeLinear":
        # The evaluator lacks the older versions, which mean the same.
        opset = max(opset, _FIRST_DEQUANTIZE_LINEAR)
    try:
        outputs = _compute(node, inputs, opset)
    except _FAILURES as error:
        if failures is not None:
            failures[node] = error
        return None
    if not all(isinstance(output, np.ndarray | np.generic) for output in outputs):
        return None
    arrays = [np.asarray(output) for output in outputs]
    agree = all(
        value.dtype is None or value.dtype.numpy() == array.dtype
        for value, array in zip(node.outputs, arrays, strict=True)
    )
    return arrays if agree and all(array.dtype.kind in kinds for array in arrays) else None


def _compute(node: ir.Node, inputs: Sequence[Array | None], opset: int) -> list[Any]:
    if node.op_type == "Constant" and "value" in node.attributes:
        return [node.attributes["value"].value.numpy()]  # Reading it by `as_tensor` takes five times as long.
    proto = ir.serde.serialize_node(node)
    for field in ("input", "output", "name", "doc_string", "metadata_props"):
        proto.ClearField(field)
    proto.input.extend("" if array is None else f"i{index}" for index, array in enumerate(inputs))
    proto.output.extend(f"o{index}" for index in range(len(node.outputs)))
    feeds = {f"i{index}": array for index, array in enumerate(inputs) if array is not None}
    types = tuple((name, array.dtype) for name, array in feeds.items())
    # A large attribute is not kept.
    make = _evaluator if proto.ByteSize() <= _MAX_CACHED_BYTES else _evaluator.__wrapped__
    with np.errstate(all="ignore"):
        return [*make(proto.SerializeToString(), types, opset).run(None, feeds)]


@functools.lru_cache(maxsize=1024)
def _evaluator(node: bytes, types: tuple[tuple[str, np.dtype[Any]], ...], opset: int) -> ReferenceEvaluator:
    """Return an evaluator of the node: alone, it would be evaluated in the newest version of its operator."""
    from onnx.reference import ReferenceEvaluator

    proto = onnx.NodeProto.FromString(node)
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(dtype), None)
        for name, dtype in types
    ]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in proto.output]
    graph = onnx.helper.make_graph([proto], "node", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])
    return ReferenceEvaluator(model)


def max_output_bytes(node: ir.Node, arrays: Sequence[Array | None]) -> int:
    """Return a bound for the result of an operator that makes large outputs of small inputs."""
    shapes = [array.shape for array in arrays if array is not None]
    if node.op_type in POINTWISE and len(shapes) > 1:
        reverse = itertools.zip_longest(*(shape[::-1] for shape in shapes), fillvalue=1)
        return math.prod(map(max, reverse))
    if node.op_type == "Range" and [math.prod(shape) for shape in shapes] == [1, 1, 1]:
        start, limit, step = (float(array.item()) for array in arrays if array is not None)
        return int(min(2**62, abs(limit - start) / (abs(step) or 1) * 8))
    place = {"ConstantOfShape": 0, "Expand": 1, "Tile": 1, "EyeLike": 0}.get(node.op_type)
    if place is None or arrays[place] is None:
        return 0
    sizes = np.abs(np.asarray(arrays[place], np.float64))
    count = float(np.prod(sizes))
    first = arrays[0]
    return int(min(count * 8 * (first.size if place and first is not None else 1), 2**62))


def may_be_sizes(content: Array | ir.TensorProtocol) -> bool:
    """Return whether the inference of a shape may need this content: it is short, and no weight."""
    dtype = content.dtype if isinstance(content, np.ndarray) else content.dtype.numpy()
    return content.size <= _INFERENCE_ELEMENTS and dtype.kind in _DTYPE_KINDS


_DEFAULTS: Mapping[str, Mapping[str, ir.Attr]] = {"STFT": {"onesided": ir.AttrInt64("onesided", 1)}}
"""Default values that onnx's inference gets wrong."""
_NEGATIVE_AXES_SINCE_11 = ("Concat", "Squeeze", "Unsqueeze")
"""Operators whose older versions onnx's inference gets wrong for axes below 0, which runtimes take."""


def infer_outputs(
    node: ir.Node,
    types: Sequence[ir.TypeProtocol | None],
    shapes: Sequence[Dims | None],
    constants: Sequence[Array | None],
    opset_imports: Mapping[str, int],
    ir_version: int,
    *,
    strict: bool = False,
) -> list[tuple[ir.TypeProtocol | None, Dims | None]]:
    """Infer type and shape of each output of a node without subgraphs, with onnx's inference.

    Args:
        types, shapes, constants: The known data of each of its inputs; of contents those that `may_be_sizes`.
        strict: Raise an InferenceError where onnx's inference finds a fault; otherwise nothing is known then.

    Raises:
        InvalidModelError: A size below 0 would make onnx's inference abort the process.
    """
    unknown: list[tuple[ir.TypeProtocol | None, Dims | None]] = [(None, None) for _ in node.outputs]
    kind = qualified_op_type(node)
    if kind in _LIKE_FIRST_INPUT:
        return [(types[0], shapes[0]), *unknown[1:]]
    if kind in _QUANTIZERS:
        like = _QUANTIZERS[kind]
        has_type = like < len(node.inputs) and node.inputs[like] is not None
        return [(types[like] if has_type else ir.TensorType(ir.DataType.UINT8), shapes[0])]
    if kind == "com.microsoft.Attention" and shapes[0] and shapes[1]:
        sizes, many = node.attributes.get_ints("qkv_hidden_sizes"), shapes[1][1]
        features = sizes[2] if sizes else many // 3 if isinstance(many, int) else None
        return [(types[0], (*shapes[0][:-1], features)), *unknown[1:]]
    if kind == "com.microsoft.MultiHeadAttention":
        return [(types[0], _multi_head_shape(node, shapes)), *unknown[1:]]
    op_type, domain, used = node.op_type, node.domain, [*range(len(node.inputs))]
    if kind in _LIKE_STANDARD:
        (op_type, read), domain = _LIKE_STANDARD[kind], ""
        used = [index for index in read if index < len(node.inputs)]
        types, shapes = _as_standard(node, op_type, types, shapes)
    version = opset_imports.get(domain)
    inputs = [(node.inputs[index] is not None, types[index], shapes[index]) for index in used]
    if version is None:
        return unknown
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
) -> tuple[tuple[ir.TypeProtocol | None, Dims | None], ...]:
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


def _from_proto(
    proto: onnx.TypeProto | None, names: Container[str | None]
) -> tuple[ir.TypeProtocol | None, Dims | None]:
    """Return type and shape, without symbols that inference has made up."""
    type_ = None if proto is None else ir.serde.deserialize_type_proto_for_type(proto)
    if proto is None or type_ is None or type_.dtype == ir.DataType.UNDEFINED:
        return None, None
    shape = ir.serde.deserialize_type_proto_for_shape(proto)
    return type_, None if shape is None else tuple(
        dim if isinstance(dim, int) or dim.value in names else None for dim in shape
    )
