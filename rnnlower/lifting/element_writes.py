"""Operators that replace one element of a tensor."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Array, Dims
from rnnlower.graph.facts import Facts
from rnnlower.graph.operator_kinds import VIEWS
from rnnlower.graph.walk import look_through, producer_of, required_input
from rnnlower.lifting.frames import counts_along

_REPEATING = VIEWS | {"Expand", "Tile"}


@dataclasses.dataclass(frozen=True)
class ElementWrite:
    """The replacement of an element of a tensor.

    Attributes:
        axis: The axis that has the element.
        place: Its position on the axis: a value, or a number.
        update: The new element.
        keeps_axis: Whether that has the axis, with size 1.
    """

    axis: int
    place: ir.Value | int
    update: ir.Value
    keeps_axis: bool


def read_write(facts: Facts, writer: ir.Node, aliases: Mapping[ir.Value, ir.Value]) -> ElementWrite | None:
    """Return the element that a ScatterElements or ScatterND replaces; ``None`` if it replaces anything else.

    `aliases` map values of a step to those of the graph around it.
    """
    whole, place, update = (required_input(writer, index) for index in range(3))
    dims, given = facts.dims(whole), facts.dims(update)
    if not dims or given is None or writer.attributes.get_string("reduction", "none") != "none":
        return None
    found: tuple[int, ir.Value | int] | None
    if writer.op_type == "ScatterElements":
        found = writer.attributes.get_int("axis", 0) % len(dims), place
    else:
        found = _find_axis(facts, place, dims, aliases)
    if found is None:
        return None
    axis, position = found
    if isinstance(position, ir.Value):
        # All elements have the same position.
        position = look_through(position, _REPEATING)
        numbers = facts.constant(position)
        if numbers is not None and len({*numbers.flat}) == 1:
            position = int(numbers.flat[0])
    keeps_axis = len(given) == len(dims)
    element = given if keeps_axis else (*given[:axis], 1, *given[axis:])
    is_element = element == (*dims[:axis], 1, *dims[axis + 1 :])
    return ElementWrite(axis, position, update, keeps_axis) if is_element else None


def _find_axis(
    facts: Facts, place: ir.Value, dims: Dims, aliases: Mapping[ir.Value, ir.Value]
) -> tuple[int, ir.Value | int] | None:
    """Return the axis on which a ScatterND indexes an element, and its position; other axes are whole."""
    joined, shape, indices = producer_of(place, "Concat"), facts.dims(place) or (), facts.constant(place)
    if indices is not None and indices.size:
        starts = enumerate(indices.reshape(-1, indices.shape[-1])[0].tolist())
        return next((each for each in starts if _is_grid(indices, dims, *each)), None)
    if joined is None:
        return (0, place) if shape[-1:] == (1,) else None
    grids = joined.inputs
    keeps_axis = len(shape) > len(grids)
    for axis, position in enumerate(grids):
        whole = (*dims[:axis], *[1] * keeps_axis, *dims[axis + 1 : len(grids)], len(grids))
        is_last = joined.attributes.get_int("axis", 0) in (-1, len(shape) - 1)
        others = [(grid, other - (other > axis and not keeps_axis)) for other, grid in enumerate(grids)]
        del others[axis]
        are_whole = all(counts_along(facts, *other, aliases) for other in others)
        if position is not None and is_last and shape == whole and are_whole:
            return axis, position
    return None


def _is_grid(indices: Array, dims: Dims, axis: int, start: int) -> bool:
    """Return whether indices are those of all elements that have this position on an axis, in their order."""
    *shape, rank = indices.shape
    sizes = [1 if each == axis else size for each, size in enumerate(dims[:rank]) if isinstance(size, int)]
    if len(sizes) < rank or shape not in (sizes, [*sizes[:axis], *sizes[axis + 1 :]]):
        return False
    grid = np.indices(sizes)
    grid[axis] += start
    return bool((grid.reshape(rank, -1) == indices.reshape(-1, rank).T).all())
