"""Tensors with a time axis, in the two layouts that the strategies use."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.lowering.emitter import Emitter, RuntimeDim
from rnnlower.lowering.step_names import StepNames

Width = RuntimeDim | tuple[int, ...]
"""The size of the last axis of a value, or the sizes of all axes after the rows."""

States = Sequence[ir.Value | None]
"""The states before a step; ``None`` is zero."""


@dataclasses.dataclass(frozen=True)
class Axes:
    """The axes of a value.

    Attributes:
        lead: The sizes of the axes before the rows of one step's value.
    """

    time: RuntimeDim
    batch: RuntimeDim
    lead: tuple[int, ...] = ()

    def value(self, width: Width) -> list[RuntimeDim]:
        """Return the sizes of one step's value."""
        return [*self.lead, self.batch, *(width if isinstance(width, tuple) else [width])]


class TimeSeries:
    """A value for each time step, each ``[batch, width]`` after the leading axes, if there are some.

    It exists as ``[time, batch, width]`` (stacked) or, without leading axes, as ``[time * batch, width]``
    (flat, the layout of Gemm). The other layout is a Reshape, emitted on first use.

    Attributes:
        reverse: Whether the steps are taken from the end.
        name: The role of one step's value.
        known: The stacked content if it is constant.
    """

    def __init__(
        self,
        e: Emitter,
        axes: Axes,
        width: Width,
        *,
        flat: ir.Value | None = None,
        stacked: ir.Value | None = None,
        known: np.ndarray | None = None,
        reverse: bool = False,
        dtype: ir.DataType | None = None,
        name: str = "x",
    ) -> None:
        self.e = e
        self.axes = axes
        self.width = width
        self.reverse = reverse
        self.dtype = e.dtype if dtype is None else dtype
        self.names: StepNames | None = None
        self.name = name
        self.known = known
        self._flat = flat
        self._stacked = stacked

    @property
    def is_flat(self) -> bool:
        """True if the flat layout is available without a Reshape."""
        return self._flat is not None

    def flat(self) -> ir.Value:
        """Return ``[time * batch, width]``."""
        if self._flat is None and self.known is not None:
            self._flat = self.e.constant(self.known.reshape(-1, self.known.shape[-1]))
        elif self._flat is None:
            sizes = self.e.size_vector([-1, *Axes(1, -1).value(self.width)[1:]])
            self._flat = self.e.op("Reshape", self.stacked(), sizes, since=5)
        return self._flat

    def stacked(self) -> ir.Value:
        """Return ``[time, batch, width]``."""
        if self._stacked is None and self.known is not None:
            self._stacked = self.e.constant(self.known)
        elif self._stacked is None:
            assert self._flat is not None
            self._stacked = self.e.reshape(self._flat, [self.axes.time, *self.axes.value(self.width)])
        return self._stacked

    def named(self, names: StepNames, name: str) -> TimeSeries:
        """Return the same series, with these names for its steps and their values."""
        series = copy.copy(self)
        series.names, series.name = names, name
        return series

    def reversed(self, reverse: bool) -> TimeSeries:
        """Return the same series, with its steps in the given order."""
        series = copy.copy(self)
        series.reverse = reverse
        return series

    def over(self, axes: Axes, stacked: ir.Value) -> TimeSeries:
        """Return a series over other steps, whose order, type and names are the same."""
        series = copy.copy(self)
        series.axes, series.known, series._flat, series._stacked = axes, None, None, stacked
        return series
