"""Lowering of LSTM, GRU, RNN, LinearAttention and CausalConvWithState nodes to primitive operators."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import field

import onnx_ir as ir

from rnnlower.arguments import check_choice, check_unroll_factor
from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.dynamic_sizes import describe_branch_inputs, options_for_sizes
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR, sink_initializers
from rnnlower.graph.rewiring import detach, remove_orphans
from rnnlower.graph.suppression import paused_gc
from rnnlower.graph.walk import LocatedNode, default_opset, is_read
from rnnlower.lowering.dialect import ANY, Dialect
from rnnlower.lowering.emitter import Emitter, Emitters
from rnnlower.lowering.node_emitter import Listener
from rnnlower.lowering.replacing import Gates, LoweredNode, Plan, located_errors, replace_node
from rnnlower.lowering.sequence import emit_failing_outputs, lower_node
from rnnlower.lowering.sketching import Preferences, Task, cheapest, find_candidates
from rnnlower.lowering.state_lowering import (
    COMPUTE_TYPE,
    ChunkForm,
    choose_chunk_form,
    lower_state_operator,
    needs_steps,
)
from rnnlower.lowering.strategies import STRATEGIES
from rnnlower.lowering.weights import Weights, compute_type_of, private_weights
from rnnlower.passes.base import Pass
from rnnlower.passes.static_shapes import dynamic_remedy, resolve_static_lengths
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.node import ResolvedNode, Semantics, check_semantics
from rnnlower.recurrent.operators import OUTPUT_NAMES
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.recurrent.state_operators import (
    AttentionNode,
    StateNode,
    is_state_operator,
    parse_state_operators,
    require_sizes,
)
from rnnlower.targets.reading import find_target


def _nodes_are_replaced(model: ir.Model, lowering: LowerRecurrentPass) -> bool:
    nodes = find_recurrent(model) if lowering.nodes is None else lowering.nodes
    return all(located.node.graph is None for located in (*nodes, *lowering.impossible))


@dataclasses.dataclass(eq=False)
class LowerRecurrentPass(Pass):
    """Lowers nodes of the main graph and its subgraphs.

    Weights computed from constants (`FoldWeightsPass`), undeclared types
    (`InferTypesPass`) and functions (`InlineFunctionsPass`) are handled by other passes. The lengths that
    unrolling needs are found as `StaticShapesPass` finds them.

    Before::

        (float[2, 1, 1] X) => (float[2, 1, 1, 1] Y) <float[1, 1, 1] W = {1}, float[1, 1, 1] R = {0.5}> {
            Y = RNN <hidden_size = 1> (X, W, R)
        }

    After ``LowerRecurrentPass("unroll")``::

        (float[2, 1, 1] X) => (float[2, 1, 1, 1] Y)
        <float[1, 1] w = {1}, int64[2] rows = {-1, 1}, float[1, 1] r = {0.5}, int64[4] shape = {2, 1, 1, 1}> {
            x = Reshape (X, rows)
            wx = Gemm <transB = 1> (x, w)
            x_0, x_1 = Split <axis = 0> (wx)
            h_0 = Tanh (x_0)
            a_1 = Gemm (h_0, r, x_1)
            h_1 = Tanh (a_1)
            h = Concat <axis = 0> (h_0, h_1)
            Y = Reshape (h, shape)
        }

    Args:
        strategy: ``unroll``, ``scan`` or ``loop``, or a plan for each of the nodes.
        nodes: The nodes to lower, each with the opset by which it is read (its replacement has the
            model's); ``None``: every recurrent node of the model.
        unroll_factor: Time steps per iteration of a Scan or Loop, if there is no plan.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ: ``ort`` or ``spec``.
        impossible: Nodes in branches that fail if they are ever taken; see `StaticShapesPass`.
        dialect: The operators that may be emitted; ``None``: all, in the forms that onnxruntime runs fastest.
        compute_type: The type in which narrower floats are computed; ``None``: their own, float32 for
            bfloat16.
        gates: Whether gates share products: ``fused``, ``separate``, or ``auto`` for the fastest.
        tell: Called with the number of the node being lowered, and the number of nodes.
        listen: Returns the listener for a node, which receives the roles of the values in its steps.
        namespaces: Whether the emitted nodes carry the metadata by which viewers fold them.

    Raises:
        OptionError: The strategy or the semantics do not exist, or the factor is below 1.

    Attributes:
        lowered: Reports on the nodes.
        notes: Messages to the user about the chosen forms.
    """

    ENSURES = (_nodes_are_replaced,)

    strategy: str | Mapping[ir.Node, Plan]
    nodes: Sequence[LocatedNode] | None = None
    _: dataclasses.KW_ONLY
    unroll_factor: int = 1
    semantics: Semantics = "ort"
    impossible: Sequence[LocatedNode] = ()
    dialect: Dialect | None = None
    compute_type: ir.DataType | None = None
    gates: Gates = "auto"
    tell: Callable[[str, int, int], None] = lambda *_: None
    listen: Callable[[LocatedNode], Listener] | None = None
    namespaces: bool = False
    lowered: list[LoweredNode] = field(init=False, default_factory=list)
    notes: dict[str, None] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        if isinstance(self.strategy, str):
            check_choice("the strategy is", self.strategy, [*STRATEGIES])
        self.unroll_factor = check_unroll_factor(self.unroll_factor)
        check_semantics(self.semantics)
        self._dialect = self.dialect or find_target()

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Lower the nodes.

        Raises:
            InvalidModelError: A node breaks the ONNX spec.
            OpsetError: The replacement of a node is newer than the model's opset.
            UnsupportedModelError: A node uses an unsupported feature, or an unrolled one has no static
                length.
        """
        found = find_recurrent(model) if self.nodes is None else self.nodes
        for located in found:
            if self.nodes is None and located.path.startswith("function:"):
                raise UnsupportedModelError(
                    "it is in a function", node=located, remedy="inline it first (InlineFunctionsPass)"
                )
        unrolled = [
            located
            for located in found
            if (self.strategy if isinstance(self.strategy, str) else self.strategy[located.node].strategy)
            == "unroll"
        ]
        resolved = resolve_static_lengths(model, unrolled, None, self.semantics, self.facts)
        _, unreachable, impossible = resolved
        found = [located for located in found if located not in unreachable + impossible]
        self.impossible = [*self.impossible, *impossible]
        private = private_weights([located.node for located in found])
        with paused_gc():
            self._lower(model, found, private)
        return ir.passes.PassResult(model, modified=bool(self.lowered))

    def _lower(self, model: ir.Model, found: Sequence[LocatedNode], private: Container[ir.Value]) -> None:
        """Emit all replacements before any node is replaced, as nodes may read each other's outputs."""
        opset = default_opset(model)
        emitters = Emitters(model, self._dialect, namespaces=self.namespaces)
        plans = {located.node: self._plan(located, private, opset) for located in found}
        emitted: list[tuple[LocatedNode, Emitter, dict[str, ir.Value]]] = []
        reports = []
        for number, located in enumerate(found, 1):
            node = parse_recurrent(located, self.semantics)
            steps = f", {node.seq_length} steps" if node.seq_length else ""
            self.tell(f"lowering {located.name}{steps}: node", number, len(found))
            dtype = dtype_of(node, located)
            computed = compute_type_of(dtype, self.compute_type)
            listener = None if self.listen is None else self.listen(located)
            outer = located.node.metadata_props.get("namespace", "")
            e = emitters.at(located.name, computed, listener, outer)
            plan, weights = plans[located.node], Weights(private, dtype)
            with located_errors(located, "convert the model first (ConvertOpsetPass)"):
                outputs = lower_node(e, node, weights, plan.strategy, plan.form, plan.unroll_factor)
            emitted.append((located, e, outputs))
            reports.append(_report(located, e, plan, node.direction, node.seq_length))
        for located in self.impossible:
            e = emitters.at(located.name, ir.DataType.FLOAT)
            emitted.append((located, e, self._emit_failure(model, e, located)))
            direction = located.node.attributes.get_string("direction", "forward")
            plan = Plan("unroll", reason="it cannot run")
            reports.append(_report(located, e, plan, direction or "forward"))
        for located, e, outputs in emitted:
            self.notes |= e.notes
            ordered = [outputs.get(name) for name in OUTPUT_NAMES]
            replace_node(located.node, ordered, e.nodes, mark=self.dialect is not None)
        self.lowered += reports
        constants = emitters.constants.values()
        remove_orphans(constants)
        if self._dialect.prices.nearby_weights and model.ir_version >= FREE_INITIALIZERS_IR:
            sink_initializers(model.graph, constants)

    def _emit_failure(self, model: ir.Model, e: Emitter, located: LocatedNode) -> dict[str, ir.Value]:
        dialect = self._dialect
        if not (dialect.has("NonZero") and dialect.has("Reshape")) or dialect.needs_constant("Reshape", 1):
            decider = describe_branch_inputs(model, located.node)
            raise UnsupportedModelError(
                "it cannot run on inputs of these shapes, and "
                f"target {dialect.name} has no operators that make its branch fail",
                node=located,
                remedy=decider or "take the branch out of the model, or give the inputs other shapes",
            )
        return emit_failing_outputs(e, located.node)

    def _plan(self, located: LocatedNode, private: Container[ir.Value], opset: int) -> Plan:
        if not isinstance(self.strategy, str):
            return self.strategy[located.node]
        node = parse_recurrent(located, self.semantics)
        weights = Weights(private, dtype_of(node, located))
        preferences = Preferences(self.unroll_factor, self.gates, self.compute_type)
        with located_errors(located):
            task = Task(node, weights, opset, self._dialect, preferences)
            best = cheapest(find_candidates(task, [self.strategy], compared=False))
        assert best.form is not None
        return Plan(self.strategy, self.unroll_factor, form=best.form)


def _report(
    located: LocatedNode, e: Emitter, plan: Plan, direction: str, steps: int | None = None
) -> LoweredNode:
    how = direction, plan.strategy, steps
    return LoweredNode(*located.origin, *how, len(e.everything), plan.reason, plan.form.name, plan.prices)


def dtype_of(node: ResolvedNode, located: LocatedNode) -> ir.DataType:
    """Return the type of a node's X.

    Raises:
        UnsupportedModelError: The type is not known.
    """
    if node.dtype is None:
        raise UnsupportedModelError(
            "the types of its inputs are unknown", node=located, remedy="add type information to the model"
        )
    return node.dtype


def _state_nodes_are_replaced(model: ir.Model, lowering: LowerStateOperatorsPass) -> bool:
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

    ENSURES = (_state_nodes_are_replaced,)

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
    return UnsupportedModelError(
        "its number of time steps is not known, and unrolling its update rule needs it",
        node=node.located,
        remedy=f"give it one ({sizes}), or {dynamic_remedy()}" if sizes else dynamic_remedy(),
    )
