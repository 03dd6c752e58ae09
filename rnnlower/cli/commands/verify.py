"""The command `rnnlower verify`."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Any

from rnnlower.cli.defining import Comparing, Showing, command
from rnnlower.cli.running import (
    emit_result,
    installed_runtime,
    other_comparison,
    report_page,
    tell_difference,
    verify_files,
)
from rnnlower.errors import VerificationError

if TYPE_CHECKING:
    from rnnlower.verification import VerificationResult


@command("verify")
def verify(
    *,
    reference: pathlib.Path,
    candidate: pathlib.Path,
    sets: dict[str, Any] | None = None,
    semantics: str = "ort",
    dequantize: bool = False,
    assume_linear_before_reset: bool = False,
    engine: str | None = None,
    comparing: Comparing,
    showing: Showing,
) -> None:
    """Run two models on the same inputs and compare their outputs."""
    from rnnlower.cli import tables
    from rnnlower.cli.progress import Phases, progress
    from rnnlower.reporting.content import model_facts
    from rnnlower.reporting.page import check_report

    check_report(showing.report, reference, candidate)
    settings = comparing.settings()
    if "on" in settings:
        installed_runtime(settings["on"])
    settings |= {"semantics": semantics, "engine": engine, "sets": sets or {}}
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
