"""The order of the passes behind stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnnlower.errors import OptionError
from rnnlower.graph.walk import walk
from rnnlower.passes.freeze_dims import FreezeDimsPass
from rnnlower.passes.lowering_options import LoweringOptions, Report
from rnnlower.passes.pipeline import lower_model
from rnnlower.passes.set_inputs import SetInputsPass
from rnnlower.passes.simplify import simplify
from rnnlower.passes.stream import StreamPass
from rnnlower.recurrent.node import Semantics, check_semantics
from rnnlower.targets import Target

__all__ = ["STRATEGIES", "StreamOptions", "StreamReport", "stream_model"]

STRATEGIES = ("none", "unroll", "scan", "loop")


@dataclasses.dataclass(frozen=True)
class StreamOptions:
    """What is to be done; the fields are the command line's options.

    Attributes:
        chunk: Time steps a call.
        time_axes: The axis of time by the input's name, where it does not follow from the recurrent nodes.
        allow_delay: Whether convolutions may look ahead, at a delay.
        strategy: ``none``, ``unroll``, ``scan`` or ``loop``: what becomes of the recurrent nodes.
        target: The runtime that the result is for.
        dims: Sizes of symbolic dimensions.
        input_shapes: Shapes of graph inputs.
        semantics: Which reading wins where the text and onnxruntime differ.
        sets: Values of graph inputs that become constants.
    """

    chunk: int = 1
    time_axes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    allow_delay: bool = False
    strategy: str = "none"
    target: Target | None = None
    dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    input_shapes: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    semantics: Semantics = "ort"
    sets: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def folds(self) -> bool:
        """Whether branches are taken and constants are folded."""
        return bool(self.sets or self.dims or self.input_shapes)

    def __post_init__(self) -> None:
        check_semantics(self.semantics)
        if self.strategy not in STRATEGIES:
            raise OptionError(f"the strategy is {self.strategy!r}; it must be one of {', '.join(STRATEGIES)}")
        if self.target is not None and self.strategy != "none":
            raise OptionError("a target chooses the strategy itself: leave out one of the two")


@dataclasses.dataclass(frozen=True)
class StreamReport:
    """What was done.

    Attributes:
        chunk: Time steps a call.
        inputs, outputs: The axis of time of those that have one.
        delay: Time steps that the outputs are late.
        states: For each output that holds a state, the input that takes it in the next call.
        lowering: What became of the recurrent nodes, if they were lowered.
        notes: What the user should know beside it.
        sets: The inputs that were set, with their values.
    """

    chunk: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    delay: int
    states: Mapping[str, str]
    lowering: Report | None = None
    notes: Sequence[str] = ()
    sets: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON knows it."""
        return {
            "chunk": self.chunk,
            "inputs": dict(self.inputs),
            "outputs": dict(self.outputs),
            "delay": self.delay,
            "states": dict(self.states),
            "notes": list(self.notes),
            "lowering": None if self.lowering is None else self.lowering.to_dict(),
        }


def stream_model(
    model: ir.Model, options: StreamOptions, tell: Callable[[str, int, int], None] = lambda *_: None
) -> StreamReport:
    """Streams the model in place, and lowers its recurrent nodes where that is asked for.

    Raises:
        OptionError: An option does not fit the model.
        InvalidModelError: A recurrent node breaks its operator's text.
        UnsupportedModelError: A node couples time steps, or asks for what a lowering refuses.
        OpsetError: The model cannot be brought to the opset that a lowering needs.
    """
    tell("preparing", 0, 0)
    FreezeDimsPass(options.dims, options.input_shapes)(model)
    setting = SetInputsPass(options.sets)
    if options.sets:
        setting(model)
    notes = simplify(model) if options.folds or _has_branches(model) else []
    tell("following time", 0, 0)
    streaming = StreamPass(options.chunk, options.time_axes, options.allow_delay)
    streaming(model)
    analysis = streaming.analysis
    assert analysis is not None
    lowering = None
    if options.strategy != "none" or options.target is not None:
        strategy = options.strategy if options.target is None else "target"
        lowering = lower_model(
            model, LoweringOptions(strategy, semantics=options.semantics, target=options.target), tell
        )
    outputs = {name: track.axis for name, track in analysis.outputs.items()}
    return StreamReport(
        options.chunk,
        analysis.axes,
        outputs,
        analysis.delay,
        streaming.states,
        lowering,
        [*notes, *(() if lowering is None else lowering.notes)],
        setting.values,
    )


def _has_branches(model: ir.Model) -> bool:
    """Whether there are Ifs, which have to be decided for time to be followed through them."""
    return any(node.op_type == "If" and not node.domain for node, _ in walk(model.graph))
