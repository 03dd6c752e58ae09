"""The base class of all passes, and the pre- and postconditions that passes declare.

A condition is a function whose name states it. Its arguments are the model and the pass. A lowering does not
check them: `tests/passes/test_contracts.py` does, before and after every pass of many lowerings, and those of
the steps of a lowering as well. In addition, every pass keeps the graph's inputs and outputs, and the model
valid.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, ClassVar

import onnx_ir as ir

from rnnlower.files.model_io import normalize_opset_imports
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.graph.rollback import rollback_on_failure
from rnnlower.graph.walk import is_read, qualified_op_type, walk
from rnnlower.recurrent.finding import find_recurrent

Condition = Callable[[ir.Model, Any], bool]


def no_function_is_recurrent(model: ir.Model, owner: object) -> bool:
    """Return whether no function of the model holds a recurrent node."""
    return not any(located.path.startswith("function:") for located in find_recurrent(model))


def initializers_suit_ir_version(model: ir.Model, owner: object) -> bool:
    """Return whether the IR version allows the initializers that are not graph inputs."""
    values = model.graph.initializers.values()
    return model.ir_version >= FREE_INITIALIZERS_IR or all(value.is_graph_input() for value in values)


def are_gone(model: ir.Model, names: Mapping[str, Collection[str]]) -> bool:
    """Return whether neither the main graph nor a subgraph has nodes of these names, by their operators."""
    return not any(node.name in names.get(qualified_op_type(node), ()) for node, _ in walk(model.graph))


def nothing_is_dead(model: ir.Model, owner: object) -> bool:
    """Return whether every node has an output that is needed."""
    return all(any(is_read(out) for out in node.outputs) for node, _ in walk(model.graph))


def finds_nothing(model: ir.Model, owner: Any) -> bool:
    """Return whether the pass finds no node or output to change."""
    return not owner.find(model)


class Pass(ir.passes.InPlacePass):
    """A pass that completes, or leaves the model unchanged.

    A pass on its own takes a snapshot of the model, and restores it on failure. A pass that is called with
    facts is part of a pipeline or of another pass and takes none: a pipeline works on a copy, which is
    discarded on failure, and the outer pass has a snapshot already.

    Attributes:
        REQUIRES, ENSURES: Conditions that hold before and after the pass.
        KEEPS_FACTS: Whether all known facts stay valid after the pass, and no new ones become known.
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
        with rollback_on_failure(model) if facts is None else contextlib.nullcontext():
            if facts is None:
                # A model that `rnnlower` has not read itself may import the default domain by its long name.
                normalize_opset_imports(model, "the model")
            self.facts = Facts(model) if facts is None else facts
            result = super().__call__(model_or_result)
        if result.modified and not self.KEEPS_FACTS:
            self.facts.forget()
        return result
