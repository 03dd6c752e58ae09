"""Straight lines that update a matrix become LinearAttention, or stay."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from lifting.test_attention import STAYS, STEP, drop_axis, random_feeds, scan
from support.judge import run

import rnnlower


def unrolled(step: str, steps: int, batch: int | None = None) -> onnx.ModelProto:
    """Return a line of a Scan's steps; without a batch size, for any."""
    dims = {"T": steps, **({} if batch is None else {"B": batch})}
    line = rnnlower.unroll(scan(drop_axis(step)), control_flow="unroll", lift=False, dims=dims)
    assert not {"LinearAttention", "Scan"} & {node.op_type for node in line.graph.node}
    return line


def compare(model: onnx.ModelProto, lifted: onnx.ModelProto, steps: int, batches: tuple[int, ...]) -> None:
    for batch in batches:
        feeds = random_feeds(steps, batch)
        if len(model.graph.input) == 3:
            feeds = {
                name: np.swapaxes(value, 0, 1) if name in "KV" else value for name, value in feeds.items()
            }
        got = run(lifted, {each.name: feeds[each.name] for each in lifted.graph.input})
        for name, want in run(model, {each.name: feeds[each.name] for each in model.graph.input}).items():
            assert np.abs(got[name] - want).max() < 1e-4 * max(1, np.abs(want).max()), name


@pytest.mark.parametrize(("steps", "batch"), [(5, None), (17, 2)])
@pytest.mark.parametrize("step", STEP)
def test_a_line_becomes_a_linear_attention(step: str, steps: int, batch: int | None) -> None:
    model = unrolled(STEP[step], steps, batch)
    lifted, report = rnnlower.lift.with_report(model)
    assert [(node.form, node.op_type) for node in report.nodes] == [("line", "LinearAttention")]
    assert len(lifted.graph.node) < 80
    compare(model, lifted, steps, (1, 3) if batch is None else (batch,))


@pytest.mark.parametrize("step", [step for step in STAYS if step != "activation"])
def test_other_lines_stay(step: str) -> None:
    model = unrolled(STAYS[step], 5)
    lifted, report = rnnlower.lift.with_report(model)
    assert not any(node.op_type for node in report.nodes)
    assert [node.op_type for node in lifted.graph.node] == [node.op_type for node in model.graph.node]


