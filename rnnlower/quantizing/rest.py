"""The rest of the model, quantized by onnxruntime's own tool before the recurrence is lowered."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import onnx

from rnnlower.errors import UnsupportedModelError
from rnnlower.folders import temporary_folder
from rnnlower.processes import Child, ChildDiedError
from rnnlower.quantizing.recordings import Feeds
from rnnlower.quantizing.schemes import Scheme

_CHILD = Child()


def quantize_rest(model: onnx.ModelProto, calls: Sequence[Feeds], scheme: Scheme) -> onnx.ModelProto:
    """Return the model with QuantizeLinear and DequantizeLinear around what is not recurrent.

    Raises:
        UnsupportedModelError: onnxruntime's quantizer fails.
    """
    kinds = {"int8": "QUInt8", "int8-only": "QUInt8", "int16": "QInt16", "uint16": "QUInt16"}
    kind = "QInt8" if scheme.integer_bias else kinds[scheme.activations]
    try:
        data = _CHILD.call(_quantize, model.SerializeToString(), list(calls), kind, not scheme.per_tensor)
    except (ChildDiedError, RuntimeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UnsupportedModelError(
            f"onnxruntime's quantizer fails on the rest of the model: {error}",
            remedy="keep the rest in float32 (--recurrent-only)",
        ) from error
    return onnx.load_model_from_string(data)


def _quantize(data: bytes, calls: list[Feeds], kind: str, per_channel: bool) -> bytes:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.registry import QDQRegistry

    class Calls(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(calls)

        def get_next(self) -> Any:
            return next(self._left, None)

    model = onnx.load_model_from_string(data)
    # A MatMul is quantized by a class of its own.
    if not {node.op_type for node in model.graph.node} & {*QDQRegistry, "MatMul"}:
        return data
    logging.disable(logging.WARNING)
    try:
        with temporary_folder() as folder:
            quantize_static(
                model,
                folder / "model.onnx",
                Calls(),
                quant_format=QuantFormat.QDQ,
                per_channel=per_channel,
                activation_type=getattr(QuantType, kind),
                weight_type=QuantType.QInt8,
                extra_options={"ActivationSymmetric": kind == "QInt16"},
            )
            return (folder / "model.onnx").read_bytes()
    finally:
        logging.disable(logging.NOTSET)
