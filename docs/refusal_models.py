"""Models that are refused: a valid one, and changes that invalidate it."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, SparseTensorProto, TensorProto, helper, numpy_helper

Change = Callable[[onnx.ModelProto], object]
node = helper.make_node


def cell(op_type: str = "LSTM", opset: int = 17) -> onnx.ModelProto:
    """Return one recurrent node called `cell`, over a dynamic length."""
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    shapes = {"W": (1, 2 * gates, 3), "R": (1, 2 * gates, 2), "B": (1, 4 * gates)}
    weights = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in shapes.items()]
    recurrent = node(op_type, ["X", *shapes], ["Y", "Y_h"], name="cell", hidden_size=2)
    X = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["T", 1, 3])
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank)
        for name, rank in (("Y", 4), ("Y_h", 3))
    ]
    graph = helper.make_graph([recurrent], "graph", [X], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


class Case(NamedTuple):
    """One refusal.

    Attributes:
        title: What is wrong.
        command: The command's words, or an expression in Python.
        change: What makes `model.onnx` of the model.
        model: The model, which is `other.onnx`; or the bytes of `model.onnx`; or None: no file.
        target: What `own.toml` holds.
        without: A package that is not installed.
        environment: Environment variables that are set.
    """

    title: str
    command: str
    change: Change | None = None
    model: onnx.ModelProto | bytes | None = cell()
    target: str = ""
    without: str = ""
    environment: tuple[tuple[str, str], ...] = ()


def text(opset: int, inputs: str, nodes: str, functions: str = "") -> onnx.ModelProto:
    """Return a model in onnx's textual syntax, whose output is Y."""
    return onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": {opset}, "own": 1]> '
        f"graph ({inputs}) => (float[] Y) {{ {nodes} }} {functions}"
    )


def function_of(rest: str, opset: int) -> str:
    """Return a function `own::F`, in onnx's textual syntax."""
    return f'<domain: "own", opset_import: ["": {opset}]> F {rest}'


def branches() -> onnx.ModelProto:
    """Return a branch in which an RNN has an X of the wrong rank."""
    model = text(
        17,
        "float[5, 2, 3] X, float[1, 2, 3] W, float[1, 2, 2] R, bool c",
        """
            Y = If (c) <
                then_branch = first () => (float a) { a = RNN <hidden_size = 2> (X, W, R) },
                else_branch = second () => (float b) {
                    flat = Flatten (X)
                    b = RNN <hidden_size = 2> (flat, W, R)
                }
            >
        """,
    )
    model.graph.node[0].attribute[1].g.node[1].name = "cell"
    return model


def untyped() -> onnx.ModelProto:
    """Return a model in whose branch an output of unknown type has another reader."""
    model = text(
        17,
        "float[5, 2, 3] X, float[1, 2, 3] W, float[1, 2, 2] R, bool c",
        """
            Z, Y = If (c) <
                then_branch = first () => (float a, float b) {
                    h = RNN <hidden_size = 2> (X, W, R)
                    a = own.Op (h)
                    b = Neg (a)
                },
                else_branch = second () => (float p, float q) { p = Neg (X) q = Abs (p) }
            >
        """,
    )
    model.graph.node[0].attribute[0].g.output[0].ClearField("type")
    return model


def outer_output(model: onnx.ModelProto) -> None:
    """Write a model in which a branch returns an input of the model."""
    model.graph.node[0].attribute[0].g.output[0].name = "X"


def valueless(model: onnx.ModelProto) -> None:
    """Write a Constant whose tensor is in an attribute that the operator does not have."""
    (weight,) = (each for each in model.graph.initializer if each.name == "W")
    model.graph.node.insert(0, node("Constant", [], ["W"], worth=weight))
    model.graph.initializer.remove(weight)


def inner_weight(model: onnx.ModelProto) -> None:
    """Write a model in which an initializer of a branch has the name of a model input."""
    model.graph.node[0].attribute[0].g.initializer.add(
        name="R", data_type=TensorProto.FLOAT, float_data=[1.0]
    )


