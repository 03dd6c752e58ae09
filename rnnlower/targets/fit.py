"""Which nodes of a model a target does not run, and why not."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import onnx
import onnx_ir as ir
from onnx_ir.passes.common import ShapeInferencePass

from rnnlower import wording
from rnnlower.graph.constants import constant_of
from rnnlower.graph.inference import guarded
from rnnlower.graph.open_sizes import is_open, open_sizes
from rnnlower.graph.quiet import quiet_libraries
from rnnlower.graph.walk import Located, default_opset, forget_negative_sizes, op_types, walk
from rnnlower.lowering.replacing import EMITTED
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.node import ResolvedNode, Semantics, check_semantics
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.recurrent.sonnx import departures
from rnnlower.targets.target import CONTROL_FLOW, Claim, Limit, RecurrentRule, Target

__all__ = ["Misfit", "find_misfits", "native_misfits", "profile_notes", "runs_op"]

Reason = tuple[str, Claim]

_VERDICTS = {
    "refused": "{target} refuses {what}",
    "wrong": "{target} gets {what} silently wrong",
    "unknown": "whether {target} gets {what} right is not known",
}


_SIZES = {"batch": "batch size", "time": "sequence length"}


@dataclasses.dataclass(frozen=True)
class Misfit:
    """Something in a model that a target does not run.

    Attributes:
        path: Where the node lives, as in `inspect`.
        name: The node's name, or else that of its first output; an input's name.
        op_type: The node's operator; ``(input)`` for a graph input, ``(model)`` for the model.
        reason: What does not fit.
        remedy: What to do about it; ``""`` where nothing is known.
        source: Who says so.
        guess: Whether nobody does.
    """

    path: str
    name: str
    op_type: str
    reason: str
    remedy: str
    source: str
    guess: bool

    def __str__(self) -> str:
        place = f"{self.path}/{self.name}" if self.path else self.name
        return f"{self.op_type} {place!r}: {self.reason}" + (" (a guess)" if self.guess else "")


def find_misfits(
    model: ir.Model, target: Target, semantics: Semantics = "ort", *, emitted: bool | None = None
) -> list[Misfit]:
    """Everything in the model that the target does not run.

    Args:
        model: The model; it stays as it is.
        target: The target.
        semantics: The reading by which a native recurrent node has to be right.
        emitted: Look only at nodes that a lowering has emitted, or at all but those; ``None``: at everything.

    Raises:
        OptionError: There is no such reading.
    """
    check_semantics(semantics)
    found = [] if emitted else [*_of_model(model, target), *_of_inputs(model, target)]
    recurrent = {located.node: located for located in find_recurrent(model)}
    for node, twin, path in _nodes(model):
        if emitted is not None and emitted != (EMITTED in node.meta):
            continue
        name = node.name or next((out.name for out in node.outputs if out.name), None) or "(unnamed)"
        if node in recurrent:
            found += native_misfits(recurrent[node], target, semantics)
            continue
        reasons = _of_node(twin, target, default_opset(model), node.op_identifier() in model.functions)
        found += [
            Misfit(path, name, _op_name(node), text, "", claim.source, claim.guess) for text, claim in reasons
        ]
    return found


def native_misfits(located: Located, target: Target, semantics: Semantics) -> list[Misfit]:
    """Why the target does not run a recurrent node soundly as it is; nothing if it does."""
    found = _of_profile(located, target)
    if found is None:
        remedy = wording.call("lower", target=target.name)
        found = [(text, remedy, claim) for text, claim in _native_reasons(located, target, semantics)]
    return [
        Misfit(located.path, located.name, located.node.op_type, text, remedy, claim.source, claim.guess)
        for text, remedy, claim in found
    ]


def _of_profile(located: Located, target: Target) -> list[tuple[str, str, Claim]] | None:
    """What a node has against the target's profile; ``None``: it has none."""
    rule = next((rule for rule in target.recurrent if rule.profile), None)
    if rule is None:
        return None
    return [
        (f"{departure.subject} {departure.what}", departure.remedy, rule)
        for departure in departures(located)
        if departure.level == "error"
    ]


def profile_notes(model: ir.Model, target: Target) -> list[str]:
    """What only some implementations of the target's profile refuse."""
    if not target.profile:
        return []
    return [
        str(departure)
        for located in find_recurrent(model)
        for departure in departures(located)
        if departure.level == "note"
    ]


