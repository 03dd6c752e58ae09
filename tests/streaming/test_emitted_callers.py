"""The code that `stream --emit` writes in Python, JavaScript and C: it computes what the whole model does."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from support.cli_helpers import rnnlower as command
from support.cli_helpers import save
from support.streamed import model

import rnnlower
from rnnlower.engines.catalog import engines

SECONDS, RATE = 3, 1000
WAVE = """(float[1, n, 4] X) => (float[1, n, 6] Y) {
    t = Transpose <perm = [0, 2, 1]> (X)
    c = Conv <pads = [2, 1]> (t, K)
    steps = Transpose <perm = [2, 0, 1]> (c)
    h = GRU <hidden_size = 6> (steps, W, R)
    one = Constant <value_ints = [1]> ()
    flat = Squeeze (h, one)
    Y = Transpose <perm = [1, 0, 2]> (flat)
}"""
STRIDED = """(float[1, 4, n] X) => (float[m, 1, 1, 6] Y) {
    c = Conv <PADS> (X, K)
    steps = Transpose <perm = [2, 0, 1]> (c)
    Y = GRU <hidden_size = 6> (steps, W, R)
}"""
TWO = """(float[n, 1, 4] X) => (float[m, 3] Y) {
    y = GRU <hidden_size = 6> (X, W, R)
    shape = Constant <value_ints = [-1, 3]> ()
    Y = Reshape (y, shape)
}"""
PASSED = """(float[1, 4, n] X, KIND[1, n] ids) => (float[n, 1, 1, 6] Y, KIND[1, n] same) {
    c = Conv <pads = [1, 1]> (X, K)
    steps = Transpose <perm = [2, 0, 1]> (c)
    Y = GRU <hidden_size = 6> (steps, W, R)
    same = Identity (ids)
}"""
MAXIMUM = """(float[1, 4, n] X) => (float[n, 1, 1, 6] Y) {
    pads = Constant <value_ints = [0, 0, 2, 0, 0, 0]> ()
    least = Constant <value_float = -inf> ()
    padded = Pad (X, pads, least)
    c = MaxPool <kernel_shape = [3]> (padded)
    steps = Transpose <perm = [2, 0, 1]> (c)
    Y = GRU <hidden_size = 6> (steps, W, R)
}"""
COUNTED = """(float[1, 2] X, float[1, 2] before) => (float[1, 2] Y, float[1, 2] after) {
    after = Add (X, before)
    Y = Identity (after)
}"""
SUM = "(float[1, n] X) => (float[1, n] Y) { one = Constant <value_ints = [1]> () Y = CumSum (X, one) }"


def _python_stream(source: onnx.ModelProto, tmp_path: Path, *options: Any) -> Any:
    path, out = save(source, tmp_path), tmp_path / "step.onnx"
    command("stream", path, "-o", out, *options, "--allow-delay", "--emit", "python")
    spec = importlib.util.spec_from_file_location("step", tmp_path / "step.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.Stream(str(out))


def test_the_emitted_python_starts_with_a_row_for_each_that_is_folded(tmp_path: Path) -> None:
    text = """(float[n, N, 2, 3] X) => (float[n, 1, k, 2] Y) <int64[3] rows = {0, -1, 3}> {
        x = Reshape (X, rows)
        Y = GRU <hidden_size = 2> (x, W, R)
    }"""
    stream = _python_stream(model(text, W=(1, 6, 3), R=(1, 6, 2)), tmp_path)
    assert stream.write(X=np.zeros((3, 1, 2, 3), np.float32))["Y"].shape == (3, 1, 2, 2)


def test_the_emitted_python_gives_what_the_whole_model_gives(tmp_path: Path) -> None:
    source = model(WAVE, K=(4, 4, 4), W=(1, 18, 4), R=(1, 18, 6))
    stream = _python_stream(source, tmp_path, "--chunk", 10)
    rng = np.random.default_rng(0)
    recording = rng.standard_normal((1, SECONDS * RATE + 7, 4)).astype(np.float32)
    expected = onnxruntime.InferenceSession(source.SerializeToString()).run(None, {"X": recording})[0]
    for _ in range(2):
        cuts = np.cumsum(rng.integers(1, 60, 200))
        pieces = np.split(recording, cuts[cuts < recording.shape[1]], 1)
        found = [stream.write(X=piece).get("Y") for piece in pieces] + [stream.flush()["Y"]]
        joined = np.concatenate([each for each in found if each is not None], 1)
        assert joined.shape == expected.shape
        # What the convolution reads behind the end is zeros, as it pads.
        np.testing.assert_allclose(joined, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("window", "stride", "pads"),
    [(3, 2, "[1, 1]"), (2, 2, "[0, 0]"), (3, 2, "[0, 0]"), (4, 4, "[3, 0]"), (3, 1, "[0, 0]")],
)
def test_the_emitted_code_ends_with_the_last_frame_of_any_length(
    window: int, stride: int, pads: str, tmp_path: Path
) -> None:
    text = STRIDED.replace("PADS", f"strides = [{stride}], pads = {pads}")
    source = model(text, K=(4, 4, window), W=(1, 18, 4), R=(1, 18, 6))
    stream = _python_stream(source, tmp_path, "--chunk", 4)
    whole = onnxruntime.InferenceSession(source.SerializeToString())
    for steps in range(window, 15):
        recording = np.random.default_rng(steps).standard_normal((1, 4, steps)).astype(np.float32)
        found = [part["Y"] for part in (stream.write(X=recording), stream.flush()) if "Y" in part]
        np.testing.assert_allclose(np.concatenate(found), whole.run(None, {"X": recording})[0], atol=1e-5)


def test_the_emitted_code_ends_with_the_last_frame_where_a_step_has_two(tmp_path: Path) -> None:
    source = model(TWO, W=(1, 18, 4), R=(1, 18, 6))
    stream = _python_stream(source, tmp_path, "--chunk", 4)
    recording = np.ones((7, 1, 4), np.float32)
    parts = [stream.write(X=recording)["Y"], stream.flush()["Y"]]
    expected = onnxruntime.InferenceSession(source.SerializeToString()).run(None, {"X": recording})[0]
    np.testing.assert_allclose(np.concatenate(parts), expected, atol=1e-5)


def test_inputs_of_a_step_model_without_frames_are_a_call(tmp_path: Path) -> None:
    stream = _python_stream(model(COUNTED), tmp_path, "--state", "after=before")
    ones = np.ones((1, 2), np.float32)
    for _ in range(2):
        assert [stream.write(X=ones)["Y"][0, 0] for _ in range(3)] == [1, 2, 3]
        assert stream.flush() == {}
    code = rnnlower.stream.with_report(model(COUNTED), states={"after": "before"}, emit="js")[1].caller
    (tmp_path / "step.js").write_text(str(code))
    program = """
        const { Stream } = require(process.argv[1]);
        class Tensor { constructor(type, data, dims) { Object.assign(this, { type, data, dims }); } }
        const session = { run: async ({ X, before }) => ({ Y: X, after: before }) };
        new Stream({ Tensor }, session).write({ X: 5 }).then(({ Y }) => console.log(Y));
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    call = [node, "-e", program, tmp_path / "step.js"]
    assert subprocess.run(call, capture_output=True, check=True, timeout=60).stdout == b"5\n"


