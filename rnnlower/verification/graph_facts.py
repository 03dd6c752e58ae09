"""What a graph says about its inputs: which values its consumers accept, and where it holds recurrent nodes.

Each graph input is followed forward through operators that only move or convert values (Cast, Slice,
Gather's data ...), into If, Loop and Scan bodies and model-local functions, to the operators that put it to
use.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Iterable, Mapping, MutableMapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper
from onnx.shape_inference import InferenceError, infer_shapes

from rnnlower.errors import InvalidModelError
from rnnlower.inference import check_comes_back, guarded
from rnnlower.verification.models import default_opset, op_types, slim
from rnnlower.verification.randomness import random_outputs
from rnnlower.verification.thresholds import largest_threshold

__all__ = [
    "Dim",
    "Dims",
    "Facts",
    "Recurrent",
    "Uses",
    "dims_of",
    "facts_of_candidate",
    "gather_facts",
    "unnamed_dim",
]

Dim = int | str | None
Dims = tuple[Dim, ...]

RECURRENT = ("LSTM", "GRU", "RNN")
_SMALL = 64
_RANK_OF_X = 3

# Operators whose outputs hold the values of these inputs, moved or converted (None: of all inputs).
_MOVES: dict[str, tuple[int, ...] | None] = {
    **dict.fromkeys(("Identity", "Cast", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Flatten"), (0,)),
    **dict.fromkeys(("Expand", "Tile", "Slice", "Split", "Gather", "GatherElements", "GatherND"), (0,)),
    **dict.fromkeys(("TopK", "Dropout", "Pad", "ReverseSequence", "Unique", "Clip", "CastLike"), (0,)),
    **dict.fromkeys(("Concat", "Max", "Min", "SequenceConstruct", "SequenceAt"), None),
    "Where": (1, 2),
    "ScatterElements": (0, 2),
    "ScatterND": (0, 2),
}
# Inputs that hold indices into an axis of input 0: op -> (input, default axis).
_INDEXES = {"Gather": (1, 0), "GatherElements": (1, 0), "ScatterElements": (1, 0), "Scatter": (1, 0)}
_SHAPES = {"Reshape": (1,), "Expand": (1,), "ConstantOfShape": (0,), "Tile": (1,), "Range": (0, 1, 2)}
_COUNTS = {"Slice": (1, 2, 3, 4), "TopK": (1,), "Loop": (0,), "OneHot": (1,), "Pad": (1,), "Split": (1,)}
_COMPARISONS = ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")


@dataclass
class Uses:
    """How consumers use one graph input. Limits are exclusive sizes: an int, a dimension's name or None."""

    lengths: list[Dim] = field(default_factory=list)
    indices: list[Dim] = field(default_factory=list)
    equal_to: set[float] = field(default_factory=set)
    ordered_with: set[float] = field(default_factory=set)
    is_weight: bool = False
    is_state: bool = False
    is_shape: bool = False
    is_count: bool = False


@dataclass(frozen=True)
class Recurrent:
    """A native recurrent node: where it is, and what decides whether an engine runs it.

    ``state_dims`` are the sizes that its sequence_lens and initial states are known to have, ``input_size``
    the features of X by the shape of W.
    """

    name: str
    op_type: str
    version: int
    elem_type: int | None
    layout: int
    x_dims: Dims | None
    state_dims: tuple[int, ...]
    input_size: Dim = None


@dataclass
class Facts:
    """What a graph says.

    ``uses`` by graph input; the recurrent nodes; the outputs left to chance or to the runtime; dimensions
    that recurrent nodes need to be equal; the names of dimensions that are a node's batch or sequence length;
    the axis of time of the values that have one; by inputs that give a Reshape its shape, the inputs that it
    reshapes; the largest magnitude at which something clips or bends.
    """

    uses: dict[str, Uses] = field(default_factory=dict)
    recurrent: list[Recurrent] = field(default_factory=list)
    random_outputs: set[str] = field(default_factory=set)
    equal_dims: list[tuple[Dim, Dim]] = field(default_factory=list)
    batches: set[str] = field(default_factory=set)
    lengths: set[str] = field(default_factory=set)
    time_axes: dict[str, int] = field(default_factory=dict)
    reshapes: dict[str, str] = field(default_factory=dict)
    threshold: float = 0.0


