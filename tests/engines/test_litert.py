"""The adapter of LiteRT, with stand-ins for onnx2tf and the interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rnnlower.engines.child import Model
from rnnlower.engines.runtimes import converters

TENSORS = {"inputs": ["a__0", "b"], "outputs": ["y_1", "z"]}


class Interpreter:
    """Its signature sorts the names; its tensors are in the order of the graph."""

    def __init__(self, path: str) -> None:
        assert Path(path).read_text() == "converted"

    def allocate_tensors(self) -> None:
        """Nothing to do."""

    def get_signature_runner(self) -> Any:
        return lambda a__0, b: {"z": b, "y_1": a__0}

    def get_input_details(self) -> list[dict[str, str]]:
        return [{"name": name} for name in TENSORS["inputs"]]

    def get_output_details(self) -> list[dict[str, str]]:
        return [{"name": name} for name in TENSORS["outputs"]]


@pytest.fixture
def onnx2tf(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    def convert(output_folder_path: str, **options: Any) -> None:
        assert options["tflite_backend"] == "flatbuffer_direct"
        Path(output_folder_path, "model_float32.tflite").write_text("converted")

    module = ModuleType("onnx2tf")
    module.__dict__.update(convert=convert, __version__="2.6.9")
    runtime = ModuleType("ai_edge_litert.interpreter")
    runtime.__dict__["Interpreter"] = Interpreter
    monkeypatch.setitem(sys.modules, "onnx2tf", module)
    monkeypatch.setitem(sys.modules, "ai_edge_litert", ModuleType("ai_edge_litert"))
    monkeypatch.setitem(sys.modules, "ai_edge_litert.interpreter", runtime)
    converters._folder.cache_clear()
    monkeypatch.setenv("TQDM_DISABLE", "")
    return module


def model(folder: Path) -> Model:
    shapes = SimpleNamespace(inputs={"a:0": [1], "b": [1]}, outputs={"y/1": [1], "z": [1]})
    return Model(path=str(folder / "model.onnx"), folder=str(folder), **vars(shapes))


def test_the_order_of_the_graph_tells_which_tensor_is_which(onnx2tf: ModuleType, tmp_path: Path) -> None:
    run = converters.litert(model(tmp_path))
    answer = run({"a:0": np.array([1.0]), "b": np.array([2.0])})
    assert {name: array.tolist() for name, array in answer.items()} == {"y/1": [1.0], "z": [2.0]}


def test_an_old_version_of_onnx2tf_is_refused(onnx2tf: ModuleType, tmp_path: Path) -> None:
    onnx2tf.__dict__["__version__"] = "1.29.24"
    with pytest.raises(RuntimeError, match=r"onnx2tf 1\.29\.24 is too old: it must be 2\.4 or newer"):
        converters.litert(model(tmp_path))


def test_a_refusal_tells_its_cause(onnx2tf: ModuleType, tmp_path: Path) -> None:
    def refuse(**options: Any) -> None:
        try:
            raise NotImplementedError("Gemm needs a constant")
        except NotImplementedError as error:
            raise RuntimeError("the fast path failed.") from error

    onnx2tf.__dict__["convert"] = refuse
    with pytest.raises(RuntimeError, match=r"the fast path failed\. Gemm needs a constant"):
        converters.litert(model(tmp_path))


def test_a_model_of_an_earlier_conversion_is_not_reused(onnx2tf: ModuleType, tmp_path: Path) -> None:
    converters.litert(model(tmp_path))
    Path(converters._folder().name, "model_float32.tflite").write_text("converted")
    onnx2tf.__dict__["convert"] = lambda **options: None
    with pytest.raises(FileNotFoundError):
        converters.litert(model(tmp_path))


def test_the_folder_of_the_models_is_removed_at_the_end() -> None:
    code = "from rnnlower.engines.runtimes import converters; print(converters._folder().name)"
    made = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert made.stdout.strip()
    assert not Path(made.stdout.strip()).exists()
