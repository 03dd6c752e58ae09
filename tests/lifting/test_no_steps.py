"""Sequences without steps: a Loop or Scan returns its initial state, and so does what it is lowered to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import compose
from support.cli_helpers import rnnlower as command_line
from support.cli_helpers import save
from support.judge import recurrent_left, run
from support.repeated_steps import STEPS, model_of, two_layers
from support.streamed import model as streamed_model

import rnnlower
from rnnlower.engines.reference import Evaluator

NO_STEPS = "without steps"


def random_inputs(model: onnx.ModelProto, steps: int) -> dict[str, np.ndarray]:
    """Return inputs of a number of steps."""
    rng = np.random.default_rng(steps)
    shapes = {"X": (steps, 2, 3), "h0": (2, 4), "c0": (2, 4)}
    return {
        each.name: rng.normal(size=shapes[each.name.removeprefix("b_")]).astype(np.float32)
        for each in model.graph.input
    }


def assert_equal(
    source: onnx.ModelProto, result: onnx.ModelProto, lengths: Sequence[int] = (0, 1, 5), runner: Any = run
) -> None:
    """Compare a result without recurrent nodes with its source, on sequences without steps, too."""
    assert recurrent_left(result) == []
    for steps in lengths:
        inputs = random_inputs(source, steps)
        expected = Evaluator(source).run(inputs)
        for name, value in runner(result, inputs).items():
            np.testing.assert_allclose(
                value, expected[name], rtol=1e-5, atol=1e-5, err_msg=f"{name} of {steps}"
            )


ALL = [(form, cell) for form in ("scan", "loop") for cell in STEPS]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("form", "cell"), ALL)
@pytest.mark.parametrize("command", ["scan", "loop"])
def test_final_states_are_the_initial_ones(command: str, form: str, cell: str, reverse: bool) -> None:
    model = model_of(form, cell, reverse=reverse)
    result, report = getattr(rnnlower, command).with_report(model)
    assert [node.op_type for node in report.nodes] == [cell]
    assert_equal(model, result)
    assert NO_STEPS not in str(report.notes)


@pytest.mark.parametrize("steps", [0, 1, 5])
@pytest.mark.parametrize(("form", "cell"), ALL)
def test_a_fixed_length(form: str, cell: str, steps: int) -> None:
    model = model_of(form, cell)
    result = rnnlower.unroll(model, dims={"T": steps})
    assert_equal(model, result, (steps,))


@pytest.mark.parametrize("target", ["tract", "opencv", "openvino"])
@pytest.mark.parametrize(("form", "cell"), ALL)
def test_targets(target: str, form: str, cell: str) -> None:
    """What is kept as a node is told."""
    model = model_of(form, cell)
    result, report = rnnlower.lower.with_report(model, target=target)
    if recurrent_left(result):
        assert NO_STEPS in str(report.notes)
    else:
        # onnxruntime, unlike other runtimes, refuses a Scan over no steps.
        assert_equal(model, result, runner=lambda model, inputs: Evaluator(model).run(inputs))
        assert NO_STEPS not in str(report.notes)


@pytest.mark.parametrize("options", [{}, {"target": "onnxruntime"}], ids=["lift", "lower"])
@pytest.mark.parametrize(("form", "cell"), ALL)
def test_a_note_names_nodes_that_stay(form: str, cell: str, options: dict[str, str]) -> None:
    """onnxruntime's own operators return zeros, or end the process."""
    convert: Any = rnnlower.lower if options else rnnlower.lift
    result, report = convert.with_report(model_of(form, cell), **options)
    assert recurrent_left(result) == [cell]
    (note,) = [note for note in report.notes if NO_STEPS in note]
    assert ("ends the process" if cell == "GRU" else "returns 0") in note


@pytest.mark.parametrize("cell", STEPS)
def test_a_note_names_a_padded_length_of_zero(cell: str) -> None:
    """The padded length may be 0, for which onnxruntime's operators return zeros."""
    _, report = rnnlower.pad.with_report(model_of("scan", cell), max={"T": 5})
    (note,) = [note for note in report.notes if NO_STEPS in note]
    assert "returns 0" in note