def then(*changes: Change) -> Change:
    """Return one change after the other."""

    def change(model: onnx.ModelProto) -> None:
        for each in changes:
            each(model)

    return change


def set_attribute(name: str, value: object, kind: int | None = None) -> Change:
    return then(
        drop(name),
        lambda model: model.graph.node[0].attribute.append(
            helper.make_attribute(name, value, attr_type=kind)
        ),
    )


def drop(name: str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        attributes = model.graph.node[0].attribute
        kept = [each for each in attributes if each.name != name]
        del attributes[:]
        attributes.extend(kept)

    return change


def rename_input(position: int, name: str) -> Change:
    return lambda model: model.graph.node[0].input.__setitem__(position, name)


def more_inputs(*names: str) -> Change:
    return lambda model: model.graph.node[0].input.extend(names)


def x(elem_type: int, *shape: int | str | None) -> Change:
    """Return another type and shape of the input X."""
    new = helper.make_tensor_value_info("X", elem_type, shape)
    return lambda model: model.graph.input[0].CopyFrom(new)


def lens(elem_type: int, *rows: int) -> Change:
    """Return sequence_lens, an input of the model; with `rows`, a constant."""

    def change(model: onnx.ModelProto) -> None:
        if rows:
            model.graph.initializer.append(helper.make_tensor("lens", elem_type, [len(rows)], rows))
        else:
            model.graph.input.append(helper.make_tensor_value_info("lens", elem_type, [1]))
        model.graph.node[0].input.append("lens")

    return change


def insert(*nodes: NodeProto, position: int = 0) -> Change:
    """Return more nodes, before the recurrent one."""

    def change(model: onnx.ModelProto) -> None:
        kept = [*model.graph.node]
        del model.graph.node[:]
        model.graph.node.extend([*kept[:position], *nodes, *kept[position:]])

    return change


def opset(domain: str, version: int) -> Change:
    """Return one more opset import."""
    return lambda model: model.opset_import.append(helper.make_opsetid(domain, version))


def function(name: str, nodes: list[NodeProto], inputs: str = "x", **opsets: int) -> Change:
    """Return a function of the domain `own`, of one output; nothing calls it yet."""
    imports = [helper.make_opsetid(domain, version) for domain, version in (opsets or {"own": 1}).items()]
    made = helper.make_function("own", name, inputs.split(), ["y"], nodes, imports)
    return lambda model: model.functions.append(made)


def call(inputs: str = "x w r", given: str = "X W R", **opsets: int) -> Change:
    """Return the recurrent node in a function `own::Cell`, which the graph calls."""
    imports = [helper.make_opsetid("", 17)]
    imports += [helper.make_opsetid(domain, version) for domain, version in opsets.items()]

    def change(model: onnx.ModelProto) -> None:
        inner = node("LSTM", ["x", "w", "r"], ["y", "h"], name="cell", hidden_size=2)
        made = helper.make_function("own", "Cell", inputs.split(), ["y", "h"], [inner], imports)
        model.functions.append(made)
        model.opset_import.append(helper.make_opsetid("own", 1))
        model.graph.node[0].CopyFrom(node("Cell", given.split(), ["Y", "Y_h"], domain="own"))

    return change


def tensor(change: Callable[[TensorProto], object]) -> Change:
    """Return something else about W."""
    return lambda model: change(model.graph.initializer[0])


def external(location: str, **entries: int) -> Change:
    """Return W in another file."""

    def change(weight: TensorProto) -> None:
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location)
        for key, value in entries.items():
            weight.external_data.add(key=key, value=str(value))

    return tensor(change)


def no_shapes(model: onnx.ModelProto) -> None:
    """Write a model without shapes of inputs and outputs."""
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.ClearField("shape")


def double(*names: str) -> Change:
    """Return initializers, inputs and outputs as float64."""

    def change(model: onnx.ModelProto) -> None:
        for each in model.graph.initializer:
            if each.name in names:
                array = numpy_helper.to_array(each).astype(np.float64)
                each.CopyFrom(numpy_helper.from_array(array, each.name))
        for value in (*model.graph.input, *model.graph.output):
            if value.name in names:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE

    return change


