"""Straight lines in the commands that lift first, and the names of lifted nodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from lifting.test_attention import STEP, drop_axis, scan
from lifting.test_matrix_lines import compare, unrolled
from support.judge import recurrent_left
from support.repeated_steps import model_of, two_layers
from support.small_models import recurrent_model

import rnnlower
from rnnlower.graph.walk import count_ops
from rnnlower.inspection import find_liftable
from rnnlower.lifting import line_steps
from rnnlower.lifting.cell_search import match_cell
from rnnlower.passes import LiftRecurrentPass
from rnnlower.passes.steps import lifting_prices
from rnnlower.passes.steps.lifting_prices import Prices, price_lifting
from rnnlower.targets import find_target


def line(op_type: str = "GRU", steps: int = 6) -> onnx.ModelProto:
    """Return a model of a straight line of cells."""
    return rnnlower.unroll(recurrent_model(op_type), dims={"T": steps, "N": 2})


def op_counts(model: onnx.ModelProto) -> dict[str, int]:
    return dict(count_ops(ir.from_proto(model)))


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_inspect_names_lines(op_type: str) -> None:
    (node,) = find_liftable(ir.from_proto(line(op_type)))
    assert (node.form, node.op_type, node.direction, node.hidden_size) == ("line", op_type, "forward", 4)


@pytest.mark.parametrize(("command", "made"), [("scan", "Scan"), ("loop", "Loop")])
def test_lines_become_scans_and_loops(command: str, made: str) -> None:
    source = line()
    result, report = getattr(rnnlower, command).with_report(source)
    assert op_counts(result)[made] == 1
    assert "the straight line behind" in str(report.notes)
    assert rnnlower.verify(source, result)
    assert op_counts(getattr(rnnlower, command)(source, lift=False)) == op_counts(source)


def test_unroll_leaves_lines() -> None:
    source = line()
    result, report = rnnlower.unroll.with_report(source)
    assert op_counts(result) == op_counts(source)
    assert "straight line" not in str(report.notes)


def test_an_initial_state_may_be_deeply_nested() -> None:
    """Operators before the first step could be a step of another form, so they are evaluated."""
    deep = " ".join(f"e{i} = Tanh (e{i - 1})" for i in range(1, 400))
    step = "m{0} = MatMul (h{0}, R) s{0} = Add (m{0}, x{0}) h{1} = Tanh (s{0})"
    steps = " ".join(step.format(i, i + 1) for i in range(3))
    inputs = ", ".join(f"float[2, 2] {name}" for name in ("e0", "x0", "x1", "x2"))
    source = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 13]>
        main ({inputs}) => (float[2, 2] h3) <float[2, 2] R = {{1, 0, 0, 1}}>
        {{ {deep} h0 = Neg (e399) {steps} }}""")
    (node,) = find_liftable(ir.from_proto(source))
    assert (node.form, node.op_type) == ("line", "RNN")
    assert rnnlower.verify(source, rnnlower.scan(source))


