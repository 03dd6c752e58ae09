"""The targets' data on recurrent nodes, as found by trying runtimes at real sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.configs import Config
from support.judge import all_nodes, differences, recurrent_left, run

import rnnlower
from rnnlower.engines.reference import evaluate
from rnnlower.lowering import sketching
from rnnlower.lowering.forms import Form
from rnnlower.lowering.sketching import Candidate, Task
from rnnlower.passes.options import LoweringOptions
from rnnlower.passes.pipeline import lower_model
from rnnlower.targets import find_target
from rnnlower.targets.choosing import Native


@pytest.mark.parametrize(
    ("target", "kept", "lowered"),
    [
        ("opencv", {"op_type": "GRU", "Y_h": "unused", "initial_h": "input"}, {"Y_h": "omitted"}),
        ("opencv", {"op_type": "GRU", "Y_h": "unused", "initial_h": "input"}, {"initial_h": "omitted"}),
        ("opencv", {"Y_h": "graph"}, {"B": "empty"}),
        ("opencv", {"Y_h": "graph"}, {"initial_h": "input"}),
        ("opencv", {"Y_h": "graph", "Y_c": "graph"}, {"Y_h": "empty"}),
        ("tract", {"op_type": "GRU", "linear_before_reset": 1}, {"input_size": 1}),
        ("tract", {"op_type": "GRU"}, {"x_dims": "batch", "initial_h": "expanded"}),
        ("tract", {"op_type": "RNN", "x_dims": "time"}, {"place": "if"}),
        ("openvino", {"op_type": "GRU"}, {"hidden_size_given": False}),
        ("openvino", {"op_type": "GRU"}, {"sequence_lens": "input"}),
        ("openvino", {"R": "computed"}, {"R": "input"}),
        ("openvino", {"op_type": "GRU", "initial_h": "expanded", "x_dims": "batch"}, {"clip": 0.5}),
        ("openvino", {"W": "computed", "B": "constant"}, {"B": "input"}),
        ("onnxruntime", {}, {"layout": 1}),
    ],
)
def test_only_nodes_that_were_tried_and_right_are_kept(
    target: str, kept: dict[str, object], lowered: dict[str, object]
) -> None:
    for fields, wanted in ((kept, 1), (kept | lowered, 0)):
        model = Config(seq_length=50, batch_size=16, hidden_size=20, **fields).build()  # type: ignore[arg-type]
        # Folding leaves out what is empty.
        assert len(kept_by(model, target, "keep")) == wanted, fields


@pytest.mark.parametrize("batch", [1, 2])
def test_a_node_of_a_larger_batch_is_not_kept(batch: int) -> None:
    for op_type in ("LSTM", "GRU"):
        model = Config(op_type=op_type, seq_length=3, batch_size=batch).build()
        assert kept_by(model, "esp-dl", "keep") == ([op_type] if batch == 1 else [])


def kept_by(model: onnx.ModelProto, target: str, native: Native) -> list[str]:
    """Return the operators of the nodes that stay as they are."""
    options = LoweringOptions("target", target=find_target(target), native=native, fold=False)
    return [node.op_type for node in lower_model(ir.from_proto(model), options).kept]


@pytest.mark.parametrize(
    ("target", "hidden_size", "forms"),
    [
        ("opencv", 64, {"auto": "unroll", "keep": "adapt", "lower": "unroll"}),
        ("opencv", 8, {"auto": "adapt", "keep": "adapt", "lower": "unroll"}),
        ("tract", 64, {"auto": "adapt", "keep": "adapt", "lower": "scan"}),
        ("openvino", 64, {"auto": "kept", "keep": "kept", "lower": "unroll"}),
    ],
)
def test_the_form_is_the_fastest_right_one(
    target: str, hidden_size: int, forms: Mapping[Native, str]
) -> None:
    direction = "reverse" if target == "opencv" else "forward"
    model = Config(seq_length=50, hidden_size=hidden_size, Y_h="graph", direction=direction).build()
    for native, form in forms.items():
        options = LoweringOptions("target", target=find_target(target), native=native)
        report = lower_model(ir.from_proto(model), options)
        (node,) = (*report.nodes, *report.kept)
        assert getattr(node, "strategy", "kept") == form
        own = {"keep", "adapt"} & {*node.prices}
        assert len(own) == (native == "auto")
        assert ("the cheapest of " in node.reason) == (native != "keep")


def test_a_line_that_loads_for_long_is_no_candidate() -> None:
    for steps, strategies in ((256, {"unroll", "scan"}), (257, {"scan"})):
        model = Config(op_type="GRU", seq_length=steps).build()
        options = LoweringOptions("target", target=find_target("tract"), native="lower")
        (node,) = lower_model(ir.from_proto(model), options).nodes
        assert {name.split(" ")[0] for name in node.prices} == strategies


@pytest.mark.parametrize(
    ("fields", "form"),
    [
        ({"op_type": "LSTM", "seq_length": 50, "input_size": 64, "hidden_size": 64}, "unroll"),
        ({"op_type": "GRU", "seq_length": 100, "linear_before_reset": 1}, "loop"),
        ({"op_type": "GRU", "seq_length": 100, "linear_before_reset": 0}, "unroll"),
    ],
)
def test_the_fastest_form_on_opencv_is_chosen(fields: dict[str, Any], form: str) -> None:
    """It keeps a copy of the matrix for each Gemm of constants: in a Loop, one; its own LSTM is slow."""
    sizes = {"batch_size": 1, "input_size": 256, "hidden_size": 256, "x_dims": "static"}
    model = Config(**(sizes | fields)).build()
    options = LoweringOptions("target", target=find_target("opencv"))
    (node,) = lower_model(ir.from_proto(model), options).nodes
    assert node.strategy == form
    assert {"unroll", "loop"} <= {name.split(" ")[0] for name in node.prices}


@pytest.mark.parametrize("place", ["main", "if", "loop"])
@pytest.mark.parametrize(("R", "strategy"), [("initializer", "scan"), ("input", "loop")])
def test_openvino_gets_no_scan_that_reads_weights_of_run_time(R: str, strategy: str, place: str) -> None:
    model = Config(op_type="GRU", seq_length=300, layout=1, W="input", R=R, place=place).build()
    options = LoweringOptions("target", target=find_target("openvino"), native="lower")
    assert [node.strategy for node in lower_model(ir.from_proto(model), options).nodes] == [strategy]


def test_equal_nodes_are_sketched_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sketched: list[str] = []
    sketch = sketching._sketch

    def counting(task: Task, strategy: str, form: Form, costs: Mapping[str, float]) -> Candidate:
        sketched.append(strategy)
        return sketch(task, strategy, form, costs)

    monkeypatch.setattr(sketching, "_sketch", counting)
    target = find_target("openvino")
    for twins in (1, 3):
        sketched.clear()
        model = stack_of(twins)
        lower_model(ir.from_proto(model), LoweringOptions("target", target=target, native="auto"))
        assert sketched == ["unroll", "scan", "loop"]


def stack_of(count: int) -> onnx.ModelProto:
    """Equal RNNs of one X, whose weights differ."""
    rng = np.random.default_rng(0)
    nodes, constants = [], []
    for number in range(count):
        for name in ("W", "R"):
            values = rng.standard_normal((1, 4, 4)).astype(np.float32)
            constants.append(onnx.numpy_helper.from_array(values, f"{name}{number}"))
        inputs = ["X", f"W{number}", f"R{number}"]
        nodes.append(onnx.helper.make_node("RNN", inputs, [f"Y{number}"], hidden_size=4))
    info = onnx.helper.make_tensor_value_info
    X = info("X", onnx.TensorProto.FLOAT, [5, 2, 4])
    outputs = [info(f"Y{number}", onnx.TensorProto.FLOAT, [5, 1, 2, 4]) for number in range(count)]
    graph = onnx.helper.make_graph(nodes, "stack", [X], outputs, constants)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("native", ["keep", "lower"])
def test_an_adapted_node_of_one_step_is_still_said_to_forget(native: Native) -> None:
    model = ir.from_proto(Config(seq_length=1, hidden_size=8, Y_h="graph").build())
    report = lower_model(model, LoweringOptions("target", target=find_target("tract"), native=native))
    assert [node.strategy for node in report.nodes] == [{"keep": "adapt", "lower": "unroll"}[native]]
    assert ["loses its state" in str(warning) for warning in report.warnings] == [True]


@pytest.mark.parametrize("states", ["input", "omitted"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_a_node_with_batch_first_is_adapted_with_time_first(direction: str, states: str) -> None:
    """tract's rule of a forward LSTM takes either layout; what is put around it is written for one."""
    config = Config(
        seq_length=3, batch_size=2, hidden_size=8, direction=direction, layout=1, initial_h=states,
        initial_c=states, Y_h="graph", Y_c="graph",
    )  # fmt: skip
    model = rnnlower.lower(config.build(), target="tract", native="keep")
    assert {*recurrent_left(model)} == {"LSTM"}
    inputs = config.make_inputs(np.random.default_rng(0))
    assert differences(config.expected(inputs), evaluate(model, inputs), "float32") == []


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_emx_gets_a_direction_only_where_it_reads_one(direction: str) -> None:
    """emx-onnx-cgen 1.4.0 refuses a GRU whose ``direction = "forward"`` is written."""
    config = Config(op_type="GRU", seq_length=3, direction=direction, Y_h="graph")
    model = rnnlower.lower(config.build(), target="emx", native="keep")
    nodes = [node for node in all_nodes(model) if node.op_type == "GRU"]
    assert nodes
    assert "direction" not in {attribute.name for node in nodes for attribute in node.attribute}
    inputs = config.make_inputs(np.random.default_rng(0))
    assert differences(config.expected(inputs), evaluate(model, inputs), "float32") == []


