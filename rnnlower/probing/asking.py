"""Questions to a runtime: small models whose correct outputs are known, and the answers."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from importlib import metadata
from typing import Any, ParamSpec

import numpy as np
import onnx
import onnx.parser
from onnx import helper, numpy_helper

from rnnlower.engines.catalog import Engine
from rnnlower.engines.opened_models import Attempts, EngineError
from rnnlower.engines.reference import evaluate
from rnnlower.folders import whole_file
from rnnlower.verification.verdict.compare import Tolerance, compare_values

Feeds = Mapping[str, Any]
OnProgress = Callable[[str], None]
_Values = ParamSpec("_Values")

# Relative to the largest number that differs.
_TOLERANCES = {"float16": 5e-3, "float32": 2e-4}
# Of float16 data, which may be rounded after each operator.
_HALF_TOLERANCE = 2e-3
_SECONDS_BETWEEN_SAVES = 5.0
# IR version 8 belongs to opset 15 to 18; runtimes that want an older one read it from there.
_IR_VERSION = 8


@dataclasses.dataclass(frozen=True)
class Question:
    """A model, with the inputs and the correct outputs of one or more runs."""

    model: onnx.ModelProto
    trials: Sequence[tuple[Feeds, Feeds]]


def question(
    nodes: str | Sequence[onnx.NodeProto],
    inputs: Feeds,
    opset: int,
    constant: Collection[str] = (),
    outputs: Sequence[str] = (),
    expected: Feeds | None = None,
) -> Question:
    """Make a question about some nodes; graph inputs and outputs are float32, with Casts for other types.

    Args:
        nodes: The nodes in order, or their text in ONNX's syntax, one per line.
        inputs: Their inputs.
        opset: The version of the default domain.
        constant: The inputs that are initializers.
        outputs: The names of the outputs to compare; by default those of the last node.
        expected: The correct outputs; by default the reference computes them.

    Raises:
        Exception: The nodes are not valid, or the reference does not run them.
    """
    nodes = parse_nodes(nodes) if isinstance(nodes, str) else nodes
    outputs = outputs or [*nodes[-1].output]
    fed = {name: np.asarray(array) for name, array in inputs.items() if name not in constant}
    casts = {name: array.dtype for name, array in fed.items() if array.dtype != np.float32}
    head = [
        helper.make_node("Cast", [f"{name}_fed"], [name], to=helper.np_dtype_to_tensor_dtype(dtype))
        for name, dtype in casts.items()
    ]
    feeds = {
        f"{name}_fed" if name in casts else name: np.asarray(array, np.float32) for name, array in fed.items()
    }
    weights = {name: array for name, array in inputs.items() if name in constant}
    unknown = [helper.make_empty_tensor_value_info(name) for name in outputs]
    model = make_model([*head, *nodes], feeds, unknown, opset, weights)
    if expected is None:
        expected = evaluate(model, feeds)
    graph = model.graph
    del graph.output[:]
    right = {}
    for name in outputs:
        array = np.asarray(expected[name])
        if array.dtype == np.float32:
            shown = name
        else:
            shown = f"{name}_shown"
            graph.node.append(helper.make_node("Cast", [name], [shown], to=onnx.TensorProto.FLOAT))
        right[shown] = array.astype(np.float32)
        graph.output.append(helper.make_tensor_value_info(shown, 1, array.shape))
    onnx.checker.check_model(model, full_check=True)
    return Question(model, [(feeds, right)])


def parse_nodes(text: str) -> list[onnx.NodeProto]:
    """Parse nodes from ONNX's text syntax, one per line."""
    return [onnx.parser.parse_node(line) for line in text.splitlines()]


def parse_model(text: str) -> onnx.ModelProto:
    """Parse a graph from ONNX's text syntax into a model at opset 13."""
    return onnx.parser.parse_model(f'<ir_version: {_IR_VERSION}, opset_import: ["" : 13]> {text}')


def make_model(
    nodes: Sequence[onnx.NodeProto],
    feeds: Feeds,
    outputs: Sequence[onnx.ValueInfoProto],
    opset: int,
    weights: Feeds,
) -> onnx.ModelProto:
    """Build a model from nodes, graph inputs, outputs and initializers."""
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in feeds.items()
    ]
    constants = [numpy_helper.from_array(np.asarray(array), name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "question", inputs, outputs, constants)
    opsets = {"": opset} | {node.domain: 1 for node in nodes if node.domain}
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid(*entry) for entry in opsets.items()],
        ir_version=_IR_VERSION if opset < 21 else 10,
    )


