"""The options of the command line, as --help shows them: their names, their values and what they do."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import pathlib
from collections.abc import Callable
from typing import Annotated, Any

import typer

from rnnlower.cli import values
from rnnlower.passes.options import HELP

PANELS = (
    *("Model", "Target", "Streaming", "Conversion", "Calibration"),
    *("Lowering", "Measuring", "Verification", "Output"),
)
"""The panels of --help, in their order."""
MODEL, TARGET, STREAMING, CONVERSION, CALIBRATION, LOWERING, MEASURING, VERIFICATION, OUTPUT = PANELS

_ENGINE = "one of `rnnlower engines`, or 'cmd:PROGRAM {model} {inputs} {outputs}'"
_KINDS: dict[str | None, Any] = {
    **dict.fromkeys(("N", "K"), int),
    **dict.fromkeys(("HZ", "X", "DB", "A", "R"), float),
    **dict.fromkeys(("PATH", "FILE", "FILE.html", "TARGET.toml", "REC.npz", "R.json"), pathlib.Path),
    "REC.npz|R.json": pathlib.Path,
    None: bool,
}
"""The type of a value by its placeholder, unless it is a string; a switch has no value."""


@dataclasses.dataclass(frozen=True)
class Flag:
    """An option of the command line.

    Attributes:
        form: Its names, and the placeholder of its value, if it takes one.
        help: Its description; if empty, the one in `HELP`.
        read: Converts its text to the value of the parameter.
    """

    form: str
    help: str = ""
    read: Callable[[Any], Any] = lambda value: value
    minimum: float | None = None
    repeatable: bool = False

    def parameter(self, key: str, default: Any, panel: str) -> inspect.Parameter:
        """Return the parameter of which typer makes the option."""
        words = self.form.replace(", ", " ").split()
        names, value = [word for word in words if word[0] == "-"], words[-1] if words[-1][0] != "-" else None
        name = key.rpartition(".")[2]
        text = self.help or HELP.get(key) or HELP[name]
        option = typer.Option(
            *names,
            metavar=value,
            help=text.replace("``None``:", "Default:").replace("``", ""),
            min=self.minimum,
            show_default=default not in (None, inspect.Parameter.empty),
            rich_help_panel=panel,
        )
        kind = _KINDS.get(value, str)
        kind = list[kind] if self.repeatable else kind  # type: ignore[valid-type]
        return keyword(name, default, Annotated[kind | None if default is None else kind, option])


_many = functools.partial(Flag, repeatable=True)


def keyword(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    """Return a keyword-only parameter."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


ARGUMENTS: dict[str, tuple[type[Any], str]] = {
    "model": (pathlib.Path, "The ONNX file to read; -: standard input."),
    "stream.model": (
        list[pathlib.Path],
        "The ONNX file to read; -: standard input. Several files are one model.",
    ),
    "reference": (pathlib.Path, "The correct model; -: standard input."),
    "candidate": (pathlib.Path, "The model to check; -: standard input."),
    "recordings": (
        list[pathlib.Path],
        ".npz files with an array for each graph input; one more axis counts sequences.",
    ),
    "probe.engine": (str, "A name of `rnnlower engines`, or cmd:..."),
}
"""The positional arguments."""

