"""The passes of stream, in order."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import OptionError
from rnnlower.graph.walk import walk
from rnnlower.lowering.replacing import Gates
from rnnlower.passes.assume_linear import AssumeLinearBeforeResetPass
from rnnlower.passes.dequantize_recurrent import DequantizeRecurrentPass
from rnnlower.passes.freeze_dims import FreezeDimsPass
from rnnlower.passes.freeze_initializers import FreezeInitializersPass
from rnnlower.passes.infer_types import InferTypesPass
from rnnlower.passes.lowering_options import LoweringOptions, Report
from rnnlower.passes.pipeline import lower_model
from rnnlower.passes.set_inputs import SetInputsPass
from rnnlower.passes.simplify import simplify
from rnnlower.passes.steps.opset_moves import raise_to_operators
from rnnlower.passes.stream import StreamPass
from rnnlower.passes.strip import StripPass
from rnnlower.recurrent.exporter_warnings import Suspicion, find_suspicions
from rnnlower.recurrent.node import Semantics, check_semantics
from rnnlower.recurrent.state_warnings import other_recurrences
from rnnlower.targets import Target

STRATEGIES = ("none", "unroll", "scan", "loop")


@dataclasses.dataclass(frozen=True)
class StreamOptions:
    """The options of a streaming conversion; the fields are the command line's options.

    Attributes:
        chunk: Time steps a call; ``None``: any number.
        time_axes: The axis of time by the input's name, where it does not follow from the recurrent nodes.
        allow_delay: Whether convolutions may look ahead, at a delay.
        strategy: ``none``, ``unroll``, ``scan`` or ``loop``: what becomes of the recurrent nodes.
        target: The runtime that the result is for.
        dims: Sizes of symbolic dimensions.
        input_shapes: Shapes of graph inputs.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ: ``ort`` or ``spec``.
        sets: Values of graph inputs that become constants.
        freeze: Whether initializers that are graph inputs, too, become constants.
        strip: Whether metadata and names of nodes, and doc strings, are removed.
        dequantize, assume_linear_before_reset, compute_type, gates: As in `LoweringOptions`; the last two
            are for recurrent nodes that are lowered as well.
    """

    chunk: int | None = 1
    time_axes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    allow_delay: bool = False
    strategy: str = "none"
    target: Target | None = None
    dims: Mapping[str, int] = dataclasses.field(default_factory=dict)
    input_shapes: Mapping[str, Sequence[int]] = dataclasses.field(default_factory=dict)
    semantics: Semantics = "ort"
    sets: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dequantize: bool = False
    assume_linear_before_reset: bool = False
    compute_type: str | None = None
    gates: Gates = "auto"
    freeze: bool | None = None
    strip: bool = False

    @property
    def folds(self) -> bool:
        """True if constants are folded and If nodes of known condition are replaced."""
        return bool(self.sets or self.dims or self.input_shapes)

    @property
    def lowers(self) -> bool:
        """True if the recurrent nodes are lowered as well."""
        return self.strategy != "none" or self.target is not None

    def __post_init__(self) -> None:
        check_semantics(self.semantics)
        if self.strategy not in STRATEGIES:
            raise OptionError(f"the strategy is {self.strategy!r}; it must be one of {', '.join(STRATEGIES)}")
        if self.target is not None and self.strategy != "none":
            raise OptionError("a target chooses the strategy itself: leave out one of the two")
        if not self.lowers and (self.compute_type is not None or self.gates != "auto"):
            what = f"{wording.option('compute-type')} and {wording.option('gates')}"
            how = f"{wording.option('strategy', 'unroll')}, {wording.option('target', 'NAME')}"
            raise OptionError(
                f"{what} are for recurrent nodes that are lowered, and these stay",
                remedy=f"say how to lower them ({how})",
            )


@dataclasses.dataclass(frozen=True)
class StreamReport:
    """The report on a streaming conversion.

    Attributes:
        chunk: Time steps a call; ``None``: any number.
        inputs, outputs: The axis of time of those that have one.
        delay: Time steps that the outputs are late.
        states: For each output that holds a state, the input that takes it in the next call.
        lowering: The report on the lowering of the recurrent nodes, if there was one.
        notes: Messages for the user.
        sets: The inputs that were set, with their values.
        warnings: What the source may not do that the user expects of it.
    """

    chunk: int | None
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]
    delay: int
    states: Mapping[str, str]
    lowering: Report | None = None
    notes: Sequence[str] = ()
    sets: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    warnings: Sequence[Suspicion] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return the report as JSON data."""
        return {
            "chunk": self.chunk,
            "inputs": dict(self.inputs),
            "outputs": dict(self.outputs),
            "delay": self.delay,
            "states": dict(self.states),
            "notes": list(self.notes),
            "warnings": [dataclasses.asdict(warning) for warning in self.warnings],
            "lowering": None if self.lowering is None else self.lowering.to_dict(),
        }


def stream_model(
    model: ir.Model, options: StreamOptions, tell: Callable[[str, int, int], None] = lambda *_: None
) -> StreamReport:
    """Convert the model in place, and lower its recurrent nodes if the options ask for it.

    Raises:
        OptionError: An option does not fit the model.
        InvalidModelError: A recurrent node breaks the ONNX spec.
        UnsupportedModelError: A node couples time steps, or uses a feature that a lowering does not support.
        OpsetError: The model cannot be converted to the opset that a lowering needs.
    """
    tell("preparing", 0, 0)
    FreezeDimsPass(options.dims, options.input_shapes)(model)
    setting = SetInputsPass(options.sets)
    if options.sets:
        setting(model)
    freezing = FreezeInitializersPass()
    if options.freeze:
        freezing(model)
    notes = [*freezing.notes, *raise_to_operators(model)]
    notes += simplify(model) if options.folds or _has_branches(model) else []
    if options.assume_linear_before_reset:
        AssumeLinearBeforeResetPass()(model)
    warnings = [*find_suspicions(model), *other_recurrences(model)]
    if options.dequantize:
        InferTypesPass()(model)
        keep_integers = options.target is None or "DequantizeLinear" in options.target.op_types
        DequantizeRecurrentPass(keep_integers=keep_integers)(model)
    tell("following time", 0, 0)
    streaming = StreamPass(options.chunk, options.time_axes, options.allow_delay)
    streaming(model)
    analysis = streaming.analysis
    assert analysis is not None
    lowering = None
    if options.lowers:
        how = LoweringOptions(
            options.strategy if options.target is None else "target",
            semantics=options.semantics,
            target=options.target,
            compute_type=options.compute_type,
            gates=options.gates,
        )
        lowering = lower_model(model, how, tell)
    if options.strip:
        StripPass()(model)
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
        warnings,
    )


def _has_branches(model: ir.Model) -> bool:
    """Return whether there are Ifs, which must be resolved to follow time through them."""
    return any(node.op_type == "If" and not node.domain for node, _ in walk(model.graph))
