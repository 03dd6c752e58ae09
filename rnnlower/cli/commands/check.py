"""The command `rnnlower check`."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import typer

from rnnlower.cli.defining import Showing, command
from rnnlower.cli.running import DIFFERENT, emit_result, say_notes
from rnnlower.errors import UnsupportedModelError
from rnnlower.passes.rewriting_options import CheckOptions
from rnnlower.wording import call, counted


@command("report")
def check(*, model: pathlib.Path, options: CheckOptions, showing: Showing) -> None:
    """List the nodes that a runtime does not run, and what to do about them."""
    from rnnlower import api
    from rnnlower.cli import tables
    from rnnlower.targets import find_target

    report = api.check_report(model, options)
    runtime, misfits, after = find_target(options.target), report.misfits, report.after
    lower = f"`{call('lower', target=options.target)}`"
    told = [] if after is None else [f"{lower} {_told(after, runtime.name)}"]
    say_notes([*report.notes, *told], showing.quiet)
    if showing.json_:
        guesses = [{"claim": name, "source": claim.source} for name, claim in runtime.claims() if claim.guess]
        result = {
            "target": runtime.name,
            "fits": not misfits,
            "misfits": [dataclasses.asdict(misfit) for misfit in misfits],
            "notes": report.notes,
            "after_lower": after,
            "guesses": guesses,
        }
        problem = f"target {runtime.name} does not run all of {model}"
        error = UnsupportedModelError(problem, remedy=f"{lower} shows what can be done about it")
        emit_result(result, error if misfits else None)
    elif not showing.quiet:
        tables.print_check(runtime, report, verbose=showing.verbose)
    if misfits:
        raise typer.Exit(DIFFERENT)


def _told(after: dict[str, Any], target: str) -> str:
    if after["refused"]:
        return f"refuses: {after['refused']}"
    adapts = f", adapts {len(after['adapted'])}" if after["adapted"] else ""
    lowers = f"lowers {counted(len(after['lowered']), 'recurrent node')}{adapts}"
    does = f"{lowers} and keeps {len(after['kept'])}"
    if not (after["lowered"] or after["adapted"] or after["kept"]):
        does = "expresses nodes as other operators"
    if not after["left"]:
        return f"{does}; then everything fits"
    return f"{does}; then target {target} does not run " + "; ".join(after["left"])
