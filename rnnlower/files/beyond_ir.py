"""Parts of a model that `onnx_ir` cannot represent: training info, sparse initializers, annotations.

`split_off` removes it from a protobuf before `onnx_ir` reads it, `BeyondIr.attach` keeps it with the model,
and `restore` puts it back into the protobuf that `onnx_ir` writes. In between, a sparse initializer is a
dense one, made on first use.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from rnnlower.errors import InvalidModelError, UnsupportedModelError
from rnnlower.files.scopes import subgraphs
from rnnlower.graph.initializers import mark_trained
from rnnlower.graph.walk import all_graphs, node_label

_MAX_DENSE_BYTES = 2**31
"""The largest dense tensor that fits into a file: a protobuf message holds 2 GiB."""


def check_sparse(sparse: onnx.SparseTensorProto, label: str) -> None:
    """Refuse a sparse tensor whose parts do not fit together; both are known to be complete.

    The spec requires values of shape [NNZ] and int64 indices of shape [NNZ] (positions in the flattened
    tensor) or [NNZ, rank], in ascending order, without duplicates, each within `dims`.

    Raises:
        InvalidModelError: It breaks the spec.
        UnsupportedModelError: Its parts are external data or strings, or it is too large as a dense tensor.
    """
    values, indices = sparse.values, sparse.indices
    if TensorProto.EXTERNAL in (values.data_location, indices.data_location):
        raise UnsupportedModelError(f"{label} is external data; store sparse tensors in the model")
    if values.data_type == TensorProto.STRING:
        raise UnsupportedModelError(f"{label} holds strings; make it a dense tensor")
    shape, count = list(sparse.dims), list(values.dims)
    if not shape or min(shape) < 1:
        raise InvalidModelError(f"{label} has the shape {shape}; a sparse tensor has sizes of at least 1")
    size = math.prod(shape) * numpy_helper.to_array(values).itemsize
    if size > _MAX_DENSE_BYTES:
        raise UnsupportedModelError(
            f"{label} has {size:,} bytes as a dense tensor, which runtimes convert it to; the limit is 2 GiB"
        )
    if len(count) != 1:
        raise InvalidModelError(f"{label} has values of shape {count}; they must be one list")
    if indices.data_type != TensorProto.INT64 or list(indices.dims) not in (count, [*count, len(shape)]):
        kind = TensorProto.DataType.Name(indices.data_type)
        raise InvalidModelError(
            f"{label} has indices of type {kind} and shape {list(indices.dims)}; they must be INT64 of shape "
            f"{count} or {[*count, len(shape)]}"
        )
    _check_indices(numpy_helper.to_array(indices), shape, label)


def _check_indices(indices: NDArray[Any], shape: list[int], label: str) -> None:
    ends = np.array([math.prod(shape)] if indices.ndim == 1 else shape, dtype=object)
    rows = indices.reshape(len(indices), -1)
    outside = (rows < 0) | (rows >= ends)
    if outside.any():
        row = int(np.argwhere(outside)[0][0])
        raise InvalidModelError(
            f"{label} has the index {indices[row].tolist()}, outside of its shape {shape}"
        )
    pairs = zip(rows.tolist(), rows.tolist()[1:], strict=False)
    wrong = next((later for earlier, later in pairs if earlier >= later), None)
    if wrong is not None:
        raise InvalidModelError(
            f"{label} has the index {wrong if len(wrong) > 1 else wrong[0]} after one that is not below it; "
            "indices must ascend without duplicates"
        )


def dense_array(sparse: onnx.SparseTensorProto) -> NDArray[Any]:
    """Return the dense tensor; `sparse` has passed `check_sparse`."""
    values, indices = numpy_helper.to_array(sparse.values), numpy_helper.to_array(sparse.indices)
    dense = np.zeros(tuple(sparse.dims), values.dtype)
    where = indices if indices.ndim == 1 else np.ravel_multi_index(tuple(indices.T), dense.shape)
    dense.reshape(-1)[where] = values
    return dense


_KEY = "rnnlower.files.beyond_ir"


@dataclasses.dataclass
class _GraphParts:
    """The parts taken out of one graph; the annotations are those of names that it does not have."""

    sparse: list[onnx.SparseTensorProto]
    annotations: list[onnx.TensorAnnotation]


@dataclasses.dataclass
class BeyondIr:
    """The parts taken out of a model.

    Attributes:
        graphs: The parts taken out of each graph, in the order in which the graphs are walked.
    """

    training_info: list[onnx.TrainingInfoProto]
    graphs: list[_GraphParts]

    def __bool__(self) -> bool:
        return bool(self.training_info) or any(each.sparse or each.annotations for each in self.graphs)

    def attach(self, model: ir.Model) -> None:
        """Keep these parts with the model that was made from the rest."""
        if not self:
            return
        model.meta[_KEY] = self
        for graph, taken in zip(all_graphs(model), self.graphs, strict=True):
            for sparse in taken.sparse:
                # An unnamed initializer, which nothing can read, does not exist in the model.
                if sparse.values.name in graph.initializers:
                    graph.initializers[sparse.values.name].const_value = _SparseStandIn(sparse)
            if taken.annotations:
                graph.meta[_KEY] = taken.annotations
        for name in names_in_training(model):
            if name in model.graph.initializers:
                mark_trained(model.graph.initializers[name])


class _SparseStandIn(ir.LazyTensor):
    """A dense tensor that represents a sparse one."""

    def __init__(self, sparse: onnx.SparseTensorProto) -> None:
        dtype, shape = ir.DataType(sparse.values.data_type), ir.Shape(sparse.dims)
        name = sparse.values.name
        super().__init__(
            lambda: ir.Tensor(dense_array(sparse), dtype=dtype, name=name),
            dtype=dtype,
            shape=shape,
            name=name,
        )
        self.sparse = sparse


def find(model: ir.Model) -> BeyondIr | None:
    """Return the parts taken out of the model, or ``None`` if there are none."""
    found = model.meta.get(_KEY)
    return found if isinstance(found, BeyondIr) else None


def names_in_training(model: ir.Model) -> set[str]:
    """Return the values of the main graph that must stay because the model's training reads or sets them."""
    rest = find(model)
    names: set[str] = set()
    for training in () if rest is None else rest.training_info:
        names.update(binding.key for binding in (*training.initialization_binding, *training.update_binding))
        for main in (training.initialization, training.algorithm):
            graphs = (main, *subgraphs(main.node))
            names.update(name for graph in graphs for node in graph.node for name in node.input)
    return names


