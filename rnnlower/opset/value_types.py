"""Types, shapes and contents of the values of a model on its way to another opset."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR, constant_of
from rnnlower.graph.walk import walk_values
from rnnlower.opset.version_fit import type_string

# Larger computed tensors are not axes, shapes or scales, and even larger constants are weights.
SMALL_ELEMENTS = 1024
LARGE_ELEMENTS = 2**20


@dataclasses.dataclass(frozen=True)
class _Known:
    type: ir.TypeProtocol | None
    shape: ir.Shape | None


def _known(facts: Facts, value: ir.Value) -> _Known:
    dims = facts.dims(value)
    return _Known(facts.type(value), None if dims is None else ir.Shape(dims))


class ValueTypes:
    """The facts about a model's values before the conversion, and about values that it adds.

    A value in a function may have several types, one for each call.
    """

    def __init__(self, model: ir.Model) -> None:
        self._known: dict[ir.Value, list[_Known]] = {}
        self._contents: dict[ir.Value, np.ndarray] = {}
        # Those of functions that nothing calls have no type.
        self.uncalled: set[ir.Value] = set()
        # Up to IR 3 every initializer had to be an input too, although nobody was expected to feed it.
        self._inputs_are_constant = model.ir_version < FREE_INITIALIZERS_IR
        facts = Facts(model, declared=True)
        facts.visit(*model.graph)
        for value in walk_values(model.graph):
            self._known[value] = [_known(facts, value)]
            content = facts.computed_constant(value)
            if content is not None and content.size <= SMALL_ELEMENTS:
                self._contents[value] = content
        for function in model.functions.values():
            for value in walk_values(function.graph):
                if calls := facts.inlined_copies(value):
                    self._known[value] = [_known(facts, each) for each in calls]
                else:
                    self.uncalled.add(value)

    def types(self, value: ir.Value) -> frozenset[str]:
        """Return the types of `value` as the schemas write them: none if unknown, several in a function."""
        return frozenset(filter(None, (type_string(each.type) for each in self._all(value))))

    def dtype(self, value: ir.Value | None) -> ir.DataType | None:
        """Return the element type of a tensor, or ``None`` if it is unknown or not a single one."""
        if value is None:
            return None
        found = {each.type.dtype for each in self._all(value) if isinstance(each.type, ir.TensorType)}
        found.discard(ir.DataType.UNDEFINED)
        return found.pop() if len(found) == 1 else None

    def shape(self, value: ir.Value | None) -> ir.Shape | None:
        """Return the shape of a tensor; ``None`` if unknown or different in the calls of a function."""
        if value is None:
            return None
        shapes = [each.shape for each in self._all(value)]
        if not shapes or shapes[0] is None or any(shape != shapes[0] for shape in shapes):
            return None
        # Exporters write -1 for an unknown size.
        return ir.Shape([None if isinstance(dim, int) and dim < 0 else dim for dim in shapes[0]])

    def rank(self, value: ir.Value) -> int | None:
        """Return the rank of a tensor, if everything known agrees on one."""
        ranks = {None if each.shape is None else len(each.shape) for each in self._all(value)}
        return ranks.pop() if len(ranks) == 1 else None

    def array(self, value: ir.Value | None, limit: int = LARGE_ELEMENTS) -> np.ndarray | None:
        """Return the content of `value`; ``None`` if it is not constant or has more than `limit` elements."""
        if value is None:
            return None
        array = self._contents.get(value)
        if array is None:
            is_default = self._inputs_are_constant and value.is_initializer()
            tensor = value.const_value if is_default else constant_of(value)
            if tensor is None or tensor.size > limit or tensor.dtype.is_string():
                return None
            array = tensor.numpy()
        return array if array.size <= limit else None

    def learn(self, model: ir.Model) -> None:
        """Add what is known of the current model for values of unknown shape."""
        for value, known in ValueTypes(model)._known.items():
            if self.rank(value) is None:
                self._known[value] = known

    def record(
        self,
        value: ir.Value,
        type_: ir.TypeProtocol | None,
        shape: ir.Shape | None,
        content: np.ndarray | None = None,
    ) -> None:
        """Record the type, shape and constant content of a value that the conversion has added."""
        self._known[value] = [_Known(type_, shape)]
        if content is not None:
            self._contents[value] = content

    def alias(self, value: ir.Value, original: ir.Value) -> None:
        """Record that `value` equals `original`."""
        self._known[value] = self._all(original)
        if original in self._contents:
            self._contents[value] = self._contents[original]
        if original in self.uncalled:
            self.uncalled.add(value)

    def adopt(self, others: ValueTypes) -> None:
        """Take over the values of another model, whose nodes become part of this one."""
        self._known |= others._known
        self._contents |= others._contents

    def _all(self, value: ir.Value) -> list[_Known]:
        return self._known.get(value) or [_Known(value.type, value.shape)]
