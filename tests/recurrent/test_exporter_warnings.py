"""Warnings of `inspect` and of every lowering: exporters' faults, unknown recurrent operators."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from support.cli_helpers import rnnlower
from support.quantized_models import QuantizedLstm

import rnnlower as rnnlower_package

GATES = {"LSTM": 4, "GRU": 3}


def model(
    op_type: str = "GRU",
    producer: str = "pytorch",
    state: np.ndarray | None = None,
    lengths: np.ndarray | None = None,
    bias: np.ndarray | None = None,
    behind: Sequence[onnx.NodeProto] = (),
    **attributes: object,
) -> onnx.ModelProto:
    """A recurrent node; the nodes `behind` read its output ``y`` and make the output Y of the model."""
    D = 2 if attributes.get("direction") == "bidirectional" else 1
    rows = 2 * GATES[op_type]
    weights = {"W": np.ones((D, rows, 3), np.float32), "R": np.ones((D, rows, 2), np.float32)}
    inputs = ["X", "W", "R"]
    for name, array in {"B": bias, "lengths": lengths, "h": state}.items():
        inputs.append("" if array is None else name)
        if array is not None:
            weights[name] = array
    output = "y" if behind else "Y"
    node = helper.make_node(op_type, inputs, [output], name="cell", hidden_size=2, **attributes)
    graph = helper.make_graph(
        [node, *behind],
        "graph",
        [helper.make_tensor_value_info("X", TensorProto.FLOAT, [4, "N", 3])],
        [helper.make_tensor_value_info("Y", TensorProto.FLOAT, None if behind else [4, D, "N", 2])],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8, producer_name=producer
    )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.onnx"


def warnings(path) -> list[dict[str, str]]:
    return rnnlower("inspect", path, "--json").json["warnings"]


def test_a_gru_of_pytorch_without_linear_before_reset(path):
    onnx.save(model(), path)
    (warning,) = warnings(path)
    assert warning["node"] == "GRU node 'cell'"
    assert warning["what"] == "linear_before_reset is 0"
    assert "pytorch/pytorch#189225" in warning["why"]
    assert "--assume-linear-before-reset" in warning["remedy"]
    text = rnnlower("inspect", path)
    assert "rnnlower: warning: GRU node 'cell': linear_before_reset is 0" in text.stderr


def test_every_lowering_warns_of_it(path, tmp_path):
    onnx.save(model(), path)
    for strategy in ("unroll", "scan", "loop"):
        run = rnnlower(strategy, path, "-o", tmp_path / "out.onnx", "--no-verify")
        assert "rnnlower: warning: GRU node 'cell': linear_before_reset is 0" in run.stderr


def test_pytorch_writes_every_default(path):
    onnx.save(model(layout=0, direction="forward", linear_before_reset=0), path)
    (warning,) = warnings(path)
    assert "pytorch/pytorch#189225" in warning["why"]


def test_quantization_warns_of_it(path, tmp_path):
    onnx.save(model(), path)
    np.savez(tmp_path / "rec.npz", X=np.random.default_rng(0).standard_normal((4, 4, 1, 3), np.float32))
    run = rnnlower("quantize", path, "-o", tmp_path / "out.onnx", "--calibration", tmp_path / "rec.npz")
    assert "rnnlower: warning: GRU node 'cell': linear_before_reset is 0" in run.stderr


@pytest.mark.parametrize(
    "sound",
    [
        model(linear_before_reset=1),
        model(linear_before_reset=0),
        model(producer="tf2onnx"),
        model("LSTM"),
        model(producer=""),
    ],
    ids=[
        "linear_before_reset",
        "0 alone, as lift writes it",
        "tf2onnx",
        "LSTM",
        "nobody",
    ],
)
def test_sound_models_give_no_warning(path, sound):
    onnx.save(sound, path)
    assert warnings(path) == []


def test_a_bidirectional_layer_of_keras_without_activations(path):
    onnx.save(model("LSTM", "tf2onnx", direction="bidirectional"), path)
    (warning,) = warnings(path)
    assert "onnx/tensorflow-onnx#2211" in warning["why"]
    names = ["Sigmoid", "Relu", "Relu"] * 2
    onnx.save(model("LSTM", "tf2onnx", direction="bidirectional", activations=names), path)
    assert warnings(path) == []


def test_a_lifted_node_is_not_the_exporters():
    looped = rnnlower_package.loop(model("LSTM", "tf2onnx", direction="bidirectional"))
    _, report = rnnlower_package.unroll.with_report(looped)
    assert [node.direction for node in report.nodes] == ["bidirectional"]
    assert report.warnings == []


def test_an_initial_state_with_the_batch_of_an_example(path):
    onnx.save(model("LSTM", state=np.zeros((1, 8, 2), np.float32)), path)
    (warning,) = warnings(path)
    assert warning["what"] == "initial_h is a constant of 8 row(s), but the batch of X is dynamic"
    assert "pytorch/pytorch#45653" in warning["why"]


def transpose(*perm: int, name: str = "after") -> onnx.NodeProto:
    return helper.make_node("Transpose", ["y"], ["Y"], name=name, perm=perm)


LENGTHS = np.array([4, 2], np.int32)
RECURRENT_BIAS = np.array([[0] * 6 + [1] * 6], np.float32)


@pytest.mark.parametrize(
    ("faulty", "what", "where"),
    [
        (
            model(producer="tf2onnx", bias=RECURRENT_BIAS),
            "linear_before_reset is 0",
            "onnx/tensorflow-onnx#939",
        ),
        (
            model("LSTM", "pytorch", behind=[transpose(0, 2, 3, 1)], direction="bidirectional"),
            "Transpose node 'after' moves the directions of Y after its units",
            "pytorch/pytorch#10838",
        ),
        (
            model("LSTM", "pytorch", behind=[transpose(0, 2, 3, 1, name="")], direction="bidirectional"),
            "Transpose node 'Y' moves the directions of Y after its units",
            "pytorch/pytorch#10838",
        ),
        (
            model("LSTM", "keras2onnx", behind=[transpose(2, 0, 1, 3)], direction="reverse"),
            "it is reverse, and its sequence is not reversed",
            "onnx/keras-onnx#523",
        ),
        (
            model("LSTM", "", lengths=LENGTHS),
            "sequence_lens is a constant (4, 2), but the batch or the length of X is dynamic",
            "pytorch/pytorch#15319",
        ),
    ],
    ids=["recurrent bias", "directions mixed", "by an unnamed node", "not turned back", "constant lengths"],
)
def test_faults_of_exporters_are_warned_of(path, faulty, what, where):
    onnx.save(faulty, path)
    (warning,) = warnings(path)
    assert warning["what"] == what
    assert where in warning["why"]


def test_a_masked_layer_of_keras(path):
    onnx.save(model("LSTM", "keras2onnx", lengths=LENGTHS), path)
    assert "it has sequence_lens, and its sequence Y is used" in [each["what"] for each in warnings(path)]


def test_a_masked_loop_of_keras_that_was_lifted_repeats_its_outputs(path):
    """The steps of the loop are put in another order."""
    source = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17], producer_name: "tf2onnx">
        main (float[4, N, 3] X, bool[4, N, 1] mask) => (float[4, N, 3] Y)
        <float[3, 3] R = {1, 2, 3, 4, 5, 6, 7, 8, 9}> {
            sizes = Shape <start = 1> (X) state = ConstantOfShape (sizes)
            last, Y = Scan <num_scan_inputs = 2, body = each (float[N, 3] h, float[N, 3] x, bool[N, 1] m) => (
                float[N, 3] next, float[N, 3] y) {
                hr = MatMul (h, R) sum = Add (x, hr) new = Tanh (sum) next = Where (m, new, h)
                y = Identity (next) }> (state, X, mask) }""")
    lifted = rnnlower_package.lift(source)
    onnx.save(lifted, path)
    assert [node.op_type for node in rnnlower_package.inspect(lifted)] == ["RNN"]
    assert warnings(path) == []


