"""What of a model does not fit a target, as data."""

from __future__ import annotations

import dataclasses

__all__ = ["Misfit"]


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

    def __str__(self) -> str:
        place = f"{self.path}/{self.name}" if self.path else self.name
        return f"{self.op_type} {place!r}: {self.reason}" + (" (a guess)" if self.guess else "")
