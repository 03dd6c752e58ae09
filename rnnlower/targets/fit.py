"""The search for nodes that a target does not run, and the requirements of a lowering for it."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import OptionError, UnsupportedModelError
from rnnlower.graph.dynamic_sizes import has_dynamic_size, options_for_sizes, or_padded
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.versions import version_at
from rnnlower.graph.walk import (
    LocatedNode,
    default_opset,
    display_name,
    operand,
    qualified_op_type,
    subgraphs_of,
    walk,
    walk_all,
)
from rnnlower.lowering.replacing import EMITTED
from rnnlower.recurrent.finding import find_recurrent, is_stateful
from rnnlower.recurrent.node import ResolvedNode, Semantics, check_semantics
from rnnlower.recurrent.sonnx import find_departures
from rnnlower.targets.format import Limit
from rnnlower.targets.misfits import Misfit, alternatives, remedy_for
from rnnlower.targets.native import Reason, as_stored, find_native_misfits, find_repeating_op
from rnnlower.targets.target import Target
from rnnlower.targets.vocabulary import CONTROL_FLOW

_LOOPS = ("Loop", "Scan")


def find_misfits(
    model: ir.Model,
    target: Target,
    semantics: Semantics = "ort",
    *,
    emitted: bool | None = None,
    skipped: Container[ir.Node] = (),
    facts: Facts | None = None,
) -> list[Misfit]:
    """List everything in the model that the target does not run.

    Args:
        model: The model; types and sizes are noted on the inputs of recurrent nodes.
        semantics: Whose semantics a native recurrent node must follow: ``ort`` or ``spec``.
        emitted: Check only nodes that a lowering has emitted, or all but those; ``None``: all nodes.
        skipped: Nodes that are not checked, as they will be replaced.
        facts: Facts about the model, if they exist already.

    Raises:
        OptionError: The semantics do not exist.
    """
    check_semantics(semantics)
    found = [] if emitted else [*_opset_misfits(model, target), *_input_misfits(model, target)]
    facts = facts or Facts(model)
    natives = {} if emitted else find_native_misfits(model, target, semantics, facts)
    names = {located.node: located.name for located in find_recurrent(model, is_stateful)}
    for node, path in walk_all(model):
        if node in skipped or emitted not in (None, EMITTED in node.meta):
            continue
        name = names.get(node) or display_name(node)
        if node in natives:
            found += natives[node]
            continue
        reasons = _node_reasons(node, target, facts, node.op_identifier() in model.functions)
        found += [
            Misfit(
                path,
                name,
                qualified_op_type(node),
                text,
                remedy_for(model, node, target, claim),
                claim.source,
                claim.guess,
                alternatives(node, target, claim),
            )
            for text, claim in reasons
        ]
    return found


def profile_notes(model: ir.Model, target: Target) -> list[str]:
    """Return notes on features that only some implementations of the target's profile refuse."""
    if not target.profile:
        return []
    return [
        str(departure)
        for located in find_recurrent(model)
        for departure in find_departures(located)
        if departure.level == "note"
    ]


def has_operator(target: Target, node: ir.Node) -> bool:
    """Return whether the target has a node's operator at all."""
    if node.domain:
        return target.has_foreign(node.domain, node.op_type)
    return node.op_type in target.op_types or any(node.op_type in rule.ops for rule in target.recurrent)


def refuses(target: Target, node: ir.Node, facts: Facts) -> bool:
    """Return whether the target lacks a node's operator, or a limit excludes the node."""
    limits = [limit for limit in target.limits if node.op_type in limit.ops and not node.domain]
    violations = (each for limit in limits for each in _limit_violations(limit, node, facts))
    return not has_operator(target, node) or any(violations)


def has_excluded_loops(target: Target, node: ir.Node) -> bool:
    """Return whether a Loop or Scan has others in its body, which the target does not take there."""
    if not target.control_flow.flat or node.op_type not in _LOOPS or node.domain:
        return False
    return any(each.op_type in _LOOPS for graph in subgraphs_of(node) for each, _ in walk(graph))


def _opset_misfits(model: ir.Model, target: Target) -> list[Misfit]:
    first, last = target.opset.range
    opset = default_opset(model)
    if first <= opset <= last:
        return []
    reason = f"opset {opset} is not one of {first} to {last}"
    remedy = wording.call("convert", opset=min(max(opset, first), last))
    return [Misfit("", "opset", "(model)", reason, remedy, target.opset.source, target.opset.guess)]


def _input_misfits(model: ir.Model, target: Target) -> list[Misfit]:
    if not target.shapes.static:
        return []
    return [
        Misfit(
            "",
            value.name or "",
            "(input)",
            "its shape is " + ("unknown" if value.shape is None else f"[{', '.join(map(str, value.shape))}]"),
            str(options_for_sizes([value])),
            target.shapes.source,
            target.shapes.guess,
        )
        for value in model.graph.inputs
        if has_dynamic_size(value)
    ]


