"""The public functions.

A path or a ModelProto gives a ModelProto, an ir.Model gives an ir.Model. Arguments are never changed.
The notes that the commands print are logged at level INFO, the warnings at WARNING.

`rnnlower.passes.options` has the arguments. A function imports what it runs, as commands start faster then.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import TYPE_CHECKING

import onnx_ir as ir

from rnnlower.calling import log, model_function, options_function
from rnnlower.files.model_io import ModelLike, load_model
from rnnlower.inspection import RecurrentNode, find_liftable, find_warnings, inspect_model
from rnnlower.passes.command_options import (
    CalibrateOptions,
    CheckOptions,
    ConvertOptions,
    LiftOptions,
    PadOptions,
    QuantizeOptions,
    StreamOptions,
)
from rnnlower.passes.options import (
    LoopOptions,
    LoweringOptions,
    LowerOptions,
    Progress,
    ScanOptions,
    UnrollOptions,
)

if TYPE_CHECKING:
    import onnx

    from rnnlower.opset import OpsetReport
    from rnnlower.passes.checking import CheckReport
    from rnnlower.passes.reports import LiftReport, PadReport, Report, StreamReport
    from rnnlower.quantizing.calibrating import Calibration
    from rnnlower.quantizing.quantization import QuantizeReport
    from rnnlower.streaming.callers import Reference
    from rnnlower.targets.misfits import Misfit


@model_function(UnrollOptions)
def unroll(model: ir.Model, options: UnrollOptions) -> Report:
    """Rewrite LSTM, GRU and RNN nodes into straight-line primitive ops.

    Returns:
        A ModelProto, or an `ir.Model` if one was given. ``unroll.with_report(...)`` returns a pair: the
        model, and a `Report` on each rewritten node, with op counts, notes and warnings. So do `scan`,
        `loop` and `lower`; the report of `convert` is an `OpsetReport`.

    Raises:
        OptionError: An option does not fit the model.
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
        UnsupportedModelError: A node uses a feature that is not supported, or has no static sequence length.
        OpsetError: The model cannot be moved to the opset.
    """
    return _lower(model, options)


@model_function(ScanOptions)
def scan(model: ir.Model, options: ScanOptions) -> Report:
    """Rewrite each LSTM, GRU and RNN node into primitive ops around one Scan.

    The errors are those of `unroll`; the sequence length may be dynamic.
    """
    return _lower(model, options)


@model_function(LoopOptions)
def loop(model: ir.Model, options: LoopOptions) -> Report:
    """Rewrite each LSTM, GRU and RNN node into primitive ops around one Loop.

    The errors are those of `unroll`; the sequence length may be dynamic.
    """
    return _lower(model, options)


@model_function(LowerOptions)
def lower(model: ir.Model, options: LowerOptions) -> Report:
    """Rewrite the LSTM, GRU and RNN nodes that a runtime lacks or computes wrong into ops that it has.

    The errors are those of `unroll`; in addition:

    Raises:
        OptionError: There is no such target, or it does not take the opset.
        UnsupportedModelError: A node cannot be expressed in the target's ops, or its shapes must be static.
    """
    return _lower(model, options)


def _lower(model: ir.Model, options: LoweringOptions) -> Report:
    from rnnlower.passes.pipeline import lower_model

    return lower_model(model, options)


@model_function(LiftOptions)
def lift(model: ir.Model, options: LiftOptions) -> LiftReport:
    """Turn Loops, Scans and straight lines that compute an LSTM, GRU or RNN into these operators.

    What is not exactly one of them stays as it is. ``lift.with_report(...)`` also says why.

    Raises:
        OptionError: An option does not fit the model.
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
    """
    from rnnlower.passes.lifting import lift_model

    return lift_model(model, options)


@model_function(StreamOptions)
def stream(model: ir.Model, options: StreamOptions) -> StreamReport:
    """Turn a model of whole sequences into one of a chunk per call, with all states as inputs and outputs.

    Two metadata entries of the result describe its use: ``rnnlower.state`` (which output feeds which input
    in the next call) and ``rnnlower.stream`` (the time axes).

    Raises:
        OptionError: An option does not fit the model, or the time axis cannot be determined.
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
        UnsupportedModelError: A node couples time steps in a way that no state can carry.
    """
    from rnnlower.passes.streaming import stream_model

    report = stream_model(model, options)
    if options.emit is None:
        return report
    from rnnlower.streaming.callers import generate_caller

    return dataclasses.replace(report, caller=generate_caller(model, options.emit, _open))


def _open(model: onnx.ModelProto) -> Reference:
    """Return a function that runs a step model, for the test in its caller's code."""
    from rnnlower.quantizing.recordings import open_source, run_on_recording

    what = "the step model does not run on the numbers of the test in C"
    return partial(
        run_on_recording,
        open_source(model),
        what=what,
        remedy="write the caller's code in another language",
    )


