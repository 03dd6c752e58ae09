"""The commands on runtimes: `rnnlower targets`, `rnnlower engines`, `rnnlower probe`."""

from __future__ import annotations

import json
import pathlib

import typer

from rnnlower.cli.defining import command
from rnnlower.cli.progress import progress
from rnnlower.cli.running import DIFFERENT, emit, emit_json, emit_result, say, to_stderr
from rnnlower.errors import OptionError, VerificationError

_NO_TOML = "{} does not end in .toml, by which --target recognizes a file"


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
        raise OptionError(_NO_TOML.format(path))
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(start())
    except FileExistsError:
        raise OptionError(f"{path} exists; --new does not overwrite it") from None
    to_stderr(f"rnnlower: wrote {path}")


@command()
def probe(
    *,
    engine: str,
    output: pathlib.Path | None = None,
    check: str = "",
    json_: bool = False,
    quiet: bool = False,
) -> None:
    """Try a runtime feature by feature and write what it computes correctly as a target."""
    from rnnlower.probing import probe as try_runtime
    from rnnlower.probing.writing import changes
    from rnnlower.targets import find_target

    if output is None and not check:
        raise OptionError("no target file: -o TARGET.toml writes one, --check TARGET.toml compares with one")
    if output is not None and output.suffix != ".toml":
        raise OptionError(_NO_TOML.format(output))
    old = find_target(check) if check else None
    with progress("probing", quiet, estimated=True) as tell:
        found = try_runtime(engine, output=output, progress=tell)
    if output is not None:
        say(f"rnnlower: wrote {output}", quiet)
    differences = [] if old is None else changes(old, found)
    version = None if found.tried is None else found.tried.version
    if json_:
        written = None if output is None else str(output)
        result = {"engine": engine, "version": version, "output": written, "changes": differences}
        error = VerificationError(f"{check}: {'; '.join(differences)}") if differences else None
        emit_result(result, error)
    else:
        for line in differences:
            emit(line)
    if differences:
        raise typer.Exit(DIFFERENT)