def _native_reasons(located: Located, target: Target, semantics: Semantics) -> list[Reason]:
    rules = [rule for rule in target.recurrent if located.node.op_type in rule.ops]
    if not rules:
        return [(f"{target.name} has no {_op_name(located.node)}", target.ops)]
    if any(attribute.is_ref() for attribute in located.node.attributes.values()):
        return [("its attributes depend on the function's caller", rules[0])]
    node = parse_recurrent(located, semantics, lenient=True)
    judged = [(rule, list(_broken(rule, node, semantics, located.path))) for rule in rules]
    if not all(broken for _, broken in judged):
        return []
    rule, broken = min(judged, key=lambda pair: len(pair[1]))
    return [
        (
            _VERDICTS["wrong" if key in rule.wrong else rule.otherwise].format(
                target=target.name, what=f"{node.op_type} with {what}"
            ),
            rule,
        )
        for key, what in broken
    ]


def runs_op(target: Target, node: ir.Node) -> bool:
    """Whether the target has a node's operator at all."""
    if node.domain:
        return target.has_foreign(node.domain, node.op_type)
    return node.op_type in target.op_types or any(node.op_type in rule.ops for rule in target.recurrent)


def _of_model(model: ir.Model, target: Target) -> list[Misfit]:
    first, last = target.opset.range
    opset = default_opset(model)
    if first <= opset <= last:
        return []
    reason = f"opset {opset} is not one of {first} to {last}"
    remedy = wording.call("convert", opset=min(max(opset, first), last))
    return [Misfit("", "opset", "(model)", reason, remedy, target.opset.source, target.opset.guess)]


def _of_inputs(model: ir.Model, target: Target) -> list[Misfit]:
    if not target.shapes.static:
        return []
    return [
        Misfit(
            "",
            value.name or "",
            "(input)",
            "its shape is " + ("unknown" if value.shape is None else f"[{', '.join(map(str, value.shape))}]"),
            str(open_sizes([value])),
            target.shapes.source,
            target.shapes.guess,
        )
        for value in model.graph.inputs
        if is_open(value)
    ]


def _nodes(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Node, str]]:
    """Every node, its twin in a copy with inferred types and shapes, and its path."""
    typed = model.clone()
    forget_negative_sizes(typed)
    with quiet_libraries():
        guarded(op_types(typed), lambda: ShapeInferencePass(data_prop=True)(typed))
    graphs: list[tuple[ir.Graph | ir.Function, ir.Graph | ir.Function, str]] = [
        (model.graph, typed.graph, "")
    ]
    for function, twin in zip(model.functions.values(), typed.functions.values(), strict=True):
        graphs.append((function, twin, f"function:{function.domain}::{function.name}"))
    for graph, copy, path in graphs:
        for (node, where), (same, _) in zip(walk(graph, path), walk(copy, path), strict=True):
            yield node, same, where


def _op_name(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


def _of_node(node: ir.Node, target: Target, opset: int, is_call: bool) -> Iterator[Reason]:
    if node.domain:
        yield from _of_foreign_node(node, target, is_call)
        return
    if node.op_type in CONTROL_FLOW and node.op_type not in target.control_flow.ops:
        yield f"{target.name} has no {node.op_type}", target.control_flow
        return
    if node.op_type not in target.op_types:
        yield f"{target.name} has no {node.op_type}", target.ops
        return
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    dtypes = {dtype for value in values if (dtype := _dtype(value)) is not None}
    for dtype in sorted(dtypes - {"int64", *target.dtypes.allowed}):
        yield f"type {dtype} is not one of {', '.join(target.dtypes.allowed)}", target.dtypes
    for limit in target.limits:
        if node.op_type in limit.ops:
            yield from ((what, limit) for what in _beyond(limit, node, opset))


def _of_foreign_node(node: ir.Node, target: Target, is_call: bool) -> Iterator[Reason]:
    if is_call and not target.ops.functions:
        yield f"{target.name} takes no model-local functions", target.ops
    elif not is_call and node.domain not in target.domains:
        yield f"{target.name} has no operators of domain {node.domain}", target.ops
    elif not is_call and not target.has_foreign(node.domain, node.op_type):
        yield f"{target.name} has no {_op_name(node)}", target.ops


def _dtype(value: ir.Value | None) -> str | None:
    if value is None or value.dtype is None or value.dtype == ir.DataType.UNDEFINED:
        return None
    return "string" if value.dtype == ir.DataType.STRING else str(value.dtype.numpy())


def _beyond(limit: Limit, node: ir.Node, opset: int) -> Iterator[str]:
    first = node.inputs[0] if node.inputs else None
    dtype = _dtype(first)
    if limit.dtypes is not None and dtype is not None and dtype not in limit.dtypes:
        yield f"its input has type {dtype}, not {' or '.join(limit.dtypes)}"
    for index in limit.constant:
        value = node.inputs[index] if index < len(node.inputs) else None
        if value is not None and constant_of(value) is None:
            yield f"its input {index} is not a constant"
    for value in (first, node.outputs[0]):
        rank = 0 if value is None or value.shape is None else len(value.shape)
        if limit.max_rank is not None and value is not None and rank > limit.max_rank:
            yield f"{value.name} has rank {rank}, above {limit.max_rank}"
    for name, allowed in limit.attributes.items():
        if name in node.attributes and _plain(node.attributes[name].value) not in allowed:
            given = _plain(node.attributes[name].value)
            yield f"attribute {name} is {given!r}, not {_alternatives(allowed)}"
    if limit.versions is not None:
        yield from _of_another_version(node.op_type, opset, limit.versions)


def _of_another_version(op_type: str, opset: int, allowed: Sequence[int]) -> Iterator[str]:
    try:
        version = onnx.defs.get_schema(op_type, opset).since_version
    except onnx.defs.SchemaError:
        yield f"{op_type} does not exist at opset {opset}"
        return
    if version not in allowed:
        yield f"{op_type}-{version} is not one of version {', '.join(map(str, allowed))}"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple | list) else value