def test_a_scalar_is_an_array_of_one_element_in_c(tmp_path: Path) -> None:
    """As emx-onnx-cgen makes it."""
    scalars = model("(float x, float before) => (float y, float after) {y = Add (x, before) after = Exp (y)}")
    code = rnnlower.stream.with_report(scalars, states={"after": "before"}, emit="c")[1].caller
    (tmp_path / "step.c").write_text(str(code))
    (tmp_path / "model.c").write_text(
        """
        #include <math.h>
        void model(const float x[1], const float before[1], float y[1], float after[1]) {
            y[0] = x[0] + before[0];
            after[0] = expf(y[0]);
        }
        """
    )
    if shutil.which("cc") is None:
        pytest.skip("there is no cc")
    assert _tested(tmp_path, "model.c").returncode == 0


def test_a_recording_of_nothing_gives_nothing(tmp_path: Path) -> None:
    assert _python_stream(model(SUM), tmp_path, "--time-axis", "X:1").flush() == {}


@pytest.mark.parametrize("kind", ["int32", "bool", "uint8", "int16", "float16"])
def test_the_emitted_python_delays_values_of_any_type(kind: str, tmp_path: Path) -> None:
    source = model(PASSED.replace("KIND", kind), K=(4, 4, 3), W=(1, 18, 4), R=(1, 18, 6))
    stream = _python_stream(source, tmp_path, "--chunk", 2)
    ids = np.arange(6).reshape(1, 6).astype(kind)
    feeds = {"X": np.zeros((1, 4, 6), np.float32), "ids": ids}
    found = np.concatenate([stream.write(**feeds)["same"], stream.flush()["same"]], 1)
    np.testing.assert_array_equal(found, ids)


