"""Reading and writing of models.

A model comes as a path, an `onnx.ModelProto` or an `onnx_ir.Model`, and results are of the same kind.
External data is never read here: tensors refer to their file until their numbers are needed.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import os
import pathlib
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TypeAlias

import onnx
import onnx_ir as ir

from rnnlower import wording
from rnnlower.arguments import model_path
from rnnlower.errors import InvalidModelError, OptionError, UnsupportedModelError
from rnnlower.files import beyond_ir
from rnnlower.files.checks import check_external_data, check_proto, read_proto
from rnnlower.files.publishing import (
    check_destination,
    move_to_destination,
    staging_folder,
    staging_path_beside,
)
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.suppression import paused_gc, quiet_libraries
from rnnlower.graph.walk import all_graphs, display_name, root_graphs, subgraphs_of, walk, walk_all

ModelLike: TypeAlias = "str | os.PathLike[str] | onnx.ModelProto | ir.Model"

_STAYS_IN_MODEL = 256
"""Size in bytes up to which a tensor is not worth an entry in a data file."""
_PROTOBUF_LIMIT = 2_000_000_000
EXTERNAL_DATA_MODES = ("auto", "always", "never", "share")


def load_model(model: ModelLike) -> ir.Model:
    """Return a copy of a model that may be changed.

    Raises:
        InvalidModelError: The file cannot be read, is not ONNX, or is broken.
        OptionError: The argument is neither a model nor a path.
        UnsupportedModelError: A Constant holds a sparse tensor, or a function takes a graph as an argument.
    """
    if isinstance(model, ir.Model):
        return _own_copy(model)
    if isinstance(model, onnx.ModelProto):
        # The tensors of an ir.Model are views of the protobuf, and renaming a value renames its tensor.
        proto = copy.deepcopy(model)
        check_proto(proto, "the model")
        check_external_data(proto, pathlib.Path())
        return _from_proto(proto, "the model")
    return read_model(pathlib.Path(model_path(model)))


def read_model(path: pathlib.Path) -> ir.Model:
    """Read a file, without its external data.

    Raises:
        InvalidModelError: The file cannot be read, is not ONNX, is broken, or its external data is missing,
            too short or outside of the model's folder.
        UnsupportedModelError: A Constant holds a sparse tensor, or a function takes a graph as an argument.
    """
    model = _from_proto(read_proto(path, str(path)), str(path))
    for graph in model.graphs():
        ir.external_data.set_base_dir(graph, path.parent)
    _embed_attribute_data(model, path.parent)
    return model


def _own_copy(model: ir.Model) -> ir.Model:
    """Return a copy whose tensors can be renamed."""
    own = model.clone(deep_copy=True)
    _refuse_graphs_as_arguments(own, "the model")
    for value in _initializers(own):
        if value.const_value is not None:
            value.const_value = _copy_tensor(value.const_value)
    for node, attribute in list(_tensor_attributes(own)):
        node.attributes[attribute.name] = ir.AttrTensor(
            attribute.name, _copy_tensor(attribute.as_tensor()), attribute.doc_string
        )
    normalize_opset_imports(own, "the model")
    _correct_slices(own)
    _separate_names(own)
    _pack_bools(own)
    return own


def _copy_tensor(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    """Return a tensor of the same data with a name of its own."""
    if isinstance(tensor, ir.TensorProtoTensor):
        return ir.TensorProtoTensor(copy.deepcopy(tensor.raw))
    return copy.copy(tensor)


def _from_proto(proto: onnx.ModelProto, label: str) -> ir.Model:
    if not proto.HasField("graph") or not proto.ir_version:
        raise InvalidModelError(f"{label} is not an ONNX model: it has no graph or no ir_version")
    proto, rest = beyond_ir.split_off(proto)
    try:
        with quiet_libraries():
            model = ir.from_proto(proto)
    except (ir.serde.SerdeError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise InvalidModelError(f"{label} is not a valid ONNX model: {_root_cause(error)}") from error
    rest.attach(model)
    normalize_opset_imports(model, label)
    _refuse_graphs_as_arguments(model, label)
    _sort(model, label)
    _correct_initializer_shapes(model)
    _correct_slices(model)
    _separate_names(model)
    _pack_bools(model)
    return model


def _refuse_graphs_as_arguments(model: ir.Model, label: str) -> None:
    for function in model.functions.values():
        for node, _ in walk(function):
            for attribute in node.attributes.values():
                if attribute.is_ref() and attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
                    raise UnsupportedModelError(
                        f"{label}, function {function.name!r}: attribute {attribute.name!r} of "
                        f"{display_name(node)!r} is a graph that the function takes as an argument",
                        remedy="inline the function first (onnx.inliner.inline_local_functions)",
                    )


def _correct_initializer_shapes(model: ir.Model) -> None:
    """Give initializers the shapes of their tensors, whatever value_info says."""
    for value in _initializers(model):
        if value.const_value is not None and not value.is_graph_input():
            value.shape = ir.Shape(value.const_value.shape.numpy())


def _correct_slices(model: ir.Model) -> None:
    """Give constant bounds of Slices the axis that the spec requires, as onnxruntime does.

    PyTorch's dynamo exporter left it out before onnxscript 0.6.2.
    """
    scalars = [
        (node, place, value, tensor)
        for node, _ in walk_all(model)
        if node.op_type == "Slice" and not node.domain
        for place, value in enumerate(node.inputs)
        if place and value is not None
        if (tensor := constant_of(value)) is not None and not tensor.shape
    ]
    names = NameSource(all_names(model) if scalars else ())
    for node, place, value, tensor in scalars:
        vector = ir.Value(name=names.fresh(str(value.name)))
        content = {"value": ir.tensor(tensor.numpy().reshape(1))}
        node.prepend(ir.node("Constant", [], content, outputs=[vector]))
        node.replace_input_with(place, vector)


def normalize_opset_imports(model: ir.Model, label: str) -> None:
    """Give the default domain a version, under its short name."""
    importers: list[ir.Model | ir.Function] = [model, *model.functions.values()]
    for importer in importers:
        imports = importer.opset_imports
        version = imports.pop("ai.onnx", None)
        if version is not None and imports.setdefault("", version) != version:
            raise InvalidModelError(
                f"{label} imports versions {imports['']} and {version} of the default domain; "
                "remove one of the two opset imports"
            )
    model.opset_imports.setdefault("", 1)


def _root_cause(error: BaseException) -> BaseException:
    """Return the cause of an error, without the wrappers that only name what was being read."""
    while (below := error.__cause__ or error.__context__) is not None:
        error = below
    return error


def _sort(model: ir.Model, label: str) -> None:
    """Sort nodes so that each comes after those that it or its bodies read; sorted ones keep their order."""
    try:
        for graph in root_graphs(model):
            graph.sort()
    except ValueError as error:
        raise InvalidModelError(f"{label} is not a valid ONNX model: its graph has a cycle") from error


def _separate_names(model: ir.Model) -> None:
    """Rename the inputs and initializers of bodies that share their name with a value outside.

    A node in the body that came to read the one outside would read the wrong one.
    """
    if repeated := [value for graph in root_graphs(model) for value in _shadowing_values(graph, set())]:
        names = NameSource(all_names(model))
        for value in repeated:
            value.name = names.fresh(str(value.name))


def _shadowing_values(graph: ir.Graph, outer: set[str | None]) -> Iterator[ir.Value]:
    """Yield the inputs and initializers of bodies whose name a value outside of the body has, too."""
    made = (out for node in graph for out in node.outputs)
    around = outer | {value.name for value in (*graph.inputs, *graph.initializers.values(), *made)}
    for node in graph:
        for body in subgraphs_of(node):
            own = dict.fromkeys((*body.inputs, *body.initializers.values()))
            yield from (value for value in own if value.name in around)
            yield from _shadowing_values(body, around)


def _embed_attribute_data(model: ir.Model, folder: pathlib.Path) -> None:
    """Load the external data of attributes into memory: hardly any tool supports it there."""
    for node, attribute in list(_tensor_attributes(model)):
        tensor = attribute.as_tensor()
        if isinstance(tensor, ir.ExternalTensor):
            tensor.base_dir = folder
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, ir.Tensor(tensor.numpy().copy()))


def _pack_bools(model: ir.Model) -> None:
    """Store bools as bytes: OpenCV aborts at those in `int32_data`."""

    def is_loose(tensor: ir.TensorProtocol | None) -> bool:
        return isinstance(tensor, ir.TensorProtoTensor) and tensor.dtype == ir.DataType.BOOL

    for value in _initializers(model):
        if value.const_value is not None and is_loose(value.const_value):
            value.const_value = ir.Tensor(value.const_value.numpy(), name=value.name)
    for node, attribute in list(_tensor_attributes(model)):
        tensor = attribute.as_tensor()
        if is_loose(tensor):
            node.attributes[attribute.name] = ir.AttrTensor(attribute.name, ir.Tensor(tensor.numpy()))


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    """Return the initializers of all graphs, including those in functions."""
    return (value for graph in all_graphs(model) for value in graph.initializers.values())


def _tensor_attributes(model: ir.Model) -> Iterator[tuple[ir.Node, ir.Attr]]:
    """Yield the attributes that hold a tensor, in all graphs and functions."""
    for node, _ in walk_all(model):
        for attribute in node.attributes.values():
            if not attribute.is_ref() and attribute.type == ir.AttributeType.TENSOR:
                yield node, attribute


def to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return the model as a protobuf, with its external data if it fits, so that it can be saved anywhere."""
    if _size(model) < _PROTOBUF_LIMIT:
        _embed_external_data(_initializers(model))
    with _serializing(), paused_gc():
        proto = ir.to_proto(model)
    beyond_ir.restore(model, proto)
    return proto