def lstm_node() -> onnx.ModelProto:
    """Return a model of a node with initial states, whose last ones are read."""
    return rnnlower.lift(model_of("scan", "LSTM"))


GUARD = "any = Less (zero, T)  h_last = Where (any, h_end, nothing)  c_last = Where (any, c_end, nothing)"
CERTAIN: Mapping[str, tuple[Callable[[], onnx.ModelProto], dict[str, Any]]] = {
    "fixed length": (lambda: model_of("scan", "LSTM"), {"dims": {"T": 5}}),
    "spec": (lambda: model_of("scan", "LSTM"), {"semantics": "spec"}),
    "guard": (lambda: model_of("loop", "LSTM", guard=GUARD), {}),
    "emitted scan": (lambda: rnnlower.scan(lstm_node()), {}),
    "emitted loop": (lambda: rnnlower.loop(lstm_node()), {}),
    "states that nothing reads": (
        lambda: model_of("loop", "LSTM", guard="h_last = Tanh (h0)  c_last = Tanh (c0)"),
        {},
    ),
}


@pytest.mark.parametrize("case", CERTAIN)
def test_no_note_if_results_cannot_differ(case: str) -> None:
    make, options = CERTAIN[case]
    result, report = rnnlower.lift.with_report(make(), **options)
    assert recurrent_left(result) == ["LSTM"]
    assert NO_STEPS not in str(report.notes)


@pytest.mark.parametrize("command", ["scan", "loop"])
def test_a_source_node_follows_onnxruntime(command: str) -> None:
    """The reader of a file that `lift` wrote has a node like others."""
    model = lstm_node()
    results = run(getattr(rnnlower, command)(model), random_inputs(model, 0))
    assert not results["h_last"].any()
    assert not results["c_last"].any()


def test_a_lifted_model_in_memory_equals_its_file() -> None:
    model = model_of("scan", "LSTM")
    result = ir.to_proto(rnnlower.scan(rnnlower.lift(ir.from_proto(model))))
    assert not run(result, random_inputs(model, 0))["c_last"].any()


@pytest.mark.parametrize("form", ["scan", "loop"])
def test_on_the_command_line(form: str, tmp_path: Path, out: Path) -> None:
    model = model_of(form, "LSTM")
    path = save(model, tmp_path)
    for command in ("scan", "loop"):
        assert NO_STEPS not in command_line(command, path, "-o", out, "--lift").stderr
        assert_equal(model, onnx.load(out))
    assert "of a sequence without steps" in command_line("lift", path, "-o", out).stderr


def test_two_directions_become_one_node_that_keeps_both_states() -> None:
    """Two Loops that read the same sequence are one bidirectional node."""
    model = model_of("scan", "RNN")
    backward = compose.add_prefix(model_of("scan", "RNN", reverse=True), "b_")
    joined = compose.merge_models(model, backward, [])
    for node in joined.graph.node:
        node.input[:] = ["X" if name == "b_X" else name for name in node.input]
    del joined.graph.input[[each.name for each in joined.graph.input].index("b_X")]
    lifted, report = rnnlower.lift.with_report(joined)
    (node,) = report.nodes
    assert node.direction == "bidirectional"
    assert NO_STEPS in str(report.notes)
    assert_equal(joined, rnnlower.scan(joined))
    assert recurrent_left(lifted) == ["RNN"]


