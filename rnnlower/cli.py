"""The command line. The only module that prints: data to stdout, everything else to stderr."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rnnlower.errors import OptionError, RnnLowerError, UnverifiableError, VerificationError

if TYPE_CHECKING:
    import onnx_ir as ir

    from rnnlower.verification import VerificationResult

__all__ = ["app", "main"]

DIFFERENT, USAGE, REFUSED, UNVERIFIED = 1, 2, 3, 4

app = typer.Typer(
    name="rnnlower",
    help="Rewrites LSTM, GRU and RNN nodes of ONNX models into primitive operators.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[
    pathlib.Path, typer.Argument(metavar="MODEL", help="The ONNX file to read.", show_default=False)
]
Output = Annotated[
    pathlib.Path,
    typer.Option(
        "-o", "--output", help="Where the result goes; MODEL itself is allowed.", show_default=False
    ),
]
Opset = Annotated[
    int | None,
    typer.Option(
        help="Default-domain opset of the result; left out: the source's, raised as far as needed.",
        show_default=False,
    ),
]
Dims = Annotated[
    list[str] | None,
    typer.Option("--dim", metavar="NAME=N", help="Fix a symbolic dimension; repeatable.", show_default=False),
]
InputShapes = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        metavar="NAME:2,3,4",
        help="Fix a graph input's shape; repeatable.",
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
    ),
]
UnrollFactor = Annotated[int, typer.Option(min=1, metavar="K", help="Time steps in an iteration.")]
Semantics = Annotated[
    str, typer.Option(metavar="ort|spec", help="Who is right where the ONNX text and onnxruntime differ.")
]
Verify = Annotated[
    bool, typer.Option("--verify/--no-verify", help="Run source and result and compare before writing.")
]
Trials = Annotated[int | None, typer.Option(min=1, help="Sets of generated inputs.", show_default=False)]
Seed = Annotated[int, typer.Option(help="Seed of the generated inputs.")]
Atol = Annotated[
    float | None, typer.Option(min=0.0, help="Absolute tolerance; left out: by type.", show_default=False)
]
Rtol = Annotated[
    float | None, typer.Option(min=0.0, help="Relative tolerance; left out: by type.", show_default=False)
]
Inputs = Annotated[
    pathlib.Path | None,
    typer.Option(help="Compare on these inputs: an .npz file or a test-data folder.", show_default=False),
]
ExternalData = Annotated[
    str, typer.Option(metavar="auto|always|never", help="Whether tensors go into a file of their own.")
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout instead of the tables.")]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Say nothing but errors.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Say more.")]

_LOWERINGS = {
    "unroll": "Rewrite every recurrent node into straight-line primitive ops.",
    "scan": "Rewrite every recurrent node into primitive ops in one Scan; the length may be dynamic.",
    "loop": "Rewrite every recurrent node into primitive ops in one Loop; the length may be dynamic.",
}


def main() -> None:
    """Entry point of the `rnnlower` command."""
    app()


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Show the version.", is_eager=True)] = False,
) -> None:
    if version:
        from importlib.metadata import version as installed

        typer.echo(installed("rnnlower"))
        raise typer.Exit


def _exit_codes(command: Callable[..., None]) -> Callable[..., None]:
    """Turns the errors a user can cause into one message on stderr and an exit code."""

    @functools.wraps(command)
    def guarded(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except RnnLowerError as error:
            typer.echo(f"rnnlower: error: {error}", err=True)
            raise typer.Exit(_exit_code(error)) from error

    return guarded


def _exit_code(error: RnnLowerError) -> int:
    kinds = ((OptionError, USAGE), (UnverifiableError, UNVERIFIED), (VerificationError, DIFFERENT))
    return next((code for kind, code in kinds if isinstance(error, kind)), REFUSED)


def _lower(
    model: Model,
    output: Output,
    strategy: str,
    opset: Opset = None,
    dim: Dims = None,
    input_shape: InputShapes = None,
    node: Nodes = None,
    unroll_factor: UnrollFactor = 1,
    semantics: Semantics = "ort",
    verify: Verify = True,
    trials: Trials = None,
    seed: Seed = 0,
    atol: Atol = None,
    rtol: Rtol = None,
    inputs: Inputs = None,
    external_data: ExternalData = "auto",
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    from rnnlower import report
    from rnnlower.model_io import read_model
    from rnnlower.pipeline import LoweringOptions, lower_model

    options = LoweringOptions(
        strategy,
        opset=opset,
        dims=_parse_dims(dim),
        input_shapes=_parse_shapes(input_shape),
        nodes=node,
        unroll_factor=unroll_factor,
        semantics=semantics,  # type: ignore[arg-type]  # LoweringOptions checks it
    )
    _check_external_data(external_data)
    with report.progress("lowering", quiet):
        lowered = read_model(model)
        source_size = model.stat().st_size
        lowering = lower_model(lowered, options)
    for note in lowering.notes:
        _say(f"rnnlower: note: {note}", quiet)
    settings = {
        "trials": trials,
        "seed": seed,
        "atol": atol,
        "rtol": rtol,
        "inputs": inputs,
        "semantics": semantics,
    }
    verification = _write(lowered, output, model, settings if verify else None, external_data, quiet)
    result = lowering.to_dict() | {
        "verification": None if verification is None else verification.to_dict(),
        "output": str(output) if verification is None or verification else None,
    }
    if json_:
        typer.echo(json.dumps(result))
    elif not quiet:
        report.print_lowering(lowering, verification, verbose=verbose)
    _finish(verification, output, source_size, quiet or json_)


def _write(
    model: ir.Model,
    output: pathlib.Path,
    source: pathlib.Path,
    settings: dict[str, Any] | None,
    external_data: str,
    quiet: bool,
) -> VerificationResult | None:
    """Writes the model, unless the verification with these settings finds it different from the source."""
    from rnnlower import report
    from rnnlower.model_io import staged

    with staged(model, output, external_data) as stage:
        if settings is None:
            stage.accept()
            return None
        with report.progress("verifying", quiet):
            verification = _verify(source, stage.path, settings)
        if verification:
            stage.accept()
        return verification


def _verify(reference: pathlib.Path, candidate: pathlib.Path, settings: dict[str, Any]) -> VerificationResult:
    from rnnlower.verification import verify

    return verify(reference, candidate, **settings)


def _finish(
    verification: VerificationResult | None, output: pathlib.Path, source_size: int, quiet: bool
) -> None:
    if verification is not None and not verification:
        typer.echo(f"rnnlower: error: the result differs from the source; {output} was not written", err=True)
        raise typer.Exit(DIFFERENT)
    _say(f"rnnlower: wrote {output} ({output.stat().st_size:,} bytes; the source has {source_size:,})", quiet)


def _lowering_command(strategy: str) -> Callable[..., None]:
    """The command of one strategy: `_lower` without the parameters that are not its own."""
    absent = {"strategy", "unroll_factor"} if strategy == "unroll" else {"strategy"}
    signature = inspect.signature(_lower, eval_str=True)

    def command(**options: Any) -> None:
        _lower(strategy=strategy, **options)

    own = [parameter for name, parameter in signature.parameters.items() if name not in absent]
    command.__signature__ = signature.replace(parameters=own)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in own}
    return command


for _strategy, _help in _LOWERINGS.items():
    app.command(_strategy, help=_help)(_exit_codes(_lowering_command(_strategy)))


@app.command()
@_exit_codes
def convert(
    model: Model,
    output: Output,
    opset: Annotated[int, typer.Option(help="Default-domain opset of the result.", show_default=False)],
    verify: Verify = True,
    trials: Trials = None,
    seed: Seed = 0,
    atol: Atol = None,
    rtol: Rtol = None,
    inputs: Inputs = None,
    external_data: ExternalData = "auto",
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Change the model's opset, up or down."""
    from rnnlower import report
    from rnnlower.model_io import read_model
    from rnnlower.opset import convert_opset

    _check_external_data(external_data)
    with report.progress("converting", quiet):
        converted = read_model(model)
        source_size = model.stat().st_size
        conversion = convert_opset(converted, opset)
    for note in conversion.notes:
        _say(f"rnnlower: note: {note}", quiet)
    settings = {"trials": trials, "seed": seed, "atol": atol, "rtol": rtol, "inputs": inputs}
    verification = _write(converted, output, model, settings if verify else None, external_data, quiet)
    if json_:
        result = dataclasses.asdict(conversion) | {
            "opset": opset,
            "verification": None if verification is None else verification.to_dict(),
            "output": str(output) if verification is None or verification else None,
        }
        typer.echo(json.dumps(result))
    elif not quiet:
        report.print_conversion(conversion, verification)
    _finish(verification, output, source_size, quiet or json_)