def _alternatives(values: Sequence[Any]) -> str:
    return " or ".join(repr(value) for value in values) if values else "absent"


def _broken(
    rule: RecurrentRule, node: ResolvedNode, semantics: Semantics, path: str
) -> Iterator[tuple[str, str]]:
    """What about a recurrent node a rule does not allow: the key of `wrong`, and words."""
    if rule.semantics is not None and semantics not in rule.semantics:
        yield "semantics", wording.option("semantics", semantics)
    if rule.dtypes is not None and (node.dtype is None or str(node.dtype.numpy()) not in rule.dtypes):
        yield "type", "an unknown type" if node.dtype is None else f"type {node.dtype.numpy()}"
    if 0 in (node.seq_length, node.batch_size):
        yield "empty", "no time steps or no rows"
    for name, size in (("batch", node.batch_size), ("time", node.seq_length)):
        if name in rule.static and size is None:
            yield name, f"a {_SIZES[name]} that is not a number"
    if rule.directions is not None and node.direction not in rule.directions:
        yield node.direction, f"direction {node.direction}"
    for name in node.inputs:
        if rule.inputs is not None and name not in ("X", "W", "R", *rule.inputs):
            yield name, f"input {name}"
    for name in rule.needs:
        if name not in node.inputs and name not in node.node.attributes:
            yield name, f"no {name}"
    if rule.most_inputs is not None and len(node.node.inputs) > rule.most_inputs:
        yield "inputs", f"{len(node.node.inputs)} inputs written, empty ones included,"
    if not rule.nested and path:
        yield "nested", "a place in a body"
    for name in rule.constant:
        if name in node.inputs and constant_of(node.inputs[name]) is None:
            yield name, f"an input {name} that is not a constant"
    for name, allowed in rule.attributes.items():
        value = _attribute(node, name)
        if value is not None and value not in allowed:
            yield name, f"attribute {name} = {value}"
    yield from _broken_activations(rule, node)


def _broken_activations(rule: RecurrentRule, node: ResolvedNode) -> Iterator[tuple[str, str]]:
    names = [[activation.name for activation in functions] for functions in node.activations]
    used = sorted({name for functions in names for name in functions})
    own = all(functions == list(node.cell.activations) for functions in names)
    allowed = rule.activations
    if allowed is not None and not ({*used} <= {*allowed} or ("default" in allowed and own)):
        yield "activations", f"activations {', '.join(used)}"
    if rule.same_activations and len(set(node.activations)) > 1:
        yield "activations", "different activations for its directions"


def _attribute(node: ResolvedNode, name: str) -> Any:
    """The value that counts: the given one, or the default of the operator's text."""
    resolved = {
        "layout": node.layout,
        "input_forget": int(node.input_forget),
        "linear_before_reset": int(node.linear_before_reset),
        "clip": node.clip,
    }
    if name in resolved:
        return resolved[name]
    attribute = node.node.attributes.get(name)
    return None if attribute is None else _plain(attribute.value)
