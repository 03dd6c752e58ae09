"""Which engine runs a model, and why: onnxruntime where it can, NumPy evaluation where it cannot."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

import onnx
from numpy.typing import NDArray

from rnnlower.engines.session import (
    IsolatedSession,
    LacksKernelError,
    LoadError,
    RunError,
    Session,
    brief,
)
from rnnlower.errors import RnnLowerError, UnsupportedModelError
from rnnlower.verification.inputs.facts import RECURRENT, Facts
from rnnlower.verification.inputs.graph_facts import gather_facts
from rnnlower.verification.models import HeldModel

__all__ = [
    "Engine",
    "EngineName",
    "NumpyEngine",
    "OnnxRuntimeEngine",
    "Semantics",
    "reasons_against_onnxruntime",
]

Array = NDArray[Any]
EngineName = Literal["onnxruntime", "rnnlower-reference"]
Semantics = Literal["ort", "spec"]

_FIRST_VERSION = 7
_ABORTING = ("LSTM", "GRU")
_NO_KERNEL: dict[int | None, str] = {
    onnx.TensorProto.DOUBLE: "float64",
    onnx.TensorProto.BFLOAT16: "bfloat16",
}
# What onnx's reference evaluator raises on a model or an input that it cannot handle.
_EVALUATION_FAILURES = (
    RnnLowerError,
    RuntimeError,
    TypeError,
    ValueError,
    KeyError,
    IndexError,
    AttributeError,
    ArithmeticError,
    AssertionError,
    MemoryError,
)


def reasons_against_onnxruntime(facts: Facts, semantics: Semantics, empty_inputs: bool = False) -> list[str]:
    """Why onnxruntime's native kernels cannot stand for the model's recurrent nodes; empty if they can."""
    reasons = []
    for node in facts.recurrent:
        label = f"{node.op_type} node {node.name!r}"
        if semantics == "spec":
            reasons.append(f"{label}: semantics 'spec' asked for")
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
    """The evaluator of :mod:`rnnlower.engines.reference`."""

    name: EngineName = "rnnlower-reference"

    def __init__(self, model: HeldModel, semantics: Semantics, precise: bool = True) -> None:
        # Imported here because onnx's evaluator is slow to import, and most models never need it.
        from rnnlower.engines.reference import Evaluator

        try:
            self._evaluator = Evaluator(model.with_data(), semantics=semantics, precise=precise)
        except UnsupportedModelError as error:
            raise LacksKernelError(str(error)) from error
        except _EVALUATION_FAILURES as error:
            raise LoadError(f"{type(error).__name__}: {error}") from error

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """All graph outputs by name."""
        try:
            return self._evaluator.run(feeds)
        except _EVALUATION_FAILURES as error:
            raise RunError(f"{type(error).__name__}: {error}") from error

    def close(self) -> None:
        """Nothing to release."""


class OnnxRuntimeEngine:
    """onnxruntime; in a process of its own as soon as a native kernel might see zero-length time or batch."""

    name: EngineName = "onnxruntime"

    def __init__(self, model: HeldModel, facts: Facts, optimize: bool) -> None:
        self._model = model
        self._optimize = optimize
        self._aborts = any(node.op_type in _ABORTING for node in facts.recurrent)
        self._known_safe: set[tuple[Any, ...]] = set()
        # Making a session is always safe; only running one may abort.
        self._session: Session | IsolatedSession | None = Session(model.for_session(), optimize)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Any]:
        """All graph outputs by name."""
        if self._aborts and not isinstance(self._session, IsolatedSession) and not self._is_safe(feeds):
            self._session = None
            self._session = IsolatedSession(self._model.for_session(), self._optimize)
        if self._session is None:
            raise RunError("the engine is closed")
        return self._session.run(feeds)

    def close(self) -> None:
        """End the session, and the child process if there is one."""
        if isinstance(self._session, IsolatedSession):
            self._session.close()
        self._session = None

    def _is_safe(self, feeds: Mapping[str, Array]) -> bool:
        """Whether shape inference shows that every native node gets at least one step and one row."""
        shapes = {name: array.shape for name, array in feeds.items() if hasattr(array, "shape")}
        key = tuple(sorted(shapes.items()))
        if key not in self._known_safe:
            facts = gather_facts(self._model.proto, shapes)
            for node in facts.recurrent:
                known = node.x_dims is not None and all(isinstance(d, int) and d > 0 for d in node.x_dims[:2])
                if node.op_type in _ABORTING and not known:
                    return False
            self._known_safe.add(key)
        return True


Engine = OnnxRuntimeEngine | NumpyEngine


_MODEL_PATH = re.compile(r"Load model from .* failed")
_NAMED_NODE = re.compile(r"""In Node, \("([^"]*)"|in node \(([^)]*)\)""")


def inherited_fault(error: LoadError, reference: HeldModel) -> bool:
    """Whether onnxruntime refuses ``reference`` in the same words, or over a node that it holds."""
    found = _NAMED_NODE.search(str(error))
    name = (found.group(1) or found.group(2)) if found else ""
    names = {node.name for node in reference.proto.graph.node if node.op_type not in RECURRENT}
    try:
        Session(reference.for_session(), optimize=False)
    except LacksKernelError:
        return False
    except LoadError as own:
        same, other = (_MODEL_PATH.sub("", str(each)) for each in (own, error))
        return same == other or bool(name and name in names)
    return False


def open_engine(
    model: HeldModel,
    facts: Facts,
    semantics: Semantics,
    forced: EngineName | None,
    *,
    optimize: bool,
    empty_inputs: bool,
    excuse: Callable[[LoadError], bool],
) -> tuple[Engine, list[str]]:
    """The engine for ``model``, and notes on what was tried before.

    ``excuse`` says whether NumPy may still evaluate what onnxruntime calls an invalid model.

    Raises:
        LoadError: the engine refuses the model, or no engine has an implementation for it.
    """
    reasons = reasons_against_onnxruntime(facts, semantics, empty_inputs)
    notes: list[str] = []
    if forced != "rnnlower-reference" and (forced or not reasons):
        try:
            return OnnxRuntimeEngine(model, facts, optimize), notes
        except LoadError as error:
            if forced or not (isinstance(error, LacksKernelError) or excuse(error)):
                raise
            notes.append(f"the {model.role} does not run on onnxruntime: {brief(error)}")
    return NumpyEngine(model, semantics), notes
