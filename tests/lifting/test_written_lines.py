"""Straight lines whose steps write their results into a tensor, one element after another."""

from __future__ import annotations

import onnx
import pytest
from lifting.test_joined_lines import STEPS, compare
from support.judge import recurrent_left

HEADER = """<ir_version: 8, opset_import: ["" : 17]>
    main (float[ROWS, 4, 4] X, float[ROWS, 4] h0) => (float[ROWS, 4, 4] Y)
    <float[4, 4] R = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0, -0.1, -0.2, -0.3, -0.4, -0.5, 0},
     int64 zero = {0}, int64 one = {1}, int64[1] axis = {1}, int64[1] last = {-1}, int64[1] four = {4},
     int64[1] p0 = {0}, int64[1] p1 = {1}, int64[1] p2 = {2}, int64[1] p3 = {3}, int64[1] back3 = {-1},
     int64[1] back2 = {-2}, int64[1] back1 = {-3}, int64[1] back0 = {-4},
     int64[2, 2] grid0 = {0, 0, 1, 0}, int64[2, 2] grid1 = {0, 1, 1, 1}, int64[2, 2] grid2 = {0, 2, 1, 2},
     int64[2, 2] grid3 = {0, 3, 1, 3},
     int64[2, 2] turned0 = {1, 0, 0, 0}, int64[2, 2] turned1 = {1, 1, 0, 1},
     int64[2, 2] turned2 = {1, 2, 0, 2}, int64[2, 2] turned3 = {1, 3, 0, 3},
     int64[1] even0 = {0}, int64[1] even1 = {2}, int64[1] even2 = {0},
     int64[1] even3 = {2}> {
    all = Shape (X) buf0 = ConstantOfShape (all) batch = Gather (all, zero)
    sizes = Unsqueeze (batch, p0) rows1 = Concat <axis = 0> (sizes, p1, four)
    column = Concat <axis = 0> (sizes, p1)
    counted = Range (zero, batch, one) rows = Unsqueeze (counted, axis)
"""
STEP = """xK = Gather <axis = 1> (X, pK) yK = Squeeze (xK, axis)
    rK = MatMul (hK, R) sK = Add (yK, rK) hNEXT = Tanh (sK)
"""
ELEMENTS = """iK = Expand (PLACE, rows1) uK = Unsqueeze (hNEXT, axis)
    bufNEXT = ScatterElements <axis = 1> (bufK, iK, uK)
"""
GRIDS = "bufNEXT = ScatterND (bufK, gridK, hNEXT)\n"
OPEN_GRIDS = """kK = Expand (pK, column) gK = Concat <axis = 1> (rows, kK)
    bufNEXT = ScatterND (bufK, gK, hNEXT)
"""


ADDED = ELEMENTS.replace("PLACE", "pK").replace("axis = 1>", 'axis = 1, reduction = "add">')


def write_steps(write: str, step: str = STEP) -> str:
    return "".join((step + write).replace("NEXT", str(k + 1)).replace("K", str(k)) for k in range(STEPS))


def make_line(write: str, rows: object = "N") -> onnx.ModelProto:
    text = HEADER.replace("ROWS", str(rows)) + write_steps(write) + f"Y = Identity (buf{STEPS}) }}"
    return onnx.parser.parse_model(text)


@pytest.mark.parametrize(
    ("write", "rows"),
    [
        (ELEMENTS.replace("PLACE", "pK"), "N"),
        (ELEMENTS.replace("PLACE", "pK"), 2),
        (ELEMENTS.replace("PLACE", "backK"), "N"),
        (GRIDS, 2),
        (OPEN_GRIDS, "N"),
    ],
    ids=["elements", "elements of two rows", "from the end", "grids", "grids of open rows"],
)
def test_results_are_those_of_the_node(write: str, rows: object) -> None:
    lifted = compare(make_line(write, rows))
    assert recurrent_left(lifted) == ["RNN"]
    (batch,) = [node.output[0] for node in lifted.graph.node if node.op_type == "Gather"]
    assert batch == "batch"
    assert not any(node.op_type.startswith("Scatter") for node in lifted.graph.node)


@pytest.mark.parametrize(
    ("model", "writes"),
    [
        (make_line(GRIDS.replace("grid", "turned"), 2), 4),
        (make_line(ADDED), 4),
        (make_line(ELEMENTS.replace("PLACE", "evenK")), 4),
    ],
    ids=["rows turned", "added", "not all"],
)
def test_other_writes_stay(model: onnx.ModelProto, writes: int) -> None:
    lifted = compare(model)
    assert recurrent_left(lifted) == ["RNN"]
    assert sum(node.op_type.startswith("Scatter") for node in lifted.graph.node) == writes


def test_the_last_write_of_an_element_counts() -> None:
    twice = """again = Expand (p1, rows1) u = Unsqueeze (h4, axis)
        buf5 = ScatterElements <axis = 1> (buf4, again, u) Y = Identity (buf5)"""
    text = HEADER.replace("ROWS", "N") + write_steps(ELEMENTS.replace("PLACE", "pK")) + twice + "}"
    lifted = compare(onnx.parser.parse_model(text))
    assert recurrent_left(lifted) == ["RNN"]
    assert not any(node.op_type == "ScatterElements" for node in lifted.graph.node)


def test_elements_that_are_rounded_stay_so() -> None:
    rounded = STEP.replace("xK =", "wK =").replace(
        "yK =", "nK = Cast <to = 7> (wK) xK = Cast <to = 1> (nK) yK ="
    )
    steps = write_steps("uK = Unsqueeze (hNEXT, axis)\n", rounded)
    text = HEADER.replace("ROWS", "N") + steps + "Y = Concat <axis = 1> (u0, u1, u2, u3) }"
    lifted = compare(onnx.parser.parse_model(text))
    assert recurrent_left(lifted) == ["RNN"]
