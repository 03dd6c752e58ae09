"""The command `rnnlower bench`."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING

import typer

from rnnlower.cli.defining import Showing, command
from rnnlower.cli.running import (
    emit_result,
    exit_code,
    installed_runtime,
    say,
    say_notes,
    to_stderr,
    write_report,
)
from rnnlower.errors import RnnLowerError, UnsupportedModelError, UnverifiableError, VerificationError
from rnnlower.passes.measuring_options import BenchOptions
from rnnlower.wording import counted

if TYPE_CHECKING:
    from rnnlower.benchmarking.bench_result import BenchResult


@command("verbose")
def bench(
    *, model: pathlib.Path, options: BenchOptions, plot: pathlib.Path | None = None, showing: Showing
) -> None:
    """Time the model as it is and lowered, on onnxruntime or another runtime on this machine."""
    from rnnlower.benchmarking.benchmark import measure
    from rnnlower.benchmarking.chart import check_chart, draw_chart
    from rnnlower.cli import tables
    from rnnlower.cli.progress import progress
    from rnnlower.reporting.page import check_report

    if options.on is not None:
        installed_runtime(options.on)
    if plot is not None:
        check_chart(plot)
    check_report(showing.report, model)
    with progress("reading", showing.quiet) as tell:
        result = measure(model, dataclasses.replace(options, progress=tell))
    say_notes(result.notes, showing.quiet)
    problem = _problem(result)
    if showing.json_:
        emit_result(result.to_dict(), problem)
    elif not showing.quiet:
        tables.print_bench(result)
    if plot is not None and result.timed:
        draw_chart(result, plot, model.name)
        say(f"rnnlower: wrote {plot}", showing.quiet)
    if showing.report is not None:
        from rnnlower.reporting.content import bench_sections, model_facts

        verdict = f"{counted(len(result.timed), 'form')} timed" if problem is None else problem.problem
        sections = [model_facts(model).section, *bench_sections(result)]
        good = False if problem else None
        write_report(showing.report, f"rnnlower bench {model.name}", (verdict, good), sections, showing.quiet)
    if problem is not None:
        to_stderr(f"rnnlower: error: {problem}")
        raise typer.Exit(exit_code(problem))


def _problem(result: BenchResult) -> RnnLowerError | None:
    """Return the error for the exit code: the worst of all problems."""
    lowered = [variant for variant in result.variants if variant.strategy != "native"]
    if result.wrong:
        forms = ", ".join(variant.name for variant in result.wrong)
        return VerificationError(f"{forms}: not what the model computes")
    if lowered and all(variant.status == "not made" for variant in lowered):
        return UnsupportedModelError("the model cannot be lowered in any of these forms")
    if not result.timed:
        title = "onnxruntime" if result.runtime is None else result.runtime.label
        return UnverifiableError(f"{title} runs the model in none of these forms")
    return None
