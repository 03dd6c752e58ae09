"""`rnnlower verify`."""

from __future__ import annotations

import pathlib
from typing import TYPE_CHECKING, Annotated

import typer

from rnnlower.cli.options import (
    AssumeLinear,
    Atol,
    Dequantize,
    Inputs,
    Json,
    On,
    Quiet,
    Report,
    Rtol,
    Seed,
    Semantics,
    States,
    Trials,
    Verbose,
)
from rnnlower.cli.running import (
    emit_result,
    exit_codes,
    installed_runtime,
    other_comparison,
    report_page,
    tell_difference,
    verify_files,
)
from rnnlower.cli.values import verification_settings
from rnnlower.errors import VerificationError

if TYPE_CHECKING:
    from rnnlower.verification import VerificationResult

__all__ = ["verify"]


@exit_codes
def verify(
    reference: Annotated[
        pathlib.Path, typer.Argument(metavar="REFERENCE", help="The model that is right.", show_default=False)
    ],
    candidate: Annotated[
        pathlib.Path, typer.Argument(metavar="CANDIDATE", help="The model in question.", show_default=False)
    ],
    trials: Trials = None,
    seed: Seed = None,
    atol: Atol = None,
    rtol: Rtol = None,
    inputs: Inputs = None,
    state: States = None,
    semantics: Semantics = "ort",
    dequantize: Dequantize = False,
    assume_linear_before_reset: AssumeLinear = False,
    engine: Annotated[
        str | None,
        typer.Option(
            metavar="onnxruntime|rnnlower-reference",
            help="Run both models on this engine.",
            show_default=False,
        ),
    ] = None,
    on: On = None,
    report: Report = None,
    json_: Json = False,
    quiet: Quiet = False,
    verbose: Verbose = False,
) -> None:
    """Do the two models compute the same? Exit code 0: yes, 1: no, 4: nothing could run them."""
    from rnnlower.cli import tables
    from rnnlower.cli.progress import Phases, progress
    from rnnlower.reporting import check_report, model_facts

    check_report(report, reference, candidate)
    settings = verification_settings(True, trials, seed, atol, rtol, inputs, state, on)
    if "on" in settings:
        installed_runtime(settings["on"])
    settings |= {"semantics": semantics, "engine": engine}
    settings |= {"dequantize": dequantize, "assume_linear_before_reset": assume_linear_before_reset}
    phases = Phases(verbose)
    with progress("verifying", quiet, phases) as tell:
        result = verify_files(reference, candidate, settings, tell)
    error = None if result else _difference(result, candidate)
    phases.print()
    if report is not None:
        sections = [model_facts(reference, "Reference").section, model_facts(candidate, "Candidate").section]
        done = f"rnnlower verify {reference.name} {candidate.name}"
        report_page(report, done, result, sections, phases, quiet or json_)
    if json_:
        emit_result(result.to_dict() | {"seconds": phases.rounded()}, error)
    elif not quiet:
        tables.print_verification(result, verbose=verbose)
    if error is not None:
        tell_difference(error, "-v shows the worst element of each output, and both of its values")


def _difference(result: VerificationResult, candidate: pathlib.Path) -> VerificationError:
    differ = sum(not output.equal for output in result.outputs)
    problem = next(iter(result.problems), f"{differ} of {len(result.outputs)} outputs differ")
    return VerificationError(f"{candidate}: {problem}", remedy=other_comparison(result))
