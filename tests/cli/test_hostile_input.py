"""Hostile input to the command line: every case ends in a message and an exit code."""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from support.processes import process
from support.small_models import info, model_of, recurrent_model, weights
from typer.testing import CliRunner

import rnnlower
from rnnlower.cli import app

FLOAT = onnx.TensorProto.FLOAT
MODELS = Path(__file__).parents[2] / "models"


def invoke(*line: object) -> Any:
    return CliRunner().invoke(app, [str(part) for part in line])


def expect(result: Any, code: int, *words: str) -> None:
    """Run a command and check the exit code and words of the message; there must be no traceback."""
    assert isinstance(result.exception, SystemExit | None), result.exception
    assert result.exit_code == code, result.output
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.output


@pytest.mark.parametrize("entry", ['{"options": [1]}', '{"options": null}', "[]", "{"])
def test_an_origin_in_another_form(entry: str, tmp_path: Path) -> None:
    model = recurrent_model()
    helper.set_model_props(model, {"rnnlower.provenance": entry})
    onnx.save(model, tmp_path / "model.onnx")
    expect(invoke("inspect", tmp_path / "model.onnx"), 0, "LSTM")


def test_an_input_without_an_element_type(tmp_path: Path) -> None:
    model = recurrent_model(inputs={"X": (FLOAT, [5, 2, 3])})
    model.graph.input.append(info("other", onnx.TensorProto.UNDEFINED, [2]))
    onnx.save(model, tmp_path / "model.onnx")
    expect(invoke("inspect", tmp_path / "model.onnx"), 0, "LSTM")


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        *(("chunk", 0, 3), ("chunk", -1, 3), ("delay", -3, 3), ("limit", 0, 3), ("steps", -1, 3)),
        *(("inputs", {}, 1), ("start", {"absent": 0}, 3), ("inputs", {"absent": 0}, 1)),
        *(("inputs", {"X": 9}, 1), ("outputs", {"Y": 9}, 1), ("outputs", {"absent": 0}, 1)),
    ],
    ids=str,
)
def test_a_calling_convention_that_does_not_fit(key: str, value: Any, code: int, tmp_path: Path) -> None:
    source = recurrent_model(inputs={"X": (FLOAT, ["T", 2, 3])})
    streamed = rnnlower.stream(source, chunk=2)
    (entry,) = (each for each in streamed.metadata_props if each.key == "rnnlower.stream")
    entry.value = json.dumps(json.loads(entry.value) | {key: value})
    onnx.save(source, tmp_path / "source.onnx")
    onnx.save(streamed, tmp_path / "step.onnx")
    expect(invoke("verify", tmp_path / "source.onnx", tmp_path / "step.onnx"), code)


def test_rows_on_an_axis_that_is_not_there(tmp_path: Path) -> None:
    source = recurrent_model(inputs={"X": (FLOAT, ["T", 2, 3])})
    padded = rnnlower.pad(source, max={"T": 4}, per_row=True)
    (entry,) = (each for each in padded.metadata_props if each.key == "rnnlower.pad")
    entry.value = json.dumps(json.loads(entry.value) | {"rows": {"X": 7}})
    onnx.save(source, tmp_path / "source.onnx")
    onnx.save(padded, tmp_path / "padded.onnx")
    line = ("verify", tmp_path / "source.onnx", tmp_path / "padded.onnx")
    expect(invoke(*line), 1, "the candidate has no 'X' with an axis 7, which its metadata names")


def every_command(path: Path, code: int, *words: str) -> None:
    """Check that each command refuses the model and writes nothing."""
    before = sorted(path.parent.iterdir())
    for command in ("unroll", "scan", "loop"):
        expect(invoke(command, path, "-o", path.parent / "out.onnx"), code, *words)
    expect(invoke("convert", path, "-o", path.parent / "out.onnx", "--opset", 18), code, *words)
    assert invoke("verify", path, path).exit_code in (code, 4)
    assert sorted(path.parent.iterdir()) == before


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def hostile_lstm(**options: object) -> onnx.ModelProto:
    return recurrent_model(inputs={"X": (FLOAT, [3, 2, 3])}, **options)  # type: ignore[arg-type]


def test_missing_and_strange_files(tmp_path: Path) -> None:
    every_command(tmp_path / "missing.onnx", 3, "missing.onnx")
    every_command(tmp_path, 3, "directory")
    every_command(Path("/dev/zero"), 3, "not a file")
    for number, data in enumerate([b"", b"\0" * 100, b"<html>", bytes(range(256)) * 20]):
        path = tmp_path / f"{number}.onnx"
        path.write_bytes(data)
        every_command(path, 3, path.name)


