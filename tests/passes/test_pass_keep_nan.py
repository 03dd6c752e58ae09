"""KeepNaNPass: NaN passes operators of which a runtime makes numbers."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.judge import run
from support.places import MODELS

import rnnlower
from rnnlower.passes.exact_numbers import KeepNaNPass


def model(nodes: str, opset: int = 17) -> ir.Model:
    return ir.from_onnx_text(f"""
        <ir_version: 8, opset_import: ["" : {opset}]>
        main (float[2, 3] x) => (float[2, 3] y)
        <float[2, 1] mask = {{0, -inf}}, float one = {{1}}, int64 trips = {{2}}, bool go = {{1}}> {{
            {nodes}
        }}
    """)


def ops(own: ir.Model) -> list[str]:
    return [node.op_type for node in ir.traversal.RecursiveGraphIterator(own.graph)]


MASKED = "m = Add (x, mask) s = Softmax <axis = -1> (m)"


@pytest.mark.parametrize(
    ("nodes", "added"),
    [
        (f"{MASKED} y = Tanh (s)", ["IsNaN", "Where"]),
        (f"{MASKED} p = Mul (s, x) r = Relu (p) y = Add (r, x)", ["IsNaN", "Where"]),
        (f"t = Tanh (x) {MASKED} y = Add (s, t)", []),
        ("m = Add (x, one) s = Softmax <axis = -1> (m) y = Tanh (s)", []),
        ("m = Add (x, mask) y = Exp (m)", []),
        ("m = Add (x, mask) e = Exp (m) s = Softmax <axis = -1> (x) t = Tanh (s) y = Add (e, t)", []),
        (
            f"""{MASKED} y = Loop (trips, go, s) <body: graph = step (int64 i, bool c, float[2, 3] h)
                => (bool d, float[2, 3] n) {{ d = Identity (c) n = Tanh (h) }}>""",
            ["IsNaN", "Where"],
        ),
        (
            """y = Loop (trips, go, x) <body: graph = step (int64 i, bool c, float[2, 3] h)
                => (bool d, float[2, 3] n) { d = Identity (c) t = Tanh (h) m = Add (t, mask)
                n = Softmax <axis = -1> (m) }>""",
            ["IsNaN", "Where"],
        ),
        (
            """size = Shape (x) all = ConstantOfShape <value = float[1] {-inf}> (size) m = Add (x, all)
                s = Softmax <axis = -1> (m) y = Tanh (s)""",
            ["IsNaN", "Where"],
        ),
        (
            """all = If (go) <then_branch = yes () => (float[2, 1] low) {
                low = Constant <value = float[2, 1] {-inf, 0}> () }, else_branch = no () =>
                (float[2, 1] same) { same = Constant <value = float[2, 1] {0, 0}> () }> m = Add (x, all)
                s = Softmax <axis = -1> (m) y = Tanh (s)""",
            ["IsNaN", "Where"],
        ),
    ],
    ids=[
        "directly behind",
        "further behind",
        "in front",
        "a finite mask",
        "no Softmax",
        "apart",
        "in a body",
        "carried to the next iteration",
        "a mask of a computed size",
        "a mask of a branch",
    ],
)
def test_nan_is_kept_only_where_an_input_may_be_nan(nodes: str, added: list[str]) -> None:
    own = model(nodes)
    before, old = ir.to_proto(own), ops(own)
    keeping = KeepNaNPass(["Relu", "Tanh"])
    assert keeping(own).modified == bool(added)
    assert sorted(ops(own)) == sorted([*old, *added])
    after = ir.to_proto(own)
    onnx.checker.check_model(after, full_check=True)
    feeds = {"x": np.linspace(-2, 3, 6, dtype=np.float32).reshape(2, 3)}
    np.testing.assert_array_equal(run(after, feeds)["y"], run(before, feeds)["y"])
    assert not KeepNaNPass(["Relu", "Tanh"])(own).modified


@pytest.mark.parametrize("opset", [11, 13, 18])
def test_a_softmax_of_a_row_that_is_masked(opset: int) -> None:
    """What is added is NaN where the row is -inf, and 0 elsewhere: it stands also behind a zero."""
    own = model("m = Add (x, mask) y = Softmax <axis = 1> (m)", opset)
    keeping = KeepNaNPass(["Softmax"])
    assert keeping(own).modified
    assert keeping.kept == {"Softmax": ["y"]}
    after = ir.to_proto(own)
    onnx.checker.check_model(after, full_check=True)
    softmax = next(node for node in after.graph.node if node.op_type == "Softmax")
    softmax.op_type = "Sigmoid"
    del softmax.attribute[:]
    y = run(after, {"x": np.ones((2, 3), np.float32)})["y"]
    assert np.isfinite(y[0]).all()
    assert np.isnan(y[1]).all()


@pytest.mark.parametrize(("target", "lost"), [("tract", "Sigmoid"), ("opencv", "Softmax")])
def test_targets_keep_nan_in_what_is_lowered(target: str, lost: str) -> None:
    """OpenCV has zeros for a row of -inf, and tract's Sigmoid makes numbers of NaN."""
    source = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 16]>
        main (float[4, 1, 3] x) => (float[4, 1, 1, 2] y)
        <float[4, 1, 1] mask = {0, -inf, 0, 0},
         float[1, 6, 3] w = {1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2, 3},
         float[1, 6, 2] r = {1, 2, 1, 2, 1, 2, 1, 2, 1, 2, 1, 2}> {
            m = Add (x, mask)
            s = Softmax <axis = -1> (m)
            y = GRU <hidden_size = 2> (s, w, r)
        }
    """)
    result, report = rnnlower.lower.with_report(source, target=target, native="lower")
    assert any(f"makes numbers of NaN in {lost}" in note for note in report.notes)
    assert rnnlower.verify(source, result)


def test_the_same_model_gives_the_same_bytes_each_time() -> None:
    """Copies of a body share tensors, whose name is that of the value that is asked last."""
    source = onnx.load(MODELS / "lstm13_in_if_in_loop_captured.onnx")
    results = [rnnlower.lower(source, target="tract").SerializeToString() for _ in range(6)]
    assert len({*results}) == 1
