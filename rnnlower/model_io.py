"""Reading and writing models.

A model comes as a path, an `onnx.ModelProto` or an `onnx_ir.Model`, and results are of the same kind.
External data is never read here: tensors refer to their file until somebody needs their numbers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import tempfile
from collections.abc import Iterator
from typing import TypeAlias

import onnx
import onnx_ir as ir

from rnnlower.errors import InvalidModelError, OptionError
from rnnlower.soundness import check_proto, read_proto

__all__ = ["EXTERNAL_DATA_MODES", "ModelLike", "Stage", "load_model", "read_model", "staged", "to_proto"]

ModelLike: TypeAlias = "str | os.PathLike[str] | onnx.ModelProto | ir.Model"

_PROTOBUF_LIMIT = 2_000_000_000
EXTERNAL_DATA_MODES = ("auto", "always", "never")


def load_model(model: ModelLike) -> ir.Model:
    """A model of one's own to change: the argument stays as it is.

    Raises:
        InvalidModelError: The file cannot be read, is not ONNX, or is broken.
    """
    if isinstance(model, ir.Model):
        return model.clone(deep_copy=True)
    if isinstance(model, onnx.ModelProto):
        check_proto(model, "the model")
        return _from_proto(model, "the model")
    return read_model(pathlib.Path(model))


def read_model(path: pathlib.Path) -> ir.Model:
    """Reads a file, without its external data.

    Raises:
        InvalidModelError: The file cannot be read, is not ONNX, is broken, or its external data is missing,
            too short or outside of the model's folder.
    """
    model = _from_proto(read_proto(path, str(path)), str(path))
    for graph in model.graphs():
        ir.external_data.set_base_dir(graph, path.parent)
    return model


def _from_proto(proto: onnx.ModelProto, label: str) -> ir.Model:
    if not proto.HasField("graph") or not proto.ir_version:
        raise InvalidModelError(f"{label} is not an ONNX model: it has no graph or no ir_version")
    try:
        model = ir.from_proto(proto)
    except (ir.serde.SerdeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidModelError(f"{label} is not a valid ONNX model: {_root(error)}") from error
    if "" not in model.opset_imports:
        model.opset_imports[""] = 1
    _check_names(model, label)
    return model


def _root(error: BaseException) -> BaseException:
    """The error that started it; onnx_ir wraps it once for every message around it."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _check_names(model: ir.Model, label: str) -> None:
    """Every value that is read must exist, once; nodes that come before what they read are put in order."""
    try:
        graphs: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
        for graph in graphs:
            if not _is_sorted(graph):
                graph.sort()
    except ValueError as error:
        raise InvalidModelError(f"{label} is not a valid ONNX model: its graph has a cycle") from error
    _check_scope(model.graph, set(), label)
    for function in model.functions.values():
        _check_scope(function, set(), f"{label}, function {function.domain}::{function.name}")


def _is_sorted(graph: ir.Graph | ir.Function) -> bool:
    seen: set[ir.Node] = set()
    for node in graph:
        producers = (value.producer() for value in node.inputs if value is not None)
        if any(
            producer is not None and producer.graph is node.graph and producer not in seen
            for producer in producers
        ):
            return False
        seen.add(node)
    return all(_is_sorted(subgraph) for node in graph for subgraph in _subgraphs(node))


def _subgraphs(node: ir.Node) -> Iterator[ir.Graph]:
    for attribute in node.attributes.values():
        if attribute.is_ref():
            continue
        if attribute.type == ir.AttributeType.GRAPH:
            yield attribute.as_graph()
        elif attribute.type == ir.AttributeType.GRAPHS:
            yield from attribute.as_graphs()


