"""`rnnlower convert`."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from rnnlower.cli.options import (
    Atol,
    ExternalData,
    Inputs,
    Json,
    Model,
    Output,
    Quiet,
    Rtol,
    Seed,
    States,
    Trials,
    Verbose,
    Verify,
    check_external_data,
    verification_settings,
)
from rnnlower.cli.running import (
    exit_codes,
    finish,
    say,
    size_on_disk,
    write,
)

__all__ = ["convert"]


@exit_codes
def convert(
    model: Model,
    output: Output,
    opset: Annotated[
        int, typer.Option(metavar="N", help="Default-domain opset of the result.", show_default=False)
    ],
    verify: Verify = True,
    trials: Trials = None,
    seed: Seed = None,
    atol: Atol = None,
    rtol: Rtol = None,
    inputs: Inputs = None,
    state: States = None,
    external_data: ExternalData = "auto",
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Change the model's opset, up or down."""
    from rnnlower.cli import tables
    from rnnlower.cli.progress import Phases, progress
    from rnnlower.errors import OptionError
    from rnnlower.files.model_io import read_model
    from rnnlower.opset import OPSETS, convert_opset

    check_external_data(external_data)
    settings = verification_settings(verify, trials, seed, atol, rtol, inputs, state)
    if opset not in OPSETS:
        raise OptionError(
            f"the opset is {opset}; the installed onnx knows {OPSETS.start} to {OPSETS.stop - 1}"
        )
    phases = Phases(verbose)
    with progress("reading", quiet, phases) as tell:
        converted = read_model(model)
        source_size = size_on_disk(model, converted)
        tell("converting")
        conversion = convert_opset(converted, opset)
    for note in conversion.notes:
        say(f"rnnlower: note: {note}", quiet)
    verification, written = write(
        converted, output, model, settings if verify else None, external_data, quiet, phases
    )
    result = dataclasses.asdict(conversion) | {
        "opset": opset,
        "verification": None if verification is None else verification.to_dict(),
        "output": str(output) if verification is None or verification else None,
    }
    if not json_ and not quiet:
        tables.print_conversion(conversion, verification, verbose=verbose)
    finish(result, verification, output, (source_size, written), json_, quiet, phases)
