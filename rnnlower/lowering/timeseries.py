"""Tensors with a time axis, in the two shapes that strategies want."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx_ir as ir

from rnnlower.lowering.emitter import Dim, Emitter

__all__ = ["Axes", "TimeSeries"]


@dataclasses.dataclass(frozen=True)
class Axes:
    """The axes of a value.

    Attributes:
        time: The number of steps.
        batch: The number of rows.
        lead: The sizes of the axes of one step's value in front of its rows.
    """

    time: Dim
    batch: Dim
    lead: tuple[int, ...] = ()

    @property
    def units_axis(self) -> int:
        """The axis of one step's value that units, and gates, lie along."""
        return len(self.lead) + 1

    def value(self, width: Dim) -> list[Dim]:
        """The sizes of one step's value."""
        return [*self.lead, self.batch, width]


class TimeSeries:
    """A value for each time step, ``[batch, width]`` each, behind the leading axes if there are some.

    It exists as ``[time, batch, width]`` (stacked) or, without leading axes, as ``[time * batch, width]``
    (flat, what Gemm takes and gives); the other one is a Reshape, emitted when it is first asked for.

    Attributes:
        reverse: Whether the steps are to be taken from the end.
        name: Of one step's value: the alias of its lane, behind which its number comes, and what it is.
        known: The stacked content where it is known beforehand.
    """

    def __init__(
        self,
        e: Emitter,
        axes: Axes,
        width: Dim,
        *,
        flat: ir.Value | None = None,
        stacked: ir.Value | None = None,
        known: np.ndarray | None = None,
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
        self.known = known
        self._flat = flat
        self._stacked = stacked

    @property
    def is_flat(self) -> bool:
        """Whether the flat form is there without a Reshape."""
        return self._flat is not None

    def flat(self) -> ir.Value:
        """``[time * batch, width]``."""
        if self._flat is None and self.known is not None:
            self._flat = self.e.constant(self.known.reshape(-1, self.known.shape[-1]))
        elif self._flat is None:
            sizes = self.e.size_vector([-1, self.width])
            self._flat = self.e.op("Reshape", self.stacked(), sizes, since=5)
        return self._flat

    def stacked(self) -> ir.Value:
        """``[time, batch, width]``."""
        if self._stacked is None and self.known is not None:
            self._stacked = self.e.constant(self.known)
        elif self._stacked is None:
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
            known=self.known,
            reverse=reverse,
            dtype=self.dtype,
            name=self.name,
        )
