"""Models on runtimes in child processes: the outputs, and the messages if there are none."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx.parser
import pytest

from rnnlower.engines import catalog
from rnnlower.engines.catalog import Engine, find_engine
from rnnlower.engines.child import read_arrays, write_arrays
from rnnlower.engines.opened_models import Attempts, EngineError, open_on

pytestmark = pytest.mark.usefixtures("forks")

MODEL = onnx.parser.parse_model(
    '<ir_version: 8, opset_import: ["": 14]> g (float[2, 3] file, int64[3] i) => (float[2, 3] Y, int64[3] j) '
    "{ Y = Add (file, file) j = Add (i, i) }"
)
FEEDS = {"file": np.arange(6, dtype=np.float32).reshape(2, 3), "i": np.arange(3)}
RIGHT = "import numpy as np\nimport sys\nx = np.load(sys.argv[2])\n"
RIGHT += 'np.savez(sys.argv[3], Y=2 * x["file"], j=2 * x["i"])\n'


def command_running(folder: Path, code: str) -> Engine:
    """Return a command that runs this Python code."""
    script = folder / "run on board.py"
    script.write_text(code)
    return find_engine(f"cmd:{sys.executable} '{script}' {{model}} {{inputs}} {{outputs}}")


def check_outputs(engine: Engine) -> None:
    opened = open_on(engine, MODEL)
    try:
        outputs = opened.run(FEEDS)
        np.testing.assert_array_equal(outputs["Y"], 2 * FEEDS["file"])
        np.testing.assert_array_equal(outputs["j"], 2 * FEEDS["i"])
        assert outputs["j"].dtype == np.int64
        seconds, latencies = opened.measure(FEEDS, 1, 3)
        assert seconds >= 0
        assert len(latencies) == 3
    finally:
        opened.close()


def test_a_command_returns_the_outputs(tmp_path: Path) -> None:
    check_outputs(command_running(tmp_path, RIGHT))


@pytest.mark.parametrize("name", ["onnxruntime", "rnnlower-reference"])
def test_an_adapter_returns_the_outputs(name: str) -> None:
    engine = find_engine(name)
    if not engine.installed:
        pytest.skip(engine.missing)
    check_outputs(engine)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("", "succeeded, but wrote no outputs"),
        ("import sys; open(sys.argv[3], 'w').write('garbage')", "is not an .npz archive"),
        (
            "import sys, numpy; numpy.save(open(sys.argv[3], 'wb'), [1])",
            "write one with np.savez",
        ),
        (
            "import sys, zipfile; zipfile.ZipFile(sys.argv[3], 'w').writestr('Y', b'raw')",
            "the output of the command",
        ),
        ("raise SystemExit('the board is off')", "with exit status 1: the board is off"),
        ("import os; os.kill(os.getpid(), 11)", "ended by SIGSEGV"),
        ("import time; time.sleep(60)", "was still running after 0.5 s; RNNLOWER_ENGINE_SECONDS allows more"),
    ],
)
def test_a_command_that_does_not_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, words: str
) -> None:
    if "sleep" in code:
        monkeypatch.setenv("RNNLOWER_ENGINE_SECONDS", "0.5")
    opened = open_on(command_running(tmp_path, code), MODEL)
    with pytest.raises(EngineError) as caught:
        opened.run(FEEDS)
    opened.close()
    assert words in str(caught.value)
    assert "the command " in str(caught.value)


def test_a_command_that_is_not_there() -> None:
    opened = open_on(find_engine("cmd:/nowhere/run {model} {inputs} {outputs}"), MODEL)
    with pytest.raises(EngineError, match="the command /nowhere/run cannot be started: No such file"):
        opened.run(FEEDS)
    opened.close()


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Engine]:
    """Make an engine of the body of its adapter."""

    def make(body: str) -> Engine:
        file = tmp_path / "made.py"
        head = "import os, sys, time\nfrom rnnlower.engines.child import adapter\n@adapter('Made')\n"
        file.write_text(f"{head}def made(model):\n    {body}\n")
        monkeypatch.setattr("rnnlower.engines.opened_models.adapter_file", lambda engine: file)
        return Engine("made", "Made", version="1.0")

    return make


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise ValueError('no\\n  LSTM')", "Made 1.0 failed loading the model: ValueError: no LSTM"),
        ("sys.exit(3)", "Made 1.0 failed loading the model: SystemExit: 3"),
        ("os.abort()", "Made 1.0 ended its process while loading the model, by SIGABRT"),
        ("os.write(2, b'what it said'); os._exit(3)", "with exit status 3: what it said"),
        ("time.sleep(60)", "Made 1.0 was still loading after 0.5 s"),
        ("bytearray(3 * 2**30)", "Made 1.0 failed loading the model: MemoryError"),
        ("return lambda feeds: os.abort()", "Made 1.0 ended its process while running the model, by SIGABRT"),
        (
            "return lambda feeds: {'Y': object()}",
            "Made 1.0 failed running the model: ValueError: Object arrays",
        ),
    ],
)
def test_an_adapter_that_fails(
    adapter: Callable[[str], Engine], monkeypatch: pytest.MonkeyPatch, body: str, words: str
) -> None:
    monkeypatch.setenv("RNNLOWER_ENGINE_GIGABYTES", "2")
    if "sleep" in body:
        monkeypatch.setenv("RNNLOWER_ENGINE_SECONDS", "0.5")
    with pytest.raises(EngineError) as caught:
        open_on(adapter(body), MODEL).run(FEEDS)
    assert words in str(caught.value)


@pytest.mark.skipif(sys.platform == "win32", reason="the script is for a shell")
@pytest.mark.parametrize("kind", ["command", "adapter"])
def test_no_process_is_left_after_an_interruption(
    tmp_path: Path, adapter: Callable[[str], Engine], kind: str
) -> None:
    said, script = tmp_path / "pid", tmp_path / "hang.sh"
    # The signal comes when this process waits for the script, not while it starts it.
    script.write_text(f"echo $$ > {said}; sleep 1; kill -INT {os.getpid()}; exec sleep 60")
    command = find_engine(f"cmd:sh {script} {{model}} {{inputs}} {{outputs}}")
    engine = command if kind == "command" else adapter(f"os.execlp('sh', 'sh', {str(script)!r})")
    with pytest.raises(KeyboardInterrupt):
        open_on(engine, MODEL).run(FEEDS)
    with pytest.raises(ProcessLookupError):
        os.kill(int(said.read_text()), 0)


def test_one_process_takes_model_after_model(adapter: Callable[[str], Engine]) -> None:
    said = "return lambda feeds: {'Y': np.array(os.getpid()), 'j': feeds['i']}"
    crash = "os.path.getsize(model.path) > 500 and os.abort()"
    engine = adapter(f"import numpy as np; {crash}; {said}")
    crashes = onnx.ModelProto.FromString(MODEL.SerializeToString())
    crashes.doc_string = "x" * 500
    other = FEEDS | {"i": np.ones(3)}
    with Attempts(engine) as attempts:
        first, second = attempts.run(MODEL, FEEDS, other)
        (third,) = attempts.run(MODEL, FEEDS)
        with pytest.raises(EngineError) as caught:
            attempts.run(crashes, FEEDS)
        (fourth,) = attempts.run(MODEL, FEEDS)
    assert caught.value.how == "crashes"
    assert first["Y"] == second["Y"] == third["Y"] != fourth["Y"]
    np.testing.assert_array_equal(second["j"], other["i"])


def test_what_an_adapter_is_given_and_may_reach(adapter: Callable[[str], Engine]) -> None:
    names = ("PIP_NO_INDEX", "https_proxy", "TMPDIR")
    told = f"told = dict(vars(model), **{{name: os.environ[name] for name in {names}}}, here=sys.path[0])"
    body = f"{told}; print('noise'); import json; raise ValueError(json.dumps(told))"
    with pytest.raises(EngineError) as caught:
        open_on(adapter(body), MODEL)
    told = json.loads(str(caught.value).partition("ValueError: ")[2])
    assert told["inputs"] == {"file": [2, 3], "i": [3]}
    assert told["dtypes"] == {"Y": "float32", "j": "int64"}
    assert told["PIP_NO_INDEX"] == "1"
    assert told["https_proxy"] == "http://127.0.0.1:9"
    assert told["TMPDIR"] == told["folder"]
    assert not Path(told["folder"]).exists()
    assert Path(told["here"]) != Path(catalog.__file__).parent


@pytest.mark.parametrize("text", ["never", "0", "-1", "inf"])
def test_a_memory_limit_must_be_a_positive_number(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    from rnnlower.engines.opened_models import memory_limit
    from rnnlower.errors import OptionError

    monkeypatch.setenv("RNNLOWER_ENGINE_GIGABYTES", text)
    with pytest.raises(OptionError, match="it must be a number above 0"):
        memory_limit()


def test_arrays_of_any_name_and_type(tmp_path: Path) -> None:
    import ml_dtypes

    arrays = {"file": np.ones(2), "a/b:0": np.array(True), "arr_0.npy": np.zeros((0, 3), np.float16)}
    arrays |= {"arr_0": np.ones(1), "": np.ones(3)}
    path = str(tmp_path / "arrays.npz")
    write_arrays(path, arrays)
    found = read_arrays(path)
    assert [*found] == [*arrays]
    assert all(np.array_equal(found[name], arrays[name]) for name in arrays)
    write_arrays(path, {"x": np.ones(2, ml_dtypes.bfloat16)})
    assert read_arrays(path)["x"].dtype.itemsize == 2