def test_a_cycle_is_refused(tmp_path: Path) -> None:
    model = hostile_lstm()
    cell = model.graph.node[0]
    cell.input[0] = "looped"
    model.graph.node.append(helper.make_node("Squeeze", [cell.output[0]], ["looped"], name="back"))
    every_command(saved(model, tmp_path), 3)
    expect(invoke("inspect", saved(model, tmp_path)), 3, "cycle")


def test_functions_that_call_each_other(tmp_path: Path) -> None:
    model = hostile_lstm(opset=18)
    model.graph.node.insert(0, helper.make_node("f", ["X"], ["called"], domain="own"))
    model.graph.node[1].input[0] = "called"
    model.opset_import.append(helper.make_opsetid("own", 1))
    imports = [helper.make_opsetid("own", 1), helper.make_opsetid("", 18)]
    for name, other in (("f", "g"), ("g", "f")):
        body = [helper.make_node(other, ["x"], ["y"], domain="own")]
        model.functions.append(helper.make_function("own", name, ["x"], ["y"], body, imports))
    every_command(saved(model, tmp_path), 3, "calls itself")


def _absent() -> onnx.GraphProto:
    nodes = [helper.make_node("Identity", ["X"], ["absent"])]
    return helper.make_graph(nodes, "branch", [], [info("absent", FLOAT, None)])


def deep_ifs(depth: int) -> onnx.ModelProto:
    """Return an LSTM inside of so many Ifs."""
    node = hostile_lstm().graph.node[0]
    outputs = [info("inner_0", FLOAT, None)]
    del node.output[1:]
    node.output[0] = "inner_0"
    branch = helper.make_graph([node], "branch", [], outputs)
    for level in range(1, depth + 1):
        name = f"inner_{level}"
        nodes = [helper.make_node("If", ["cond"], [name], then_branch=branch, else_branch=branch)]
        nodes[0].attribute[1].g.CopyFrom(_absent())
        branch = helper.make_graph(nodes, "branch", [], [info(name, FLOAT, None)])
    source = hostile_lstm()
    inputs = [source.graph.input[0], info("cond", onnx.TensorProto.BOOL, [])]
    constants = {tensor.name: numpy_helper.to_array(tensor) for tensor in source.graph.initializer}
    return model_of(branch.node, inputs, [info(f"inner_{depth}", FLOAT, None)], constants)


def test_nesting_deeper_than_protobuf_reads(tmp_path: Path) -> None:
    # The parser reads 100 levels of messages, three of which make one level of graphs.
    path = tmp_path / "deep.onnx"
    data = b""
    for _ in range(1000):
        graph = b"\x0a" + _length(data) + data
        attribute = b"\x32" + _length(graph) + graph
        data = b"\x2a" + _length(attribute) + attribute
    graph = b"\x0a" + _length(data) + data
    path.write_bytes(b"\x08\x08\x3a" + _length(graph) + graph)
    every_command(path, 3, "deep.onnx")


def _length(data: bytes) -> bytes:
    size, encoded = len(data), b""
    while size > 127:
        encoded += bytes([size & 127 | 128])
        size >>= 7
    return encoded + bytes([size])


def test_nesting_as_deep_as_protobuf_reads(tmp_path: Path) -> None:
    path = saved(deep_ifs(12), tmp_path)
    for command in ("unroll", "scan", "loop"):
        expect(invoke(command, path, "-o", tmp_path / "out.onnx", "--no-verify"), 0)
    expect(invoke("inspect", path), 0)


def test_chain_of_more_nodes_than_python_nests_calls(tmp_path: Path) -> None:
    """Weights at the end of a long chain of constants, X at the end of another."""
    model = hostile_lstm()
    cell = model.graph.node[0]
    chains = []
    for start in ("W", "X"):
        names = [start, *(f"{start}_{number}" for number in range(sys.getrecursionlimit()))]
        chains += [helper.make_node("Identity", [a], [b]) for a, b in itertools.pairwise(names)]
        cell.input[("X", "W").index(start)] = names[-1]
    nodes = [*chains, onnx.NodeProto.FromString(cell.SerializeToString())]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    path = saved(model, tmp_path)
    for command in ("unroll", "scan", "loop"):
        expect(invoke(command, path, "-o", tmp_path / "out.onnx", "--no-verify"), 0)
    expect(invoke("convert", path, "-o", tmp_path / "out.onnx", "--opset", 11, "--no-verify"), 0)
    expect(invoke("inspect", path), 0)


