"""The pipelines of the commands: shared steps, decisions made once, options that agree everywhere."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pathlib
from typing import Any

import onnx
import pytest
import typer.main
from support.cli_helpers import rnnlower as run
from support.cli_helpers import save
from support.configs import Config
from support.small_models import recurrent_model

import rnnlower
from rnnlower.cli.app import app
from rnnlower.graph import rollback
from rnnlower.passes import command_options, options
from rnnlower.passes.command_options import CalibrateOptions
from rnnlower.targets import adapting

FUNCTIONS = ("unroll", "scan", "loop", "lower", "lift", "pad", "stream", "convert", "check")
CONSTANT = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[2] x) => (float[2] y)
    {
        c = Constant <value = float[2] {1, 2}> ()
        y = Add (x, c)
    }
"""


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_options_of_python_and_of_the_command_line_agree(name: str) -> None:
    kind = (vars(options) | vars(command_options))[f"{name.capitalize()}Options"]
    fields = {each.name for each in dataclasses.fields(kind) if each.init}
    assert set(inspect.signature(getattr(rnnlower, name)).parameters) == {"model"} | fields
    group: Any = typer.main.get_command(app)
    offered = {parameter.name: parameter for parameter in group.commands[name].params}
    assert fields - {"progress"} <= {*offered}
    for each in dataclasses.fields(kind):
        if each.init and each.name not in ("progress", "chunk") and each.default is not dataclasses.MISSING:
            assert offered[each.name].default == each.default


def test_calibrate_in_python_has_the_options_of_the_command() -> None:
    fields = {each.name for each in dataclasses.fields(CalibrateOptions) if each.init}
    assert fields <= {*inspect.signature(rnnlower.calibrate).parameters}


def test_check_in_python_lists_what_the_command_lists(tmp_path: pathlib.Path) -> None:
    model = onnx.parser.parse_model(CONSTANT)
    listed = run("check", save(model, tmp_path), "--target", "litert", "--json").json["misfits"]
    assert [dataclasses.asdict(each) for each in rnnlower.check(model, target="litert")] == listed == []


def test_the_adaptation_of_a_node_is_decided_once(monkeypatch: pytest.MonkeyPatch) -> None:
    decided, decide = [], adapting._changes_for
    monkeypatch.setattr(adapting, "_changes_for", lambda *given: decided.append(given) or decide(*given))
    model = Config(direction="reverse", x_dims="static").build()
    _, report = rnnlower.lower.with_report(model, target="opencv", native="keep")
    assert [node.strategy for node in report.nodes] == ["adapt"]
    assert len(decided) == 1


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("unroll", {"dims": {"T": 3}, "strip": True}),
        ("lower", {"target": "opencv", "dims": {"T": 3}}),
        ("stream", {"strategy": "unroll", "strip": True}),
        ("check", {"target": "opencv", "dims": {"T": 3}}),
    ],
)
def test_pipelines_without_a_conversion_take_no_snapshot(
    name: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def remembered(model: object) -> None:
        raise AssertionError("the functions work on copies, which a failure throws away")

    monkeypatch.setattr(rollback, "_Snapshot", remembered)
    getattr(rnnlower, name)(recurrent_model(), **given)


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("passes.pipeline", "LOWER"),
        ("passes.streaming", "STREAM"),
        ("passes.converting", "CONVERT"),
        ("passes.checking", "CHECK"),
        ("passes.lifting", "LIFT"),
        ("passes.padding", "PAD"),
        ("quantizing.model_preparation", "PREPARATION"),
    ],
)
def test_every_step_says_what_the_graph_is_before_and_after(module: str, name: str) -> None:
    pipelines = importlib.import_module(f"rnnlower.{module}")
    for step in getattr(pipelines, name):
        words = inspect.getdoc(step.run) or ""
        assert "The graph stays as it is." in words or {"Before:", "After:"} <= {*words.split()}, step.run
