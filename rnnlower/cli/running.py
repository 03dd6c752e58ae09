"""What every command does around its work: errors to exit codes, verified writing, words on stderr."""

from __future__ import annotations

import functools
import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from rnnlower.errors import OptionError, RnnLowerError, UnverifiableError, VerificationError

if TYPE_CHECKING:
    import onnx_ir as ir

    from rnnlower.cli.progress import Tell
    from rnnlower.verification import VerificationResult

__all__ = ["DIFFERENT", "REFUSED", "UNVERIFIED", "exit_codes", "finish", "say", "verify_files", "write"]

DIFFERENT, USAGE, REFUSED, UNVERIFIED = 1, 2, 3, 4


def exit_codes(command: Callable[..., None]) -> Callable[..., None]:
    """Turns the errors a user can cause into one message on stderr and an exit code."""

    @functools.wraps(command)
    def guarded(*arguments: Any, **options: Any) -> None:
        try:
            command(*arguments, **options)
        except RnnLowerError as error:
            _fail(str(error), exit_code(error), error)
        except (MemoryError, RecursionError) as error:
            problem = "not enough memory" if isinstance(error, MemoryError) else "nested too deeply"
            _fail(f"{problem} for this model", REFUSED, error)
        except OSError as error:
            # What is printed may still be buffered, and would fail again at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            name = f" {error.filename}" if isinstance(error.filename, str) else ""
            _fail(f"cannot read or write{name}: {error.strerror or error}", USAGE, error)

    return guarded


def _fail(message: str, code: int, error: BaseException) -> NoReturn:
    typer.echo(f"rnnlower: error: {message}", err=True)
    raise typer.Exit(code) from error


def exit_code(error: RnnLowerError) -> int:
    kinds = ((OptionError, USAGE), (UnverifiableError, UNVERIFIED), (VerificationError, DIFFERENT))
    return next((code for kind, code in kinds if isinstance(error, kind)), REFUSED)


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
