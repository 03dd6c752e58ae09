"""Sequences without steps: a Loop or Scan returns its initial state, and so does what it is lowered to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import compose, numpy_helper
from support.cli_helpers import rnnlower as command_line
from support.cli_helpers import save
from support.judge import recurrent_left, run

import rnnlower
from rnnlower.engines.reference import Evaluator

RNN = "xw = MatMul (x, W)  hr = MatMul (h, R)  sum = Add (xw, hr)  h_new = Tanh (sum)"
GRU = """
    xz = MatMul (x, W)  hz = MatMul (h, R)  az = Add (xz, hz)  z = Sigmoid (az)
    xn = MatMul (x, W2)  hn = MatMul (h, R2)  an = Add (xn, hn)  n = Tanh (an)
    less = Sub (h, n)  part = Mul (z, less)  h_new = Add (n, part)
"""
LSTM = """
    xw = MatMul (x, W4)  hr = MatMul (h, R4)  sum = Add (xw, hr)
    ai, ao, af, ag = Split <axis = 1, num_outputs = 4> (sum)
    i = Sigmoid (ai)  o = Sigmoid (ao)  f = Sigmoid (af)  g = Tanh (ag)
    kept = Mul (f, c)  fresh = Mul (i, g)  c_new = Add (kept, fresh)  squashed = Tanh (c_new)
    h_new = Mul (o, squashed)