@pytest.mark.parametrize(("op_type", "kept"), [("LSTM", []), ("GRU", ["GRU"]), ("RNN", [])])
def test_qnn_runs_what_its_simulator_runs_on_a_chip_with_floats(op_type: str, kept: list[str]) -> None:
    config = Config(op_type=op_type, Y_h="graph", Y_c="graph" if op_type == "LSTM" else "omitted")
    assert recurrent_left(rnnlower.lower(config.build(), target="ort-qnn", native="keep")) == kept


@pytest.mark.parametrize("steps", [9, 10, 50, 200])
def test_a_split_has_no_more_outputs_than_the_target_takes(steps: int) -> None:
    config = Config(seq_length=steps, direction="bidirectional", Y_h="graph")
    lowered = rnnlower.lower(config.build(), target="ort-webgpu")
    assert max(len(node.output) for node in all_nodes(lowered) if node.op_type == "Split") <= 9
    inputs = config.make_inputs(np.random.default_rng(0))
    assert differences(config.expected(inputs), run(lowered, inputs), "float32") == []


def repeated(op_type: str, *, is_joined: bool = False) -> onnx.ModelProto:
    """Return a recurrent node whose X repeats one row along time, as in the decoder of an autoencoder.

    It may be joined to a feature with steps of its own, as the category of a time series is in a forecast.
    """
    own, X = (2, "X = Concat <axis = 2> (e, steps)") if is_joined else (3, "X = Identity (e)")
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    W, R = (", ".join(["0.1"] * (2 * gates * size)) for size in (3, 2))
    return onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[2, {own}] x, float[5, 2, 1] steps) => (float[5, 1, 2, 2] Y)
        <float[1, {2 * gates}, 3] W = {{{W}}}, float[1, {2 * gates}, 2] R = {{{R}}},
         int64[1] axis = {{0}}, int64[3] shape = {{5, 2, {own}}}>
        {{
            u = Unsqueeze (x, axis)
            e = Expand (u, shape)
            {X}
            Y, Y_h = {op_type} <hidden_size = 2> (X, W, R)
        }}
    """)


def test_tract_multiplies_no_single_time_what_is_repeated() -> None:
    assert recurrent_left(rnnlower.lower(repeated("GRU"), target="tract", native="keep")) == ["GRU"]
    assert recurrent_left(rnnlower.lower(repeated("LSTM"), target="tract")) == []
    joined = rnnlower.check(repeated("LSTM", is_joined=True), target="tract")
    assert "an X that Expand repeats" in str(joined)
    lowered = rnnlower.lower(repeated("RNN"), target="tract")
    assert rnnlower.check(lowered, target="tract") == []
    assert "Max" in {node.op_type for node in all_nodes(lowered)}


@pytest.mark.parametrize(("given", "group"), [(1, 3), (2, 6)])
def test_iree_gets_no_group_of_one_channel(given: int, group: int) -> None:
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[1, {6 * given}, 5] x, float[{6 * given}, {given}, 3] w) => (float[1, {6 * given}, 7] y)
        {{ y = ConvTranspose <group = 6> (x, w) }}
    """)
    (node,) = (node for node in all_nodes(rnnlower.lower(model, target="iree")) if node.op_type != "Mul")
    assert [each.i for each in node.attribute if each.name == "group"] == [group]
    model.graph.initializer.append(
        onnx.numpy_helper.from_array(np.ones((6 * given, given, 3), np.float32), "w")
    )
    del model.graph.input[1]
    lowered = rnnlower.lower(model, target="iree")
    assert [node.op_type for node in all_nodes(lowered)] == ["ConvTranspose"]
    assert rnnlower.verify(model, lowered)