@pytest.mark.parametrize(
    "name",
    [
        " ",
        "\n\t",
        "a/b",
        "../../x",
        "{0}",
        "%s%n",
        "[bold]x[/bold]",
        "[/]",
        "*",
        "?",
        "ü\u202e\U0001f600",
        "x" * 9999,
    ],
)
def test_odd_names_are_kept(name: str, tmp_path: Path) -> None:
    model = hostile_lstm()
    cell = model.graph.node[0]
    cell.name = name
    model.graph.name = name
    model.graph.input[0].name = cell.input[0] = f"X{name}"
    model.graph.initializer[0].name = cell.input[1] = f"W{name}"
    model.graph.output[0].name = cell.output[0] = f"Y{name}"
    path = saved(model, tmp_path)
    expect(invoke("inspect", path), 0)
    for command in ("unroll", "scan", "loop"):
        expect(invoke(command, path, "-o", tmp_path / "out.onnx", "--trials", 1), 0)
        lowered = onnx.load(tmp_path / "out.onnx")
        assert [each.name for each in lowered.graph.input] == [f"X{name}"]
        assert lowered.graph.output[0].name == f"Y{name}"
    del cell.input[2]
    expect(invoke("inspect", saved(model, tmp_path)), 3)


def test_a_billion_steps_are_refused_by_unroll_and_taken_by_scan(tmp_path: Path) -> None:
    path = saved(recurrent_model(inputs={"X": (FLOAT, [10**9, 1, 3])}), tmp_path)
    expect(invoke("unroll", path, "-o", tmp_path / "o.onnx"), 3, "10,000,000,000 nodes", "rnnlower scan")
    expect(invoke("scan", path, "-o", tmp_path / "o.onnx"), 4, "too large")
    expect(invoke("scan", path, "-o", tmp_path / "o.onnx", "--no-verify"), 0)


def _tensor(change: Callable[[onnx.TensorProto], None]) -> onnx.ModelProto:
    model = hostile_lstm()
    change(model.graph.initializer[0])
    return model


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_tensor(lambda t: setattr(t, "raw_data", t.raw_data[:-1])), "initializer 'W' has 191 bytes"),
        (_tensor(lambda t: setattr(t, "data_type", 99)), "no known element type"),
        (_tensor(lambda t: t.dims.append(-1)), "size -1"),
        (_tensor(lambda t: t.dims.extend([2**40, 2**40])), "nothing can hold"),
    ],
)
def test_damaged_tensors_are_refused(model: onnx.ModelProto, words: str, tmp_path: Path) -> None:
    every_command(saved(model, tmp_path), 3, words)


def external(tmp_path: Path, **entries: object) -> Path:
    """Return the model with W in a file of its own; ``entries`` replace what the model says about it."""
    model = hostile_lstm()
    W = model.graph.initializer[0]
    (tmp_path / "model.data").write_bytes(W.raw_data)
    W.ClearField("raw_data")
    W.data_location = onnx.TensorProto.EXTERNAL
    for key, value in ({"location": "model.data"} | entries).items():
        W.external_data.add(key=key, value=str(value))
    return saved(model, tmp_path)


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ({"location": "nowhere"}, "missing"),
        ({"location": "../model.data"}, "outside"),
        ({"location": "/etc/passwd"}, "outside"),
        ({"location": ""}, "names no file"),
        ({"location": "."}, "missing"),
        ({"offset": 64}, "too short"),
        ({"offset": -1}, "offset '-1'"),
        ({"offset": "x"}, "offset 'x'"),
        ({"length": 4}, "has 4 bytes"),
    ],
)
def test_external_data_that_is_not_there(entries: dict[str, object], words: str, tmp_path: Path) -> None:
    every_command(external(tmp_path, **entries), 3, words)


def test_external_data_behind_a_link(tmp_path: Path) -> None:
    path = external(tmp_path)
    (tmp_path / "model.data").rename(tmp_path / "real.data")
    (tmp_path / "model.data").symlink_to("real.data")
    every_command(path, 3, "symbolic link")
    (tmp_path / "model.data").unlink()
    (tmp_path / "model.data").hardlink_to(tmp_path / "real.data")
    every_command(path, 3, "hard links")
    (tmp_path / "model.data").unlink()
    (tmp_path / "model.data").symlink_to("/etc/passwd")
    every_command(path, 3, "outside")


def test_external_data_is_read(tmp_path: Path) -> None:
    path = external(tmp_path)
    for command in ("unroll", "scan", "loop"):
        expect(invoke(command, path, "-o", tmp_path / "out.onnx"), 0)
        assert rnnlower.verify(path, tmp_path / "out.onnx")


