"""TakeBranchesPass: Ifs that constants and static sizes decide give way to a branch."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from support.small_models import ops

import rnnlower
from rnnlower.passes import TakeBranchesPass

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'


def with_branches_taken(text: str) -> tuple[ir.Model, TakeBranchesPass]:
    source = onnx.parser.parse_model(HEADER + text)
    own = ir.from_proto(source)
    taking = TakeBranchesPass()
    taking(own)
    result = ir.to_proto(own)
    onnx.checker.check_model(result, full_check=True)
    assert rnnlower.verify(source, result)
    return own, taking


def test_a_constant_condition_takes_its_branch() -> None:
    own, taking = with_branches_taken("""
        main (float[2] x) => (float[2] y) <bool yes = {1}>
        {
            n = If (yes) <then_branch = p () => (float[2] a) { a = Neg (x) },
                          else_branch = q () => (float[2] b) { b = Abs (x) }>
            y = Exp (n)
        }
    """)
    assert ops(own) == ["Neg", "Exp"]
    assert taking.taken == {"n": "then_branch"}


def test_ifs_in_branches_and_names_that_branches_share() -> None:
    own, _ = with_branches_taken("""
        main (float[2, 3] x, bool c) => (float[2, 3] y, float[2, 3] z) <int64 one = {1}>
        {
            r = Shape (x)
            k = Size (r)
            flat = Equal (k, one)
            y = If (flat) <
                then_branch = p () => (float[2, 3] a) { a = Neg (x) },
                else_branch = q () => (float[2, 3] b) {
                    b = If (flat) <
                        then_branch = p2 () => (float[2, 3] a) { a = Neg (x) },
                        else_branch = q2 () => (float[2, 3] a) { t = Abs (x)  a = Exp (t) }
                    >
                }
            >
            z = If (c) <
                then_branch = p3 () => (float[2, 3] u) { t = Abs (x)  u = Neg (t) },
                else_branch = q3 () => (float[2, 3] v) { v = Add (y, x) }
            >
        }
    """)
    assert ops(own).count("If") == 1
    assert [value.name for value in own.graph.outputs] == ["y", "z"]


@pytest.mark.parametrize("body", ["a = Identity (x)", "a = Identity (w)", "a = Neg (x)"])
def test_a_graph_output_keeps_its_name_whatever_the_branch_gives(body: str) -> None:
    own, _ = with_branches_taken(f"""
        main (float[2] x) => (float[2] y, float[2] z) <bool yes = {{1}}, float[2] w = {{1, 2}}>
        {{
            y = If (yes) <then_branch = p () => (float[2] a) {{ {body} }},
                          else_branch = q () => (float[2] b) {{ b = Abs (x) }}>
            z = Exp (y)
        }}
    """)
    assert "If" not in ops(own)


def test_an_undecided_if_stays() -> None:
    own, taking = with_branches_taken("""
        main (float[2] x, bool c) => (float[2] y)
        {
            y = If (c) <then_branch = p () => (float[2] a) { a = Neg (x) },
                        else_branch = q () => (float[2] b) { b = Abs (x) }>
        }
    """)
    assert "If" in ops(own)
    assert not taking.taken


def test_an_if_in_a_body() -> None:
    own, _ = with_branches_taken("""
        main (float[4, 2] x, float[2] h) => (float[2] y, float[4, 2] ys) <bool yes = {1}>
        {
            y, ys = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] e) => (float[2] o, float[2] p) {
                o = If (yes) <then_branch = t () => (float[2] a) { a = Add (s, e) },
                              else_branch = f () => (float[2] c) { c = Sub (s, e) }>
                p = Identity (o)
            }> (h, x)
        }
    """)
    assert ops(own) == ["Scan", "Add", "Identity"]