LINE = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[2, 5, 4] K, float[2, 5, 4] V, float[2, 4, 4] S) => (OUTPUTS)
    <int64 p0 = {0}, int64 p1 = {1}, int64 p2 = {2}, int64 p3 = {3}, int64 p4 = {4}, int64[1] at1 = {1},
     int64[1] at2 = {2}, float d0 = {0.9}, float d1 = {0.9}, float d2 = {0.9}, float d3 = {DECAY},
     float d4 = {0.9}, float[2, 4, 4] zero = {ZEROS}> {
    s0 = Identity (START)
"""
READ = """k# = Gather <axis = 1> (K, pPLACE) v# = Gather <axis = 1> (V, pPLACE)
    kw# = Unsqueeze (k#, at2) vw# = Unsqueeze (v#, at1) w# = Mul (kw#, vw#)
"""
UPDATE = "m# = Mul (s#, d#) sNEXT = Add (m#, w#)"
OUTPUT = """ q# = Unsqueeze (k#, at1) o# = MatMul (q#, sNEXT)
"""
JOIN = "O = Concat <axis = 1> (o0, o1, o2, o3, o4)"


def make_line(
    places: str = "01234",
    updates: dict[int, str] | None = None,
    *,
    decay: str = "0.9",
    start: str = "S",
    end: str = JOIN,
    outputs: str = "float[2, 5, 4] O, float[2, 4, 4] s5",
) -> onnx.ModelProto:
    """Return a line of five steps.

    Args:
        places: The elements that the steps read, in their order.
        updates: How steps compute the new state, if otherwise than the others.
    """
    text = LINE.replace("OUTPUTS", outputs).replace("DECAY", decay).replace("START", start)
    text = text.replace("ZEROS", ", ".join("0" * 32))
    for number, place in enumerate(places):
        step = READ.replace("PLACE", place) + (updates or {}).get(number, UPDATE) + OUTPUT
        text += step.replace("NEXT", str(number + 1)).replace("#", str(number))
    return onnx.parser.parse_model(f"{text} {end} }}")


FOLDED = "sNEXT = Identity (w#)"
SUBTRACTED = "m# = Mul (s#, d#) sNEXT = Sub (m#, w#)"
JOINED_BACK = "O = Concat <axis = 1> (o4, o3, o2, o1, o0)"


@pytest.mark.parametrize(
    "model",
    [
        make_line(),
        make_line(start="zero"),
        make_line(updates={0: FOLDED}),
        make_line("43210"),
        make_line("43210", end=JOINED_BACK),
        make_line("12340"),
        make_line(decay="0.5"),
        make_line(updates={1: SUBTRACTED}),
        make_line(end=f"{JOIN} E = Exp (o4)", outputs="float[2, 5, 4] O, float[2, 1, 4] E"),
        make_line(end="O = Concat <axis = 0> (o1, o0, o2, o3, o4)", outputs="float[10, 1, 4] O"),
        make_line(end=f"{JOIN} E = Exp (s5)", outputs="float[2, 5, 4] O, float[2, 4, 4] E"),
    ],
    ids=[
        "a given state",
        "zeros",
        "the first step without a state",
        "backward",
        "backward, joined forward",
        "in another order",
        "another decay in one step",
        "the second step differs",
        "the last result is read again",
        "joined in another order",
        "the last state is read",
    ],
)
def test_steps_of_any_line(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model, full_check=True)
    lifted, report = rnnlower.lift.with_report(model)
    onnx.checker.check_model(lifted, full_check=True)
    assert [(node.form, node.op_type) for node in report.nodes] == [("line", "LinearAttention")]
    compare(model, lifted, 5, (2,))


@pytest.mark.parametrize(
    "model",
    [
        make_line(outputs="float[2, 5, 4] O, float[2, 4, 4] s3"),
        make_line(end=f"{JOIN} E = Exp (o2)", outputs="float[2, 5, 4] O, float[2, 1, 4] E"),
        make_line(updates={3: SUBTRACTED}),
        make_line(updates={4: SUBTRACTED}),
        make_line(updates={2: "m# = Mul (s1, d#) sNEXT = Add (m#, w#)"}),
        make_line(decay="-0.5"),
    ],
    ids=[
        "a state within is an output",
        "a result is read again",
        "the fourth step differs",
        "the last step differs",
        "a step reads an older state",
        "a negative factor",
    ],
)
def test_steps_that_are_no_line(model: onnx.ModelProto) -> None:
    onnx.checker.check_model(model, full_check=True)
    compare(model, rnnlower.lift(model), 5, (2,))


EACH = ", ".join(f"float[2, 1, 4] o{step}" for step in range(5))


@pytest.mark.parametrize("outputs", [EACH, f"{EACH}, float[2, 4, 4] s5"], ids=["results", "and the state"])
def test_the_result_of_each_step_is_an_output(outputs: str) -> None:
    model = make_line(end="", outputs=outputs)
    lifted, report = rnnlower.lift.with_report(model)
    assert [node.op_type for node in report.nodes] == ["LinearAttention"]
    assert [value.name for value in lifted.graph.output] == [value.name for value in model.graph.output]
    compare(model, lifted, 5, (2,))


@pytest.mark.parametrize("dtype", [onnx.TensorProto.FLOAT16, onnx.TensorProto.INT64])
def test_elements_that_are_rounded_stay_so(dtype: int) -> None:
    text = make_line()
    for place, node in reversed([*enumerate(text.graph.node)]):
        if node.op_type == "Gather" and node.output[0].startswith("v"):
            (out,) = node.output
            node.output[0] = f"{out}_whole"
            back = onnx.helper.make_node("Cast", [f"{out}_rounded"], [out], to=onnx.TensorProto.FLOAT)
            there = onnx.helper.make_node("Cast", [f"{out}_whole"], [f"{out}_rounded"], to=dtype)
            text.graph.node.insert(place + 1, back)
            text.graph.node.insert(place + 1, there)
    onnx.checker.check_model(text, full_check=True)
    lifted = rnnlower.lift(text)
    feeds = random_feeds(5, 2)
    feeds = {"K": np.swapaxes(feeds["K"], 0, 1), "V": 1000 * np.swapaxes(feeds["V"], 0, 1), "S": feeds["S"]}
    got = run(lifted, feeds)
    for name, want in run(text, feeds).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-3, err_msg=name)


def test_results_that_branches_join_with_their_own_values() -> None:
    branch = "{name} () => (float[2, 6, 4] {name}_y) {{ {name}_x = {op} (o0) "
    branch += "{name}_y = Concat <axis = 1> ({name}_x, o0, o1, o2, o3, o4) }}"
    ends = [branch.format(name=name, op=op) for name, op in (("one", "Exp"), ("other", "Tanh"))]
    condition = "total = ReduceSum <keepdims = 0> (K) is_positive = Greater (total, d0) "
    end = f"{condition} O = If (is_positive) <then_branch = {ends[0]}, else_branch = {ends[1]}>"
    model = make_line(end=end, outputs="float[2, 6, 4] O")
    onnx.checker.check_model(model, full_check=True)
    lifted, report = rnnlower.lift.with_report(model)
    onnx.checker.check_model(lifted, full_check=True)
    assert [node.op_type for node in report.nodes] == ["LinearAttention"]
    compare(model, lifted, 5, (2,))


def test_inputs_of_steps_that_are_computed_by_many_operators() -> None:
    model = make_line()
    for step in range(5):
        place = next(n for n, node in enumerate(model.graph.node) if node.output[0] == f"v{step}")
        model.graph.node[place].output[0] = f"v{step}_0"
        for number in range(400):
            names = [f"v{step}_{number}"], [f"v{step}" if number == 399 else f"v{step}_{number + 1}"]
            model.graph.node.insert(place + 1 + number, onnx.helper.make_node("Tanh", *names))
    lifted, report = rnnlower.lift.with_report(model)
    assert [node.op_type for node in report.nodes] == ["LinearAttention"]
    compare(model, lifted, 5, (2,))


def test_steps_that_read_no_inputs(caplog: pytest.LogCaptureFixture) -> None:
    same = dict.fromkeys(range(5), "m# = Mul (s#, d0) sNEXT = Add (m#, S)")
    model = make_line(updates=same, end="O = Exp (s5)", outputs="float[2, 4, 4] O")
    lifted, report = rnnlower.lift.with_report(model)
    assert [node.reason for node in report.nodes] == ["its steps read no inputs"]
    assert not caplog.records
    compare(model, lifted, 5, (2,))
