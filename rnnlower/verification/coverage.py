"""What the trials did not reach: branches that never ran, outputs that held nothing to compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.external_data_helper import uses_external_data

from rnnlower.verification.compare import is_inexact
from rnnlower.verification.models import HeldModel
from rnnlower.verification.narrow import with_outputs
from rnnlower.verification.trials import RunModel, Trial

__all__ = ["BranchWatch", "empty_words"]

Array = NDArray[Any]


class BranchWatch:
    """Sees which branches the Ifs of the main graph take, by their conditions.

    ``model`` is the model with the conditions as outputs, which `watched` takes away again.
    """

    def __init__(self, model: HeldModel) -> None:
        graph = model.proto.graph
        self._ifs = {node.input[0]: node for node in graph.node if node.op_type == "If" and not node.domain}
        for tensor in graph.initializer:
            self._ifs.pop(tensor.name, None)
        known = {value.name for value in (*graph.input, *graph.output)}
        self._added = [name for name in self._ifs if name not in known]
        self._seen: dict[str, set[bool]] = {name: set() for name in self._ifs}
        # Not worth a second copy of data that is kept outside.
        external = any(uses_external_data(tensor) for tensor in graph.initializer)
        extended = with_outputs(model, self._added) if self._added and not external else None
        self.model = extended or model
        if self._added and extended is None:
            self._ifs = {}

    def watched(self, run: RunModel) -> RunModel:
        """``run``, which runs ``model``, with the conditions noted and taken out of the outputs."""

        def noting(feeds: dict[str, Array]) -> dict[str, Any]:
            outputs = run(feeds)
            for name in self._ifs:
                value = outputs[name] if name in outputs else feeds[name]
                self._seen[name].add(bool(np.ravel(value)[0]))
            return {name: value for name, value in outputs.items() if name not in self._added}

        return noting

    def words(self) -> list[str]:
        """A sentence for each branch that never ran."""
        return [
            f"If node {node.name or node.output[0]!r}: its {branch} ran on no inputs, and was not compared"
            for name, node in self._ifs.items()
            for branch, value in (("then_branch", True), ("else_branch", False))
            if self._seen[name] and value not in self._seen[name]
        ]


def empty_words(trials: Sequence[Trial]) -> list[str]:
    """A sentence for each output of the reference that never held a number."""
    words = []
    for name in trials[0].outputs if trials else ():
        values = [trial.outputs[name] for trial in trials]
        if not all(isinstance(value, np.ndarray) for value in values):
            continue
        if all(value.size == 0 for value in values):
            words.append(f"output {name!r} is empty in every trial: only its shape and dtype were compared")
        elif not any(map(_has_number, values)):
            words.append(f"output {name!r} is NaN or infinite in every trial: no number of it was compared")
    return words


def _has_number(value: Array) -> bool:
    if not is_inexact(value.dtype):
        return True
    return bool(np.isfinite(value.astype(np.float64)).any())