@pytest.mark.parametrize(("kind", "known"), [("int16", True), ("bool", True), ("float16", False)])
def test_javascript_has_arrays_of_the_types_or_refuses_them(kind: str, known: bool) -> None:
    source = model(PASSED.replace("KIND", kind), K=(4, 4, 3), W=(1, 18, 4), R=(1, 18, 6))
    if known:
        assert f"{kind}:" in str(rnnlower.stream.with_report(source, allow_delay=True, emit="js")[1].caller)
    else:
        with pytest.raises(rnnlower.UnsupportedModelError, match="'ids' has type FLOAT16"):
            rnnlower.stream.with_report(source, allow_delay=True, emit="js")


def test_a_state_that_starts_with_infinity_compiles_in_c(tmp_path: Path) -> None:
    source = model(MAXIMUM, W=(1, 18, 4), R=(1, 18, 6))
    out = tmp_path / "step.onnx"
    command("stream", save(source, tmp_path), "-o", out, "--emit", "c")
    assert "(float)-INFINITY" in out.with_suffix(".c").read_text()
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("there is no cc")
    subprocess.run([cc, "-Wall", "-Werror", "-c", "step.c"], cwd=tmp_path, check=True)


def _recorded(tmp_path: Path, language: str) -> Path:
    """Emit code next to a model that is late, with a recording and what the whole gives; return the model."""
    source = model(WAVE, K=(4, 4, 4), W=(1, 18, 4), R=(1, 18, 6))
    out = tmp_path / "step.onnx"
    command("stream", save(source, tmp_path), "-o", out, "--chunk", 10, "--allow-delay", "--emit", language)
    recording = np.random.default_rng(0).standard_normal((1, SECONDS * RATE, 4)).astype(np.float32)
    whole = onnxruntime.InferenceSession(source.SerializeToString())
    (tmp_path / "x.bin").write_bytes(recording.tobytes())
    (tmp_path / "y.bin").write_bytes(whole.run(None, {"X": recording})[0].tobytes())
    return out


def _python_of(name: str) -> str:
    engine = next(each for each in engines() if each.name == name)
    if engine.missing:
        pytest.skip(engine.missing)
    return engine.python


def test_the_emitted_javascript_runs_on_onnxruntime_web(tmp_path: Path) -> None:
    _python_of("ort-web")
    _recorded(tmp_path, "js")
    program = """
        const fs = require("fs"), path = require("path");
        const [, folder, modules] = process.argv;
        const ort = require(path.join(modules, "node_modules", "onnxruntime-web"));
        ort.env.wasm.numThreads = 1;
        const { Stream } = require(path.join(folder, "step.js"));
        const bytes = new Uint8Array(fs.readFileSync(path.join(folder, "x.bin")));
        const x = new Float32Array(bytes.buffer), frames = x.length / 4;
        (async () => {
            const model = fs.readFileSync(path.join(folder, "step.onnx"));
            const session = await ort.InferenceSession.create(model);
            const stream = new Stream(ort, session), found = [];
            for (let at = 0, n; at < frames; at += n) {
                n = Math.min(1 + (at * 7) % 61, frames - at);
                const X = new ort.Tensor("float32", x.slice(at * 4, (at + n) * 4), [1, n, 4]);
                const { Y } = await stream.write({ X });
                if (Y) found.push(...Y.data);
            }
            found.push(...(await stream.flush()).Y.data);
            console.log(JSON.stringify(found));
        })();
    """
    modules = os.path.abspath(os.environ.get("RNNLOWER_NODE") or ".")
    said = subprocess.run(
        ["node", "-e", program, tmp_path, modules], capture_output=True, text=True, check=True
    )
    expected = np.fromfile(tmp_path / "y.bin", np.float32)
    np.testing.assert_allclose(json.loads(said.stdout), expected, atol=1e-5)


