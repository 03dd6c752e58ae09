"""The verdict on one lowering: is the model valid and complete, and do the numbers agree with the oracle?"""

from __future__ import annotations

import ctypes
import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime

import rnnlower
from rnnlower.engines.reference import Evaluator
from support.configs import Config
from support.installed import newest_opset
from support.opset_engines import default_opset
from support.sessions import session

STRATEGIES = ("unroll", "scan", "loop")
TOLERANCES = {"float16": 2e-2, "float32": 2e-4, "float64": 1e-9, "bfloat16": 4e-2}
"""Relative to the largest expected magnitude, where that is above 1."""

Arrays = Mapping[str, np.ndarray]


def lower(
    config: Config, strategy: str, inputs: Arrays, semantics: str = "ort", unroll_factor: int = 1
) -> onnx.ModelProto:
    """Return the config's model, lowered; a dynamic length is fixed where the strategy wants one."""
    options: dict[str, Any] = {"semantics": semantics}
    if strategy == "unroll":
        options["input_shapes"] = {"X": inputs["X"].shape}
    else:
        options["unroll_factor"] = unroll_factor
    return getattr(rnnlower, strategy)(config.build(), **options)


def judge(
    config: Config,
    strategy: str,
    rng: np.random.Generator,
    semantics: str = "ort",
    unroll_factor: int = 1,
) -> tuple[str, str]:
    """Return ``right``, ``wrong``, ``invalid`` or ``refused: ...``, and what is to be said about it."""
    inputs = config.make_inputs(rng)
    try:
        lowered = lower(config, strategy, inputs, semantics, unroll_factor)
    except rnnlower.RnnLowerError as error:
        return f"refused: {type(error).__name__}: {re.sub(r'^[^:]*: ', '', str(error))}", ""
    try:
        onnx.checker.check_model(lowered, full_check=config.x_dims != "negative")
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return "invalid", str(error)
    if left := recurrent_left(lowered):
        return "wrong", f"{left} left"
    if interface(lowered) != interface(config.build()):
        return "wrong", f"the interface is {interface(lowered)}"
    try:
        expected = config.expected(inputs, semantics)
    except ValueError as error:
        return "wrong", f"the oracle refuses ({error}), the lowering does not"
    wrong = differences(expected, run(lowered, inputs), config.dtype)
    return ("wrong", "\n".join(wrong)) if wrong else ("right", "")


def recurrent_left(model: onnx.ModelProto) -> list[str]:
    """Return the LSTM, GRU and RNN nodes of the model, functions included."""
    return [node.op_type for node in all_nodes(model) if node.op_type in ("LSTM", "GRU", "RNN")]


def all_initializers(model: onnx.ModelProto) -> list[onnx.TensorProto]:
    """Return the initializers of the main graph and of subgraphs at any depth."""
    bodies = [attribute.g for node in all_nodes(model) for attribute in node.attribute]
    return [tensor for graph in (model.graph, *bodies) for tensor in graph.initializer]


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the main graph, of subgraphs at any depth and of functions."""

    def walk(nodes: Any) -> Iterator[onnx.NodeProto]:
        for node in nodes:
            yield node
            for attribute in node.attribute:
                for graph in (attribute.g, *attribute.graphs):
                    yield from walk(graph.node)

    yield from walk(model.graph.node)
    for function in model.functions:
        yield from walk(function.node)


def interface(model: onnx.ModelProto) -> list[list[tuple[str, int, int | None]]]:
    """Return name, element type and rank of the graph's inputs and outputs."""
    return [
        [
            (
                value.name,
                value.type.tensor_type.elem_type,
                len(value.type.tensor_type.shape.dim) if value.type.tensor_type.HasField("shape") else None,
            )
            for value in values
        ]
        for values in (model.graph.input, model.graph.output)
    ]


def run(model: onnx.ModelProto, inputs: Arrays) -> dict[str, np.ndarray]:
    """Return the model's outputs on onnxruntime, or by NumPy if the model is too new for it."""
    if default_opset(model) > newest_opset():
        return Evaluator(model).run(inputs)
    return run_in(session_of(model), inputs)


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return a session of the model on onnxruntime."""
    return _session_of_bytes(model.SerializeToString())


@functools.lru_cache(maxsize=4)
def _session_of_bytes(data: bytes) -> onnxruntime.InferenceSession:
    """Return a session, the same one for the inputs that a test gives a model one after the other."""
    return session(data)


def run_in(session: onnxruntime.InferenceSession, inputs: Arrays) -> dict[str, np.ndarray]:
    """Return the outputs by name."""
    names = [out.name for out in session.get_outputs()]
    if not any(value.type == "tensor(bfloat16)" for value in (*session.get_inputs(), *session.get_outputs())):
        return dict(zip(names, session.run(names, dict(inputs)), strict=True))
    # onnxruntime's bridge to NumPy does not know bfloat16, so that its bits pass; `bits` keeps them alive.
    bits = {
        name: np.ascontiguousarray(array).view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
        for name, array in inputs.items()
    }
    make = onnxruntime.OrtValue
    values = {
        name: make.ortvalue_from_numpy_with_onnx_type(bits[name], onnx.TensorProto.BFLOAT16)
        if array.dtype == ml_dtypes.bfloat16
        else make.ortvalue_from_numpy(array)
        for name, array in inputs.items()
    }
    return {
        name: _to_numpy(value)
        for name, value in zip(names, session.run_with_ort_values(names, values), strict=True)
    }


def _to_numpy(value: onnxruntime.OrtValue) -> np.ndarray:
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    size = 2 * int(np.prod(value.shape(), dtype=np.int64))
    bits = np.frombuffer(ctypes.string_at(value.data_ptr(), size), np.uint16)
    return bits.view(ml_dtypes.bfloat16).reshape(value.shape())


def differences(expected: Arrays, actual: Arrays, dtype: str) -> list[str]:
    """List the faults, one per output."""
    wrong = []
    tolerance = TOLERANCES[dtype]
    for name, want in expected.items():
        have = actual[name]
        if have.shape != want.shape or have.dtype != want.dtype:
            wrong.append(f"{name}: {have.dtype}{list(have.shape)} for {want.dtype}{list(want.shape)}")
            continue
        have, want = have.astype(np.float64), want.astype(np.float64)
        # An element near zero may be the difference of large ones.
        scale = max(1.0, float(np.max(np.abs(want), initial=0.0, where=np.isfinite(want))))
        if not np.allclose(have, want, rtol=tolerance, atol=tolerance * scale, equal_nan=True):
            with np.errstate(invalid="ignore"):
                wrong.append(f"{name}: max abs {np.nanmax(np.abs(have - want)):.3g}, scale {scale:.3g}")
    return wrong