_FLAGS: dict[str, dict[str, Flag]] = {
    MODEL: {
        "dims": _many("--dim NAME=N", "Fix a symbolic dimension; repeatable.", values.parse_dims),
        "input_shapes": _many(
            "--input-shape NAME:2,3,4", "Fix a graph input's shape; repeatable.", values.parse_shapes
        ),
        "sets": _many(
            "--set NAME=VALUE",
            "Make a graph input a constant: a number, true, false, a list as [1,2], or @FILE.npz:KEY; "
            "repeatable.",
            values.parse_sets,
        ),
        "freeze": Flag("--freeze/--no-freeze"),
        "fold": Flag(
            "--fold/--no-fold",
            "Fold constants and replace If nodes of known condition. Default: done by `lower`, and where "
            "--set, --dim or --input-shape is given. What recurrent nodes read is always folded.",
        ),
        "lift": Flag("--lift/--no-lift"),
    },
    TARGET: {
        "target": Flag("--target NAME|FILE"),
        "strict": Flag("--strict"),
        "native": Flag("--native MODE"),
    },
    STREAMING: {
        "chunk": Flag(
            "--chunk K|10ms|any",
            "Time steps a call, or their duration at --rate; any: a different number in each call.",
            values.parse_chunk,
        ),
        "rate": Flag("--rate HZ", minimum=0),
        "time_axes": _many(
            "--time-axis INPUT:AXIS",
            "The time axis of an input, if it does not follow from recurrent nodes or loops; repeatable.",
            values.parse_axes,
        ),
        "max": _many(
            "--max NAME=N",
            "The largest size of a dimension that is a length; repeatable.",
            values.parse_maxima,
        ),
        "pad.max": _many(
            "--max NAME=N",
            "The largest size of a dimension that is a length, NAME=N,N: a model for each; repeatable.",
            values.parse_buckets,
        ),
        "mask": Flag("--mask"),
        "per_row": Flag("--per-row"),
        "pad.time_axes": _many(
            "--time-axis INPUT:AXIS",
            "The time axis of an input whose length is static; repeatable.",
            values.parse_axes,
        ),
        "connect": _many(
            "--connect OUT=IN",
            "Of several files: the output of one that is an input of another name in another; "
            "repeatable. Equal names are connected.",
            values.parse_connections,
        ),
        "emit": Flag(
            "--emit python|c|js",
            "Also write the code that calls the result, next to it: states, chunks and delay.",
        ),
        "allow_delay": Flag("--allow-delay"),
    },
    CONVERSION: {
        "convert.opset": Flag("--opset N", "Default-domain opset of the result."),
    },
    CALIBRATION: {
        "calibration": _many(
            "--calibration REC.npz|R.json",
            "Recordings, or ranges that `rnnlower calibrate` wrote; repeatable.",
        ),
        "activations": Flag("--activations TYPE"),
        "scheme": Flag("--scheme qdq|tflite|pow2"),
        "headroom": Flag("--headroom X"),
        "per_tensor": Flag("--per-tensor"),
        "recurrent_only": Flag("--recurrent-only"),
        "integer_states": Flag("--integer-states"),
        "format": Flag(
            "--format npz|rknn|qnn|python",
            "npz: an array for each input, first axis the calls; python: a CalibrationDataReader.",
        ),
        "ranges": Flag(
            "--ranges R.json", "Also write the least and the largest value of each role, over all steps."
        ),
    },
    LOWERING: {
        "strategies": _many(
            "--strategy FORM",
            "Only unroll, scan, loop, adapt or lower; repeatable. adapt and lower: on a runtime that a "
            "target describes.",
        ),
        "unroll_factors": _many(
            "--unroll-factor K", "Also K time steps per iteration; repeatable.", minimum=1
        ),
        "quantize.strategy": Flag("--strategy auto|unroll|scan|loop"),
        "quantize.target": Flag("--target NAME|FILE", "The runtime that must run what is emitted."),
        "stream.strategy": Flag("--strategy FORM"),
        "stream.target": Flag("--target NAME|FILE"),
        "opset": Flag("--opset N"),
        "control_flow": Flag("--control-flow keep|unroll"),
        "nodes": _many("--node PATTERN", "Only nodes whose name matches (shell wildcards); repeatable."),
        "steps": Flag("--steps N", minimum=1),
        "unroll_factor": Flag("--unroll-factor K", minimum=1),
        "semantics": Flag("--semantics ort|spec"),
        "dequantize": Flag("--dequantize"),
        "assume_linear_before_reset": Flag("--assume-linear-before-reset"),
        "compute_type": Flag("--compute-type float32"),
        "gates": Flag("--gates MODE"),
    },
    MEASURING: {
        "threads": Flag("--threads N", minimum=0),
        "runs": Flag("--runs N", minimum=1),
        "warmup": Flag("--warmup N", minimum=0),
        "bench.on": Flag(
            "--on ENGINE",
            f"Time the forms on this runtime: {_ENGINE}. Default: onnxruntime.",
            lambda name: None if name == "none" else name,
        ),
        "bench.seed": Flag("--seed N", "Seed of the generated inputs."),
    },
    VERIFICATION: {
        "verify.sets": _many(
            "--set NAME=VALUE",
            "Feed a value to an input of the reference, which the candidate may lack: a number, true, "
            "false, a list as [1,2], or @FILE.npz:KEY; repeatable.",
            values.parse_sets,
        ),
        "engine": Flag("--engine NAME", "Run both models on this engine: onnxruntime or rnnlower-reference."),
        "verify": Flag("--verify/--no-verify", "Run source and result and compare before writing."),
        "trials": Flag("--trials N", "Sets of generated inputs.", minimum=1),
        "seed": Flag("--seed N", "Seed of the generated inputs. Default: 0."),
        "atol": Flag("--atol A", "Absolute tolerance. Default: by type, or 0 with --rtol.", minimum=0),
        "rtol": Flag("--rtol R", "Relative tolerance. Default: by type, or 0 with --atol.", minimum=0),
        "tolerance": Flag(
            "--tolerance TYPE", "Allow for a result that computes in float16, bfloat16, int8 or int16."
        ),
        "inputs": Flag("--inputs PATH", "Compare on these inputs: an .npz file or a test-data folder."),
        "min_sqnr": Flag(
            "--min-sqnr DB", "The least ratio of signal to noise, of any output; below it nothing is written."
        ),
        "quantize.inputs": Flag("--inputs REC.npz"),
        "states": _many(
            "--state OUT=IN",
            "Feed this output into that input in the next call; repeatable. Default: by name and shape.",
            values.parse_states,
        ),
        "on": Flag(
            "--on ENGINE",
            f"Also run the result on this runtime: {_ENGINE}. Default: with --target, the target's own where "
            "it is installed; `none`: on no other.",
        ),
        "verify.on": Flag("--on ENGINE", f"Run the candidate on this runtime: {_ENGINE}."),
    },
    OUTPUT: {
        "probe.output": Flag("-o, --output TARGET.toml", "The target file to write."),
        "probe.check": Flag(
            "--check NAME|FILE", "Report what differs from this target; exit code 1 if something does."
        ),
        "schema": Flag("--schema", "Print a JSON Schema of target files instead, for editors."),
        "new": Flag("--new TARGET.toml", "Write a target file to begin with instead, with comments."),
        "output": Flag(
            "-o, --output PATH",
            "The file for the result; MODEL itself is allowed. -: standard output; all else goes to stderr.",
        ),
        "external_data": Flag(
            "--external-data auto|always|never|share",
            "Whether tensors go into a data file. auto: if the source has one, or above 2 GB; share: they"
            " stay in the source's.",
        ),
        "strip": Flag("--strip"),
        "namespaces": Flag("--namespaces"),
        "provenance": Flag(
            "--provenance/--no-provenance",
            "Whether the metadata has the version, the command and its options.",
        ),
        "plot": Flag("--plot FILE", "Draw a chart: a .png or an .svg."),
        "report": Flag(
            "--report FILE.html", "Write an HTML page about what was done and how it was verified."
        ),
        "json_": Flag("--json", "One JSON object on stdout instead of the tables."),
        "quiet": Flag("-q, --quiet", "Print nothing but warnings and errors."),
        "verbose": Flag(
            "-v, --verbose", "Print more: all ops, the errors in all measures, the time of each phase."
        ),
        "calibrate.output": Flag(
            "-o, --output PATH", "The file, or for rknn and qnn the folder, for the calibration data."
        ),
        "check.verbose": Flag(
            "-v, --verbose", "List every node that does not fit, and the sources of guesses."
        ),
    },
}


OPTIONS = {name: flag for flags in _FLAGS.values() for name, flag in flags.items()}
"""Every option by its key: the name of its parameter, after that of its command if it is another one there.

Within a panel, --help shows them in this order.
"""
PANEL_OF = {name: panel for panel, flags in _FLAGS.items() for name in flags}
