"""The conditions before and after the steps of a lowering, in addition to those of the passes that they run.

A condition is a function of the model and the step's `LoweringWork`, whose name states it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import onnx_ir as ir

from rnnlower.graph.walk import default_opset, walk
from rnnlower.lowering import FIRST_OPSET
from rnnlower.passes.base import Condition
from rnnlower.passes.steps import emitting, planning, preparing, stateful
from rnnlower.passes.steps.work import LoweringWork, is_selected
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.recurrent.state_operators import is_state_operator
from rnnlower.targets.fit import find_misfits


@dataclasses.dataclass(frozen=True)
class Contract:
    """The conditions before and after a step."""

    requires: Sequence[Condition] = ()
    ensures: Sequence[Condition] = ()


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


CONTRACTS: Mapping[Callable[[Any], None], Contract] = {
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
"""The contracts of the steps that pass data on."""