@model_function(PadOptions)
def pad(model: ir.Model, options: PadOptions) -> PadReport:
    """Turn a model of any length into a static one of a maximal length, right for every length up to it.

    It takes the length, or a mask, as one more input. The metadata entry ``rnnlower.pad`` describes its use.

    Raises:
        OptionError: An option does not fit the model.
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
        UnsupportedModelError: A node does with padding what no rule undoes.
    """
    from rnnlower.passes.padding import pad_model

    return pad_model(model, options)


@model_function(ConvertOptions)
def convert(model: ir.Model, options: ConvertOptions) -> OpsetReport:
    """Move the model to another version of the default domain, up or down.

    Raises:
        OptionError: A value does not fit the model.
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
        OpsetError: The model has something that this version cannot express.
    """
    from rnnlower.passes.converting import convert_model

    return convert_model(model, options)


@model_function(QuantizeOptions)
def quantize(model: ir.Model, options: QuantizeOptions) -> QuantizeReport:
    """Compute the recurrences in integers, with one scale for each role of values.

    Raises:
        OptionError: An option or a recording does not fit the model.
        UnsupportedModelError: A recurrent node cannot be quantized, or the target does not run the result.
        UnverifiableError: There is nothing to measure on, or the model does not run.
        VerificationError: A quantizer is not where it belongs.
    """
    from rnnlower.quantizing.quantization import quantize_model

    return quantize_model(model, options)


@options_function(CalibrateOptions)
def calibrate(model: ModelLike, options: CalibrateOptions) -> Calibration:
    """Run the float model over recordings, and return what it reads in each call.

    The result has `save(path, format)` and `save_ranges(path)`.

    Raises:
        OptionError: A recording does not fit the model.
        UnsupportedModelError: There is no recurrent node, or one is quantized already.
        UnverifiableError: The model does not run on a recording.
    """
    from rnnlower.quantizing.calibrating import calibrate_model

    result = calibrate_model(load_model(model), options)
    log(result.notes)
    return result


@options_function(CheckOptions)
def check(model: ModelLike, options: CheckOptions) -> list[Misfit]:
    """List the nodes of the model that a runtime does not run; the list is empty if the whole model fits.

    Raises:
        OptionError: The target or the semantics do not exist, or a size does not fit the model.
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
    """
    report = check_report(model, options, forecasts=False)
    log(report.notes)
    return report.misfits


def check_report(model: ModelLike, options: CheckOptions, *, forecasts: bool = True) -> CheckReport:
    """Return the nodes that do not fit, with notes, and what `lower` would leave."""
    from rnnlower.passes.checking import check_model, forecast

    options.report_progress("reading")
    report = check_model(load_model(model), options)
    if not report.misfits or not forecasts:
        return report
    return dataclasses.replace(report, after=forecast(load_model(model), options))


def inspect(model: ModelLike, *, progress: Progress | None = None) -> list[RecurrentNode]:
    """List the model's recurrent nodes.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`.
        progress: As for `unroll`.

    Raises:
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
    """
    if progress is not None:
        progress("reading", 0, 0)
    own = load_model(model)
    nodes = inspect_model(own)
    log([], find_warnings(own, find_liftable(own)))
    return nodes
