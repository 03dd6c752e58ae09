"""The types of a pipeline: its steps, and the data that they share."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import LocatedNode, count_ops, default_opset, walk
from rnnlower.passes.base import Pass
from rnnlower.passes.options import LoweringOptions, Options
from rnnlower.recurrent.finding import is_recurrent
from rnnlower.recurrent.suspicions import Suspicion

if TYPE_CHECKING:
    from rnnlower.lowering.node_emitter import Listener
    from rnnlower.lowering.replacing import LoweredNode, Plan
    from rnnlower.lowering.sketching import Sketches
    from rnnlower.targets.choosing import Choice, KeptNode
    from rnnlower.targets.target import Target

_SELECTED = "rnnlower.origin"
AnyPass = TypeVar("AnyPass", bound=Pass)


@dataclasses.dataclass
class Work:
    """A model on its way through the steps of a pipeline, with the data that they share.

    Attributes:
        model: The model, which the steps change.
        opset: The opset that the result is to have; ``None``: the source's, raised as far as needed.
        nodes: The recurrent nodes that the steps are about.
        notes, warnings, sets, dequantized, rounds: As in a `RewritingReport`.
    """

    model: ir.Model
    options: Options
    opset: int | None = None
    nodes: list[LocatedNode] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    warnings: list[Suspicion] = dataclasses.field(default_factory=list)
    sets: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    dequantized: list[str] = dataclasses.field(default_factory=list)
    rounds: bool = False
    facts: Facts = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.facts = Facts(self.model)
        self._ops_before = count_ops(self.model)

    def summary(self) -> dict[str, Any]:
        """Return the fields of a `RewritingReport`."""
        return {
            "opset": default_opset(self.model),
            "ops_before": self._ops_before,
            "ops_after": count_ops(self.model),
            **{name: getattr(self, name) for name in ("notes", "sets", "warnings", "rounds", "dequantized")},
        }

    @property
    def target(self) -> Target:
        """The target, in steps that require one."""
        assert self.options.runtime is not None
        return self.options.runtime

    def apply(self, change: AnyPass) -> AnyPass:
        """Apply a pass to the model; return it, with what it reports."""
        change(self.model, self.facts)
        return change

    def lacks(self, node: ir.Node) -> bool:
        """Return whether there is a target, and it lacks the operator of the node."""
        if self.options.runtime is None:
            return False
        # A conversion has no target, and need not load what judges nodes.
        from rnnlower.targets.fit import has_operator

        return not has_operator(self.options.runtime, node)


@dataclasses.dataclass
class LoweringWork(Work):
    """The data that the steps of a lowering share.

    Attributes:
        listen: Returns the listener for a node, which receives the roles of the values in its steps.
        nodes: The recurrent nodes to be lowered, under the names and paths that they had in the source.
        state_nodes: The LinearAttention and CausalConvWithState nodes to be lowered, likewise.
        unreachable: Those that were removed with a branch that never runs.
        impossible: Those that cannot run on inputs of the given shapes.
        choices: The decision on each node for which there is a target.
        sketches: The candidates that were emitted to be priced.
        plans: How each node is to be lowered.
        needs: The opset that the form of a state node needs, with the operator that needs it.
        adapted: Reports on the nodes that the target runs with ops around them.
        lowered: Reports on the other nodes.
        kept: The nodes that the target runs as they are.
    """

    options: LoweringOptions
    listen: Callable[[LocatedNode], Listener] | None = None
    state_nodes: list[LocatedNode] = dataclasses.field(default_factory=list)
    unreachable: list[LocatedNode] = dataclasses.field(default_factory=list)
    impossible: list[LocatedNode] = dataclasses.field(default_factory=list)
    choices: dict[ir.Node, Choice] = dataclasses.field(default_factory=dict)
    sketches: Sketches = dataclasses.field(default_factory=dict)
    plans: dict[ir.Node, Plan] = dataclasses.field(default_factory=dict)
    needs: dict[LocatedNode, dict[str, int]] = dataclasses.field(default_factory=dict)
    adapted: list[LoweredNode] = dataclasses.field(default_factory=list)
    lowered: list[LoweredNode] = dataclasses.field(default_factory=list)
    kept: list[KeptNode] = dataclasses.field(default_factory=list)

    def find_nodes(self) -> None:
        """Locate the selected nodes in the current model, under their names and paths in the source."""
        opset = default_opset(self.model)
        selected = [
            dataclasses.replace(node.meta[_SELECTED], node=node, opset=opset, inner=bool(path))
            for node, path in walk(self.model.graph)
            if is_selected(node)
        ]
        self.nodes = [located for located in selected if is_recurrent(located.node)]
        self.state_nodes = [located for located in selected if not is_recurrent(located.node)]


AnyWork = TypeVar("AnyWork", bound=Work)
AnyOptions = TypeVar("AnyOptions", bound=Options)


@dataclasses.dataclass(frozen=True)
class Step(Generic[AnyWork, AnyOptions]):
    """An entry of a pipeline.

    Attributes:
        reason: The reason for its position.
        when: What must be true of the options, or the step is left out.
    """

    run: Callable[[AnyWork], None]
    reason: str
    when: Callable[[AnyOptions], object] = lambda options: True


def run_steps(steps: Sequence[Step[AnyWork, Any]], work: AnyWork) -> AnyWork:
    """Run the steps that the options ask for; return the work. A failure leaves the model half changed."""
    for step in steps:
        if step.when(work.options):
            step.run(work)
    return work


def select(located: LocatedNode) -> None:
    """Mark a node as one to be lowered; the mark moves with the node."""
    located.node.meta[_SELECTED] = located


def is_selected(node: ir.Node) -> bool:
    """Return whether the node is to be lowered."""
    return _SELECTED in node.meta


def deselect(node: ir.Node) -> None:
    """Remove the mark: the node stays as it is."""
    del node.meta[_SELECTED]
