"""The pass that computes sizes in int64."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from rnnlower.files import beyond_ir
from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.rewiring import insert_before, remove_orphans, replace_with_values
from rnnlower.graph.walk import ancestors, walk
from rnnlower.passes.base import Pass

_FIRST_OF_INPUTS = frozenset(["Gather", "Identity", "ReduceProd", "Reshape", "Slice", "Squeeze", "Unsqueeze"])
"""Operators of which the first input has the type of the result; the others are indices and axes."""
_ALL_INPUTS = frozenset(["Add", "Concat", "Mul", "Sub"])
_NARROW, _WIDE = ir.DataType.INT32, ir.DataType.INT64


class WidenSizesPass(Pass):
    """Computes sizes in int64 where a model casts them to int32 and back, as converters from TensorFlow do.

    Some runtimes follow a size that is not a number as long as it stays in the type that Shape returns.

    Before::

        (float[N, T, 4] x) => (float[rows, 4] y) <int64[1] at = {0}, int32[1] last = {4}> {
            sizes = Shape (x)
            narrow = Cast <to = 6> (sizes)
            first = Gather (narrow, at)
            shape = Concat <axis = 0> (first, last)
            wide = Cast <to = 7> (shape)
            y = Reshape (x, wide)
        }

    After ``WidenSizesPass()``::

        (float[N, T, 4] x) => (float[rows, 4] y) <int64[1] at = {0}, int64[1] last_1 = {4}> {
            sizes = Shape (x)
            first_wide = Gather (sizes, at)
            shape_wide = Concat <axis = 0> (first_wide, last_1)
            y = Reshape (x, shape_wide)
        }
    """

    KEEPS_FACTS = True

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        nodes = [node for node, _ in walk(model.graph)]
        casts = {node: node.inputs[0] for node in nodes if self._casts(node, _NARROW, _WIDE)}
        needed = {value for cast in casts.values() if cast is not None for value in ancestors(cast)}
        self._names = NameSource(all_names(model))
        self._pool = InitializerPool(model, self._names)
        wide: dict[ir.Value | None, ir.Value] = {}
        modified = False
        # Training may read any value by its name.
        for node in nodes if casts and not beyond_ir.names_in_training(model) else ():
            if casts.get(node) in wide and not node.outputs[0].is_graph_output():
                replace_with_values(node, [wide[casts[node]]])
                modified = True
            elif not needed.isdisjoint(node.outputs) and (value := self._widened(node, wide)) is not None:
                wide[node.outputs[0]] = value
        remove_orphans(wide.values())
        return ir.passes.PassResult(model, modified)

    def _widened(self, node: ir.Node, wide: Mapping[ir.Value | None, ir.Value]) -> ir.Value | None:
        """Return the result of a node as int64, if it follows from sizes in int64."""
        if self._casts(node, _WIDE, _NARROW):
            sizes = self.facts.sizes(node.outputs[0])
            return None if sizes is None or None in sizes.flat else node.inputs[0]
        count = (
            1 if node.op_type in _FIRST_OF_INPUTS else len(node.inputs) if node.op_type in _ALL_INPUTS else 0
        )
        given = node.inputs[:count]
        if node.domain or not any(value in wide for value in given):
            return None
        inputs = [wide.get(value) or self._constant(value) for value in given]
        if None in inputs:
            return None
        attributes = list(node.attributes.values())
        copied = insert_before(node, node.op_type, [*inputs, *node.inputs[count:]], self._names, attributes)
        copied.type, copied.shape = ir.TensorType(_WIDE), node.outputs[0].shape
        return copied

    def _constant(self, value: ir.Value | None) -> ir.Value | None:
        content = self.facts.constant(value)
        if value is None or content is None:
            return None
        return self._pool.intern(ir.Tensor(content.astype(_WIDE.numpy())), str(value.name))

    def _casts(self, node: ir.Node, source: ir.DataType, target: ir.DataType) -> bool:
        is_cast = node.op_type == "Cast" and not node.domain and node.attributes.get_int("to", 0) == target
        return is_cast and self.facts.dtype(node.inputs[0]) == source