"""
STEPS = {"RNN": RNN, "GRU": GRU, "LSTM": LSTM}
SIZES = {"W": (3, 4), "R": (4, 4), "W2": (3, 4), "R2": (4, 4), "W4": (3, 16), "R4": (4, 16)}
NO_STEPS = "without steps"


def model_of(form: str, cell: str, *, reverse: bool = False, guard: str = "") -> onnx.ModelProto:
    """Return a model of open length that returns all H and the last states."""
    names = ["h", "c"] if cell == "LSTM" else ["h"]
    states = "".join(f", float[2, 4] {name}" for name in names)
    results = "".join(f", float[2, 4] {name}_out" for name in names)
    copies = " ".join(f"{name}_out = Identity ({name}_new)" for name in names) + " y = Identity (h_new)"
    starts, ends = "".join(f", {name}0" for name in names), ", ".join(f"{name}_end" for name in names)
    head = f"{ends}, Y = "
    if form == "scan":
        turned = ", scan_input_directions = [1], scan_output_directions = [1]" if reverse else ""
        loop = f"""{head} Scan <num_scan_inputs = 1, body = step ({states[2:]}, float[2, 3] x) =>
            ({results[2:]}, float[2, 4] y) {{ {STEPS[cell]} {copies} }}{turned}> ({starts[2:]}, X)"""
    else:
        place = "place = Sub (last_one, t)" if reverse else "place = Identity (t)"
        loop = f"""sizes = Shape (X)  T = Gather <axis = 0> (sizes, zero)  last_one = Sub (T, one)
            {head} Loop <body = step (int64 t, bool go{states}) =>
            (bool goes{results}, float[2, 4] y) {{
                {place}  x = Gather <axis = 0> (X, place)  goes = Identity (go) {STEPS[cell]} {copies}
            }}> (T, on{starts})"""
    after = guard or " ".join(f"{name}_last = Identity ({name}_end)" for name in names)
    text = f"""<ir_version: 10, opset_import: ["" : 18]>
    main (float[T, 2, 3] X{"".join(f", float[2, 4] {name}0" for name in names)})
    => (float[T, 2, 4] Y{"".join(f", float[2, 4] {name}_last" for name in names)})
    <int64 zero = {{0}}, int64 one = {{1}}, bool on = {{1}}, float nothing = {{0}}> {{
        {loop}
        {after}
    }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    used = set(STEPS[cell].replace("(", " ").replace(")", " ").replace(",", " ").split())
    model.graph.initializer.extend(
        numpy_helper.from_array(rng.normal(size=size).astype(np.float32), name)
        for name, size in SIZES.items()
        if name in used
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def inputs_of(model: onnx.ModelProto, steps: int) -> dict[str, np.ndarray]:
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
        inputs = inputs_of(source, steps)
        expected = Evaluator(source).run(inputs)
        for name, value in runner(result, inputs).items():
            np.testing.assert_allclose(
                value, expected[name], rtol=1e-5, atol=1e-5, err_msg=f"{name} of {steps}"
            )


ALL = [(form, cell) for form in ("scan", "loop") for cell in STEPS]


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("form", "cell"), ALL)
@pytest.mark.parametrize("command", ["scan", "loop"])
def test_the_first_states_are_the_last_ones(command: str, form: str, cell: str, reverse: bool) -> None:
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
def test_what_stays_a_node_is_told(form: str, cell: str, options: dict[str, str]) -> None:
    """onnxruntime's own operators return zeros, or end the process."""
    convert: Any = rnnlower.lower if options else rnnlower.lift
    result, report = convert.with_report(model_of(form, cell), **options)
    assert recurrent_left(result) == [cell]
    (note,) = [note for note in report.notes if NO_STEPS in note]
    assert ("ends the process" if cell == "GRU" else "returns 0") in note


def native() -> onnx.ModelProto:
    """Return a model of a node with initial states, whose last ones are read."""
    return rnnlower.lift(model_of("scan", "LSTM"))


GUARD = "any = Less (zero, T)  h_last = Where (any, h_end, nothing)  c_last = Where (any, c_end, nothing)"
CERTAIN: Mapping[str, tuple[Callable[[], onnx.ModelProto], dict[str, Any]]] = {
    "fixed length": (lambda: model_of("scan", "LSTM"), {"dims": {"T": 5}}),
    "spec": (lambda: model_of("scan", "LSTM"), {"semantics": "spec"}),
    "guard": (lambda: model_of("loop", "LSTM", guard=GUARD), {}),
    "emitted scan": (lambda: rnnlower.scan(native()), {}),
    "emitted loop": (lambda: rnnlower.loop(native()), {}),
    "states that nothing reads": (
        lambda: model_of("loop", "LSTM", guard="h_last = Tanh (h0)  c_last = Tanh (c0)"),
        {},
    ),
}


@pytest.mark.parametrize("case", CERTAIN)
def test_what_cannot_differ_is_not_told(case: str) -> None:
    make, options = CERTAIN[case]
    result, report = rnnlower.lift.with_report(make(), **options)
    assert recurrent_left(result) == ["LSTM"]
    assert NO_STEPS not in str(report.notes)


@pytest.mark.parametrize("command", ["scan", "loop"])
def test_a_node_of_the_source_does_as_onnxruntime(command: str) -> None:
    """The reader of a file that `lift` wrote has a node like others."""
    model = native()
    results = run(getattr(rnnlower, command)(model), inputs_of(model, 0))
    assert not results["h_last"].any()
    assert not results["c_last"].any()


def test_in_memory_a_lifted_model_is_like_its_file() -> None:
    model = model_of("scan", "LSTM")
    result = ir.to_proto(rnnlower.scan(rnnlower.lift(ir.from_proto(model))))
    assert not run(result, inputs_of(model, 0))["c_last"].any()


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


TWO_LAYERS = """<ir_version: 10, opset_import: ["" : 18]>
main (float[STEPS, 2, 3] X, float[2, 4] h0, float[2, 4] g0) => (float[STEPS, 2, 4] Y, float[2, 4] last) {
    h_end, last, Y = Scan <num_scan_inputs = 1, body = step (float[2, 4] h, float[2, 4] g, float[2, 3] x)
    => (float[2, 4] h_out, float[2, 4] g_out, float[2, 4] y) {
        xw = MatMul (x, W)  hr = MatMul (h, R)  sum = Add (xw, hr)  h_new = Tanh (sum)
        yw = MatMul (h_new, W2)  gr = MatMul (g, R)  sums = Add (yw, gr)  g_new = Tanh (sums)
        h_out = Identity (h_new)  g_out = Identity (g_new)  y = Identity (g_new)
    }> (h0, g0, X)
}"""


@pytest.mark.parametrize(("steps", "nodes"), [(0, []), (3, ["RNN", "RNN"])])
def test_a_second_layer_has_the_steps_of_the_first(steps: int, nodes: list[str]) -> None:
    model = onnx.parser.parse_model(TWO_LAYERS.replace("STEPS", str(steps)))
    for name, size in (("W", (3, 4)), ("W2", (4, 4)), ("R", (4, 4))):
        model.graph.initializer.append(numpy_helper.from_array(np.ones(size, np.float32), name))
    result, report = rnnlower.lift.with_report(model)
    assert recurrent_left(result) == nodes
    assert NO_STEPS not in str(report.notes)
