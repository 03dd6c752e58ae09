"""Unrolling of Scan and Loop nodes with a known number of iterations."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import field

import numpy as np
import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.dynamic_sizes import describe_deciding_inputs
from rnnlower.graph.facts import Facts, trip_count
from rnnlower.graph.loop_signature import FIRST_SCAN_WITHOUT_BATCH, LoopSignature, counters
from rnnlower.graph.rewiring import replace_with_values
from rnnlower.graph.symbols import dim_name
from rnnlower.graph.walk import LocatedNode, default_opset, display_name, subgraphs_of, walk
from rnnlower.lowering.emitter import Emitters
from rnnlower.passes.base import Pass
from rnnlower.passes.folding import FoldConstantsPass
from rnnlower.passes.sequences import ResolveSequencesPass
from rnnlower.passes.simpler_control_flow import TakeBranchesPass

_KINDS = ("Loop", "Scan")
_MAX_NODES = 200_000


def _unrolled_nodes_are_gone(model: ir.Model, unrolling: UnrollControlFlowPass) -> bool:
    left = [node.name for node, _ in walk(model.graph) if unrolling._is_wanted(node)]
    return not (unrolling.strict and left) and not any(name in unrolling.unrolled for name in left if name)


@dataclasses.dataclass(eq=False)
class UnrollControlFlowPass(Pass):
    """Unrolls the Scan and Loop nodes whose number of iterations follows from constants and static sizes.

    Bodies may be nested and capture values. An If with a condition that is known per iteration is replaced by
    its branch, and a sequence that the iterations fill becomes the tensors in it.

    Before::

        (float[2] x) => (float[2] y) <int64 n = {2}> {
            y = Loop (n, , x) <
                body = b (int64 i, bool more, float[2] h) => (bool again, float[2] g) {
                    again = Identity (more)
                    g = Tanh (h)
                }
            >
        }

    After ``UnrollControlFlowPass()``::

        (float[2] x) => (float[2] y) <int64 zero = {0}, bool true = {1}, int64 one = {1}> {
            again_0 = Identity (true)
            g = Tanh (x)
            again_1 = Identity (true)
            y = Tanh (g)
        }

    Args:
        kinds: The operators to unroll.
        strict: Whether a node that cannot be unrolled is an error.
        also: Whether to unroll another Scan or Loop.

    Attributes:
        unrolled: The number of iterations of each unrolled node, by its name.
    """

    ENSURES = (_unrolled_nodes_are_gone,)

    kinds: Sequence[str] = _KINDS
    _: dataclasses.KW_ONLY
    strict: bool = False
    also: Callable[[ir.Node], bool] = lambda node: False
    unrolled: dict[str, int] = field(init=False, default_factory=dict)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Unroll the nodes.

        Raises:
            UnsupportedModelError: A line would be too long, or, if `strict`, a number of iterations is not
                known.
        """
        self._made = 0
        if not any(self._is_wanted(node) for node, _ in walk(model.graph)):
            return ir.passes.PassResult(model, modified=False)
        TakeBranchesPass()(model, self.facts)
        while self._unroll_in(model.graph, _Writer(model, self.facts)):
            # Outer iterations reveal more about the nodes inside.
            self.facts.forget()
            TakeBranchesPass()(model, self.facts)
            ResolveSequencesPass()(model, self.facts)
            FoldConstantsPass()(model, self.facts)
        if self.strict:
            for node, path in walk(model.graph):
                if self._is_wanted(node):
                    located = LocatedNode(node, display_name(node), path, default_opset(model))
                    raise UnsupportedModelError(_describe_obstacle(model, node), node=located)
        return ir.passes.PassResult(model, modified=bool(self.unrolled))

    def _is_wanted(self, node: ir.Node) -> bool:
        if node.domain or node.op_type not in _KINDS:
            return False
        return node.op_type in self.kinds or self.also(node)

    def _unroll_in(self, graph: ir.Graph, writer: _Writer) -> bool:
        done = False
        for node in list(graph):
            count = trip_count(writer.facts, node) if self._is_wanted(node) else None
            if count is None or not writer.can_write(node, count):
                for inner in subgraphs_of(node):
                    done |= self._unroll_in(inner, writer)
                continue
            body = node.attributes["body"].as_graph()
            self._made += count * sum(1 for _ in walk(body))
            if self._made > _MAX_NODES:
                unasked = f"choose a target that has {node.op_type}"
                asked = f"leave out {wording.option('control-flow')}"
                raise UnsupportedModelError(
                    f"its {count:,} iterations make more than {_MAX_NODES:,} nodes in a straight line",
                    node=LocatedNode(node, display_name(node), "", writer.facts.opset),
                    remedy=asked if self.strict else unasked,
                )
            self.unrolled[display_name(node)] = count
            writer.unroll(node, count)
            done = True
        return done


def _describe_obstacle(model: ir.Model, node: ir.Node) -> str:
    deciding, reason = [*node.inputs[:2], node.attributes["body"].as_graph().outputs[0]], ""
    if node.op_type == "Scan":
        if default_opset(model) < FIRST_SCAN_WITHOUT_BATCH:
            return (
                "cannot be unrolled: it has a batch axis; "
                f"convert the model to opset {FIRST_SCAN_WITHOUT_BATCH} first"
            )
        deciding = [*node.inputs[LoopSignature(node).count :]]
        reason = describe_deciding_inputs(model, *deciding, of_loop=True, of_shapes=True)
    reason = reason or describe_deciding_inputs(model, *deciding) or "it is known at run time only"
    return f"cannot be unrolled: its number of iterations is unknown; {reason}"


