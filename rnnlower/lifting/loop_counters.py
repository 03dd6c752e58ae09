"""The values of a Loop's body that count its iterations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.loop_signature import State
from rnnlower.graph.operator_kinds import VIEWS
from rnnlower.graph.walk import look_through_identities, producer_of
from rnnlower.lifting.frames import same_number

MANY = 10**9
"""More elements than an axis has: TensorFlow's exporter takes one element as the first of so large a step."""
_MEASURING = VIEWS | {"Gather", "Shape", "Slice"}

_COMPARISONS = {
    "Less": (False, False),
    "LessOrEqual": (False, True),
    "Greater": (True, False),
    "GreaterOrEqual": (True, True),
}
"""Whether the larger value comes first, and whether equal values are true."""


@dataclasses.dataclass(frozen=True)
class Index:
    """An affine index, ``slope * iteration + offset``, plus a value if there is one."""

    slope: int
    offset: int
    value: ir.Value | None = None


class Counters:
    """The counters of a body.

    Attributes:
        own: The values of the body.
        known: The states that count, and what they count.
    """

    def __init__(
        self, facts: Facts, body: ir.Graph, states: Sequence[State], aliases: Mapping[ir.Value, ir.Value]
    ) -> None:
        self._facts, self._number, self._aliases = facts, body.inputs[0], aliases
        self.own = {
            *body.inputs,
            *body.initializers.values(),
            *(out for node in body for out in node.outputs),
        }
        self.known: dict[ir.Value, Index] = {}
        for state in states:
            start, step = facts.constant(state.start), self._step(state)
            if start is not None and start.size == 1 and step is not None:
                self.known[state.before] = Index(step, int(start.reshape(-1)[0]))
            elif step is not None and step < 0 and facts.dims(state.start) in ((), (1,)):
                outer = self.outer_index(state.start)
                self.known[state.before] = dataclasses.replace(outer, slope=step)

    def _step(self, state: State) -> int | None:
        """Return the increment of a state in each iteration."""
        producer = producer_of(look_through_identities(state.after), "Add", "Sub")
        dtype = self._facts.dtype(state.start)
        if producer is None or dtype is None or not np.issubdtype(dtype.numpy(), np.integer):
            return None
        first, second = producer.inputs
        if producer.op_type == "Add" and second is state.before:
            first, second = second, first
        step = self._facts.constant(second)
        if first is not state.before or step is None or step.size != 1:
            return None
        number = int(step.reshape(-1)[0])
        return -number if producer.op_type == "Sub" else number

    def index(self, value: ir.Value | None) -> Index | None:
        """Return the affine index that a value computes, if it does."""
        if value is None:
            return None
        value = self._aliases.get(value, value)
        constant = self._facts.constant(value)
        if constant is not None:
            is_count = constant.size == 1 and float(constant.reshape(-1)[0]).is_integer()
            return Index(0, int(constant.reshape(-1)[0])) if is_count else None
        if value is self._number:
            return Index(1, 0)
        if value in self.known:
            return self.known[value]
        if value not in self.own:
            return Index(0, 0, value)
        producer, source = value.producer(), same_number(value)
        if producer is None or producer.domain:
            return None
        if source is not value:
            return self.index(source)
        if producer.op_type in ("Add", "Sub"):
            first, second = (self.index(each) for each in producer.inputs)
            return None if first is None or second is None else _add_indices(first, second, producer.op_type)
        if producer.op_type == "Mul":
            first, second = (self.index(each) for each in producer.inputs)
            for moving, scale in ((first, second), (second, first)):
                if moving and scale and moving.value is scale.value is None and scale.slope == 0:
                    return Index(moving.slope * scale.offset, moving.offset * scale.offset)
        if producer.op_type == "Where":
            return self._chosen_index(producer)
        return Index(0, 0, value) if self._is_outer_size(value) else None

    def outer_index(self, value: ir.Value) -> Index:
        """Return what a value around the Loop is: another one and a number, if it is their sum."""
        value = same_number(value)
        node = producer_of(value, "Add", "Sub")
        added = None if node is None else self._facts.constant(node.inputs[1])
        if (
            node is None
            or node.inputs[0] is None
            or added is None
            or (added.size, added.dtype.kind) != (1, "i")
        ):
            return Index(0, 0, value)
        inner, number = self.outer_index(node.inputs[0]), int(added.reshape(-1)[0])
        offset = inner.offset + (number if node.op_type == "Add" else -number)
        return dataclasses.replace(inner, offset=offset)

    def compare(self, value: ir.Value | None) -> Index | None:
        """Return the index that a comparison wants below its value; ``None`` for another condition."""
        node = producer_of(value, *_COMPARISONS)
        if node is None:
            return None
        is_turned, is_equal = _COMPARISONS[node.op_type]
        low, high = map(self.index, node.inputs[:: -1 if is_turned else 1])
        if low is None or high is None or low.value is not None or high.value is None:
            return None
        if is_equal or (low.slope == 0 and low.offset):
            # Such as ``0 <= n - 1``, before the first iteration of a counter that falls.
            outer = self.outer_index(high.value)
            high = dataclasses.replace(outer, slope=high.slope, offset=high.offset + outer.offset)
        return Index(low.slope - high.slope, low.offset - high.offset - is_equal, high.value)

    def _chosen_index(self, node: ir.Node) -> Index | None:
        """Return the index that a Where chooses: ``Where(i < 0, i + size, i)`` is i if that counts from 0."""
        test, _, chosen = node.inputs
        compared = producer_of(test, "Less")
        if compared is None:
            return None
        first, second, index = (self.index(each) for each in (*compared.inputs, chosen))
        if index is None or index != first or second != Index(0, 0) or index.value is not None:
            return None
        return index if min(index.slope, index.offset) >= 0 else None

    def indices(self, value: ir.Value | None) -> list[Index | None]:
        """Return the affine index that each element of a vector computes, if it does."""
        if value is None:
            return []
        value = same_number(self._aliases.get(value, value))
        constant, dims, node = self._facts.constant(value), self._facts.dims(value), value.producer()
        if constant is not None:
            whole = [float(each) for each in constant.reshape(-1)]
            return [Index(0, int(each)) if each.is_integer() else None for each in whole]
        if dims in ((), (1,)) and (index := self.index(value)) is not None:
            return [index]
        if node is None or node.domain or value not in self.own:
            return []
        if node.op_type == "Concat":
            return [each for part in node.inputs for each in self.indices(part)]
        if node.op_type in ("Add", "Sub", "Max") and len(node.inputs) == 2:
            pairs = _broadcast(*map(self.indices, node.inputs))
            return [_combine(first, second, node.op_type) for first, second in pairs]
        if node.op_type == "Where" and (condition := self._decided(node.inputs[0])) is not None:
            chosen = _broadcast(condition.ravel().tolist(), *map(self.indices, node.inputs[1:]))
            return [first if is_first else second for is_first, first, second in chosen]
        return []

    def _decided(self, condition: ir.Value | None) -> np.ndarray | None:
        """Return the content of a condition; an And with something false is false."""
        constant, node = self._facts.constant(condition), producer_of(condition, "And")
        if constant is None and node is not None:
            parts = [self._facts.constant(each) for each in node.inputs]
            return next((part for part in parts if part is not None and not part.any()), None)
        return constant

    def _is_outer_size(self, value: ir.Value | None) -> bool:
        """Return whether the body measures a value of its surroundings."""
        if value in self._aliases or value not in self.own or self._facts.constant(value) is not None:
            return True
        node = producer_of(value, *_MEASURING)
        return node is not None and all(map(self._is_outer_size, node.inputs))


def _broadcast(*vectors: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return the elements of vectors side by side; nothing if they have different sizes."""
    size = max(map(len, vectors))
    if any(len(each) not in (1, size) for each in vectors):
        return []
    return [*zip(*([*each] * (size if len(each) < size else 1) for each in vectors), strict=True)]


def _combine(first: Index | None, second: Index | None, op_type: str) -> Index | None:
    if first is None or second is None:
        return None
    if op_type == "Max":
        # No axis has so many elements.
        return next((each for each in (first, second) if each.slope == 0 and each.offset >= MANY), None)
    return _add_indices(first, second, op_type)


def _add_indices(first: Index, second: Index, op_type: str) -> Index | None:
    sign = -1 if op_type == "Sub" else 1
    if second.value is not None and (sign < 0 or first.value is not None):
        return None
    value = first.value or second.value
    return Index(first.slope + sign * second.slope, first.offset + sign * second.offset, value)