def _node_reasons(node: ir.Node, target: Target, facts: Facts, is_call: bool) -> Iterator[Reason]:
    if node.domain:
        yield from _foreign_node_reasons(node, target, is_call)
        return
    if node.op_type in CONTROL_FLOW and node.op_type not in target.control_flow.ops:
        yield f"{target.name} has no {node.op_type}", target.control_flow
        return
    if has_excluded_loops(target, node):
        yield f"{target.name} takes no Loop or Scan in its body", target.control_flow
    if node.op_type not in target.op_types:
        yield f"{target.name} has no {node.op_type}", target.ops
        return
    values = [value for value in (*node.inputs, *node.outputs) if value is not None]
    dtypes = {dtype for value in values if (dtype := _dtype_name(facts.type(value))) is not None}
    for dtype in sorted(dtypes - {"int64", *target.dtypes.allowed}):
        yield f"type {dtype} is not one of {', '.join(target.dtypes.allowed)}", target.dtypes
    for limit in target.limits:
        if node.op_type in limit.ops:
            yield from ((what, limit) for what in _limit_violations(limit, node, facts))


def _foreign_node_reasons(node: ir.Node, target: Target, is_call: bool) -> Iterator[Reason]:
    if is_call and not target.ops.functions:
        yield f"{target.name} takes no model-local functions", target.ops
    elif not is_call and node.domain not in target.domains:
        yield f"{target.name} has no operators of domain {node.domain}", target.ops
    elif not is_call and not target.has_foreign(node.domain, node.op_type):
        yield f"{target.name} has no {qualified_op_type(node)}", target.ops


def _dtype_name(type_: ir.TypeProtocol | None) -> str | None:
    if type_ is None or type_.dtype == ir.DataType.UNDEFINED:
        return None
    return "string" if type_.dtype == ir.DataType.STRING else str(type_.dtype.numpy())


def _limit_violations(limit: Limit, node: ir.Node, facts: Facts) -> Iterator[str]:
    yield from _constant_violations(limit, node)
    yield from _input_violations(limit, node, facts)
    yield from _rank_violations(limit, node, facts)
    yield from _attribute_violations(limit, node, facts)


def _constant_violations(limit: Limit, node: ir.Node) -> Iterator[str]:
    for index in limit.constant:
        value = operand(node, index)
        if value is not None and constant_of(value) is None:
            yield f"its input {index} is not a constant"
    read = {*limit.vector, *limit.scalar, *limit.ones, *limit.not_negative}
    tensors = {index: constant_of(operand(node, index)) for index in read}
    known = {index: tensor.numpy() for index, tensor in tensors.items() if tensor is not None}
    for index in limit.vector:
        if index in known and known[index].ndim > 1:
            yield f"its constant input {index} has {known[index].ndim} axes"
    for index in limit.scalar:
        if index in known and known[index].ndim > 0:
            yield f"its constant input {index} is not a scalar"
    for index in limit.ones:
        if index in known and np.any(known[index] != 1):
            yield f"its constant input {index} is not 1"
    for index in limit.not_negative:
        if index in known and np.any(known[index] < 0):
            yield f"its constant input {index} is negative"


def _input_violations(limit: Limit, node: ir.Node, facts: Facts) -> Iterator[str]:
    first, version = operand(node, 0), version_at(node.op_type, facts.opset)
    dtype = None if first is None else _dtype_name(facts.type(first))
    if limit.dtypes is not None and dtype is not None and dtype not in limit.dtypes:
        yield f"its input has type {dtype}, not {' or '.join(limit.dtypes)}"
    for index in limit.not_vector:
        if len(facts.dims(operand(node, index)) or ()) == 1:
            yield f"its input {index} has one axis"
    groups = node.attributes.get_int("group", 1)
    if limit.no_depthwise and groups > 1 and (facts.dims(operand(node, 1)) or ())[:2] == (groups, 1):
        yield "each of its groups has one channel"
    if version is not None and version.since in limit.last_axis and "axis" in version.attributes:
        axis = node.attributes.get_int("axis", version.attributes["axis"].default)
        if any(dim != 1 for dim in (facts.dims(first) or ())[axis:][1:]):
            yield f"axes follow its attribute axis, {axis}"
    if op_type := find_repeating_op(first, limit.alone_behind, alone=True):
        yield f"its input is what {op_type} repeats, and nothing else reads that"


def _rank_violations(limit: Limit, node: ir.Node, facts: Facts) -> Iterator[str]:
    first = operand(node, 0)
    dims = facts.dims(first)
    if limit.ranks and dims is not None and len(dims) not in limit.ranks:
        yield f"its input has rank {len(dims)}, not {' or '.join(map(str, limit.ranks))}"
    for what, value in (("input", first), ("output", node.outputs[0])):
        if limit.max_rank is None or value is None:
            continue
        shape = facts.dims(value) or value.shape
        if shape is not None and len(shape) > limit.max_rank:
            yield f"its {what} has rank {len(shape)}, above {limit.max_rank}"


