"""The common parts of the commands: exit codes, the verification, messages on stderr."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import pathlib
import shlex
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from rnnlower.cli.values import check_output, connect_models, replace_streams, restore_stream_names
from rnnlower.errors import (
    OptionError,
    RnnLowerError,
    UnsupportedModelError,
    UnverifiableError,
    VerificationError,
)
from rnnlower.passes.options import Progress as Tell
from rnnlower.wording import command_line_words

if TYPE_CHECKING:
    from rnnlower.cli.progress import Phases
    from rnnlower.engines.catalog import Engine
    from rnnlower.recurrent.suspicions import Suspicion
    from rnnlower.reporting.page import Section
    from rnnlower.verification import VerificationResult

DIFFERENT, USAGE, REFUSED, UNVERIFIED = 1, 2, 3, 4


def exit_codes(command: Callable[..., None]) -> Callable[..., None]:
    """Turn errors into a message on stderr, with --json also an object on stdout, and an exit code."""

    @functools.wraps(command)
    def guarded(*arguments: Any, **options: Any) -> None:
        json_ = bool(options.get("json_"))
        try:
            check_output(options)
            with command_line_words(), connect_models(options) as one, replace_streams(one) as given:
                command(*arguments, **given)
        except RnnLowerError as error:
            _fail(error, exit_code(error), json_, error)
        except OSError as error:
            name = f" {error.filename}" if isinstance(error.filename, str) else ""
            if not name:
                # Perhaps stdout itself: what is buffered would fail again at the end.
                discard_stdout()
            problem = f"cannot read or write{name}: {error.strerror or error}"
            _fail(OptionError(problem), USAGE, json_, error)
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except Exception as error:
            if problem := _missing_resource(error):
                _fail(UnsupportedModelError(f"{problem} for this model"), REFUSED, json_, error)
            # A traceback would end with exit code 1, which means that two models differ.
            traceback.print_exc()
            problem = f"unexpected {type(error).__name__}: {error}"
            remedy = "this is a fault of rnnlower: please report it with the lines above"
            _fail(UnsupportedModelError(problem, remedy=remedy), REFUSED, json_, error)

    return guarded


def _missing_resource(error: Exception) -> str:
    """Return the resource that ran out, as a phrase; empty if the error has another cause."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    # CPython has no type of its own for a thread that the system has no memory for.
    thread = isinstance(error, RuntimeError) and "can't start new thread" in str(error)
    return "not enough memory" if thread or isinstance(error, MemoryError) else ""


def _fail(error: RnnLowerError, code: int, json_: bool, cause: BaseException) -> NoReturn:
    to_stderr(f"rnnlower: error: {error}")
    if json_:
        on = {"on": error.on} if isinstance(error, UnverifiableError) and error.on else {}
        emit_json({"error": error_entry(error)} | on)
    raise typer.Exit(code) from cause


def error_entry(error: RnnLowerError) -> dict[str, str | None]:
    """Return an error as a JSON object."""
    node, remedy = error.node or None, error.remedy or None
    return {"kind": error.kind, "message": str(error), "node": node, "remedy": remedy}


def exit_code(error: RnnLowerError) -> int:
    """Return the exit code of an error."""
    kinds = ((OptionError, USAGE), (UnverifiableError, UNVERIFIED), (VerificationError, DIFFERENT))
    return next((code for kind, code in kinds if isinstance(error, kind)), REFUSED)


def emit_json(result: Mapping[str, Any]) -> None:
    """Print an object on stdout; infinity and NaN, which JSON lacks, become null."""
    from rnnlower.files.metadata import to_json_types

    emit(json.dumps(to_json_types(result), allow_nan=False))


def emit(text: str) -> None:
    """Print on stdout; a reader that stopped does not want the rest, and the exit code stands."""
    try:
        typer.echo(restore_stream_names(text))
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


def to_stderr(text: str) -> None:
    """Print on stderr, wrapped between words on a terminal.

    A reader that stopped must not prevent the result from being written.
    """
    text = restore_stream_names(text)
    try:
        if sys.stderr.isatty():
            from rich.console import Console

            width = max(Console(stderr=True).width, 1)
            text = "\n".join(_wrapped(line, width) for line in text.split("\n"))
        typer.echo(text, err=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)


