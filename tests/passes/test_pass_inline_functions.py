"""InlineFunctionsPass: the functions that hold recurrent nodes, and no others."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.small_models import ops

from rnnlower.engines.reference import evaluate
from rnnlower.errors import InvalidModelError, OpsetError
from rnnlower.passes.expand_functions import InlineFunctionsPass
from rnnlower.recurrent.finding import is_recurrent

HEADER = '<ir_version: 8, opset_import: ["" : 17, "local" : 1]>\n'
IMPORTS = '<domain: "local", opset_import: ["" : 17, "local" : 1]>'
INPUTS = "float[3, 1, 2] X, float[1, 8, 2] W, float[1, 8, 8] R"
CELL = (
    f"{IMPORTS} Cell <hidden> (x, w, r) => (y, y_h) {{ y, y_h = RNN <hidden_size: int = @hidden> (x, w, r) }}"
)


def inline(text: str) -> ir.Model:
    own = ir.from_onnx_text(HEADER + text)
    InlineFunctionsPass(is_recurrent)(own)
    onnx.checker.check_model(ir.to_proto(own), full_check=True)
    return own


def functions(own: ir.Model) -> set[str]:
    return {function.name for function in own.functions.values()}


def test_a_function_with_a_recurrent_node_is_inlined() -> None:
    own = inline(f"""
        main ({INPUTS}) => (float[3, 1, 1, 8] Y, float[1, 1, 8] Y_h)
        {{ Y, Y_h = local.Cell <hidden = 8> (X, W, R) }}
        {CELL}
    """)
    assert ops(own) == ["RNN"]
    assert not own.functions
    node = own.graph.node(0)
    assert node.attributes["hidden_size"].as_int() == 8
    assert [out.name for out in node.outputs] == ["Y", "Y_h"]


def test_default_of_a_function_attribute() -> None:
    own = inline(f"""
        main ({INPUTS}) => (float[3, 1, 1, 8] Y) {{ Y = local.Cell (X, W, R) }}
        {IMPORTS} Cell <hidden: int = 8> (x, w, r) => (y) {{ y = RNN <hidden_size: int = @hidden> (x, w, r) }}
    """)
    assert own.graph.node(0).attributes["hidden_size"].as_int() == 8


def test_function_in_a_function() -> None:
    own = inline(f"""
        main ({INPUTS}) => (float[3, 1, 1, 8] Y) {{ Y = local.Outer (X, W, R) }}
        {IMPORTS} Outer (x, w, r) => (y) {{
            doubled = Add (x, x)
            y, h = local.Cell <hidden = 8> (doubled, w, r)
        }}
        {CELL}
    """)
    assert ops(own) == ["Add", "RNN"]
    assert not own.functions


def test_other_functions_stay() -> None:
    own = inline(f"""
        main ({INPUTS}) => (float[3, 1, 1, 8] Y)
        {{
            doubled = local.Twice (X)
            Y, h = local.Cell <hidden = 8> (doubled, W, R)
        }}
        {CELL}
        {IMPORTS} Twice (x) => (y) {{ y = Add (x, x) }}
    """)
    assert ops(own) == ["Twice", "RNN"]
    assert functions(own) == {"Twice"}


def test_function_without_a_call_goes() -> None:
    own = inline(f"main (float[2] X) => (float[2] Y) {{ Y = Neg (X) }} {CELL}")
    assert functions(own) == set()


def test_names_of_two_calls_do_not_collide() -> None:
    own = inline(f"""
        main ({INPUTS}) => (float[3, 1, 1, 8] Y, float[1, 1, 8] h, float[3, 1, 2] inner)
        {{
            inner = Neg (X)
            Y, unread = local.Cell <hidden = 8> (inner, W, R)
            again, h = local.Cell <hidden = 8> (X, W, R)
        }}
        {IMPORTS} Cell <hidden> (X, W, R) => (h, Y) {{
            inner = Abs (X)
            h, Y = RNN <hidden_size: int = @hidden> (inner, W, R)
        }}
    """)
    names = [out.name for node in own.graph for out in node.outputs if out.name]
    assert len(names) == len(set(names))
    assert [out.name for out in own.graph.outputs] == ["Y", "h", "inner"]


def test_call_that_leaves_out_an_output() -> None:
    own = inline(f"""
        main ({INPUTS}) => (float[1, 1, 8] last)
        {{
            _, Y_h = local.Cell <hidden = 8> (X, W, R)
            last = Neg (Y_h)
        }}
        {CELL}
    """)
    assert ops(own) == ["RNN", "Neg"]


def test_call_with_fewer_outputs_than_its_function_has() -> None:
    own = inline(f"""
        main ({INPUTS}) => (float[3, 1, 1, 8] Y) {{ Y = local.Cell <hidden = 8> (X, W, R) }}
        {CELL}
    """)
    assert ops(own) == ["RNN"]


def test_an_output_that_a_call_leaves_out_is_still_read_inside() -> None:
    own = ir.from_onnx_text(f"""{HEADER}
        main (float[2] X) => (float[2] Z) {{ , Z = local.Twice (X) }}
        {IMPORTS} Twice (x) => (y, z) {{
            y = Neg (x)
            z = Sub (y, x)
        }}
    """)
    InlineFunctionsPass(lambda node: True)(own)
    made = evaluate(ir.to_proto(own), {"X": np.array([1, 2], np.float32)})
    assert made["Z"].tolist() == [-2, -4]


def test_names_do_not_collide_with_those_under_if() -> None:
    own = inline(f"""
        main ({INPUTS}, bool c) => (float[3, 1, 1, 8] Y, float[3, 1, 2] Z)
        {{
            Y = local.Cell <hidden = 8> (X, W, R)
            Z = If (c) <
                then_branch = yes () => (float[3, 1, 2] a) {{
                    inner = Neg (X)
                    a = Abs (inner)
                }},
                else_branch = no () => (float[3, 1, 2] b) {{ b = Neg (X) }}
            >
        }}
        {IMPORTS} Cell <hidden> (X, W, R) => (y) {{
            inner = Abs (X)
            y = RNN <hidden_size: int = @hidden> (inner, W, R)
        }}
    """)
    assert ops(own)[:2] == ["Abs", "RNN"]


def test_an_input_that_is_passed_on_keeps_its_content() -> None:
    own = ir.from_onnx_text(f"""{HEADER}
        main (float[2] X) => (float[2] Y, float[2] Z) {{ Y, Z = local.Pass (X) }}
        {IMPORTS} Pass (x) => (y, x) {{ y = Neg (x) }}
    """)
    InlineFunctionsPass(lambda node: True)(own)
    made = evaluate(ir.to_proto(own), {"X": np.array([1, 2], np.float32)})
    assert (made["Y"].tolist(), made["Z"].tolist()) == ([-1, -2], [1, 2])


def test_call_under_if() -> None:
    own = inline(f"""
        main ({INPUTS}, bool c) => (float[3, 1, 1, 8] Y)
        {{
            Y = If (c) <
                then_branch = yes () => (float[3, 1, 1, 8] a) {{
                    a, a_h = local.Cell <hidden = 8> (X, W, R)
                }},
                else_branch = no () => (float[3, 1, 1, 8] b) {{
                    x = Neg (X)
                    b, b_h = local.Cell <hidden = 8> (x, W, R)
                }}
            >
        }}
        {CELL}
    """)
    assert ops(own) == ["If", "RNN", "Neg", "RNN"]


def test_a_function_without_the_wanted_nodes_stays() -> None:
    twice = f"{IMPORTS} Twice (x) => (y) {{ y = Add (x, x) }}"
    own = ir.from_onnx_text(f"{HEADER} main (float[2] X) => (float[2] Y) {{ Y = local.Twice (X) }} {twice}")
    assert not InlineFunctionsPass(is_recurrent)(own).modified


def test_another_opset_is_refused() -> None:
    with pytest.raises(OpsetError, match="Cell imports opset 15"):
        inline(f"""
            main ({INPUTS}) => (float[3, 1, 1, 8] Y) {{ Y, h = local.Cell <hidden = 8> (X, W, R) }}
            {CELL.replace('"" : 17', '"" : 15')}
        """)


def test_functions_that_call_each_other_are_refused() -> None:
    with pytest.raises(InvalidModelError, match="cannot be inlined"):
        inline(f"""
            main ({INPUTS}) => (float[3, 1, 1, 8] Y) {{ Y = local.A (X, W, R) }}
            {IMPORTS} A (x, w, r) => (y) {{ y = local.B (x, w, r) }}
            {IMPORTS} B (x, w, r) => (y) {{
                z = local.A (x, w, r)
                y, h = RNN <hidden_size = 8> (z, w, r)
            }}
        """)
