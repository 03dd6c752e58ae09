"""The command `rnnlower engines`."""

from __future__ import annotations

from rnnlower.cli.defining import command
from rnnlower.cli.running import emit_json


@command()
def engines(*, json_: bool = False) -> None:
    """List the engines that can run models here, and how to install the others."""
    from rnnlower.cli import tables
    from rnnlower.engines.known import engines as known

    found = known()
    if json_:
        emit_json({"engines": [engine.to_dict() for engine in found]})
    else:
        tables.print_engines(found)