@pytest.mark.parametrize("sizes", ["5", "5, 6"])
def test_opencv_normalizes_channels_of_images(sizes: str) -> None:
    """Those of three axes it may fuse with other nodes to a group normalization that fails."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[1, 4, {sizes}] x) => (float[1, 4, {sizes}] y)
        <float[4] s = {{1, 2, 3, 4}}, float[4] b = {{0, 0, 1, 0}}> {{ y = InstanceNormalization (x, s, b) }}
    """)
    assert (rnnlower.check(model, target="opencv") == []) == ("6" in sizes)
    lowered = rnnlower.lower(model, target="opencv")
    assert rnnlower.check(lowered, target="opencv") == []
    assert rnnlower.verify(model, lowered)


def test_the_reason_to_keep_a_node_is_what_was_tried() -> None:
    for target, reason in (
        ("tract", "tract 0.23.9 ran this form right at batches of 1, 2 and 16"),
        ("ort-webnn", "ort-webnn says that it takes this form, which was not tried"),
    ):
        report = lower_model(
            ir.from_proto(Config(op_type="GRU").build()),
            LoweringOptions("target", target=find_target(target), native="keep"),
        )
        assert [node.reason[: len(reason)] for node in report.kept] == [reason]


def test_known_faults_of_a_lowered_form_are_noted() -> None:
    for target, config, told in (
        ("ort-qnn", Config(op_type="GRU"), False),
        ("tract", Config(op_type="GRU", x_dims="batch"), True),
        ("tract", Config(op_type="GRU", clip=0.5), False),
    ):
        report = lower_model(
            ir.from_proto(config.build()), LoweringOptions("target", target=find_target(target))
        )
        assert any(note.startswith(f"target {target}: ") for note in report.notes) == told


