"""Names for new nodes and values: the one source of them."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from rnnlower.graph.walk import walk

__all__ = ["NameSource", "Scope", "names_in"]

_SEPARATORS = str.maketrans("/.:", "___")
_LETTERS = "abdegjklnpqstuv"
"""Those that no gate, input or output is called by."""


class NameSource:
    """Names that nothing has yet, not even where case or the separators ``/``, ``.``, ``:`` do not count.

    Runtimes that make identifiers of names take ``/Add_1`` and ``Add_1``, ``h`` and ``H`` for one.

    Args:
        taken: The names that exist.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {_normal(name) for name in taken}
        self._counts: dict[str, int] = {}

    def alias(self, letter: str) -> str:
        """A name of letters alone for what has thousands of parts: the letter, or it and more of them."""
        names = itertools.chain([letter], (letter + more for more in _letters()))
        return self.fresh(next(name for name in names if _normal(name) not in self._taken))

    def is_free(self, *names: str) -> bool:
        """Whether nothing has any of the names."""
        return self._taken.isdisjoint(map(_normal, names))

    def fresh(self, wanted: str) -> str:
        """The wanted name, with a number behind it where it is taken."""
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
    """Names that begin with one prefix.

    Args:
        source: Sees to it that they are fresh.
        prefix: What they begin with.
        short: Whether what has no name of its own is called by a letter and not by its operator.
    """

    def __init__(self, source: NameSource, prefix: str, *, short: bool = False) -> None:
        self.source = source
        self.prefix = prefix
        self._letters = _letters() if short else None

    def fresh(self, what: str) -> str:
        """A name for what is called so."""
        return self.source.fresh(self.prefix + what)

    def unnamed(self, op_type: str) -> str:
        """A name for the result of an operator."""
        return self.fresh(op_type if self._letters is None else next(self._letters))


def names_in(model: ir.Model) -> set[str]:
    """The names of all nodes and values of a model, its subgraphs and its functions."""
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
