"""The known engines: their descriptions, and how they are found."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest

import rnnlower
from rnnlower.engines.catalog import engine_names, find_engine

NAMES = (
    *("emx", "iree", "litert", "mnn", "ncnn", "onnx2torch", "onnxruntime", "opencv", "openvino", "ort-qnn"),
    *("ort-web", "rknn", "rnnlower-reference", "tinygrad", "tract", "tvm"),
)


def test_the_package_lists_the_engines() -> None:
    assert [engine.name for engine in rnnlower.engines()] == [*NAMES]
    assert engine_names() == [*NAMES]


def test_what_is_installed_has_a_version_and_the_rest_says_what_installs_it() -> None:
    for engine in rnnlower.engines():
        assert engine.installed == (engine.version is not None)
        assert engine.installed or (engine.missing and engine.install)
        assert {"name", "version", "installed", "tried", "install", "needs"} <= engine.to_dict().keys()
    here = find_engine("onnxruntime")
    assert (here.version, here.label) == (metadata.version("onnxruntime"), f"onnxruntime {here.version}")


def test_another_interpreter_is_asked(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    other = tmp_path / "python"
    other.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    other.chmod(0o755)
    monkeypatch.setenv("RNNLOWER_PYTHON_ONNXRUNTIME", str(other))
    engine = find_engine("onnxruntime")
    assert (engine.python, engine.version) == (str(other), metadata.version("onnxruntime"))
    monkeypatch.setenv("RNNLOWER_PYTHON_ONNXRUNTIME", str(tmp_path / "nowhere"))
    assert "is not a program" in find_engine("onnxruntime").missing
    monkeypatch.setenv("RNNLOWER_PYTHON_ONNXRUNTIME", "false")
    assert "cannot list its packages" in find_engine("onnxruntime").missing


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tensorflow", "there is no engine 'tensorflow'; it must be one of emx, "),
        ("cmd:./run.sh {model} {inputs}", "has no place for {outputs}"),
        ("cmd:./run.sh '{model} {inputs} {outputs}", "cannot be split into words"),
    ],
)
def test_an_unknown_engine_is_refused(name: str, words: str) -> None:
    with pytest.raises(rnnlower.OptionError) as caught:
        find_engine(name)
    assert words in str(caught.value)
