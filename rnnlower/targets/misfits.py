"""Misfits: parts of a model that a target does not run, as data."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

_FIRST = 3


@dataclasses.dataclass(frozen=True)
class Misfit:
    """A part of a model that a target does not run.

    Attributes:
        path: The subgraph or function of the node, as in `inspect`.
        name: The name of the node, or else of its first output; or the name of the input.
        op_type: The node's operator; ``(input)`` for a graph input, ``(model)`` for the model.
        reason: Why it does not fit.
        remedy: What the user can do; ``""`` if nothing is known.
        source: The source of the claim.
        guess: Whether the claim is a guess, without a source.
        alternatives: The targets that have the operator, the likeliest to run the model first.
    """

    path: str
    name: str
    op_type: str
    reason: str
    remedy: str
    source: str
    guess: bool
    alternatives: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """The name, after the path."""
        return f"{self.path}/{self.name}" if self.path else self.name

    def __str__(self) -> str:
        return f"{self.op_type} {self.place!r}: {self.reason}" + (" (a guess)" if self.guess else "")


def grouped(misfits: Sequence[Misfit]) -> list[str]:
    """Return a line for each operator and reason: the number of nodes, the first of them, and the remedy."""
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
