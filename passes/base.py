"""The base class of all passes.

A lowering does not check what passes and steps require and ensure: `tests/passes/test_contracts.py` does,
before and after every pass and step of many lowerings, by the table `tests/support/contract_table.py`. In
addition, every pass keeps the graph's inputs and outputs, and the model valid.
"""

from __future__ import annotations

import contextlib
from typing import ClassVar

import onnx_ir as ir

from rnnlower.files.model_io import normalize_opset_imports
from rnnlower.graph.facts import Facts
from rnnlower.graph.rollback import rollback_on_failure


class Pass(ir.passes.InPlacePass):
    """A pass that completes, or leaves the model unchanged.

    A pass on its own takes a snapshot of the model, and restores it on failure. A pass that is called with
    facts is part of a pipeline or of another pass and takes none: a pipeline works on a copy, which is
    discarded on failure, and the outer pass has a snapshot already.

    Attributes:
        KEEPS_FACTS: Whether all known facts stay valid after the pass, and no new ones become known.
        facts: The facts about the model: those of the caller, or the pass's own.
    """

    KEEPS_FACTS: ClassVar[bool] = False
    facts: Facts

    def __call__(
        self, model_or_result: ir.Model | ir.passes.PassResult, /, facts: Facts | None = None
    ) -> ir.passes.PassResult:
        model = model_or_result if isinstance(model_or_result, ir.Model) else model_or_result.model
        with rollback_on_failure(model) if facts is None else contextlib.nullcontext():
            if facts is None:
                # A model that `rnnlower` has not read itself may import the default domain by its long name.
                normalize_opset_imports(model, "the model")
            self.facts = Facts(model) if facts is None else facts
            result = super().__call__(model_or_result)
        if result.modified and not self.KEEPS_FACTS:
            self.facts.forget()
        return result
