"""Tracing of a graph's inputs forward to the operators that use them.

It follows values through operators that only move or convert them (Cast, Slice, Gather's data ...), and into
If, Loop and Scan bodies and model-local functions.
"""

from __future__ import annotations

import math
from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

from rnnlower.verification.inputs.uses import (
    QUANTIZED_LSTM,
    RECURRENT,
    STATE_AXES,
    Dim,
    Dims,
    GraphFacts,
    Recurrent,
    Uses,
    dims_of,
)
from rnnlower.verification.models import default_opset, required_inputs

_SMALL = 64
_RANK_OF_X = 3

# Operators whose outputs hold the values of these inputs, moved or converted (None: of all inputs).
_SOURCES: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Flatten"), (0,)),
    **dict.fromkeys(("Expand", "Tile", "Slice", "Split", "Gather", "GatherElements", "GatherND"), (0,)),
    **dict.fromkeys(("TopK", "Dropout", "Pad", "ReverseSequence", "Unique", "Clip", "CastLike"), (0,)),
    **dict.fromkeys(("Concat", "Max", "Min", "SequenceConstruct", "SequenceAt"), None),
    "Where": (1, 2),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
}
# Operators whose input 1 holds indices into one axis of input 0.
_INDEXES = ("Gather", "GatherElements", "ScatterElements", "Scatter")
_SHAPES = {"Reshape": (1,), "Expand": (1,), "ConstantOfShape": (0,), "Tile": (1,), "Range": (0, 1, 2)}
_COUNTS = {"Slice": (1, 2, 3, 4), "TopK": (1,), "Loop": (0,), "OneHot": (1,), "Pad": (1,), "Split": (1,)}
_INDEXED = {
    **dict.fromkeys((*_INDEXES, "GatherND", "ScatterND"), (1,)),
    **dict.fromkeys(("OneHot", "Resize", "Upsample", "SequenceAt", "SequenceInsert"), (0, 1, 2, 3)),
}
# The roles of single inputs: operators, inputs, role.
_USES: tuple[tuple[Iterable[str], tuple[int, ...], str], ...] = (
    (RECURRENT, (1, 2, 3, 7, 8, 9, 10, 11), "weight"),
    (("CausalConvWithState",), (1, 2), "weight"),
    (RECURRENT, (5, 6), "state"),
    (STATE_AXES, (3,), "state"),
    (("LinearAttention",), (1,), "key"),
    (("LinearAttention",), (4,), "decay"),
    (("LinearAttention",), (5,), "rate"),
    *(((op_type,), inputs, "shape") for op_type, inputs in _SHAPES.items()),
    *(((op_type,), inputs, "count") for op_type, inputs in _COUNTS.items()),
)
_LENGTHS = {**dict.fromkeys(RECURRENT, (4, "layout")), "ReverseSequence": (1, "time_axis")}
"""Inputs that hold the lengths of rows: the index, and the attribute for the time axis of input 0."""
_COMPARISONS = ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")


@dataclass(frozen=True)
class _Scope:
    opset: int
    dims: MutableMapping[str, Dims]
    types: MutableMapping[str, int]
    values: MutableMapping[str, NDArray[Any]]
    bound: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)

    def attributes(self, node: onnx.NodeProto) -> dict[str, onnx.AttributeProto]:
        """Return the attributes of ``node``, with references to function attributes resolved."""
        given = {a.name: self.bound.get(a.ref_attr_name) if a.ref_attr_name else a for a in node.attribute}
        return {name: attribute for name, attribute in given.items() if attribute is not None}

    def number(self, node: onnx.NodeProto, name: str) -> int:
        """Return an integer attribute of ``node``; 0 if it is left out."""
        attributes = self.attributes(node)
        return attributes[name].i if name in attributes else 0

    def child(self) -> _Scope:
        """Return the scope of a body, whose names hide those outside."""
        dims, types, values = (ChainMap({}, each) for each in (self.dims, self.types, self.values))
        return _Scope(self.opset, dims, types, values, self.bound)


Origins = frozenset[str]
Taint = MutableMapping[str, Origins]


