"""UnrollControlFlowPass: Loop and Scan nodes of the model itself as straight lines."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.control_judge import judge_control
from support.control_models import draw_model
from support.small_models import ops

import rnnlower
from rnnlower.passes import UnrollControlFlowPass

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


def unrolled(text: str, **options: bool) -> ir.Model:
    source = onnx.parser.parse_model(HEADER + text)
    own = ir.from_proto(source)
    UnrollControlFlowPass(**options)(own)
    result = ir.to_proto(own)
    onnx.checker.check_model(result, full_check=True)
    assert rnnlower.verify(source, result)
    return own


def test_a_loop_of_known_length_becomes_a_straight_line() -> None:
    own = unrolled("""
        main (float[2] x) => (float[2] y) <int64 n = {2}, bool on = {1}>
        {
            y = Loop (n, on, x) <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] g) {
                d = Identity (c)
                g = Add (h, x)
            }>
        }
    """)
    assert [op for op in ops(own) if op != "Identity"] == ["Add", "Add"]
    assert [value.name for value in own.graph.outputs] == ["y"]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_a_loop_that_passes_its_state_on(count: int) -> None:
    own = unrolled(f"""
        main (float[2] x) => (float[2] y, float[m, 2] all) <int64 n = {{{count}}}, bool on = {{1}}>
        {{
            y, all = Loop (n, on, x) <
                body = b (int64 i, bool c, float[2] h) => (bool c, float[2] h, float[2] s) {{ s = Neg (h) }}
            >
        }}
    """)
    assert "Loop" not in ops(own)


def test_a_symbol_of_the_body_is_another_size_in_each_iteration() -> None:
    own = unrolled("""
        main (float[1, 2] x) => (float[m, 2] y) <int64 n = {3}, bool on = {1}>
        {
            y = Loop (n, on, x) <body = b (int64 i, bool c, float[k, 2] h) => (bool d, float[l, 2] g) {
                d = Identity (c)
                sum = ReduceSum <keepdims = 0> (x)
                zero = Sub (sum, sum)
                grows = Less (zero, sum)
                g = If (grows) <
                    then_branch = yes () => (float[more, 2] g1) { g1 = Concat <axis = 0> (h, x) },
                    else_branch = no () => (float[less, 2] g2) { g2 = Identity (h) }
                >
            }>
        }
    """)
    ifs = [node for node in own.graph if node.op_type == "If"]
    grown = [branch.as_graph().outputs[0].shape for node in ifs for branch in node.attributes.values()]
    assert [str(dim) for shape in grown for dim in shape or () if not isinstance(dim, int)] == ["None"] * 6


_NUMBER_WITH_AN_AXIS = """
    main (float[3, 2] x, float[2] h0) => (float[2] y, float[m, 2] all) <int64 n = {3}, bool on = {1}>
    {
        y, all = Loop (n, on, h0) <
            body = b (int64[1] i, bool c, float[2] h) => (bool d, float[2] g, float[2] s)
            {
                d = Identity (c)
                axis = Constant <value_ints = [0]> ()
                number = Squeeze (i, axis)
                row = Gather (x, number)
                g = Mul (h, row)
                s = Identity (g)
            }
        >
    }
"""


def test_an_iteration_number_with_an_axis() -> None:
    """onnxruntime gives the body the number in the shape that the body declares."""
    assert "Loop" not in ops(unrolled(_NUMBER_WITH_AN_AXIS))


def test_the_squeeze_of_an_iteration_number_with_an_axis_stays() -> None:
    text = _NUMBER_WITH_AN_AXIS.replace("Squeeze (i, axis)", "Squeeze <axes = [0]> (i)")
    source = onnx.parser.parse_model(HEADER.replace("17", "12") + text)
    assert rnnlower.verify(source, rnnlower.unroll(source, fold=True))


def test_a_loop_without_a_limit_that_a_counter_ends() -> None:
    own = unrolled("""
        main (float[2] x) => (float[2] y) <int64 zero = {0}, int64 one = {1}, int64 four = {4}>
        {
            k, y = Loop ( , , zero, x) <
                body = b (int64 i, bool c, int64 a, float[2] h) => (bool d, int64 e, float[2] g) {
                    e = Add (a, one)
                    d = Less (e, four)
                    g = Add (h, x)
                }
            >
        }
    """)
    assert [op for op in ops(own) if op != "Identity"].count("Add") >= 4
    assert "Loop" not in ops(own)


def test_a_scan_over_another_axis_backwards() -> None:
    own = unrolled("""
        main (float[2, 3] x, float[2] h) => (float[2] y, float[2, 3] all)
        {
            y, all = Scan <
                num_scan_inputs = 1, scan_input_axes = [1], scan_output_axes = [-1],
                scan_input_directions = [1], scan_output_directions = [1],
                body = b (float[2] s, float[2] e) => (float[2] o, float[2] p) { o = Add (s, e)  p = Neg (o) }
            > (h, x)
        }
    """)
    assert "Scan" not in ops(own)
    assert ops(own).count("Add") == 3


OPEN = """
    main (float[2] x, int64 n) => (float[2] y) <bool on = {1}>
    {
        y = Loop (n, on, x) <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] g) {
            d = Identity (c)
            g = Add (h, x)
        }>
    }
