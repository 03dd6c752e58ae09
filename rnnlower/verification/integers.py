"""The integer products of onnxruntime, which are not exact on every processor."""

from __future__ import annotations

import functools

import numpy as np
import onnx
from onnx import helper, numpy_helper

from rnnlower.engines.session import IsolatedSession
from rnnlower.verification.inputs.uses import QUANTIZED_LSTM
from rnnlower.verification.models import op_types

SATURATION = (
    "onnxruntime's products of uint8 and int8 saturate on this processor (x86 without VNNI): "
    "the runtime may be right, and the reference wrong"
)
_PRODUCTS = {QUANTIZED_LSTM, "MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"}
_PRODUCTS |= {"MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QGemm"}


def may_saturate(model: onnx.ModelProto) -> bool:
    """Return whether the model has integer products, and onnxruntime's are not exact here."""
    return not _PRODUCTS.isdisjoint(op_types(model)) and not _is_exact()


@functools.cache
def _is_exact() -> bool:
    x, w = np.full((4, 64), 255, np.uint8), np.full((64, 32), 127, np.int8)
    values = [
        helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, x.shape),
        helper.make_tensor_value_info("y", onnx.TensorProto.INT32, (4, 32)),
    ]
    product = helper.make_node("MatMulInteger", ["x", "w"], ["y"])
    weights = [numpy_helper.from_array(w, "w")]
    graph = helper.make_graph([product], "product", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8)
    session = IsolatedSession(model.SerializeToString(), optimize=False)
    try:
        return bool((session.run({"x": x})["y"] == 64 * 255 * 127).all())
    finally:
        session.close()
