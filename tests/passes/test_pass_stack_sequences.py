"""StackSequencesPass: what a Loop appends to a sequence is stacked, if it is only concatenated."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import rnnlower
from rnnlower.passes import StackSequencesPass

MODEL = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[T, 2, 3] x, float[2, 3] h, int64 n) => ({outputs}) <int64 one = {{1}}, int64 first = {{0}}>
    {{
        none = SequenceEmpty ()
        other = SequenceEmpty ()
        last, all, doubled = Loop (n, , h, none, other) <body = each
            (int64 i, bool c, float[2, 3] g, seq(float) a, seq(float) b)
            => (bool c, float[2, 3] g_out, seq(float) a_out, seq(float) b_out) {{
            {step}
        }}>
        {reader}
    }}
"""
STEP = """
    x_t = Gather (x, first)
    s = Add (g, x_t)
    g_out = Tanh (s)
    a_out = SequenceInsert (a, g_out)
    r = Add (g, g)
    b_out = SequenceInsert (b, r)
"""
READER = "y = ConcatFromSequence {how} (all)  z = ConcatFromSequence <axis = 0, new_axis = 1> (doubled)"
OUTPUTS = "float[a, b, c] y, float[d, e, f] z, float[2, 3] last"


def stacked(
    step: str = STEP, reader: str = READER, how: str = "<axis = 0, new_axis = 1>", outputs: str = OUTPUTS
) -> tuple[onnx.ModelProto, set[str]]:
    return stacked_text(MODEL.format(step=step, reader=reader.format(how=how), outputs=outputs))


def stacked_text(text: str) -> tuple[onnx.ModelProto, set[str]]:
    source = onnx.parser.parse_model(text)
    own = ir.from_proto(source)
    StackSequencesPass()(own)
    result = ir.to_proto(own)
    onnx.checker.check_model(result, full_check=True)
    assert rnnlower.verify(source, result)
    (loop,) = [node for node in result.graph.node if node.op_type == "Loop"]
    inner = {node.op_type for node in loop.attribute[0].g.node}
    return result, {node.op_type for node in result.graph.node} | inner


@pytest.mark.parametrize("axis", [0, 1, 2, -1, -2, -3])
def test_elements_are_stacked_on_a_new_axis(axis: int) -> None:
    _, used = stacked(how=f"<axis = {axis}, new_axis = 1>")
    assert not {op_type for op_type in used if "Sequence" in op_type}
    assert ("Transpose" in used) == (axis % 3 > 0)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_are_joined_along_an_axis_of_theirs(axis: int) -> None:
    _, used = stacked(how=f"<axis = {axis}>", outputs=OUTPUTS.replace("float[a, b, c]", "float[a, b]"))
    assert not {op_type for op_type in used if "Sequence" in op_type}
    assert "Reshape" in used


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_elements_of_size_1_are_joined_beside_open_sizes(axis: int) -> None:
    step = STEP.replace("(a, g_out)", "(a, row)").replace("s = Add", "row = Unsqueeze (g, at)  s = Add")
    source = MODEL.format(
        step=f"at = Constant <value_ints = [{axis}]> () {step}",
        reader=READER.format(how=f"<axis = {axis}>"),
        outputs=OUTPUTS,
    )
    _, used = stacked_text(source.replace("2, 3]", "B, 3]"))
    assert "Squeeze" in used
    assert not {op_type for op_type in used if "Sequence" in op_type}


def test_more_is_known_of_a_loop_around_another_that_stacks() -> None:
    inner = """
        empty = SequenceEmpty ()
        kept, parts = Loop (two, , g_out, empty) <body = part (int64 j, bool d, float[2, 3] k, seq(float) p)
            => (bool d, float[2, 3] k_out, seq(float) p_out) {
                k_out = Neg (k)
                p_out = SequenceInsert (p, k_out)
            }>
        r = ConcatFromSequence <axis = 0> (parts)
    """
    step = "two = Constant <value_int = 2> ()" + STEP.replace("r = Add (g, g)", inner)
    _, used = stacked(step)
    assert not {op_type for op_type in used if "Sequence" in op_type}


def test_a_sequence_may_be_read_twice_and_elements_may_come_from_outside() -> None:
    reader = READER + "  again = ConcatFromSequence <axis = 1> (all)"
    _, used = stacked(STEP.replace("(b, r)", "(b, h)"), reader, outputs=OUTPUTS + ", float[u, v] again")
    assert not {op_type for op_type in used if "Sequence" in op_type}


@pytest.mark.parametrize("place", ["", ", first", ", i", ", j"])
@pytest.mark.parametrize("position", ["first", "minus", "minus_1d"])
def test_elements_are_read_by_position_and_counted(place: str, position: str) -> None:
    step = "j = Cast <to = 6> (i)" + STEP.replace("(a, g_out)", f"(a, g_out{place})")
    reader = f"""
        minus = Constant <value_int = -1> ()
        minus_1d = Constant <value_ints = [-1]> ()
        y = SequenceAt (all, {position})
        z = SequenceLength (all)
        v = ConcatFromSequence <axis = 1> (all)
    """
    _, used = stacked(step, reader, outputs="float[2, 3] y, int64 z, float[u, v] v")
    assert not {op_type for op_type in used if "Sequence" in op_type}


