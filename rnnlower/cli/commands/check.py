"""`rnnlower check`."""

from __future__ import annotations

import dataclasses
import json

import typer

from rnnlower.cli.options import Json, Model, Quiet, Semantics, TargetName
from rnnlower.cli.running import DIFFERENT, exit_codes, say

__all__ = ["check"]


@exit_codes
def check(
    model: Model,
    target: TargetName,
    semantics: Semantics = "ort",
    json_: Json = False,
    quiet: Quiet = False,
) -> None:
    """Does every node fit the runtime? Exit code 0: yes, 1: no."""
    from rnnlower.cli import tables
    from rnnlower.files.model_io import read_model
    from rnnlower.targets import find_target
    from rnnlower.targets.fit import find_misfits, profile_notes

    runtime = find_target(target)
    checked = read_model(model)
    misfits = find_misfits(checked, runtime, semantics)  # type: ignore[arg-type]
    notes = profile_notes(checked, runtime)
    for note in notes:
        say(f"rnnlower: note: {note}", quiet)
    if json_:
        guesses = [{"claim": name, "source": claim.source} for name, claim in runtime.claims() if claim.guess]
        result = {
            "target": runtime.name,
            "fits": not misfits,
            "misfits": [dataclasses.asdict(misfit) for misfit in misfits],
            "notes": notes,
            "guesses": guesses,
        }
        typer.echo(json.dumps(result))
    elif not quiet:
        tables.print_check(runtime, misfits)
    if misfits:
        raise typer.Exit(DIFFERENT)
