"""What a strategy takes and gives."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from rnnlower.lowering.emitter import Dim, Emitter
from rnnlower.lowering.timeseries import Axes, TimeSeries

__all__ = ["LARGE_BATCH", "Recurrence", "Results", "Run", "State", "Step", "Strategy"]

LARGE_BATCH = 12
"""Rows from which on a step spends its time on the elements rather than on starting ops."""

Step = Callable[
    [Emitter, Sequence[ir.Value], Sequence[ir.Value | None], int | None],
    tuple[list[ir.Value], list[ir.Value]],
]
"""``(emitter, inputs, state, number of the step if it has one) -> (new state, outputs of this step)``."""


@dataclasses.dataclass(frozen=True)
class State:
    """A state's initial value, as the axes have it; ``None`` is zero."""

    initial: ir.Value | None
    width: int


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """A step and what it runs over.

    Attributes:
        axes: The number of steps, and the rows of each step's inputs, outputs and states.
        inputs: The inputs of a step; each says in which order its steps are taken.
        states: The initial states.
        step: Emits one step.
        output_widths: The widths of the step's outputs; their rows are those of the inputs.
        output_reverse: For each output whether the first step's value belongs at the end.
        rows: The symbol of the number of rows, where a straight line has to declare it.
    """

    axes: Axes
    inputs: Sequence[TimeSeries]
    states: Sequence[State]
    step: Step
    output_widths: Sequence[int]
    output_reverse: Sequence[bool]
    rows: str | None = None

    def state_dims(self) -> list[list[Dim]]:
        """The sizes of the states."""
        return [self.axes.value(state.width) for state in self.states]

    def output_dims(self) -> list[list[Dim]]:
        """The sizes of the step's outputs."""
        return [self.axes.value(width) for width in self.output_widths]

    def initial_values(self, e: Emitter) -> list[ir.Value]:
        """The initial states with zeros written out, for operators that carry them."""
        return [
            e.zeros(self.axes.value(state.width)) if state.initial is None else state.initial
            for state in self.states
        ]


@dataclasses.dataclass(frozen=True)
class Results:
    """The outputs over time, in the order of the inputs' positions, and the final states."""

    outputs: list[TimeSeries]
    states: list[ir.Value]


Run = Callable[[Emitter, Recurrence], Results]


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A way to repeat a step, and the form of the step that onnxruntime repeats fastest that way.

    Attributes:
        run: Emits the recurrence.
        most_apart: Gates that share an activation have a product each if they are no more than that.
            onnxruntime fuses it with the activation, unless a clip stands between: for two gates of one row
            that is cheaper than to cut one product in two, for three it is not.
        most_fused: Steps beyond which all gates of an LSTM share one product. Each time onnxruntime fuses a
            product with an activation it looks at all nodes for a free name: quadratic in a straight line.
        single_row: Whether the values of a batch of one lie as `for_single_row` has them.
        output_apart: Whether the last op of a step's output is left to be done for all steps at once: a
            body must not name H twice, as state and as output, and the copy would cost an op in each step.
        largest_together: Units up to which the steps of both directions stand in one body: the weights of
            larger ones drive each other out of the caches.
        multiplies_input: Whether a step multiplies its X itself, as ``[X H] [W R]^T``, if the weights allow
            it. A product for all steps at once is no faster for many rows, and Gemm copies what it adds to.
        large_batch: The form for a batch of `LARGE_BATCH` rows and more, if another.
    """

    run: Run
    most_apart: int = 1
    most_fused: float = math.inf
    single_row: bool = False
    output_apart: bool = False
    largest_together: float = math.inf
    multiplies_input: bool = False
    large_batch: Strategy | None = None

    def for_batch(self, batch: Dim) -> Strategy:
        """The form for this number of rows; an unknown number counts as few."""
        is_large = isinstance(batch, int) and batch >= LARGE_BATCH
        return self.large_batch if is_large and self.large_batch is not None else self
