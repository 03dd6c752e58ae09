"""The options that several commands share, and their text as values."""

from __future__ import annotations

import math
import pathlib
import zipfile
import zlib
from typing import Annotated, Any, TypeVar

import typer

from rnnlower.errors import OptionError

__all__ = [
    "LOWERING",
    "MEASURING",
    "MODEL",
    "OUTPUT",
    "PANELS",
    "VERIFICATION",
    "AssumeLinear",
    "Atol",
    "ComputeType",
    "ControlFlow",
    "Dequantize",
    "Dims",
    "ExternalData",
    "Fold",
    "Gates",
    "InputShapes",
    "Inputs",
    "Json",
    "Model",
    "Nodes",
    "On",
    "Opset",
    "Output",
    "Quiet",
    "Report",
    "Rtol",
    "Seed",
    "Semantics",
    "Sets",
    "States",
    "Strict",
    "TargetName",
    "Trials",
    "UnrollFactor",
    "Verbose",
    "Verify",
    "check_external_data",
    "parse_axes",
    "parse_dims",
    "parse_sets",
    "parse_shapes",
    "parse_states",
    "verification_settings",
]

_Value = TypeVar("_Value")

PANELS = ("Model", "Lowering", "Measuring", "Verification", "Output")
"""The panels of --help, in their order."""
MODEL, LOWERING, MEASURING, VERIFICATION, OUTPUT = PANELS

