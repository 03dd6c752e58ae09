"""Common parts of all passes."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import ClassVar

import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.restoring import undone_on_failure
from rnnlower.passes.contracts import Condition


class Pass(ir.passes.InPlacePass):
    """A pass that completes, or leaves the model unchanged.

    That is so for a pass on its own, which remembers the model. Called with facts, it is a part of a pipeline
    or of another pass and remembers nothing: a pipeline works on a copy, which a failure throws away, and the
    other pass remembers the model already.

    Attributes:
        REQUIRES, ENSURES: Conditions that hold before and after the pass.
        KEEPS_FACTS: Whether facts about the model hold after the pass, and no more than before follow.
        facts: The facts about the model: those of the caller, or the pass's own.
    """

    REQUIRES: ClassVar[Sequence[Condition]] = ()
    ENSURES: ClassVar[Sequence[Condition]] = ()
    KEEPS_FACTS: ClassVar[bool] = False
    facts: Facts

    def __call__(
        self, model_or_result: ir.Model | ir.passes.PassResult, /, facts: Facts | None = None
    ) -> ir.passes.PassResult:
        model = model_or_result if isinstance(model_or_result, ir.Model) else model_or_result.model
        self.facts = Facts(model) if facts is None else facts
        with undone_on_failure(model) if facts is None else contextlib.nullcontext():
            result = super().__call__(model_or_result)
        if result.modified and not self.KEEPS_FACTS:
            self.facts.forget()
        return result
