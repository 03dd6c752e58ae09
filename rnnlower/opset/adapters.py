"""Adapters that several operator families share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rnnlower.opset.step import Adapter, Row, Step


def refuse_unless(name: str, allowed: Iterable[Any], reason: str) -> Adapter:
    """Return an adapter that accepts a node if its attribute `name` has one of the values `allowed`."""
    values = tuple(allowed)

    def adapter(step: Step) -> None:
        if step.attr(name) not in values:
            step.refuse(f"{name}={step.attr(name)!r}: {reason}")

    known = ", ".join(str(value) for value in values if value is not None) or "left out"
    adapter.__doc__ = f"only with `{name}` {known}: {reason}"
    return adapter


def only(
    operators: str, low: int, high: int, why: str, name: str, allowed: Iterable[Any], reason: str
) -> Row:
    """Return a row that lets a node step down if its attribute `name` has one of the values `allowed`."""
    return Row(operators, low, high, why, down=refuse_unless(name, allowed, reason))


def drop_if(name: str, neutral: Any, reason: str) -> Adapter:
    """Return an adapter that drops the list `name` if all its entries are `neutral`, else refuses."""

    def adapter(step: Step) -> None:
        values = step.attr(name) or ()
        if any(each != neutral for each in values):
            step.refuse(f"{name}={list(values)}: {reason}")
        step.drop(name)

    adapter.__doc__ = f"only with `{name}` all {neutral}: {reason}"
    return adapter


def both(*adapters: Adapter) -> Adapter:
    """Return an adapter that applies one adapter after the other."""

    def adapter(step: Step) -> None:
        for each in adapters:
            each(step)

    adapter.__doc__ = "; ".join(str(each.__doc__) for each in adapters)
    return adapter


def positive_axis(step: Step, axis: int, rank: int | None = None) -> int:
    """Return `axis` counted from the front; refuse if the rank is needed and not known."""
    if axis >= 0:
        return axis
    return axis + (step.known_rank(step.x()) if rank is None else rank)


def nonnegative_axis(step: Step) -> None:
    """A negative axis is counted from the front, if the rank is known."""
    axis = step.attr("axis")
    if axis is not None and axis < 0:
        step.set("axis", positive_axis(step, axis))


def nonnegative_axes(step: Step) -> None:
    """Negative axes are counted from the front, if the rank is known."""
    axes = step.attr("axes")
    if axes is not None and any(axis < 0 for axis in axes):
        step.set("axes", [positive_axis(step, axis) for axis in axes])
