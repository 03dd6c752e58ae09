"""The values of a Loop's body that count its iterations."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.operator_kinds import VIEWS
from rnnlower.graph.walk import look_through_identities
from rnnlower.lifting.frames import State, same_number

_MEASURING = VIEWS | {"Gather", "Shape"}


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

    def _step(self, state: State) -> int | None:
        """Return the increment of a state in each iteration."""
        producer, dtype = look_through_identities(state.after).producer(), self._facts.dtype(state.start)
        if producer is None or producer.op_type not in ("Add", "Sub"):
            return None
        if dtype is None or not np.issubdtype(dtype.numpy(), np.integer):
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
        return Index(0, 0, value) if self._is_outer_size(value) else None

    def _is_outer_size(self, value: ir.Value | None) -> bool:
        """Return whether the body measures a value of its surroundings."""
        if value not in self.own or self._facts.constant(value) is not None:
            return True
        node = value.producer()
        return node is not None and node.op_type in _MEASURING and all(map(self._is_outer_size, node.inputs))


def _add_indices(first: Index, second: Index, op_type: str) -> Index | None:
    sign = -1 if op_type == "Sub" else 1
    if second.value is not None and (sign < 0 or first.value is not None):
        return None
    value = first.value or second.value
    return Index(first.slope + sign * second.slope, first.offset + sign * second.offset, value)
