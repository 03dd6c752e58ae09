"""The command `rnnlower lift`."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from support.cli_helpers import rnnlower, save
from support.judge import recurrent_left
from support.small_models import recurrent_model

import rnnlower as library
from rnnlower.graph.walk import op_types
from rnnlower.passes import LiftRecurrentPass
from rnnlower.passes.steps import lifting_prices
from rnnlower.passes.steps.lifting_prices import Prices, price_lifting
from rnnlower.targets import find_target


@pytest.fixture
def scanned(tmp_path: Path) -> Path:
    return save(library.scan(recurrent_model("GRU")), tmp_path)


def test_lift_writes_a_verified_model_and_reports_it_in_json(scanned: Path, out: Path) -> None:
    run = rnnlower("lift", scanned, "-o", out, "--json")
    (node,) = run.json["nodes"]
    assert {"form": "scan", "op_type": "GRU", "direction": "forward", "reason": None}.items() <= node.items()
    assert run.json["verification"]["equal"]
    assert run.json["ops_after"]["GRU"] == 1
    assert "Scan" not in run.json["ops_after"]
    assert recurrent_left(onnx.load(out)) == ["GRU"]


def test_nothing_to_lift_is_no_error(tmp_path: Path, out: Path) -> None:
    run = rnnlower("lift", save(recurrent_model("LSTM"), tmp_path), "-o", out)
    assert "nothing to lift" in run.stderr
    assert recurrent_left(onnx.load(out)) == ["LSTM"]


def test_other_nodes_stay(scanned: Path, out: Path) -> None:
    assert rnnlower("lift", scanned, "-o", out, "--node", "other*", "--json").json["nodes"] == []
    assert recurrent_left(onnx.load(out)) == []


def test_a_node_that_is_not_lifted_is_listed_with_the_reason(tmp_path: Path, out: Path) -> None:
    body = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["" : 17]> main (float[3, 2] x, float[2] s) => (float[3, 2] y) {
            [sums] last, y = Scan <num_scan_inputs = 1, body = b (float[2] a, float[2] t)
            => (float[2] u, float[2] v) { u = Add (a, t) v = Identity (u) }> (s, x)
        }"""
    )
    run = rnnlower("lift", save(body, tmp_path), "-o", out)
    assert "scan 'sums' stays: " in run.stderr
    assert rnnlower("lift", out, "-o", out, "--json").json["nodes"][0]["reason"]


@pytest.mark.parametrize("wrong", [["--steps", "0"], ["--semantics", "other"]])
def test_wrong_usage(scanned: Path, tmp_path: Path, wrong: list[str]) -> None:
    rnnlower("lift", scanned, "-o", tmp_path / "out.onnx", *wrong, code=2)
    assert not (tmp_path / "out.onnx").exists()


@pytest.mark.parametrize("command", ["unroll", "scan", "loop", "lower", "stream"])
def test_other_commands_lift_first(scanned: Path, out: Path, command: str) -> None:
    options = {"unroll": ["--dim", "T=5"], "lower": ["--target", "onnxruntime"]}.get(command, [])
    run = rnnlower(command, scanned, "-o", out, *options)
    assert "was lifted to GRU with" in run.stderr
    assert "--no-lift leaves it as it is" in run.stderr
    kept = {"stream": ["GRU"], "lower": ["GRU"]}.get(command, [])
    assert recurrent_left(onnx.load(out)) == kept
    assert ("Scan" in op_types(ir.load(out))) == (command == "scan")


@pytest.mark.parametrize("command", ["unroll", "lower"])
def test_no_lift_leaves_a_scan_as_it_is(scanned: Path, out: Path, command: str) -> None:
    options = ["--target", "onnxruntime"] if command == "lower" else []
    run = rnnlower(command, scanned, "-o", out, "--no-lift", *options)
    assert "was lifted" not in run.stderr
    assert "Scan" in op_types(ir.load(out))


def test_inspect_names_what_can_be_lifted(scanned: Path) -> None:
    told = rnnlower("inspect", scanned, "--json").json
    (node,) = told["liftable"]
    assert told["warnings"] == []
    assert {"form": "scan", "op_type": "GRU", "direction": "forward"}.items() <= node.items()
    assert "`rnnlower lift` makes recurrent nodes of" in rnnlower("inspect", scanned).stdout


