"""Checks of a protobuf before anything uses it: names are UTF-8, tensors have the data they claim.

The protobuf parser checks none of this, and later code would fail with messages that do not help a user.
Conformance to the ONNX spec is not checked here: many models in use break it and run.
"""

from __future__ import annotations

import math
import os
import pathlib
import stat
from collections.abc import Iterable, Iterator, Sequence

import onnx
import onnx.parser
import onnx.serialization
import onnx_ir as ir
from google.protobuf import json_format, text_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message
from onnx import AttributeProto, TensorProto

from rnnlower.errors import InvalidModelError, UnsupportedModelError
from rnnlower.files import scopes
from rnnlower.files.beyond_ir import check_sparse
from rnnlower.graph.walk import node_label

_Nodes = Sequence[onnx.NodeProto]

_SHORT = {"FLOAT": "f", "INT": "i", "STRING": "s", "TENSOR": "t", "GRAPH": "g", "TYPE_PROTO": "tp"}
_FIELDS = {
    kind: _SHORT.get(name, name.lower()) for name, kind in AttributeProto.AttributeType.items() if kind
}
_VALUE_FIELDS = frozenset(_FIELDS.values())
_NESTING_FIELDS = frozenset(["t", "g", "tensors", "graphs", "sparse_tensor", "sparse_tensors"])
_MAX_ELEMENTS = 2**40
_TEXT_ERRORS = (text_format.ParseError, json_format.ParseError, onnx.parser.ParseError)
# What files that are taken for ONNX often are: where their first bytes are found, and what to do.
_OTHER_FORMATS = (
    (0, b"version https://git-lfs", "a Git LFS pointer; fetch the file that it stands for (git lfs pull)"),
    (4, b"ORTM", "in ORT format; give the ONNX file that it was made from"),
    (4, b"TFL3", "a TFLite model; export the model to ONNX (tf2onnx reads TFLite, too)"),
    (0, b"\x89HDF", "an HDF5 file, such as Keras writes; export the model to ONNX"),
    (0, b"PK\x03\x04", "a zip archive, such as PyTorch and Keras write; export the model to ONNX"),
)


