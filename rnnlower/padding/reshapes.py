"""Reshapes: the axes over time that they keep, fold into others, and unfold again."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np
import onnx_ir as ir

from rnnlower.graph.walk import required_input
from rnnlower.padding.relative_shift import follow_shift
from rnnlower.padding.sizes import REPEATED, Axes, Factor, Fold, NoRuleError, OpenSizeError, Size
from rnnlower.padding.validity_walk import PadFlow

_Shapes: TypeAlias = "Sequence[tuple[int, ...]]"
"""The shapes of a value at the example lengths, and last that with another example of other open sizes."""

_MIXES = "folds time after another axis, or mixes it with one"


@dataclasses.dataclass(frozen=True)
class _Part:
    """An axis over time, or a factor of one into which several are folded.

    Attributes:
        size: Its size.
        outer: The number of elements before it, in each example.
        counts: The number of its own.
    """

    size: Size
    outer: list[int]
    counts: list[int]

    @property
    def end(self) -> list[int]:
        """The number of elements before what follows it."""
        return [*map(operator.mul, self.outer, self.counts)]


def reshape(flow: PadFlow, node: ir.Node) -> Axes:
    """Follow each axis to the one that has as many elements before it, or into which it is folded."""
    if (shifted := follow_shift(flow, node)) is not None:
        return shifted
    source, out = required_input(node), node.outputs[0]
    before, after = map(flow.shapes_with_other, (source, out))
    kept: dict[int, _Part] = {}
    folded: dict[int, list[_Part]] = {}
    for part in _parts(flow, flow.axes_of(source), before):
        place = _place(flow, out, part, after)
        if place is None or place in folded:
            place = _place_inside(flow, node, part, after)
            folded.setdefault(place, [kept.pop(place)] if place in kept else []).append(part)
        else:
            kept[place] = part
    axes: Axes = {}
    for place, part in kept.items():
        factor = math.gcd(after[0][place], part.counts[0])
        axes[place] = part.size.affine(after[0][place] // factor, 0, part.counts[0] // factor)
    return axes | {place: _fold(parts, place, after) for place, parts in folded.items()}


def _parts(flow: PadFlow, axes: Axes, shapes: _Shapes) -> Iterator[_Part]:
    """Yield what the axes of a value hold, the outermost first."""
    for axis, size in sorted(axes.items()):
        outer = [math.prod(shape[:axis]) for shape in shapes]
        if not isinstance(size, Fold) or size == REPEATED:
            yield _Part(size, outer, [shape[axis] for shape in shapes])
            continue
        for factor in size.factors:
            counts = flow.counts_of(factor)
            if factor.size is not None:
                yield _Part(factor.size, outer, counts)
            outer = [*map(operator.mul, outer, counts)]


def _beginning(part: _Part, shapes: _Shapes) -> list[int]:
    """Return the axes that begin where a part does."""
    return [p for p in range(len(shapes[0])) if [math.prod(shape[:p]) for shape in shapes] == part.outer]


def _place(flow: PadFlow, out: ir.Value, part: _Part, shapes: _Shapes) -> int | None:
    """Return the axis that begins where a part does, and whose elements are those of the part, or of each."""
    places, of_other = _beginning(part, shapes), shapes[-1]
    open_axes = {axis for axis, sizes in enumerate(zip(*shapes[:-1], strict=True)) if len({*sizes}) > 1}
    if flow.rows is not None and part.size.has_rows:
        # Each row of elements goes on: an axis of size 1 is none of rows.
        found = [p for p in places if p not in open_axes and not shapes[0][p] % flow.rows.full][-1:]
        found = [p for p in found if shapes[0][p] * part.counts[-1] == of_other[p] * part.counts[0]]
    else:
        is_repeated = part.size == REPEATED
        found = [p for p in places if p in open_axes and flow.is_dynamic(out, p) == is_repeated]
    return found[0] if len(found) == 1 else None


def _place_inside(flow: PadFlow, node: ir.Node, part: _Part, shapes: _Shapes) -> int:
    """Return the axis into which a part is folded with others."""
    for axis in range(len(shapes[0])):
        first, last = ([math.prod(shape[:p]) for shape in shapes] for p in (axis, axis + 1))
        ends = [*zip(part.outer, first, strict=True), *zip(last, part.end, strict=True)]
        if part.size != REPEATED and all(inner and not outer % inner for outer, inner in ends):
            return axis
    _refuse_fixed_length(flow, node, part, shapes)
    raise OpenSizeError(_MIXES)


def _fold(parts: Sequence[_Part], axis: int, shapes: _Shapes) -> Fold:
    """Return the size of an axis that holds these parts, and others between them."""
    factors: list[Factor] = []
    reached, end = ([math.prod(shape[:p]) for shape in shapes] for p in (axis, axis + 1))
    for part in (*parts, None):
        begin = part.outer if part else end
        between = [*map(operator.floordiv, begin, reached)]
        if len({*between[:-1]}) > 1 or [*map(operator.mul, between, reached)] != begin:
            raise OpenSizeError(_MIXES)
        factors.append(Factor(None, between[0], between[-1]))
        if part:
            factors.append(Factor(part.size, part.counts[0], part.counts[-1]))
            reached = part.end
    return Fold.of_factors(*(each for each in factors if (each.count, each.other) != (1, 1)))


def _refuse_fixed_length(flow: PadFlow, node: ir.Node, part: _Part, shapes: _Shapes) -> None:
    """Refuse a shape that holds a number where the sequence has its steps."""
    contents = flow.contents(node.inputs[1]) if node.op_type == "Reshape" else None
    places = _beginning(part, shapes)
    if contents and places and all(np.array_equal(each, contents[0]) for each in contents):
        steps = contents[0].reshape(-1)[places[0]]
        if steps > 0:
            raise NoRuleError(
                f"has a shape with a fixed number of steps, {steps}, such as an exporter's example"
            )
