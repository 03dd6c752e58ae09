"""Models lowered for single runtimes, in the form in which they take it."""

from __future__ import annotations

import collections

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.configs import Config
from support.runtimes import RUNTIMES

import rnnlower
from rnnlower.targets import find_target, reading
from rnnlower.targets.vocabulary import standard_operators


@pytest.mark.parametrize(
    ("fields", "absent"),
    [
        ({"x_dims": "time"}, "If"),
        ({"x_dims": "time", "direction": "bidirectional", "clip": 1.0}, "If"),
        ({"x_dims": "time", "opset": 9, "sequence_lens": "input"}, "NonZero"),
        ({"x_dims": "time", "hidden_size": 20, "direction": "reverse"}, "LSTM"),
        ({"x_dims": "batch", "op_type": "RNN", "clip": 1.0, "seq_length": 1}, "Scan"),
    ],
)
def test_tract_gets_open_sizes_as_it_takes_them(fields: dict[str, object], absent: str) -> None:
    """It refuses two Ifs in a model, a size from NonZero, a Slice from the end, and a Scan of one step."""
    model = rnnlower.lower(Config(**fields).build(), target="tract")  # type: ignore[arg-type]
    assert isinstance(model, onnx.ModelProto)
    assert absent not in {node.op_type for node in model.graph.node}


@pytest.mark.parametrize(
    ("initial_h", "initial_c", "kept"),
    [("input", "same", 0), ("input", "input", 1), ("constant", "same", 1), ("omitted", "omitted", 1)],
)
def test_tract_gets_a_separate_value_for_each_state(initial_h: str, initial_c: str, kept: int) -> None:
    """It fails on an LSTM with one value as both states, unless that is a constant."""
    config = Config(seq_length=50, hidden_size=20, initial_h=initial_h, initial_c=initial_c)
    model = rnnlower.lower(config.build(), target="tract", native="keep")
    assert isinstance(model, onnx.ModelProto)
    assert [node.op_type for node in model.graph.node].count("LSTM") == kept


@pytest.mark.parametrize("fields", [{"layout": 1}, {"hidden_size_given": False}])
def test_onnxruntime_gets_its_own_operator_adapted(fields: dict[str, object]) -> None:
    config = Config(seq_length=50, hidden_size=20, **fields)  # type: ignore[arg-type]
    model = rnnlower.lower(config.build(), target="onnxruntime")
    assert isinstance(model, onnx.ModelProto)
    (node,) = (node for node in model.graph.node if node.op_type == "LSTM")
    attributes = {attribute.name: attribute.i for attribute in node.attribute}
    assert attributes["hidden_size"] == 20
    assert not attributes.get("layout")


def test_opencv_gets_a_loop_as_it_takes_it() -> None:
    """Its iteration number has axes, and it ends too soon if the body reads the condition."""
    config = Config(op_type="GRU", seq_length=300, hidden_size=20, linear_before_reset=1)
    model = rnnlower.lower(config.build(), target="opencv", native="lower")
    assert isinstance(model, onnx.ModelProto)
    (loop,) = (node for node in model.graph.node if node.op_type == "Loop")
    body = loop.attribute[0].g
    read = {name: node.op_type for node in body.node for name in node.input}
    assert read[body.input[0].name] == "Squeeze"
    assert body.input[1].name not in read


def test_a_target_that_copies_constants_reads_them_through_an_identity() -> None:
    """onnx2torch makes a buffer for every use of an initializer."""
    config = Config(op_type="LSTM", seq_length=20, hidden_size=16, direction="bidirectional", x_dims="static")
    model = rnnlower.lower(config.build(), target="onnx2torch")
    assert isinstance(model, onnx.ModelProto)
    weights = {tensor.name for tensor in model.graph.initializer}
    products = [node for node in model.graph.node if node.op_type in ("Gemm", "MatMul")]
    read = collections.Counter(name for node in products for name in node.input if name in weights)
    assert len(products) > 20
    assert not [name for name, count in read.items() if count > 1]
    assert rnnlower.verify(config.build(), model)


