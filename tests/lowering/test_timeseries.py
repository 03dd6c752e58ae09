"""Time series: two layouts of one value, the second of which is emitted when it is needed."""

from __future__ import annotations

import numpy as np
from support.workbench import Workbench

from rnnlower.lowering.step_names import StepNames
from rnnlower.lowering.timeseries import Axes, TimeSeries

STACKED = np.arange(24, dtype=np.float32).reshape(3, 2, 4)
FLAT = STACKED.reshape(6, 4)
AXES = Axes(time=3, batch=2)


def test_the_other_layout_is_one_reshape() -> None:
    bench = Workbench()
    series = TimeSeries(bench.e, AXES, 4, stacked=bench.input("x", STACKED.shape))
    assert not series.is_flat
    assert series.flat() is series.flat()
    assert bench.emitted == ["Reshape"]
    np.testing.assert_array_equal(bench.compute([series.flat()], x=STACKED)[0], FLAT)


def test_a_flat_series_is_stacked_by_a_reshape() -> None:
    bench = Workbench()
    series = TimeSeries(bench.e, AXES, 4, flat=bench.input("x", FLAT.shape))
    assert series.is_flat
    np.testing.assert_array_equal(bench.compute([series.stacked()], x=FLAT)[0], STACKED)


def test_known_content_is_a_constant_in_both_layouts() -> None:
    bench = Workbench()
    series = TimeSeries(bench.e, AXES, 4, known=STACKED)
    for value, expected in ((series.stacked(), STACKED), (series.flat(), FLAT)):
        assert value.const_value is not None
        np.testing.assert_array_equal(value.const_value.numpy(), expected)
    assert bench.emitted == []


def test_a_reversed_series_shares_its_values() -> None:
    bench = Workbench()
    first, second = (StepNames(lane, "enc", 3, reverse=False) for lane in ("", "a"))
    series = TimeSeries(bench.e, AXES, 4, stacked=bench.input("x", STACKED.shape), name="w")
    series.names = first
    backwards = series.reversed(True)
    assert (backwards.reverse, backwards.names, backwards.name) == (True, first, "w")
    assert backwards.stacked() is series.stacked()
    other = series.named(second, "x")
    assert (other.reverse, other.names, other.name) == (False, second, "x")
    assert (series.reverse, series.names, series.name) == (False, first, "w")
    assert other.stacked() is series.stacked()


def test_axes_of_both_directions_come_first() -> None:
    axes = Axes(time=3, batch=2, lead=(2,))
    assert axes.value(4) == [2, 2, 4]
