"""The conditions before and after the passes, and before and after the steps of a lowering.

A condition is a function whose name states it, of the model and the pass, or the step's `LoweringWork`. Those
of a step hold in addition to those of the passes that it runs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from rnnlower import passes
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.graph.inlining import functions_with
from rnnlower.graph.symbols import dim_name
from rnnlower.graph.walk import default_opset, display_name, is_read, qualified_op_type, walk
from rnnlower.lowering import FIRST_OPSET
from rnnlower.passes.lift_recurrent import loops_and_scans
from rnnlower.passes.simpler_control_flow import loop_invariant_states, loops
from rnnlower.passes.steps import emitting, planning, preparing, stateful
from rnnlower.passes.steps.work import LoweringWork, is_selected
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.recurrent.sonnx import find_departures
from rnnlower.recurrent.state_operators import is_state_operator
from rnnlower.targets.fit import find_misfits

Condition = Callable[[ir.Model, Any], bool]


@dataclasses.dataclass(frozen=True)
class Contract:
    """The conditions before and after a pass or a step."""

    requires: Sequence[Condition] = ()
    ensures: Sequence[Condition] = ()


# Of passes.


def are_gone(model: ir.Model, names: Mapping[str, Collection[str]]) -> bool:
    """Return whether neither the main graph nor a subgraph has nodes of these names, by their operators."""
    return not any(node.name in names.get(qualified_op_type(node), ()) for node, _ in walk(model.graph))


def no_function_is_recurrent(model: ir.Model, owner: object) -> bool:
    return not any(located.path.startswith("function:") for located in find_recurrent(model))


def initializers_suit_ir_version(model: ir.Model, owner: object) -> bool:
    """Return whether the IR version allows the initializers that are not graph inputs."""
    values = model.graph.initializers.values()
    return model.ir_version >= FREE_INITIALIZERS_IR or all(value.is_graph_input() for value in values)


def nothing_is_dead(model: ir.Model, owner: object) -> bool:
    return all(any(is_read(out) for out in node.outputs) for node, _ in walk(model.graph))


def finds_nothing(model: ir.Model, owner: Any) -> bool:
    """Return whether the pass finds no node or output to change."""
    return not owner.find(model)


def adapted_nodes_are_gone(model: ir.Model, adapting: passes.AdaptNodesPass) -> bool:
    return are_gone(model, adapting.adapted)


def no_input_has_a_default(model: ir.Model, owner: object) -> bool:
    return not any(value.is_initializer() for value in model.graph.inputs)


def inputs_are_constants(model: ir.Model, setting: passes.SetInputsPass) -> bool:
    inputs = {value.name for value in model.graph.inputs}
    return inputs.isdisjoint(setting.values) and setting.values.keys() <= model.graph.initializers.keys()


def opset_is_target(model: ir.Model, converting: passes.ConvertOpsetPass) -> bool:
    return default_opset(model) == converting.target


def sizes_are_frozen(model: ir.Model, freezing: passes.FreezeDimsPass) -> bool:
    inputs = {value.name: value.shape for value in model.graph.inputs}
    names = {dim_name(dim) for shape in inputs.values() if shape is not None for dim in shape}
    given = freezing._input_shapes.items()
    return names.isdisjoint(freezing._dims) and all(inputs[name] == list(shape) for name, shape in given)


def expanded_nodes_are_gone(model: ir.Model, expanding: passes.ExpandDefinitionsPass) -> bool:
    return are_gone(model, expanding.expanded)


def no_function_is_wanted(model: ir.Model, inlining: passes.InlineFunctionsPass) -> bool:
    return not functions_with(model, inlining._wanted)


def lifted_nodes_are_gone(model: ir.Model, lifting: passes.LiftRecurrentPass) -> bool:
    """Return whether no Loop or Scan that was lifted is left."""
    gone = {(each.path, each.name) for each in lifting.lifted if each.op_type and each.form != "line"}
    return not gone & {(located.path, located.name) for located, _ in loops_and_scans(model)}


def loops_are_gone(model: ir.Model, writing: passes.WriteScansPass) -> bool:
    nodes = [node for node, _ in walk(model.graph) if node.op_type == "Loop"]
    return not {*writing.written}.intersection(map(display_name, nodes))


def given_nodes_are_replaced(model: ir.Model, lowering: passes.LowerRecurrentPass) -> bool:
    nodes = find_recurrent(model) if lowering.nodes is None else lowering.nodes
    return all(located.node.graph is None for located in (*nodes, *lowering.impossible))


def given_state_nodes_are_replaced(model: ir.Model, lowering: passes.LowerStateOperatorsPass) -> bool:
    nodes = find_recurrent(model, is_state_operator) if lowering.nodes is None else lowering.nodes
    return all(located.node.graph is None for located in nodes)


def maximum_is_fixed(model: ir.Model, padding: passes.PadLengthsPass) -> bool:
    shapes, metadata = {value.name: value.shape for value in model.graph.inputs}, padding.metadata
    return all(
        (shape := shapes[name]) is not None and shape[axis] == metadata.max[metadata.symbols[name]]
        for name, axis in metadata.inputs.items()
    )


def adapted_recurrent_nodes_are_gone(model: ir.Model, adapting: passes.AdaptRecurrentPass) -> bool:
    return all(located.node.graph is None for located in adapting.replaced)


def given_nodes_conform(model: ir.Model, conforming: passes.ConformSonnxPass) -> bool:
    nodes = find_recurrent(model) if conforming._nodes is None else conforming._nodes
    there = [located for located in nodes if located.node.graph is not None]
    return not any(departure.level == "error" for located in there for departure in find_departures(located))


def given_nodes_are_floats(model: ir.Model, dequantizing: passes.DequantizeRecurrentPass) -> bool:
    nodes = find_recurrent(model) if dequantizing._nodes is None else dequantizing._nodes
    return all(not located.node.domain for located in nodes)


def every_gru_is_linear(model: ir.Model, owner: object) -> bool:
    nodes = [located.node for located in find_recurrent(model) if located.node.op_type == "GRU"]
    return all(node.attributes.get_int("linear_before_reset", 0) == 1 for node in nodes)


def nodes_are_bare(model: ir.Model, owner: object) -> bool:
    return not any(node.name or node.doc_string or node.metadata_props for node, _ in walk(model.graph))


def no_state_is_loop_invariant(model: ir.Model, owner: object) -> bool:
    return not any(loop_invariant_states(model, node) for node in loops(model))


def decided_ifs_are_gone(model: ir.Model, taking: passes.TakeBranchesPass) -> bool:
    return are_gone(model, {"If": taking.taken})


def states_are_outside(model: ir.Model, streaming: passes.StreamPass) -> bool:
    inputs = {value.name for value in model.graph.inputs}
    outputs = {value.name for value in model.graph.outputs}
    return outputs >= streaming.states.keys() and inputs >= {*streaming.states.values()}


def unrolled_nodes_are_gone(model: ir.Model, unrolling: passes.UnrollControlFlowPass) -> bool:
    left = [node.name for node, _ in walk(model.graph) if unrolling._is_wanted(node)]
    return not (unrolling.strict and left) and not any(name in unrolling.unrolled for name in left if name)


# Of steps.


def nodes_are_in_model(model: ir.Model, work: LoweringWork) -> bool:
    """Return whether each node to be lowered is in the model, and is marked."""
    return all(located.node.graph is not None and is_selected(located.node) for located in work.nodes)


def nodes_are_outside_functions(model: ir.Model, work: LoweringWork) -> bool:
    """Return whether each node to be lowered is in the main graph or in one of its subgraphs."""
    there = {node for node, _ in walk(model.graph)}
    return all(located.node in there for located in work.nodes)


def opset_suffices(model: ir.Model, work: LoweringWork) -> bool:
    """Return whether the replacements of recurrent nodes exist in the model's opset, in some form."""
    return default_opset(model) >= FIRST_OPSET