class _Writer:
    """A writer that replaces Scans and Loops by straight lines."""

    def __init__(self, model: ir.Model, facts: Facts) -> None:
        self.facts = facts
        self._emitters = Emitters(model)
        self._names, self._pool = self._emitters.names, self._emitters.constants
        self._sizes = {dim_name(dim) for value in model.graph.inputs for dim in value.shape or ()}

    def can_write(self, node: ir.Node, count: int) -> bool:
        """Return whether the line can be written: it needs the sizes of outputs without iterations."""
        if node.op_type == "Scan" and self.facts.opset < FIRST_SCAN_WITHOUT_BATCH:
            return False
        loop = LoopSignature(node)
        if len(node.outputs) > loop.count + len(loop.stacked):
            return False
        if count:
            return True
        shapes = [self.facts.shape(out) for out in loop.stacked]
        typed = all(self.facts.dtype(out) is not None for out in loop.stacked)
        return typed and all(shape is not None and None not in shape for shape in shapes)

    def unroll(self, node: ir.Node, count: int) -> None:
        """Replace the node by `count` copies of its body."""
        loop, is_loop = LoopSignature(node), node.op_type == "Loop"
        self._lift_initializers(loop.body)
        given_first = node.inputs[2 if is_loop else 0 :]
        values: list[ir.Value | None] = list(given_first[: loop.count])
        series = self._read_series(node, loop, given_first[loop.count :], count)
        stacked: list[list[ir.Value]] = [[] for _ in loop.stacked]
        for step in range(count):
            given: list[ir.Value | None] = [*values, *(each[step] for each in series)]
            if is_loop:
                first = [self._pool.intern(ir.Tensor(array)) for array in counters(loop.body, step)]
                given = [*first, *values]
            results = self._copy(node, loop.body, given, step)[is_loop:]
            values = list(results[: loop.count])
            for pile, result in zip(stacked, results[loop.count :], strict=True):
                pile.append(result)
        outs = self._write_series(node, loop, stacked)
        finals = [value for value in (*values, *outs) if value is not None]
        replace_with_values(node, finals[: len(node.outputs)])

    def _lift_initializers(self, body: ir.Graph) -> None:
        for graph in (body, *body.subgraphs()):
            for name, value in list(graph.initializers.items()):
                if value.is_graph_input() or value.const_value is None:
                    continue
                lifted = self._pool.intern(value.const_value, name)
                value.replace_all_uses_with(lifted, replace_graph_outputs=True)
                graph.initializers.pop(name)

    def _copy(
        self, node: ir.Node, body: ir.Graph, given: Sequence[ir.Value | None], step: int
    ) -> list[ir.Value]:
        """Write one iteration before the node; return its results."""
        copy = body.clone(allow_outer_scope_values=True)
        prefix = f"{display_name(node)}/{step}/"
        for each in (copy, *copy.subgraphs()):
            inner = [value for value in each.inputs if each is not copy]
            for value in (*inner, *(out for made in each for out in made.outputs)):
                if value.name:
                    value.name = self._names.fresh(prefix + value.name)
                # A symbol of the body may be another size in each iteration.
                if value.shape is not None:
                    dims = [
                        dim if isinstance(dim, int) or dim_name(dim) in self._sizes else None
                        for dim in value.shape
                    ]
                    value.shape = ir.Shape(dims)
            for made in each:
                made.name = self._names.fresh(prefix + (made.name or made.op_type))
        results = list(copy.outputs)
        copy.outputs.clear()
        for value, source in zip(copy.inputs, given, strict=True):
            if source is not None:
                value.replace_all_uses_with(source)
                results = [source if result is value else result for result in results]
        nodes = list(copy)
        copy.remove(nodes)
        node.prepend(nodes)
        return results

    def _read_series(
        self, node: ir.Node, loop: LoopSignature, values: Sequence[ir.Value | None], count: int
    ) -> list[list[ir.Value]]:
        """Return the slices of a Scan's inputs, in the order of the iterations."""
        found = []
        with self._emitters.before(node) as e:
            for value, axis, back in zip(values, loop.input_axes, loop.input_backward, strict=True):
                assert value is not None
                slices = e.unstack(value, count, axis)
                found.append(slices[::-1] if back else slices)
        return found

    def _write_series(
        self, node: ir.Node, loop: LoopSignature, stacked: Sequence[Sequence[ir.Value]]
    ) -> list[ir.Value]:
        places = zip(stacked, loop.stacked, loop.output_axes, loop.output_backward, strict=True)
        with self._emitters.before(node) as e:
            return [
                e.stack(pile[::-1] if back else pile, axis) if pile else self._empty(out, axis)
                for pile, out, axis, back in places
            ]

    def _empty(self, out: ir.Value, axis: int) -> ir.Value:
        """Return an empty output, for zero iterations."""
        shape, dtype = self.facts.shape(out), self.facts.dtype(out)
        assert shape is not None
        assert dtype is not None
        sizes = [size for size in shape if size is not None]
        sizes.insert(axis % (len(shape) + 1), 0)
        return self._pool.intern(ir.Tensor(np.zeros(sizes, dtype.numpy()), dtype=dtype))
