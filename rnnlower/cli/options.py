"""The options of the command line, and the commands made of them.

A command is a function whose parameters name options. A parameter that is a dataclass, such as the options of
a public function, stands for its fields. So names and defaults agree with those of Python.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rnnlower.cli.running import exit_codes
from rnnlower.cli.values import (
    parse_axes,
    parse_chunk,
    parse_dims,
    parse_maxima,
    parse_sets,
    parse_shapes,
    parse_states,
)
from rnnlower.errors import OptionError

PANELS = (
    "Model",
    "Target",
    "Streaming",
    "Conversion",
    "Calibration",
    "Lowering",
    "Measuring",
    "Verification",
    "Output",
)
"""The panels of --help, in their order."""
MODEL, TARGET, STREAMING, CONVERSION, CALIBRATION, LOWERING, MEASURING, VERIFICATION, OUTPUT = PANELS

_ENGINE = "one of `rnnlower engines`, or 'cmd:PROGRAM {model} {inputs} {outputs}'"


@dataclasses.dataclass(frozen=True)
class Flag:
    """An option as the command line has it.

    Attributes:
        panel: The panel of --help.
        form: Its names, and its value in --help, if it takes one.
        help: Its description.
        kind: The type of the value.
        least: Its least value.
        read: Makes of its text what the parameter takes.
    """

    panel: str
    form: str
    help: str
    kind: Any = str
    least: float | None = None
    read: Callable[[Any], Any] = lambda value: value

    def parameter(self, name: str, default: Any) -> inspect.Parameter:
        """Return the parameter from which typer makes the option."""
        words = self.form.replace(", ", " ").split()
        names, value = [word for word in words if word[0] == "-"], words[-1] if words[-1][0] != "-" else None
        optional = default in (None, inspect.Parameter.empty)
        option = typer.Option(
            *names,
            metavar=value,
            help=self.help,
            min=self.least,
            show_default=not optional,
            rich_help_panel=self.panel,
        )
        kind = bool if value is None else self.kind
        return _keyword(name, default, Annotated[kind | None if default is None else kind, option])


def _keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


ARGUMENTS: dict[str, tuple[type[Any], str]] = {
    "model": (pathlib.Path, "The ONNX file to read; -: standard input."),
    "reference": (pathlib.Path, "The correct model; -: standard input."),
    "candidate": (pathlib.Path, "The model to check; -: standard input."),
    "recordings": (
        list[pathlib.Path],
        ".npz files with an array for each graph input; one more axis counts sequences.",
    ),
    "probe.engine": (str, "A name of `rnnlower engines`, or cmd:..."),
}
"""What stands behind a command without a name."""

OPTIONS = {
    "dims": Flag(MODEL, "--dim NAME=N", "Fix a symbolic dimension; repeatable.", list[str], read=parse_dims),
    "input_shapes": Flag(
        MODEL,
        "--input-shape NAME:2,3,4",
        "Fix a graph input's shape; repeatable.",
        list[str],
        read=parse_shapes,
    ),
    "sets": Flag(
        MODEL,
        "--set NAME=VALUE",
        "Make a graph input a constant: a number, true, false, a list as [1,2], or @FILE.npz:KEY; "
        "repeatable.",
        list[str],
        read=parse_sets,
    ),
    "verify.sets": Flag(
        VERIFICATION,
        "--set NAME=VALUE",
        "Feed a value to an input of the reference, which the candidate may lack: a number, true, "
        "false, a list as [1,2], or @FILE.npz:KEY; repeatable.",
        list[str],
        read=parse_sets,
    ),
    "freeze": Flag(
        MODEL,
        "--freeze/--no-freeze",
        "Take initializers that are graph inputs, too, as constants. Default: done by `lower` below IR "
        "version 4, where every initializer is an input that no caller can feed.",
    ),
    "fold": Flag(
        MODEL,
        "--fold/--no-fold",
        "Fold constants and replace If nodes of known condition. Default: done by `lower`, and where --set,"
        " --dim or --input-shape is given. What recurrent nodes read is always folded.",
    ),
    "lift": Flag(
        MODEL,
        "--lift/--no-lift",
        "Whether Loops and Scans that compute an LSTM, GRU or RNN become these operators first.",
    ),
    "target": Flag(
        TARGET,
        "--target NAME|FILE",
        "The runtime: one of `rnnlower targets`, or a .toml file that describes one.",
    ),
    "strict": Flag(TARGET, "--strict", "Fail if ops of the rest of the model do not fit the target."),
    "native": Flag(
        TARGET,
        "--native MODE",
        "Whether the runtime's own recurrent operators stay, as they are or adapted: where that is fastest "
        "(auto), wherever they are right (keep), or never (lower).",
    ),
    "chunk": Flag(
        STREAMING,
        "--chunk K|10ms|any",
        "Time steps a call, or their duration at --rate; any: another number in each.",
        read=parse_chunk,
    ),
    "rate": Flag(STREAMING, "--rate HZ", "Time steps a second, such as 16000 samples.", float, least=0.0),
    "time_axes": Flag(
        STREAMING,
        "--time-axis INPUT:AXIS",
        "The time axis of an input, if it does not follow from the recurrent nodes; repeatable.",
        list[str],
        read=parse_axes,
    ),
    "max": Flag(
        STREAMING,
        "--max NAME=N",
        "The largest size of a dimension that is a length; repeatable.",
        list[str],
        read=parse_maxima,
    ),
    "mask": Flag(STREAMING, "--mask", "Take a mask of floats as an input, instead of a length."),
    "pad.time_axes": Flag(
        STREAMING,
        "--time-axis INPUT:AXIS",
        "The time axis of an input whose length is static; repeatable.",
        list[str],
        read=parse_axes,
    ),
    "allow_delay": Flag(
        STREAMING, "--allow-delay", "Accept convolutions that look ahead, at the price of a delay."
    ),
    "convert.opset": Flag(CONVERSION, "--opset N", "Default-domain opset of the result.", int),
    "calibration": Flag(
        CALIBRATION,
        "--calibration REC.npz|R.json",
        "Recordings, or ranges that `rnnlower calibrate` wrote; repeatable.",
        list[pathlib.Path],
    ),
    "activations": Flag(
        CALIBRATION,
        "--activations TYPE",
        "int8: what goes into products has 8 bits, all else 16. int16, uint16: all have 16. int8-only: all "
        "have 8.",
    ),
    "scheme": Flag(
        CALIBRATION,
        "--scheme qdq|tflite|pow2",
        "tflite: the integers of TensorFlow Lite's LSTM. pow2: scales are powers of two.",
    ),
    "headroom": Flag(
        CALIBRATION,
        "--headroom X",
        "How much larger the ranges of 16-bit values are than what was seen.",
        float,
    ),
    "per_tensor": Flag(
        CALIBRATION, "--per-tensor", "One scale for a weight, not one for each output channel."
    ),
    "recurrent_only": Flag(CALIBRATION, "--recurrent-only", "The rest of the model stays in float32."),
    "integer_states": Flag(
        CALIBRATION, "--integer-states", "The states of a step model come in and go out as int16."
    ),
    "format": Flag(
        CALIBRATION,
        "--format npz|rknn|qnn|python",
        "npz: an array for each input, first axis the calls; python: a CalibrationDataReader.",
    ),
    "ranges": Flag(
        CALIBRATION,
        "--ranges R.json",
        "Also write the least and the largest value of each role, over all steps.",
        pathlib.Path,
    ),
    "strategies": Flag(
        LOWERING,
        "--strategy FORM",
        "Only unroll, scan, loop, adapt or lower; repeatable. adapt and lower: on a runtime that a target "
        "describes.",
        list[str],
    ),
    "unroll_factors": Flag(
        LOWERING, "--unroll-factor K", "Also K time steps per iteration; repeatable.", list[int], least=1
    ),
    "quantize.strategy": Flag(
        LOWERING,
        "--strategy auto|unroll|scan|loop",
        "auto: a straight line up to 32 steps, else a Scan, or a Loop where the target lacks it.",
    ),
    "quantize.target": Flag(LOWERING, "--target NAME|FILE", "The runtime that must run what is emitted."),
    "stream.strategy": Flag(
        LOWERING,
        "--strategy FORM",
        "unroll, scan or loop: recurrent nodes are lowered as well; none: they stay.",
    ),
    "stream.target": Flag(LOWERING, "--target NAME|FILE", "Lower the recurrent nodes for this runtime."),
    "opset": Flag(
        LOWERING,
        "--opset N",
        "Default-domain opset of the result. Default: the source's, raised as far as needed.",
        int,
    ),
    "control_flow": Flag(
        LOWERING,
        "--control-flow keep|unroll",
        "Whether the model's own Loop and Scan nodes with a known number of iterations become straight "
        "lines, too. Default: keep for `unroll`, what the target needs for `lower`.",
    ),
    "nodes": Flag(
        LOWERING, "--node PATTERN", "Only nodes whose name matches (shell wildcards); repeatable.", list[str]
    ),
    "steps": Flag(LOWERING, "--steps N", "The least number of steps of a straight line.", int, least=1),
    "unroll_factor": Flag(LOWERING, "--unroll-factor K", "Time steps per iteration.", int, least=1),
    "semantics": Flag(
        LOWERING, "--semantics ort|spec", "Which to follow where onnxruntime and the ONNX spec differ."
    ),
    "dequantize": Flag(
        LOWERING,
        "--dequantize",
        "Turn quantized recurrent operators into float ones, with dequantized weights.",
    ),
    "assume_linear_before_reset": Flag(
        LOWERING,
        "--assume-linear-before-reset",
        "Read GRU nodes as linear_before_reset=1: corrects a fault of some PyTorch exporters.",
    ),
    "compute_type": Flag(
        LOWERING,
        "--compute-type float32",
        "Compute float16 and bfloat16 recurrences in float32, between Casts.",
    ),
    "gates": Flag(
        LOWERING,
        "--gates MODE",
        "auto, fused (one product for several gates) or separate (one for each gate).",
    ),
    "threads": Flag(
        MEASURING, "--threads N", "Threads of onnxruntime within an operator; 0: its default.", int, least=0
    ),
    "runs": Flag(MEASURING, "--runs N", "Timed runs of each form.", int, least=1),
    "warmup": Flag(MEASURING, "--warmup N", "Runs before those, in each session.", int, least=0),
    "engine": Flag(
        VERIFICATION, "--engine NAME", "Run both models on this engine: onnxruntime or rnnlower-reference."
    ),
    "verify": Flag(VERIFICATION, "--verify/--no-verify", "Run source and result and compare before writing."),
    "trials": Flag(VERIFICATION, "--trials N", "Sets of generated inputs.", int, least=1),
    "seed": Flag(VERIFICATION, "--seed N", "Seed of the generated inputs. Default: 0.", int),
    "atol": Flag(
        VERIFICATION, "--atol A", "Absolute tolerance. Default: by type, or 0 with --rtol.", float, least=0.0
    ),
    "rtol": Flag(
        VERIFICATION, "--rtol R", "Relative tolerance. Default: by type, or 0 with --atol.", float, least=0.0
    ),
    "tolerance": Flag(
        VERIFICATION,
        "--tolerance TYPE",
        "Allow for a result that computes in float16, bfloat16, int8 or int16.",
    ),
    "inputs": Flag(
        VERIFICATION,
        "--inputs PATH",
        "Compare on these inputs: an .npz file or a test-data folder.",
        pathlib.Path,
    ),
    "min_sqnr": Flag(
        VERIFICATION,
        "--min-sqnr DB",
        "The least ratio of signal to noise, of any output; below it nothing is written.",
        float,
    ),
    "quantize.inputs": Flag(
        VERIFICATION,
        "--inputs REC.npz",
        "Measure on these recordings. Default: a fourth of those of the calibration is set aside.",
        pathlib.Path,
    ),
    "states": Flag(
        VERIFICATION,
        "--state OUT=IN",
        "Feed this output into that input in the next call; repeatable. Default: by name and shape.",
        list[str],
        read=parse_states,
    ),
    "on": Flag(
        VERIFICATION,
        "--on ENGINE",
        "Also run the result on this runtime: one of `rnnlower engines`, or 'cmd:PROGRAM {model} {inputs} "
        "{outputs}'. Default: with --target, the target's own where it is installed; `none`: on no other.",
    ),
    "verify.on": Flag(VERIFICATION, "--on ENGINE", f"Run the candidate on this runtime: {_ENGINE}."),
    "bench.on": Flag(
        MEASURING, "--on ENGINE", f"Time the forms on this runtime: {_ENGINE}. Default: onnxruntime."
    ),
    "probe.output": Flag(OUTPUT, "-o, --output TARGET.toml", "The target file to write.", pathlib.Path),
    "probe.check": Flag(
        OUTPUT, "--check NAME|FILE", "Report what differs from this target; exit code 1 if something does."
    ),
    "schema": Flag(OUTPUT, "--schema", "Print a JSON Schema of target files instead, for editors."),
    "new": Flag(
        OUTPUT, "--new TARGET.toml", "Write a target file to begin with instead, with comments.", pathlib.Path
    ),
    "output": Flag(
        OUTPUT,
        "-o, --output PATH",
        "The file for the result; MODEL itself is allowed. -: standard output; all else goes to stderr.",
        pathlib.Path,
    ),
    "external_data": Flag(
        OUTPUT,
        "--external-data auto|always|never|share",
        "Whether tensors go into a data file. auto: if the source has one, or above 2 GB; share: they stay "
        "in the source's.",
    ),
    "strip": Flag(
        OUTPUT, "--strip", "Remove metadata and names of nodes, and all doc strings, for the smallest file."
    ),
    "no_provenance": Flag(
        OUTPUT,
        "--no-provenance",
        "Leave version, command and options out of the metadata.",
    ),
    "plot": Flag(OUTPUT, "--plot FILE", "Draw a chart: a .png or an .svg.", pathlib.Path),
    "report": Flag(
        OUTPUT,
        "--report FILE.html",
        "Write an HTML page about what was done and how it was verified.",
        pathlib.Path,
    ),
    "json_": Flag(OUTPUT, "--json", "One JSON object on stdout instead of the tables."),
    "quiet": Flag(OUTPUT, "-q, --quiet", "Print nothing but warnings and errors."),
    "verbose": Flag(
        OUTPUT, "-v, --verbose", "Print more: all ops, the errors in all measures, the time of each phase."
    ),
    "calibrate.output": Flag(
        OUTPUT,
        "-o, --output PATH",
        "The file, or for rknn and qnn the folder, for the calibration data.",
        pathlib.Path,
    ),
    "check.verbose": Flag(
        OUTPUT, "-v, --verbose", "List every node that does not fit, and the sources of guesses."
    ),
}
"""Every option by the name of its parameter, and of its command where it is another one there.

