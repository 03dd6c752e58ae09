"""Models of one old node, and their conversions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from rnnlower.opset import convert_opset

RNG = np.random.default_rng(7)
DIMS: dict[str, Callable[[Sequence[int]], list[Any]]] = {
    "static": list,
    "symbolic": lambda shape: [f"d{axis}_{size}" for axis, size in enumerate(shape)],
    "unnamed": lambda shape: [None] * len(shape),
}


def build(
    node: onnx.NodeProto,
    opset: int,
    inputs: Mapping[str, np.ndarray],
    dims: str = "static",
    constants: Mapping[str, np.ndarray] | None = None,
    types: Sequence[int] = (TensorProto.FLOAT,),
) -> onnx.ModelProto:
    """Return a model of one node; the outputs have no shapes."""
    infos = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), DIMS[dims](x.shape))
        for name, x in inputs.items()
    ]
    names = [name for name in node.output if name]
    results = [
        helper.make_tensor_value_info(name, type_, None) for name, type_ in zip(names, types, strict=False)
    ]
    tensors = [onnx.numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    graph = helper.make_graph([node], "g", infos, results, tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=4)


def converted(model: onnx.ModelProto, target: int) -> onnx.ModelProto:
    """Return the model at another opset, checked."""
    work = ir.from_proto(model)
    convert_opset(work, target)
    result = ir.to_proto(work)
    inferred = onnx.shape_inference.infer_shapes(result, check_type=True, strict_mode=True)
    # The checker wants every output to have a shape; where none can be inferred there is none to check.
    if all(output.type.tensor_type.HasField("shape") for output in inferred.graph.output):
        onnx.checker.check_model(inferred, full_check=True)
    return result


def values(*shape: int, dtype: Any = np.float32) -> np.ndarray:
    """Return random numbers, integers from 1 to 4 for integer types."""
    if np.issubdtype(dtype, np.floating):
        return RNG.standard_normal(shape).astype(dtype)
    if dtype == np.bool_:
        return RNG.random(shape) < 0.5
    return RNG.integers(1, 5, shape).astype(dtype)
