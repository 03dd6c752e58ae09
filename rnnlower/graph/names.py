"""Names for new values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

__all__ = ["NameSource"]

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


class NameSource:
    """Short names that no value of the model has, in any of its graphs."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        prefix = "r"
        while any(name.startswith(prefix) for name in self._taken):
            prefix += "r"
        self._short = (
            prefix + "".join(digits)
            for length in itertools.count(1)
            for digits in itertools.product(_DIGITS, repeat=length)
        )

    def short(self) -> str:
        """A generated name: a straight-line graph has thousands of them, so a few bytes each."""
        return next(self._short)

    def like(self, wanted: str) -> str:
        """The wanted name, with a number behind it where it is taken."""
        name = next(
            candidate
            for number in itertools.count()
            if (candidate := f"{wanted}_{number}" if number else wanted) not in self._taken
        )
        self._taken.add(name)
        return name
