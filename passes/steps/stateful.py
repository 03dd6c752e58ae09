"""Steps that lower LinearAttention and CausalConvWithState, or keep them where the target has kernels."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.errors import OpsetError
from rnnlower.graph.walk import LocatedNode, default_opset
from rnnlower.lowering.replacing import LoweredNode
from rnnlower.lowering.state_lowering import choose_chunk_form
from rnnlower.passes.convert_opset import convert_to_first_possible
from rnnlower.passes.lower_recurrent import LowerStateOperatorsPass
from rnnlower.passes.steps.work import LoweringWork, Work, deselect, is_selected
from rnnlower.recurrent.state_operators import (
    STATE_OPERATORS_OPSET,
    AttentionNode,
    ConvolutionNode,
    StateNode,
    parse_state_operators,
)
from rnnlower.targets import Target
from rnnlower.targets.choosing import KeptNode, loop_strategy

_MICROSOFT = "com.microsoft"
_TYPES = (ir.DataType.FLOAT, ir.DataType.FLOAT16)
"""The types of com.microsoft's kernels, whose states have no type of their own."""
_FEW_CHUNKS = 4
_FEW_IN_A_PRODUCT = 32
_FEW_STEPS = 16
"""Steps up to which onnxruntime's CausalConvWithState is faster than its Conv: a ninth of the time for one
step, four times as much for a thousand."""


def choose_state_kernels(work: LoweringWork) -> None:
    """Decide on each node whether the target's own operator runs it.

    Before: marked nodes. After: those that run there lose the mark, maybe as com.microsoft's operator.
    """
    if work.options.native == "lower":
        return
    for node in _parse(work, work.state_nodes, lenient=True):
        old = node.located.node
        if old.domain in _kernel_domains(work, old.op_type) and not _is_slow(node):
            work.kept.append(KeptNode(*node.located.origin, f"{work.target.name} has a kernel of it"))
            deselect(node.located.node)
    for node in _parse(work, [located for located in work.state_nodes if is_selected(located.node)]):
        is_right = node.dtype in _TYPES and node.state_dtype == node.dtype and not _is_slow(node)
        if is_right and _MICROSOFT in _kernel_domains(work, node.located.node.op_type):
            node.located.node.domain = _MICROSOFT
            work.model.opset_imports.setdefault(_MICROSOFT, 1)
            reason = f"{work.target.name} has a kernel of com.microsoft's operator"
            work.adapted.append(LoweredNode(*node.located.origin, "forward", "adapt", node.steps, 1, reason))
            deselect(node.located.node)
    work.state_nodes = [located for located in work.state_nodes if is_selected(located.node)]


def _is_slow(node: StateNode) -> bool:
    """Return whether a Conv is faster than the kernel; it supports only these attributes."""
    known = {"activation", "channels_last", "dilation"}
    is_known = isinstance(node, ConvolutionNode) and {*node.located.node.attributes} <= known
    return is_known and node.steps is not None and node.steps > _FEW_STEPS


def _parse(work: Work, nodes: Sequence[LocatedNode], *, lenient: bool = False) -> list[StateNode]:
    """Parse nodes. Cached facts may predate the known sizes."""
    if nodes:
        work.facts.forget()
    return parse_state_operators(nodes, work.facts, lenient=lenient)


def _kernel_domains(work: LoweringWork, op_type: str) -> list[str]:
    """Return the domains in which the target has a kernel of the operator."""
    opset = min(work.target.opset.range[1], work.opset or STATE_OPERATORS_OPSET)
    found = [_MICROSOFT] if work.target.has_foreign(_MICROSOFT, op_type) else []
    return found + [""] * (opset >= STATE_OPERATORS_OPSET and op_type in work.target.op_types)


def lower_state_operators(work: LoweringWork) -> None:
    """Replace LinearAttention and CausalConvWithState nodes, as was done with recurrent ones.

    Before: marked LinearAttention and CausalConvWithState nodes. After: primitive operators.
    """
    for node in _parse(work, work.state_nodes):
        strategy, reason = work.options.strategy, ""
        if strategy == "target":
            strategy, reason = choose_strategy(node, work.options.runtime)
        _lower_node(work, node.located, strategy, reason)
    work.state_nodes = []


def lower_for_older_opset(work: Work) -> None:
    """Replace the marked operators, which the requested opset lacks."""
    for node in _parse(work, work.nodes):
        strategy, reason = choose_strategy(node, None)
        lowering = LowerStateOperatorsPass(strategy, [node.located], reason=reason)
        try:
            lowering(work.model, work.facts)
        except OpsetError as error:
            error.advise(f"ask for opset {error.opset} or higher")
            raise
        (made,) = lowering.lowered
        work.notes.append(f"{node.located.label} became {made.emitted_ops} nodes of older operators")


def _lower_node(work: LoweringWork, located: LocatedNode, strategy: str, reason: str) -> None:
    """Lower a node, at the first opset that has all of its operators."""
    lowering = LowerStateOperatorsPass(
        strategy,
        [located],
        unroll_factor=work.options.unroll_factor,
        dialect=work.options.runtime,
        reason=reason,
        namespaces=work.options.namespaces,
    )
    while not lowering.lowered:
        try:
            lowering(work.model, work.facts)
        except OpsetError as error:
            if error.opset is None or error.opset <= default_opset(work.model):
                raise
            work.needs.setdefault(located, {})[f"{error.operator}-{error.opset}"] = error.opset
            work.notes += convert_to_first_possible(work.model, error.opset, work.facts, keep=is_selected)
    work.lowered += lowering.lowered


def choose_strategy(node: StateNode, target: Target | None) -> tuple[str, str]:
    """Return the strategy and the reason for it; without a target there are all operators."""
    if not isinstance(node, AttentionNode):
        return "unroll", "it needs no loop"
    form = choose_chunk_form(node, "unroll")
    # The product of all chunks grows with the square of their number, and with each row that decays alone.
    few = _FEW_CHUNKS if form.strategy or node.decay_per_key else _FEW_IN_A_PRODUCT
    if node.steps is not None and node.steps <= few * form.steps:
        return "unroll", f"{node.steps} steps are few chunks"
    if target is None:
        return "scan", "it takes any number of steps"
    loop = loop_strategy(target, dynamic=node.steps is None)
    if loop is None:
        return "unroll", f"{target.name} has no Scan and no Loop"
    return loop, f"{target.name} has {loop.title()}"
