"""Loops of the model itself, as converters write recurrences, on a target that has Loop."""

from __future__ import annotations

import onnx
import pytest
from support.judge import all_nodes
from support.padded_models import padded_case
from support.runtimes import RUNTIMES

import rnnlower

BY_NUMBER = "x_t = Gather (x, i)"
BY_NUMBER_KEPT = "row = Unsqueeze (i, first) rows = Gather (x, row) x_t = Squeeze (rows, first)"
BY_TIME = "x_t = Gather (x, time)"


def masked_model(gather: str, outputs: str = "float[2, 3] h, float[5, 2, 3] Y") -> onnx.ModelProto:
    """Build a recurrence with a mask, which a counter of its own ends after 5 steps."""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 13]>
        main (float[5, 2, 3] x, bool[5, 2, 1] mask) => ({outputs})
        <int64 zero = {{0}}, int64 one = {{1}}, int64 five = {{5}}, int64 trips = {{9223372036854775807}},
         bool go = {{1}}, int64[1] first = {{0}}, float[2, 3] h_0 = {{0, 0, 0, 0, 0, 0}},
         float[3, 3] R = {{0.5, 0.2, -0.3, 0.1, -0.6, 0.4, 0.7, 0.2, 0.3}}>
        {{
            t, h, Y = Loop (trips, go, zero, h_0) <
                body = step (int64 i, bool more, int64 time, float[2, 3] state)
                    => (bool below, int64 later, float[2, 3] new, float[2, 3] shown) {{
                    later = Add (time, one)
                    below = Less (later, five)
                    {gather}
                    product = MatMul (state, R)
                    sum = Add (x_t, product)
                    made = Tanh (sum)
                    keep = Gather (mask, time)
                    new = Where (keep, made, state)
                    shown = Identity (new)
                }}
            >
        }}""")


@pytest.mark.parametrize(
    ("gather", "target", "squeezed"),
    [
        (BY_NUMBER, "opencv", True),
        (BY_NUMBER_KEPT, "opencv", True),
        (BY_TIME, "opencv", False),
        (BY_NUMBER, "onnxruntime", False),
    ],
)
def test_an_iteration_number_with_axes_is_squeezed(gather: str, target: str, squeezed: bool) -> None:
    source = masked_model(gather)
    lowered = rnnlower.lower(source, target=target)
    nodes = list(all_nodes(lowered))
    assert "Loop" in {node.op_type for node in nodes}
    assert any(node.op_type == "Squeeze" and len(node.input) == 1 for node in nodes) == squeezed
    assert rnnlower.verify(source, lowered)


@pytest.mark.parametrize("gather", [BY_NUMBER, BY_NUMBER_KEPT, BY_TIME])
@pytest.mark.parametrize("shown", ["float[2, 3] h, float[5, 2, 3] Y", "float[2, 3] h"])
def test_loops_are_equal_on_opencv(gather: str, shown: str) -> None:
    engine = RUNTIMES["opencv"].engine
    if engine.missing:
        pytest.skip(engine.missing)
    source = masked_model(gather, outputs=shown)
    lowered = rnnlower.lower(source, target="opencv")
    assert rnnlower.verify(source, lowered, on="opencv")


def test_a_loop_that_makes_the_only_output() -> None:
    """OpenCV refuses it without another node behind it."""
    source = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 13]>
        main (float[2, 4] x) => (float[2, 4] y) <int64 trips = {3}, bool go = {1}> {
            y = Loop (trips, go, x) <body = step (int64 i, bool more, float[2, 4] h)
                => (bool again, float[2, 4] new) {
                again = Identity (more)
                sum = Add (h, x)
                new = Tanh (sum)
            }>
        }""")
    lowered = rnnlower.lower(source, target="opencv")
    assert [node.op_type for node in lowered.graph.node] == ["Loop", "Cast"]
    assert rnnlower.verify(source, lowered)


NUMBERED = """<ir_version: 8, opset_import: ["" : 13]>
    main (float[2, 3] x) => (float[2, 3] y, int64 last, {type} numbers)
    <int64 trips = {{5}}, bool go = {{1}}, int64 zero = {{0}}, int64[1] first = {{0}}> {{
        y, last, numbers = Loop (trips, go, x, zero) <
            body = step (int64 i, bool more, float[2, 3] h, int64 p)
                => (bool again, float[2, 3] new, int64 q, {type_of_one} n) {{
                again = Identity (more)
                new = Tanh (h)
                q = Add (i, p)
                {made}
            }}
        >
    }}"""


