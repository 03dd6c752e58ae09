"""Lanes: the directions of a node, their inputs, their order in time and their names."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from support.small_models import recurrent_model, weights
from support.workbench import Workbench

from rnnlower.lowering.forms import PLAIN
from rnnlower.lowering.lanes import make_lanes
from rnnlower.lowering.timeseries import Axes, TimeSeries
from rnnlower.lowering.weights import Weights
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.parsing import parse_recurrent

X = np.random.default_rng(0).standard_normal((5, 2, 3)).astype(np.float32)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_each_lane_has_the_inputs_order_and_names_of_its_direction(direction: str) -> None:
    both = direction == "bidirectional"
    constants = weights("LSTM", directions=1 + both)
    inputs = {"X": (1, [5, 2, 3])}
    model = recurrent_model("LSTM", constants=constants, inputs=inputs, direction=direction)
    (located,) = find_recurrent(ir.from_proto(model))
    node = parse_recurrent(located, "ort")
    bench = Workbench()
    series = TimeSeries(bench.e, Axes(5, 2), 3, stacked=bench.input("X", X.shape))
    private = {node.inputs[name] for name in ("W", "R", "B")}
    lanes = make_lanes(bench.e, node, Weights(private, ir.DataType.FLOAT), PLAIN, series)
    assert [lane.reverse for lane in lanes] == {"forward": [False], "reverse": [True]}.get(
        direction, [False, True]
    )
    assert [lane.position(1) for lane in lanes] == [3 if lane.reverse else 1 for lane in lanes]
    assert len({lane.names.value(1, "i") for lane in lanes}) == len(lanes)
    assert all(state.initial is None for lane in lanes for state in lane.states)
    gate = "o"
    products = [next(v for name, v in lane.inputs.items() if gate in name).stacked() for lane in lanes]
    names = [next(name for name in lane.inputs if gate in name) for lane in lanes]
    for number, (found, name) in enumerate(zip(bench.compute(products, X=X), names, strict=True)):
        W, B = constants["W"][number], constants["B"][number].reshape(2, -1).sum(axis=0)
        expected = (X @ W.T + B)[..., 4:8]
        start = 4 * name.index(gate)
        np.testing.assert_allclose(found[..., start : start + 4], expected, rtol=1e-4, atol=1e-5)
