"""Fresh names for new nodes and values."""

from __future__ import annotations

import collections
import itertools
import keyword
import re
import string
from collections.abc import Iterable, Iterator

import onnx_ir as ir

from rnnlower.graph.walk import root_graphs, walk_all, walk_values

_LETTERS = string.ascii_lowercase
_OF_A_STEP = re.compile("([a-z]*)[a-z][0-9][0-9a-z]*")
_FEW = 8
"""The number of names such as ``h0`` and ``c0`` that do not make thousands of others longer."""


class NameSource:
    """A source of unused names; case and the separators ``/``, ``.``, ``:`` do not make names different.

    Runtimes that turn names into identifiers confuse ``/Add_1`` with ``Add_1``, and ``h`` with ``H``.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = {_normalized(name) for name in taken}
        self._counts: dict[str, int] = {}
        self._lanes: Iterator[str] | None = None

    def step_prefix(self) -> str:
        """Return the next prefix of thousands of short names: nothing, then letters.

        At most a few names consist of it, a letter, a digit, and more letters or digits.
        """
        if self._lanes is None:
            found = collections.Counter(
                match[1] for name in self._taken if (match := _OF_A_STEP.fullmatch(name))
            )
            self._lanes = (lane for lane in itertools.chain([""], letter_names()) if found[lane] <= _FEW)
        return next(self._lanes)

    def short_name(self, letter: str) -> str:
        """Return a name of letters for a value of thousands of readers: this letter, a later one, or more."""
        position = _LETTERS.index(letter.lower()) + 1
        names = itertools.chain([letter], _LETTERS[position:], letter_names())
        free = (name for name in names if _normalized(name) not in self._taken)
        return self.fresh(next(name for name in free if not keyword.iskeyword(name)))

    def is_free(self, *names: str) -> bool:
        """Return whether all of the names are unused."""
        return self._taken.isdisjoint(map(_normalized, names))

    def fresh(self, wanted: str) -> str:
        """Return the wanted name, with a number appended if it is taken."""
        normal = _normalized(wanted)
        if normal not in self._taken:
            self._taken.add(normal)
            return wanted
        counts = itertools.count(self._counts.get(normal, 0) + 1)
        count = next(each for each in counts if f"{normal}_{each}" not in self._taken)
        self._counts[normal] = count
        self._taken.add(f"{normal}_{count}")
        return f"{wanted}_{count}"


class Scope:
    """A scope of names that begin with one prefix."""

    def __init__(self, source: NameSource, prefix: str) -> None:
        self.source = source
        self.prefix = prefix

    def fresh(self, what: str) -> str:
        """Return a fresh name for a value."""
        return self.source.fresh(self.prefix + what)

    def node_name(self, what: str, value: str) -> str:
        """Return the name of the node that computes the value."""
        return value

    def result_name(self, op_type: str) -> str:
        """Return the name for the result of an operator."""
        return op_type

    @property
    def step(self) -> str:
        """The step that is named here, such as ``t47``; empty if it is none of a straight line."""
        return ""

    def holds(self, name: str) -> bool:
        """Return whether this scope made the name."""
        return name.startswith(self.prefix)


def all_names(model: ir.Model) -> set[str]:
    """Return the names of all nodes and values of a model, its subgraphs and its functions."""
    names = {value.name for root in root_graphs(model) for value in walk_values(root)}
    names |= {node.name for node, _ in walk_all(model)}
    return {name for name in names if name}


def count_value_names(model: ir.Model) -> collections.Counter[str]:
    """Count the values of the main graph and its subgraphs with each name: branches may share one."""
    return collections.Counter(value.name for value in walk_values(model.graph) if value.name)


def _normalized(name: str) -> str:
    # A table for `translate` takes four times as long.
    return name.replace("/", "_").replace(".", "_").replace(":", "_").lower()


def letter_names(alphabet: str = _LETTERS) -> Iterator[str]:
    """Yield the letters of an alphabet, then words of two letters, and so on."""
    for length in itertools.count(1):
        yield from map("".join, itertools.product(alphabet, repeat=length))