def _check_scope(graph: ir.Graph | ir.Function, outer: set[ir.Value], label: str) -> None:
    visible = outer | set(graph.inputs)
    if isinstance(graph, ir.Graph):
        visible |= set(graph.initializers.values())
    names = {value.name for value in visible - outer}
    for node in graph:
        where = f"{label}: {node.op_type} node {node.name or '(unnamed)'!r}"
        for value in node.inputs:
            if value is not None and value not in visible:
                raise InvalidModelError(f"{where} reads {value.name!r}, which nothing produces")
        for subgraph in _subgraphs(node):
            _check_scope(subgraph, visible, label)
        for out in node.outputs:
            if out.name and out.name in names:
                raise InvalidModelError(f"{where} produces {out.name!r}, which exists already")
            names.add(out.name)
            visible.add(out)
    for out in graph.outputs:
        if out not in visible:
            raise InvalidModelError(f"{label}: nothing produces the output {out.name!r}")


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """The model as a protobuf; external data that fits is brought along, so that it can be saved anywhere."""
    if _size(model) < _PROTOBUF_LIMIT:
        _embed_external_data(model)
    return ir.to_proto(model)


def _embed_external_data(model: ir.Model) -> None:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = ir.Tensor(value.const_value.numpy(), name=value.name)


def _size(model: ir.Model) -> int:
    return sum(tensor.nbytes for tensor in _tensors(model))


def _tensors(model: ir.Model) -> Iterator[ir.TensorProtocol]:
    for graph in model.graphs():
        for value in graph.initializers.values():
            if value.const_value is not None:
                yield value.const_value


@dataclasses.dataclass
class Stage:
    """A written model that has not reached its destination yet.

    Attributes:
        path: The file to look at.
        accepted: Whether it is to be moved to its destination.
    """

    path: pathlib.Path
    accepted: bool = False

    def accept(self) -> None:
        """Lets the model move to its destination when the block ends."""
        self.accepted = True


@contextlib.contextmanager
def staged(model: ir.Model, output: pathlib.Path, external_data: str = "auto") -> Iterator[Stage]:
    """Writes the model beside its destination; moves it there at the end of the block if accepted.

    Args:
        model: The model.
        output: Where it is to go.
        external_data: ``auto`` (as the source, and above 2 GB), ``always`` or ``never``.

    Raises:
        OptionError: The folder cannot be written, or the model is too large for one file.
    """
    data_file = f"{output.name}.data"
    writes_data = _plan_external_data(model, output, external_data)
    # References to data that stays where it is hold only in that folder.
    keeps_data = not writes_data and any(isinstance(tensor, ir.ExternalTensor) for tensor in _tensors(model))
    try:
        with tempfile.TemporaryDirectory(prefix=f".{output.name}.", dir=output.parent) as name:
            folder = pathlib.Path(name)
            stage = Stage(output.parent / f"{folder.name}.onnx" if keeps_data else folder / output.name)
            try:
                ir.save(model, stage.path, external_data=data_file if writes_data else None)
                yield stage
                if stage.accepted:
                    if writes_data:
                        os.replace(folder / data_file, output.parent / data_file)
                    os.replace(stage.path, output)
            finally:
                stage.path.unlink(missing_ok=True)
    except ir.serde.SerdeError as error:
        raise InvalidModelError(f"the model cannot be written: {_root(error)}") from error
    except OSError as error:
        raise OptionError(f"{output} cannot be written: {error.strerror or error}") from error


def _plan_external_data(model: ir.Model, output: pathlib.Path, mode: str) -> bool:
    """Whether tensors go into a data file of the result's own; embeds them where there is to be none."""
    external = [tensor for tensor in _tensors(model) if isinstance(tensor, ir.ExternalTensor)]
    too_large = _size(model) - sum(tensor.nbytes for tensor in external) > _PROTOBUF_LIMIT
    if mode == "never":
        if _size(model) > _PROTOBUF_LIMIT:
            raise OptionError(
                "the model is larger than 2 GB, which one file cannot hold; leave out --external-data never"
            )
        _embed_external_data(model)
        return False
    if mode == "always" or too_large:
        return True
    here = output.parent.resolve()
    return any(pathlib.Path(tensor.base_dir).resolve() != here for tensor in external)
