"""Misfits: parts of a model that a target does not run, and their remedies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rnnlower import wording
from rnnlower.graph.dynamic_sizes import describe_deciding_inputs, options_for_sizes
from rnnlower.graph.versions import version_at
from rnnlower.recurrent.state_operators import is_state_operator
from rnnlower.targets.format import CONTROL_FLOW, Claim, Limit
from rnnlower.targets.reading import find_target, target_names
from rnnlower.targets.target import Target

_FIRST = 3
_OTHERS = 2


@dataclasses.dataclass(frozen=True)
class Misfit:
    """A part of a model that a target does not run.

    Attributes:
        path: The subgraph or function of the node, as in `inspect`.
        name: The name of the node, or else of its first output; or the name of the input.
        op_type: The node's operator; ``(input)`` for a graph input, ``(model)`` for the model.
        reason: Why it does not fit.
        remedy: What the user can do; ``""`` if nothing is known.
        source: The source of the claim.
        guess: Whether the claim is a guess, without a source.
        alternatives: The targets that have the operator, the likeliest to run the model first.
    """

    path: str
    name: str
    op_type: str
    reason: str
    remedy: str
    source: str
    guess: bool
    alternatives: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The name, after the path."""
        return f"{self.path}/{self.name}" if self.path else self.name

    def __str__(self) -> str:
        return f"{self.op_type} {self.place!r}: {self.reason}" + (" (a guess)" if self.guess else "")


def grouped(misfits: Sequence[Misfit]) -> list[str]:
    """Return a line for each operator and reason: the number of nodes, the first of them, and the remedy."""
    groups: dict[tuple[str, str, str, bool], list[Misfit]] = {}
    for each in misfits:
        groups.setdefault((each.op_type, each.reason, each.remedy, each.guess), []).append(each)
    return [_line(group) for group in groups.values()]


def _line(group: Sequence[Misfit]) -> str:
    first = group[0]
    remedy = f"; {first.remedy}" if first.remedy else ""
    if len(group) == 1:
        return f"{first}{remedy}"
    names = ", ".join(repr(each.place) for each in group[:_FIRST])
    more = f" and {len(group) - _FIRST} more" if len(group) > _FIRST else ""
    guess = " (a guess)" if first.guess else ""
    return f"{len(group)} {first.op_type} nodes ({names}{more}): {first.reason}{guess}{remedy}"


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
        return str(options_for_sizes(model.graph.inputs))
    return _settled(model, node, range(1 if node.op_type == "If" else 2))


def _settled(model: ir.Model, node: ir.Node, indices: Sequence[int]) -> str:
    return describe_deciding_inputs(
        model, *(node.inputs[index] for index in indices if index < len(node.inputs))
    )


def _opset_of(node: ir.Node, target: Target, limit: Limit) -> str:
    """Return the last opset of the target at which the operator has a supported version."""
    first, last = target.opset.range
    for opset in range(last, first - 1, -1):
        version = version_at(node.op_type, opset)
        if version is not None and version.since in (limit.versions or ()):
            return wording.call("convert", opset=opset)
    return ""


def _replaced(node: ir.Node, target: Target) -> str:
    if is_state_operator(node):
        return wording.call("lower", target=target.address)
    if node.domain:
        return "replace it in the model by operators of the ONNX standard"
    others = alternatives(node, target, target.ops)
    if not others:
        return "" if target.runtime else "replace it in the model"
    more = f" and {len(others) - _OTHERS} more" if len(others) > _OTHERS else ""
    return f"replace it in the model, or choose a target that has it ({', '.join(others[:_OTHERS])}{more})"


def _has(target: Target, op_type: str) -> bool:
    return op_type in (target.control_flow.ops if op_type in CONTROL_FLOW else target.op_types)