def test_no_rows_and_no_steps_do_not_end_the_process(tmp_path: Path) -> None:
    for shape in ([0, 2, 3], [3, 0, 3], [0, 0, 3]):
        for op_type in ("LSTM", "GRU", "RNN"):
            constants = {k: np.asarray(v) for k, v in weights(op_type).items()}
            model = recurrent_model(op_type, constants=constants, inputs={"X": (FLOAT, shape)})
            expect(
                invoke("scan", saved(model, tmp_path), "-o", tmp_path / "out.onnx", "--trials", 1),
                0,
            )


def test_sizes_of_minus_one_are_unknown(tmp_path: Path) -> None:
    """Exporters write them; the shape inference of onnx ends the process over them at these operators."""
    bounds = {"first": np.array([1]), "last": np.array([9]), "front": np.array([0]), "spots": np.array([[0]])}
    nodes = [
        helper.make_node("Slice", ["X", "first", "last", "front"], ["later"]),
        helper.make_node("GatherND", ["X", "spots"], ["step"]),
        helper.make_node("Concat", ["step", "later"], ["rest"], axis=0),
        helper.make_node("LSTM", ["rest", "W", "R", "B"], ["Y"], hidden_size=4),
    ]
    inputs, outputs = [info("X", FLOAT, [-1, -1, 3])], [info("Y", FLOAT, [-1, 1, -1, 4])]
    model = model_of(nodes, inputs, outputs, weights("LSTM") | bounds)
    model.graph.value_info.append(info("later", FLOAT, [-1, -1, 3]))
    path, out = saved(model, tmp_path), tmp_path / "out.onnx"
    expect(invoke("inspect", path), 0, "LSTM")
    expect(invoke("check", path, "--target", "openvino"), 0)
    expect(invoke("unroll", path, "-o", out, "--input-shape", "X:5,2,3"), 0, "equal")
    expect(invoke("lower", path, "-o", out, "--target", "onnxruntime"), 0, "equal")
    for command in ("scan", "loop"):
        expect(invoke(command, path, "-o", out), 0, "equal")
        assert [dim.dim_value for dim in onnx.load(out).graph.input[0].type.tensor_type.shape.dim] == [
            -1,
            -1,
            3,
        ]
    for opset in (13, 21):
        expect(invoke("convert", path, "-o", out, "--opset", opset), 0, "equal")


def test_a_function_of_an_unknown_opset_is_refused(tmp_path: Path) -> None:
    """Not one version after the other is tried up to there."""
    model = hostile_lstm()
    names = list(model.graph.node[0].input)
    function = helper.make_function(
        "own", "Cell", names, ["Y", "Y_h"], [model.graph.node[0]], [helper.make_opsetid("", 2**31)]
    )
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node[0].CopyFrom(helper.make_node("Cell", names, ["Y", "Y_h"], domain="own"))
    path, out = saved(model, tmp_path), tmp_path / "out.onnx"
    for command in ("unroll", "scan", "loop"):
        expect(invoke(command, path, "-o", out), 3, "own::Cell", "2147483648")
    expect(invoke("convert", path, "-o", out, "--opset", 18), 3, "own::Cell", "2147483648")
    assert not out.exists()


def test_a_model_that_only_numpy_runs_is_equal_to_itself(tmp_path: Path) -> None:
    """onnxruntime's refusal of the second model is none of its faults if it says the same of the first."""
    model = hostile_lstm()
    model.functions.append(
        helper.make_function("own", "Unused", ["x"], ["x"], [], [helper.make_opsetid("", 2**31)])
    )
    model.opset_import.append(helper.make_opsetid("own", 1))
    path = saved(model, tmp_path)
    expect(invoke("verify", path, path), 0, "rnnlower-reference")


def test_a_constant_without_a_value_that_onnx_knows(tmp_path: Path) -> None:
    model = hostile_lstm()
    (weight,) = (each for each in model.graph.initializer if each.name == "W")
    model.graph.node.insert(0, helper.make_node("Constant", [], ["W"], worth=weight))
    model.graph.initializer.remove(weight)
    path = saved(model, tmp_path)
    for command in ("unroll", "scan", "loop", "stream"):
        expect(
            invoke(command, path, "-o", tmp_path / "out.onnx"), 3, "the Constant node that makes 'W' has no"
        )


def test_a_loop_that_lacks_a_first_state(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y) <int64 trips = {2}> {
            y = Loop (trips, "") <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] n) {
                d = Identity (c)
                n = Add (h, x)
            }>
        }""")
    path = saved(model, tmp_path)
    expect(invoke("inspect", path), 3, "has 2 inputs, which do not fit the 3 of its body")


def test_a_loop_without_one_of_its_outputs(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 13]>
        main (float[2] x) => (float[2] y) <int64 trips = {2}> {
            y = Loop (trips, "", x) <body = b (int64 i, bool c, float[2] h) => (d, n, m) {
                d = Identity (c)
                n = Neg (h)
                m = Neg (h)
            }>
        }""")
    expect(invoke("inspect", saved(model, tmp_path)), 3, "has 1 outputs, which do not fit the 3 of its body")