def nodes_are_floats(model: ir.Model, work: LoweringWork) -> bool:
    """Return whether no node to be lowered is quantized."""
    return not any(located.node.domain for located in work.nodes)


def nodes_are_valid(model: ir.Model, work: LoweringWork) -> bool:
    """Return whether each node to be lowered follows the ONNX spec."""
    return all(parse_recurrent(each, work.options.semantics, lenient=True) for each in work.nodes)


def node_outcomes_are_disjoint(model: ir.Model, work: LoweringWork) -> bool:
    """Return whether no node to be lowered is also kept, adapted, unreachable or impossible."""
    others = {(node.path, node.name) for node in work.kept} | {
        (node.path, node.name) for node in work.adapted
    }
    others |= {(each.path, each.name) for each in (*work.unreachable, *work.impossible)}
    return others.isdisjoint((each.path, each.name) for each in work.nodes)


def lengths_are_numbers(model: ir.Model, work: LoweringWork) -> bool:
    """Return whether each node to be lowered has a known number of steps."""
    return all(parse_recurrent(each).seq_length is not None for each in work.nodes)


def nodes_are_planned(model: ir.Model, work: LoweringWork) -> bool:
    """Return whether each node to be replaced has a plan."""
    return all(each.node in work.plans for each in (*work.nodes, *work.impossible))


def forms_exist(model: ir.Model, work: LoweringWork) -> bool:
    """Return whether the model's opset has every operator of the plans."""
    needed = [opset for plan in work.plans.values() for opset in plan.needs.values()]
    return default_opset(model) >= max(needed, default=0)


def nodes_are_replaced(model: ir.Model, work: LoweringWork) -> bool:
    """Return whether each node to be lowered is replaced, and reported."""
    there = any(located.node.graph is not None for located in work.nodes)
    return not there and len(work.lowered) == len(work.nodes) + len(work.impossible)


def state_operators_are_replaced(model: ir.Model, work: LoweringWork) -> bool:
    """Return whether no LinearAttention or CausalConvWithState is left to be lowered."""
    return not any(is_selected(node) and is_state_operator(node) for node, _ in walk(model.graph))


