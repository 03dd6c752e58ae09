"""The options of the commands: one class for each, from which the public functions have their signatures.

The class is called as the function is, checks what it is given, and says what follows from it. A field that
a command does not offer is no argument of its class, and has its default. This module imports nothing large,
as the command line is built from it.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from rnnlower import wording
from rnnlower.arguments import check_choice, check_strings, integer
from rnnlower.errors import OptionError

if TYPE_CHECKING:
    from rnnlower.lowering.replacing import Gates
    from rnnlower.recurrent.node import Semantics
    from rnnlower.targets import Target
    from rnnlower.targets.choosing import Native

LOOPS = ("Loop", "Scan")

Progress = Callable[[str, int, int], None]
"""Called with a description of the phase, the work done and the work in total; 0 of 0 if uncounted."""


HELP = {
    "dims": "Sizes of symbolic dimensions: ``{name: size}``.",
    "input_shapes": "Shapes of graph inputs: ``{name: shape}``.",
    "sets": "Values of graph inputs: ``{name: number, list or array}``. These inputs become constants.",
    "freeze": "Take initializers that are graph inputs, too, as constants. ``None``: only in a lowering for "
    "a target, and only below IR version 4, where no caller can override them.",
    "strip": "Remove the metadata and names of nodes, and all doc strings.",
    "namespaces": "Give emitted nodes the metadata by which viewers fold them: node, step and gate.",
    "semantics": "Which one to follow where onnxruntime and the ONNX spec differ: ``ort`` or ``spec``.",
    "target": "The name of a target, or the path of a .toml file that describes one.",
    "progress": "Called with a description of the current phase, the work done, and the work in total.",
    "dequantize": "Turn quantized recurrent operators into float ones, with dequantized weights.",
    "assume_linear_before_reset": "Read every GRU as ``linear_before_reset=1``.",
    "lift": "Turn Loops and Scans that compute an LSTM, GRU or RNN into these operators first.",
    "compute_type": "``float32``: compute float16 and bfloat16 recurrences in float32, between Casts.",
    "gates": "One product for several gates (``fused``), one each (``separate``), or the fastest (``auto``).",
    "opset": "Default-domain opset of the result. ``None``: the source's, raised as far as the ops need.",
    "nodes": "Shell wildcards. Only nodes whose name matches one of them are rewritten.",
    "unroll_factor": "Time steps per iteration. Steps that are left over run in a second Scan or Loop.",
    "fold": "Fold constants and replace If nodes of known condition by their branch. ``None``: only if "
    "`sets`, `dims`, `input_shapes` or a target is given. Weights and states of recurrent nodes that "
    "follow from constants and static shapes are always folded.",
    "control_flow": "``unroll``: unroll the model's own Loop and Scan nodes, too. ``keep``: leave them. "
    "``None``: for a target, unroll those that it lacks.",
    "strict": "Whether ops of the rest of the model that do not fit the target are an error.",
    "native": "``keep``: keep the runtime's own operators, as they are or adapted, wherever it computes them "
    "correctly. ``lower``: replace them all. ``auto``: keep those that are faster than primitives.",
    "emit": "The language of the caller's code in the report: ``python``, ``js`` or ``c``.",
    "states": "States that a model of one step per call has already: ``{output: input}``.",
    "connect": "Of several models: ``{input: output}`` where an output feeds an input of another name.",
    "chunk": "Time steps per call, or with a rate a duration as ``10ms``; ``None``: any number of steps, "
    "different in each call.",
    "rate": "Time steps per second.",
    "time_axes": "Time axes of inputs, ``{name: axis}``, where they do not follow from the recurrent nodes.",
    "allow_delay": "Accept convolutions that look ahead, at the price of a delay.",
    "strategy": "``unroll``, ``scan`` or ``loop``: lower the recurrent nodes of the chunk, too. ``none``: "
    "keep them.",
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
    "QuantizeOptions.strategy": "``unroll``, ``scan``, ``loop``, or ``auto``: a straight line up to 32 "
    "steps, then a Scan, or a Loop where the target lacks it.",
    "QuantizeOptions.target": "The runtime that must run the result: the name of a target, or a .toml file.",
    "StreamOptions.target": "Lower the recurrent nodes for this runtime instead.",
    "ConvertOptions.opset": "The version.",
    "LiftOptions.nodes": "Shell wildcards. Only Loop and Scan nodes whose name matches one are lifted, "
    "and lines whose first node's name does.",
    "steps": "The least number of steps of a straight line.",
    "max": "The maximum for each symbolic dimension that is a length: ``{name: size}``.",
    "mask": "Take a mask of floats for each length, which the caller computes, instead of a number.",
    "CheckOptions.semantics": "Whose semantics a native recurrent node must follow: ``ort`` or ``spec``.",
    "per_row": "Take a length, or a mask, for each row of a batch, instead of one for all.",
    "PadOptions.time_axes": "Time axes of inputs whose length is static: ``{name: axis}``.",
    "strategies": "Which of ``unroll``, ``scan`` and ``loop``, and on a runtime that a target describes "
    "``adapt`` (its own operators adapted) and ``lower`` (what `rnnlower.lower` takes). ``None``: all.",
    "unroll_factors": "Time steps in an iteration; each adds a form of scan and of loop.",
    "BenchOptions.inputs": "As for `rnnlower.verify`; of several sets of inputs the first is used.",
    "seed": "As for `rnnlower.verify`.",
    "threads": "Threads of onnxruntime within an operator; 0 leaves it to onnxruntime.",
    "runs": "Timed runs of each form.",
    "warmup": "Runs before those, in each session.",
    "BenchOptions.dequantize": "As for `rnnlower.unroll`. The model as it is then computes other numbers: it "
    "is timed, and the forms are compared with the dequantized model.",
    "BenchOptions.assume_linear_before_reset": "As for `rnnlower.unroll`, and compared likewise.",
    "BenchOptions.on": "Another runtime than onnxruntime: a name of `rnnlower.engines()`, or ``'cmd:PROGRAM "
    "{model} {inputs} {outputs}'``, each of whose runs is timed as a whole.",
}
"""The description of each option, by its name, and by its class where it means something else."""


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
    target: str | os.PathLike[str] | Target | None = None
    progress: Progress | None = None

    def tell(self, activity: str, done: int = 0, total: int = 0) -> None:
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

    def __post_init__(self) -> None:
        from rnnlower.recurrent.node import check_semantics

        if self.sets is not None and not isinstance(self.sets, Mapping):
            raise OptionError(f"sets is {self.sets!r}; it must be a dictionary")
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
    def emits(self) -> bool:
        """True if recurrent nodes are replaced, and not kept by a profile."""
        return not self.conforms

    @property
    def conforms(self) -> bool:
        """True if recurrent nodes are kept in the form that a profile prescribes."""
        return self.runtime is not None and bool(self.runtime.profile)

    @property
    def needs_lengths(self) -> bool:
        """True if every sequence length must be a number."""
        from rnnlower.targets.requirements import wants_numbers

        return self.strategy == "unroll" or (self.runtime is not None and wants_numbers(self.runtime))

    @property
    def may_adapt(self) -> bool:
        """True if the target's own operators may stay, with ops around them."""
        return self.native != "lower"

    @property
    def shares_constants(self) -> bool:
        """True if the target would copy a constant for each node that reads it."""
        return self.runtime is not None and self.runtime.ops.copies_constants

    @property
    def separates_sums(self) -> bool:
        """True if the target needs a Max in front of an activation, or of a product of a repetition."""
        if self.runtime is None:
            return False
        alone = any(limit.alone_behind for limit in self.runtime.limits)
        return bool(self.runtime.ops.inexact_behind_sum) or (alone and "Max" in self.runtime.op_types)

    @property
    def keeps_nan(self) -> bool:
        """True if operators of the target make numbers of NaN."""
        return self.runtime is not None and bool(self.runtime.ops.loses_nan)

    @property
    def replaces_loop_inputs(self) -> bool:
        """True if the target gives the bodies of Loops a wrong number or condition."""
        return self.runtime is not None and self.runtime.control_flow.keeps_gathered_axis

    @property
    def copies_outputs(self) -> bool:
        """True if some outputs of the model are only right on the target as copies."""
        ops = None if self.runtime is None else self.runtime.ops
        return ops is not None and (ops.overwrites_outputs or bool(ops.copied_outputs))

    @property
    def has_factor(self) -> bool:
        """True if a Scan or Loop takes several steps per iteration."""
        return self.unroll_factor != 1

    def __post_init__(self) -> None:
        from rnnlower.lowering import FIRST_OPSET, LAST_OPSET
        from rnnlower.lowering.replacing import Gates
        from rnnlower.targets.choosing import Native
        from rnnlower.targets.requirements import check_opset

        super().__post_init__()
        if self.nodes is not None:
            check_strings("nodes", self.nodes)
        if self.namespaces and self.strip:
            first, second = (wording.option(name) for name in ("namespaces", "strip"))
            raise OptionError(
                f"{second} removes the metadata that {first} adds", remedy=f"leave out {second}"
            )
        if self.control_flow not in (None, "keep", "unroll"):
            name = wording.option("control-flow")
            raise OptionError(f"{name} is {self.control_flow!r}; it must be keep or unroll")
        if integer("unroll factor", self.unroll_factor) < 1:
            raise OptionError(f"the unroll factor is {self.unroll_factor}; it must be at least 1")
        if self.compute_type not in (None, "float32"):
            raise OptionError(f"the compute type is {self.compute_type!r}; it must be 'float32'")
        check_choice("the gates are", self.gates, get_args(Gates), "they")
        check_choice("native is", self.native, get_args(Native))
        if self.native == "lower" and self.runtime is not None and self.runtime.profile:
            raise OptionError(
                f"target {self.runtime.name} is a profile, which keeps recurrent nodes",
                remedy=f"leave out {wording.option('native', 'lower')}",
            )
        if self.opset is not None and not FIRST_OPSET <= integer("opset", self.opset) <= LAST_OPSET:
            raise OptionError(
                f"the opset is {self.opset}; a lowered model has one from {FIRST_OPSET} to {LAST_OPSET}"
            )
        if self.runtime is not None and self.opset is not None:
            check_opset(self.runtime, self.opset)