"""

FILLED = """
    main (float[3, 2] x) => (float[3, 2] y) <int64 n = {3}> {
        none = SequenceEmpty ()
        rows = Loop (n, , none) <body = b (int64 i, bool c, seq(float[2]) s) => (bool c, seq(float[2]) more) {
            t = Gather (x, i)
            r = Tanh (t)
            more = SequenceInsert (s, r)
        }>
        y = ConcatFromSequence <axis = 0, new_axis = 1> (rows)
    }
"""


def test_what_is_open_stays_or_is_refused_by_name() -> None:
    own = ir.from_onnx_text(HEADER + OPEN)
    assert not UnrollControlFlowPass()(own).modified
    with pytest.raises(
        rnnlower.UnsupportedModelError, match=r"Loop node 'y': .* input 'n' decides it: sets="
    ):
        UnrollControlFlowPass(strict=True)(own)


def test_names_in_iterations_tell_where_they_come_from() -> None:
    model = rnnlower.unroll(onnx.parser.parse_model(HEADER + OPEN), sets={"n": 3}, control_flow="unroll")
    assert isinstance(model, onnx.ModelProto)
    assert [node.output[0] for node in model.graph.node] == ["y/0/g", "y/1/g", "y"]


def test_a_runtime_that_lacks_an_op_of_the_body_gets_a_straight_line() -> None:
    """OpenCV has Loop, but no sequences. What is inserted at a position is not stacked."""
    source = onnx.parser.parse_model(
        HEADER + FILLED.replace("more = SequenceInsert (s, r)", "j = Neg (i) more = SequenceInsert (s, r, j)")
    )
    lowered, report = rnnlower.lower.with_report(source, target="opencv")
    assert "'rows' became a straight line of 3 iterations" in report.notes
    assert not {"Loop", "SequenceInsert"} & {node.op_type for node in lowered.graph.node}
    assert rnnlower.verify(source, lowered)
    kept = rnnlower.lower(source, target="opencv", control_flow="keep")
    assert "Loop" in {node.op_type for node in kept.graph.node}


def test_too_long_a_line_is_refused() -> None:
    with pytest.raises(rnnlower.UnsupportedModelError, match="Loop node 'y': its 1,000,000 iterations"):
        rnnlower.unroll(onnx.parser.parse_model(HEADER + OPEN), sets={"n": 10**6}, control_flow="unroll")


@pytest.mark.parametrize("number", range(20))
def test_random_models_compute_the_same(number: int) -> None:
    rng = np.random.default_rng([2, number])
    assert judge_control(draw_model(rng), rng) == "right"


def test_a_scan_of_an_open_length_names_the_sizes_that_decide_it() -> None:
    source = onnx.parser.parse_model(
        HEADER
        + """
        main (float[T, 2] x) => (float[2] y, float[U, 2] all) <float[2] zero = {0, 0}>
        {
            y, all = Scan <num_scan_inputs = 1,
                           body = b (float[2] h, float[2] e) => (float[2] g, float[2] o) {
                g = Add (h, e)
                o = Identity (g)
            }> (zero, x)
        }
    """
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match="iterations is unknown") as caught:
        rnnlower.unroll(source, control_flow="unroll")
    assert "the sizes of input 'x' decide it: dims={\"T\": N}" in str(caught.value)
    assert "Scan" not in ops(ir.from_proto(rnnlower.unroll(source, control_flow="unroll", dims={"T": 3})))
