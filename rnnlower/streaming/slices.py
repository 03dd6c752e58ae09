"""Frames that exporters cut from a sequence by one Slice each: a single Gather takes them all."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.rewiring import remove_orphans, take_place_of
from rnnlower.graph.slicing import axis_slices
from rnnlower.graph.walk import operand, producer_of

_FEWEST = 2


def gather_slices(model: ir.Model, facts: Facts) -> None:
    """Replace each Concat of slices of equal length and distance by a Gather with constant indices.

    Before: ``Concat(Unsqueeze(x[0:16]), Unsqueeze(x[8:24]), ...)``.
    After: ``Gather(x, [[0, 1, ...], [8, 9, ...]])``.
    """
    pool = InitializerPool(model, NameSource(all_names(model)))
    for node in list(model.graph):
        cut = [_match_slice(value, facts) for value in node.inputs] if node.op_type == "Concat" else []
        found = [each for each in cut if each is not None]
        if len(cut) < _FEWEST or len(found) < len(cut):
            continue
        sources, axes, starts, ends, new_axes = zip(*found, strict=True)
        frames = [np.arange(*bounds) for bounds in zip(starts, ends, strict=True)]
        axis = node.attributes.get_int("axis", 0)
        if any(len({*each}) > 1 for each in (sources, axes, new_axes, map(len, frames))):
            continue
        source, own, new = sources[0], axes[0], new_axes[0]
        rank = len(facts.shape(source) or ()) + 1
        # The new axis is where the frames are concatenated, next to that of their elements.
        if axis % rank != new or new not in (own, own + 1):
            continue
        places = np.array(frames) if new == own else np.array(frames).T
        gather = ir.node(
            "Gather", [source, pool.intern(ir.Tensor(np.ascontiguousarray(places)))], {"axis": own}
        )
        model.graph.insert_before(node, gather)
        take_place_of(gather.outputs[0], node.outputs[0])
        remove_orphans(node.outputs)


def _match_slice(value: ir.Value | None, facts: Facts) -> tuple[ir.Value, int, int, int, int] | None:
    """Return the source of a slice to which an axis is added, the axis, the bounds, and the new axis."""
    outer = producer_of(value, "Unsqueeze")
    node = None if outer is None else producer_of(outer.inputs[0], "Slice")
    cuts, source = (
        axis_slices(node, facts.constant),
        None if node is None or not node.inputs else node.inputs[0],
    )
    shape = facts.shape(source)
    if outer is None or source is None or shape is None or cuts is None:
        return None
    new = outer.attributes.get_ints("axes") or facts.constant(operand(outer, 1))
    if new is None or len(new) != 1 or [cut.step for cut in cuts] != [1]:
        return None
    ((start, end, axis, _),) = cuts
    axis %= len(shape)
    size = shape[axis]
    if not isinstance(size, int) or not 0 <= start < end <= size:
        return None
    return source, axis, start, end, int(new[0]) % (len(shape) + 1)
