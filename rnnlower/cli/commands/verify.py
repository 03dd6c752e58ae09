"""The command `rnnlower verify`."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rnnlower.cli.groups import Comparing, Showing, flattened
from rnnlower.cli.options import VERIFICATION, AssumeLinear, Dequantize, Semantics
from rnnlower.cli.running import (
    emit_result,
    exit_codes,
    installed_runtime,
    other_comparison,
    report_page,
    tell_difference,
    verify_files,
)
from rnnlower.cli.values import parse_sets
from rnnlower.errors import VerificationError

if TYPE_CHECKING:
    from rnnlower.verification import VerificationResult


@exit_codes
@flattened("verify")
def verify(
    *,
    reference: Annotated[
        pathlib.Path,
        typer.Argument(metavar="REFERENCE", help="The correct model; -: standard input.", show_default=False),
    ],
    candidate: Annotated[
        pathlib.Path,
        typer.Argument(
            metavar="CANDIDATE", help="The model to check; -: standard input.", show_default=False
        ),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Feed a value to an input of the reference, which the candidate may lack: a number, true, "
            "false, a list as [1,2], or @FILE.npz:KEY; repeatable.",
            show_default=False,
            rich_help_panel=VERIFICATION,
        ),
    ] = None,
    semantics: Semantics = "ort",
    dequantize: Dequantize = False,
    assume_linear_before_reset: AssumeLinear = False,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Run both models on this engine: onnxruntime or rnnlower-reference.",
            show_default=False,
            rich_help_panel=VERIFICATION,
        ),
    ] = None,
    comparing: Comparing,
    showing: Showing,
) -> None:
    """Run two models on the same inputs and compare their outputs."""
    from rnnlower.cli import tables
    from rnnlower.cli.progress import Phases, progress
    from rnnlower.reporting import check_report, model_facts

    check_report(showing.report, reference, candidate)
    settings = comparing.settings()
    if "on" in settings:
        installed_runtime(settings["on"])
    settings |= {"semantics": semantics, "engine": engine, "sets": parse_sets(set_)}
    settings |= {"dequantize": dequantize, "assume_linear_before_reset": assume_linear_before_reset}
    phases = Phases(showing.verbose)
    with progress("verifying", showing.quiet, phases) as tell:
        result = verify_files(reference, candidate, settings, tell)
    error = None if result else _difference(result, candidate, settings)
    phases.print()
    if showing.report is not None:
        sections = [model_facts(reference, "Reference").section, model_facts(candidate, "Candidate").section]
        done = f"rnnlower verify {reference.name} {candidate.name}"
        quiet = showing.quiet or showing.json_
        report_page(showing.report, done, result, sections, phases, quiet)
    if showing.json_:
        emit_result(result.to_dict() | {"seconds": phases.rounded()}, error)
    elif not showing.quiet:
        tables.print_verification(result, verbose=showing.verbose)
    if error is not None:
        compared = (*result.outputs, *(() if result.on is None else result.on.outputs))
        more = not showing.verbose and any(not output.equal for output in compared)
        tell_difference(
            error, "-v shows the worst element of each output, and both of its values" if more else ""
        )


def _difference(
    result: VerificationResult, candidate: pathlib.Path, settings: dict[str, Any]
) -> VerificationError:
    outputs, problems, where = result.outputs, result.problems, ""
    if result.on is not None and all(output.equal for output in outputs) and not problems:
        outputs, problems = result.on.outputs, (result.on.problem,) if result.on.problem else ()
        where = f" on {result.on.label}"
    differ = sum(not output.equal for output in outputs)
    problem = next(iter(problems), f"{differ} of {len(outputs)} outputs differ") + where
    return VerificationError(f"{candidate}: {problem}", remedy=other_comparison(result, settings))