Within a panel, --help shows them in this order.
"""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Comparing:
    """The options of the comparison of source and result."""

    verify: bool = True
    trials: int | None = None
    seed: int | None = None
    atol: float | None = None
    rtol: float | None = None
    tolerance: str | None = None
    inputs: pathlib.Path | None = None
    states: dict[str, str] | None = None
    on: str | None = None

    def settings(self) -> dict[str, Any]:
        """Return the given options as arguments of `rnnlower.verify`; they require a verification."""
        names = [each.name for each in dataclasses.fields(self) if each.name != "verify"]
        given = {name: value for name in names if (value := getattr(self, name)) not in (None, {})}
        if given.get("on") == "none":
            del given["on"]
        if given and not self.verify:
            option = next(iter(given)).replace("states", "state")
            raise OptionError(
                f"--{option} says how to verify, --no-verify turns that off: leave out one of the two"
            )
        return given


@dataclasses.dataclass(frozen=True, kw_only=True)
class Showing:
    """The options for the output of a command."""

    report: pathlib.Path | None = None
    json_: bool = False
    quiet: bool = False
    verbose: bool = False


def command(*absent: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a command of a function, with an option for each parameter and each field of a dataclass.

    Args:
        absent: Fields that the command does not offer; they keep their defaults.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        groups: dict[str, tuple[Callable[..., Any], list[str]]] = {}
        defaults: dict[str, Any] = {}
        for name, parameter in inspect.signature(function, eval_str=True).parameters.items():
            kind: Any = parameter.annotation
            if not dataclasses.is_dataclass(parameter.annotation):
                defaults[name] = parameter.default
                continue
            fields = inspect.signature(kind).parameters
            own = {each: fields[each].default for each in fields if each not in (*absent, "progress")}
            groups[name] = (kind, [*own])
            defaults |= own
        places = {each: _place(function.__name__, each) for each in defaults}
        flags = {each: OPTIONS[place] for each, place in places.items() if place in OPTIONS}

        @functools.wraps(function)
        def run(**texts: Any) -> None:
            given = {
                each: flags[each].read(value) if each in flags else value for each, value in texts.items()
            }
            for group, (kind, own) in groups.items():
                given[group] = kind(**{each: given.pop(each) for each in own})
            function(**given)

        parameters = [
            _argument(each, *ARGUMENTS[place]) for each, place in places.items() if each not in flags
        ]
        order = [*OPTIONS]
        for each in sorted(flags, key=lambda each: order.index(places[each])):
            parameters.append(flags[each].parameter(each, defaults[each]))
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {each.name: each.annotation for each in parameters}
        return exit_codes(run)

    return decorate


def _place(command: str, name: str) -> str:
    """Return the key of an argument or option of a command."""
    own = f"{command}.{name}"
    return own if own in OPTIONS or own in ARGUMENTS else name


def _argument(name: str, kind: type[Any], words: str) -> inspect.Parameter:
    argument = typer.Argument(metavar=name.upper(), help=words, show_default=False)
    return _keyword(name, inspect.Parameter.empty, Annotated[kind, argument])
