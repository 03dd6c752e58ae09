"""`rnnlower verify`."""

from __future__ import annotations

import json
import pathlib
from typing import Annotated

import typer

from rnnlower.cli.options import (
    Atol,
    Inputs,
    Json,
    Quiet,
    Rtol,
    Seed,
    Semantics,
    States,
    Trials,
    verification_settings,
)
from rnnlower.cli.running import (
    DIFFERENT,
    exit_codes,
    verify_files,
)

__all__ = ["verify"]


@exit_codes
def verify(
    reference: Annotated[
        pathlib.Path, typer.Argument(metavar="REFERENCE", help="The model that is right.", show_default=False)
    ],
    candidate: Annotated[
        pathlib.Path, typer.Argument(metavar="CANDIDATE", help="The model in question.", show_default=False)
    ],
    trials: Trials = None,
    seed: Seed = None,
    atol: Atol = None,
    rtol: Rtol = None,
    inputs: Inputs = None,
    state: States = None,
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
    from rnnlower.cli import tables
    from rnnlower.cli.progress import progress

    settings = verification_settings(True, trials, seed, atol, rtol, inputs, state)
    settings |= {"semantics": semantics, "engine": engine}
    with progress("verifying", quiet) as tell:
        result = verify_files(reference, candidate, settings, tell)
    if json_:
        typer.echo(json.dumps(result.to_dict()))
    elif not quiet:
        tables.print_verification(result)
    if not result:
        raise typer.Exit(DIFFERENT)
