"""The data that the steps of the pipeline share: the model, and what is known of it so far."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import cast

import numpy as np
import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import Located, default_opset, walk
from rnnlower.lowering import LAST_OPSET
from rnnlower.lowering.replacing import EMITTED, Gates, LoweredNode, Plan
from rnnlower.lowering.sketching import Preferences, Sketches
from rnnlower.passes.lowering_options import LoweringOptions
from rnnlower.recurrent.exporter_warnings import Suspicion
from rnnlower.targets import Target
from rnnlower.targets.choosing import Choice, KeptNode

_ORIGIN = "rnnlower.origin"

Tell = Callable[[str, int, int], None]


@dataclasses.dataclass
class Work:
    """A model on its way through the steps, with the data that they share.

    Attributes:
        model: The model, which the steps change.
        options: The options of the lowering.
        tell: Called with the phase and its progress.
        opset: The opset requested by the user, or else by the target; ``None`` if there is none.
        nodes: The recurrent nodes to be lowered, under the names and paths that they had in the source.
        unreachable: Those that were removed with a branch that never runs.
        impossible: Those that cannot run on inputs of the given shapes.
        choices: Whether the target's own operator runs each node.
        sketches: The candidates that were emitted to be priced.
        plans: How each node is to be lowered.
        needs: The opset that each form of a node needs, with the operator that needs it.
        adapted: Reports on the nodes that the target runs with ops around them.
        lowered: Reports on the other nodes.
        kept: The nodes that the target runs as they are.
        notes: Messages for the user.
        sets: The inputs that were set, with their values.
        warnings: What the result may not do that the user expects of it.
        dequantized: Outputs of the quantized nodes that became float ones.
        facts: The facts about the model, which the steps share.
        rounds: Whether a recurrence rounds each operator to 16 bits.
    """

    model: ir.Model
    options: LoweringOptions
    tell: Tell = lambda *_: None
    opset: int | None = None
    nodes: list[Located] = dataclasses.field(default_factory=list)
    unreachable: list[Located] = dataclasses.field(default_factory=list)
    impossible: list[Located] = dataclasses.field(default_factory=list)
    choices: dict[ir.Node, Choice] = dataclasses.field(default_factory=dict)
    sketches: Sketches = dataclasses.field(default_factory=dict)
    plans: dict[ir.Node, Plan] = dataclasses.field(default_factory=dict)
    needs: dict[Located, dict[str, int]] = dataclasses.field(default_factory=dict)
    adapted: list[LoweredNode] = dataclasses.field(default_factory=list)
    lowered: list[LoweredNode] = dataclasses.field(default_factory=list)
    kept: list[KeptNode] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    sets: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)
    warnings: list[Suspicion] = dataclasses.field(default_factory=list)
    rounds: bool = False
    dequantized: list[str] = dataclasses.field(default_factory=list)
    facts: Facts = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.opset = _asked_opset(self.model, self.options)
        self.facts = Facts(self.model)

    @property
    def target(self) -> Target:
        """The target, in steps that require one."""
        assert self.options.target is not None
        return self.options.target

    @property
    def preferences(self) -> Preferences:
        """The preferences of the user, or else of the target."""
        options, arithmetic = self.options, None if self.options.target is None else self.target.arithmetic
        gates, compute_type = options.gates, options.compute_type
        if arithmetic is not None:
            gates = cast(Gates, arithmetic.gates) if gates == "auto" else gates
            compute_type = "float32" if arithmetic.accumulates == "float16" else compute_type
        return Preferences(options.unroll_factor, gates, None if compute_type is None else ir.DataType.FLOAT)

    def find_nodes(self) -> None:
        """Locate the selected nodes in the current model, under their names and paths in the source."""
        opset = default_opset(self.model)
        self.nodes = [
            dataclasses.replace(node.meta[_ORIGIN], node=node, opset=opset)
            for node, _ in walk(self.model.graph)
            if is_selected(node)
        ]


def _asked_opset(model: ir.Model, options: LoweringOptions) -> int | None:
    """Return the opset that the user requests, or that the target needs."""
    opset, target = default_opset(model), options.target
    if options.opset is not None:
        return options.opset
    if target is not None and opset > target.opset.range[1]:
        return target.opset.range[1]
    if opset > LAST_OPSET:
        raise UnsupportedModelError(
            f"the model has opset {opset}, and the last supported one is {LAST_OPSET}",
            remedy=f"ask for a lower one ({wording.option('opset', LAST_OPSET)})",
        )
    return None


def select(located: Located) -> None:
    """Mark a node as one to be lowered; the mark moves with the node."""
    located.node.meta[_ORIGIN] = located


def is_selected(node: ir.Node) -> bool:
    """Return whether the node is to be lowered."""
    return _ORIGIN in node.meta


def leave_out(node: ir.Node) -> None:
    """Remove the mark: the node stays as it is."""
    del node.meta[_ORIGIN]


def forget_marks(model: ir.Model) -> None:
    """Remove the marks of the steps, which another lowering would take for its own."""
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        for node, _ in walk(graph):
            for mark in (EMITTED, _ORIGIN):
                if mark in node.meta:
                    del node.meta[mark]
