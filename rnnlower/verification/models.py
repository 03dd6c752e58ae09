"""The two models of a verification, parsed without external data, and the file or bytes to run.

Differences between their interfaces are found before anything runs; state outputs are matched with inputs.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import uses_external_data
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower import wording
from rnnlower.arguments import dictionary, model_path
from rnnlower.engines.opened_models import LARGE
from rnnlower.engines.session import Array
from rnnlower.errors import OptionError
from rnnlower.files.checks import check_proto, read_proto
from rnnlower.files.metadata import state_stem
from rnnlower.verification.inputs.uses import GraphFacts, dims_of

ModelLike: TypeAlias = "str | os.PathLike[str] | onnx.ModelProto | ir.Model"
Graph = onnx.GraphProto | onnx.FunctionProto
Feeds = dict[str, Array]
RunModel = Callable[[Feeds], dict[str, Any]]

_BIG_TENSOR = 4096


@dataclass(frozen=True)
class ParsedModel:
    """A parsed model. If ``path`` is set, ``proto`` may lack external data, and engines load the file."""

    role: str
    proto: onnx.ModelProto
    path: Path | None

    def session_source(self) -> str | bytes:
        """Return the source of an onnxruntime session."""
        return str(self.path) if self.path else self.proto.SerializeToString()

    @property
    def fits_memory(self) -> bool:
        """True if protobuf can hold the model together with its external data."""
        external = [each.dims for each in self.proto.graph.initializer if uses_external_data(each)]
        return 8 * sum(map(math.prod, external)) < LARGE

    def array(self, tensor: onnx.TensorProto) -> Array:
        """Return the values of one of the model's tensors, read from its data file if necessary."""
        return numpy_helper.to_array(tensor, str(self.path.parent) if self.path else "")

    def with_data(self) -> onnx.ModelProto:
        """Return the model with its external data loaded."""
        return onnx.load(self.path) if self.path else self.proto

    def with_proto(self, proto: onnx.ModelProto) -> ParsedModel:
        """Return a model in the same role; `proto` holds all its data."""
        return ParsedModel(self.role, proto, None)


def load_parsed(model: ModelLike, role: str, folder: Path) -> ParsedModel:
    """Parse a path, ModelProto or ir.Model; a model too large for protobuf is saved in ``folder``.

    Raises:
        InvalidModelError: The file is missing, unreadable or not an ONNX model, or the ModelProto is broken.
        OptionError: A ModelProto refers to external data, which only a path can locate.
    """
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        return ParsedModel(role, read_proto(path, f"the {role} {path}"), path)
    if isinstance(model, onnx.ModelProto):
        check_proto(model, f"the {role}")
        if any(uses_external_data(tensor) for tensor in model.graph.initializer):
            raise OptionError(f"the {role} has external data: give its path instead of a ModelProto")
        if sum(len(tensor.raw_data) for tensor in model.graph.initializer) < LARGE:
            return ParsedModel(role, model, None)
        model = ir.from_proto(model)
    if not isinstance(model, ir.Model):
        model_path(model, f"the {role}")
    external = any(isinstance(v.const_value, ir.ExternalTensor) for v in model.graph.initializers.values())
    size = sum(v.const_value.nbytes for v in model.graph.initializers.values() if v.const_value is not None)
    if not external and size < LARGE:
        return ParsedModel(role, ir.to_proto(model), None)
    path = folder / f"{role}.onnx"
    ir.save(model, path, external_data=f"{role}.data")
    return ParsedModel(role, onnx.load(path, load_external_data=False), path)


def graphs_in(*graphs: Graph) -> Iterator[Graph]:
    """Yield the graphs or functions, each before its subgraphs."""
    for graph in graphs:
        yield graph
        for node in graph.node:
            for attribute in node.attribute:
                # Changing the field of an absent graph would create it.
                yield from graphs_in(*([attribute.g] if attribute.HasField("g") else ()), *attribute.graphs)


def nodes_in(*graphs: Graph) -> Iterator[onnx.NodeProto]:
    """Yield the nodes of the graphs or functions and of their subgraphs."""
    return (node for graph in graphs_in(*graphs) for node in graph.node)


def op_types(model: onnx.ModelProto) -> set[str]:
    """Return the operators of all graphs and functions."""
    return {node.op_type for node in nodes_in(model.graph, *model.functions)}