def test_the_emitted_c_runs_a_model_compiled_by_emx(tmp_path: Path) -> None:
    out = _recorded(tmp_path, "c")
    compiler = """
import sys
import onnx
from emx_onnx_cgen.compiler import Compiler, CompilerOptions

options = CompilerOptions(model_name="model", large_weight_threshold=2_000_000_000)
open(sys.argv[2], "w").write(Compiler(options).compile(onnx.load(sys.argv[1])))
"""
    subprocess.run([_python_of("emx"), "-c", compiler, out, tmp_path / "model.c"], check=True)
    (tmp_path / "main.c").write_text(
        f"""
        #include <stdio.h>
        #include "step.c"
        static float x[{SECONDS * RATE}][4];
        int main(void) {{
            const int calls = {SECONDS * RATE} / STREAM_CHUNK;
            stream_state state;
            float y[1][STREAM_CHUNK][6];
            if (fread(x, sizeof x, 1, fopen("x.bin", "rb")) != 1) return 1;
            FILE *found = fopen("found.bin", "wb");
            stream_reset(&state);
            for (int call = 0; call < calls + STREAM_FLUSH; call++) {{
                int skipped = call < calls
                    ? stream_call(&state, (const float (*)[STREAM_CHUNK][4])x[call * STREAM_CHUNK], y)
                    : stream_flush(&state, y);
                fwrite(y[0][skipped], sizeof y[0][0], STREAM_CHUNK - skipped, found);
            }}
            return fclose(found);
        }}
        """
    )
    build = ["cc", "-std=gnu11", "-w", "main.c", "model.c", "-o", "main", "-lm"]
    subprocess.run(build, cwd=tmp_path, check=True)
    subprocess.run([tmp_path / "main"], cwd=tmp_path, check=True)
    found, expected = (np.fromfile(tmp_path / name, np.float32) for name in ("found.bin", "y.bin"))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    said = _tested(tmp_path, "model.c")
    assert (said.returncode, said.stdout) == (0, "0 of the outputs differ\n")


def _tested(tmp_path: Path, model_in_c: str) -> subprocess.CompletedProcess[str]:
    """Run the test in the emitted code, with a model that is compiled."""
    build = ["cc", "-std=gnu11", "-w", "-DSTREAM_TEST", "step.c", model_in_c, "-o", "tested", "-lm"]
    subprocess.run(build, cwd=tmp_path, check=True)
    return subprocess.run([tmp_path / "tested"], capture_output=True, text=True, check=False)


def _emit(tmp_path: Path, language: str) -> str:
    path, out = save(model(SUM), tmp_path), tmp_path / "step.onnx"
    command("stream", path, "-o", out, "--chunk", 4, "--time-axis", "X:1", "--emit", language)
    return str(out.with_suffix({"js": ".js", "c": ".c"}[language]))