@pytest.mark.parametrize("rows", ["2", "B"])
def test_one_of_two_directions_may_begin_with_zeros(rows: str) -> None:
    step = "{ xw = MatMul (x, W) hr = MatMul (h, R) sum = Add (xw, hr) new = Tanh (sum) y = Identity (new) }"
    body = f"step (float[N, 4] h, float[N, 3] x) => (float[N, 4] new, float[N, 4] y) {step}"
    text = f"""(float[5, N, 3] X, float[N, 4] h0) => (float[5, N, 4] A, float[5, N, 4] B) {{
        shape = Shape (h0)
        zeros = ConstantOfShape (shape)
        a, A = Scan <num_scan_inputs = 1, body = {body}> (h0, X)
        b, B = Scan <num_scan_inputs = 1, scan_input_directions = [1], body = {body}> (zeros, X)
    }}"""
    source = streamed_model(text.replace("N,", f"{rows},"), W=(3, 4), R=(4, 4))
    lifted = rnnlower.lift(source)
    assert rnnlower.verify(source, lifted)
    assert [node.direction for node in rnnlower.inspect(lifted)] == ["bidirectional"]


def test_random_numbers_are_not_the_same_sequence() -> None:
    noise = " ".join(f"{x} = RandomNormal <shape = [5, 2, 3]> ()" for x in ("X", "Z"))
    step = "{ xw = MatMul (x, W) hr = MatMul (h, R) sum = Add (xw, hr) new = Tanh (sum) y = Identity (new) }"
    body = f"step (float[2, 4] h, float[2, 3] x) => (float[2, 4] new, float[2, 4] y) {step}"
    scans = f"""
        a, A = Scan <num_scan_inputs = 1, body = {body}> (h0, X)
        b, B = Scan <num_scan_inputs = 1, scan_input_directions = [1], body = {body}> (h0, Z)
    """
    text = f"(float[2, 4] h0) => (float[5, 2, 4] A, float[5, 2, 4] B) {{ {noise} {scans} }}"
    lifted = rnnlower.lift(streamed_model(text, W=(3, 4), R=(4, 4)))
    assert [node.direction for node in rnnlower.inspect(lifted)] == ["forward", "reverse"]


@pytest.mark.parametrize(("steps", "nodes"), [(0, []), (3, ["RNN", "RNN"])])
def test_a_second_layer_has_the_steps_of_the_first(steps: int, nodes: list[str]) -> None:
    model = two_layers(steps)
    result, report = rnnlower.lift.with_report(model)
    assert recurrent_left(result) == nodes
    assert NO_STEPS not in str(report.notes)


SCAN_IN_AN_IF = """
    (float[T, 2, 3] X, float[2, 4] h0) => (float[N, 2, 4] Y, float[N, 2, 4] again, float unit)
    <int64 zero = {0}, int64[3] empty = {0, 2, 4}, int64[3] row = {1, 2, 4}> {
        shape = Shape (X)
        steps = Gather (shape, zero)
        has_steps = Greater (steps, zero)
        Y, again, unit = If (has_steps) <
            then_branch = then () => (float[N, 2, 4] ys, float[N, 2, 4] ys, float one) <float one = {1}> {
                last, ys = Scan <num_scan_inputs = 1, body = step (float[2, 4] h, float[2, 3] x)
                => (float[2, 4] new, float[2, 4] y) {
                    xw = MatMul (x, W) hr = MatMul (h, R) sum = Add (xw, hr) new = Tanh (sum)
                    y = Identity (new)
                }> (h0, X)
            },
            else_branch = otherwise () => (float[N, 2, 4] a, float[N, 2, 4] b, float two) <float two = {2}> {
                a = ConstantOfShape (SHAPE) b = ConstantOfShape (SHAPE)
            }
        >
    }
"""


@pytest.mark.parametrize("shape", ["empty", "row"])
def test_an_if_with_other_outputs_than_its_scan_stays(shape: str) -> None:
    """It may return a result twice, a constant, and a row where there are no steps."""
    weights = {"W": (3, 4), "R": (4, 4)}
    model = streamed_model(SCAN_IN_AN_IF.replace("SHAPE", shape), **weights)
    lifted = rnnlower.lift(model)
    assert [node.op_type for node in rnnlower.inspect(lifted)] == ["RNN"]
    for steps in (0, 1, 5):
        given = random_inputs(model, steps)
        for name in ("Y", "unit"):
            # onnxruntime gives a result of a branch once.
            np.testing.assert_allclose(run(lifted, given)[name], run(model, given)[name], atol=1e-6)
