"""The model types of the public functions, for a type checker and for `help`."""

from __future__ import annotations

import inspect
import os
import pydoc
import re
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
from support.small_models import recurrent_model

import rnnlower

CONSUMER = """
from typing import assert_type
import onnx
import onnx_ir as ir
import rnnlower

def use(proto: onnx.ModelProto, model: ir.Model) -> None:
    assert_type(rnnlower.unroll("model.onnx", dims={"T": 16}), onnx.ModelProto)
    assert_type(rnnlower.scan(proto, unroll_factor=2), onnx.ModelProto)
    assert_type(rnnlower.loop(model), ir.Model)
    assert_type(rnnlower.lower(model, target="tinygrad"), ir.Model)
    assert_type(rnnlower.convert(proto, opset=13), onnx.ModelProto)
    assert_type(rnnlower.stream("model.onnx", chunk=1), onnx.ModelProto)
    assert_type(rnnlower.unroll.with_report(model), tuple[ir.Model, rnnlower.Report])
    assert_type(rnnlower.check(model, target="tinygrad"), list[rnnlower.Misfit])
    assert_type(rnnlower.inspect(proto), list[rnnlower.RecurrentNode])
    assert_type(rnnlower.verify("model.onnx", model), rnnlower.VerificationResult)
    assert_type(rnnlower.bench("model.onnx"), rnnlower.BenchResult)
    assert_type([engine.name for engine in rnnlower.engines()], list[str])
    rnnlower.unroll(model, unroll_factor=2)  # wrong
    rnnlower.convert(model)  # wrong
"""

SETTINGS = """
[mypy]
[mypy-numpy.*,sympy.*,google.*,typer.*,rich.*,onnx.reference.*,rnnlower.lifting.*,rnnlower.opset.*,\
    rnnlower.padding.*,rnnlower.streaming.*,rnnlower.timeflow.*,rnnlower.verification.inputs.*]
follow_imports = skip
follow_imports_for_stubs = True
"""
"""Without libraries and rooms whose types the public functions do not return."""


def test_a_type_checker_knows_the_kind_of_the_result(tmp_path: Path) -> None:
    api = pytest.importorskip("mypy.api")
    (tmp_path / "consumer.py").write_text(CONSUMER)
    (tmp_path / "mypy.ini").write_text(SETTINGS)
    line = ["--config-file", str(tmp_path / "mypy.ini"), "--cache-dir", os.devnull]
    line += ["--follow-imports", "silent", "--python-version", "3.11"]
    said, _, code = api.run([*line, "--ignore-missing-imports", str(tmp_path / "consumer.py")])
    errors = [each for each in said.splitlines() if ": error:" in each]
    assert code == 1
    wrong = [number for number, line in enumerate(CONSUMER.splitlines(), 1) if "# wrong" in line]
    assert {int(each.split(":")[1]) for each in errors} == {*wrong}, said


def test_the_report_beside_the_model() -> None:
    proto = recurrent_model()
    model, report = rnnlower.scan.with_report(proto)
    assert isinstance(report, rnnlower.Report)
    assert model == rnnlower.scan(proto)
    assert [(node.name, node.strategy) for node in report.nodes] == [("cell", "scan")]
    assert report.ops_before == {"LSTM": 1}
    assert "LSTM" not in report.ops_after
    own, conversion = rnnlower.convert.with_report(ir.from_proto(proto), opset=13)
    assert isinstance(own, ir.Model)
    assert conversion.target == 13


@pytest.mark.parametrize("name", ["unroll", "scan", "loop", "lower", "convert", "check", "inspect"])
def test_progress_calls_give_each_activity(name: str) -> None:
    told: list[str] = []
    options = {
        "lower": {"target": "onnxruntime"},
        "check": {"target": "onnxruntime"},
        "convert": {"opset": 13},
    }
    options["unroll"] = {"dims": {"T": 2}}
    progress = lambda activity, done, total: told.append(activity)  # noqa: E731
    getattr(rnnlower, name)(recurrent_model(), progress=progress, **options.get(name, {}))
    assert told[0] == "reading"
    if name in ("unroll", "scan", "loop"):
        assert any(each.startswith("lowering cell") for each in told)


def test_help_starts_with_what_users_call() -> None:
    words = pydoc.plain(pydoc.render_doc(rnnlower))
    assert words.index("The functions:") < words.index("PACKAGE CONTENTS")
    for name in ("unroll", "scan", "loop", "lower", "check", "convert", "verify", "inspect", "bench"):
        assert name in words.partition("PACKAGE CONTENTS")[0]
    assert [*inspect.signature(rnnlower.unroll).parameters][:3] == ["model", "opset", "dims"]
    # Python 3.13 breaks a long signature into lines.
    assert re.search(r"\nunroll\(\s*model: 'ModelLike'", pydoc.plain(pydoc.render_doc(rnnlower.unroll)))
    assert isinstance(rnnlower.unroll(recurrent_model(), dims={"T": 2}), onnx.ModelProto)