def large(location: str, elements: int) -> Change:
    """Return one more initializer, of bytes in another file."""
    made = TensorProto(name="large", data_type=TensorProto.UINT8, dims=[elements])
    made.data_location = TensorProto.EXTERNAL
    made.external_data.add(key="location", value=location)
    return lambda model: model.graph.initializer.append(made)


def computed(*positions: int, inputs: str = "X") -> Change:
    """Return inputs of the recurrent node that an operator makes of which nothing is known."""

    def change(model: onnx.ModelProto) -> None:
        names = [f"unknown_{position}" for position in positions]
        for position, name in zip(positions, names, strict=True):
            model.graph.node[0].input[position] = name
        insert(node("Mystery", inputs.split(), names, domain="own"))(model)
        model.opset_import.append(helper.make_opsetid("own", 1))

    return change


def declare(name: str, *shape: int | str | None) -> Change:
    """Return the description of a value within the graph."""
    made = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
    return lambda model: model.graph.value_info.append(made)


def some_steps(model: onnx.ModelProto) -> None:
    """Write a model whose number of steps is another input."""
    model.graph.input.append(helper.make_tensor_value_info("n", TensorProto.INT64, [1]))
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.int64), "first"))
    model.graph.node[0].input[0] = "some"
    insert(node("Slice", ["X", "first", "n", "first"], ["some"]))(model)


def reshaped(*shape: int) -> Change:
    """Return W behind a Reshape."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.initializer.append(numpy_helper.from_array(np.array(shape), "shape"))
        model.graph.node[0].input[1] = "reshaped"
        insert(node("Reshape", ["W", "shape"], ["reshaped"]))(model)

    return change


def sparse(model: onnx.ModelProto) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "values")
    made = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1])), [3])
    model.graph.node.append(node("Constant", [], ["sparse"], sparse_value=made))


def sparse_initializer(change: Callable[[SparseTensorProto], object]) -> Change:
    """Return a sparse initializer of 3 rows of 4 with two values, of which something is else."""

    def add(model: onnx.ModelProto) -> None:
        values = numpy_helper.from_array(np.ones(2, np.float32), "rare")
        made = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1, 5])), [3, 4])
        change(made)
        model.graph.sparse_initializer.append(made)

    return add


def at(*indices: int) -> Callable[[SparseTensorProto], object]:
    """Return these indices in the place of the right ones."""
    return lambda s: s.indices.CopyFrom(numpy_helper.from_array(np.array(indices)))


def attribute(change: Callable[[AttributeProto], object]) -> Change:
    """Return something else about hidden_size."""
    return lambda model: change(model.graph.node[0].attribute[0])


def reference(name: str, parameter: str) -> Change:
    """Return an attribute that refers to a function's parameter."""
    attribute = AttributeProto(name=name, ref_attr_name=parameter, type=AttributeProto.FLOAT)
    return lambda model: model.graph.node[0].attribute.append(attribute)


def training(*nodes: NodeProto) -> Change:
    """Return the training info of a model."""
    return lambda model: model.training_info.add().algorithm.node.extend(nodes)


def sequence_input(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_sequence_value_info("S", TensorProto.FLOAT, None))
    model.graph.node.append(node("SequenceLength", ["S"], ["length"]))


def rename_output(model: onnx.ModelProto) -> None:
    model.graph.node[0].output[1] = model.graph.output[1].name = "final"


def cell_state(model: onnx.ModelProto) -> None:
    """Write a model with the output Y_c."""
    model.graph.node[0].output.append("Y_c")
    model.graph.output.add(name="Y_c").type.CopyFrom(model.graph.output[1].type)


def overridable(model: onnx.ModelProto) -> None:
    """Write a model whose W is an input, too."""
    shape = model.graph.initializer[0].dims
    model.graph.input.append(helper.make_tensor_value_info("W", TensorProto.FLOAT, shape))


STATIC = x(TensorProto.FLOAT, 2, 1, 3)