def model_question(model: onnx.ModelProto, *fed: Feeds) -> Question:
    """Make a question about a model; the reference computes the outputs for each set of inputs."""
    return Question(model, [(feeds, evaluate(model, feeds)) for feeds in fed])


class Asker(contextlib.ExitStack):
    """A client that asks a runtime and saves the answers, so that an interrupted probe can resume.

    Args:
        partial: The file in which the answers are saved, if any.
        on_progress: Called once for each question, including those an interrupted probe has already asked.
    """

    def __init__(self, engine: Engine, partial: pathlib.Path | None, on_progress: OnProgress) -> None:
        super().__init__()
        self.engine = engine
        self._on_progress = on_progress
        self._asked: set[str] = set()
        self._attempts = Attempts(engine)
        self.push(self._attempts)
        self.callback(self._save)
        self._partial = partial
        self._identity = {
            "engine": engine.name,
            "version": engine.version,
            "rnnlower": metadata.version("rnnlower"),
            # A command has no version: another program in its place would answer otherwise.
            "changed": [os.path.getmtime(word) for word in engine.command if os.path.isfile(word)],
        }
        self._answers: dict[str, list[str]] = {}
        self._saved = time.monotonic()
        if partial is not None and partial.exists():
            # A file that was cut off in the middle is ignored: the questions are asked again.
            with contextlib.suppress(ValueError):
                kept = json.loads(partial.read_text(encoding="utf-8"))
                if isinstance(kept, dict) and kept.get("of") == self._identity:
                    self._answers = kept["answers"]

    def is_right(
        self, key: str, make: Callable[_Values, Question], *values: _Values.args, **options: _Values.kwargs
    ) -> bool:
        """Return whether the runtime answers correctly."""
        return self.ask(key, make, *values, **options) == "right"

    def ask(
        self, key: str, make: Callable[_Values, Question], *values: _Values.args, **options: _Values.kwargs
    ) -> str:
        """Ask the question that ``make(*values, **options)`` returns, once per ``key``.

        Returns:
            ``right``, ``wrong``, ``refuses``, ``crashes`` or ``hangs``.
        """
        if key not in self._asked:
            self._asked.add(key)
            self._on_progress(key)
        if key not in self._answers:
            asked = make(*values, **options)
            self._answers[key] = self._answer(asked)
            if self._answers[key][0] in ("hangs", "crashes"):
                # Other work on the machine may have held it up, or an earlier model broken its memory.
                self._answers[key] = self._answer(asked)
            if time.monotonic() - self._saved > _SECONDS_BETWEEN_SAVES:
                self._save()
        return self._answers[key][0]

    def message(self, key: str) -> str:
        """Return the runtime's error message for a question; ``""`` if it answered."""
        return self._answers[key][1]

    def finish(self) -> None:
        """Delete the saved answers: another run does not need them."""
        if self._partial is not None:
            self._partial.unlink(missing_ok=True)
        self._partial = None

    def _answer(self, asked: Question) -> list[str]:
        # A recurrent node may keep its state from one run to the next.
        trials = (*asked.trials, asked.trials[0])
        try:
            answers = self._attempts.run(asked.model, *(feeds for feeds, _ in trials))
        except EngineError as error:
            return [error.how, str(error)]
        size = _TOLERANCES.get(self.engine.precision, _TOLERANCES["float32"])
        for outputs, (_, expected) in zip(answers, trials, strict=True):
            for name, array in expected.items():
                allowed = max(size, _HALF_TOLERANCE) if array.dtype == np.float16 else size
                tolerance = Tolerance(allowed, allowed, scaled=True)
                if name not in outputs or not compare_values(name, array, outputs[name], tolerance).equal:
                    return ["wrong", ""]
        return ["right", ""]

    def _save(self) -> None:
        self._saved = time.monotonic()
        if self._partial is not None:
            text = json.dumps({"of": self._identity, "answers": self._answers}, indent=0)
            with whole_file(self._partial) as part:
                part.write_text(text, encoding="utf-8")