def drop_large_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy for analysis: large initializers keep name, type and shape, but not their data."""
    copy = onnx.ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    graph = copy.graph
    graph.name = model.graph.name or "main"
    for field in ("node", "input", "output", "value_info"):
        getattr(graph, field).extend(getattr(model.graph, field))
    for tensor in model.graph.initializer:
        is_stored = not uses_external_data(tensor)
        if is_stored and max(len(tensor.raw_data), math.prod(tensor.dims)) <= _BIG_TENSOR:
            graph.initializer.append(tensor)
            continue
        entry = graph.initializer.add(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
        entry.data_location = onnx.TensorProto.EXTERNAL
        entry.external_data.add(key="location", value="left-out")
    return copy


def default_opset(imports: Iterable[onnx.OperatorSetIdProto]) -> int:
    """Return the version of the default domain; 1 without an import."""
    return next((entry.version for entry in imports if entry.domain in ("", "ai.onnx")), 1)


_FREE_INITIALIZERS_IR = 4
"""The IR version since which an initializer need not be an input. Repeated, as this room shares no code."""

FLOATS = {TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16}


def required_inputs(graph: onnx.GraphProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs without an initializer as default."""
    initialized = {tensor.name for tensor in graph.initializer}
    return [value for value in graph.input if value.name not in initialized]


def feedable_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    """Return the inputs that a caller may feed, including those whose initializer is a default value."""
    defaults = model.ir_version >= _FREE_INITIALIZERS_IR
    return [*model.graph.input] if defaults else required_inputs(model.graph)


def overridable_inputs(model: onnx.ModelProto) -> list[str]:
    """Return the names of the inputs that a caller may feed or leave at their default value."""
    required = {value.name for value in required_inputs(model.graph)}
    return [value.name for value in feedable_inputs(model) if value.name not in required]


