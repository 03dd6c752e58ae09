"""The command `rnnlower calibrate`."""

from __future__ import annotations

import dataclasses
import pathlib

from rnnlower.cli.defining import Showing, command
from rnnlower.cli.running import emit_result, say, say_notes
from rnnlower.passes.measuring_options import CalibrateOptions
from rnnlower.wording import counted


@command("report", "verbose")
def calibrate(
    *,
    model: pathlib.Path,
    recordings: list[pathlib.Path],
    output: pathlib.Path,
    options: CalibrateOptions,
    format: str = "npz",  # noqa: A002
    ranges: pathlib.Path | None = None,
    showing: Showing,
) -> None:
    """Write calibration data: what a model reads in each call, with its states carried."""
    from rnnlower.cli.progress import Phases, progress
    from rnnlower.files.model_io import read_model
    from rnnlower.files.publishing import check_companion
    from rnnlower.quantizing.calibrating import calibrate_model

    quiet, json_ = showing.quiet, showing.json_
    if ranges is not None:
        check_companion("--ranges", ranges, (".json",), "the ranges are a .json file")
    with progress("reading", quiet, Phases(False)) as tell:
        calibration = calibrate_model(
            read_model(model),
            recordings,
            dataclasses.replace(options, progress=tell),
            ranges=ranges is not None,
        )
    say_notes(calibration.notes, quiet)
    calibration.save(output, format)  # type: ignore[arg-type]  # it checks the format
    if ranges is not None:
        calibration.save_ranges(ranges)
    calls, sequences = len(calibration.calls), calibration.sequences
    if json_:
        inputs = {name: list(array.shape) for name, array in calibration.calls[0].items()}
        roles = None if calibration.ranges is None else len(calibration.ranges)
        emit_result(
            {
                "sequences": sequences,
                "calls": calls,
                "inputs": inputs,
                "roles": roles,
                "output": str(output),
                "ranges": None if ranges is None else str(ranges),
            }
        )
    say(
        f"rnnlower: wrote {output} ({counted(calls, 'call')} of {counted(sequences, 'recording')})",
        quiet or json_,
    )
