"""The page of --report: what is in it, that it needs nothing else, that it is written whole or not at all."""

from __future__ import annotations

import errno
import html.parser
import os
import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from support.places import MODELS
from typer.testing import CliRunner

from rnnlower.cli.app import app
from rnnlower.files.model_io import read_model
from rnnlower.reporting.drawing import draw_step, find_step
from rnnlower.reporting.page import Page, draw_errors, draw_shares, table, write_page
from rnnlower.verification.verdict.compare import errors_over_time

MODEL = str(MODELS / "lstm14_defaults.onnx")
VOID = {"meta"}


def invoke(*arguments: str) -> int:
    return CliRunner().invoke(app, [*arguments, "-q"]).exit_code


class _Balanced(html.parser.HTMLParser):
    """Hold the tags that are open; all of them are closed in their order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read(path: Path) -> str:
    """Return a page, found to be well-formed and to refer to nothing outside of it."""
    page = path.read_text()
    parser = _Balanced()
    parser.feed(page)
    assert not parser.open
    assert not re.search(r"https?:|src=|href=|@import|url\(|<script", page)
    return page


COMMANDS = {
    "unroll": (
        ["unroll", MODEL, "-o", "OUT"],
        ["A time step, before and after", "Errors over the time steps"],
    ),
    "scan": (["scan", MODEL, "-o", "OUT"], ["An iteration", "Operators"]),
    "loop": (["loop", MODEL, "-o", "OUT", "--no-verify"], ["An iteration", "Not verified"]),
    "lower": (["lower", MODEL, "-o", "OUT", "--target", "primitive"], ["What changed", "Verified"]),
    "convert": (["convert", MODEL, "-o", "OUT", "--opset", "17"], ["Opset 14 to 17", "Verified"]),
    "verify": (["verify", MODEL, MODEL], ["Reference", "Candidate", "Verified"]),
    "bench": (["bench", MODEL, "--runs", "2", "--strategy", "scan"], ["Latency of a run", "Measured on"]),
    "stream": (["stream", MODEL, "-o", "OUT"], ["feeds input", "Verified"]),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_that_changes_or_compares_writes_a_page(command, tmp_path):
    arguments, expected = COMMANDS[command]
    arguments = [str(tmp_path / "out.onnx") if text == "OUT" else text for text in arguments]
    assert invoke(*arguments, "--report", str(tmp_path / "report.html")) == 0
    page = read(tmp_path / "report.html")
    for text in [*expected, "Command and versions", f"<h1>rnnlower {command} "]:
        assert text in page
    assert {path.name for path in tmp_path.iterdir()} <= {"out.onnx", "report.html"}


def test_the_page_names_streams(tmp_path):
    model, page = MODELS / "lstm07_reverse.onnx", tmp_path / "report.html"
    line = ["unroll", "-", "-o", "-", "--report", str(page)]
    assert CliRunner().invoke(app, line, input=model.read_bytes()).exit_code == 0
    assert all(f">standard {name}<" in page.read_text("utf-8") for name in ("input", "output"))


@pytest.mark.parametrize("command", ["unroll", "scan", "stream", "lower", "convert"])
def test_the_page_describes_the_result(command, tmp_path, out):
    arguments = [str(out) if text == "OUT" else text for text in COMMANDS[command][0]]
    assert invoke(*arguments, "--report", str(tmp_path / "report.html")) == 0
    _, _, section = read(tmp_path / "report.html").partition("<h2>The result</h2>")
    facts = cells(section.partition("</section>")[0])
    model = onnx.load(out)
    assert ("file", str(out)) in facts
    assert ("size", f"{out.stat().st_size:,} bytes") in facts
    assert ("opset", f"ai.onnx {model.opset_import[0].version}") in facts
    named = {fact[1].partition(":")[0] for fact in facts if fact[0] in ("input", "output")}
    assert named == {value.name for value in (*model.graph.input, *model.graph.output)}


def cells(html_: str) -> list[tuple[str, ...]]:
    """Return the rows of the tables in a piece of a page."""
    rows = re.findall(r"<tr>(.*?)</tr>", html_)
    return [tuple(html.unescape(cell) for cell in re.findall(r"<t[dh][^>]*>(.*?)</t[dh]>", r)) for r in rows]


def test_a_result_that_differs_was_not_written(tmp_path):
    out, report = tmp_path / "out.onnx", tmp_path / "report.html"
    arguments = ["scan", MODEL, "-o", str(out), "--atol", "0", "--report", str(report)]
    assert invoke(*arguments) == 1
    assert not out.exists()
    assert f"{out} was not written" in read(report)


def test_the_size_includes_the_data_file(tmp_path):
    out, report = tmp_path / "out.onnx", tmp_path / "report.html"
    model = str(MODELS / "lstm17_weights_computed.onnx")
    assert invoke("scan", model, "-o", str(out), "--external-data", "always", "--report", str(report)) == 0
    files = [path for path in tmp_path.iterdir() if path != report]
    assert f"{sum(path.stat().st_size for path in files):,} bytes" in read(report)


def test_the_times_of_the_phases_add_up(tmp_path):
    seconds = {"reading": 0.25, "verifying": 0.71, "verifying: candidate": 1.14, "writing": 0.1}
    write_page(Page("t", "v", None, (), "c", seconds), tmp_path / "page.html")
    rows = dict(row for row in cells(read(tmp_path / "page.html")) if row[1].endswith(" s"))
    assert rows == {
        "reading": "0.25 s",
        "verifying: candidate": "1.14 s",
        "verifying: the rest": "0.71 s",
        "writing": "0.10 s",
        "all": "2.20 s",
    }


def test_the_scale_of_the_shares_is_labeled():
    drawn = draw_shares(
        [("a", 0.002, False), ("b", 0.3, False), ("c", 2000.0, True), ("d", float("inf"), True)]
    )
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", drawn)
    assert texts[-8:] == ["0.1%", "1%", "10%", "100%", "10x", "100x", "1,000x", "10,000x"]
    bars = [float(width) for width in re.findall(r'<rect[^>]* width="([\d.]+)"', drawn)]
    ticks = [float(x) for x in re.findall(r'<line x1="([\d.]+)"', drawn)]
    step = ticks[1] - ticks[0]
    assert bars[1] - bars[0] == pytest.approx(np.log10(0.3 / 0.002) * step, abs=0.2)
    assert bars[2] - bars[0] == pytest.approx(6 * step, abs=0.2)
    assert bars[3] == pytest.approx(7 * step, abs=0.2)


def test_long_names_may_be_broken_and_short_ones_not():
    drawn = table(("node", "op"), [("If_0_then_branch__Inline_0__/decoder/rnn/LSTM", "LSTM"), ("b", "GRU")])
    assert drawn.count('<td class="long">') == 2
    assert "<td>LSTM</td>" in drawn


def test_a_difference_is_on_the_page(tmp_path):
    model = onnx.load(MODEL)
    weights = next(each for each in model.graph.initializer if each.name == "W")
    weights.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(weights) * np.float32(1.5), "W"))
    onnx.save(model, tmp_path / "wrong.onnx")
    report = tmp_path / "report.html"
    assert invoke("verify", MODEL, str(tmp_path / "wrong.onnx"), "--report", str(report)) == 1
    page = read(report)
    assert "The outputs DIFFER" in page
    assert "elements differ" in page


def test_the_source_may_be_the_destination(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(Path(MODEL).read_bytes())
    assert invoke("unroll", str(path), "-o", str(path), "--report", str(tmp_path / "report.html")) == 0
    assert "Before: LSTM LSTM_0" in read(tmp_path / "report.html")


@pytest.mark.parametrize("name", ["report.pdf", "missing/report.html", "folder.html", "model.html"])
def test_a_page_that_cannot_be_written_is_refused_before_anything_is_done(name, tmp_path):
    (tmp_path / "folder.html").mkdir()
    model = tmp_path / "model.html"
    model.write_bytes(Path(MODEL).read_bytes())
    assert (
        invoke("unroll", str(model), "-o", str(tmp_path / "out.onnx"), "--report", str(tmp_path / name)) == 2
    )
    assert not (tmp_path / "out.onnx").exists()


def test_a_full_disk_leaves_no_partial_page(tmp_path, monkeypatch):
    def full(*arguments, **options):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("rnnlower.folders.os.replace", full)
    result = CliRunner().invoke(app, ["verify", MODEL, MODEL, "--report", str(tmp_path / "report.html")])
    assert result.exit_code == 2
    assert "report.html cannot be written: No space left on device" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_refused_model_leaves_no_page(tmp_path):
    model = str(MODELS / "lstm14_dynamic_time.onnx")
    assert invoke("unroll", model, "-o", str(tmp_path / "o.onnx"), "--report", str(tmp_path / "r.html")) == 3
    assert not list(tmp_path.iterdir())


def test_names_are_escaped(tmp_path):
    model = onnx.load(MODEL)
    model.graph.node[0].name = "<script>alert('&')"
    onnx.save(model, tmp_path / "model.onnx")
    report = tmp_path / "report.html"
    assert (
        invoke("scan", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "o.onnx"), "--report", str(report))
        == 0
    )
    assert "&lt;script&gt;alert(&#x27;&amp;&#x27;)" in read(report)


@pytest.mark.parametrize("strategy", ["unroll", "scan", "loop"])
def test_the_drawing_shows_the_nodes_of_one_step(strategy, tmp_path):
    assert invoke(strategy, MODEL, "-o", str(tmp_path / "o.onnx"), "--no-verify") == 0
    nodes = find_step(read_model(tmp_path / "o.onnx"), "LSTM_0", 5)
    counts = {op: sum(node.op_type == op for node in nodes) for op in ("Gemm", "Sigmoid", "Tanh", "Add")}
    assert counts == {"Gemm": 2, "Sigmoid": 1, "Tanh": 2, "Add": 1}
    assert draw_step(nodes).count("<rect") == len(nodes)


def test_labels_fit_into_their_boxes(tmp_path):
    model = onnx.load(MODEL)
    for name in ("R", "W"):
        next(each for each in model.graph.initializer if each.name == name).name = f"onnx::LSTM_{name}_3452_2"
    for number, name in ((1, "W"), (2, "R")):
        model.graph.node[0].input[number] = f"onnx::LSTM_{name}_3452_2"
    onnx.save(model, tmp_path / "model.onnx")
    arguments = ["scan", str(tmp_path / "model.onnx"), "-o", str(tmp_path / "o.onnx"), "--no-verify"]
    assert invoke(*arguments) == 0
    drawn = draw_step(find_step(read_model(tmp_path / "o.onnx"), "LSTM_0", 5))
    boxes = [float(width) for width in re.findall(r'<rect[^>]* width="([\d.]+)"', drawn) for _ in range(2)]
    labels = re.findall(
        r"<rect[^>]*/>\n<text[^>]*><title>[^<]*</title>([^<]*)</text>(?:\n<text[^>]*class=\"dim\"><title>[^<]*</title>([^<]*)</text>)?",
        drawn,
    )
    assert any("LSTM_R" in text for pair in labels for text in pair)
    for width, text in zip(boxes, [text for pair in labels for text in pair], strict=True):
        assert 7 * len(text) < width, text


def test_a_model_of_one_step_is_drawn(tmp_path):
    dynamic = str(MODELS / "lstm14_dynamic.onnx")
    assert invoke("unroll", dynamic, "-o", str(tmp_path / "o.onnx"), "--no-verify", "--dim", "T=1") == 0
    nodes = find_step(read_model(tmp_path / "o.onnx"), "LSTM_0", 1)
    assert {"Gemm", "Sigmoid", "Tanh", "Mul"} <= {node.op_type for node in nodes}


def test_errors_over_time_of_arrays_of_any_length():
    one, two = np.zeros((2, 3)), np.array([[0, 1, 0], [0, np.nan, 2.0]])
    assert errors_over_time([(one, two), (np.ones((1, 3)), np.ones((1, 3)))], 1) == (0.0, np.inf, 2.0)
    assert errors_over_time([(one[:, :1], two[:, :1]), (one, -two)], 1) == (0.0, np.inf, 2.0)
    assert errors_over_time([(np.array(["a"]), np.array(["b"]))], 0) == ()
    assert errors_over_time([(np.zeros((0, 2, 3)), np.zeros((0, 2, 3)))], 0) == ()
    assert errors_over_time([(np.zeros((2, 0)), np.zeros((2, 0)))], 0) == (0.0, 0.0)


def test_thousands_of_steps_are_drawn_as_few_points():
    drawn = draw_errors([1e-7] * 4000 + [1e-3])
    assert len(drawn) < 12_000
    assert draw_errors([0.0, 0.0]) == "<p>No difference at any time step.</p>\n"
