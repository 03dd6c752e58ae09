"""The command `rnnlower probe`."""

from __future__ import annotations

import pathlib

import typer

from rnnlower.cli.defining import command
from rnnlower.cli.running import DIFFERENT, emit, emit_result, say
from rnnlower.errors import OptionError, VerificationError


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
    from rnnlower.cli.progress import progress
    from rnnlower.probing import probe as try_runtime
    from rnnlower.probing.writing import changes
    from rnnlower.targets import find_target

    if output is None and not check:
        raise OptionError("no target file: -o TARGET.toml writes one, --check TARGET.toml compares with one")
    if output is not None and output.suffix != ".toml":
        raise OptionError(f"{output} does not end in .toml, by which --target recognizes a file")
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