@dataclasses.dataclass(frozen=True, kw_only=True)
class UnrollOptions(LoweringOptions):
    """The options of `rnnlower.unroll`."""

    strategy: str = field(default="unroll", init=False)
    unroll_factor: int = field(default=1, init=False)
    target: None = field(default=None, init=False)
    strict: bool = field(default=False, init=False)
    native: Native = field(default="auto", init=False)
    max: None = field(default=None, init=False)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScanOptions(LoweringOptions):
    """The options of `rnnlower.scan`."""

    strategy: str = field(default="scan", init=False)
    control_flow: str | None = field(default=None, init=False)
    target: None = field(default=None, init=False)
    strict: bool = field(default=False, init=False)
    native: Native = field(default="auto", init=False)
    max: None = field(default=None, init=False)


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


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamOptions(RecurrentOptions):
    """The options of `rnnlower.stream`."""

    chunk: int | str | None = 1
    connect: Mapping[str, str] | None = None
    rate: float | None = None
    time_axes: Mapping[str, int] | None = None
    allow_delay: bool = False
    states: Mapping[str, str] | None = None
    emit: str | None = None
    strategy: str = "none"
    target: str | os.PathLike[str] | None = None

    @functools.cached_property
    def steps(self) -> int | None:
        """The time steps per call; ``None``: any number."""
        if not isinstance(self.chunk, str):
            if self.rate is not None:
                raise OptionError(
                    f"{wording.option('rate')} is for a chunk in ms or s",
                    remedy=f"leave it out, or give a duration ({wording.option('chunk', '10ms')})",
                )
            return self.chunk
        unit = "ms" if self.chunk.endswith("ms") else "s"
        try:
            seconds = float(self.chunk.removesuffix(unit)) / (1000 if unit == "ms" else 1)
        except ValueError:
            raise OptionError(
                f"{wording.option('chunk')} is {self.chunk!r}; it must be a number of time steps, a "
                "duration such as 10ms, or any"
            ) from None
        if self.rate is None:
            raise OptionError(
                f"a chunk of {self.chunk} has a number of steps that follows from a rate",
                remedy=f"say how many steps a second has ({wording.option('rate', 16000)})",
            )
        steps = seconds * self.rate
        if steps < 1 or not math.isclose(steps, round(steps)):
            raise OptionError(
                f"{self.chunk} at {self.rate:g} steps a second are {steps:g} steps; they must be whole"
            )
        return round(steps)

    @property
    def lowers(self) -> bool:
        """True if the recurrent nodes are lowered as well."""
        return self.strategy != "none" or self.runtime is not None

    def of_lowering(self) -> LoweringOptions:
        """Return the options by which the recurrent nodes of the chunk are lowered."""
        return LoweringOptions(
            self.strategy if self.runtime is None else "target",
            semantics=self.semantics,
            target=self.runtime,
            compute_type=self.compute_type,
            gates=self.gates,
            progress=self.progress,
        )

    def __post_init__(self) -> None:
        super().__post_init__()
        self.steps  # noqa: B018  # Refuse a chunk that is no number of steps.
        check_choice("the strategy is", self.strategy, ("none", "unroll", "scan", "loop"))
        if self.emit is not None:
            check_choice("the language to emit is", self.emit, ("python", "js", "c"))
        if self.runtime is not None and self.strategy != "none":
            raise OptionError("a target chooses the strategy itself: leave out one of the two")
        if not self.lowers and (self.compute_type is not None or self.gates != "auto"):
            what = f"{wording.option('compute-type')} and {wording.option('gates')}"
            how = f"{wording.option('strategy', 'unroll')}, {wording.option('target', 'NAME')}"
            raise OptionError(
                f"{what} are for recurrent nodes that are lowered, and these stay",
                remedy=f"say how to lower them ({how})",
            )
        if self.lowers:
            self.of_lowering()