def read_proto(path: pathlib.Path, label: str) -> onnx.ModelProto:
    """Read a file and check its protobuf; its external data is checked for existence, but not read.

    Raises:
        InvalidModelError: The file cannot be read, is not ONNX, or is damaged.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "a device"
            # A pipe can be read once only, and the verification reads the model again.
            kind = "a pipe" if stat.S_ISFIFO(mode) else kind
            remedy = "; write its content to a file" if stat.S_ISFIFO(mode) else ""
            raise InvalidModelError(f"{label} cannot be read: it is {kind} and not a file{remedy}")
        model = onnx.load_model(path, load_external_data=False)
    except OSError as error:
        raise InvalidModelError(f"{label} cannot be read: {error.strerror or error}") from error
    except (DecodeError, ValueError, *_TEXT_ERRORS) as error:
        other = _other_format(path)
        reason = f"but {other}" if other else f"or is truncated: {error}"
        raise InvalidModelError(f"{label} is not an ONNX model, {reason}") from error
    check_proto(model, label)
    check_external_data(model, path.parent)
    return model


def _other_format(path: pathlib.Path) -> str | None:
    """Return what a file that is not ONNX is, and what to do."""
    with path.open("rb") as file:
        start = file.read(32)
    return next((text for at, magic, text in _OTHER_FORMATS if start[at:].startswith(magic)), None)


def check_proto(model: onnx.ModelProto, label: str) -> None:
    """Refuse a model whose protobuf contradicts itself.

    Raises:
        InvalidModelError: A name is not UTF-8, a tensor lacks the data that its shape needs, or an
            attribute has no value of its type.
        UnsupportedModelError: A value is a map.
    """
    if not model.HasField("graph"):
        raise InvalidModelError(f"{label} is not an ONNX model: it holds no graph")
    for each in (model, *model.functions):
        _check_imports(each.opset_import, label)
    try:
        _check_texts(model)
        _check_graph(model.graph, label)
        scopes.check_graph_scope(model.graph, label)
        for function in model.functions:
            where = f"{label}, function {_text(function.domain)}::{_text(function.name)}"
            _check_texts(function)
            _check_nodes(function.node, where)
            _check_attributes(function.attribute_proto, where)
            scopes.check_function_scope(function, where)
        scopes.check_calls(model, label)
        scopes.check_loops(model, label)
    except UnicodeDecodeError as error:
        raise InvalidModelError(f"{label} is not a valid ONNX model: a name in it is not UTF-8") from error


def _check_imports(imports: Iterable[onnx.OperatorSetIdProto], label: str) -> None:
    versions: dict[str, int] = {}
    for entry in imports:
        domain = entry.domain or "the default domain"
        if entry.version < 1:
            raise InvalidModelError(
                f"{label} imports version {entry.version} of {domain}; there is none below 1"
            )
        if versions.setdefault(entry.domain, entry.version) != entry.version:
            raise InvalidModelError(
                f"{label} imports versions {versions[entry.domain]} and {entry.version} of {domain}; "
                "keep the one that its nodes are written for"
            )


def _check_texts(message: Message) -> None:
    """Check the strings of a message, including the metadata."""
    for field, value in message.ListFields():
        if field.type == FieldDescriptor.TYPE_STRING:
            for text in [value] if isinstance(value, bytes | str) else value:
                _text(text)
        elif field.name in ("metadata_props", "opset_import", "quantization_annotation"):
            for entry in value:
                _check_texts(entry)


def _text(name: str | bytes) -> str:
    """Return the name; upb returns bytes for a string that is not UTF-8."""
    return name.decode() if isinstance(name, bytes) else name


def _check_graph(graph: onnx.GraphProto, where: str) -> None:
    _check_texts(graph)
    for value in (*graph.input, *graph.output, *graph.value_info):
        _check_texts(value)
        elem_type = value.type.tensor_type.elem_type
        if elem_type not in TensorProto.DataType.values():
            raise InvalidModelError(f"{where}: value {value.name!r} has no known element type ({elem_type})")
        if _holds_map(value.type):
            raise UnsupportedModelError(
                f"{where}: value {value.name!r} holds a map, which is not supported; convert classifiers of "
                "scikit-learn with the option zipmap=False, or remove the ZipMap node"
            )
        for dim in value.type.tensor_type.shape.dim:
            _text(dim.dim_param)
        elements = math.prod(max(dim.dim_value, 1) for dim in value.type.tensor_type.shape.dim)
        if elements > _MAX_ELEMENTS:
            raise InvalidModelError(
                f"{where}: value {value.name!r} has {elements:,} elements; nothing can hold it"
            )
    for tensor in graph.initializer:
        _check_texts(tensor)
        _check_tensor(tensor, f"{where}: initializer {_text(tensor.name)!r}")
    for sparse in graph.sparse_initializer:
        _check_sparse_tensor(sparse, f"{where}: sparse initializer {_text(sparse.values.name)!r}")
    _check_nodes(graph.node, where)


def _holds_map(type_: onnx.TypeProto) -> bool:
    """Return whether a type is a map, or a sequence of maps or an optional one."""
    kind = type_.WhichOneof("value")
    inner = kind in ("sequence_type", "optional_type")
    return _holds_map(getattr(type_, kind).elem_type) if inner else kind == "map_type"


def _check_nodes(nodes: _Nodes, where: str) -> None:
    for node in nodes:
        # There may be a hundred thousand of them: rare fields and faults are checked only if set.
        texts = (*node.input, *node.output, node.name, node.op_type, node.domain, node.doc_string)
        if bytes in map(type, texts) or node.metadata_props:
            _check_texts(node)
        misfit = scopes.misfit_of_every_version(node)
        if node.attribute or misfit:
            label = f"{where}: {node_label(node)}"
            _check_attributes(node.attribute, label)
            if misfit:
                raise InvalidModelError(f"{label}: {misfit}")


def _check_attributes(attributes: Sequence[AttributeProto], where: str) -> None:
    seen = set()
    for attribute in attributes:
        if bytes in map(type, (attribute.name, attribute.ref_attr_name, attribute.doc_string)):
            _check_texts(attribute)
        name = attribute.name
        if not name:
            raise InvalidModelError(f"{where}: an attribute has no name")
        if name in seen:
            raise InvalidModelError(f"{where}: attribute {name!r} is given twice")
        seen.add(name)
        if attribute.ref_attr_name:
            continue
        label = f"{where}: attribute {name!r}"
        given = [field.name for field, _ in attribute.ListFields() if field.name in _VALUE_FIELDS]
        _check_type(attribute, given, label)
        if _NESTING_FIELDS.isdisjoint(given):
            continue
        for tensor in _dense_tensors(attribute):
            _check_tensor(tensor, label)
        for sparse in _sparse_tensors(attribute):
            _check_sparse_tensor(sparse, label)
        for graph in (attribute.g, *attribute.graphs):
            _check_graph(graph, where)


def _check_type(attribute: AttributeProto, given: Sequence[str], label: str) -> None:
    field = _FIELDS.get(attribute.type)
    if field is None:
        raise InvalidModelError(f"{label} has no known type ({attribute.type})")
    others = [each for each in given if each != field]
    # A number 0 and an empty list may be left out.
    optional = attribute.type not in (AttributeProto.TENSOR, AttributeProto.GRAPH)
    if others or not (optional or field in given):
        problem = f"a value in {others[0]!r}" if others else "no value"
        kind = AttributeProto.AttributeType.Name(attribute.type)
        raise InvalidModelError(f"{label} has the type {kind}, but {problem}")


def _dense_tensors(attribute: AttributeProto) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors


def _sparse_tensors(attribute: AttributeProto) -> Iterator[onnx.SparseTensorProto]:
    if attribute.HasField("sparse_tensor"):
        yield attribute.sparse_tensor
    yield from attribute.sparse_tensors


def _check_tensor(tensor: TensorProto, label: str) -> None:
    if tensor.data_type == TensorProto.UNDEFINED or tensor.data_type not in TensorProto.DataType.values():
        raise InvalidModelError(f"{label} has no known element type ({tensor.data_type})")
    count = 1
    for size in tensor.dims:
        if size < 0:
            raise InvalidModelError(f"{label} has the size {size} in its shape {list(tensor.dims)}")
        count *= size
    if count > _MAX_ELEMENTS:
        raise InvalidModelError(f"{label} has the shape {list(tensor.dims)}, which nothing can hold")
    if tensor.data_location == TensorProto.EXTERNAL:
        return
    needed, given, unit = _expected(tensor, count)
    if needed != given:
        raise InvalidModelError(
            f"{label} has {given} {unit}, but its type and shape {list(tensor.dims)} need {needed}; "
            "the file is damaged or was written wrongly"
        )


def check_external_data(model: onnx.ModelProto, folder: pathlib.Path) -> None:
    """Refuse external data that is outside of the model's folder or incomplete, without reading it.

    Raises:
        InvalidModelError: A file is missing, too short, a link or outside of the folder.
    """
    for owner, tensor in stored_tensors(model):
        if tensor.data_location == TensorProto.EXTERNAL:
            _check_external_tensor(owner, tensor, folder.resolve())


def stored_tensors(model: onnx.ModelProto) -> Iterator[tuple[str, TensorProto]]:
    """Yield every stored tensor with the name that messages give its place."""
    of_functions = [function.node for function in model.functions]
    lists = (model.graph.node, *of_functions)
    graphs = [model.graph, *(graph for nodes in lists for graph in scopes.subgraphs(nodes))]
    for graph in graphs:
        sparse = [part for each in graph.sparse_initializer for part in (each.values, each.indices)]
        for tensor in (*graph.initializer, *sparse):
            yield f"initializer {tensor.name!r}", tensor
    for node in (node for nodes in (*(graph.node for graph in graphs), *of_functions) for node in nodes):
        for attribute in node.attribute:
            sparse = [part for each in _sparse_tensors(attribute) for part in (each.values, each.indices)]
            for tensor in (*_dense_tensors(attribute), *sparse):
                yield f"attribute {attribute.name!r} of {node.op_type} node {node.name!r}", tensor


def external_files(model: onnx.ModelProto) -> set[str]:
    """Return the files of external data, as the model names them."""
    entries = (entry for _, tensor in stored_tensors(model) for entry in tensor.external_data)
    return {entry.value for entry in entries if entry.key == "location"}


def _check_sparse_tensor(sparse: onnx.SparseTensorProto, label: str) -> None:
    for tensor in (sparse.values, sparse.indices):
        _check_tensor(tensor, label)
    check_sparse(sparse, label)


def _check_external_tensor(owner: str, tensor: TensorProto, root: pathlib.Path) -> None:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    location = entries.get("location", "")
    label = f"{owner}: its external data {location!r}"
    if not location or "\0" in location:
        raise InvalidModelError(f"{label} names no file")
    path = root / location
    if not path.resolve().is_relative_to(root):
        raise InvalidModelError(f"{label} lies outside of the model's folder; put a copy there")
    if path.resolve() != pathlib.Path(os.path.normpath(path)):
        raise InvalidModelError(f"{label} is a symbolic link; put a copy of the file in its place")
    if not path.is_file():
        raise InvalidModelError(f"{label} is missing; put the file next to the model")
    if path.stat().st_nlink > 1:
        # onnx and onnx_ir read no such file, as it may be one of another folder.
        raise InvalidModelError(f"{label} has several hard links; put a copy of the file in its place")
    numbers = [entries.get("offset", "0"), entries.get("length", "")]
    if not numbers[0].isdecimal() or not (numbers[1] or "0").isdecimal():
        raise InvalidModelError(
            f"{label} has the offset {numbers[0]!r} and length {numbers[1]!r}; both must be sizes"
        )
    if tensor.data_type == TensorProto.STRING:
        raise InvalidModelError(f"{label} cannot hold strings; store the tensor in the model")
    needed = -(-math.prod(tensor.dims) * _bits(tensor.data_type) // 8)
    length = int(numbers[1] or needed)
    if length != needed:
        raise InvalidModelError(f"{label} has {length} bytes, but the tensor has {needed}")
    if path.stat().st_size < int(numbers[0]) + length:
        raise InvalidModelError(f"{label} is too short: the file must be copied whole")


def _bits(data_type: int) -> int:
    return ir.DataType(data_type).bitwidth


def _expected(tensor: TensorProto, count: int) -> tuple[int, int, str]:
    """Return how much data the tensor needs, how much it has, and the unit."""
    if tensor.data_type == TensorProto.STRING:
        return count, len(tensor.string_data), "strings"
    if tensor.HasField("raw_data"):
        return -(-count * _bits(tensor.data_type) // 8), len(tensor.raw_data), "bytes"
    field = onnx.helper.tensor_dtype_to_field(tensor.data_type)
    given = len(getattr(tensor, field))
    if tensor.data_type in (TensorProto.COMPLEX64, TensorProto.COMPLEX128):
        return 2 * count, given, "numbers"
    # Floats of 6 bits are packed in `raw_data` alone.
    bits = _bits(tensor.data_type)
    return -(-count * bits // 8) if bits < 6 else count, given, "numbers"
