"""`rnnlower targets`."""

from __future__ import annotations

import dataclasses
import json

import typer

from rnnlower.cli.options import Json
from rnnlower.cli.running import exit_codes

__all__ = ["targets"]


@exit_codes
def targets(json_: Json = False) -> None:
    """List the targets."""
    from rnnlower.cli import tables
    from rnnlower.targets import find_target, target_names

    known = [find_target(name) for name in target_names()]
    if json_:
        typer.echo(json.dumps({"targets": [dataclasses.asdict(target) for target in known]}))
    else:
        tables.print_targets(known)