Model = Annotated[
    pathlib.Path,
    typer.Argument(metavar="MODEL", help="The ONNX file to read.", show_default=False),
]
Output = Annotated[
    pathlib.Path,
    typer.Option(
        "-o",
        "--output",
        metavar="PATH",
        help="Where the result goes; MODEL itself is allowed.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
Opset = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Default-domain opset of the result; left out: the source's, raised as far as needed.",
        show_default=False,
        rich_help_panel=LOWERING,
    ),
]
Dims = Annotated[
    list[str] | None,
    typer.Option(
        "--dim",
        metavar="NAME=N",
        help="Fix a symbolic dimension; repeatable.",
        show_default=False,
        rich_help_panel=MODEL,
    ),
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME:2,3,4",
        help="Fix a graph input's shape; repeatable.",
        show_default=False,
        rich_help_panel=MODEL,
    ),
]
Sets = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="Make a graph input a constant: a number, true, false, a list as [1,2], or @FILE.npz:KEY; "
        "repeatable.",
        show_default=False,
        rich_help_panel=MODEL,
    ),
]
Fold = Annotated[
    bool | None,
    typer.Option(
        "--fold/--no-fold",
        help="Fold constants and take the branches of Ifs that are decided. Left out: for `lower`, and where "
        "--set, --dim or --input-shape is given.",
        show_default=False,
        rich_help_panel=MODEL,
    ),
]
ControlFlow = Annotated[
    str | None,
    typer.Option(
        "--control-flow",
        metavar="keep|unroll",
        help="Whether the model's own Loop and Scan nodes with a known number of iterations become straight "
        "lines, too. Left out: keep for `unroll`, what the target needs for `lower`.",
        show_default=False,
    ),
]
Nodes = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        metavar="PATTERN",
        help="Only nodes whose name matches (shell wildcards); repeatable.",
        show_default=False,
        rich_help_panel=LOWERING,
    ),
]
UnrollFactor = Annotated[
    int, typer.Option(min=1, metavar="K", help="Time steps in an iteration.", rich_help_panel=LOWERING)
]
Semantics = Annotated[
    str,
    typer.Option(
        metavar="ort|spec",
        help="Who is right where the ONNX text and onnxruntime differ.",
        rich_help_panel=LOWERING,
    ),
]
TargetName = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="NAME|FILE",
        help="The runtime: one of `rnnlower targets`, or a .toml file that describes one.",
        show_default=False,
        rich_help_panel=LOWERING,
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Fail if ops of the rest of the model do not fit the target.",
        rich_help_panel=LOWERING,
    ),
]
Dequantize = Annotated[
    bool,
    typer.Option(
        "--dequantize",
        help="Quantized recurrent operators become float ones, with dequantized weights.",
        rich_help_panel=LOWERING,
    ),
]
AssumeLinear = Annotated[
    bool,
    typer.Option(
        "--assume-linear-before-reset",
        help="Read GRU nodes as linear_before_reset=1: mends what some exporters of PyTorch wrote.",
        rich_help_panel=LOWERING,
    ),
]
ComputeType = Annotated[
    str | None,
    typer.Option(
        metavar="float32",
        help="Compute float16 and bfloat16 recurrences in float32, between Casts.",
        show_default=False,
        rich_help_panel=LOWERING,
    ),
]
Gates = Annotated[
    str,
    typer.Option(
        metavar="auto|fused|separate",
        help="One product for several gates, or one each.",
        rich_help_panel=LOWERING,
    ),
]
Native = Annotated[
    str,
    typer.Option(
        metavar="auto|keep|lower",
        help="The runtime's own recurrent operators, as they are or adapted: kept where that is fastest, "
        "wherever they are right, or never.",
        rich_help_panel=LOWERING,
    ),
]
Verify = Annotated[
    bool,
    typer.Option(
        "--verify/--no-verify",
        help="Run source and result and compare before writing.",
        rich_help_panel=VERIFICATION,
    ),
]
Trials = Annotated[
    int | None,
    typer.Option(
        min=1, metavar="N", help="Sets of generated inputs.", show_default=False, rich_help_panel=VERIFICATION
    ),
]
# None where it is not given: a default would look like a choice.
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="N", help="Seed of the generated inputs.", show_default="0", rich_help_panel=VERIFICATION
    ),
]
Atol = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="A",
        help="Absolute tolerance; left out: by type, or 0 beside --rtol.",
        show_default=False,
        rich_help_panel=VERIFICATION,
    ),
]
Rtol = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="R",
        help="Relative tolerance; left out: by type, or 0 beside --atol.",
        show_default=False,
        rich_help_panel=VERIFICATION,
    ),
]
Inputs = Annotated[
    pathlib.Path | None,
    typer.Option(
        metavar="PATH",
        help="Compare on these inputs: an .npz file or a test-data folder.",
        show_default=False,
        rich_help_panel=VERIFICATION,
    ),
]
States = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="OUT=IN",
        help="Feed this output back into that input in a next call; repeatable. Left out: by name and shape.",
        show_default=False,
        rich_help_panel=VERIFICATION,
    ),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on",
        metavar="ENGINE",
        help="Also run the result on this runtime: one of `rnnlower engines`, or "
        "'cmd:PROGRAM {model} {inputs} {outputs}'.",
        show_default=False,
        rich_help_panel=VERIFICATION,
    ),
]
ExternalData = Annotated[
    str,
    typer.Option(
        metavar="auto|always|never",
        help="Whether tensors go into a file of their own.",
        rich_help_panel=OUTPUT,
    ),
]
Report = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--report",
        metavar="FILE.html",
        help="Write a page about what was done and how it was verified, to be looked at in a browser.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
Json = Annotated[
    bool,
    typer.Option("--json", help="One JSON object on stdout instead of the tables.", rich_help_panel=OUTPUT),
]
Quiet = Annotated[
    bool, typer.Option("-q", "--quiet", help="Print nothing but warnings and errors.", rich_help_panel=OUTPUT)
]
Verbose = Annotated[
    bool,
    typer.Option(
        "-v",
        "--verbose",
        help="Print more: all ops, the errors in all measures, the time of each phase.",
        rich_help_panel=OUTPUT,
    ),
]


def _set_once(found: dict[str, _Value], name: str, value: _Value, option: str) -> None:
    if found.setdefault(name, value) != value:
        raise OptionError(f"{option} gives {name!r} two values, {found[name]} and {value}: leave out one")


def parse_dims(options: list[str] | None) -> dict[str, int]:
    dims: dict[str, int] = {}
    for option in options or ():
        name, separator, size = option.rpartition("=")
        if not separator or not name or not size.isdecimal():
            raise OptionError(f"--dim {option!r} is not NAME=N, as in --dim T=16")
        _set_once(dims, name, int(size), "--dim")
    return dims