def split_off(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, BeyondIr]:
    """Split a model into a part that `onnx_ir` can read, and the rest. The model itself is not changed.

    Raises:
        UnsupportedModelError: A Constant holds a sparse tensor.
    """
    graphs = list(_all_graphs(proto))
    for nodes in (*(graph.node for graph in graphs), *(function.node for function in proto.functions)):
        for node in nodes:
            if any(each.HasField("sparse_tensor") or each.sparse_tensors for each in node.attribute):
                raise UnsupportedModelError(f"{node_label(node)} holds a sparse tensor; make it a dense one")
    taken = [_GraphParts(list(graph.sparse_initializer), _foreign_annotations(graph)) for graph in graphs]
    rest = BeyondIr(list(proto.training_info), taken)
    if any(each.sparse for each in taken):
        proto = copy.deepcopy(proto)
        for graph in _all_graphs(proto):
            graph.initializer.extend(_placeholder(each) for each in graph.sparse_initializer)
            del graph.sparse_initializer[:]
    return proto, rest


def restore(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Put the parts that `onnx_ir` could not represent back into `proto`, which it wrote."""
    rest = find(model)
    if rest is None:
        return
    proto.training_info.extend(rest.training_info)
    for graph, written in zip(all_graphs(model), _all_graphs(proto), strict=True):
        written.quantization_annotation.extend(graph.meta.get(_KEY, ()))
        for name, value in graph.initializers.items():
            if isinstance(value.const_value, _SparseStandIn):
                written.initializer.remove(next(each for each in written.initializer if each.name == name))
                sparse = written.sparse_initializer.add()
                sparse.CopyFrom(value.const_value.sparse)
                sparse.values.name = name


def _all_graphs(proto: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """Yield the graphs that `all_graphs` yields for the same model, in the same order."""
    yield proto.graph
    yield from subgraphs(proto.graph.node)
    # The last of several functions with the same name counts.
    functions = {(each.domain, each.name, each.overload): each for each in proto.functions}
    for function in functions.values():
        yield from subgraphs(function.node)


def _foreign_annotations(graph: onnx.GraphProto) -> list[onnx.TensorAnnotation]:
    if not graph.quantization_annotation:
        return []
    known = {value.name for value in (*graph.input, *graph.initializer, *graph.output)}
    known |= {each.values.name for each in graph.sparse_initializer}
    known |= {name for node in graph.node for name in node.output}
    return [each for each in graph.quantization_annotation if each.tensor_name not in known]


def _placeholder(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    # External data is not read until it is used, and nothing uses it before the stand-in takes its place.
    tensor = onnx.TensorProto(name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="sparse")
    return tensor
