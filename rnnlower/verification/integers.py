"""The integer products of onnxruntime, which are not exact on every processor."""

from __future__ import annotations

import functools

import numpy as np
import onnx
import onnx.parser

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
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13]>
        product (uint8[4, 64] x, int8[64, 32] w) => (int32[4, 32] y) { y = MatMulInteger (x, w) }
    """)
    feeds = {"x": np.full((4, 64), 255, np.uint8), "w": np.full((64, 32), 127, np.int8)}
    session = IsolatedSession(model.SerializeToString(), optimize=False)
    try:
        return bool((session.run(feeds)["y"] == 64 * 255 * 127).all())
    finally:
        session.close()