@dataclass(frozen=True)
class _Scope:
    opset: int
    dims: MutableMapping[str, Dims]
    types: MutableMapping[str, int]
    values: MutableMapping[str, NDArray[Any]]
    bound: Mapping[str, onnx.AttributeProto] = field(default_factory=dict)

    def attributes(self, node: onnx.NodeProto) -> dict[str, onnx.AttributeProto]:
        """The attributes of ``node``, those that refer to a function's replaced by what the call gives."""
        given = {a.name: self.bound.get(a.ref_attr_name) if a.ref_attr_name else a for a in node.attribute}
        return {name: attribute for name, attribute in given.items() if attribute is not None}

    def child(self) -> _Scope:
        return _Scope(
            self.opset,
            ChainMap({}, self.dims),
            ChainMap({}, self.types),
            ChainMap({}, self.values),
            self.bound,
        )


Origins = frozenset[str]
Taint = MutableMapping[str, Origins]


def gather_facts(
    model: onnx.ModelProto, shapes: Mapping[str, Sequence[int] | Sequence[str]] | None = None
) -> Facts:
    """Facts about ``model``; with ``shapes``, under these sizes, or names of sizes, of its inputs."""
    inferred = _for_inference(model)
    for value in inferred.graph.input:
        if shapes and value.name in shapes:
            del value.type.tensor_type.shape.dim[:]
            for size in shapes[value.name]:
                named = isinstance(size, str)
                value.type.tensor_type.shape.dim.add(**{"dim_param" if named else "dim_value": size})
        _name_dims(value)
    if shapes:
        _forget_shapes(inferred.graph)
    # Shape inference is a help here, not a judge: without it fewer limits are known.
    # That it would end the process counts against the model, but not against sizes that are only tried.
    help_only = (InferenceError, ValueError, RuntimeError, *((InvalidModelError,) if shapes else ()))
    bare = inferred
    with suppress(*help_only):
        inferred = guarded(op_types(model), lambda: infer_shapes(bare, data_prop=True))
    tracer = _Tracer(inferred)
    tracer.run()
    tracer.facts.random_outputs = random_outputs(model)
    tracer.facts.threshold = largest_threshold(model)
    return tracer.facts


def facts_of_candidate(model: onnx.ModelProto) -> Facts:
    """Facts about recurrent nodes only; at no cost for a graph that has none, however large it is."""
    nodes = [model.graph.node, *(function.node for function in model.functions)]
    if any(map(_holds_recurrent, nodes)):
        return gather_facts(model)
    check_comes_back(op_types(model), lambda: infer_shapes(_for_inference(model), data_prop=True))
    return Facts()


def _holds_recurrent(nodes: Iterable[onnx.NodeProto]) -> bool:
    return any(
        node.op_type in RECURRENT or any(_holds_recurrent(a.g.node) for a in node.attribute) for node in nodes
    )


