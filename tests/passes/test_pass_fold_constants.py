"""FoldConstantsPass, RemoveNoopsPass and RemoveUnusedPass."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest
from support.small_models import ops

import rnnlower
from rnnlower.passes import FoldConstantsPass, RemoveNoopsPass, RemoveUnusedPass

HEADER = '<ir_version: 8, opset_import: ["" : 17, "com.microsoft" : 1]>\n'


def after_passes(text: str, *passes: ir.passes.InPlacePass) -> ir.Model:
    source = onnx.parser.parse_model(HEADER + text)
    own = ir.from_proto(source)
    for each in passes:
        each(own)
    result = ir.to_proto(own)
    onnx.checker.check_model(result, full_check=True)
    assert rnnlower.verify(source, result)
    assert [value.name for value in own.graph.outputs] == [value.name for value in source.graph.output]
    return own


def test_a_computed_shape_becomes_an_initializer() -> None:
    own = after_passes(
        """
        main (float[2, 12] x) => (float[2, 3, 4] y) <int64[1] zero = {0}>
        {
            s = Shape (x)
            n = Gather (s, zero)
            three = Constant <value_ints = [3]> ()
            four = Constant <value = int64[1] {4}> ()
            t = Concat <axis = 0> (n, three, four)
            y = Reshape (x, t)
        }
        """,
        FoldConstantsPass(),
    )
    assert ops(own) == ["Reshape"]
    assert own.graph.initializers["t"].const_value.numpy().tolist() == [2, 3, 4]  # type: ignore[union-attr]


def test_a_graph_output_stays_the_output_of_a_node() -> None:
    own = after_passes(
        "main (float[2, 3] x) => (int64[2] s, float[2, 3] y) { s = Shape (x)  y = Neg (x) }",
        FoldConstantsPass(),
    )
    assert ops(own) == ["Constant", "Neg"]


LARGE = "int64[2] big = {100, 100}, float[100, 100] w"


@pytest.mark.parametrize(
    ("nodes", "kept"),
    [
        ("m = Expand (one, big)  y = Add (x, m)", ["Expand", "Add"]),
        ("t = Transpose (w)  y = Add (x, t)", ["Add"]),
        ("t = Transpose (w)  u = Add (x, w)  y = Add (u, t)", ["Transpose", "Add", "Add"]),
        ("t = Transpose (w)  u = Neg (w)  v = Add (x, t)  y = Add (u, v)", ["Transpose", "Add", "Add"]),
    ],
    ids=["expanded", "transposed", "read twice", "folded twice"],
)
def test_a_file_does_not_grow(nodes: str, kept: list[str]) -> None:
    weights = ", ".join(map(str, range(100))) + ", 0" * 9900
    own = after_passes(
        f"main (float[100, 100] x) => (float[100, 100] y) <int64[2] big = {{100, 100}}, float one = {{1}}, "
        f"float[100, 100] w = {{{weights}}}> {{ {nodes} }}",
        FoldConstantsPass(),
        RemoveUnusedPass(),
    )
    assert ops(own) == kept


def test_what_copies_of_a_body_compute_alike_is_stored_once() -> None:
    weights = ", ".join(map(str, range(10000)))
    copies = "  ".join(f"t{i} = Transpose (w)  x{i + 1} = MatMul (x{i}, t{i})" for i in range(3))
    own = after_passes(
        f"main (float[100, 100] x0) => (float[100, 100] x3) "
        f"<float[100, 100] w = {{{weights}}}> {{ {copies} }}",
        FoldConstantsPass(),
        RemoveUnusedPass(),
    )
    assert ops(own) == ["MatMul"] * 3
    assert len(own.graph.initializers) == 1


def test_nodes_that_the_target_lacks_are_folded_at_any_size() -> None:
    own = after_passes(
        "main (float[100, 100] x) => (float[100, 100] y) <int64[2] big = {100, 100}, float one = {1}> "
        "{ m = Expand (one, big)  y = Add (x, m) }",
        FoldConstantsPass(lambda node: node.op_type == "Expand"),
    )
    assert ops(own) == ["Add"]


def test_weights_in_integers_stay_in_integers() -> None:
    own = after_passes(
        """
        main (float[2] x) => (float[2] y) <int8[2] q = {1, 2}, float scale = {0.5}>
        { w = DequantizeLinear (q, scale)  y = Mul (x, w) }
        """,
        FoldConstantsPass(),
    )
    assert ops(own) == ["DequantizeLinear", "Mul"]


def test_constants_in_bodies_go_to_the_main_graph() -> None:
    own = after_passes(
        """
        main (float[3, 2] x, float[2] h) => (float[2] y)
        {
            y = Scan <num_scan_inputs = 1, body = b (float[2] s, float[2] e) => (float[2] o) {
                two = Constant <value = float {2}> ()
                four = Add (two, two)
                f = Mul (e, four)
                o = Add (s, f)
            }> (h, x)
        }
        """,
        FoldConstantsPass(),
    )
    assert ops(own) == ["Scan", "Mul", "Add"]
    assert "four" in own.graph.initializers


def test_casts_reshapes_and_identities_without_effect_are_removed() -> None:
    own = after_passes(
        """
        main (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) <int64[2] s = {2, 3}, int64[2] last = {-1, 3}>
        {
            a = Cast <to = 1> (x)
            b = Reshape (a, s)
            c = Identity (b)
            y = Abs (c)
            d = Reshape (y, last)
            z = Identity (x)
        }
        """,
        RemoveNoopsPass(),
        RemoveUnusedPass(),
    )
    assert ops(own) == ["Abs", "Identity"]


def test_a_where_of_constant_condition_is_what_it_chooses() -> None:
    own = after_passes(
        """
        main (float[2, 3] x, float[3] row) => (float[2, 3] y, float[2, 3] z)
        <bool yes = {1}, bool[3] no = {0, 0, 0}, bool[3] some = {1, 0, 1}>
        {
            a = Neg (x)
            b = Where (yes, a, row)
            c = Where (no, row, b)
            d = Where (some, c, row)
            e = Where (yes, row, d)
            y = Abs (e)
            z = Where (yes, x, row)
        }
        """,
        RemoveNoopsPass(),
        RemoveUnusedPass(),
    )
    assert [node.outputs[0].name for node in own.graph if node.op_type == "Where"] == ["d", "e", "z"]


def test_a_loop_keeps_the_place_of_its_condition() -> None:
    own = after_passes(
        """
        main (float[2] x) => (float[n, 2] y) <int64 trips = {3}> {
            y = Loop (trips, "") <body = step (int64 i, bool c) => (bool go, float[2] z) {
                go = Identity (c)
                z = Neg (x)
            }>
        }
        """,
        RemoveUnusedPass(),
    )
    assert len(own.graph[0].inputs) == 2


def test_a_cast_below_opset_6_names_its_type() -> None:
    text = """<ir_version: 3, opset_import: ["" : 5]>
        main (float[2] x, float[2] s) => (float[2] y) { h = Cast <to = "FLOAT"> (x)  y = Mul (h, s) }"""
    converted = rnnlower.convert(onnx.parser.parse_model(text), opset=13, sets={"s": 2})
    assert [node.op_type for node in converted.graph.node] == ["Constant", "Cast", "Mul"]


DROPOUTS = {
    "no mode": (13, "y = Dropout (x, ratio)", True),
    "inference": (13, "y, mask = Dropout (x, ratio, no)", True),
    "training": (13, "y = Dropout (x, ratio, yes)", False),
    "mode of run time": (13, "y = Dropout (x, ratio, b)", False),
    "mask is read": (13, "y, mask = Dropout (x, ratio)  n = Not (mask)", False),
    "attribute": (10, "y = Dropout <ratio = 0.5> (x)", True),
    "before opset 7": (6, "y = Dropout <is_test = 1> (x)", True),
    "training before opset 7": (6, "y = Dropout (x)", False),
}


@pytest.mark.parametrize("case", DROPOUTS)
def test_dropout_in_inference_goes(case: str) -> None:
    opset, node, goes = DROPOUTS[case]
    text = f"""
        main (float[2] x, bool b) => (float[2] z)
        <float ratio = {{0.5}}, bool yes = {{1}}, bool no = {{0}}> {{ {node}  z = Abs (y) }}
    """
    source = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : {opset}]> {text}')
    if "n =" in node:
        source.graph.output.append(onnx.helper.make_tensor_value_info("n", onnx.TensorProto.BOOL, [2]))
    own = ir.from_proto(source)
    RemoveNoopsPass()(own)
    assert ("Dropout" not in ops(own)) is goes
    if goes:
        assert rnnlower.verify(source, ir.to_proto(own))


def test_unread_nodes_are_removed() -> None:
    own = after_passes(
        """
        main (float[2] x) => (float[2] y) <float[3] old = {1, 2, 3}, float[3] older = {1, 2, 3}>
        { a = Add (old, older)  b = Neg (a)  y = Abs (x) }
        """,
        RemoveUnusedPass(),
    )
    assert ops(own) == ["Abs"]
    assert not own.graph.initializers
    assert own.opset_imports == {"": 17}