def test_the_emitted_javascript_gives_what_the_whole_model_gives(tmp_path: Path) -> None:
    """The session is one in JavaScript that computes what the step model computes."""
    code = _emit(tmp_path, "js")
    program = """
        const { Stream, DESCRIPTION } = require(process.argv[1]);
        class Tensor { constructor(type, data, dims) { Object.assign(this, { type, data, dims }); } }
        const [output, input] = Object.entries(DESCRIPTION.feeds)[0];
        const session = { run: async (feeds) => {
            const given = feeds[input];
            let sum = given.data[0];
            const y = Float32Array.from(feeds.X.data, (each) => (sum += each));
            const state = new Tensor("float32", Float32Array.of(sum), given.dims);
            return { Y: new Tensor("float32", y, feeds.X.dims), [output]: state };
        } };
        (async () => {
            const stream = new Stream({ Tensor }, session), found = [];
            for (let first = 0; first < 4; first++) {
                const X = new Tensor("float32", Float32Array.of(1, 2, 3), [1, 3]);
                const outputs = await stream.write({ X });
                found.push(...(outputs.Y?.data ?? []), Object.keys(outputs).length);
            }
            await stream.write({ X: new Tensor("float32", Float32Array.of(7), [1, 1]) });
            found.push(...(await stream.flush()).Y.data);
            console.log(JSON.stringify(found));
        })();
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    said = subprocess.run([node, "-e", program, code], capture_output=True, text=True, check=True)
    assert json.loads(said.stdout) == [0, 1, 3, 6, 7, 1, 9, 12, 13, 15, 1, 18, 19, 21, 24, 1, 31]


def test_the_emitted_javascript_ends_with_the_last_frame(tmp_path: Path) -> None:
    source = model(
        "(float[1, 1, n] X) => (float[1, 1, m] Y) { Y = Conv <strides = [2]> (X, K) }", K=(1, 1, 2)
    )
    out = tmp_path / "step.onnx"
    command("stream", save(source, tmp_path), "-o", out, "--chunk", 4, "--time-axis", "X:2", "--emit", "js")
    program = """
        const { Stream } = require(process.argv[1]);
        class Tensor { constructor(type, data, dims) { Object.assign(this, { type, data, dims }); } }
        const session = { run: async ({ X }) =>
            ({ Y: new Tensor("float32", X.data.filter((_, i) => i % 2 == 0), [1, 1, 2]) }) };
        (async () => {
            const stream = new Stream({ Tensor }, session);
            const found = [Object.keys(await stream.flush()).length];
            for (let steps = 2; steps < 9; steps++) {
                const X = new Tensor("float32", new Float32Array(steps), [1, 1, steps]);
                const parts = [await stream.write({ X }), await stream.flush()];
                found.push(parts.reduce((sum, { Y }) => sum + (Y?.data.length ?? 0), 0));
            }
            console.log(JSON.stringify(found));
        })();
    """
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    said = subprocess.run([node, "-e", program, out.with_suffix(".js")], capture_output=True, check=True)
    assert json.loads(said.stdout) == [0, 1, 1, 2, 2, 3, 3, 4]


def test_the_emitted_c_gives_what_the_whole_model_gives(tmp_path: Path) -> None:
    """The model is a function of the signature that a compiler of models gives it."""
    code = _emit(tmp_path, "c")
    (tmp_path / "main.c").write_text(
        f"""
        #include <stdio.h>
        #include "{code}"
        void model(const float x[1][4], const float before[1][1], float y[1][4], float after[1][1]) {{
            float sum = before[0][0];
            for (int i = 0; i < 4; i++) y[0][i] = sum += x[0][i];
            after[0][0] = sum;
        }}
        int main(void) {{
            stream_state state;
            stream_reset(&state);
            for (int call = 0; call < 3; call++) {{
                const float x[1][STREAM_CHUNK] = {{{{1, 2, 3, 4}}}};
                float y[1][STREAM_CHUNK];
                stream_call(&state, x, y);
                for (int i = 0; i < STREAM_CHUNK; i++) printf("%g ", y[0][i]);
            }}
            return 0;
        }}
        """
    )
    cc = shutil.which("cc")
    if cc is None:
        pytest.skip("there is no cc")
    program = tmp_path / "main"
    subprocess.run([cc, "-Wall", "-Werror", "main.c", "-o", program], cwd=tmp_path, check=True)
    said = subprocess.run([program], capture_output=True, text=True, check=True)
    assert [float(each) for each in said.stdout.split()] == [1, 3, 6, 10, 11, 13, 16, 20, 21, 23, 26, 30]


@pytest.mark.parametrize("factor", [1, 1.01, float("nan")])
def test_the_emitted_c_test_notices_a_wrong_model(tmp_path: Path, factor: float) -> None:
    _emit(tmp_path, "c")
    (tmp_path / "model.c").write_text(
        f"""
        #include <math.h>
        void model(const float x[1][4], const float before[1][1], float y[1][4], float after[1][1]) {{
            float sum = before[0][0];
            for (int i = 0; i < 4; i++) y[0][i] = sum += x[0][i];
            after[0][0] = sum * {str(factor).upper()};
        }}
        """
    )
    said = _tested(tmp_path, "model.c")
    # The first call starts with the right state.
    assert ("call 1: v2[0] is" in said.stdout, said.returncode) == (factor != 1, int(factor != 1))
    assert "call 0" not in said.stdout


def test_names_that_end_a_comment_do_not_end_it_in_c() -> None:
    source = model(SUM)
    source.graph.output[0].name = source.graph.node[-1].output[0] = "Y*/ boom"
    code = rnnlower.stream.with_report(source, time_axes={"X": 1}, emit="c")[1].caller
    assert "/* Y* / boom */" in code
    assert "Y*/" not in code


def test_emitting_c_needs_static_sizes(tmp_path: Path) -> None:
    source = model(SUM.replace("float[1, n] X", "float[b, n] X"))
    out = tmp_path / "step.onnx"
    said = command(
        "stream", save(source, tmp_path), "-o", out, "--time-axis", "X:1", "--emit", "c", code=3
    ).stderr
    assert "dynamic size" in said
    assert not out.exists()


def test_an_unknown_language_is_refused(tmp_path: Path) -> None:
    said = command("stream", save(model(SUM), tmp_path), "-o", tmp_path / "o.onnx", "--emit", "java", code=2)
    assert "java" in said.stderr


@pytest.mark.parametrize("place", ["m.c", "folder.onnx"])
def test_the_emitted_code_takes_no_place_of_a_model_or_folder(place: str, tmp_path: Path) -> None:
    (tmp_path / "folder.c").mkdir()
    source = save(model(SUM), tmp_path)
    options = ["-o", tmp_path / place, "--time-axis", "X:1", "--emit", "c"]
    said = command("stream", source, *options, code=2).stderr
    assert ("one of the models" if place == "m.c" else "a directory") in said
    assert not (tmp_path / place).exists()
