"""Passes that remove what is not needed."""

from __future__ import annotations

from collections.abc import Iterable

import onnx_ir as ir
from onnx_ir.passes.common import RemoveUnusedFunctionsPass, RemoveUnusedOpsetsPass

from rnnlower.files import beyond_ir
from rnnlower.graph.facts import Facts
from rnnlower.graph.rewiring import remove_orphans, replace_with_values
from rnnlower.graph.slicing import axis_slices
from rnnlower.graph.walk import all_graphs, is_read, operand, root_graphs, walk, walk_all, walk_values
from rnnlower.passes.base import Pass, nothing_is_dead
from rnnlower.recurrent.operators import STATE_INPUTS

_SAME_IF_SAME_SHAPE = frozenset(["Expand", "Flatten", "Reshape", "Squeeze", "Tile", "Unsqueeze"])


class RemoveNoopsPass(Pass):
    """Removes Identity nodes, Dropout in inference, and casts, slices, reshapes and choices without effect.

    A node that produces a graph output stays if the output would otherwise lose its name.

    Before::

        (float[2] x) => (float[2] y) {
            a = Cast <to = 1> (x)
            b = Dropout (a)
            c = Identity (b)
            y = Abs (c)
        }

    After ``RemoveNoopsPass()``::

        (float[2] x) => (float[2] y) {
            y = Abs (x)
        }
    """

    KEEPS_FACTS = True

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        trained = beyond_ir.names_in_training(model)
        modified = False
        for node, _ in list(walk(model.graph)):
            if any(out.name in trained for out in node.outputs):
                continue
            kept = passed_on(node, self.facts)
            if kept is not None and is_removable(node, kept):
                node.resize_outputs(1)
                replace_with_values(node, [kept])
                modified = True
        return ir.passes.PassResult(model, modified)


def passed_on(node: ir.Node, facts: Facts) -> ir.Value | None:
    """Return the input that the node returns as it is."""
    return _decided_choice(node, facts) or (node.inputs[0] if _does_nothing(node, facts) else None)


def _decided_choice(node: ir.Node, facts: Facts) -> ir.Value | None:
    """Return what a Where always chooses, if that has the shape of the result."""
    condition = facts.constant(node.inputs[0]) if node.op_type == "Where" and not node.domain else None
    if condition is None or condition.all() != condition.any():
        return None
    kept = node.inputs[1 if condition.all() else 2]
    dims = facts.dims(kept)
    return kept if dims is not None and None not in dims and dims == facts.dims(node.outputs[0]) else None


def _has_shape_of(value: ir.Value, other: ir.Value, facts: Facts) -> bool:
    shape = facts.shape(value)
    return shape is not None and None not in shape and shape == facts.shape(other)


def _does_nothing(node: ir.Node, facts: Facts) -> bool:
    if node.domain or not node.inputs or node.inputs[0] is None or any(map(is_read, node.outputs[1:])):
        return False
    value, out = node.inputs[0], node.outputs[0]
    if node.op_type == "Dropout":
        return _is_inference(node, facts)
    if node.op_type == "Identity":
        return True
    if node.op_type == "Cast":
        # Below opset 6 the type is a name.
        return bool(node.attributes["to"].value == facts.dtype(value))
    has_same_shape = _has_shape_of(value, out, facts)
    if (slices := axis_slices(node, facts.constant)) is not None:
        return all(each.is_whole() or (has_same_shape and each.step > 0) for each in slices)
    return has_same_shape and node.op_type in _SAME_IF_SAME_SHAPE


def _is_inference(node: ir.Node, facts: Facts) -> bool:
    """Return whether Dropout passes its input on; version 12 has an input for it, below 7 an attribute."""
    if facts.opset < 7:
        return node.attributes.get_int("is_test", 0) == 1
    training = operand(node, 2)
    mode = facts.constant(training)
    return training is None or (mode is not None and not mode.any())


def is_removable(node: ir.Node, kept: ir.Value) -> bool:
    """Return whether the output can do without a node of its own."""
    if not node.outputs[0].is_graph_output():
        return True
    producer = kept.producer()
    return producer is not None and producer.graph is node.graph and not kept.is_graph_output()


class RemoveUnusedPass(Pass):
    """Removes dead nodes and initializers, uncalled functions, and imports of unused domains.

    Omitted inputs at the end of a node's list are removed, too. Inputs and outputs of the graph stay, and so
    do values that the model's training reads.

    Before::

        (float[2] x) => (float[2] y) <float[2] c = {1, 2}> {
            a = Add (x, c)
            y = Clip (x, , )
        }

    After ``RemoveUnusedPass()``::

        (float[2] x) => (float[2] y) {
            y = Clip (x)
        }
    """

    KEEPS_FACTS = True
    ENSURES = (nothing_is_dead,)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        trained = beyond_ir.names_in_training(model)
        modified = False
        for node, _ in reversed(list(walk(model.graph))):
            if node.graph is not None and not any(out.name in trained for out in node.outputs):
                remove_orphans(node.outputs)
                modified |= node.graph is None
        for graph in (model.graph, *model.graph.subgraphs()):
            before = len(graph.initializers)
            remove_orphans(value for value in graph.initializers.values() if value.name not in trained)
            modified |= len(graph.initializers) < before
        for node, _ in walk(model.graph):
            # Omitted inputs at the end are redundant, and some runtimes take them as present; a Loop has two.
            while node.inputs and node.inputs[-1] is None and not node.domain and node.op_type != "Loop":
                node.resize_inputs(len(node.inputs) - 1)
                modified = True
        modified |= RemoveUnusedFunctionsPass()(model).modified  # type: ignore[no-untyped-call]
        if (rest := beyond_ir.find(model)) is None or not rest.training_info:
            modified |= RemoveUnusedOpsetsPass(process_functions=False)(model).modified
        return ir.passes.PassResult(model, modified)


def _nodes_are_bare(model: ir.Model, owner: object) -> bool:
    return not any(node.name or node.doc_string or node.metadata_props for node, _ in walk(model.graph))


class StripPass(Pass):
    """Removes the metadata and names of nodes, the metadata of inner values, and all doc strings.

    Names of values stay, because nodes refer to them, and so does the metadata of the model and of its graph.

    Before::

        (float[2] x) => (float[2] y) {
            [scope_relu] y = Relu (x)
        }

    After ``StripPass()``::

        (float[2] x) => (float[2] y) {
            y = Relu (x)
        }
    """

    ENSURES = (_nodes_are_bare,)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        model.doc_string = None
        lasting = {*model.graph.inputs, *model.graph.outputs}
        for graph in (*all_graphs(model), *root_graphs(model)):
            graph.doc_string = None
        for value in (value for root in root_graphs(model) for value in walk_values(root)):
            value.doc_string = None
            if value not in lasting:
                value.metadata_props.clear()
        for node, _ in walk_all(model):
            node.name = node.doc_string = None
            node.metadata_props.clear()
        return ir.passes.PassResult(model, modified=True)


def remove_zero_states(facts: Facts, nodes: Iterable[ir.Node]) -> None:
    """Leave out initial states of recurrent nodes that are computed as zeros, in any size."""
    for node in nodes:
        for index in STATE_INPUTS:
            value = operand(node, index)
            if value is not None and value.producer() is not None and facts.is_zero(value):
                node.replace_input_with(index, None)
                remove_orphans([value])
