"""The options that several commands share."""

from __future__ import annotations

import pathlib
from typing import Annotated

import typer

PANELS = ("Model", "Target", "Streaming", "Conversion", "Lowering", "Measuring", "Verification", "Output")
"""The panels of --help, in their order."""
MODEL, TARGET, STREAMING, CONVERSION, LOWERING, MEASURING, VERIFICATION, OUTPUT = PANELS

Model = Annotated[
    pathlib.Path,
    typer.Argument(metavar="MODEL", help="The ONNX file to read; -: standard input.", show_default=False),
]
Output = Annotated[
    pathlib.Path,
    typer.Option(
        "-o",
        "--output",
        metavar="PATH",
        help="The file for the result; MODEL itself is allowed. -: standard output; all else goes to stderr.",
        show_default=False,
        rich_help_panel=OUTPUT,
    ),
]
Opset = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Default-domain opset of the result. Default: the source's, raised as far as needed.",
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
        help="Fold constants and replace If nodes of known condition. Default: done by `lower`, "
        "and where --set, --dim or --input-shape is given. What recurrent nodes read is always folded.",
        show_default=False,
        rich_help_panel=MODEL,
    ),
]
Freeze = Annotated[
    bool | None,
    typer.Option(
        "--freeze/--no-freeze",
        help="Take initializers that are graph inputs, too, as constants. Default: done by `lower` below IR "
        "version 4, where every initializer is an input that no caller can feed.",
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
        "lines, too. Default: keep for `unroll`, what the target needs for `lower`.",
        show_default=False,
        rich_help_panel=LOWERING,
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
    int, typer.Option(min=1, metavar="K", help="Time steps per iteration.", rich_help_panel=LOWERING)
]
Semantics = Annotated[
    str,
    typer.Option(
        metavar="ort|spec",
        help="Which to follow where onnxruntime and the ONNX spec differ.",
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
        rich_help_panel=TARGET,
    ),
]
Strict = Annotated[
    bool,
    typer.Option(
        "--strict",
        help="Fail if ops of the rest of the model do not fit the target.",
        rich_help_panel=TARGET,
    ),
]
Dequantize = Annotated[
    bool,
    typer.Option(
        "--dequantize",
        help="Turn quantized recurrent operators into float ones, with dequantized weights.",
        rich_help_panel=LOWERING,
    ),
]
AssumeLinear = Annotated[
    bool,
    typer.Option(
        "--assume-linear-before-reset",
        help="Read GRU nodes as linear_before_reset=1: corrects a fault of some PyTorch exporters.",
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
        metavar="MODE",
        help="auto, fused (one product for several gates) or separate (one for each gate).",
        rich_help_panel=LOWERING,
    ),
]
Native = Annotated[
    str,
    typer.Option(
        metavar="MODE",
        help="Whether the runtime's own recurrent operators stay, as they are or adapted: where that is "
        "fastest (auto), wherever they are right (keep), or never (lower).",
        rich_help_panel=TARGET,
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
# ``None`` if it is not given: a default would look like a choice.
Seed = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Seed of the generated inputs. Default: 0.",
        show_default=False,
        rich_help_panel=VERIFICATION,
    ),
]
Atol = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="A",
        help="Absolute tolerance. Default: by type, or 0 with --rtol.",
        show_default=False,
        rich_help_panel=VERIFICATION,
    ),
]
Rtol = Annotated[
    float | None,
    typer.Option(
        min=0.0,
        metavar="R",
        help="Relative tolerance. Default: by type, or 0 with --atol.",
        show_default=False,
        rich_help_panel=VERIFICATION,
    ),
]
Tolerance = Annotated[
    str | None,
    typer.Option(
        metavar="TYPE",
        help="Allow for a result that computes in float16, bfloat16, int8 or int16.",
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
        help="Feed this output into that input in the next call; repeatable. Default: by name and shape.",
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
        "'cmd:PROGRAM {model} {inputs} {outputs}'. Default: with --target, the target's own where it is "
        "installed; `none`: on no other.",
        show_default=False,
        rich_help_panel=VERIFICATION,
    ),
]
ExternalData = Annotated[
    str,
    typer.Option(
        metavar="auto|always|never|share",
        help="Whether tensors go into a data file. auto: if the source has one, or above 2 GB; share: they "
        "stay in the source's.",
        rich_help_panel=OUTPUT,
    ),
]
Strip = Annotated[
    bool,
    typer.Option(
        "--strip",
        help="Remove metadata and names of nodes, and all doc strings, for the smallest file.",
        rich_help_panel=OUTPUT,
    ),
]
Report = Annotated[
    pathlib.Path | None,
    typer.Option(
        "--report",
        metavar="FILE.html",
        help="Write an HTML page about what was done and how it was verified.",
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
