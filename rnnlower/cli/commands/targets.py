"""`rnnlower targets`."""

from __future__ import annotations

import dataclasses
import json

from rnnlower.cli.options import Json
from rnnlower.cli.running import emit, exit_codes

__all__ = ["targets"]


@exit_codes
def targets(json_: Json = False) -> None:
    """List the targets."""
    from rnnlower.cli import tables
    from rnnlower.targets import find_target, target_names

    known = [find_target(name) for name in target_names()]
    if json_:
        emit(json.dumps({"targets": [dataclasses.asdict(target) for target in known]}))
    else:
        tables.print_targets(known)
