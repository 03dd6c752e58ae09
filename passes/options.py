"""The options that all commands have, those of the lowerings, and the description of each option.

Each command has a class of options, from which its public function has its signature. The class is called as
the function is, checks what it is given, and says what follows from it. A field that a command does not offer
is no argument of its class, and has its default. These modules import nothing large, as the command line is
built from them.
"""

from __future__ import annotations

import dataclasses
import functools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, get_args

from rnnlower import wording
from rnnlower.arguments import check_choice, check_strings, check_unroll_factor, dictionary, integer, plain
from rnnlower.errors import OptionError

if TYPE_CHECKING:
    from rnnlower.lowering.replacing import Gates
    from rnnlower.recurrent.node import Semantics
    from rnnlower.targets import Target
    from rnnlower.targets.choosing import Native

Progress = Callable[[str, int, int], None]
"""Called with a description of the phase, the work done and the work in total; 0 of 0 if uncounted."""


HELP = {
    "dims": "Sizes of symbolic dimensions: ``{name: size}``.",
    "input_shapes": "Shapes of graph inputs: ``{name: shape}``.",
    "sets": "Values of graph inputs: ``{name: number, list or array}``. These inputs become constants.",
    "freeze": "Take initializers that are graph inputs, too, as constants. ``None``: only in a lowering for "
    "a target, and only below IR version 4, where no caller can override them.",
    "strip": "Remove the metadata and names of nodes, and all doc strings, for the smallest file.",
    "namespaces": "Give emitted nodes the metadata by which viewers fold them: node, step and gate.",
    "semantics": "Which one to follow where onnxruntime and the ONNX spec differ: ``ort`` or ``spec``.",
    "target": "The runtime: one of `rnnlower targets`, or a .toml file that describes one.",
    "progress": "Called with a description of the current phase, the work done, and the work in total.",
    "dequantize": "Turn quantized recurrent operators into float ones, with dequantized weights.",
    "assume_linear_before_reset": "Read every GRU as ``linear_before_reset=1``: corrects a fault of some "
    "PyTorch exporters.",
    "lift": "Turn Loops and Scans that compute an LSTM, GRU or RNN into these operators first; scan, loop "
    "and lower: straight lines, too.",
    "compute_type": "``float32``: compute float16 and bfloat16 recurrences in float32, between Casts.",
    "gates": "One product for several gates (``fused``), one each (``separate``), or the fastest (``auto``).",
    "opset": "Default-domain opset of the result. ``None``: the source's, raised as far as the ops need.",
    "nodes": "Shell wildcards. Only nodes whose name matches one of them are rewritten.",
    "unroll_factor": "Time steps per iteration. Steps that are left over run in a second Scan or Loop.",
    "fold": "Fold constants and replace If nodes of known condition by their branch. ``None``: only if "
    "`sets`, `dims`, `input_shapes` or a target is given. Weights and states of recurrent nodes that "
    "follow from constants and static shapes are always folded.",
    "control_flow": "``unroll``: unroll the model's own Loop and Scan nodes with a known number of "
    "iterations, too. ``keep``: leave them. ``None``: for a target, unroll those that it lacks.",
    "strict": "Whether ops of the rest of the model that do not fit the target are an error.",
    "native": "``keep``: keep the runtime's own operators, as they are or adapted, wherever it computes them "
    "correctly. ``lower``: replace them all. ``auto``: keep those that are faster than primitives.",
    "emit": "The language of the caller's code in the report: ``python``, ``js`` or ``c``.",
    "states": "States that a model of one step per call has already: ``{output: input}``.",
    "connect": "Of several models: ``{input: output}`` where an output feeds an input of another name.",
    "chunk": "Time steps per call, or with a rate a duration as ``10ms``; ``any``, ``None``: any number, "
    "different in each call.",
    "rate": "Time steps per second, such as 16000 samples.",
    "time_axes": "Time axes of inputs, ``{name: axis}``, unless they follow from recurrent nodes or loops.",
    "allow_delay": "Accept convolutions that look ahead, at the price of a delay.",
    "strategy": "``unroll``, ``scan`` or ``loop``: lower the recurrent nodes of the chunk, too. ``none``: "
    "keep them.",
    "recordings": ".npz files or dictionaries with an array for each graph input; an array with one more "
    "axis than its input is a stack of sequences. Step models (`stream`) are called chunk by chunk, with "
    "their states carried.",
    "ranges": "Whether to find the least and the largest value of each role of the recurrences.",
    "calibrate.freeze": "As for `rnnlower.unroll`, but ``None`` takes them as constants.",
    "calibration": "Recordings as for `calibrate`, or a .json file of ranges.",
    "activations": "``int8``: x and h have 8 bits where they enter a product, all other activations 16. "
    "``int16``, ``uint16``: all have 16. ``int8-only``: all have 8. Weights have 8.",
    "scheme": "``qdq``; ``tflite``: the integers of TensorFlow Lite's LSTM; ``pow2``: scales are powers of "
    "two, and zero points 0.",
    "headroom": "The factor by which the ranges of 16-bit values are larger than what was seen.",
    "per_tensor": "One scale for a weight, instead of one for each output channel.",
    "recurrent_only": "Leave the rest of the model in float32, which onnxruntime's tool quantizes otherwise.",
    "integer_states": "Make int16 of the state inputs and outputs of a step model.",
    "inputs": "Recordings to measure on. By default a fourth of those of the calibration is set aside.",
    "verify": "Whether to measure the ratio of signal to noise, for the report of ``with_report``.",
    "on": "Also measure on this runtime.",
    "quantize.strategy": "``unroll``, ``scan``, ``loop``, or ``auto``: a straight line up to 32 "
    "steps, then a Scan, or a Loop where the target lacks it.",
    "quantize.target": "The runtime that must run the result: the name of a target, or a .toml file.",
    "stream.target": "Lower the recurrent nodes for this runtime.",
    "convert.opset": "The version.",
    "lift.nodes": "Shell wildcards. Only Loop and Scan nodes whose name matches one are lifted, "
    "and lines whose first node's name does.",
    "steps": "The least number of steps of a straight line.",
    "max": "The maximum for each symbolic dimension that is a length: ``{name: size}``.",
    "mask": "Take a mask of floats for each length, which the caller computes, instead of a number.",
    "check.semantics": "Whose semantics a native recurrent node must follow: ``ort`` or ``spec``.",
    "per_row": "Take a length, or a mask, for each row of a batch, instead of one for all.",
    "pad.time_axes": "Time axes of inputs whose length is static: ``{name: axis}``.",
    "strategies": "Which of ``unroll``, ``scan`` and ``loop``, and on a runtime that a target describes "
    "``adapt`` (its own operators adapted) and ``lower`` (what `rnnlower.lower` takes). ``None``: all.",
    "unroll_factors": "Time steps in an iteration; each adds a form of scan and of loop.",
    "bench.inputs": "As for `rnnlower.verify`; of several sets of inputs the first is used.",
    "seed": "As for `rnnlower.verify`.",
    "threads": "Threads of onnxruntime within an operator; 0: its default.",
    "runs": "Timed runs of each form.",
    "warmup": "Runs before those, in each session.",
    "bench.dequantize": "As for `rnnlower.unroll`. The model as it is then computes other numbers: it "
    "is timed, and the forms are compared with the dequantized model.",
    "bench.assume_linear_before_reset": "As for `rnnlower.unroll`, and compared likewise.",
    "bench.on": "Another runtime than onnxruntime: a name of `rnnlower.engines()`, or ``'cmd:PROGRAM "
    "{model} {inputs} {outputs}'``, each of whose runs is timed as a whole.",
}
"""The description of each option, by its name, and by its command where it means something else there."""

