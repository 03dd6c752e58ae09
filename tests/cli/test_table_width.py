"""Tables on narrow and wide terminals: every figure is on the screen, whole."""

from __future__ import annotations

import collections
import fcntl
import functools
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from support.cli_helpers import Run, save
from support.forking import python
from support.places import MODELS
from support.small_models import info, model_of

from rnnlower.cli import tables
from rnnlower.cli.console import Table, write

WIDTHS = (40, 60, 80, 120, 200)


def _figures(text: str) -> collections.Counter[str]:
    words = re.split(r"[\s=/]+", re.sub(r"\x1b\[[\d;]*m", "", text))
    stripped = (word.strip("()[],:;") for word in words)
    return collections.Counter(word for word in stripped if re.fullmatch(r"-?\d[\w.,+%-]*", word))


def _of_targets(found: Any) -> Iterator[str]:
    for target in found["targets"]:
        yield "{}-{}".format(*target["opset"]["range"])
        yield from [target["tried"]["version"]] if target["tried"] else []


def _of_engines(found: Any) -> Iterator[str]:
    for engine in found["engines"]:
        yield from (engine[key] for key in ("version", "tried") if engine[key])


def _of_nodes(found: Any) -> Iterator[str]:
    for node in found["recurrent"]:
        sizes = (node[key] for key in ("seq_len", "batch", "input_size", "hidden_size"))
        yield from (str(size) for size in sizes if isinstance(size, int))
        yield from _figures(" ".join(f"{value}" for value in node["attributes"].values()))


def _of_misfits(found: Any) -> Iterator[str]:
    assert found["misfits"]
    for misfit in found["misfits"]:
        yield from _figures(f"{misfit['reason']} {misfit['remedy']}")


def _of_outputs(found: Any) -> Iterator[str]:
    for output in found["outputs"]:
        yield from (f"{output[key]:.3g}" for key in ("max_abs", "max_rel", "max_ulp"))
        yield from (f"{output[key]:.2g}" for key in ("error", "allowed") if output[key] is not None)
        yield from [output["reference_value"], output["candidate_value"]] if not output["equal"] else []


def _of_lowering(found: Any) -> Iterator[str]:
    for node in found["nodes"]:
        yield from [str(node["steps"])] if node["steps"] is not None else []
        yield str(node["emitted_ops"])
    for counts in (found["ops_before"], found["ops_after"]):
        yield from (str(count) for count in (*counts.values(), sum(counts.values())))
    yield from (str(found["opset"]), *_of_outputs(found.get("verification") or {"outputs": ()}))


def _of_conversion(found: Any) -> Iterator[str]:
    yield from (str(found["source"]), str(found["target"]), *_of_outputs(found["verification"]))
    assert found["adapted"]
    for change in found["adapted"]:
        yield from (str(change["old"]), str(change["new"]))


def _of_stream(found: Any) -> Iterator[str]:
    yield from (str(axis) for axis in (*found["inputs"].values(), *found["outputs"].values()))
    yield from (str(found["chunk"]), *_of_lowering(found["lowering"]), *_of_outputs(found["verification"]))


def _of_forms(found: Any) -> Iterator[str]:
    for form in found["variants"]:
        yield from (f"{form[key]:,}" for key in ("file_bytes", "ops", "ops_run"))
        yield from (f"{form['latency_ms'][key]:.4g}" for key in ("median", "p10", "p90"))
        yield from (f"{form['session_ms']['median']:.4g}", f"{form['ratio']:.2f}")
        yield f"{form['ops_per_step']:.2f}"


