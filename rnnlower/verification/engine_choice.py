"""The choice of the engine that runs a model: onnxruntime if possible, otherwise NumPy."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, Literal

import numpy as np
import onnx
import onnx.parser

from rnnlower.engines.session import Array, IsolatedSession, LacksKernelError, LoadError, RunError, brief
from rnnlower.errors import RnnLowerError, UnsupportedModelError
from rnnlower.verification.inputs.uses import QUANTIZED_LSTM, RECURRENT, GraphFacts
from rnnlower.verification.models import ParsedModel, op_types

EngineName = Literal["onnxruntime", "rnnlower-reference"]
Semantics = Literal["ort", "spec"]

_FIRST_VERSION = 7
_ABORTING = ("LSTM", "GRU", "RNN", QUANTIZED_LSTM)
_NO_KERNEL: dict[int | None, str] = {
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}
# The errors of onnx's reference evaluator on a model or an input that it cannot handle.
_EVALUATION_FAILURES = (
    *(RnnLowerError, RuntimeError, TypeError, ValueError, LookupError, AttributeError),
    *(ArithmeticError, AssertionError, MemoryError),
)


def reasons_against_onnxruntime(facts: GraphFacts, semantics: Semantics, empty_inputs: bool) -> list[str]:
    """Return the reasons why onnxruntime's kernels cannot run the recurrent nodes correctly."""
    reasons = []
    for node in facts.recurrent:
        label = f"{node.op_type} node {node.name!r}"
        if semantics == "spec":
            reasons.append(f"{label}: semantics 'spec' was requested")
        elif node.version < _FIRST_VERSION:
            reasons.append(f"{label}: opset {node.version} has no kernel")
        elif node.layout:
            reasons.append(f"{label}: layout=1 has no kernel")
        elif node.elem_type in _NO_KERNEL:
            reasons.append(f"{label}: {_NO_KERNEL[node.elem_type]} has no kernel")
        elif empty_inputs and node.op_type in _ABORTING:
            reasons.append(f"{label}: the native kernel aborts on zero-length time or batch")
    return reasons


class NumpyEngine:
    """The evaluator of :mod:`rnnlower.engines.reference`, as an engine; `options` are the evaluator's."""

    name: EngineName = "rnnlower-reference"

    def __init__(self, model: ParsedModel, semantics: Semantics, **options: Any) -> None:
        # Imported here because onnx's evaluator is slow to import, and most models never need it.
        from rnnlower.engines.reference import Evaluator

        try:
            self._evaluator = Evaluator(model.with_data(), semantics=semantics, **options)
        except UnsupportedModelError as error:
            raise LacksKernelError(str(error)) from error
        except _EVALUATION_FAILURES as error:
            raise LoadError(f"{type(error).__name__}: {error}") from error

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """Return all graph outputs by name."""
        try:
            return self._evaluator.run(feeds)
        except _EVALUATION_FAILURES as error:
            raise RunError(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Release nothing."""


class OnnxRuntimeEngine(IsolatedSession):
    """onnxruntime in a child process, as an engine."""

    name: EngineName = "onnxruntime"

    def __init__(self, model: ParsedModel, optimize: bool) -> None:
        # Its kernel rounds the rows of each thread separately.
        one_thread = QUANTIZED_LSTM in op_types(model.proto)
        super().__init__(model.session_source(), optimize, one_thread)


Engine = OnnxRuntimeEngine | NumpyEngine

_MODEL_PATH = re.compile(r"Load model from .* failed")
_NAMED_NODE = re.compile(r"""In Node, \("([^"]*)"|in node \(([^)]*)\)""")


def reference_fails_alike(error: LoadError, reference: ParsedModel, optimize: bool) -> bool:
    """Return whether onnxruntime also refuses ``reference``, with the same message or for the same node.

    With ``optimize``, any message counts: a failing optimization may report an error or abort the process.
    """
    found = _NAMED_NODE.search(str(error))
    name = (found.group(1) or found.group(2)) if found else ""
    names = {node.name for node in reference.proto.graph.node if node.op_type not in RECURRENT}
    try:
        IsolatedSession(reference.session_source(), optimize).close()
    except LacksKernelError:
        return False
    except LoadError as own:
        same, other = (_MODEL_PATH.sub("", str(each)) for each in (own, error))
        return optimize or same == other or bool(name and name in names)
    return False


def open_engine(
    model: ParsedModel,
    facts: GraphFacts,
    semantics: Semantics,
    forced: EngineName | None,
    *,
    optimize: bool,
    empty_inputs: bool,
    excuse: Callable[[LoadError, bool], bool],
) -> tuple[Engine, list[str]]:
    """Return the engine for ``model``, and notes on failed attempts.

    If onnxruntime refuses a model or aborts, ``excuse`` decides whether it may run in another way: in NumPy,
    or without optimizations if those fail (then its second argument is True).

    Raises:
        LoadError: The engine refuses the model, or no engine has an implementation for it.
    """
    reasons = reasons_against_onnxruntime(facts, semantics, empty_inputs)
    if forced == "rnnlower-reference" or (reasons and not forced):
        return NumpyEngine(model, semantics), []
    try:
        return OnnxRuntimeEngine(model, optimize), []
    except LoadError as error:
        lacks_kernel = isinstance(error, LacksKernelError)
        again = optimize and not lacks_kernel
        if (forced and not again) or not (lacks_kernel or excuse(error, again)):
            raise
        problem = brief(error)
    if not again:
        return NumpyEngine(model, semantics), [f"the {model.role} does not run on onnxruntime: {problem}"]
    engine, notes = open_engine(
        model, facts, semantics, forced, optimize=False, empty_inputs=empty_inputs, excuse=excuse
    )
    return engine, [f"the {model.role} ran without onnxruntime's optimizations: with them, {problem}", *notes]


SATURATION = "products of uint8 and int8 saturate on this processor (x86 without VNNI)"
_PRODUCTS = {QUANTIZED_LSTM, "MatMulInteger", "ConvInteger", "QLinearMatMul", "QLinearConv"}
_PRODUCTS |= {"MatMulIntegerToFloat", "DynamicQuantizeMatMul", "QGemm"}


def may_saturate(model: onnx.ModelProto) -> bool:
    """Return whether the model has integer products that onnxruntime computes inexactly on this processor."""
    return not _PRODUCTS.isdisjoint(op_types(model)) and products_saturate()


@functools.cache
def products_saturate() -> bool:
    """Return whether onnxruntime's products of uint8 and int8 saturate on this processor."""
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13]>
        product (uint8[4, 64] x, int8[64, 32] w) => (int32[4, 32] y) { y = MatMulInteger (x, w) }
    """)
    feeds = {"x": np.full((4, 64), 255, np.uint8), "w": np.full((64, 32), 127, np.int8)}
    with closing(IsolatedSession(model.SerializeToString(), optimize=False)) as session:
        return bool((session.run(feeds)["y"] != 64 * 255 * 127).any())