def _attribute_violations(limit: Limit, node: ir.Node, facts: Facts) -> Iterator[str]:
    version = version_at(node.op_type, facts.opset)
    if limit.max_outputs is not None and len(node.outputs) > limit.max_outputs:
        yield f"it has {len(node.outputs)} outputs, more than {limit.max_outputs}"
    for name, allowed in limit.attributes.items():
        known = version.attributes.get(name) if version is not None and allowed else None
        default = None if known is None else known.default
        given = as_stored(node.attributes[name].value if name in node.attributes else default)
        if (name in node.attributes or default is not None) and given not in map(as_stored, allowed):
            yield f"attribute {name} is {given!r}, not {' or '.join(map(repr, allowed)) or 'absent'}"
    for name in limit.spelled:
        if "..." in node.attributes.get_string(name, ""):
            yield f"its attribute {name} has an ellipsis"
    for name in limit.written:
        if name not in node.attributes and version is not None and name in version.attributes:
            yield f"attribute {name} is not written"
    if limit.versions is not None and version is None:
        yield f"{node.op_type} does not exist at opset {facts.opset}"
    elif limit.versions is not None and version is not None and version.since not in limit.versions:
        yield f"{version} is not one of version {', '.join(map(str, limit.versions))}"


def check_opset(target: Target, opset: int) -> None:
    """Refuse an opset that the target does not support."""
    first, last = target.opset.range
    if not first <= opset <= last:
        raise OptionError(
            f"the opset is {opset}; target {target.name} takes {first} to {last} ({target.opset.source})"
        )


def require_supported(target: Target, node: ResolvedNode, located: LocatedNode) -> None:
    """Refuse a node whose sizes or type the target does not support."""
    if target.shapes.static:
        sizes = {"batch size": node.batch_size, "sequence length": node.seq_length}
        for what, size in sizes.items():
            if size is None:
                raise UnsupportedModelError(
                    f"its {what} does not follow from the shapes of the inputs, and target "
                    f"{target.name} takes static shapes only",
                    node=located,
                    remedy="choose a target that takes others",
                )
    types = [
        dtype
        for dtype in target.dtypes.allowed
        if all(
            limit.dtypes is None or dtype in limit.dtypes for limit in target.limits if "Tanh" in limit.ops
        )
    ]
    if node.dtype is not None and str(node.dtype.numpy()) not in types:
        taken = ", ".join(dtype for dtype in types if "float" in dtype)
        raise UnsupportedModelError(
            f"its type is {node.dtype.numpy()}, and target {target.name} takes {taken}",
            node=located,
            remedy="give the model another type",
        )


def require_static_inputs(model: ir.Model, target: Target) -> None:
    """Refuse dynamic sizes of the inputs if the target does not support them."""
    names = ", ".join(repr(each.name) for each in model.graph.inputs if has_dynamic_size(each))
    if not (target.shapes.static and names):
        return
    options = or_padded(options_for_sizes(model.graph.inputs))
    raise UnsupportedModelError(
        f"target {target.name} takes static shapes only, and sizes of input {names} are open",
        remedy=f"give them numbers: {options}",
    )


def note_open_inputs(model: ir.Model, target: Target) -> list[str]:
    """Return a note instead of the error of `require_static_inputs`."""
    try:
        require_static_inputs(model, target)
    except UnsupportedModelError as error:
        return [f"{error.problem}: {error.remedy}"]
    return []


def needs_static_length(target: Target) -> bool:
    """Return whether every node's sequence length must be static."""
    return target.shapes.static or not {"Scan", "Loop"} & {*target.control_flow.ops}


def cautions(target: Target, nodes: Sequence[ResolvedNode]) -> list[str]:
    """Return the known cautions about the lowered forms of the nodes."""
    return [
        f"target {target.name}: {caution.text} ({caution.source})"
        for caution in target.cautions
        if any(
            node.op_type in caution.ops
            and (not caution.open or None in [sizes[name] for name in caution.open])
            and (caution.above_steps is None or (node.seq_length or 0) > caution.above_steps)
            for node in nodes
            for sizes in ({"batch": node.batch_size, "time": node.seq_length},)
        )
    ]


def require_emitted_fit(model: ir.Model, target: Target, facts: Facts) -> None:
    """Refuse a result with an emitted node that does not fit: the target's data and the forms disagree."""
    misfits = find_misfits(model, target, emitted=True, facts=facts)
    if misfits:
        raise UnsupportedModelError(
            f"what the lowering emits does not all fit target {target.name}: "
            + "; ".join(
                dict.fromkeys("; ".join(filter(None, (str(each), each.remedy))) for each in misfits[:10])
            )
        )
