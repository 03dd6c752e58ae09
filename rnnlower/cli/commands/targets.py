"""The command `rnnlower targets`."""

from __future__ import annotations

import json
import pathlib

from rnnlower.cli.defining import command
from rnnlower.cli.running import emit, emit_json, to_stderr
from rnnlower.errors import OptionError


@command()
def targets(*, schema: bool = False, new: pathlib.Path | None = None, json_: bool = False) -> None:
    """List the targets."""
    import msgspec

    from rnnlower.cli import tables
    from rnnlower.targets import find_target, target_names
    from rnnlower.targets.target_schema import schema as of_files

    if new is not None:
        if schema:
            raise OptionError(
                "--new writes a target file, --schema prints what may stand in one: leave out one"
            )
        _write_start(new)
        if json_:
            emit_json({"output": str(new)})
        return
    if schema:
        emit(json.dumps(of_files(), indent=2))
        return
    known = [find_target(name) for name in target_names()]
    if json_:
        # The path is that of a user's file.
        fields = [msgspec.to_builtins(target) for target in known]
        emit_json({"targets": [{k: v for k, v in each.items() if k != "path"} for each in fields]})
    else:
        tables.print_targets(known)


def _write_start(path: pathlib.Path) -> None:
    from rnnlower.targets.target_schema import start

    if path.suffix != ".toml":
        raise OptionError(f"{path} does not end in .toml, by which --target recognizes a file")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(start())
    except FileExistsError:
        raise OptionError(f"{path} exists; --new does not overwrite it") from None
    to_stderr(f"rnnlower: wrote {path}")
