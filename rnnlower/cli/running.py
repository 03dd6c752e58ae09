"""What every command does around its work: errors to exit codes, verified writing, words on stderr."""

from __future__ import annotations

import functools
import json
import os
import pathlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from rnnlower.errors import (
    OptionError,
    RnnLowerError,
    UnsupportedModelError,
    UnverifiableError,
    VerificationError,
)
from rnnlower.wording import command_line_words

if TYPE_CHECKING:
    import onnx_ir as ir

    from rnnlower.cli.progress import Tell
    from rnnlower.verification import VerificationResult

__all__ = [
    "DIFFERENT",
    "REFUSED",
    "UNVERIFIED",
    "discard_stdout",
    "emit",
    "error_entry",
    "exit_codes",
    "finish",
    "say",
    "verify_files",
    "write",
]

DIFFERENT, USAGE, REFUSED, UNVERIFIED = 1, 2, 3, 4


def exit_codes(command: Callable[..., None]) -> Callable[..., None]:
    """Turns the errors a user can cause into one message on stderr, with --json also on stdout, and an exit code."""

    @functools.wraps(command)
    def guarded(*arguments: Any, **options: Any) -> None:
        json_ = bool(options.get("json_"))
        try:
            with command_line_words():
                command(*arguments, **options)
        except RnnLowerError as error:
            _fail(error, exit_code(error), json_, error)
        except (MemoryError, RecursionError) as error:
            problem = "not enough memory" if isinstance(error, MemoryError) else "nested too deeply"
            _fail(UnsupportedModelError(f"{problem} for this model"), REFUSED, json_, error)
        except OSError as error:
            # What is printed may still be buffered, and would fail again at the end.
            discard_stdout()
            name = f" {error.filename}" if isinstance(error.filename, str) else ""
            problem = f"cannot read or write{name}: {error.strerror or error}"
            _fail(OptionError(problem), USAGE, json_, error)

    return guarded


def _fail(error: RnnLowerError, code: int, json_: bool, cause: BaseException) -> NoReturn:
    typer.echo(f"rnnlower: error: {error}", err=True)
    if json_:
        emit(json.dumps({"error": error_entry(error)}))
    raise typer.Exit(code) from cause


def error_entry(error: RnnLowerError) -> dict[str, str | None]:
    """An error as JSON has it."""
    node, remedy = error.node or None, error.remedy or None
    return {"kind": error.kind, "message": str(error), "node": node, "remedy": remedy}


def exit_code(error: RnnLowerError) -> int:
    kinds = ((OptionError, USAGE), (UnverifiableError, UNVERIFIED), (VerificationError, DIFFERENT))
    return next((code for kind, code in kinds if isinstance(error, kind)), REFUSED)


def emit(text: str) -> None:
    """Prints on stdout; whoever stopped reading it does not want the rest, and the exit code stands."""
    try:
        typer.echo(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def discard_stdout() -> None:
    """Lets what is printed from here on, and what is buffered, go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def write(
    model: ir.Model,
    output: pathlib.Path,
    source: pathlib.Path,
    settings: dict[str, Any] | None,
    external_data: str,
    quiet: bool,
) -> VerificationResult | None:
    """Writes the model, unless the verification with these settings finds it different from the source."""
    from rnnlower.cli.progress import progress
    from rnnlower.files.model_io import staged

    with progress("writing", quiet) as tell, staged(model, output, external_data) as stage:
        if settings is None:
            stage.accept()
            return None
        verification = verify_files(source, stage.path, settings, tell)
        if verification:
            stage.accept()
        return verification


def verify_files(
    reference: pathlib.Path, candidate: pathlib.Path, settings: dict[str, Any], tell: Tell
) -> VerificationResult:
    from rnnlower.verification import verify

    tell("verifying")
    return verify(
        reference,
        candidate,
        progress=lambda role, done, total: tell(f"verifying: {role}, trial", done + 1, total),
        **settings,
    )


def finish(
    verification: VerificationResult | None, output: pathlib.Path, source_size: int, quiet: bool
) -> None:
    if verification is not None and not verification:
        typer.echo(f"rnnlower: error: the result differs from the source; {output} was not written", err=True)
        raise typer.Exit(DIFFERENT)
    say(f"rnnlower: wrote {output} ({output.stat().st_size:,} bytes; the source has {source_size:,})", quiet)


def say(text: str, quiet: bool) -> None:
    if not quiet:
        typer.echo(text, err=True)
