"""Requirements of a lowering for a target, on the model and on the result, and cautions about it."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import OptionError, UnsupportedModelError
from rnnlower.graph.facts import Facts
from rnnlower.graph.open_sizes import OpenSizes, is_open, open_sizes
from rnnlower.graph.walk import Located
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.targets.fit import find_misfits
from rnnlower.targets.target import Target


def check_opset(target: Target, opset: int) -> None:
    """Refuse an opset that the target does not support."""
    first, last = target.opset.range
    if not first <= opset <= last:
        raise OptionError(
            f"the opset is {opset}; target {target.name} takes {first} to {last} ({target.opset.source})"
        )


def require_known(target: Target, node: ResolvedNode, located: Located) -> None:
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
    if words := open_inputs(model, target):
        found = open_sizes(model.graph.inputs)
        raise UnsupportedModelError(words, remedy=f"give them numbers ({found}){_or_pad(found)}")


def open_inputs(model: ir.Model, target: Target) -> str:
    """Return that inputs have dynamic sizes, which the target does not support; ``""`` if that is not so."""
    found = [repr(value.name) for value in model.graph.inputs if target.shapes.static and is_open(value)]
    names = ", ".join(found)
    return (
        f"target {target.name} takes static shapes only, and sizes of input {names} are open" if found else ""
    )


def note_open_inputs(model: ir.Model, target: Target) -> list[str]:
    """Return the note that inputs have dynamic sizes, with what fixes them."""
    words, found = open_inputs(model, target), open_sizes(model.graph.inputs)
    return [f"{words}: give them numbers ({found}){_or_pad(found)}"] if words else []


def _or_pad(found: OpenSizes) -> str:
    pad = wording.call("pad")
    return f", or pad sequences of any length to a maximum (`{pad}`)" if found.dims else ""


def wants_numbers(target: Target) -> bool:
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


def require_emitted_fit(model: ir.Model, target: Target, facts: Facts | None = None) -> None:
    """Refuse a result with an emitted node that does not fit: then data and forms disagree."""
    misfits = find_misfits(model, target, emitted=True, facts=facts)
    if misfits:
        raise UnsupportedModelError(
            f"what the lowering emits does not all fit target {target.name}: "
            + "; ".join(
                dict.fromkeys("; ".join(filter(None, (str(each), each.remedy))) for each in misfits[:10])
            )
        )
