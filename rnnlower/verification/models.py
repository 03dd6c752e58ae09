"""The two models of a verification, parsed without external data, and the file or bytes to run."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import onnx
import onnx_ir as ir
from onnx import TensorProto, numpy_helper
from onnx.external_data_helper import uses_external_data

from rnnlower.arguments import model_path
from rnnlower.engines.opened_models import LARGE
from rnnlower.engines.session import Array
from rnnlower.errors import OptionError
from rnnlower.files.checks import check_proto, read_proto

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