@dataclasses.dataclass(frozen=True, kw_only=True)
class LiftOptions(Options):
    """The options of `rnnlower.lift`."""

    target: None = field(default=None, init=False)
    nodes: Sequence[str] | None = None
    steps: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.nodes is not None:
            check_strings("nodes", self.nodes)
        if integer("number of steps", self.steps) < 1:
            raise OptionError(f"{wording.option('steps')} is {self.steps}; it must be at least 1")


@dataclasses.dataclass(frozen=True, kw_only=True)
class PadOptions(Options):
    """The options of `rnnlower.pad`."""

    target: None = field(default=None, init=False)
    max: Mapping[str, int] = field()
    mask: bool = False
    per_row: bool = False
    time_axes: Mapping[str, int] | None = None
    lift: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True)
class ConvertOptions(Options):
    """The options of `rnnlower.convert`."""

    opset: int = field()
    dims: None = field(default=None, init=False)
    input_shapes: None = field(default=None, init=False)
    semantics: Semantics = field(default="ort", init=False)
    target: None = field(default=None, init=False)

    @property
    def changes_inputs(self) -> bool:
        """True if initializers may no longer be graph inputs, as old IR versions require."""
        return bool(self.sets or self.freeze)

    @property
    def lacks_state_operators(self) -> bool:
        """True if the requested opset has neither LinearAttention nor CausalConvWithState."""
        from rnnlower.recurrent.state_operators import FIRST_OPSET

        return integer("opset", self.opset) < FIRST_OPSET


