"""The commands `rnnlower calibrate` and `rnnlower quantize`."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import TYPE_CHECKING

from rnnlower.cli import common
from rnnlower.cli.defining import Display, check_verifying, command
from rnnlower.cli.progress import Phases, progress
from rnnlower.cli.values import check_external_data
from rnnlower.errors import OptionError, VerificationError
from rnnlower.passes.command_options import CalibrateOptions, QuantizeOptions
from rnnlower.wording import counted

if TYPE_CHECKING:
    from rnnlower.quantizing.quantization import QuantizeReport

_MUCH = 0.01
"""The share of clipped values that is worth a word."""


@command("report", "verbose", "ranges")
def calibrate(
    *,
    model: pathlib.Path,
    output: pathlib.Path,
    options: CalibrateOptions,
    format: str = "npz",  # noqa: A002
    ranges: pathlib.Path | None = None,
    display: Display,
) -> None:
    """Write calibration data: what a model reads in each call, with its states carried."""
    from rnnlower.files.model_io import read_model
    from rnnlower.files.publishing import check_companion
    from rnnlower.quantizing.calibrating import calibrate_model

    if ranges is not None:
        check_companion("--ranges", ranges, (".json",), "the ranges are a .json file")
        if ranges.resolve() == output.resolve():
            raise OptionError(f"--ranges {ranges}: that is the output's file; give another one")
    with progress("reading", display.quiet) as tell:
        calibration = calibrate_model(
            read_model(model), dataclasses.replace(options, ranges=ranges is not None, progress=tell)
        )
    common.say_notes(calibration.notes, display.quiet)
    calibration.save(output, format)  # type: ignore[arg-type]  # it checks the format
    if ranges is not None:
        calibration.save_ranges(ranges)
    calls, sequences = len(calibration.calls), calibration.sequences
    if display.json_:
        inputs = {name: list(array.shape) for name, array in calibration.calls[0].items()}
        roles = None if calibration.ranges is None else len(calibration.ranges)
        common.emit_result(
            {"sequences": sequences, "calls": calls, "inputs": inputs, "roles": roles}
            | {"output": str(output), "ranges": None if ranges is None else str(ranges)}
        )
    common.say(
        f"rnnlower: wrote {output} ({counted(calls, 'call')} of {counted(sequences, 'recording')})",
        not display.in_words,
    )


@command("report", "verify")
def quantize(
    *,
    model: pathlib.Path,
    output: pathlib.Path,
    options: QuantizeOptions,
    verify: bool = True,
    min_sqnr: float = 20.0,
    external_data: str = "auto",
    provenance: bool = True,
    display: Display,
) -> None:
    """Quantize a model with recurrent nodes: integers inside the recurrence, one scale for each role."""
    from rnnlower.files.metadata import record_provenance
    from rnnlower.files.model_io import read_model, size_on_disk, stage_model
    from rnnlower.quantizing.quantization import quantize_model

    check_external_data(external_data)
    options = dataclasses.replace(options, verify=verify, on=None if options.on == "none" else options.on)
    check_verifying(verify, [name for name in ("on", "inputs") if getattr(options, name) is not None])
    if options.on is not None:
        common.installed_runtime(options.on)
    phases = Phases(display.verbose)
    with progress("reading", display.quiet, phases) as tell:
        own = read_model(model)
        before = size_on_disk(model, own)
        report = quantize_model(own, dataclasses.replace(options, progress=tell))
    record_provenance(own.metadata_props, "quantize", options, wanted=provenance)
    phases.print()
    common.say_notes(report.notes, display.quiet)
    common.warn(report.warnings)
    worst = report.sqnr
    error = None
    if worst is not None and not worst >= min_sqnr:
        name = min(report.outputs, key=lambda each: each.least).name
        error = VerificationError(
            f"output {name!r} has {worst:.1f} dB, --min-sqnr is {min_sqnr:g}; {output} was not written",
            remedy=_remedy(report, options),
        )
    with stage_model(own, output, external_data) as stage:
        size = stage.size
        if error is None:
            stage.accepted = True
    if display.json_:
        result = report.to_dict() | {"min_sqnr": min_sqnr, "bytes": {"source": before, "result": size}}
        common.emit_result(result | {"output": None if error else str(output)}, error)
    elif not display.quiet:
        _print(report, display.verbose)
    if error is not None:
        common.exit_with_difference(error, "--min-sqnr 0 writes it all the same, for inspection")
    wrote = f"rnnlower: wrote {output} ({size:,} bytes; the source has {before:,})"
    common.say(wrote, not display.in_words)


def _remedy(report: QuantizeReport, options: QuantizeOptions) -> str:
    """Return a remedy for a low ratio: what is clipped needs other ranges, what is rounded finer ones."""
    from rnnlower.quantizing.quantization import SCHEMES

    worst = max(report.scales, key=lambda entry: entry["clipped"] or 0)
    if (worst["clipped"] or 0) > _MUCH:
        share = f"{worst['clipped']:.0%} of the values are beyond"
        where = f"of {worst['role']!r} of node {worst['node']!r}, {share}"
        if SCHEMES[options.scheme].of(options).fixed(worst["role"]) is not None:
            fixed = f"the fixed range of --scheme {options.scheme}"
            return f"choose another scheme (--scheme qdq): {where} {fixed}"
        return f"give recordings that span those set aside: {where} the range of the calibration"
    finer = {
        "--activations int16": options.scheme != "tflite" and options.activations in ("int8", "int8-only"),
        "a run without --per-tensor": options.per_tensor,
        "--recurrent-only: the rest in float32": not options.recurrent_only,
    }
    ways = [way for way, is_left in finer.items() if is_left]
    kept = "keep the float model, whose weights may need more than 8 bits"
    *first, last = ["give more recordings", *(ways or [kept])]
    return f"{', '.join(first)}, or {last}"


def _print(report: QuantizeReport, verbose: bool) -> None:
    """Print a line for each output, and with -v one for each role."""
    from rnnlower.cli.console import Table, write

    if verbose:
        roles = Table(("node", "direction", "role", "type", "scale", "zero point", "clipped"))
        for entry in report.scales:
            clipped = "" if entry["clipped"] is None else f"{entry['clipped']:.2%}"
            words = [entry[key] for key in ("node", "direction", "role", "type")]
            roles.add_row(*words, f"{entry['scale']:.6g}", entry["zero_point"], clipped)
        write(roles)
    if report.outputs:
        table = Table(("output", "dB", "by quarter", "default session", "there"))
        for output in report.outputs:
            quarters = "" if output.quarters is None else " ".join(f"{each:.1f}" for each in output.quarters)
            there = "" if output.sqnr_on is None else f"{output.sqnr_on:.1f}"
            table.add_row(output.name, f"{output.sqnr:.1f}", quarters, f"{output.sqnr_default:.1f}", there)
        write(table)
    write(
        f"{len(report.scales)} scales, {report.strategy}: calibrated on "
        f"{counted(report.calibrated, 'recording')}, measured on {report.measured} not among them"
    )