@pytest.mark.parametrize("initial_h", ["omitted", "input"])
@pytest.mark.parametrize("place", ["main", "loop"])
def test_a_target_that_loses_axes_of_constants_gets_the_results_of_no_steps(
    place: str, initial_h: str
) -> None:
    """MNN drops axes of a Neg behind a Reshape of a constant, or behind a Where that takes nothing else."""
    config = Config(
        op_type="GRU",
        sequence_lens="initializer",
        initial_h=initial_h,
        x_dims="static",
        place=place,
        Y="consumed",
        Y_h="consumed",
    )
    model = config.build()
    (lengths,) = (tensor for tensor in model.graph.initializer if tensor.name.endswith("sequence_lens"))
    lengths.CopyFrom(numpy_helper.from_array(np.zeros(lengths.dims, np.int32), lengths.name))
    result = rnnlower.lower(model, target="mnn")
    assert isinstance(result, onnx.ModelProto)
    graphs = [result.graph, *(a.g for node in result.graph.node for a in node.attribute if a.HasField("g"))]
    made = {name: node.op_type for graph in graphs for node in graph.node for name in node.output}
    outputs = [made[output.name] for graph in graphs for output in graph.output]
    assert "Constant" in outputs
    assert not {*outputs} - {"Constant", "Identity", "Loop"}
    assert rnnlower.verify(model, result)


@pytest.mark.parametrize("place", ["main", "loop"])
def test_a_target_that_overwrites_outputs_gets_copies(place: str) -> None:
    """MNN computes a Neg in the memory of its input, even if that is an output of the graph or body."""
    config = Config(
        op_type="LSTM", x_dims="static", place=place, Y="consumed", Y_h="consumed", initial_h="constant"
    )
    model = config.build()
    if place == "main":
        # Y is an output, and another node reads it.
        name = next(node.output[0] for node in model.graph.node if node.op_type == "LSTM")
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None))
    result = rnnlower.lower(model, target="mnn", native="lower")
    assert isinstance(result, onnx.ModelProto)
    graphs = [result.graph, *(a.g for node in result.graph.node for a in node.attribute if a.HasField("g"))]
    made = {name: node.op_type for graph in graphs for node in graph.node for name in node.output}
    read = {name for graph in graphs for node in graph.node for name in node.input}
    outputs = [output.name for graph in graphs for output in graph.output]
    assert "Cast" in [made[name] for name in outputs]
    assert [made[name] for name in outputs if name in read] == []
    assert rnnlower.verify(model, result)


