"""Tensors with a time axis, in the two shapes that strategies want."""

from __future__ import annotations

import dataclasses

import onnx_ir as ir

from rnnlower.emitter import Dim, Emitter

__all__ = ["Axes", "TimeSeries"]


@dataclasses.dataclass(frozen=True)
class Axes:
    """The sizes of the time and batch axes, and how a value of one step lies.

    Attributes:
        time: The number of steps.
        batch: The number of rows.
        upright: Whether a value of one step is a column ``[width, 1]`` instead of rows ``[batch, width]``.
            For a batch of one that is the same memory, and the weights come first in a product: onnxruntime
            repacks a constant second operand for each node, which costs memory and, for one row, time.
        paired: Whether the upright values of both directions lie one behind the other, ``[2, width, 1]``.
    """

    time: Dim
    batch: Dim
    upright: bool = False
    paired: bool = False

    def value(self, width: Dim) -> list[Dim]:
        """The sizes of a value of one step."""
        if self.paired:
            return [2, width, 1]
        return [width, 1] if self.upright else [self.batch, width]


class TimeSeries:
    """A value for each time step, ``[batch, width]`` each (upright: ``[width, 1]``).

    It exists as ``[time, batch, width]`` (stacked) or as ``[time * batch, width]`` (flat, what Gemm takes and
    gives); the other form is a Reshape, emitted when it is first asked for.

    Attributes:
        reverse: Whether the steps are to be taken from the end.
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
    ) -> None:
        self.e = e
        self.axes = axes
        self.width = width
        self.reverse = reverse
        self.dtype = e.dtype if dtype is None else dtype
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
        )
