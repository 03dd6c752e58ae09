"""The rest of the model, quantized by onnxruntime's own tool before the recurrence is lowered."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, get_args

import numpy as np
import onnx
import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import UnsupportedModelError
from rnnlower.files.model_io import load_model
from rnnlower.folders import temporary_folder
from rnnlower.processes import Child
from rnnlower.quantizing.recordings import Feeds
from rnnlower.quantizing.schemes import Scheme
from rnnlower.targets.vocabulary import Activations

_CHILD = Child()

_COUNTING = "Add Ceil Div Floor Log Max Min Mul Pow Round Sqrt Sub Where"
"""Operators by which models compute positions."""


def quantize_rest(model: onnx.ModelProto, calls: Sequence[Feeds], scheme: Scheme) -> onnx.ModelProto:
    """Return the model with QuantizeLinear and DequantizeLinear around the other nodes than recurrent ones.

    Raises:
        UnsupportedModelError: onnxruntime's quantizer fails.
    """
    kinds = dict(zip(get_args(Activations), ("QUInt8", "QInt16", "QUInt16", "QUInt8"), strict=True))
    kind = "QInt8" if scheme.integer_bias else kinds[scheme.activations]
    try:
        settings = (kind, not scheme.per_tensor, scheme.headroom if kind.endswith("16") else 1.0)
        data = _CHILD.call(_quantize, model.SerializeToString(), list(calls), *settings)
    except Exception as error:  # onnxruntime has one class of error for each status.
        raise UnsupportedModelError(
            f"onnxruntime's quantizer fails on the rest of the model: {error}",
            remedy=f"keep the rest in float32 ({wording.option('recurrent-only', True)})",
        ) from error
    return onnx.load_model_from_string(data)


def _without_scales(graph: ir.Graph) -> list[str]:
    """Return the names of nodes for which onnxruntime (1.32) fails to give each channel a scale.

    They are transposed convolutions in groups, norms over several axes, and embeddings tied to a product.
    """
    return [str(node.name) for node in graph if _is_grouped(node) or _is_over_axes(node) or _is_tied(node)]


def _is_grouped(node: ir.Node) -> bool:
    return node.op_type == "ConvTranspose" and node.attributes.get_int("group", 1) > 1


def _is_over_axes(node: ir.Node) -> bool:
    shape = node.inputs[1].shape if node.op_type == "LayerNormalization" and node.inputs[1] else None
    return shape is not None and len(shape) > 1


def _is_tied(node: ir.Node) -> bool:
    table = node.inputs[0] if node.op_type == "Gather" else None
    readers = {reader.op_type for reader, _ in table.uses()} if table and table.is_initializer() else set()
    return readers > {"Gather"}


def _position_nodes(graph: ir.Graph) -> list[str]:
    """Return the names of nodes that compute integers in floats, such as positions: they stay exact."""
    casts = (node for node in graph if node.op_type == "Cast")
    whole = {node for node in casts if ir.DataType(node.attributes["to"].as_int()).is_integer()}
    for node in reversed(graph):
        out = node.outputs[0]
        readers = {reader for reader, _ in out.uses()}
        if node.op_type in _COUNTING.split() and readers and readers <= whole and not out.is_graph_output():
            whole.add(node)
    return [str(node.name) for node in whole]


def _quantize(data: bytes, calls: list[Feeds], kind: str, per_channel: bool, headroom: float) -> bytes:
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.calibrate import create_calibrator
    from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

    class Calls(CalibrationDataReader):  # type: ignore[misc]
        def __init__(self) -> None:
            self._left = iter(calls)

        def get_next(self) -> Any:
            return next(self._left, None)

    model = onnx.load_model_from_string(data)
    graph = load_model(model).graph
    # A MatMul is quantized by a class of its own.
    kinds = {node.op_type for node in model.graph.node} & {*QDQRegistry, *QLinearOpsRegistry, "MatMul"}
    if not kinds:
        return data
    logging.disable(logging.WARNING)
    try:
        with temporary_folder() as folder:
            # A Relu that quantizers stand for is lost where a runtime leaves them out.
            options: dict[str, Any] = {"QDQKeepRemovableActivations": True}
            options["ActivationSymmetric"] = kind == "QInt16"
            if headroom > 1:
                source = folder / "source.onnx"
                source.write_bytes(data)
                calibrator = create_calibrator(source, sorted(kinds), str(folder / "observed.onnx"))
                calibrator.collect_data(Calls())
                options["TensorQuantOverrides"] = {
                    name: [dict(zip(("rmin", "rmax"), headroom * np.stack(found.range_value), strict=True))]
                    for name, found in calibrator.compute_data().data.items()
                }
            quantize_static(
                model,
                folder / "model.onnx",
                Calls(),
                quant_format=QuantFormat.QDQ,
                per_channel=per_channel,
                activation_type=getattr(QuantType, kind),
                weight_type=QuantType.QInt8,
                nodes_to_exclude=_position_nodes(graph) + (_without_scales(graph) if per_channel else []),
                extra_options=options,
            )
            return (folder / "model.onnx").read_bytes()
    finally:
        logging.disable(logging.NOTSET)