def _wrapped(line: str, width: int) -> str:
    """Return a line as lines of this width. A longer word, such as a path, stays whole, to be copied."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    return textwrap.fill(
        line, width, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


def discard_stdout() -> None:
    """Discard buffered and future output on stdout, or where it is redirected."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2 if sys.stdout is sys.stderr else 1)


def verify_files(
    reference: pathlib.Path, candidate: pathlib.Path, settings: dict[str, Any], tell: Tell
) -> VerificationResult:
    """Verify one file against another and show the progress."""
    from rnnlower.verification import verify

    tell("verifying", 0, 0)
    return verify(
        reference,
        candidate,
        progress=lambda role, done, total: tell(f"verifying: {role}, trial", done + 1, total),
        **settings,
    )


def write_report(
    report: pathlib.Path,
    done: str,
    conclusion: tuple[str, bool | None],
    sections: Sequence[Section],
    quiet: bool,
    seconds: Mapping[str, float] | None = None,
) -> None:
    """Write the report of a command; its conclusion is good, bad or neither."""
    from rnnlower.reporting.page import Page, write_page

    command = shlex.join(["rnnlower", *sys.argv[1:]])
    named = [dataclasses.replace(each, html=restore_stream_names(each.html)) for each in sections]
    write_page(Page(done, *conclusion, named, command, seconds or {}), report)
    say(f"rnnlower: wrote {report}", quiet)


def report_page(
    report: pathlib.Path,
    done: str,
    verification: VerificationResult | None,
    sections: Iterable[Section],
    phases: Phases,
    quiet: bool,
) -> None:
    """Write the report of a command that compares; ``done`` is the page's title."""
    from rnnlower.reporting.content import verification_sections

    good = None if verification is None else bool(verification)
    verdicts = {None: "Not verified", True: "Verified: the outputs agree", False: "The outputs DIFFER"}
    every = [*sections, *verification_sections(verification)]
    write_report(report, done, (verdicts[good], good), every, quiet, phases.rounded())


def advise_comparison(verification: VerificationResult, settings: Mapping[str, Any]) -> str:
    """Suggest the options of the comparison that were not given, for numbers that differ.

    Empty if nothing was compared: a model lacks an output or does not run.
    """
    if verification.problems or not verification.trials:
        return ""
    advice = {
        ("inputs",): "--inputs FILE.npz compares on inputs of your own",
        ("atol", "rtol"): "--atol and --rtol allow larger differences",
    }
    return ", ".join(words for names, words in advice.items() if not settings.keys() & {*names})


def exit_with_difference(error: RnnLowerError, what_else: str) -> NoReturn:
    """Report that models differ, with the remedies, and exit."""
    to_stderr(f"rnnlower: error: {error.problem}")
    for line in filter(None, (error.remedy, what_else)):
        to_stderr(f"  {line}")
    raise typer.Exit(DIFFERENT)


def emit_result(result: dict[str, Any], error: RnnLowerError | None = None) -> None:
    """Print a result as JSON, with the error if the exit code is not 0."""
    emit_json(result if error is None else result | {"error": error_entry(error)})


def installed_runtime(name: str) -> Engine:
    """Return the runtime of this name.

    Raises:
        OptionError: There is none.
        UnverifiableError: It is not installed.
    """
    from rnnlower.engines.catalog import find_engine
    from rnnlower.verification import RuntimeTrial

    engine = find_engine(name)
    if not engine.installed:
        problem = f"{engine.title} is not installed ({engine.missing})"
        on = RuntimeTrial.of(engine, problem=problem).to_dict()
        raise UnverifiableError(problem, remedy=engine.install, on=on)
    return engine


def warn(suspicions: Iterable[Suspicion]) -> None:
    """Print warnings, even with -q: silence would be taken as consent."""
    for suspicion in suspicions:
        to_stderr(f"rnnlower: warning: {suspicion}")


def say(text: str, quiet: bool) -> None:
    """Print on stderr, unless quiet."""
    if not quiet:
        to_stderr(text)


def say_notes(notes: Iterable[str], quiet: bool) -> None:
    """Print notes on stderr, unless quiet."""
    for note in notes:
        say(f"rnnlower: note: {note}", quiet)
