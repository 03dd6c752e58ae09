"""StaticShapesPass: lengths that follow from the inputs."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.graph.walk import walk
from rnnlower.passes.static_shapes import StaticShapesPass
from rnnlower.recurrent.finding import find_recurrent

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
WEIGHTS = "float[1, 8, 3] W, float[1, 8, 8] R"


def analyzed(text: str) -> tuple[ir.Model, StaticShapesPass, bool]:
    own = ir.from_onnx_text(HEADER + text)
    analysis = StaticShapesPass(find_recurrent(own))
    modified = analysis(own).modified
    return own, analysis, modified


def x_shapes(own: ir.Model) -> list[ir.Shape | None]:
    return [node.inputs[0].shape for node, _ in walk(own.graph) if node.op_type == "RNN" and node.inputs[0]]


def test_a_length_computed_from_static_shapes_is_known() -> None:
    own, _, modified = analyzed(f"""
        main (float[1, 12] samples, {WEIGHTS}) => (float y)
        <int64[1] one = {{1}}, int64[1] three = {{3}}, int64[1] axis = {{1}}>
        {{
            shape = Shape (samples)
            length = Gather (shape, axis)
            frames = Div (length, three)
            sizes = Concat <axis = 0> (frames, one, three)
            x = Reshape (samples, sizes)
            y = RNN <hidden_size = 8> (x, W, R)
        }}
    """)
    assert modified
    assert x_shapes(own) == [[4, 1, 3]]
    assert [node.op_type for node in own.graph] == ["Shape", "Gather", "Div", "Concat", "Reshape", "RNN"]


def test_what_stays_dynamic_keeps_its_name() -> None:
    own, _, _ = analyzed(f"""
        main (float[N, 5, 3] given, {WEIGHTS}) => (float y)
        <float[5, N, 3] x>
        {{
            x = Transpose <perm = [1, 0, 2]> (given)
            y = RNN <hidden_size = 8> (x, W, R)
        }}
    """)
    assert x_shapes(own) == [[5, "N", 3]]


BRANCHES = f"""
    main (float[SAMPLES, 3] samples, {WEIGHTS}) => (float[a, b, c, d] Y)
    <int64 zero = {{0}}, int64 limit = {{10}}, int64[3] long = {{-1, 2, 3}}, int64[3] short = {{-1, 1, 3}}>
    {{
        shape = Shape (samples)
        count = Gather (shape, zero)
        many = Greater (count, limit)
        Y = If (many) <
            then_branch = yes () => (float[a, b, c, d] p) {{
                p_x = Reshape (samples, long)
                p = RNN <hidden_size = 8> (p_x, W, R)
            }},
            else_branch = no () => (float[a, b, c, d] q) {{
                q_x = Reshape (samples, short)
                q = RNN <hidden_size = 8, activations = ["Relu"]> (q_x, W, R)
            }}
        >
    }}
"""


def test_a_branch_that_never_runs_goes() -> None:
    own, analysis, _ = analyzed(BRANCHES.replace("SAMPLES", "12"))
    assert "If" not in [node.op_type for node in own.graph]
    assert x_shapes(own) == [[6, 2, 3]]
    assert [str(located) for located in analysis.unreachable] == ["If_3/else_branch/RNN_1"]
    assert own.graph.outputs[0].name == "Y"


def test_a_recurrent_node_in_the_other_branch_is_unreachable() -> None:
    own, analysis, _ = analyzed(BRANCHES.replace("SAMPLES", "4"))
    assert x_shapes(own) == [[4, 1, 3]]
    assert [located.name for located in analysis.unreachable] == ["RNN_0"]


def test_an_if_that_shapes_do_not_decide_stays() -> None:
    own, analysis, _ = analyzed(BRANCHES.replace("SAMPLES", "N"))
    assert [node.op_type for node in own.graph][-1] == "If"
    assert analysis.unreachable == []


def test_a_decided_if_without_recurrent_nodes_stays() -> None:
    own, _, _ = analyzed(f"""
        main (float[5, 2, 3] given, {WEIGHTS}) => (float y)
        <bool yes = {{1}}>
        {{
            x = If (yes) <
                then_branch = p () => (float[5, 2, 3] a) {{ a = Neg (given) }},
                else_branch = q () => (float[5, 2, 3] b) {{ b = Abs (given) }}
            >
            y = RNN <hidden_size = 8> (x, W, R)
        }}
    """)
    assert own.graph.node(0).op_type == "If"


def test_a_branch_that_cannot_run_on_these_shapes() -> None:
    _, analysis, _ = analyzed(f"""
        main (float[5, 2, 3] given, {WEIGHTS}, bool c) => (float Y)
        {{
            Y = If (c) <
                then_branch = p () => (float a) {{
                    p_x = Neg (given)
                    a = RNN <hidden_size = 8> (p_x, W, R)
                }},
                else_branch = q () => (float b) {{
                    q_x = Flatten (given)
                    b = RNN <hidden_size = 8> (q_x, W, R)
                }}
            >
        }}
    """)
    assert [located.name for located in analysis.impossible] == ["RNN_1"]
