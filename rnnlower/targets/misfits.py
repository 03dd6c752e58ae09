"""Misfits: parts of a model that a target does not run, and their remedies."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir
from onnx.defs import onnx_opset_version

from rnnlower import wording
from rnnlower.graph.dynamic_sizes import describe_deciding_inputs, options_for_sizes, or_padded
from rnnlower.graph.versions import version_at
from rnnlower.graph.walk import default_opset, place_name
from rnnlower.recurrent.state_operators import is_state_operator
from rnnlower.targets.format import Claim, Limit
from rnnlower.targets.reading import find_target, target_names
from rnnlower.targets.target import Target


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
        return place_name(self.path, self.name)

    def __str__(self) -> str:
        return f"{self.op_type} {self.place!r}: {self.reason}" + (" (a guess)" if self.guess else "")


def group_misfits(misfits: Sequence[Misfit]) -> list[str]:
    """Return a line for each operator and reason: the number of nodes, some names, and the remedy."""
    groups: dict[tuple[str, str, str, bool], list[Misfit]] = {}
    for each in misfits:
        groups.setdefault((each.op_type, each.reason, each.remedy, each.guess), []).append(each)
    return [_describe_group(group) for group in groups.values()]


def _describe_group(group: Sequence[Misfit]) -> str:
    first = group[0]
    remedy = f"; {first.remedy}" if first.remedy else ""
    if len(group) == 1:
        return f"{first}{remedy}"
    names = wording.listed([repr(each.place) for each in group])
    guess = " (a guess)" if first.guess else ""
    return f"{len(group)} {first.op_type} nodes ({names}): {first.reason}{guess}{remedy}"


def remedy_for(model: ir.Model, node: ir.Node, target: Target, claim: Claim) -> str:
    """Return the remedy for a node that violates a claim of the target.

    It is the claim's own remedy, or the options that remove the node, or another opset, or another target
    that has the operator; ``""`` if nothing is known.
    """
    if isinstance(claim, Limit):
        return (
            claim.remedy
            or _opset_remedy(model, node, target, claim)
            or _set_inputs(model, node, claim.constant)
        )
    if claim is target.control_flow:
        return _control_flow_options(model, node) or _replacement(model, node, target)
    return _replacement(model, node, target) if claim is target.ops else ""


def alternatives(node: ir.Node, target: Target, claim: Claim) -> tuple[str, ...]:
    """Return the runtimes that have an operator that the target lacks, the likeliest to run the model first.

    There are none for a target that is not a runtime: it was chosen for another purpose.
    """
    if node.domain or not target.runtime or claim not in (target.ops, target.control_flow):
        return ()
    known = (find_target(name) for name in target_names())
    found = [each for each in known if each.runtime and each.has(node.op_type)]
    # Targets that were tried come first, then those with more operators.
    found.sort(key=lambda each: (each.tried is None, -len(each.op_types)))
    return tuple(each.name for each in found)


def _control_flow_options(model: ir.Model, node: ir.Node) -> str:
    if node.op_type == "Scan":
        return or_padded(options_for_sizes(model.graph.inputs))
    return _set_inputs(model, node, range(1 if node.op_type == "If" else 2))


def _set_inputs(model: ir.Model, node: ir.Node, indices: Sequence[int]) -> str:
    inputs = (node.inputs[index] for index in indices if index < len(node.inputs))
    return describe_deciding_inputs(model, *inputs, of_loop=node.op_type == "Loop")


def _opset_remedy(model: ir.Model, node: ir.Node, target: Target, limit: Limit) -> str:
    """Return the command that converts to the last opset with a version of the operator that is supported.

    If the node has one, the limit is of something else.
    """
    own, (first, last) = default_opset(model), target.opset.range
    for opset in (own, *range(min(last, onnx_opset_version()), first - 1, -1)):
        version = version_at(node.op_type, opset)
        if version is not None and version.since in (limit.versions or ()):
            return "" if opset == own else wording.call("convert", opset=opset)
    return ""


def _replacement(model: ir.Model, node: ir.Node, target: Target) -> str:
    if is_state_operator(node) or node.op_identifier() in model.functions:
        return wording.call("lower", target=target.address)
    if node.domain:
        return "replace it in the model by operators of the ONNX standard"
    others = alternatives(node, target, target.ops)
    if not others:
        return "" if target.runtime else "replace it in the model"
    return f"replace it in the model, or choose a target that has it ({wording.listed(others, 2)})"