def parse_shapes(options: list[str] | None) -> dict[str, list[int]]:
    shapes: dict[str, list[int]] = {}
    for option in options or ():
        name, separator, sizes = option.rpartition(":")
        parts = sizes.split(",") if sizes else []
        if not separator or not name or not all(part.strip().isdecimal() for part in parts):
            raise OptionError(f"--input-shape {option!r} is not NAME:2,3,4, as in --input-shape X:16,1,80")
        _set_once(shapes, name, [int(part) for part in parts], "--input-shape")
    return shapes


def parse_sets(options: list[str] | None) -> dict[str, Any]:
    sets: dict[str, Any] = {}
    for option in options or ():
        name, separator, text = option.partition("=")
        if not separator or not name or not text:
            raise OptionError(f"--set {option!r} is not NAME=VALUE, as in --set sr=16000")
        if name in sets:
            raise OptionError(f"--set gives {name!r} two values: leave out one")
        sets[name] = _read_array(text[1:], option) if text.startswith("@") else _parse_value(text, option)
    return sets


def _parse_value(text: str, option: str) -> Any:
    import json

    words = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
    try:
        value = words[text] if text in words else json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, int | float | list):
        raise OptionError(
            f"--set {option!r}: {text!r} is no number, true, false, list as [1,2], or @FILE.npz:KEY"
        )
    return value


def _read_array(place: str, option: str) -> Any:
    import numpy as np

    path, separator, key = place.rpartition(":")
    if not separator or not path or not key:
        raise OptionError(f"--set {option!r} is not NAME=@FILE.npz:KEY")
    try:
        archive = np.load(path)
        if isinstance(archive, np.ndarray):
            raise OptionError(f"--set {option!r}: {path} holds one array; write an .npz with np.savez")
        with archive:
            if key not in archive.files:
                known = ", ".join(archive.files) or "nothing"
                raise OptionError(f"--set {option!r}: {path} has no {key!r}; it has {known}")
            return archive[key]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, OptionError):
            raise
        raise OptionError(f"--set {option!r}: cannot read {path}: {error or type(error).__name__}") from error


def parse_states(options: list[str] | None) -> dict[str, str] | None:
    states: dict[str, str] = {}
    for option in options or ():
        output, separator, name = option.partition("=")
        if not separator or not output or not name:
            raise OptionError(f"--state {option!r} is not OUT=IN, as in --state h_out=h_in")
        _set_once(states, output, name, "--state")
    return states or None


def parse_axes(options: list[str] | None) -> dict[str, int]:
    axes: dict[str, int] = {}
    for option in options or ():
        name, separator, axis = option.rpartition(":")
        if not separator or not name or not axis.removeprefix("-").isdecimal():
            raise OptionError(f"--time-axis {option!r} is not INPUT:AXIS, as in --time-axis X:0")
        _set_once(axes, name, int(axis), "--time-axis")
    return axes


def verification_settings(
    verify: bool,
    trials: int | None,
    seed: int | None,
    atol: float | None,
    rtol: float | None,
    inputs: pathlib.Path | None,
    state: list[str] | None,
    on: str | None = None,
) -> dict[str, Any]:
    """Those of the options that were given; they say how to verify, and so need a verification."""
    options: dict[str, Any] = {"trials": trials, "seed": seed, "atol": atol, "rtol": rtol, "inputs": inputs}
    options |= {"states": parse_states(state), "on": None if on == "none" else on}
    given = {name: value for name, value in options.items() if value is not None}
    if given and not verify:
        option = next(iter(given)).replace("states", "state")
        raise OptionError(f"--{option} says how to verify, --no-verify not to: leave out one of the two")
    return given


def check_external_data(mode: str) -> None:
    from rnnlower.files.model_io import EXTERNAL_DATA_MODES

    if mode not in EXTERNAL_DATA_MODES:
        raise OptionError(f"--external-data is {mode!r}; it must be one of {', '.join(EXTERNAL_DATA_MODES)}")