@contextlib.contextmanager
def _serializing() -> Iterator[None]:
    """Convert errors of serialization: attributes are read late, so some faults show only then."""
    try:
        yield
    except ir.serde.SerdeError as error:
        raise InvalidModelError(f"the model cannot be written: {_root_cause(error)}") from error


def _embed_external_data(initializers: Iterable[ir.Value]) -> None:
    for value in initializers:
        if isinstance(value.const_value, ir.ExternalTensor):
            value.const_value = ir.Tensor(value.const_value.numpy(), name=value.name)


def _size(model: ir.Model) -> int:
    return sum(value.const_value.nbytes for value in _initializers(model) if value.const_value is not None)


def _external(model: ir.Model) -> list[ir.ExternalTensor]:
    tensors = (value.const_value for value in _initializers(model))
    return [tensor for tensor in tensors if isinstance(tensor, ir.ExternalTensor)]


@dataclasses.dataclass
class Stage:
    """A written model that has not been moved to its destination yet.

    Attributes:
        size: Its size in bytes, including its own data file.
        shared: The data files of the source that it refers to.
        accepted: Whether to move it to its destination when the block ends.
    """

    path: pathlib.Path
    size: int = 0
    shared: Collection[pathlib.Path] = ()
    accepted: bool = False


@contextlib.contextmanager
def stage_model(model: ir.Model, output: pathlib.Path, external_data: str = "auto") -> Iterator[Stage]:
    """Write the model next to its destination; move it there at the end of the block if it was accepted.

    Args:
        external_data: A data file ``always``, ``never``, or if the source has one or the model exceeds 2 GB
            (``auto``); ``share``: the source's.

    Raises:
        OptionError: The folder is not writable, the name implies another format, the model is too large for
            one file, or there is no data file that can be shared.
    """
    check_destination(output)
    written = onnx.serialization.registry.get_format_from_file_extension(output.suffix)
    if written not in (None, "protobuf"):
        raise OptionError(f"{output} would be {written}, which is not written; name it {output.stem}.onnx")
    writes_data = _plan_external_data(model, output, external_data)
    # Relative references to existing data are only valid in that folder.
    shared = data_files(model) if external_data == "share" else ()
    try:
        with staging_folder(output) as folder:
            stage = Stage(staging_path_beside(folder) if shared else folder / output.name, shared=shared)
            data = folder / f"{output.name}.data" if writes_data else None
            _save(model, stage.path, data.name if data else None)
            data = data if data and data.exists() else None
            stage.size = sum(file.stat().st_size for file in (stage.path, data) if file)
            yield stage
            if stage.accepted:
                move_to_destination(stage.path, data, output)
    except OSError as error:
        raise OptionError(f"{output} cannot be written: {error.strerror or error}") from error


