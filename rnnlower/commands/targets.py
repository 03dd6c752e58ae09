"""`rnnlower targets`."""

from __future__ import annotations

import dataclasses
import json

import typer

from rnnlower.commands.options import Json
from rnnlower.commands.running import exit_codes

__all__ = ["targets"]


@exit_codes
def targets(json_: Json = False) -> None:
    """List the targets."""
    from rnnlower import report
    from rnnlower.targets import find_target, target_names

    known = [find_target(name) for name in target_names()]
    if json_:
        typer.echo(json.dumps({"targets": [dataclasses.asdict(target) for target in known]}))
    else:
        report.print_targets(known)
