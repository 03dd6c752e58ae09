"""What a lowering for a target does: which nodes it keeps, how it lowers the others, what may not be left."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Literal

import onnx_ir as ir

from rnnlower.errors import OptionError, UnsupportedModelError
from rnnlower.graph.open_sizes import is_open, open_sizes
from rnnlower.graph.walk import Located
from rnnlower.lowering.dialect import Dialect
from rnnlower.lowering.replacing import Plan
from rnnlower.lowering.sketching import Wishes, candidates, cheapest
from rnnlower.lowering.weights import Weights
from rnnlower.recurrent.node import ResolvedNode, Semantics
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.targets.fit import find_misfits
from rnnlower.targets.misfits import Misfit
from rnnlower.targets.native import native_misfits, native_rule
from rnnlower.targets.reading import find_target
from rnnlower.targets.target import RecurrentRule, Target

__all__ = [
    "KeptNode",
    "Native",
    "cautions",
    "check_opset",
    "choose_plan",
    "dialect",
    "require_emitted_fit",
    "require_known",
    "require_static_inputs",
    "sort_out_native",
    "wants_native",
    "wants_numbers",
]

_MOST_UNROLLED = 256

Native = Literal["auto", "keep", "lower"]
"""Whether a runtime's own operators stay: where that is fastest, wherever they are right, or never."""


@dataclasses.dataclass(frozen=True)
class KeptNode:
    """A recurrent node that stays as it is, and why."""

    name: str
    op_type: str
    path: str
    reason: str


def dialect(target: Target) -> Dialect:
    """The operators that a lowering for the target may emit."""
    constant: dict[str, frozenset[int]] = {}
    for limit in target.limits:
        for op_type in limit.ops:
            constant[op_type] = constant.get(op_type, frozenset()) | {*limit.constant}
    return Dialect(
        target.name,
        target.op_types,
        constant,
        lacks={ir.DataType.DOUBLE: _without_float64()},
        costs={} if target.costs is None else target.costs.microseconds,
        fused=frozenset() if target.costs is None else frozenset(target.costs.fused),
        apart=target.control_flow.apart,
        nearby_weights=target.control_flow.nearby_weights,
        split_outputs=min(
            (limit.max_outputs for limit in target.limits if limit.max_outputs and "Split" in limit.ops),
            default=None,
        ),
    )


@functools.cache
def _without_float64() -> frozenset[str]:
    """The operators that onnxruntime, which verifies every result, has no float64 kernel of."""
    limits = find_target("onnxruntime").limits
    return frozenset(
        op_type
        for limit in limits
        if limit.dtypes is not None and "float64" not in limit.dtypes
        for op_type in limit.ops
    )


def check_opset(target: Target, opset: int) -> None:
    """Refuses an opset that the target does not take."""
    first, last = target.opset.range
    if not first <= opset <= last:
        raise OptionError(
            f"the opset is {opset}; target {target.name} takes {first} to {last} ({target.opset.source})"
        )


def require_known(target: Target, node: ResolvedNode, located: Located) -> None:
    """Refuses a node whose sizes or type the target does not take."""
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
    if node.dtype is not None and str(node.dtype.numpy()) not in target.dtypes.allowed:
        taken = ", ".join(dtype for dtype in target.dtypes.allowed if "float" in dtype)
        raise UnsupportedModelError(
            f"its type is {node.dtype.numpy()}, and target {target.name} takes {taken}",
            node=located,
            remedy="give the model another type",
        )


def require_static_inputs(model: ir.Model, target: Target) -> None:
    """Refuses open sizes of the inputs where the target takes none."""
    found = [value for value in model.graph.inputs if target.shapes.static and is_open(value)]
    if found:
        names = ", ".join(repr(value.name) for value in found)
        raise UnsupportedModelError(
            f"target {target.name} takes static shapes only, and sizes of input {names} are open",
            remedy=f"give them numbers ({open_sizes(found)})",
        )


def sort_out_native(
    selected: Sequence[Located], target: Target, semantics: Semantics, native: Native = "auto"
) -> tuple[list[Located], list[KeptNode]]:
    """The nodes that are to be lowered, and those that stay, as the target runs them soundly as they are."""
    lowered, kept = [], []
    for located in selected:
        wanted = wants_native(located, target, semantics, native)
        if not wanted or native_misfits(located, target, semantics):
            lowered.append(located)
        else:
            reason = "it conforms" if target.profile else _why_kept(located, target, semantics)
            kept.append(KeptNode(located.name, located.node.op_type, located.path, reason))
    return lowered, kept


def wants_native(located: Located, target: Target, semantics: Semantics, native: Native) -> bool:
    """Whether the runtime's own operator is preferred to a lowered node where both are right."""
    if target.profile or native == "keep":
        return True
    if native == "lower":
        return False
    return _faster_unrolled(target, parse_recurrent(located, semantics, lenient=True)) is None