def test_an_opset_that_the_target_does_not_take_is_no_advice() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 9, opset_import: ["" : 20]>
        main (float[3, 2, 4] X, string[3] S) => (float[3, 1, 2, 2] Y, bool[3] Z)
        <float[1, 2, 4] W = {1, 1, 1, 1, 1, 1, 1, 1}, float[1, 2, 2] R = {1, 1, 1, 1}>
        {
            Z = RegexFullMatch <pattern = "a"> (S)
            Y, Y_h = RNN <hidden_size = 2, clip = 0.5> (X, W, R)
        }
    """)
    with pytest.raises(rnnlower.OpsetError, match=r"opset 20 has it, but target onnx2torch takes 10 to 17"):
        rnnlower.lower(model, target="onnx2torch")


@pytest.mark.parametrize(
    ("opset", "squeeze", "reasons"),
    [
        (11, "Squeeze (X)", ["attribute axes is not written"]),
        (11, "Squeeze <axes = [0]> (X)", []),
        (13, "Squeeze (X)", []),
    ],
)
def test_tract_wants_the_axes_of_an_old_squeeze(opset: int, squeeze: str, reasons: list[str]) -> None:
    head = f'<ir_version: 7, opset_import: ["" : {opset}]>'
    model = onnx.parser.parse_model(f"{head} main (float[1, 2] X) => (float[2] Y) {{ Y = {squeeze} }}")
    misfits = rnnlower.check(model, target="tract")
    assert [misfit.reason for misfit in misfits] == reasons
    assert all("opset 13" in misfit.remedy for misfit in misfits)


@pytest.mark.parametrize(("steps", "told"), [(200, False), (201, True)])
def test_a_line_that_takes_long_to_compile_is_noted(steps: int, told: bool) -> None:
    config = Config(seq_length=steps, input_size=1, hidden_size=1)
    _, report = rnnlower.lower.with_report(config.build(), target="tinygrad")
    assert any("compiles a long straight line" in note for note in report.notes) == told
