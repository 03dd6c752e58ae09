"""Tensors with a time axis, in the two shapes that strategies want."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rnnlower.lowering.emitter import Dim, Emitter

__all__ = ["Axes", "TimeSeries"]


@dataclasses.dataclass(frozen=True)
class Axes:
    """The sizes of the time and batch axes, and how a value of one step lies.

    Attributes:
        time: The number of steps.
        batch: The number of rows.
        upright: Whether a value of one step is a column ``[width, 1]`` instead of rows ``[batch, width]``.
        directions: The size of the axis in front of those, as the operators' states have it; 0: no such axis.
    """

    time: Dim
    batch: Dim
    upright: bool = False
    directions: int = 0

    @property
    def paired(self) -> bool:
        """Whether a value is that of both directions."""
        return self.directions == 2

    @property
    def units_axis(self) -> int:
        """The axis of a value that units, and gates, lie along."""
        return len(self.value(1)) - (2 if self.upright else 1)

    def value(self, width: Dim) -> list[Dim]:
        """The sizes of a value of one step."""
        sizes = [width, 1] if self.upright else [self.batch, width]
        return [self.directions, *sizes] if self.directions else sizes


class TimeSeries:
    """A value for each time step, ``[batch, width]`` each, or as the axes have it.

    It exists as ``[time, batch, width]`` (stacked) or as ``[time * batch, width]`` (flat, what Gemm takes and
    gives); the other form is a Reshape, emitted when it is first asked for.

    Attributes:
        reverse: Whether the steps are to be taken from the end.
        name: Of one step's value: the alias of its lane, behind which its number comes, and what it is.
    """

    def __init__(
        self,
        e: Emitter,
        axes: Axes,
        width: Dim,
        *,
        flat: ir.Value | None = None,
        stacked: ir.Value | None = None,
        reverse: bool = False,
        dtype: ir.DataType | None = None,
        name: tuple[str, str] = ("", "x"),
    ) -> None:
        self.e = e
        self.axes = axes
        self.width = width
        self.reverse = reverse
        self.dtype = e.dtype if dtype is None else dtype
        self.name = name
        self._flat = flat
        self._stacked = stacked

    @property
    def is_flat(self) -> bool:
        """Whether the flat form is there without a Reshape."""
        return self._flat is not None

    def flat(self) -> ir.Value:
        """``[time * batch, width]``."""
        if self._flat is None:
            assert self._stacked is not None
            self._flat = self.e.op(
                "Reshape", self._stacked, self.e.size_vector([-1, self.axes.value(self.width)[1]]), since=5
            )
        return self._flat

    def stacked(self) -> ir.Value:
        """``[time, batch, width]``."""
        if self._stacked is None:
            assert self._flat is not None
            self._stacked = self.e.reshape(self._flat, [self.axes.time, *self.axes.value(self.width)])
        return self._stacked

    def named(self, alias: str, what: str) -> TimeSeries:
        """The same series, a step of which has this name."""
        series = self.reversed(self.reverse)
        series.name = (alias, what)
        return series

    def reversed(self, reverse: bool) -> TimeSeries:
        """The same series, to be taken in the given order."""
        return TimeSeries(
            self.e,
            self.axes,
            self.width,
            flat=self._flat,
            stacked=self._stacked,
            reverse=reverse,
            dtype=self.dtype,
            name=self.name,
        )
