"""The layout of a drawing's boxes, and the labels of a step's values."""

from __future__ import annotations

import itertools
import re

import pytest
from support.places import MODELS
from typer.testing import CliRunner

from rnnlower.cli.app import app
from rnnlower.files.model_io import read_model
from rnnlower.reporting.drawing import draw_step, find_step, place
from rnnlower.reporting.page import table


def test_boxes_of_a_layer_do_not_overlap():
    layers = [0, 1, 1, 1, 2, 3, 3, 4, 0, 1]
    edges = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 5), (3, 6), (4, 5), (5, 7), (6, 7), (0, 7), (8, 9)]
    layout = place([100.0] * 10, layers, edges)
    for a, b in itertools.combinations(range(10), 2):
        if layers[a] == layers[b]:
            assert abs(layout.middles[a] - layout.middles[b]) >= 100
    assert min(layout.middles) >= 50
    assert max(layout.middles) <= layout.width - 50
    assert layout.middles[8] > max(layout.middles[:8])
    assert [layer for layer, _ in layout.paths[9]] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("strategy", "name", "outside", "made"),
    [
        ("unroll", "lstm14_defaults", {"H(t-1)", "C(t-1)", "X(t) W"}, {"H(t)", "C(t)", "i o f", "c"}),
        ("scan", "gru14_defaults", {"H(t-1)", "X(t) W"}, {"H(t)", "z", "r"}),
        (
            "loop",
            "lstm14_peephole",
            {"H(t-1)", "C(t-1)", "X W", "iteration"},
            {"H(t)", "C(t)", "i", "f", "o"},
        ),
    ],
)
def test_values_have_the_names_of_the_equations(strategy, name, outside, made, tmp_path):
    command = [strategy, str(MODELS / f"{name}.onnx"), "-o", str(tmp_path / "o.onnx"), "--no-verify", "-q"]
    assert CliRunner().invoke(app, command).exit_code == 0
    nodes = find_step(read_model(tmp_path / "o.onnx"), f"{name[:4].upper().rstrip('1')}_0", 5)
    texts = {*re.findall(r"</title>([^<]*)<", draw_step(nodes))}
    assert outside | made <= texts


def test_a_column_without_values_is_left_out():
    page = table(("name", "size", "note"), [("a", 1000, ""), ("b", 2, None)])
    assert "note" not in page
    assert '<th class="number">size</th>' in page
    assert '<td class="number">1,000</td>' in page