def opset_is_requested(model: ir.Model, work: LoweringWork) -> bool:
    """Return whether the model has the opset that the user or the target requests, if one does."""
    return work.opset in (None, default_opset(model))


def emitted_nodes_fit(model: ir.Model, work: LoweringWork) -> bool:
    """Return whether the target runs everything that was emitted."""
    return not find_misfits(model, work.target, work.options.semantics, emitted=True)


CONTRACTS: Mapping[Callable[..., Any], Contract] = {
    passes.AdaptNodesPass: Contract((), [adapted_nodes_are_gone]),
    passes.FreezeInitializersPass: Contract((), [no_input_has_a_default, initializers_suit_ir_version]),
    passes.LegacyConstantsPass: Contract((), [initializers_suit_ir_version]),
    passes.SetInputsPass: Contract((), [inputs_are_constants]),
    passes.ConvertOpsetPass: Contract((), [opset_is_target]),
    passes.FreezeDimsPass: Contract((), [sizes_are_frozen]),
    passes.KeepNaNPass: Contract((), [finds_nothing]),
    passes.SeparateSumsPass: Contract((), [finds_nothing]),
    passes.ExpandDefinitionsPass: Contract((), [expanded_nodes_are_gone]),
    passes.InlineFunctionsPass: Contract((), [no_function_is_wanted]),
    passes.CopyOutputsPass: Contract((), [finds_nothing]),
    passes.PlainLoopInputsPass: Contract((), [finds_nothing]),
    passes.LiftRecurrentPass: Contract((), [lifted_nodes_are_gone]),
    passes.WriteScansPass: Contract((), [loops_are_gone]),
    passes.LowerRecurrentPass: Contract((), [given_nodes_are_replaced]),
    passes.LowerStateOperatorsPass: Contract((), [given_state_nodes_are_replaced]),
    passes.PadLengthsPass: Contract((), [maximum_is_fixed]),
    passes.AdaptRecurrentPass: Contract([no_function_is_recurrent], [adapted_recurrent_nodes_are_gone]),
    passes.ConformSonnxPass: Contract([no_function_is_recurrent], [given_nodes_conform]),
    passes.DequantizeRecurrentPass: Contract([no_function_is_recurrent], [given_nodes_are_floats]),
    passes.AssumeLinearBeforeResetPass: Contract((), [every_gru_is_linear]),
    passes.RemoveUnusedPass: Contract((), [nothing_is_dead]),
    passes.StripPass: Contract((), [nodes_are_bare]),
    passes.CaptureStatesPass: Contract((), [no_state_is_loop_invariant]),
    passes.TakeBranchesPass: Contract((), [decided_ifs_are_gone]),
    passes.StreamPass: Contract((), [states_are_outside]),
    passes.UnrollControlFlowPass: Contract((), [unrolled_nodes_are_gone]),
    preparing.select_nodes: Contract((), [nodes_are_in_model]),
    preparing.raise_opset: Contract((), [opset_suffices]),
    preparing.inline_functions: Contract(
        [nodes_are_in_model], [nodes_are_in_model, nodes_are_outside_functions]
    ),
    preparing.unroll_control_flow: Contract([nodes_are_outside_functions], [nodes_are_in_model]),
    preparing.simplify_around_nodes: Contract([nodes_are_outside_functions], [nodes_are_in_model]),
    preparing.drop_zero_states: Contract([nodes_are_outside_functions]),
    preparing.dequantize_recurrent: Contract([nodes_are_outside_functions], [nodes_are_floats]),
    preparing.set_aside_impossible: Contract([nodes_are_outside_functions], [node_outcomes_are_disjoint]),
    planning.choose_native: Contract([nodes_are_outside_functions], [node_outcomes_are_disjoint]),
    planning.adapt_recurrent: Contract(
        [nodes_are_outside_functions], [node_outcomes_are_disjoint, nodes_are_in_model]
    ),
    planning.check_nodes: Contract((), [nodes_are_valid]),
    planning.conform_to_profile: Contract([nodes_are_valid]),
    planning.fold_weights: Contract([nodes_are_valid], [nodes_are_in_model]),
    planning.make_lengths_static: Contract([nodes_are_valid], [lengths_are_numbers]),
    planning.plan_nodes: Contract([nodes_are_valid, nodes_are_outside_functions], [nodes_are_planned]),
    emitting.raise_opset_for_plans: Contract([nodes_are_planned], [forms_exist, nodes_are_in_model]),
    emitting.lower_nodes: Contract(
        [nodes_are_planned, forms_exist, nodes_are_in_model, opset_suffices], [nodes_are_replaced]
    ),
    emitting.restore_requested_opset: Contract([nodes_are_replaced], [opset_is_requested]),
    emitting.require_fit: Contract([nodes_are_replaced, opset_is_requested], [emitted_nodes_fit]),
    stateful.lower_state_operators: Contract([nodes_are_replaced], [state_operators_are_replaced]),
}
"""The contracts of the passes, and of the steps that pass data on."""
