"""What of a model does not fit a target, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

__all__ = ["Misfit", "grouped"]

_FIRST = 3


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

    @property
    def place(self) -> str:
        """The name, after the path."""
        return f"{self.path}/{self.name}" if self.path else self.name

    def __str__(self) -> str:
        return f"{self.op_type} {self.place!r}: {self.reason}" + (" (a guess)" if self.guess else "")


def grouped(misfits: Sequence[Misfit]) -> list[str]:
    """A line for each operator and reason: how many nodes, the first of them, and what to do."""
    groups: dict[tuple[str, str, str, bool], list[Misfit]] = {}
    for each in misfits:
        groups.setdefault((each.op_type, each.reason, each.remedy, each.guess), []).append(each)
    return [_line(group) for group in groups.values()]


def _line(group: Sequence[Misfit]) -> str:
    first = group[0]
    remedy = f"; {first.remedy}" if first.remedy else ""
    if len(group) == 1:
        return f"{first}{remedy}"
    names = ", ".join(repr(each.place) for each in group[:_FIRST])
    more = f" and {len(group) - _FIRST} more" if len(group) > _FIRST else ""
    guess = " (a guess)" if first.guess else ""
    return f"{len(group)} {first.op_type} nodes ({names}{more}): {first.reason}{guess}{remedy}"