@app.command()
@_exit_codes
def verify(
    reference: Annotated[
        pathlib.Path, typer.Argument(metavar="REFERENCE", help="The model that is right.", show_default=False)
    ],
    candidate: Annotated[
        pathlib.Path, typer.Argument(metavar="CANDIDATE", help="The model in question.", show_default=False)
    ],
    trials: Trials = None,
    seed: Seed = 0,
    atol: Atol = None,
    rtol: Rtol = None,
    inputs: Inputs = None,
    semantics: Semantics = "ort",
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="onnxruntime|rnnlower-reference",
            help="Run both models on this engine.",
            show_default=False,
        ),
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Do the two models compute the same? Exit code 0: yes, 1: no, 4: nothing could run them."""
    from rnnlower import report

    settings = {"trials": trials, "seed": seed, "atol": atol, "rtol": rtol, "inputs": inputs}
    with report.progress("verifying", quiet):
        result = _verify(reference, candidate, settings | {"semantics": semantics, "engine": engine})
    if json_:
        typer.echo(json.dumps(result.to_dict()))
    elif not quiet:
        report.print_verification(result)
    if not result:
        raise typer.Exit(DIFFERENT)


@app.command("inspect")
@_exit_codes
def inspect_command(model: Model, json_: Json = False) -> None:
    """List the recurrent nodes."""
    from rnnlower import report
    from rnnlower.inspection import inspect_model
    from rnnlower.model_io import read_model

    loaded = read_model(model)
    nodes = inspect_model(loaded)
    if json_:
        opset = {domain or "ai.onnx": version for domain, version in loaded.opset_imports.items()}
        recurrent = [node.to_dict() for node in nodes]
        typer.echo(json.dumps({"ir_version": loaded.ir_version, "opset": opset, "recurrent": recurrent}))
    else:
        report.print_inspection(loaded, nodes)


def _parse_dims(options: list[str] | None) -> dict[str, int]:
    dims = {}
    for option in options or ():
        name, separator, size = option.rpartition("=")
        if not separator or not name or not size.isdecimal():
            raise OptionError(f"--dim {option!r} is not NAME=N, as in --dim T=16")
        dims[name] = int(size)
    return dims


def _parse_shapes(options: list[str] | None) -> dict[str, list[int]]:
    shapes = {}
    for option in options or ():
        name, separator, sizes = option.rpartition(":")
        parts = sizes.split(",") if sizes else []
        if not separator or not name or not all(part.strip().isdecimal() for part in parts):
            raise OptionError(f"--input-shape {option!r} is not NAME:2,3,4, as in --input-shape X:16,1,80")
        shapes[name] = [int(part) for part in parts]
    return shapes


def _check_external_data(mode: str) -> None:
    from rnnlower.model_io import EXTERNAL_DATA_MODES

    if mode not in EXTERNAL_DATA_MODES:
        raise OptionError(f"--external-data is {mode!r}; it must be one of {', '.join(EXTERNAL_DATA_MODES)}")


def _say(text: str, quiet: bool) -> None:
    if not quiet:
        typer.echo(text, err=True)