@pytest.mark.parametrize("behind", ["", "Relu", "Clip"])
@pytest.mark.parametrize("op_type", ["Conv", "ConvTranspose"])
def test_a_convolution_of_one_dimension_that_is_an_output_gets_a_copy(op_type: str, behind: str) -> None:
    """MNN gives it four axes, also behind an activation that it fuses with it."""

    def numbers(count: int) -> str:
        return ", ".join(f"{(index * 7 % 11) / 11 - 0.5:.3f}" for index in range(count))

    last = f"C = {op_type} (H, k) Z = {behind} (C)" if behind else f"Z = {op_type} (H, k)"
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[5, 1, 3] X) => (float[n, c, t] Z)
        <float[1, 8, 3] W = {{{numbers(24)}}}, float[1, 8, 2] R = {{{numbers(16)}}},
         float[2, 2, 1] k = {{{numbers(4)}}}, int64[3] shape = {{1, 2, 5}}> {{
            Y = LSTM <hidden_size = 2> (X, W, R)
            H = Reshape (Y, shape)
            {last}
        }}
    """)
    result = rnnlower.lower(model, target="mnn")
    assert isinstance(result, onnx.ModelProto)
    assert [result.graph.node[-1].op_type, *result.graph.node[-1].output] == ["Cast", "Z"]
    assert rnnlower.verify(model, result)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
def test_emx_gets_no_parameters_of_activations(op_type: str) -> None:
    """It wants one for each activation, even for those that take none."""
    functions = ("HardSigmoid", "Tanh", "Tanh")[: 3 if op_type == "LSTM" else 2]
    own = Config(op_type=op_type, x_dims="static", activations=functions, activation_alpha=(0.2,))
    result = rnnlower.lower(own.build(), target="emx", native="keep")
    assert isinstance(result, onnx.ModelProto)
    assert op_type not in [node.op_type for node in result.graph.node]
    assert rnnlower.verify(own.build(), result)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_emx_gets_no_lengths(op_type: str) -> None:
    """It gives a row without steps its initial state, which onnxruntime sets to 0."""
    own = Config(op_type=op_type, x_dims="static", sequence_lens="input", initial_h="input")
    (reason, *_) = [each.reason for each in rnnlower.check(own.build(), target="emx")]
    assert "input sequence_lens" in reason
    result = rnnlower.lower(own.build(), target="emx")
    assert isinstance(result, onnx.ModelProto)
    assert op_type not in [node.op_type for node in result.graph.node]
    assert rnnlower.verify(own.build(), result)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_a_target_that_is_less_exact_behind_a_sum_gets_a_max_between(op_type: str) -> None:
    """QNN fuses an Add with the Sigmoid or Tanh behind it, and that kernel is off by up to 7e-3."""
    config = Config(op_type=op_type, x_dims="static", seq_length=5, direction="bidirectional")
    model = rnnlower.lower(config.build(), target="ort-qnn", native="lower")
    assert isinstance(model, onnx.ModelProto)
    made = {name: node.op_type for node in model.graph.node for name in node.output}
    activations = [node for node in model.graph.node if node.op_type in ("Sigmoid", "Tanh")]
    behind = collections.Counter(made.get(node.input[0]) for node in activations)
    assert behind["Max"]
    assert not behind["Add"]
    assert rnnlower.verify(config.build(), model)


def test_a_built_in_target_leaves_out_what_the_installed_onnx_does_not_know(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "Elu" in find_target("onnxruntime").op_types
    monkeypatch.setattr(reading, "standard_operators", lambda: standard_operators() - {"Elu"})
    target = reading._built_in.__wrapped__("onnxruntime")
    assert "Elu" not in target.op_types
    assert not [limit for limit in target.limits if "Elu" in limit.ops]
    assert "com.microsoft.DynamicQuantizeLSTM" in (target.ops.allowed or ())


@pytest.mark.parametrize(("rows", "kept"), [("2", 0), ("N", 0), ("1", 2)])
@pytest.mark.parametrize(
    "second", ["Identity (x)", "Add (x, zero)", "Concat <axis = 0> (x)", "Slice (x, first, last)"]
)
def test_openvino_keeps_nodes_that_read_an_x_alone(rows: str, kept: int, second: str) -> None:
    """It gets all but the last node that reads an X of several rows wrong."""
    source = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[T, {rows}, 3] x) => (float[T, D, {rows}, 4] y, float[T, D, {rows}, 4] z)
        <float zero = {{0}}, int64[1] first = {{0}}, int64[1] last = {{2147483647}}> {{
            same = {second}
            y = GRU <hidden_size = 4> (x, W, R)
            z = GRU <hidden_size = 4, direction = "reverse"> (same, W, R)
        }}
    """)
    rng = np.random.default_rng(0)
    for name, size in (("W", 3), ("R", 4)):
        array = rng.normal(size=(1, 12, size)).astype(np.float32)
        source.graph.initializer.append(numpy_helper.from_array(array, name))
    lowered = rnnlower.lower(source, target="openvino", native="keep")
    assert collections.Counter(node.op_type for node in lowered.graph.node)["GRU"] == kept
    assert rnnlower.verify(source, lowered)
    engine = RUNTIMES["openvino"].engine
    assert engine.missing or rnnlower.verify(source, lowered, on="openvino")


def test_tract_gets_an_equation_without_an_ellipsis_and_a_scalar_axis() -> None:
    source = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 5, 3, 4] x, float[3, 6, 4] w) => (float[2, 5, 3, 6] y) <int64[1] axis = {1}>
        { z = CumSum (x, axis) y = Einsum <equation = "...hd,hod->...ho"> (z, w) }""")
    assert len(rnnlower.check(source, target="tract")) == 2
    model = rnnlower.lower(source, target="tract")
    assert isinstance(model, onnx.ModelProto)
    assert rnnlower.check(model, target="tract") == []
    (einsum,) = [node for node in model.graph.node if node.op_type == "Einsum"]
    assert b"." not in einsum.attribute[0].s
    assert rnnlower.verify(source, model)


@pytest.mark.parametrize(("axis", "fits"), [("<axis = -1>", True), ("", False)])
def test_mnn_takes_one_hot_with_its_axis_written(axis: str, fits: bool) -> None:
    """It puts the classes on the first axis by default; decoders that read what they chose write the axis."""
    text = (
        '<ir_version: 8, opset_import: ["" : 14]> g (float[2, 4] x) => (float[2, 4] y)'
        + f"""{{
        best = ArgMax <axis = 1, keepdims = 0> (x)
        depth = Constant <value_int = 4> ()
        values = Constant <value_floats = [0.0, 1.0]> ()
        y = OneHot {axis} (best, depth, values)
    }}"""
    )
    model = onnx.parser.parse_model(text)
    assert (rnnlower.check(model, target="mnn") == []) == fits
    assert not fits or RUNTIMES["mnn"].engine.missing or rnnlower.verify(model, model, on="mnn")
