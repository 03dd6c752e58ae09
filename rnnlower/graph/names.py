"""Fresh names for new nodes and values."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from rnnlower.graph.walk import walk

__all__ = ["NameSource", "Scope", "names_in"]

_SEPARATORS = str.maketrans("/.:", "___")
_LETTERS = "abdegjklnpqstuv"
"""Letters that are not the name of a gate, input or output."""


class NameSource:
    """A source of unused names; case and the separators ``/``, ``.``, ``:`` do not make names different.

    Runtimes that turn names into identifiers confuse ``/Add_1`` with ``Add_1``, and ``h`` with ``H``.

    Args:
        taken: The names that exist.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {_normal(name) for name in taken}
        self._counts: dict[str, int] = {}

    def alias(self, letter: str) -> str:
        """Return a short name of letters, beginning with `letter`, for something with thousands of parts."""
        names = itertools.chain([letter], (letter + more for more in _letters()))
        return self.fresh(next(name for name in names if _normal(name) not in self._taken))

    def is_free(self, *names: str) -> bool:
        """Return whether all of the names are unused."""
        return self._taken.isdisjoint(map(_normal, names))

    def fresh(self, wanted: str) -> str:
        """Return the wanted name, with a number appended if it is taken."""
        normal = _normal(wanted)
        if normal not in self._taken:
            self._taken.add(normal)
            return wanted
        count = self._counts.get(normal, 0)
        while True:
            count += 1
            if f"{normal}_{count}" not in self._taken:
                break
        self._counts[normal] = count
        self._taken.add(f"{normal}_{count}")
        return f"{wanted}_{count}"


class Scope:
    """A scope of names that begin with one prefix.

    Args:
        source: Makes the names unique.
        prefix: The prefix of the names.
        short: Whether unnamed results are named with a letter instead of their operator.
    """

    def __init__(self, source: NameSource, prefix: str, *, short: bool = False) -> None:
        self.source = source
        self.prefix = prefix
        self._letters = _letters() if short else None

    def fresh(self, what: str) -> str:
        """Return a fresh name for a value of this role."""
        return self.source.fresh(self.prefix + what)

    def unnamed(self, op_type: str) -> str:
        """Return a name for the result of an operator."""
        return self.fresh(op_type if self._letters is None else next(self._letters))


def names_in(model: ir.Model) -> set[str]:
    """Return the names of all nodes and values of a model, its subgraphs and its functions."""
    names: set[str | None] = set()
    graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for graph in graphs:
        for each in (graph, *graph.subgraphs()):
            names.update(value.name for value in each.inputs)
            if isinstance(each, ir.Graph):
                names.update(each.initializers)
        for node, _ in walk(graph):
            names.add(node.name)
            names.update(value.name for value in node.outputs)
    return {name for name in names if name}


def _normal(name: str) -> str:
    return name.translate(_SEPARATORS).lower()


def _letters() -> Iterator[str]:
    for length in itertools.count(1):
        for letters in itertools.product(_LETTERS, repeat=length):
            yield "".join(letters)