@dataclasses.dataclass(frozen=True, kw_only=True)
class CheckOptions(Options):
    """The options of `rnnlower.check`."""

    NEEDS_TARGET = True

    target: str | os.PathLike[str] = field()
    strip: bool = field(default=False, init=False)


Activations = Literal["int8", "int16", "uint16", "int8-only"]
Given = str | os.PathLike[str] | Mapping[str, Any]
"""An .npz file, or its arrays: one for each graph input."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class CalibrateOptions(Options):
    """The options of `rnnlower.calibrate`."""

    strip: bool = field(default=False, init=False)
    semantics: Semantics = field(default="ort", init=False)
    target: str | os.PathLike[str] | None = field(default=None, init=False)

    @property
    def may_freeze(self) -> bool:
        """True if initializers that are graph inputs may become constants, as integers of weights are."""
        return self.freeze is not False


@dataclasses.dataclass(frozen=True, kw_only=True)
class QuantizeOptions(CalibrateOptions):
    """The options of `rnnlower.quantize`."""

    calibration: Given | Sequence[Given]
    activations: Activations = "int8"
    scheme: str = "qdq"
    strategy: str = "auto"
    headroom: float = 2.0
    per_tensor: bool = False
    recurrent_only: bool = False
    integer_states: bool = False
    target: str | os.PathLike[str] | None = None
    inputs: Given | None = None
    verify: bool = False
    on: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_choice("the activations are", self.activations, get_args(Activations), "they")
        check_choice("the strategy is", self.strategy, ("auto", "unroll", "scan", "loop"))
        check_choice("the scheme is", self.scheme, ("qdq", "tflite", "pow2"))
        if self.runtime is not None and self.runtime.profile:
            raise OptionError(
                f"target {self.runtime.name} is a profile, which keeps recurrent nodes",
                remedy=f"leave out {wording.option('target')}",
            )
        if self.scheme == "pow2" and self.activations == "uint16":
            raise OptionError("the scheme pow2 has signed integers; choose other activations than uint16")
        if self.scheme == "tflite" and self.activations != "int8":
            raise OptionError(
                f"the scheme tflite has integers of its own, and the activations are {self.activations}",
                remedy=f"leave out {wording.option('activations')}",
            )
        if not self.headroom >= 1:
            raise OptionError(f"the headroom is {self.headroom}; it must be at least 1")


BENCH_STRATEGIES = ("adapt", "unroll", "scan", "loop", "lower")


@dataclasses.dataclass(frozen=True, kw_only=True)
class BenchOptions(RecurrentOptions):
    """The options of `rnnlower.bench`."""

    strip: bool = field(default=False, init=False)
    lift: bool = field(default=True, init=False)
    target: None = field(default=None, init=False)
    strategies: Sequence[str] | None = None
    unroll_factors: Sequence[int] | None = None
    threads: int = 1
    runs: int = 50
    warmup: int = 3
    nodes: Sequence[str] | None = None
    inputs: Given | None = None
    seed: int = 0
    on: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.strategies is not None:
            check_strings("strategies", self.strategies)
        for strategy in self.strategies or ():
            if strategy not in BENCH_STRATEGIES:
                raise OptionError(f"the strategy {strategy!r} is not one of {', '.join(BENCH_STRATEGIES)}")
        if not isinstance(self.unroll_factors or (), Iterable):
            raise OptionError(f"unroll_factors is {self.unroll_factors!r}; it must be a list of integers")
        least = [("unroll factor", 1, factor) for factor in self.unroll_factors or ()]
        least += [("number of threads", 0, self.threads), ("number of runs", 1, self.runs)]
        for name, bound, value in (*least, ("warm-up", 0, self.warmup)):
            if integer(name, value) < bound:
                raise OptionError(f"the {name} is {value}; it must be at least {bound}")

    def of_lowering(self, strategy: str, unroll_factor: int, target: Target | None) -> LoweringOptions:
        """Return the options by which a form is made, with folding for a target or where inputs are set."""
        natives: Mapping[str, Native] = {"adapt": "keep", "lower": "auto"}
        shared = ("dims", "input_shapes", "nodes", "semantics", "compute_type", "gates")
        return LoweringOptions(
            "target" if strategy in natives else strategy,
            target=target,
            unroll_factor=unroll_factor,
            fold=True if target is not None or self.sets else None,
            native=natives.get(strategy, "lower"),
            dequantize=self.dequantize,
            assume_linear_before_reset=self.assume_linear_before_reset,
            **{name: getattr(self, name) for name in shared},
        )