@pytest.mark.parametrize(
    ("made", "type_of_one", "type_"),
    [
        ("n = Identity (i)", "int64", "int64[5]"),
        ("n = Mul (i, p)", "int64", "int64[5]"),
        ("n = Cast <to = 1> (i)", "float", "float[5]"),
        ("n = Unsqueeze (i, first)", "int64[1]", "int64[5, 1]"),
    ],
)
def test_a_loop_that_returns_its_own_number_is_right_on_opencv(
    made: str, type_of_one: str, type_: str
) -> None:
    engine = RUNTIMES["opencv"].engine
    if engine.missing:
        pytest.skip(engine.missing)
    source = onnx.parser.parse_model(NUMBERED.format(made=made, type_of_one=type_of_one, type=type_))
    lowered = rnnlower.lower(source, target="opencv")
    assert rnnlower.verify(source, lowered, on="opencv")


@pytest.mark.parametrize(
    "made",
    [
        "again = Identity (more)",
        "again = Cast <to = 9> (more)",
        "below = Less (i, steps) again = And (more, below)",
    ],
)
def test_the_condition_of_more_than_256_iterations_is_right_on_opencv(made: str) -> None:
    """It is where the number's low byte is, which then is 0."""
    engine = RUNTIMES["opencv"].engine
    if engine.missing:
        pytest.skip(engine.missing)
    source = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 13]>
        main (float[300, 3] x) => (float[3] y)
        <int64 steps = {{300}}, bool go = {{1}}, float[3] h_0 = {{0, 0, 0}}> {{
            y = Loop (steps, go, h_0) <body = step (int64 i, bool more, float[3] h)
                => (bool again, float[3] new) {{
                x_t = Gather (x, i)
                new = Add (x_t, h)
                {made}
            }}>
        }}""")
    lowered = rnnlower.lower(source, target="opencv")
    assert rnnlower.verify(source, lowered, on="opencv")


@pytest.mark.parametrize(
    "name", ["Scan", "Scan from the end", "Loop with attention to all steps", "Loop of tokens"]
)
@pytest.mark.parametrize("target", ["tract", "mnn", "opencv"])
def test_a_cell_of_any_length_runs_where_lengths_are_fixed(name: str, target: str) -> None:
    source = padded_case(name)
    lowered = rnnlower.lower(source, target=target, max={"T": 6})
    assert target != "tract" or "Loop" not in {node.op_type for node in all_nodes(lowered)}
    assert rnnlower.verify(source, lowered)
    engine = RUNTIMES[target].engine
    assert engine.missing or rnnlower.verify(source, lowered, on=target)


def nested_model(inner: str) -> onnx.ModelProto:
    """Build a Scan over three layers, each of which runs over 40 steps."""
    return onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[40, 1, 2] x, float[3, 2] layers) => (float[40, 1, 2] y)
        <float[1, 2] start = {{0, 0}}, int64[1] second = {{1}}, float[1, 2, 2] W = {{0.5, 0.2, -0.3, 0.1}},
         float[1, 2, 2] R = {{0.4, -0.2, 0.3, 0.6}}>
        {{
            y = Scan <num_scan_inputs = 1, body = outer (float[40, 1, 2] s, float[2] layer)
                => (float[40, 1, 2] after) {{ {inner} }}>(x, layers)
        }}""")


@pytest.mark.parametrize(
    "inner",
    [
        """last, after = Scan <num_scan_inputs = 1, body = step (float[1, 2] h, float[1, 2] u)
            => (float[1, 2] new, float[1, 2] shown) {
            part = Mul (h, layer) new = Add (part, u) shown = Identity (new) }> (start, s)""",
        "m = Mul (s, layer) h = RNN <hidden_size = 2> (m, W, R) after = Squeeze (h, second)",
    ],
)
def test_a_target_gets_no_loop_in_the_body_of_another_that_takes_none(inner: str) -> None:
    source = nested_model(inner)
    lowered = rnnlower.lower(source, target="tract")
    for node in all_nodes(lowered):
        bodies = [each.g.node for each in node.attribute if each.HasField("g")]
        assert not bodies or "Scan" not in {each.op_type for each in bodies[0]}
    assert rnnlower.verify(source, lowered)
    reasons = [misfit.reason for misfit in rnnlower.check(source, target="tract")]
    assert any("no Loop or Scan in its body" in reason for reason in reasons) == ("Scan <" in inner)