def data_files(model: ir.Model) -> set[pathlib.Path]:
    """Return the files that hold external data of the model."""
    return {pathlib.Path(tensor.path) for tensor in _external(model)}


def size_on_disk(path: pathlib.Path, model: ir.Model) -> int:
    """Return the size in bytes of the model at this path, including its data files."""
    return path.stat().st_size + sum(file.stat().st_size for file in data_files(model))


def _save(model: ir.Model, path: pathlib.Path, data_file: str | None) -> None:
    if data_file is not None:
        # onnx_ir closes the file of a tensor that it moves into the model, even if others still use it.
        _embed_external_data(
            value
            for value in _initializers(model)
            if value.const_value is not None and value.const_value.nbytes <= _STAYS_IN_MODEL
        )
    with _serializing(), paused_gc():
        ir.save(model, path, external_data=data_file, size_threshold_bytes=_STAYS_IN_MODEL)
    if beyond_ir.find(model) is not None:
        proto = onnx.load_model(path, load_external_data=False)
        beyond_ir.restore(model, proto)
        onnx.save_model(proto, path)


def _plan_external_data(model: ir.Model, output: pathlib.Path, mode: str) -> bool:
    """Decide whether tensors go into a data file of the result; if not, embed them."""
    external = _external(model)
    too_large = _size(model) - sum(tensor.nbytes for tensor in external) > _PROTOBUF_LIMIT
    if mode == "never":
        if _size(model) > _PROTOBUF_LIMIT:
            raise OptionError(
                "the model is larger than 2 GB, which one file cannot hold",
                remedy=f"leave out {wording.option('external-data', 'never')}",
            )
        _embed_external_data(_initializers(model))
        return False
    if mode == "share":
        _check_sharing(external, output, too_large)
        return False
    return mode == "always" or too_large or bool(external)


def _check_sharing(external: Sequence[ir.ExternalTensor], output: pathlib.Path, too_large: bool) -> None:
    option = wording.option("external-data", "share")
    if not external:
        raise OptionError(
            "no tensor of the result is in a data file of the source", remedy=f"leave out {option}"
        )
    folders = {pathlib.Path(tensor.base_dir).resolve() for tensor in external}
    if folders != {output.parent.resolve()}:
        where = ", ".join(sorted(map(str, folders)))
        raise OptionError(
            f"{output} cannot share the source's data file: the result must be in {where}, too",
            remedy=f"write it there, or leave out {option}",
        )
    if too_large:
        raise OptionError(
            "the result has more than 2 GB of its own next to the data that it shares",
            remedy=f"leave out {option}",
        )
