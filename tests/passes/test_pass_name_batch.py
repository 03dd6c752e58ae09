"""NameBatchPass: sizes that the spec requires to be equal get one name, and others keep theirs."""

from __future__ import annotations

import onnx
import onnx.parser
import onnx_ir as ir
import pytest

import rnnlower
from rnnlower.passes import NameBatchPass
from rnnlower.passes.checking import check_model
from rnnlower.passes.command_options import CheckOptions

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[T, N, 3] x, float[M, 4] g, float[1, K, 4] c, float[2, S, 4] p, float[O, 4] q)
        => (float[T, 1, a, 4] y, float[1, M, 4] z, float[O, K] r)
    <float[1, 16, 3] W = {{{w}}}, float[1, 16, 4] R = {{{r}}}, int64[1] zero = {{0}}>
    {{
        {nodes}
        r = MatMul (q, t)
    }}"""
NODES = {
    "states": "h = Unsqueeze (g, zero) y, z, d = LSTM <hidden_size = 4> (x, W, R, , , h, c)"
    " u = Squeeze (c, zero) t = Transpose <perm = [1, 0]> (u)",
    "one state": "h = Unsqueeze (g, zero) y, z = LSTM <hidden_size = 4> (x, W, R, , , h)"
    " u = Squeeze (c, zero) t = Transpose <perm = [1, 0]> (u)",
    "no state": "y, h = LSTM <hidden_size = 4> (x, W, R) z = Unsqueeze (g, zero)"
    " u = Squeeze (c, zero) t = Transpose <perm = [1, 0]> (u)",
}


def build(nodes: str) -> ir.Model:
    weights = {name: ", ".join(["0.5", "-1"] * (4 * 16 // 2)) for name in "r"}
    return ir.from_onnx_text(MODEL.format(nodes=nodes, w=", ".join(["1", "-0.5"] * 24), **weights))


@pytest.mark.parametrize(
    ("nodes", "names"),
    [("states", {"M": "N", "K": "N"}), ("one state", {"M": "N"}), ("no state", {})],
)
def test_equal_sizes_have_one_name(nodes: str, names: dict[str, str]) -> None:
    own = build(NODES[nodes])
    naming = NameBatchPass()
    assert naming(own).modified == bool(names)
    assert naming.names == names
    shapes = {str(value.name): [str(dim) for dim in value.shape or ()] for value in own.graph.inputs}
    m, k = (names.get(name, name) for name in "MK")
    assert shapes == {
        "x": ["T", "N", "3"],
        "g": [m, "4"],
        "c": ["1", k, "4"],
        "p": ["2", "S", "4"],
        "q": ["O", "4"],
    }
    assert [str(dim) for dim in own.graph.outputs[1].shape or ()] == ["1", m, "4"]


def test_a_node_that_may_not_run_requires_nothing() -> None:
    own = ir.from_onnx_text("""<ir_version: 8, opset_import: ["" : 17]>
        main (bool on, float[T, N, 1] x, float[1, M, 1] h, float[1, 1, 1] w) => (float y) {
            y = If (on) <
                then_branch = one () => (float p) {
                    s = RNN <hidden_size = 1> (x, w, w, , , h)  p = ReduceSum <keepdims = 0> (s) },
                else_branch = two () => (float q) { q = ReduceSum <keepdims = 0> (h) }>
        }""")
    assert not NameBatchPass()(own).modified


def test_lower_names_the_batch_for_a_target() -> None:
    source = ir.to_proto(build(NODES["states"]))
    lowered, report = rnnlower.lower.with_report(source, target="tract")
    shapes = [[dim.dim_param for dim in value.type.tensor_type.shape.dim] for value in lowered.graph.input]
    assert shapes[1] == ["N", ""]
    assert "dimension 'M' is called 'N', which it must equal" in report.notes
    assert rnnlower.verify(source, lowered)


@pytest.mark.parametrize(
    ("X", "h", "batch"),
    [("float[5, N, 3] X", "float[1, 1, 4] h", 1), ("float[5, 2, 3] X", "float[1, N, 4] h", 2)],
)
def test_lower_fixes_the_batch_for_a_target(X: str, h: str, batch: int) -> None:
    """Exporters leave the batch open, and write the initial state of the batch that they traced."""
    source = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["" : 17]>
        main ({X}, {h}) => (float[5, N, 4] y)
        <float[1, 4, 3] W = {{{", ".join(["0.5"] * 12)}}}, float[1, 4, 4] R = {{{", ".join(["-1"] * 16)}}},
         int64[1] one = {{1}}>
        {{ Y = RNN <hidden_size = 4> (X, W, R, , , h)  y = Squeeze (Y, one) }}""")
    # A target of static shapes.
    lowered, report = rnnlower.lower.with_report(source, target="onnx2torch")
    shapes = [[dim.dim_value for dim in value.type.tensor_type.shape.dim] for value in lowered.graph.input]
    assert shapes == [[5, batch, 3], [1, batch, 4]]
    assert (
        f"dimension 'N' is {batch}: the initial states have that batch size, and no other runs"
        in report.notes
    )
    assert not report.warnings
    assert rnnlower.verify(source, lowered)
    own = ir.from_proto(source)
    assert not any("open" in note for note in check_model(own, CheckOptions(target="onnx2torch")).notes)


def test_a_node_that_nobody_reads_fixes_nothing() -> None:
    source = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        main (float[5, N, 1] X) => (float[5, N, 1] y)
        <float[1, 1, 1] W = {1}, float[1, 1, 1] R = {1}, float[1, 2, 1] h = {1, 2}>
        { Y = RNN <hidden_size = 1> (X, W, R, , , h)  z = Neg (Y)  y = Relu (X) }""")
    lowered = rnnlower.lower(source, target="tract")
    assert lowered.graph.input[0].type.tensor_type.shape.dim[1].dim_param == "N"
