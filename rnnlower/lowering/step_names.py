"""Names of the steps of a straight line: as descriptive as a file of thousands of steps allows.

`BYTES_OF_STEP` bounds what a step adds to the file. A step of an LSTM holds 31 names of values and 10 of
nodes, which leaves five letters each; one of an RNN 7 and 2. So forms are tried, the most descriptive first:

===============  =======  ========================================================================
node             value    where it fits
===============  =======  ========================================================================
``enc/t47/i``    same     RNN
``enc/t47/i``    ``i47``  GRU; LSTM of some ten steps, of a hundred where it is the first of a model
``i47``          ``i47``  LSTM up to a thousand steps
``i1b``          ``i1b``  any: the number in base 36
===============  =======  ========================================================================

``t47`` is the position in time, ``r47`` that of the reverse direction. The letter is that of a gate
(``i o f c``, ``z r h``), ``y`` for H, ``m`` for C (the memory), ``x w u v`` for products of X, ``k`` for the
mask that keeps the state, and any other for the values in between. Every direction but the first of a model
has a letter as its prefix: ``ai47``.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import re
from collections.abc import Collection, Iterator, Sequence

import onnx_ir as ir

from rnnlower.graph.names import NameSource, Scope, letter_names

BYTES_OF_STEP = 400
"""The bytes that a step may add to the file, as far as that depends on names."""

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
_LENGTH = 2
"""Bytes of the tag and the length of a field in a protobuf."""

_DECLARED = 20
"""Bytes of a declared shape ``[rows, width]`` without its names."""

_PART = 3
"""A step's share of the nodes that split an input, or join H, in parts of 128 steps."""

_MIN_LENGTH = 3
"""The fewest letters of a node's name by which it is recognized."""


@dataclasses.dataclass(frozen=True)
class StepSize:
    """The size of a step in the file.

    Attributes:
        rest: Bytes of all but the names that differ from step to step.
        nodes: Number of names of nodes.
        values: Number of names of values.
    """

    rest: int
    nodes: int
    values: int


@dataclasses.dataclass(frozen=True)
class _Form:
    """The naming of nodes and values; `stem` is empty if nodes have the names of their first outputs."""

    stem: str = ""
    alike: bool = False
    base36: bool = False


class StepNames:
    """The names of the steps of one direction of a node.

    Args:
        lane: The prefix of short names, see `NameSource.step_prefix`.
        node: The name of the node.
        reverse: Whether it is a reverse direction.
    """

    def __init__(self, lane: str, node: str, steps: int, *, reverse: bool) -> None:
        self._lane = lane
        self._node = node
        self._steps = steps
        self._letter = "r" if reverse else "t"
        self._form = _Form()

    def value(self, position: int, what: str) -> str:
        """Return the name of a value of the step at this position in time."""
        return self._value(self._form, position, what)

    def step(self, position: int) -> str:
        """The name of the step itself."""
        return f"{self._letter}{position}"

    def node_name(self, position: int, what: str) -> str | None:
        """Return the name of the node that computes the value; ``None`` if it is the value's."""
        if not self._form.stem or self._form.alike:
            return None
        return self._node_name(self._form, position, what)

    def fit(self, size: StepSize, source: NameSource) -> None:
        """Choose the most descriptive form that is free and keeps a step of this size within bounds."""
        last, what = self._steps - 1, "y"
        for form in self._forms(source):
            value = len(self._value(form, last, what))
            node = len(self._node_name(form, last, what)) if form.stem else value
            if size.rest + size.nodes * node + size.values * value < BYTES_OF_STEP:
                break
        self._form = form
        if form.stem not in ("", self._node):
            source.fresh(f"{form.stem}/{self._letter}")

    def _forms(self, source: NameSource) -> Iterator[_Form]:
        """Yield the forms, the most descriptive first."""
        stems = [
            stem
            for stem in _abbreviations(self._node)
            if stem == self._node or source.is_free(stem, f"{stem}/{self._letter}")
        ]
        yield from (_Form(stem, alike=True) for stem in stems)
        for base36 in (False, True):
            yield from (_Form(stem, base36=base36) for stem in stems)
        yield from (_Form(), _Form(base36=True))

    def _value(self, form: _Form, position: int, what: str) -> str:
        if form.alike:
            return self._node_name(form, position, what)
        number = base36(position, self._steps) if form.base36 else str(position)
        return f"{self._lane}{what}{number}"

    def _node_name(self, form: _Form, position: int, what: str) -> str:
        return f"{form.stem}/{self.step(position)}/{what}"


class StepScope(Scope):
    """The names of one step; what has no label is named by a letter.

    Args:
        names: The names of all steps.
        position: The step's position in time.
    """

    def __init__(self, source: NameSource, names: StepNames, position: int) -> None:
        super().__init__(source, "")
        self._names, self._position = names, position
        self._letters = letter_names("abdegjlnpqst")
        self._given: set[str] = set()

    def fresh(self, what: str) -> str:
        name = self.source.fresh(self._names.value(self._position, what))
        self._given.add(name)
        return name

    def holds(self, name: str) -> bool:
        return name in self._given

    def node_name(self, what: str, value: str) -> str:
        name = self._names.node_name(self._position, what)
        return value if name is None else self.source.fresh(name)

    def result_name(self, op_type: str) -> str:
        return next(self._letters)

    @property
    def step(self) -> str:
        return self._names.step(self._position)


def measure_step(
    nodes: Sequence[ir.Node],
    inputs: Collection[ir.Value],
    states: Collection[ir.Value | None],
    rows: str | None,
    *,
    is_part: bool,
) -> StepSize:
    """Return the size of a step.

    Args:
        nodes: Its nodes.
        inputs: Its inputs, which Splits compute.
        states: The states after the previous step.
        rows: The symbol of the number of rows, if the shapes of the inputs are declared.
        is_part: Whether the line has so many steps that it is split and joined part by part.
    """
    made = {out for node in nodes for out in node.outputs}.union(inputs, states)
    named = (value for node in nodes for value in (*node.inputs, *node.outputs) if value is not None)
    names = [str(value.name) for value in named if value in made]
    total = sum(_LENGTH + ir.serde.serialize_node(node).ByteSize() for node in nodes)
    declared = 0 if rows is None else len(inputs)
    return StepSize(
        rest=total
        - sum(map(len, names))
        - sum(len(str(node.name)) for node in nodes)
        + _LENGTH * (len(inputs) + 1)
        + (_PART * (len(inputs) + 1) if is_part else 0)
        + declared * (_DECLARED + len(rows or "")),
        nodes=len(nodes),
        # A Concat of all steps reads H.
        values=len(names) + len(inputs) + 1 + declared,
    )


def _abbreviations(name: str) -> Iterator[str]:
    """Yield shorter and shorter forms of a node's name: fewer components of a path, then fewer letters."""
    starts = [0, *(match.end() for match in re.finditer("[/.:]+", name))]
    yield from (name[start:] for start in starts if start < len(name))
    last = name[starts[-1] :]
    yield from (last[:length] for length in range(len(last) - 1, _MIN_LENGTH - 1, -1))


@functools.lru_cache(maxsize=16)
def base36(number: int, steps: int) -> str:
    """Return the number in base 36, as wide as the last step's.

    It begins with a decimal digit: letters alone could form a keyword such as ``and``, ``if`` or ``for`` in a
    language to which a compiler translates the model.
    """
    width = next(width for width in itertools.count(1) if steps <= 10 * 36 ** (width - 1))
    return "".join(_DIGITS[number // 36**place % 36] for place in reversed(range(width)))
