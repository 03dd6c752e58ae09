"""Lowering of LinearAttention and CausalConvWithState nodes to primitive operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import field

import onnx_ir as ir

from rnnlower import wording
from rnnlower.arguments import check_choice, check_unroll_factor
from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.dynamic_sizes import options_for_sizes
from rnnlower.graph.rewiring import detach, remove_orphans
from rnnlower.graph.walk import LocatedNode, is_read
from rnnlower.lowering.dialect import ANY, Dialect
from rnnlower.lowering.emitter import Emitter, Emitters
from rnnlower.lowering.replacing import LoweredNode, located_errors, replace_node
from rnnlower.lowering.state_lowering import (
    COMPUTE_TYPE,
    ChunkForm,
    choose_chunk_form,
    lower_state_operator,
    needs_steps,
)
from rnnlower.lowering.strategies import STRATEGIES
from rnnlower.passes.base import Pass
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.state_operators import (
    AttentionNode,
    StateNode,
    is_state_operator,
    parse_state_operators,
    require_sizes,
)


def _nodes_are_replaced(model: ir.Model, lowering: LowerStateOperatorsPass) -> bool:
    nodes = find_recurrent(model, is_state_operator) if lowering.nodes is None else lowering.nodes
    return all(located.node.graph is None for located in nodes)


@dataclasses.dataclass(eq=False)
class LowerStateOperatorsPass(Pass):
    """Lowers nodes of the main graph and its subgraphs.

    Before, at opset 27::

        (float[1, 2, 4] x, float[2, 1, 1] w) => (float[1, 2, 4] y, float[1, 2, 0] state) {
            y, state = CausalConvWithState (x, w)
        }

    After ``LowerStateOperatorsPass("unroll")``::

        (float[1, 2, 4] x, float[2, 1, 1] w) => (float[1, 2, 4] y, float[1, 2, 0] state)
        <int64[1] end = {9223372036854775807}, int64[1] time = {2}> {
            y = Conv <dilations = [1], group = 2, kernel_shape = [1], pads = [0, 0]> (x, w)
            state = Slice (x, end, end, time)
        }

    Args:
        strategy: ``unroll``, ``scan`` or ``loop``.
        nodes: The nodes to lower; ``None``: all of the model.
        unroll_factor: Time steps of a chunk, in a Scan or Loop.
        dialect: The operators that may be emitted; ``None``: all.
        reason: Why the nodes have the strategy, if it was not asked for; their chunks then have the fastest
            size.
        namespaces: Whether the emitted nodes carry the metadata by which viewers fold them.

    Attributes:
        lowered: Reports on the nodes.
    """

    ENSURES = (_nodes_are_replaced,)

    strategy: str
    nodes: Sequence[LocatedNode] | None = None
    _: dataclasses.KW_ONLY
    unroll_factor: int = 1
    dialect: Dialect | None = None
    reason: str = ""
    namespaces: bool = False
    lowered: list[LoweredNode] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        check_choice("the strategy is", self.strategy, [*STRATEGIES])
        self.unroll_factor = check_unroll_factor(self.unroll_factor)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Lower the nodes.

        Raises:
            InvalidModelError: A node breaks the spec of its operator.
            OpsetError: The replacement of a node is newer than the model's opset.
            UnsupportedModelError: A node uses an unsupported feature, or something about it is not known.
        """
        found = find_recurrent(model, is_state_operator) if self.nodes is None else self.nodes
        nodes = parse_state_operators(found, self.facts)
        for node in nodes:
            require_sizes(node)
            if node.steps is None and needs_steps(node, self.strategy):
                raise _unknown_steps_error(node, model)
        emitters = Emitters(model, self.dialect or ANY, namespaces=self.namespaces)
        emitted: list[tuple[StateNode, Emitter, ChunkForm | None, list[ir.Value]]] = []
        try:
            for node in nodes:
                e = emitters.at(node.located.name, COMPUTE_TYPE)
                form = None
                if isinstance(node, AttentionNode):
                    form = choose_chunk_form(
                        node, self.strategy, self.unroll_factor, priced=bool(self.reason)
                    )
                values: list[ir.Value] = []
                emitted.append((node, e, form, values))
                with located_errors(node.located):
                    values += lower_state_operator(e, node, form)
        except Exception:
            for _, e, _, _ in emitted:
                detach(e.everything)
            remove_orphans(emitters.constants.values())
            raise
        for node, e, form, values in emitted:
            old = node.located.node
            read = [value if is_read(out) else None for value, out in zip(values, old.outputs, strict=False)]
            replace_node(old, read, e.nodes, mark=self.dialect is not None)
            remove_orphans(values)
            strategy, count = (form and form.strategy) or "unroll", len(e.everything)
            reason, words = self.reason or "asked for", "" if form is None else str(form)
            how = "forward", strategy, node.steps
            self.lowered.append(LoweredNode(*node.located.origin, *how, count, reason, words))
        remove_orphans(emitters.constants.values())
        return ir.passes.PassResult(model, modified=bool(nodes))


def _unknown_steps_error(node: StateNode, model: ir.Model) -> UnsupportedModelError:
    """Return the refusal of a node whose straight line has no known length."""
    sizes = str(options_for_sizes(model.graph.inputs))
    other_way = f"keep it dynamic with `{wording.call('scan')}`"
    return UnsupportedModelError(
        "its number of time steps is not known, and unrolling its update rule needs it",
        node=node.located,
        remedy=f"give it one ({sizes}), or {other_way}" if sizes else other_way,
    )