def _faster_unrolled(target: Target, node: ResolvedNode) -> RecurrentRule | None:
    """The rule by which unrolling the node beats the runtime's own operator."""
    rules = (rule for rule in target.recurrent if node.node.op_type in rule.ops)
    steps = node.seq_length
    if steps is None or node.batch_size is None:
        return None
    return next((rule for rule in rules if steps <= rule.faster_unrolled), None)


def _why_kept(located: Located, target: Target, semantics: Semantics) -> str:
    rule = native_rule(located, target, semantics)
    if rule is not None and rule.tried and target.tried is not None:
        speed = f"; {rule.measured}" if rule.measured else ""
        return f"{target.name} {target.tried.version} ran this form right at {rule.tried}{speed}"
    return f"{target.name} says that it takes this form, which was not tried"


def wants_numbers(target: Target) -> bool:
    """Whether every node's sequence length must be a number."""
    return target.shapes.static or not {"Scan", "Loop"} & {*target.control_flow.ops}


def choose_plan(
    target: Target,
    node: ResolvedNode,
    weights: Weights,
    opset: int,
    wishes: Wishes,
    strategy: str | None = None,
) -> Plan:
    """How a node is lowered for the target: the cheapest candidate of those that it runs.

    Args:
        target: The target.
        node: The node.
        weights: Cuts the node's weights.
        opset: The opset to write in, where that has all operators.
        wishes: What is asked for beside the strategy.
        strategy: The strategy, where it is asked for.

    Raises:
        MissingOperatorError: There is none.
    """
    if strategy is not None:
        strategies, reason = [strategy], "asked for"
    elif target.costs is None:
        strategies, reason = _preferred(target, node)
        rule = _faster_unrolled(target, node)
        if rule is not None and rule.measured:
            reason += f"; {rule.measured}"
    elif node.seq_length is None:
        strategies, reason = ["scan"], "its sequence length is dynamic"
    else:
        strategies, reason = ["unroll", "scan"], ""
    found = candidates(node, weights, strategies, opset, dialect(target), wishes)
    best = cheapest(found)
    prices = {str(each): round(each.price, 1) for each in found if each.price is not None}
    if not reason:
        reason = f"the cheapest of {', '.join(f'{name} {price:g} us' for name, price in prices.items())}"
    factor = 1 if best.strategy == "unroll" and strategy is None else wishes.unroll_factor
    return Plan(best.strategy, factor, reason, best.form, prices, best.needs)


def _preferred(target: Target, node: ResolvedNode) -> tuple[list[str], str]:
    """The strategy for a target of which no costs are known, and why."""
    steps, loops = node.seq_length, target.control_flow.ops
    guarded = steps is not None or "If" in loops
    if not {"Scan", "Loop"} & {*loops}:
        return ["unroll"], f"{target.name} has no Scan and no Loop"
    open_batch = target.control_flow.unroll_batch and node.batch_size is None
    if steps is not None and steps <= _MOST_UNROLLED and not open_batch:
        return ["unroll"], f"{steps} steps are few"
    length = "the number of steps is dynamic" if steps is None else f"{steps} steps are many"
    if steps is not None and steps <= _MOST_UNROLLED:
        length = "the batch size is dynamic"
    if steps is None and target.control_flow.dynamic == "Loop" and "Loop" in loops:
        return ["loop"], f"{length}, for which {target.name} wants a Loop"
    if "Scan" in loops and guarded:
        return ["scan"], length
    if "Loop" in loops:
        lack = "If" if "Scan" in loops else "Scan"
        return ["loop"], f"{length}, and {target.name} has no {lack}"
    return ["scan"], f"{length}, and {target.name} has no Loop"


def cautions(target: Target, nodes: Sequence[ResolvedNode]) -> list[str]:
    """What is known against the lowered forms of the nodes."""
    return [
        f"target {target.name}: {caution.text} ({caution.source})"
        for caution in target.cautions
        if any(
            node.op_type in caution.ops
            and (not caution.open or None in [sizes[name] for name in caution.open])
            for node in nodes
            for sizes in ({"batch": node.batch_size, "time": node.seq_length},)
        )
    ]


def require_emitted_fit(model: ir.Model, target: Target) -> None:
    """Refuses a result of which an emitted node does not fit: the data and the forms disagree."""
    misfits = find_misfits(model, target, emitted=True)
    if misfits:
        raise UnsupportedModelError(
            f"what the lowering emits does not all fit target {target.name}: "
            + "; ".join(dict.fromkeys(_with_remedy(misfit) for misfit in misfits[:10]))
        )


def _with_remedy(misfit: Misfit) -> str:
    return f"{misfit}; {misfit.remedy}" if misfit.remedy else str(misfit)
