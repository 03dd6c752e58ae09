"""ResolveSequencesPass: what reads a sequence reads its elements."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

import rnnlower
from rnnlower.graph.walk import walk
from rnnlower.passes import ResolveSequencesPass

HEADER = '<ir_version: 8, opset_import: ["" : {opset}]>\n'


def resolved(text: str, opset: int = 17) -> list[str]:
    """Return the operators that are left; the numbers are the source's."""
    source = onnx.parser.parse_model(HEADER.format(opset=opset) + text)
    own = ir.from_proto(source)
    ResolveSequencesPass()(own)
    result = ir.to_proto(own)
    onnx.checker.check_model(result, full_check=True)
    assert rnnlower.verify(source, result)
    return [node.op_type for node, _ in walk(own.graph)]


def test_inserted_and_joined_tensors_become_a_concat() -> None:
    assert resolved("""
        main (float[2] a, float[2] b) => (float[2, 2] y)
        {
            none = SequenceEmpty ()
            one = SequenceInsert (none, a)
            two = SequenceInsert (one, b)
            y = ConcatFromSequence <axis = 0, new_axis = 1> (two)
        }
    """) == ["Unsqueeze", "Unsqueeze", "Concat"]


@pytest.mark.parametrize("place", ["0", "1", "2", "-1", "-2"])
def test_an_insertion_at_any_constant_position_becomes_a_concat(place: str) -> None:
    ops = resolved(f"""
        main (float[2] a, float[2] b, float[2] c) => (float[2] y, float[4] z)
            <int64 place = {{{place}}}, int64 first = {{0}}, int64 last = {{-1}}>
        {{
            two = SequenceConstruct (a, b)
            three = SequenceInsert (two, c, place)
            y = SequenceAt (three, last)
            fewer = SequenceErase (three, first)
            z = ConcatFromSequence <axis = -1> (fewer)
        }}
    """)
    assert set(ops) == {"Identity", "Concat"}


@pytest.mark.parametrize("opset", [11, 13, 18])
@pytest.mark.parametrize("how", ["x, three", "x, parts", "x"])
def test_a_split_sequence_becomes_tensors(opset: int, how: str) -> None:
    ops = resolved(
        f"""
        main (float[2, 4] x) => (float[2, m] y, int64 n)
            <int64 three = {{3}}, int64[2] parts = {{1, 3}}, int64 first = {{0}}>
        {{
            s = SplitToSequence <axis = 1> ({how})
            e = SequenceAt (s, first)
            y = Neg (e)
            n = SequenceLength (s)
        }}
        """,
        opset,
    )
    assert not {"SplitToSequence", "SequenceAt", "SequenceLength"} & set(ops)


def test_a_sequence_read_at_an_unknown_position_stays() -> None:
    ops = resolved("""
        main (float[2] a, float[2] b, int64 sign) => (float[2] y, seq(float[2]) s)
            <int64 zero = {0}, int64 one = {1}>
        {
            s = SequenceConstruct (a, b)
            is = Greater (sign, zero)
            place = Cast <to = 7> (is)
            y = SequenceAt (s, place)
        }
    """)
    assert ops.count("SequenceAt") == ops.count("SequenceConstruct") == 1


def test_a_scalar_split_may_drop_the_axis() -> None:
    """onnxruntime heeds keepdims there, too."""
    assert "SequenceAt" not in resolved("""
        main (float[2, 4] x) => (float[2] y) <int64 one = {1}, int64 place = {2}>
        {
            pieces = SplitToSequence <axis = 1, keepdims = 0> (x, one)
            y = SequenceAt (pieces, place)
        }
    """)