def select_feeds(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values that can be fed to the model."""
    accepted = {value.name for value in feedable_inputs(model)}
    return {name: value for name, value in feeds.items() if name in accepted}


def float_casts(ours: Iterable[onnx.ValueInfoProto], theirs: Iterable[onnx.ValueInfoProto]) -> dict[str, str]:
    """Return the names whose float types differ between `ours` and `theirs`, with a description of both."""
    others = {value.name: _type(value) for value in theirs}
    names = {int(kind): np.dtype(tensor_dtype_to_np_dtype(kind)).name for kind in FLOATS}
    return {
        value.name: f"{names[_type(value)]} in the reference and {names[others[value.name]]} in the candidate"
        for value in ours
        if {_type(value), others.get(value.name)} <= FLOATS and others[value.name] != _type(value)
    }


def _type(value: onnx.ValueInfoProto) -> Any:
    return _element_type(value.type)


def _element_type(kind: onnx.TypeProto) -> Any:
    """Return a tensor's element type; for a sequence or an optional value, which of them, and of what."""
    container = kind.WhichOneof("value")
    if container in ("sequence_type", "optional_type"):
        return container, _element_type(getattr(kind, container).elem_type)
    return kind.tensor_type.elem_type


def interface_problems(
    reference: onnx.ModelProto,
    candidate: onnx.ModelProto,
    sets: Collection[str] = (),
    casts: Mapping[str, str] | None = None,
) -> tuple[list[str], bool]:
    """Return differences between the models' inputs and outputs, and whether both can take the same inputs.

    The candidate may lack the inputs named in `sets`; those in `casts` are fed in its own type.
    """
    problems, runnable = [], True
    theirs = {value.name: value for value in candidate.graph.input}
    ours = {value.name for value in reference.graph.input}
    lasting, defaults = feedable_inputs(reference), overridable_inputs(reference)
    for value in lasting:
        other = theirs.get(value.name)
        if other is None and (value.name in defaults or value.name in sets):
            # A caller who never fed it misses nothing: a note, but not a difference.
            continue
        if other is None:
            remedy = f"if it was set there, set it here, too ({wording.sets(value.name)})"
            problems.append(f"the candidate has no input {value.name!r}; {remedy}")
        elif _type(other) != _type(value) and value.name not in (casts or ()):
            problems.append(f"input {value.name!r} has another type in the candidate")
            runnable = False
    for value in required_inputs(candidate.graph):
        if value.name not in ours:
            problems.append(f"the candidate needs an input {value.name!r} that the reference lacks")
            runnable = False
        elif value.name in defaults:
            problems.append(f"input {value.name!r} has no default value in the candidate")
            runnable = False
    ours_in_order = [value.name for value in lasting if value.name in theirs]
    theirs_in_order = [value.name for value in candidate.graph.input if value.name in ours_in_order]
    if ours_in_order != theirs_in_order:
        problems.append(f"the inputs are ordered {theirs_in_order} instead of {ours_in_order}")
    kinds = {value.name: _type(value) for value in candidate.graph.output}
    for value in reference.graph.output:
        pair = _type(value), kinds.get(value.name, _type(value))
        # The element types of tensors are compared once they are computed; 0 is unknown.
        if all(pair) and pair[0] != pair[1] and not all(isinstance(kind, int) for kind in pair):
            problems.append(f"output {value.name!r} has another type in the candidate")
    expected, found = [o.name for o in reference.graph.output], [o.name for o in candidate.graph.output]
    problems += [f"the candidate has no output {name!r}" for name in expected if name not in found]
    problems += [f"the candidate has an additional output {name!r}" for name in found if name not in expected]
    if {*expected} == {*found} and expected != found:
        problems.append(f"the outputs are ordered {found} instead of {expected}")
    return problems, runnable


def find_state_pairs(
    graph: onnx.GraphProto,
    facts: GraphFacts,
    given: Mapping[str, str] | None = None,
    fixed: Collection[str] = (),
) -> dict[str, str]:
    """Return pairs of a state output and the state input that it feeds in the next call.

    Inputs that are initial states of recurrent nodes are paired with outputs of the same type and a
    compatible shape: by name (``h`` and ``hn``, ``cache`` and ``cache_out``), or else by order. ``given``
    pairs are only checked. ``fixed`` inputs always have one value, and are no states.

    Raises:
        OptionError: A given name is not an output or input, or the two do not fit.
    """
    inputs = {value.name: value for value in required_inputs(graph)}
    outputs = {value.name: value for value in graph.output}
    if given is not None:
        for output, name in dictionary("states", given).items():
            if output not in outputs or name not in {*inputs} - {*fixed}:
                raise OptionError(f"state {output}={name}: the model has no such output or no such input")
            if not _are_compatible(outputs[output], inputs[name]):
                raise OptionError(f"state {output}={name}: the two differ in type or shape")
            if [*given.values()].count(name) > 1:
                raise OptionError(f"state {output}={name}: another output feeds the same input")
        return dict(given)
    pairs: dict[str, str] = {}
    states = [name for name in inputs if "state" in facts.uses[name].roles]
    for name in states:
        matching = [o for o, other in outputs.items() if o not in pairs and _may_feed(other, inputs[name])]
        same_stem = [o for o in matching if state_stem(name) and state_stem(o) == state_stem(name)]
        if len(same_stem) == 1:
            pairs[same_stem[0]] = name
    left = [name for name in states if name not in pairs.values()]
    free = [
        o for o in outputs if o not in pairs and any(_may_feed(outputs[o], inputs[name]) for name in left)
    ]
    in_order = list(zip(free, left, strict=False))
    if len(left) == len(free) and all(_may_feed(outputs[o], inputs[name]) for o, name in in_order):
        pairs.update(in_order)
    return {output: name for output, name in pairs.items() if name not in fixed}


def _may_feed(output: onnx.ValueInfoProto, value: onnx.ValueInfoProto) -> bool:
    """Return whether the output may be the state of the input; values of rank 0 or 1 rarely are."""
    theirs, own = dims_of(output), dims_of(value)
    return theirs is not None and own is not None and len(own) > 1 and _are_compatible(output, value)


def _are_compatible(output: onnx.ValueInfoProto, value: onnx.ValueInfoProto) -> bool:
    if output.type.tensor_type.elem_type != value.type.tensor_type.elem_type:
        return False
    theirs, own = dims_of(output), dims_of(value)
    if theirs is None or own is None:
        return True
    return len(theirs) == len(own) and all(
        a == b or not (isinstance(a, int) and isinstance(b, int)) for a, b in zip(theirs, own, strict=True)
    )
