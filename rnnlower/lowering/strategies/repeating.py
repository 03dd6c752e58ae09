"""The input and the result of a strategy."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import onnx_ir as ir

from rnnlower.lowering.emitter import Emitter, RuntimeDim
from rnnlower.lowering.forms import Form
from rnnlower.lowering.timeseries import Axes, States, TimeSeries

Stepped = tuple[list[ir.Value], list[ir.Value]]
"""The new states, and the outputs of a step."""

StepFunction = Callable[[Emitter, Sequence[ir.Value], States, int | None], Stepped]
"""``(emitter, inputs, states, number of the step if it has one) -> (new states, outputs)``."""


@dataclasses.dataclass(frozen=True)
class InitialState:
    """The initial value of a state, with the axes of the recurrence; ``None`` is zero."""

    initial: ir.Value | None
    width: int | tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Recurrence:
    """A step and the data it runs over.

    Attributes:
        axes: The number of steps, and the rows of each step's inputs, outputs and states.
        inputs: The inputs of a step; each defines the order in which its steps are taken.
        output_widths: The widths of the step's outputs; their rows are those of the inputs.
        output_reverse: For each output whether the first step's value belongs at the end.
        rows: The symbol of the number of rows, where a straight line has to declare it.
        fit_names: Gives the steps of a straight line names that are as telling as their size allows.
    """

    axes: Axes
    inputs: Sequence[TimeSeries]
    states: Sequence[InitialState]
    step: StepFunction
    output_widths: Sequence[int | tuple[int, ...]]
    output_reverse: Sequence[bool]
    rows: str | None = None
    fit_names: Callable[[Emitter], None] = lambda e: None

    def state_dims(self) -> list[list[RuntimeDim]]:
        """Return the sizes of the states."""
        return [self.axes.value(state.width) for state in self.states]

    def output_dims(self) -> list[list[RuntimeDim]]:
        """Return the sizes of the step's outputs."""
        return [self.axes.value(width) for width in self.output_widths]

    def initial_values(self, e: Emitter) -> list[ir.Value]:
        """Return the initial states with zeros written out, for operators that carry them."""
        return [
            e.zeros(self.axes.value(state.width)) if state.initial is None else state.initial
            for state in self.states
        ]


@dataclasses.dataclass(frozen=True)
class Results:
    """The outputs over time, in the order of the inputs' time steps, and the final states."""

    outputs: list[TimeSeries]
    states: list[ir.Value]


def collect_results(e: Emitter, recurrence: Recurrence, values: Sequence[ir.Value]) -> Results:
    """Return the final states, which come first, and the outputs over time, ``[time, batch, width]``."""
    count = len(recurrence.states)
    series = [
        TimeSeries(e, recurrence.axes, width, stacked=value)
        for value, width in zip(values[count:], recurrence.output_widths, strict=True)
    ]
    return Results(series, list(values[:count]))


Run = Callable[[Emitter, Recurrence], Results]


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A way to repeat a step.

    Attributes:
        forms: The forms of the step that suit the strategy on onnxruntime, best first.
        output_apart: Whether onnxruntime is faster if the last op of a step's output runs once
            for all steps: a body must not name H twice, as state and as output, and the copy would
            cost an op in each step.
    """

    run: Run
    forms: Sequence[Form]
    output_apart: bool = False


def declared_shape(dims: Sequence[RuntimeDim]) -> ir.Shape:
    """Return the shape with these sizes, as far as they are known."""
    return ir.Shape([dim if isinstance(dim, int) else None for dim in dims])