TURN = [
    helper.make_node("Transpose", ["y"], ["forth"], perm=[2, 0, 1, 3]),
    helper.make_node("Constant", [], ["steps"], value_ints=[4, 4]),
    helper.make_node("ReverseSequence", ["forth", "steps"], ["Y"], time_axis=1, batch_axis=0),
]


@pytest.mark.parametrize(
    "sound",
    [
        model(producer="tf2onnx", bias=0 * RECURRENT_BIAS),
        model("LSTM", "pytorch", behind=[transpose(0, 2, 1, 3)], direction="bidirectional"),
        model("LSTM", "keras2onnx", behind=TURN, direction="reverse"),
    ],
    ids=["no recurrent bias", "directions in front", "turned back"],
)
def test_models_that_resemble_a_fault_give_no_warning(path, sound):
    onnx.save(sound, path)
    assert warnings(path) == []


@pytest.mark.parametrize("op_type", ["AttnLSTM", "CudnnGRU", "custom_lstm_cell"])
def test_an_operator_that_is_called_like_a_recurrence(path, tmp_path, op_type):
    unknown = QuantizedLstm().build()
    unknown.graph.node[0].op_type = op_type
    onnx.save(unknown, path)
    (warning,) = warnings(path)
    assert warning["what"] == f"operator com.microsoft.{op_type} has the name of a recurrence"
    run = rnnlower("scan", path, "-o", tmp_path / "out.onnx", "--no-verify")
    assert f"com.microsoft.{op_type}" in run.stderr


def test_other_names_are_no_recurrence(path):
    harmless = QuantizedLstm().build()
    harmless.graph.node[0].op_type = "CongruentGroupNorm"
    onnx.save(harmless, path)
    assert warnings(path) == []


@pytest.mark.parametrize(
    ("dtype", "shape", "lengths", "is_suspicious"),
    [
        (TensorProto.INT32, ["N"], None, True),
        (TensorProto.INT64, [2], None, True),
        (TensorProto.INT64, [1], None, False),
        (TensorProto.INT64, [], None, False),
        (TensorProto.FLOAT, ["N"], None, False),
        (TensorProto.INT32, ["N"], np.array([4, 2], np.int32), False),
    ],
)
def test_an_unread_input_of_lengths_is_warned_of(path, dtype, shape, lengths, is_suspicious):
    source = model("LSTM", "", lengths=lengths)
    source.graph.input.append(helper.make_tensor_value_info("l", dtype, shape))
    onnx.save(source, path)
    found = [warning["what"] for warning in warnings(path) if "nothing reads" in warning["what"]]
    assert found == (["nothing reads input 'l', and no node has sequence_lens"] if is_suspicious else [])


def test_a_scan_of_a_function_whose_number_of_inputs_its_calls_give(path, tmp_path):
    called = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17, "f" : 1]>
        main (float[5, 2] X) => (float[5, 2] Y) { Y = f.sums <n = 1> (X) }
        <domain: "f", opset_import: ["" : 17]> sums <n> (x) => (y) {
            s = Constant <value = float[2] {0.0, 0.0}> ()
            last, y = Scan <num_scan_inputs: int = @n, body = step (float[2] h, float[2] q) => (next, sum) {
                next = Add (h, q)
                sum = Identity (next)
            }> (s, x)
        }""")
    onnx.save(called, path)
    rnnlower("unroll", path, "-o", tmp_path / "out.onnx")