@pytest.mark.parametrize("split", ["", ", unit", ", ones"])
@pytest.mark.parametrize("keepdims", [0, 1])
def test_slices_are_read_from_the_tensor(split: str, keepdims: int) -> None:
    """onnxruntime and PyTorch's exporter heed keepdims also beside a scalar split."""
    time = "5" if split == ", ones" else "T"
    slice_ = "a, b, c" if keepdims == 1 or split == ", ones" else "a, b"
    source = onnx.parser.parse_model(f"""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[2, {time}, 3] x, float h) => (float[{slice_}] y, float last, int64 n)
        <int64 unit = {{1}}, int64[5] ones = {{1, 1, 1, 1, 1}}, int64 end = {{-1}}> {{
            pieces = SplitToSequence <axis = 1, keepdims = {keepdims}> (x{split})
            n = SequenceLength (pieces)
            last = Loop (n, , h) <body = each (int64 i, bool c, float g) => (bool c, float g_out) {{
                x_t = SequenceAt (pieces, i)
                s = ReduceSum <keepdims = 0> (x_t)
                a = Add (g, s)
                g_out = Tanh (a)
            }}>
            y = SequenceAt (pieces, end)
        }}
    """)
    own = ir.from_proto(source)
    StackSequencesPass()(own)
    result = ir.to_proto(own)
    assert not {node.op_type for node in result.graph.node if "Sequence" in node.op_type}
    assert rnnlower.verify(source, result)


STAYS = {
    "a position": (
        STEP.replace("a_out = SequenceInsert (a, g_out)", "j = Neg (i) a_out = SequenceInsert (a, g_out, j)"),
        READER,
    ),
    "read by others": (STEP, READER + "  rest = SequenceErase (all)  v = SequenceLength (rest)"),
    "read in the body": (STEP + "at = SequenceInsert (a, r)", READER),
    "only now and then": (
        STEP.replace(
            "a_out = SequenceInsert (a, g_out)",
            "a_out = If (c) <then_branch = p () => (seq(float) k) { k = SequenceInsert (a, g_out) }, "
            "else_branch = q () => (seq(float) l) { l = Identity (a) }>",
        ),
        READER,
    ),
}


@pytest.mark.parametrize("case", STAYS)
def test_other_sequences_stay(case: str) -> None:
    step, reader = STAYS[case]
    _, used = stacked(step, reader)
    assert {"SequenceEmpty", "ConcatFromSequence", "Transpose"} - used == {"Transpose"}


@pytest.mark.parametrize("other", ["a", "a_out"])
def test_a_sequence_that_another_state_takes_stays(other: str) -> None:
    text = MODEL.format(
        step=STEP,
        reader="y = ConcatFromSequence <axis = 0> (all)  z = SequenceLength (doubled)",
        outputs="float[a, b] y, int64 z",
    )
    _, used = stacked_text(text.replace("seq(float) b_out", f"seq(float) {other}"))
    assert "ConcatFromSequence" in used


@pytest.mark.parametrize(
    ("make", "axis"),
    [
        ("size = Constant <value_ints = [2, 0, 3]> ()  e = ConstantOfShape (size)", 0),
        ("size = Constant <value_ints = [0, 3]> ()  e = ConstantOfShape (size)", 1),
        ("e = Constant <value_float = 1.0> ()", 0),
    ],
)
def test_elements_without_axes_or_numbers_stay(make: str, axis: int) -> None:
    source = onnx.parser.parse_model(
        MODEL.format(
            step=make + STEP.replace("(a, g_out)", "(a, e)"),
            reader=f"y = ConcatFromSequence <axis = {axis}> (all)",
            outputs="float[2, 3] last",
        )
    )
    result = StackSequencesPass()(ir.from_proto(source)).model
    assert "ConcatFromSequence" in {node.op_type for node in result.graph}


def test_pieces_of_changing_sizes_stay() -> None:
    step = STEP.replace(
        "b_out = SequenceInsert (b, r)",
        """
        from = Unsqueeze (i, at)
        cut = Slice (r, from, ends, at)
        b_out = SequenceInsert (b, cut)
    """,
    )
    step += "  at = Constant <value_ints = [0]> ()  ends = Constant <value_ints = [2]> ()"
    lines = step.split("  at = Constant")
    reader = READER.replace("<axis = 0, new_axis = 1> (doubled)", "<axis = 0> (doubled)")
    outputs = OUTPUTS.replace("float[d, e, f]", "float[d, e]")
    _, used = stacked(f"at = Constant{lines[1]}{lines[0]}", reader, outputs=outputs)
    assert "SequenceInsert" in used


@pytest.mark.parametrize(
    ("reader", "result"),
    [("y = SequenceAt (all, minus)", "float[a, 2, 3] y"), ("y = SequenceLength (all)", "int64 y")],
)
def test_elements_that_grow_are_not_stacked(reader: str, result: str) -> None:
    start = "start = Constant <value_ints = [0]> ()  next = Add (i, one)  end = Unsqueeze (next, start)"
    step = f"{start}  part = Slice (x, start, end, start)" + STEP.replace("(a, g_out)", "(a, part)")
    reader = f"minus = Constant <value_int = -1> ()  {reader}"
    _, used = stacked(step, reader, outputs=f"{result}, float[2, 3] last")
    assert "SequenceInsert" in used