@pytest.mark.parametrize(
    ("old", "new", "why"),
    [
        ("h0, X)", "h0, X, X)", "has 3 inputs, which do not fit the 2 of its body"),
        ("last, Y =", "last, Y, Z =", "has 3 outputs, which do not fit the 2 of its body"),
        ("=> (n, y)", "=> ()", "has 2 outputs, which do not fit the 0 of its body"),
        ("inputs = 1", "inputs = 3", "attribute 'num_scan_inputs' is 3, but its body has 2 inputs"),
        ("inputs = 1", "inputs = 1, scan_input_axes = [0, 0]", "has 2 elements, but needs 1"),
        ("inputs = 1", "inputs = 1, scan_output_axes = [0, 0]", "has 2 elements, but needs 1"),
        ("inputs = 1", "inputs = 1, scan_output_directions = [0, 0]", "has 2 elements, but needs 1"),
        ("inputs = 1", "inputs = 1, scan_input_directions = [2]", "[2]; a direction is 0 or 1"),
    ],
)
def test_a_scan_that_does_not_fit_its_body(tmp_path: Path, old: str, new: str, why: str) -> None:
    text = """<ir_version: 8, opset_import: ["" : 13]>
        main (float[3, 2] X, float[2] h0) => (float[2] last, float[3, 2] Y) {
            last, Y = Scan <num_scan_inputs = 1, body = b (float[2] h, float[2] x) => (n, y) {
                n = Add (h, x)
                y = Identity (n)
            }> (h0, X)
        }"""
    path = saved(onnx.parser.parse_model(text.replace(old, new)), tmp_path)
    expect(invoke("inspect", path), 3, why)
    expect(invoke("convert", path, "--opset", 16, "-o", tmp_path / "out.onnx"), 3, why)


def test_a_scan_that_omits_an_output_stays(tmp_path: Path) -> None:
    """onnxruntime refuses such a model, and onnx's reference does not."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 13]>
        main (float[T, 2, 2] X, float[2, 2] h0) => (float[2, 2] last) <float[2, 2] R = {0.5, 0, 0, 0.5}> {
            last = Scan <num_scan_inputs = 1, body = b (float[2, 2] h, float[2, 2] x)
            => (float[2, 2] n, float[2, 2] y) {
                p = MatMul (h, R)
                s = Add (p, x)
                n = Tanh (s)
                y = Identity (n)
            }> (h0, X)
        }""")
    path = saved(model, tmp_path)
    stays = "scan 'Scan_0' stays: its node and its body have different numbers of inputs or outputs"
    expect(invoke("lift", path, "-o", tmp_path / "out.onnx"), 0, stays)


def test_a_body_that_fails_halfway_through_its_conversion_is_refused(tmp_path: Path) -> None:
    """Its values are in a graph that the conversion made, and go back to where they were."""
    text = """
        <ir_version: 4, opset_import: ["" : 8]>
        main (float[1, 5, 1, 2] X, float[1, 1, 2] H) => (float[1, 1, 2] last) <float[2] one = {1, 1}>
        {
            last = Scan <num_scan_inputs = 1, body = b (float[1, 2] h, float[1, 2] x) => (float[1, 2] next) {
                y, mean, var, saved, inv = BatchNormalization (x, one, one, one, one)
                z = Add (y, saved)
                next = Add (h, z)
            }> ( , H, X)
        }
    """
    path = saved(onnx.parser.parse_model(text), tmp_path)
    expect(
        invoke("convert", path, "--opset", 16, "-o", tmp_path / "out.onnx"),
        3,
        "BatchNormalization-9 cannot become",
    )


def test_a_thread_that_cannot_start_is_reported_as_too_little_memory(tmp_path: Path) -> None:
    """In a process of its own: this one may have started the thread that it needs."""
    code = """if True:
        import sys, threading
        from rnnlower.cli import app
        def start(thread):
            raise RuntimeError("can't start new thread")
        threading.Thread.start = start
        app(sys.argv[1:])
    """
    run = process(code, "scan", MODELS / "lstm14_defaults.onnx", "-o", tmp_path / "out.onnx")
    assert run.returncode == 3, run.stderr
    assert "not enough memory for this model" in run.stderr
    assert "Traceback" not in run.stderr
    assert not list(tmp_path.iterdir())