LOOPS = ("Loop", "Scan")

# The options whose values may be arrays, which keep their types.
_OF_ARRAYS = {"sets", "recordings", "calibration", "inputs"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Options:
    """The options that prepare a model, whatever becomes of it then."""

    NEEDS_TARGET: ClassVar[bool] = False

    opset: int | None = field(default=None, init=False)
    dims: Mapping[str, int] | None = None
    input_shapes: Mapping[str, Sequence[int]] | None = None
    sets: Mapping[str, Any] | None = None
    freeze: bool | None = None
    strip: bool = False
    semantics: Semantics = "ort"
    target: str | os.PathLike[str] | Target | None = field(default=None, init=False)
    progress: Progress | None = None
    nodes: Sequence[str] | None = field(default=None, init=False)

    def report_progress(self, activity: str, done: int = 0, total: int = 0) -> None:
        """Tell the caller, if it asked for it, how far the work is."""
        if self.progress is not None:
            self.progress(activity, done, total)

    @functools.cached_property
    def runtime(self) -> Target | None:
        """The target, as data."""
        given: Any = self.target
        if given is None and not self.NEEDS_TARGET:
            return None
        from rnnlower.targets import Target, find_target

        return given if isinstance(given, Target) else find_target(given)

    def reading(self) -> dict[str, Any]:
        """Return how the source is to be read in a comparison, as arguments of `rnnlower.verify`."""
        return {"semantics": self.semantics}

    @property
    def folds(self) -> bool:
        """True if constants are folded and If nodes of known condition are replaced."""
        return bool(self.sets) or self.fixes_sizes

    @property
    def fixes_sizes(self) -> bool:
        """True if sizes are given."""
        return bool(self.dims or self.input_shapes)

    @property
    def may_freeze(self) -> bool:
        """True if initializers that are graph inputs may become constants."""
        return bool(self.freeze)

    @property
    def engine(self) -> str:
        """The runtime on which the result can be tried; ``""`` if it is for none."""
        return "" if self.runtime is None else self.runtime.engine

    def refuse_profile(self, option: str) -> None:
        """Refuse a target that is a profile, which the option does not fit."""
        if self.runtime is not None and self.runtime.profile:
            problem = f"target {self.runtime.name} is a profile, which keeps recurrent nodes"
            raise OptionError(problem, remedy=f"leave out {option}")

    def __post_init__(self) -> None:
        from rnnlower.recurrent.node import check_semantics

        for name in {each.name for each in dataclasses.fields(self)} - _OF_ARRAYS:
            object.__setattr__(self, name, plain(getattr(self, name)))
        dictionary("sets", self.sets)
        check_semantics(self.semantics)
        self.runtime  # noqa: B018  # Refuse a target that does not exist.


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecurrentOptions(Options):
    """The options for recurrent nodes that are lowered or read anew."""

    dequantize: bool = False
    assume_linear_before_reset: bool = False
    compute_type: str | None = None
    gates: Gates = "auto"
    lift: bool = True

    def reading(self) -> dict[str, Any]:
        """Return how the source is to be read in a comparison, as arguments of `rnnlower.verify`."""
        names = ("dequantize", "assume_linear_before_reset")
        return super().reading() | {name: getattr(self, name) for name in names}


@dataclasses.dataclass(frozen=True)
class LoweringOptions(RecurrentOptions):
    """The options of a lowering by any strategy.

    Attributes:
        strategy: ``unroll``, ``scan``, ``loop``, or ``target``: chosen for the target.
    """

    strategy: str
    _: dataclasses.KW_ONLY
    opset: int | None = None
    target: str | os.PathLike[str] | Target | None = None
    nodes: Sequence[str] | None = None
    unroll_factor: int = 1
    fold: bool | None = None
    control_flow: str | None = None
    strict: bool = False
    native: Native = "auto"
    max: Mapping[str, int] | None = None
    namespaces: bool = False

    @property
    def folds(self) -> bool:
        """True if constants are folded and If nodes of known condition are replaced."""
        return self.fold if self.fold is not None else self.strategy == "target" or super().folds

    @property
    def may_freeze(self) -> bool:
        """True if initializers that are graph inputs may become constants."""
        return bool(self.freeze) or (self.freeze is None and self.runtime is not None)

    @property
    def unrolls(self) -> tuple[str, ...]:
        """The model's own control flow operators that are unrolled."""
        if self.control_flow == "unroll":
            return LOOPS
        if self.control_flow == "keep" or self.runtime is None:
            return ()
        return tuple(op_type for op_type in LOOPS if op_type not in self.runtime.control_flow.ops)

    @property
    def may_unroll(self) -> bool:
        """True if some of the model's own control flow may be unrolled."""
        return bool(self.unrolls) or (self.runtime is not None and self.control_flow is None)

    @property
    def lifts_lines(self) -> bool:
        """True if straight lines are lifted first; `unroll` would only write them again."""
        return self.lift and self.strategy != "unroll"

    @property
    def emits(self) -> bool:
        """True if recurrent nodes are replaced, and not kept by a profile."""
        return self.runtime is None or not self.runtime.profile

    @property
    def needs_lengths(self) -> bool:
        """True if every sequence length must be a number."""
        from rnnlower.targets.fit import needs_static_length

        return self.strategy == "unroll" or (self.runtime is not None and needs_static_length(self.runtime))

    def __post_init__(self) -> None:
        from rnnlower.lowering import FIRST_OPSET, LAST_OPSET
        from rnnlower.lowering.replacing import Gates
        from rnnlower.targets.choosing import Native
        from rnnlower.targets.fit import check_opset

        super().__post_init__()
        check_strings("nodes", self.nodes)
        if self.namespaces and self.strip:
            first, second = (wording.option(name) for name in ("namespaces", "strip"))
            raise OptionError(
                f"{second} removes the metadata that {first} adds", remedy=f"leave out {second}"
            )
        if self.control_flow not in (None, "keep", "unroll"):
            name = wording.option("control-flow")
            raise OptionError(f"{name} is {self.control_flow!r}; it must be keep or unroll")
        check_unroll_factor(self.unroll_factor)
        if self.compute_type not in (None, "float32"):
            raise OptionError(f"the compute type is {self.compute_type!r}; it must be 'float32'")
        check_choice("the gates are", self.gates, get_args(Gates), "they")
        check_choice("native is", self.native, get_args(Native))
        if self.native == "lower":
            self.refuse_profile(wording.option("native", "lower"))
        if self.opset is not None and not FIRST_OPSET <= integer("opset", self.opset) <= LAST_OPSET:
            raise OptionError(
                f"the opset is {self.opset}; a lowered model has one from {FIRST_OPSET} to {LAST_OPSET}"
            )
        if self.runtime is not None and self.opset is not None:
            check_opset(self.runtime, self.opset)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _StrategyOptions(LoweringOptions):
    """The options of a command that is named after its strategy, and has no target."""

    target: None = field(default=None, init=False)
    strict: bool = field(default=False, init=False)
    native: Native = field(default="auto", init=False)
    max: None = field(default=None, init=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnrollOptions(_StrategyOptions):
    """The options of `rnnlower.unroll`."""

    strategy: str = field(default="unroll", init=False)
    unroll_factor: int = field(default=1, init=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScanOptions(_StrategyOptions):
    """The options of `rnnlower.scan`."""

    strategy: str = field(default="scan", init=False)
    control_flow: str | None = field(default=None, init=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoopOptions(ScanOptions):
    """The options of `rnnlower.loop`."""

    strategy: str = field(default="loop", init=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LowerOptions(LoweringOptions):
    """The options of `rnnlower.lower`."""

    NEEDS_TARGET = True

    strategy: str = field(default="target", init=False)
    target: str | os.PathLike[str] = field()