def dims_of(value: onnx.ValueInfoProto) -> Dims | None:
    """The dimensions of a value: sizes, names, or None for unknown (also -1). None without a shape."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    dims: list[Dim] = []
    for d in tensor.shape.dim:
        if d.HasField("dim_value") and d.dim_value >= 0:
            dims.append(d.dim_value)
        else:
            dims.append(d.dim_param if d.dim_param.strip("?") else None)
    return tuple(dims)


def unnamed_dim(name: str, axis: int) -> str:
    """The name by which a nameless dimension of input ``name`` goes here."""
    return f"?{name}:{axis}"


def _name_dims(value: onnx.ValueInfoProto) -> None:
    """Name the nameless dimensions of an input, so that shape inference tells where they turn up."""
    dims = dims_of(value) or ()
    for axis, (dim, proto) in enumerate(zip(dims, value.type.tensor_type.shape.dim, strict=False)):
        if dim is None:
            proto.dim_param = unnamed_dim(value.name, axis)


def _forget_shapes(graph: onnx.GraphProto) -> None:
    """Drop recorded shapes: they may have been recorded for other inputs."""
    del graph.value_info[:]
    for output in graph.output:
        output.type.tensor_type.ClearField("shape")
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                _forget_shapes(attribute.g)


def _for_inference(model: onnx.ModelProto) -> onnx.ModelProto:
    copy = slim(model)
    for each in (copy.graph, *copy.functions):
        _forget_negative_sizes(each)
    return copy


def _forget_negative_sizes(graph: onnx.GraphProto | onnx.FunctionProto) -> None:
    """Take -1 for unknown: the shape inference of onnx ends the process over it."""
    ends = () if isinstance(graph, onnx.FunctionProto) else (*graph.input, *graph.output)
    for value in (*graph.value_info, *ends):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_value < 0:
                dim.ClearField("dim_value")
    for node in graph.node:
        for attribute in node.attribute:
            _forget_negative_sizes(attribute.g)


class _Tracer:
    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._functions = {(f.domain, f.name): f for f in model.functions}
        self.facts = Facts()

    def run(self) -> None:
        opset = default_opset(self._model.opset_import)
        initialized = {i.name for i in self._model.graph.initializer}
        names = [i.name for i in self._model.graph.input if i.name not in initialized]
        self.facts.uses = {name: Uses() for name in names}
        taint: Taint = {name: frozenset([name]) for name in names}
        scope = _Scope(opset, {}, {}, {})
        self._graph(self._model.graph, scope, taint)
        if self.facts.recurrent:
            # What is reshaped at run time is most likely X.
            sizes = [dim for name in self.facts.reshapes for dim in scope.dims.get(name, ())]
            self.facts.equal_dims += [(dim, _RANK_OF_X) for dim in sizes if isinstance(dim, str)]
        for output in self._model.graph.output:
            for axis, dim in enumerate(scope.dims.get(output.name, ())):
                if dim in self.facts.lengths:
                    self.facts.time_axes.setdefault(output.name, axis)

    def _graph(
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
            self._constant(tensor.name, tensor, scope)
        self._nodes(graph.node, scope, taint)
        return [taint.get(o.name, frozenset()) for o in graph.output]

    @staticmethod
    def _constant(name: str, tensor: onnx.TensorProto, scope: _Scope) -> None:
        size = int(np.prod(tensor.dims, dtype=np.int64))
        if size <= _SMALL and tensor.data_location != onnx.TensorProto.EXTERNAL:
            scope.values[name] = numpy_helper.to_array(tensor)

    def _nodes(self, nodes: Iterable[onnx.NodeProto], scope: _Scope, taint: Taint) -> None:
        for node in nodes:
            self._fold(node, scope)
            if node.op_type in RECURRENT and node.domain in ("", "ai.onnx"):
                self._record(node, scope)
            for index, name in enumerate(node.input):
                if taint.get(name):
                    self._use(node, index, [self.facts.uses[origin] for origin in taint[name]], scope)
            if node.op_type == "Reshape" and len(node.input) > 1:
                given = taint.get(node.input[0]) or (), taint.get(node.input[1]) or ()
                self.facts.reshapes.update((shape, data) for data in given[0] for shape in given[1])
            function = self._functions.get((node.domain, node.op_type))
            if function is not None:
                results = self._call(function, node, scope, taint)
            else:
                results = self._results(node, scope, taint)
            for name, origins in zip(node.output, results, strict=False):
                taint[name] = origins

    def _fold(self, node: onnx.NodeProto, scope: _Scope) -> None:
        """Know the values of constants, also behind a Cast or a reshape."""
        if node.op_type == "Constant":
            attribute = node.attribute[0]
            if attribute.name == "value":
                scope.types[node.output[0]] = attribute.t.data_type
                scope.dims[node.output[0]] = tuple(attribute.t.dims)
                self._constant(node.output[0], attribute.t, scope)
            elif attribute.name in ("value_int", "value_float", "value_ints", "value_floats"):
                scope.values[node.output[0]] = np.asarray(onnx.helper.get_attribute_value(attribute))
        elif node.op_type in ("Identity", "Cast", "Squeeze", "Unsqueeze") and node.input[0] in scope.values:
            scope.values[node.output[0]] = scope.values[node.input[0]]

    def _record(self, node: onnx.NodeProto, scope: _Scope) -> None:
        attributes = scope.attributes(node)
        elem_types = [scope.types[name] for name in node.input if name and scope.types.get(name)]
        # sequence_lens is the one input of another type.
        elem_types = [t for t in elem_types if t != onnx.TensorProto.INT32]
        self._relate(node, attributes, scope)
        if node.output and node.output[0]:
            self.facts.time_axes[node.output[0]] = attributes["layout"].i if "layout" in attributes else 0
        self.facts.recurrent.append(
            Recurrent(
                name=node.name or next(iter(node.output), node.op_type),
                op_type=node.op_type,
                version=scope.opset,
                elem_type=elem_types[0] if elem_types else None,
                layout=attributes["layout"].i if "layout" in attributes else 0,
                x_dims=scope.dims.get(node.input[0]),
                state_dims=tuple(
                    d for name in node.input[4:7] for d in scope.dims.get(name, ()) if isinstance(d, int)
                ),
                input_size=_axis_size(scope, node.input[1], 2),
            )
        )

    def _relate(self, node: onnx.NodeProto, attributes: Mapping[str, Any], scope: _Scope) -> None:
        """Note which dimensions of the node's inputs are the same."""
        batch_first = "layout" in attributes and attributes["layout"].i
        state = "NDH" if batch_first else "DNH"
        letters = ("NTI" if batch_first else "TNI", "D.I", "D.H", "D.", "N", state, state, "D.")
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

    def _use(self, node: onnx.NodeProto, index: int, uses: list[Uses], scope: _Scope) -> None:
        op_type = node.op_type
        attributes = scope.attributes(node)
        axis = attributes["axis"].i if "axis" in attributes else 0
        for use in uses:
            if op_type in RECURRENT and index == 4:
                time_axis = attributes["layout"].i if "layout" in attributes else 0
                use.lengths.append(_axis_size(scope, node.input[0], time_axis))
            elif op_type == "ReverseSequence" and index == 1:
                time_axis = attributes["time_axis"].i if "time_axis" in attributes else 0
                use.lengths.append(_axis_size(scope, node.input[0], time_axis))
            elif op_type in RECURRENT and index in (1, 2, 3, 7):
                use.is_weight = True
            elif op_type in RECURRENT and index in (5, 6):
                use.is_state = True
            elif op_type in _INDEXES and index == _INDEXES[op_type][0]:
                use.indices.append(_axis_size(scope, node.input[0], axis))
            elif op_type in ("GatherND", "ScatterND") and index == 1:
                # The last axis of the indices counts through as many axes of the data.
                indexed = _axis_size(scope, node.input[1], -1)
                axes = range(indexed) if isinstance(indexed, int) else range(1)
                first = attributes["batch_dims"].i if "batch_dims" in attributes else 0
                use.indices += [_axis_size(scope, node.input[0], first + axis) for axis in axes]
            elif op_type == "OneHot" and index == 0:
                depth = scope.values.get(node.input[1])
                use.indices.append(None if depth is None else int(depth.ravel()[0]))
            elif op_type in _COMPARISONS:
                others = scope.values.get(node.input[1 - index])
                known = set() if others is None else {float(v) for v in others.ravel() if _is_number(v)}
                (use.equal_to if op_type == "Equal" else use.ordered_with).update(known)
            use.is_shape |= index in _SHAPES.get(op_type, ())
            use.is_count |= index in _COUNTS.get(op_type, ())

    def _results(self, node: onnx.NodeProto, scope: _Scope, taint: Taint) -> list[Origins]:
        graphs = {a.name: a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH}
        if not graphs:
            moved = _MOVES.get(node.op_type, ())
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
            bodies.append(self._graph(graph, scope.child(), inner, entered))
        if node.op_type == "Loop":
            return bodies[0][1:]
        return [a.union(*rest) for a, *rest in zip(*bodies, strict=False)]

    def _call(
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
        self._nodes(function.node, scope, inner)
        return [inner.get(name, frozenset()) for name in function.output]


def _dims_on_entry(node: onnx.NodeProto, index: int, scope: _Scope) -> Dims | None:
    """The dimensions with which an input of a Loop or Scan enters its body's first iteration."""
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