FUNCTION = """<ir_version: 9, opset_import: ["" : 17, "own" : 1]>
main (float[5, 2, 3] X, float[2, 4] h) => (float[5, 2, 4] Y) { TEXT }
<domain: "own", opset_import: ["" : 17]>
cell (X, h) => (Y) { W = Constant <value = WEIGHTS3> () R = Constant <value = WEIGHTS4> () BODY }
<domain: "own", opset_import: ["" : 17]>
other (X) => (Y) { Y = Neg (X) }
"""
SCANNED = """
    last, Y = Scan <num_scan_inputs = 1, body = step (float[2, 4] before, float[2, 3] x)
    => (float[2, 4] after, float[2, 4] y) {
        a = MatMul (x, W)  b = MatMul (before, R)  sum = Add (a, b)  after = Tanh (sum)  y = ENDING (after)
    }> (h, X)
"""
CALLED_STEP = "a = MatMul (X, W)  b = MatMul (h, R)  sum = Add (a, b)  Y = Tanh (sum)"
CALLS = """
    axes = Constant <value = int64[1] {0}> ()
    x0, x1, x2, x3, x4 = Split <axis = 0> (X)
    s0 = Squeeze (x0, axes) s1 = Squeeze (x1, axes) s2 = Squeeze (x2, axes) s3 = Squeeze (x3, axes)
    s4 = Squeeze (x4, axes) h1 = own.cell (s0, h) h2 = own.cell (s1, h1) h3 = own.cell (s2, h2)
    h4 = own.cell (s3, h3) h5 = own.cell (s4, h4) u1 = Unsqueeze (h1, axes) u2 = Unsqueeze (h2, axes)
    u3 = Unsqueeze (h3, axes) u4 = Unsqueeze (h4, axes) u5 = Unsqueeze (h5, axes)
    Y = Concat <axis = 0> (u1, u2, u3, u4, u5)
"""


def with_functions(text: str, body: str) -> onnx.ModelProto:
    text = FUNCTION.replace("TEXT", text).replace("BODY", body)
    for size in (3, 4):
        numbers = ", ".join(f"{(7 * k) % 11 / 11 - 0.5:.3f}" for k in range(4 * size))
        text = text.replace(f"WEIGHTS{size}", f"float[{size}, 4] {{{numbers}}}")
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize(
    ("text", "body"),
    [
        ("Z = own.cell (X, h) Y = own.other (Z)", SCANNED.replace("ENDING", "Identity")),
        (CALLS.replace("Y = Concat", "Z = Concat") + "Y = own.other (Z)", CALLED_STEP),
    ],
    ids=["a Scan in a function", "a line of calls"],
)
def test_a_recurrence_in_a_function_is_lifted(text: str, body: str, tmp_path: Path, out: Path) -> None:
    path = save(with_functions(text, body), tmp_path)
    (node,) = rnnlower("lift", path, "-o", out, "--json").json["nodes"]
    assert (node["op_type"], node["hidden_size"]) == ("RNN", 4)
    assert [function.name for function in onnx.load(out).functions] == ["other"]


def test_a_function_in_which_nothing_is_lifted_stays(tmp_path: Path, out: Path) -> None:
    model = with_functions("Y = own.cell (X, h)", SCANNED.replace("ENDING", "Hardmax"))
    run = rnnlower("lift", save(model, tmp_path), "-o", out, "--json")
    (node,) = run.json["nodes"]
    assert "no cell returns" in node["reason"]
    assert onnx.printer.to_text(onnx.load(out).functions[0]) == onnx.printer.to_text(model.functions[0])


def test_lower_lifts_what_is_cheaper_by_the_prices_of_the_target(
    scanned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, model = find_target("onnxruntime"), ir.load(scanned)
    own, lifted = price_lifting(model, LiftRecurrentPass(lines=False, zero_pasts=False), target) or (0.0, 0.0)
    assert own > lifted > 0
    assert "GRU" in op_types(ir.from_proto(library.lower(onnx.load(scanned), target="onnxruntime")))
    monkeypatch.setattr(lifting_prices, "price_lifting", lambda *given: Prices(1.0, 2.0))
    kept, report = library.lower.with_report(onnx.load(scanned), target="onnxruntime")
    assert {"GRU", "Scan"} & op_types(ir.from_proto(kept)) == {"GRU", "Scan"} & op_types(model) == {"Scan"}
    assert any("Loops and Scans stay as they are" in note for note in report.notes)


def test_a_lifting_to_an_operator_that_the_target_lacks_has_no_price(scanned: Path) -> None:
    assert (
        price_lifting(
            ir.load(scanned), LiftRecurrentPass(lines=False, zero_pasts=False), find_target("tinygrad")
        )
        is None
    )


def test_folded_constants_are_no_initializers_before_ir_version_4() -> None:
    """Every initializer is an input there; a Constant need not be one."""
    model = onnx.parser.parse_model("""
        <ir_version: 3, opset_import: ["" : 9]>
        main (float[T] x) => (float[T] y) {
            a = Constant <value = float[1] {1}> ()
            c = Add (a, a)
            y = Mul (x, c)
        }
    """)
    result = library.lift(model, dims={"T": 3})
    inputs = {value.name for value in result.graph.input}
    assert {tensor.name for tensor in result.graph.initializer} <= inputs == {"x"}
    assert [node.op_type for node in result.graph.node] == ["Constant", "Mul"]
