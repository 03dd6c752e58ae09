"""Evaluation of single nodes on constants, and inference of types and shapes from their inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

__all__ = ["FOLDABLE", "Array", "evaluate", "infer"]

Array: TypeAlias = NDArray[Any]

_NAMES = """
    Abs Add And ArgMax ArgMin BitShift Cast Ceil Clip Compress Concat Constant ConstantOfShape CumSum
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
_MOVES = "Concat Constant Flatten Gather Identity Reshape Shape Size Slice Squeeze Transpose Unsqueeze"
_DATA_MOVEMENT = frozenset(_MOVES.split())
_KINDS = "fiub"
_INFERENCE_ELEMENTS = 1024
# The errors that onnx's reference implementations raise on inputs that do not fit.
_FAILURES = (RuntimeError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, MemoryError)


def evaluate(node: ir.Node, inputs: Sequence[Array | None], opset: int) -> list[Array] | None:
    """Compute the outputs of a node of the default domain on constants; ``None`` if that is not supported.

    A node that fails on these inputs is left alone, so that the runtime fails on it if it ever runs.
    """
    if node.domain or node.op_type not in FOLDABLE or any(a.is_ref() for a in node.attributes.values()):
        return None
    if opset < _FIRST_OPSET and node.op_type not in _DATA_MOVEMENT:
        return None
    if any(array is not None and array.dtype.kind not in _KINDS for array in inputs):
        return None
    divides = node.op_type in ("Div", "Mod") and inputs[1] is not None and inputs[1].dtype.kind in "iu"
    if divides and not np.all(inputs[1]):
        return None
    from onnx.reference import ReferenceEvaluator

    proto = ir.serde.serialize_node(node)
    del proto.input[:], proto.output[:]
    proto.input.extend("" if array is None else f"i{index}" for index, array in enumerate(inputs))
    proto.output.extend(f"o{index}" for index in range(len(node.outputs)))
    feeds = {f"i{index}": array for index, array in enumerate(inputs) if array is not None}
    try:
        with np.errstate(all="ignore"):
            outputs = ReferenceEvaluator(_model_of(proto, feeds, opset)).run(None, feeds)
    except _FAILURES:
        return None
    if not all(isinstance(output, np.ndarray | np.generic) for output in outputs):
        return None
    arrays = [np.asarray(output) for output in outputs]
    agree = all(
        value.dtype is None or value.dtype.numpy() == array.dtype
        for value, array in zip(node.outputs, arrays, strict=True)
    )
    return arrays if agree and all(array.dtype.kind in _KINDS for array in arrays) else None


def _model_of(node: onnx.NodeProto, feeds: Mapping[str, Array], opset: int) -> onnx.ModelProto:
    """Return a model of the node: alone, it would be evaluated in the newest version of its operator."""
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), None)
        for name, array in feeds.items()
    ]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in node.output]
    graph = onnx.helper.make_graph([node], "node", inputs, outputs)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)])


def infer(
    node: ir.Node,
    types: Sequence[ir.TypeProtocol | None],
    shapes: Sequence[Sequence[int | None] | None],
    constants: Sequence[Array | None],
    opset_imports: Mapping[str, int],
    ir_version: int,
) -> list[tuple[ir.TypeProtocol | None, tuple[int | None, ...] | None]]:
    """Infer type and shape of each output of a node without subgraphs, with onnx's inference.

    Args:
        node: The node.
        types, shapes, constants: The known data of each of its inputs.
        opset_imports, ir_version: Those of the model.
    """
    unknown: list[tuple[ir.TypeProtocol | None, tuple[int | None, ...] | None]] = [
        (None, None) for _ in node.outputs
    ]
    version = opset_imports.get(node.domain)
    if version is None or any(attribute.is_ref() for attribute in node.attributes.values()):
        return unknown
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return unknown
    proto = ir.serde.serialize_node(node)
    del proto.input[:], proto.output[:]
    proto.input.extend("" if value is None else f"i{index}" for index, value in enumerate(node.inputs))
    proto.output.extend(f"o{index}" if out.name else "" for index, out in enumerate(node.outputs))
    given = {
        f"i{index}": _type_proto(type_, shape)
        for index, (type_, shape) in enumerate(zip(types, shapes, strict=True))
        if isinstance(type_, ir.TensorType)
    }
    if len(given) < sum(1 for value in node.inputs if value is not None):
        return unknown
    data = {
        f"i{index}": onnx.numpy_helper.from_array(array)
        for index, array in enumerate(constants)
        if array is not None and array.size <= _INFERENCE_ELEMENTS and f"i{index}" in given
    }
    imports = [onnx.helper.make_opsetid(domain, number) for domain, number in opset_imports.items()]
    try:
        found = onnx.shape_inference.infer_node_outputs(schema, proto, given, data, None, imports, ir_version)
    except (
        onnx.shape_inference.InferenceError,
        onnx.checker.ValidationError,
        RuntimeError,
        ValueError,
        TypeError,
    ):
        return unknown
    return [_from_proto(found.get(f"o{index}")) for index in range(len(node.outputs))]


def _type_proto(type_: ir.TensorType, shape: Sequence[int | None] | None) -> onnx.TypeProto:
    return onnx.helper.make_tensor_type_proto(type_.dtype.value, shape)


def _from_proto(
    proto: onnx.TypeProto | None,
) -> tuple[ir.TypeProtocol | None, tuple[int | None, ...] | None]:
    if proto is None or not proto.HasField("tensor_type") or not proto.tensor_type.elem_type:
        return None, None
    tensor = proto.tensor_type
    type_ = ir.TensorType(ir.DataType(tensor.elem_type))
    if not tensor.HasField("shape"):
        return type_, None
    dims = [dim.dim_value if dim.HasField("dim_value") else None for dim in tensor.shape.dim]
    # Sizes that do not fit give a size below 0, and the inference of later nodes would abort the process.
    return type_, None if any(dim is not None and dim < 0 for dim in dims) else tuple(dims)
