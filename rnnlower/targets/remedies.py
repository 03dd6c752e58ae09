"""Remedies for nodes that a target does not run."""

from __future__ import annotations

from collections.abc import Sequence

import onnx
import onnx_ir as ir

from rnnlower import wording
from rnnlower.graph.dependence import decided_by
from rnnlower.graph.open_sizes import open_sizes
from rnnlower.targets.format import CONTROL_FLOW, Claim, Limit
from rnnlower.targets.reading import find_target, target_names
from rnnlower.targets.target import Target

_FIRST = 2


def remedy_for(model: ir.Model, node: ir.Node, target: Target, claim: Claim) -> str:
    """Return the remedy for a node that violates a claim of the target.

    It is the claim's own remedy, or the options that remove the node, or another opset, or another target
    that has the operator; ``""`` if nothing is known.
    """
    if isinstance(claim, Limit):
        return claim.remedy or _opset_of(node, target, claim) or _settled(model, node, claim.constant)
    if claim is target.control_flow:
        return _settled_control(model, node) or _replaced(node, target)
    return _replaced(node, target) if claim is target.ops else ""


def alternatives(node: ir.Node, target: Target, claim: Claim) -> tuple[str, ...]:
    """Return the runtimes that have an operator that the target lacks, the likeliest to run the model first.

    There are none for a target that is not a runtime: it was chosen for another purpose.
    """
    if node.domain or not target.runtime or claim not in (target.ops, target.control_flow):
        return ()
    known = (find_target(name) for name in target_names())
    found = [each for each in known if each.runtime and _has(each, node.op_type)]
    # Those that were tried, then those with most operators.
    found.sort(key=lambda each: (each.tried is None, -len(each.op_types)))
    return tuple(each.name for each in found)


def _settled_control(model: ir.Model, node: ir.Node) -> str:
    if node.op_type == "Scan":
        return str(open_sizes(model.graph.inputs))
    return _settled(model, node, range(1 if node.op_type == "If" else 2))


def _settled(model: ir.Model, node: ir.Node, indices: Sequence[int]) -> str:
    return decided_by(model, *(node.inputs[index] for index in indices if index < len(node.inputs)))


def _opset_of(node: ir.Node, target: Target, limit: Limit) -> str:
    """Return the last opset of the target at which the operator has a supported version."""
    first, last = target.opset.range
    for opset in range(last, first - 1, -1) if limit.versions is not None else ():
        if not onnx.defs.has(node.op_type, opset):
            continue
        if onnx.defs.get_schema(node.op_type, opset).since_version in (limit.versions or ()):
            return wording.call("convert", opset=opset)
    return ""


def _replaced(node: ir.Node, target: Target) -> str:
    if node.domain:
        return "replace it in the model by operators of the ONNX standard"
    others = alternatives(node, target, target.ops)
    if not others:
        return "" if target.runtime else "replace it in the model"
    more = f" and {len(others) - _FIRST} more" if len(others) > _FIRST else ""
    return f"replace it in the model, or choose a target that has it ({', '.join(others[:_FIRST])}{more})"


def _has(target: Target, op_type: str) -> bool:
    return op_type in (target.control_flow.ops if op_type in CONTROL_FLOW else target.op_types)