_OUT = ("-o", "out.onnx")
_COMMANDS: dict[str, tuple[list[object], str, Callable[[Any], Iterator[str]]]] = {
    "targets": (["targets"], "print_targets", _of_targets),
    "engines": (["engines"], "print_engines", _of_engines),
    "inspect": (
        ["inspect", MODELS / "lstm14_bidirectional_layout1_clip.onnx"],
        "print_inspection",
        _of_nodes,
    ),
    "inspect bodies": (
        ["inspect", MODELS / "lstm13_in_if_in_if_captured.onnx"],
        "print_inspection",
        _of_nodes,
    ),
    "check": (["check", "ranks.onnx", "--target", "own.toml"], "print_check", _of_misfits),
    "check -v": (["check", "ranks.onnx", "--target", "own.toml", "-v"], "print_check", _of_misfits),
    "check nodes": (
        ["check", MODELS / "lstm14_clip.onnx", "--target", "tract", "-v"],
        "print_check",
        _of_misfits,
    ),
    "unroll": (["unroll", MODELS / "lstm14_300_steps.onnx", *_OUT, "-v"], "print_lowering", _of_lowering),
    "lower": (
        ["lower", MODELS / "gru_two_layers_dynamic.onnx", *_OUT, "-v", "--target", "opencv"],
        "print_lowering",
        _of_lowering,
    ),
    "convert": (
        ["convert", MODELS / "denoiser_gru.onnx", *_OUT, "-v", "--opset", 12],
        "print_conversion",
        _of_conversion,
    ),
    "stream": (
        ["stream", MODELS / "denoiser_gru.onnx", *_OUT, "-v", "--strategy", "unroll"],
        "print_stream",
        _of_stream,
    ),
    "verify": (
        ["verify", MODELS / "gru14_defaults.onnx", "other.onnx", "-v"],
        "print_verification",
        _of_outputs,
    ),
    "bench": (
        ["bench", MODELS / "lstm14_defaults.onnx", "--runs", 2, "--warmup", 0],
        "print_bench",
        _of_forms,
    ),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a model of many ranks, a target that lacks them, and a model to differ from."""
    monkeypatch.chdir(tmp_path)
    x, y = (info(name, onnx.TensorProto.FLOAT, [2, 3, 4, 5, 6]) for name in "XY")
    save(model_of([onnx.parser.parse_node("Y = Relu (X)")], [x], [y]), tmp_path, "ranks.onnx")
    (tmp_path / "own.toml").write_text(_OWN)
    model = onnx.load(MODELS / "gru14_defaults.onnx")
    next(node for node in model.graph.node if node.op_type == "GRU").attribute.extend(
        [onnx.helper.make_attribute("linear_before_reset", 1)]
    )
    save(model, tmp_path, "other.onnx")
    return tmp_path


_OWN = """
[opset]
range = [7, 26]
source = "a test"
[control_flow]
ops = []
source = "a test"
[shapes]
static = false
source = "a test"
[dtypes]
allowed = ["float32"]
source = "a test"
[ops]
allowed = ["Relu"]
source = "a test"
[[limits]]
ops = ["Relu"]
max_rank = 3
source = "a test"
"""


@pytest.mark.parametrize("name", _COMMANDS)
def test_every_figure_is_on_the_screen(
    name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line, printer, figures = _COMMANDS[name]
    calls: list[Callable[[], None]] = []
    reports: list[Any] = []
    for each in dict.fromkeys((printer, "print_verification")):
        show = getattr(tables, each)

        def noted(*given: Any, show: Callable[..., None] = show, **options: Any) -> None:
            calls.append(functools.partial(show, *given, **options))
            reports.append(given[0])

        monkeypatch.setattr(tables, each, noted)
    Run(*line)
    found = reports[0].to_dict() if name == "bench" else Run(*line, "--json").json

    def show_all() -> None:
        for call in calls:
            call()

    show_all()
    full = _figures(capsys.readouterr().out)
    expected = set(figures(found))
    assert expected
    # A pipe is as wide as the table.
    assert not expected - full.keys()
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
        show_all()
        seen = capsys.readouterr().out
        assert not full - _figures(seen), f"missing at {width} columns in\n{seen}"


def _printed(width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    table = Table(("node", "place", "size", "attributes"), optional=("place",))
    table.add_row("encoder/a_rather_long_name/LSTM", "If_1/then_branch", "134,221,417", "clip=0.5 layout=1")
    table.add_row("LSTM", "main graph", "7", "")
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    write(table)
    return re.sub(r"\x1b\[[\d;]*m", "", capsys.readouterr().out).splitlines()


def test_text_wraps_then_columns_go_then_rows_become_records(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert _printed(100, monkeypatch, capsys) == [
        "node                             place             size         attributes",
        "encoder/a_rather_long_name/LSTM  If_1/then_branch  134,221,417  clip=0.5 layout=1",
        "LSTM                             main graph        7",
    ]
    assert _printed(64, monkeypatch, capsys) == [
        "node                 place           size         attributes",
        "encoder/             If_1/           134,221,417  clip=0.5",
        "a_rather_long_name/  then_branch                  layout=1",
        "LSTM",
        "LSTM                 main graph      7",
    ]
    assert _printed(50, monkeypatch, capsys) == [
        "node                 size         attributes",
        "encoder/             134,221,417  clip=0.5",
        "a_rather_long_name/               layout=1",
        "LSTM",
        "LSTM                 7",
        "not shown in 50 columns: place (a wider terminal",
        "and --json show all)",
    ]
    assert _printed(30, monkeypatch, capsys) == [
        "node: encoder/",
        "a_rather_long_name/LSTM",
        "place: If_1/then_branch",
        "size: 134,221,417",
        "attributes: clip=0.5 layout=1",
        "",
        "node: LSTM",
        "place: main graph",
        "size: 7",
    ]


def test_a_terminal_of_80_columns_shows_all_targets() -> None:
    terminal, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 25, 80, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [python(), "-m", "rnnlower", "targets"]
    with subprocess.Popen(command, stdout=end, stderr=end, env=environment | {"TERM": "xterm"}) as running:
        os.close(end)
        seen = b""
        # Linux ends a terminal whose other side is closed with an error.
        while True:
            try:
                seen += os.read(terminal, 65536)
            except OSError:
                break
    os.close(terminal)
    assert running.returncode == 0
    lines = re.sub(r"\x1b\[[\d;]*m", "", seen.decode()).splitlines()
    assert max(map(len, lines)) <= 80
    assert not set(_of_targets(Run("targets", "--json").json)) - _figures("\n".join(lines)).keys()