def test_a_lifted_line_reads_the_input_and_has_the_first_step() -> None:
    """Steps as NNabla and PyTorch's GRUCell write them: cuts of all axes, zeros, each product split."""
    step = """s{0} = Slice (X, from{0}, to{0}, axes)  x{0} = Reshape (s{0}, sizes)
        gi{0} = Gemm (x{0}, W, B)  iz{0}, ir{0}, in{0} = Split <axis = 1, num_outputs = 3> (gi{0})
        gh{0} = Gemm (h{0}, R, B)  hz{0}, hr{0}, hn{0} = Split <axis = -1, num_outputs = 3> (gh{0})
        az{0} = Add (iz{0}, hz{0})  z{0} = Sigmoid (az{0})  ar{0} = Add (ir{0}, hr{0})  r{0} = Sigmoid (ar{0})
        rn{0} = Mul (r{0}, hn{0})  an{0} = Add (in{0}, rn{0})  n{0} = Tanh (an{0})
        less{0} = Sub (h{0}, n{0})  part{0} = Mul (z{0}, less{0})  h{1} = Add (n{0}, part{0})
        y{1} = Unsqueeze (h{1}, one)"""
    cuts = "".join(f"int64[3] from{t} = {{0, {t}, 0}}, int64[3] to{t} = {{2, {t + 1}, 3}}," for t in range(4))
    source = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 18]>
        main (float[2, 4, 3] X) => (float[2, 4, 4] Y)
        <{cuts} int64[3] axes = {{0, 1, 2}}, int64[2] sizes = {{2, 3}}, int64[1] one = {{1}}>
        {{ {" ".join(step.format(t, t + 1) for t in range(4))} Y = Concat <axis = 1> (y1, y2, y3, y4) }}""")
    rng = np.random.default_rng(0)
    source.graph.initializer.extend(
        onnx.numpy_helper.from_array((scale * rng.normal(size=size)).astype(np.float32), name)
        for name, size, scale in (("W", (3, 12), 1), ("R", (4, 12), 1), ("B", (12,), 1), ("h0", (2, 4), 0))
    )
    lifted = rnnlower.lift(source)
    assert {*op_counts(lifted)} == {"GRU", "Identity", "Squeeze", "Transpose"}
    assert rnnlower.verify(source, lifted)


def test_steps_of_unknown_rows_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[Any] = []
    monkeypatch.setattr(line_steps, "match_cell", lambda *given: compared.append(given) or match_cell(*given))
    find_liftable(ir.from_proto(rnnlower.unroll(recurrent_model("LSTM"), dims={"T": 30})))
    assert 0 < len(compared) < 10


def test_lower_lifts_lines_that_cost_less(monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = line("LSTM", 30), find_target("onnxruntime")
    own, lifted = price_lifting(ir.from_proto(source), LiftRecurrentPass(frames=False), target) or (
        0.0,
        0.0,
    )
    assert own > lifted > 0
    result = rnnlower.lower(source, target="onnxruntime")
    assert recurrent_left(result) == ["LSTM"]
    assert rnnlower.verify(source, result)
    assert recurrent_left(rnnlower.lower(source, target="onnxruntime", lift=False)) == []
    monkeypatch.setattr(lifting_prices, "price_lifting", lambda *given: Prices(1.0, 2.0))
    result, report = rnnlower.lower.with_report(source, target="onnxruntime")
    assert recurrent_left(result) == []
    assert any("straight lines stay as they are" in note for note in report.notes)


@pytest.mark.parametrize(
    ("target", "steps", "is_lifted"),
    [("onnxruntime", 5, True), ("tract", 5, False), ("tract", 40, True), ("openvino", 40, True)],
)
def test_lower_lifts_lines_of_matrix_states_that_cost_less(target: str, steps: int, is_lifted: bool) -> None:
    """A target without the kernel has products within chunks of time."""
    source = unrolled(STEP["gated"], steps)
    result, report = rnnlower.lower.with_report(source, target=target)
    kernels = [node.domain for node in result.graph.node if node.op_type == "LinearAttention"]
    assert kernels == (["com.microsoft"] if target == "onnxruntime" else [])
    assert any("was lifted to LinearAttention" in note for note in report.notes) == is_lifted
    assert (len(result.graph.node) < 120) == (is_lifted or steps == 5)
    assert rnnlower.verify(source, result)


@pytest.mark.parametrize("target", ["ncnn", "ort-nnapi"])
@pytest.mark.parametrize("form", ["line", "scan"])
def test_matrix_states_stay_where_a_target_does_not_run_what_they_become(target: str, form: str) -> None:
    """Decays that differ by key take a ReduceSum and tensors of rank 5."""
    step = STEP["gated"].replace("Mul (s, gw)", "Mul (s, kg)").replace("d = ", "kg = Sigmoid (kw)  d = ", 1)
    source = scan(drop_axis(step)) if form == "scan" else unrolled(step, 17, 2)
    dims = {"T": 17, "B": 2} if form == "scan" else {}
    result, report = rnnlower.lower.with_report(source, target=target, dims=dims)
    assert any("does not run what LinearAttention becomes" in note for note in report.notes)
    assert not any("was lifted" in note for note in report.notes)
    compare(source, result, 17, (2,))


@pytest.mark.parametrize("opset", [9, 26])
def test_an_opset_that_a_target_does_not_read_is_no_reason_to_stay(opset: int) -> None:
    source = rnnlower.convert(scan(drop_axis(STEP["gated"])), opset=opset)
    _, report = rnnlower.lower.with_report(source, target="onnx2torch", dims={"T": 6, "B": 2})
    assert any("was lifted to LinearAttention" in note for note in report.notes)


def test_matrix_states_stay_for_a_profile() -> None:
    result = rnnlower.lower(scan(drop_axis(STEP["gated"])), target="sonnx", dims={"T": 3, "B": 1})
    assert {node.domain for node in result.graph.node} == {""}


@pytest.mark.parametrize("op_type", ["LSTM", "GRU"])
@pytest.mark.parametrize("target", ["onnx2torch", "openvino", "tract", "opencv", "tinygrad"])
def test_a_line_that_was_emitted_for_a_target_stays(target: str, op_type: str) -> None:
    lowered = rnnlower.lower(recurrent_model(op_type), target=target, native="lower", dims={"T": 6, "N": 2})
    again = rnnlower.lower(lowered, target=target, native="lower")
    assert op_counts(again) == op_counts(lowered)


def test_an_unknown_price_lifts_nothing() -> None:
    """The target of primitives has none, and runs the line."""
    model = ir.from_proto(line())
    assert price_lifting(model, LiftRecurrentPass(frames=False), find_target("primitive")) is None
    assert price_lifting(ir.from_proto(recurrent_model()), LiftRecurrentPass(), find_target("tract")) is None


def rename_loop(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    next(node for node in model.graph.node if node.op_type in ("Loop", "Scan")).name = name
    return model


def lifted_names(model: onnx.ModelProto, **options: Any) -> list[str]:
    result = rnnlower.lift(model, **options)
    return [node.name for node in result.graph.node if node.op_type in ("LSTM", "GRU", "RNN")]


@pytest.mark.parametrize("form", ["loop", "scan"])
def test_a_node_has_the_name_of_its_loop(form: str) -> None:
    assert lifted_names(rename_loop(model_of(form, "LSTM"), "encoder/while")) == ["encoder/while"]


def test_two_nodes_have_two_names() -> None:
    assert lifted_names(rename_loop(two_layers(3), "stack")) == ["stack", "stack_2"]


def test_values_keep_their_names() -> None:
    model = model_of("loop", "LSTM", guard="h_last = Tanh (h_end)  c_last = Identity (c_end)")
    names = {name for node in rnnlower.lift(model).graph.node for name in node.output}
    assert {"h_end", "c_end", "Y"} <= names


def test_a_lifted_line_has_the_common_name_of_its_steps() -> None:
    source = line("LSTM")
    for node in source.graph.node:
        node.name = f"decoder/cell/{node.name.replace('/', '_')}"
    assert lifted_names(source) == ["decoder/cell"]


@pytest.mark.parametrize("options", [{"sets": {"go_on": True}}, {"freeze": True}])
@pytest.mark.parametrize("command", [rnnlower.scan, rnnlower.lift])
def test_loops_are_lifted_by_what_the_options_make_constant(command: Any, options: dict[str, Any]) -> None:
    source = rnnlower.loop(recurrent_model("GRU"), dims={"T": 4, "N": 2})
    (loop,) = (node for node in source.graph.node if node.op_type == "Loop")
    (condition,) = (tensor for tensor in source.graph.initializer if tensor.name == loop.input[1])
    loop.input[1] = condition.name = "go_on"
    source.graph.input.append(onnx.helper.make_tensor_value_info("go_on", onnx.TensorProto.BOOL, []))
    if "sets" in options:
        source.graph.initializer.remove(condition)
    assert "Loop" not in op_counts(command(source, **options))
