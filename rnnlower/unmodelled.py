"""What a model can hold and `onnx_ir` has no place for: training info, sparse initializers, annotations.

`take` removes it from a protobuf before `onnx_ir` reads it, `Unmodelled.attach` keeps it with the model, and
`restore` puts it back into what `onnx_ir` writes. A sparse initializer is a dense one in between, made when
somebody reads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np
import onnx
import onnx_ir as ir

from rnnlower.errors import UnsupportedModelError
from rnnlower.soundness import called

__all__ = ["Unmodelled", "find", "names_in_training", "restore", "take"]

_KEY = "rnnlower.unmodelled"


@dataclasses.dataclass
class Unmodelled:
    """What was taken out of a model.

    Attributes:
        training_info: How the model is trained.
        sparse: The sparse initializers by name.
        annotations: Quantization annotations of names that the main graph does not have.
        stand_ins: The dense tensors that stand for the sparse initializers.
    """

    training_info: list[onnx.TrainingInfoProto] = dataclasses.field(default_factory=list)
    sparse: dict[str, onnx.SparseTensorProto] = dataclasses.field(default_factory=dict)
    annotations: list[onnx.TensorAnnotation] = dataclasses.field(default_factory=list)
    stand_ins: dict[str, ir.TensorProtocol] = dataclasses.field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.training_info or self.sparse or self.annotations)

    def attach(self, model: ir.Model) -> None:
        """Keep this with the model that was made of the rest."""
        if not self:
            return
        model.meta[_KEY] = self
        for value in _initializers(model):
            sparse = self.sparse.get(str(value.name))
            if sparse is not None:
                value.const_value = self.stand_ins[str(value.name)] = _dense(sparse)


def find(model: ir.Model) -> Unmodelled | None:
    """What was taken out of the model, None if it was nothing."""
    found = model.meta.get(_KEY)
    return found if isinstance(found, Unmodelled) else None


def names_in_training(model: ir.Model) -> set[str]:
    """The values of the main graph that the model's training reads or sets, and which must therefore stay."""
    rest = find(model)
    names: set[str] = set()
    for training in () if rest is None else rest.training_info:
        names.update(binding.key for binding in (*training.initialization_binding, *training.update_binding))
        for graph in (training.initialization, training.algorithm):
            names.update(name for each in _graphs(graph) for node in each.node for name in node.input)
    return names


def take(proto: onnx.ModelProto) -> tuple[onnx.ModelProto, Unmodelled]:
    """What `onnx_ir` can read of a model, and the rest; the model itself is not changed.

    Raises:
        UnsupportedModelError: A Constant holds a sparse tensor.
    """
    graphs = list(_graphs(proto.graph))
    for graph in graphs:
        for node in graph.node:
            if any(attribute.HasField("sparse_tensor") for attribute in node.attribute):
                raise UnsupportedModelError(f"{called(node)} holds a sparse tensor; make it a dense one")
    known = _names(proto.graph)
    rest = Unmodelled(
        training_info=list(proto.training_info),
        sparse={each.values.name: each for graph in graphs for each in graph.sparse_initializer},
        annotations=[each for each in proto.graph.quantization_annotation if each.tensor_name not in known],
    )
    if rest.sparse:
        copy = onnx.ModelProto()
        copy.CopyFrom(proto)
        proto = copy
        for graph in _graphs(proto.graph):
            graph.initializer.extend(_placeholder(each) for each in graph.sparse_initializer)
            del graph.sparse_initializer[:]
    return proto, rest


def restore(model: ir.Model, proto: onnx.ModelProto) -> None:
    """Put back into `proto`, which `onnx_ir` wrote, what `onnx_ir` did not know of `model`."""
    rest = find(model)
    if rest is None:
        return
    proto.training_info.extend(rest.training_info)
    proto.graph.quantization_annotation.extend(rest.annotations)
    kept = {
        str(value.name)
        for value in _initializers(model)
        if value.const_value is not None and value.const_value is rest.stand_ins.get(str(value.name))
    }
    for graph in _graphs(proto.graph):
        dense = [tensor for tensor in graph.initializer if tensor.name in kept]
        for tensor in dense:
            graph.initializer.remove(tensor)
            graph.sparse_initializer.append(rest.sparse[tensor.name])


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)
            for each in attribute.graphs:
                yield from _graphs(each)


def _names(graph: onnx.GraphProto) -> set[str]:
    values = {value.name for value in (*graph.input, *graph.initializer, *graph.output)}
    sparse = {each.values.name for each in graph.sparse_initializer}
    return values | sparse | {name for node in graph.node for name in node.output}


def _initializers(model: ir.Model) -> Iterator[ir.Value]:
    for graph in (model.graph, *model.graph.subgraphs()):
        yield from graph.initializers.values()


def _placeholder(sparse: onnx.SparseTensorProto) -> onnx.TensorProto:
    # External data is not read until somebody asks, and nobody does before the stand-in takes its place.
    tensor = onnx.TensorProto(name=sparse.values.name, data_type=sparse.values.data_type, dims=sparse.dims)
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="sparse")
    return tensor


def _dense(sparse: onnx.SparseTensorProto) -> ir.TensorProtocol:
    name, shape = sparse.values.name, tuple(sparse.dims)
    dtype = ir.DataType(sparse.values.data_type)

    def make() -> ir.TensorProtocol:
        dense = np.zeros(shape, dtype.numpy())
        indices = onnx.numpy_helper.to_array(sparse.indices)
        where = (indices,) if indices.ndim == 1 else tuple(indices.T)
        flat = dense.reshape(-1)
        flat[where[0] if len(where) == 1 else np.ravel_multi_index(where, shape)] = (
            onnx.numpy_helper.to_array(sparse.values)
        )
        return ir.Tensor(dense, dtype=dtype, name=name)

    return ir.LazyTensor(make, dtype=dtype, shape=ir.Shape(shape), name=name)