class Tracer:
    """The facts collected from the nodes of a model with inferred shapes."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._functions = {(f.domain, f.name, f.overload): f for f in model.functions}
        self._weights = {tensor.name for tensor in model.graph.initializer}
        self.facts = GraphFacts()
        names = [value.name for value in required_inputs(model.graph)]
        self.facts.uses = {name: Uses() for name in names}
        taint: Taint = {name: frozenset([name]) for name in names}
        scope = _Scope(default_opset(model.opset_import), {}, {}, {})
        self._trace_graph(model.graph, scope, taint)
        if self.facts.recurrent:
            # A value that is reshaped at run time is most likely X.
            sizes = [dim for name in self.facts.reshapes for dim in scope.dims.get(name, ())]
            self.facts.equal_dims += [(dim, _RANK_OF_X) for dim in sizes if isinstance(dim, str)]
        for output in model.graph.output:
            for axis, dim in enumerate(scope.dims.get(output.name, ())):
                if dim in self.facts.lengths:
                    self.facts.time_axes.setdefault(output.name, axis)

    def _trace_graph(
        self, graph: onnx.GraphProto, scope: _Scope, taint: Taint, entered: Mapping[str, Dims] | None = None
    ) -> list[Origins]:
        for value in (*graph.input, *graph.value_info, *graph.output):
            scope.types[value.name] = value.type.tensor_type.elem_type
            dims = dims_of(value)
            if dims is not None:
                scope.dims[value.name] = dims
        scope.dims.update(entered or {})
        for tensor in graph.initializer:
            scope.types[tensor.name] = tensor.data_type
            scope.dims[tensor.name] = tuple(tensor.dims)
            self._record_constant(tensor.name, tensor, scope)
        self._trace_nodes(graph.node, scope, taint)
        return [taint.get(o.name, frozenset()) for o in graph.output]

    @staticmethod
    def _record_constant(name: str, tensor: onnx.TensorProto, scope: _Scope) -> None:
        if math.prod(tensor.dims) <= _SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            scope.values[name] = numpy_helper.to_array(tensor)

    def _trace_nodes(self, nodes: Iterable[onnx.NodeProto], scope: _Scope, taint: Taint) -> None:
        for node in nodes:
            self._fold(node, scope)
            own = "com.microsoft" if node.op_type == QUANTIZED_LSTM else ""
            if node.op_type in RECURRENT and node.domain.removeprefix("ai.onnx") == own:
                self._record_recurrent(node, scope)
            if node.op_type in STATE_AXES and node.domain in ("", "ai.onnx", "com.microsoft"):
                axes = STATE_AXES[node.op_type]
                last = scope.number(node, "channels_last")
                self._record_equal_dims(node, ("NT.", *axes[1:]) if last else axes, scope)
            sized = {index for table in (_SHAPES, _COUNTS, _INDEXED) for index in table.get(node.op_type, ())}
            for index, name in enumerate(node.input):
                if index in sized and name and name not in scope.values:
                    self.facts.has_computed_sizes = True
                if taint.get(name):
                    self._record_use(node, index, [self.facts.uses[origin] for origin in taint[name]], scope)
            if node.op_type == "Reshape" and len(node.input) > 1:
                given = taint.get(node.input[0]) or (), taint.get(node.input[1]) or ()
                self.facts.reshapes.update((shape, data) for data in given[0] for shape in given[1])
            function = self._functions.get((node.domain, node.op_type, node.overload))
            if function is not None:
                results = self._trace_call(function, node, scope, taint)
            else:
                results = self._trace_outputs(node, scope, taint)
            for name, origins in zip(node.output, results, strict=False):
                taint[name] = origins

    def _fold(self, node: onnx.NodeProto, scope: _Scope) -> None:
        """Record the values of constants, also after a Cast or a reshape."""
        if node.op_type == "Constant":
            for name, attribute in scope.attributes(node).items():
                if name == "value":
                    scope.types[node.output[0]] = attribute.t.data_type
                    scope.dims[node.output[0]] = tuple(attribute.t.dims)
                    self._record_constant(node.output[0], attribute.t, scope)
                elif name in ("value_int", "value_float", "value_ints", "value_floats"):
                    scope.values[node.output[0]] = np.asarray(onnx.helper.get_attribute_value(attribute))
        elif node.op_type in ("Identity", "Cast", "Squeeze", "Unsqueeze") and node.input[0] in scope.values:
            scope.values[node.output[0]] = scope.values[node.input[0]]

    def _record_recurrent(self, node: onnx.NodeProto, scope: _Scope) -> None:
        layout = scope.number(node, "layout")
        elem_types = [scope.types[name] for name in node.input if name and scope.types.get(name)]
        # sequence_lens is the only input of another type.
        elem_types = [t for t in elem_types if t != onnx.TensorProto.INT32]
        state, x = ("NDH", "NTI") if layout else ("DNH", "TNI")
        weights = ("DI.", "DH.") if node.op_type == QUANTIZED_LSTM else ("D.I", "D.H")
        self._record_equal_dims(node, (x, *weights, "D.", "N", state, state, "D."), scope)
        if node.output and node.output[0]:
            self.facts.time_axes[node.output[0]] = layout
        self.facts.recurrent.append(
            Recurrent(
                name=node.name or next(iter(node.output), node.op_type),
                op_type=node.op_type,
                version=scope.opset,
                elem_type=elem_types[0] if elem_types else None,
                layout=layout,
                x_dims=scope.dims.get(node.input[0]),
                state_dims=tuple(
                    d for name in node.input[4:7] for d in scope.dims.get(name, ()) if isinstance(d, int)
                ),
                input_size=_axis_size(scope, node.input[1], 1 if node.op_type == QUANTIZED_LSTM else 2),
            )
        )

    def _record_equal_dims(self, node: onnx.NodeProto, letters: Iterable[str], scope: _Scope) -> None:
        """Record dimensions of the node's inputs as equal if they share a letter; N: rows, T: steps."""
        seen: dict[str, list[Dim]] = {}
        for name, axes in zip(node.input, letters, strict=False):
            dims = scope.dims.get(name)
            if name and dims is not None and len(dims) == len(axes):
                for letter, dim in zip(axes, dims, strict=True):
                    seen.setdefault(letter, []).append(dim)
        seen.pop(".", None)
        for letter, (first, *others) in seen.items():
            self.facts.equal_dims += [(first, other) for other in others]
            roles = {"N": self.facts.batches, "T": self.facts.lengths}.get(letter, set())
            roles.update(dim for dim in (first, *others) if isinstance(dim, str))

    def _record_use(self, node: onnx.NodeProto, index: int, uses: list[Uses], scope: _Scope) -> None:
        op_type = node.op_type
        for use in uses:
            use.roles.update(role for ops, inputs, role in _USES if op_type in ops and index in inputs)
            if op_type in _LENGTHS and index == _LENGTHS[op_type][0]:
                time_axis = scope.number(node, _LENGTHS[op_type][1])
                use.lengths.append(_axis_size(scope, node.input[0], time_axis))
            elif op_type in _INDEXES and index == 1:
                use.indices.append(_axis_size(scope, node.input[0], scope.number(node, "axis")))
                if node.input[0] not in self._weights:
                    # A row of a table is never counted from its end, a step of a sequence is.
                    use.roles.add("place")
            elif op_type in ("GatherND", "ScatterND") and index == 1:
                # The size of the last axis of the indices is the number of indexed axes.
                indexed = _axis_size(scope, node.input[1], -1)
                axes = range(indexed) if isinstance(indexed, int) else range(1)
                first = scope.number(node, "batch_dims")
                use.indices += [_axis_size(scope, node.input[0], first + axis) for axis in axes]
            elif op_type == "OneHot" and index == 0:
                depth = scope.values.get(node.input[1])
                use.indices.append(None if depth is None else int(depth.max(initial=0)))
            elif op_type in _COMPARISONS:
                others = scope.values.get(node.input[1 - index])
                known = set() if others is None else {float(v) for v in others.ravel() if _is_number(v)}
                (use.equal_to if op_type == "Equal" else use.ordered_with).update(known)

    def _trace_outputs(self, node: onnx.NodeProto, scope: _Scope, taint: Taint) -> list[Origins]:
        graphs = {a.name: a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}
        if not graphs:
            moved = _SOURCES.get(node.op_type, ())
            indices = range(len(node.input)) if moved is None else [i for i in moved if i < len(node.input)]
            origins = frozenset[str]().union(*(taint.get(node.input[i], frozenset()) for i in indices))
            return [origins] * len(node.output)
        bodies = []
        for graph in graphs.values():
            inner: Taint = ChainMap({}, taint)
            entered = {}
            for index, (formal, actual) in enumerate(zip(graph.input, node.input, strict=False)):
                inner[formal.name] = taint.get(actual, frozenset())
                dims = _dims_on_entry(node, index, scope)
                if dims is not None:
                    entered[formal.name] = dims
            bodies.append(self._trace_graph(graph, scope.child(), inner, entered))
        if node.op_type == "Loop":
            return bodies[0][1:]
        return [a.union(*rest) for a, *rest in zip(*bodies, strict=False)]

    def _trace_call(
        self, function: onnx.FunctionProto, node: onnx.NodeProto, outer: _Scope, taint: Taint
    ) -> list[Origins]:
        bound = {a.name: a for a in function.attribute_proto} | outer.attributes(node)
        scope = _Scope(default_opset(function.opset_import), {}, {}, {}, bound)
        inner: Taint = {}
        for formal, actual in zip(function.input, node.input, strict=False):
            inner[formal] = taint.get(actual, frozenset())
            if actual in outer.dims:
                scope.dims[formal] = outer.dims[actual]
            if actual in outer.types:
                scope.types[formal] = outer.types[actual]
        self._trace_nodes(function.node, scope, inner)
        return [inner.get(name, frozenset()) for name in function.output]


def _dims_on_entry(node: onnx.NodeProto, index: int, scope: _Scope) -> Dims | None:
    """Return the dimensions of a Loop's or Scan's input in the first iteration of the body."""
    dims = scope.dims.get(node.input[index])
    if dims is None or (node.op_type == "Loop" and index < 2) or node.op_type not in ("Loop", "Scan"):
        return None
    if node.op_type == "Loop":
        return dims
    attributes = scope.attributes(node)
    scanned = index - (len(node.input) - attributes["num_scan_inputs"].i)
    if scope.opset < 9 or scanned < 0 or not dims:
        return None if scope.opset < 9 else dims
    axes = attributes["scan_input_axes"].ints if "scan_input_axes" in attributes else ()
    axis = axes[scanned] % len(dims) if axes else 0
    return dims[:axis] + dims[axis + 1 :]


def _is_number(value: Any) -> bool:
    return isinstance(value, (np.number, np.bool_)) and bool(np.isfinite(float(value)))


def _axis_size(scope: _Scope, name: str, axis: int) -> Dim:
    dims = scope.dims.get(name)
    return dims[axis] if dims is not None and -len(dims) <= axis < len(dims) else None
