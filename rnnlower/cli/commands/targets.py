"""The command `rnnlower targets`."""

from __future__ import annotations

import dataclasses
import json
from typing import Annotated

import typer

from rnnlower.cli.options import OUTPUT, Json
from rnnlower.cli.running import emit, emit_json, exit_codes

__all__ = ["targets"]


@exit_codes
def targets(
    schema: Annotated[
        bool,
        typer.Option(
            "--schema",
            help="Print a JSON Schema of target files instead, for editors.",
            rich_help_panel=OUTPUT,
        ),
    ] = False,
    json_: Json = False,
) -> None:
    """List the targets."""
    from rnnlower.cli import tables
    from rnnlower.targets import find_target, target_names
    from rnnlower.targets.schema import schema as of_files

    if schema:
        emit(json.dumps(of_files(), indent=2))
        return
    known = [find_target(name) for name in target_names()]
    if json_:
        # The path is that of a user's file.
        fields = [dataclasses.asdict(target) for target in known]
        emit_json({"targets": [{k: v for k, v in each.items() if k != "path"} for each in fields]})
    else:
        tables.print_targets(known)
