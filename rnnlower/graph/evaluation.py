"""Evaluation of single nodes on constants."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray

from rnnlower.graph.operator_kinds import POINTWISE, REARRANGING

if TYPE_CHECKING:
    from onnx.reference import ReferenceEvaluator

Array: TypeAlias = NDArray[Any]
Dim = int | ir.SymbolicDim | None
Dims = tuple[Dim, ...]
Shape = tuple[int | None, ...]

_NAMES = """
    Abs Add And ArgMax ArgMin BitShift Cast CastLike Ceil Clip Compress Concat Constant ConstantOfShape Conv
    CumSum Div Equal Exp Expand EyeLike Flatten Floor Gather GatherElements GatherND Gemm Greater
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
DTYPE_KINDS = "fiub"
"""The kinds of types that are NumPy's own."""
_MAX_CACHED_BYTES = 4096
"""Bytes of a node whose evaluator is kept for nodes like it."""
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
    kinds = DTYPE_KINDS + "V" * all_types
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
