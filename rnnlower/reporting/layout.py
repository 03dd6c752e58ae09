"""The layout of a drawing's boxes: in layers from top to bottom, with room for the lines between them."""

from __future__ import annotations

import dataclasses
import itertools
import statistics
from collections.abc import Mapping, Sequence

_GAP = 16
_BETWEEN = 60
"""Pixels between unconnected parts."""
_LINE = 10
"""The width of a line in a layer that it only crosses."""
_SWEEPS = 24

_Place = tuple[int, int]
"""A box, or an edge, by its number; and the layer. Edges are counted from -1 downwards."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The positions of all boxes and lines.

    Attributes:
        middles: The middle of each box, in pixels from the left.
        paths: For each edge, the layers that it touches and the position of the line there, downwards.
        width: The total width.
    """

    middles: Sequence[float]
    paths: Sequence[Sequence[tuple[int, float]]]
    width: float


def place(widths: Sequence[float], layers: Sequence[int], edges: Sequence[tuple[int, int]]) -> Layout:
    """Place boxes of these widths in their layers; an edge leads from a box to one in a lower layer."""
    chains = [
        [(a, layers[a]), *((-1 - n, layer) for layer in range(layers[a] + 1, layers[b])), (b, layers[b])]
        for n, (a, b) in enumerate(edges)
    ]
    near: dict[_Place, list[_Place]] = {each: [] for each in enumerate(layers)}
    for chain in chains:
        for upper, lower in itertools.pairwise(chain):
            near.setdefault(upper, []).append(lower)
            near.setdefault(lower, []).append(upper)
    room = {each: widths[each[0]] if each[0] >= 0 else _LINE for each in near}
    middles: dict[_Place, float] = {}
    right = 0.0
    for part in _parts(near):
        own = _middles(part, near, room)
        left = min(own[each] - room[each] / 2 for each in part) - right
        middles |= {each: x - left for each, x in own.items()}
        right = max(middles[each] + room[each] / 2 for each in part) + _BETWEEN
    paths = [[(each[1], middles[each]) for each in chain] for chain in chains]
    return Layout([middles[each] for each in enumerate(layers)], paths, right - _BETWEEN)


def _parts(near: Mapping[_Place, Sequence[_Place]]) -> list[list[_Place]]:
    """Return the connected parts, in the order in which they first occur."""
    found: list[list[_Place]] = []
    seen: set[_Place] = set()
    for first in near:
        if first in seen:
            continue
        seen.add(first)
        part = [first]
        for each in part:
            more = [other for other in dict.fromkeys(near[each]) if other not in seen]
            seen.update(more)
            part += more
        found.append(part)
    return found


def _middles(
    part: Sequence[_Place], near: Mapping[_Place, Sequence[_Place]], room: Mapping[_Place, float]
) -> dict[_Place, float]:
    """Move every box toward its neighbors: down and up the layers, and both at the end."""
    rows: dict[int, list[_Place]] = {}
    for each in sorted(part, key=lambda each: each[1]):
        rows.setdefault(each[1], []).append(each)
    middles = {each: float(index) for row in rows.values() for index, each in enumerate(row)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        both = sweep >= _SWEEPS // 2
        for layer in sorted(rows, reverse=not down):
            row = rows[layer]
            wanted = {}
            for each in row:
                others = [other for other in near[each] if both or (other[1] < layer) == down]
                wanted[each] = statistics.fmean([middles[other] for other in others or [each]])
            if not both:
                row.sort(key=wanted.__getitem__)
            middles.update(_spread(row, wanted, room))
    return middles


def _spread(
    row: Sequence[_Place], wanted: Mapping[_Place, float], room: Mapping[_Place, float]
) -> dict[_Place, float]:
    """Return positions for a row close to the wanted ones; overlapping boxes move as one."""
    offsets: dict[_Place, float] = {}
    end = 0.0
    for each in row:
        offsets[each] = end + room[each] / 2
        end += room[each] + _GAP
    blocks: list[tuple[list[_Place], int, float]] = []
    for each in row:
        members, weight, start = [each], 1, wanted[each] - offsets[each]
        while blocks and blocks[-1][2] >= start:
            before, their_weight, their_start = blocks.pop()
            start = (start * weight + their_start * their_weight) / (weight + their_weight)
            members, weight = before + members, weight + their_weight
        blocks.append((members, weight, start))
    return {each: start + offsets[each] for members, _, start in blocks for each in members}
