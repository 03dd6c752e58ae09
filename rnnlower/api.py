"""The public functions.

A path or a ModelProto gives a ModelProto, an ir.Model gives an ir.Model. Arguments are never changed.
The notes that the commands print are logged at level INFO, the warnings at WARNING.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from rnnlower.calling import Progress, log, model_function
from rnnlower.files.model_io import ModelLike, load_model
from rnnlower.inspection import RecurrentNode, find_warnings, inspect_model
from rnnlower.lowering.replacing import Gates
from rnnlower.opset import OpsetReport
from rnnlower.passes.convert_opset import ConvertOpsetPass
from rnnlower.passes.legacy_constants import LegacyConstantsPass
from rnnlower.passes.lowering_options import LoweringOptions, Report
from rnnlower.passes.pipeline import lower_model
from rnnlower.passes.simplify import settle
from rnnlower.passes.steps.opset_moves import raise_to_operators
from rnnlower.passes.strip import StripPass
from rnnlower.recurrent.node import Semantics
from rnnlower.targets import find_target
from rnnlower.targets.choosing import Native
from rnnlower.targets.fit import find_misfits, profile_notes, runs_op
from rnnlower.targets.misfits import Misfit

if TYPE_CHECKING:
    from rnnlower.passes.streaming import StreamReport


@model_function
def unroll(
    model: ir.Model,
    *,
    opset: int | None = None,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    nodes: Sequence[str] | None = None,
    semantics: Semantics = "ort",
    sets: Mapping[str, Any] | None = None,
    fold: bool | None = None,
    freeze: bool | None = None,
    strip: bool = False,
    control_flow: str | None = None,
    dequantize: bool = False,
    assume_linear_before_reset: bool = False,
    compute_type: str | None = None,
    gates: Gates = "auto",
    progress: Progress | None = None,
) -> Report:
    """Rewrite LSTM, GRU and RNN nodes into straight-line primitive ops.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`.
        opset: Default-domain opset of the result. ``None``: the source's, raised only as far as the ops need.
        dims: Sizes of symbolic dimensions: ``{name: size}``.
        input_shapes: Shapes of graph inputs: ``{name: shape}``.
        nodes: Shell wildcards. Only nodes whose name matches one of them are rewritten.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ: ``ort`` or ``spec``.
        sets: Values of graph inputs: ``{name: number, list or array}``. These inputs become constants.
        fold: Fold constants and replace If nodes of known condition by their branch. ``None``: only if
            `sets`, `dims`, `input_shapes` or a target is given. Weights and states of recurrent nodes that
            follow from constants and static shapes are always folded.
        freeze: Take initializers that are graph inputs, too, as constants. ``None``: only for a target, and
            only below IR version 4, where no caller can override them.
        strip: Remove the metadata and names of nodes, and all doc strings.
        control_flow: ``unroll``: unroll the model's own Loop and Scan nodes, too. ``keep``: leave them.
            ``None``: for a target, unroll those that it lacks.
        dequantize: Turn quantized recurrent operators into float ones, with dequantized weights.
        assume_linear_before_reset: Read every GRU as ``linear_before_reset=1``.
        compute_type: ``float32``: compute float16 and bfloat16 recurrences in float32, between Casts.
        gates: One product for several gates (``fused``), one each (``separate``), or the fastest (``auto``).
        progress: Called with a description of the current phase, the work done, and the work in total.

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
    return _lower("unroll", **locals())


@model_function
def scan(
    model: ir.Model,
    *,
    opset: int | None = None,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    nodes: Sequence[str] | None = None,
    unroll_factor: int = 1,
    semantics: Semantics = "ort",
    sets: Mapping[str, Any] | None = None,
    fold: bool | None = None,
    freeze: bool | None = None,
    strip: bool = False,
    dequantize: bool = False,
    assume_linear_before_reset: bool = False,
    compute_type: str | None = None,
    gates: Gates = "auto",
    progress: Progress | None = None,
) -> Report:
    """Rewrite each LSTM, GRU and RNN node into primitive ops around one Scan.

    Args:
        unroll_factor: Time steps per iteration. Steps that are left over run in a second Scan.

    The other arguments and the errors are those of `unroll`; the sequence length may be dynamic.
    """
    return _lower("scan", **locals())


@model_function
def loop(
    model: ir.Model,
    *,
    opset: int | None = None,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    nodes: Sequence[str] | None = None,
    unroll_factor: int = 1,
    semantics: Semantics = "ort",
    sets: Mapping[str, Any] | None = None,
    fold: bool | None = None,
    freeze: bool | None = None,
    strip: bool = False,
    dequantize: bool = False,
    assume_linear_before_reset: bool = False,
    compute_type: str | None = None,
    gates: Gates = "auto",
    progress: Progress | None = None,
) -> Report:
    """Rewrite each LSTM, GRU and RNN node into primitive ops around one Loop.

    The arguments and the errors are those of `scan`.
    """
    return _lower("loop", **locals())


@model_function
def lower(
    model: ir.Model,
    *,
    target: str | os.PathLike[str],
    strict: bool = False,
    opset: int | None = None,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    nodes: Sequence[str] | None = None,
    unroll_factor: int = 1,
    semantics: Semantics = "ort",
    sets: Mapping[str, Any] | None = None,
    fold: bool | None = None,
    freeze: bool | None = None,
    strip: bool = False,
    control_flow: str | None = None,
    dequantize: bool = False,
    assume_linear_before_reset: bool = False,
    compute_type: str | None = None,
    gates: Gates = "auto",
    native: Native = "auto",
    progress: Progress | None = None,
) -> Report:
    """Rewrite the LSTM, GRU and RNN nodes that a runtime lacks or computes wrong into ops that it has.

    Args:
        target: The name of a target, or the path of a .toml file that describes one.
        strict: Whether ops of the rest of the model that do not fit the target are an error.
        native: ``keep``: keep the runtime's own operators, as they are or adapted, wherever it computes
            them correctly. ``lower``: replace them all. ``auto``: keep those that are faster than primitives.

    The other arguments and the errors are those of `scan`; in addition:

    Raises:
        OptionError: There is no such target, or it does not take the opset.
        UnsupportedModelError: A node cannot be expressed in the target's ops, or its shapes must be static.
    """
    return _lower("target", **locals())


def check(
    model: ModelLike,
    *,
    target: str | os.PathLike[str],
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    sets: Mapping[str, Any] | None = None,
    freeze: bool | None = None,
    semantics: Semantics = "ort",
    progress: Progress | None = None,
) -> list[Misfit]:
    """List the nodes of the model that a runtime does not run; the list is empty if the whole model fits.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`.
        target: The name of a target, or the path of a .toml file that describes one.
        dims: As for `unroll`.
        input_shapes: As for `unroll`.
        sets: As for `unroll`.
        freeze: As for `unroll`.
        semantics: Whose semantics a native recurrent node must follow: ``ort`` or ``spec``.
        progress: As for `unroll`.

    Raises:
        OptionError: The target or the semantics do not exist, or a size does not fit the model.
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
    """
    tell = progress or _silent
    tell("reading", 0, 0)
    own = load_model(model)
    runtime = find_target(target)
    tell("checking", 0, 0)
    notes = raise_to_operators(own) + settle(
        own, dims, input_shapes, sets, freeze, lambda node: not runs_op(runtime, node)
    )
    log([*notes, *profile_notes(own, runtime)])
    return find_misfits(own, runtime, semantics)


@model_function
def convert(
    model: ir.Model,
    *,
    opset: int,
    sets: Mapping[str, Any] | None = None,
    freeze: bool | None = None,
    strip: bool = False,
    progress: Progress | None = None,
) -> OpsetReport:
    """Move the model to another version of the default domain, up or down.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`.
        opset: The version.
        sets: As for `unroll`.
        freeze: As for `unroll`.
        strip: As for `unroll`.
        progress: As for `unroll`.

    Raises:
        OptionError: A value does not fit the model.
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
        OpsetError: The model has something that this version cannot express.
    """
    (progress or _silent)("converting", 0, 0)
    if sets or freeze:
        log(settle(model, None, None, sets, freeze))
        LegacyConstantsPass()(model)
    conversion = ConvertOpsetPass(opset)
    conversion(model)
    assert conversion.report is not None
    if strip:
        StripPass()(model)
    return conversion.report


def inspect(model: ModelLike, *, progress: Progress | None = None) -> list[RecurrentNode]:
    """List the model's recurrent nodes.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`.
        progress: As for `unroll`.

    Raises:
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
    """
    (progress or _silent)("reading", 0, 0)
    own = load_model(model)
    nodes = inspect_model(own)
    log([], find_warnings(own))
    return nodes


@model_function
def stream(
    model: ir.Model,
    *,
    chunk: int | None = 1,
    time_axes: Mapping[str, int] | None = None,
    allow_delay: bool = False,
    strategy: str = "none",
    target: str | os.PathLike[str] | None = None,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    sets: Mapping[str, Any] | None = None,
    freeze: bool | None = None,
    strip: bool = False,
    semantics: Semantics = "ort",
    dequantize: bool = False,
    assume_linear_before_reset: bool = False,
    compute_type: str | None = None,
    gates: Gates = "auto",
    progress: Progress | None = None,
) -> StreamReport:
    """Turn a model of whole sequences into one of a chunk per call, with all states as inputs and outputs.

    Args:
        chunk: Time steps per call; ``None``: any number of them, different in each call.
        time_axes: Time axes of inputs, ``{name: axis}``, where they do not follow from the recurrent nodes.
        allow_delay: Accept convolutions that look ahead, at the price of a delay.
        strategy: ``unroll``, ``scan`` or ``loop``: lower the recurrent nodes of the chunk as well.
            ``none``: keep them.
        target: Lower the recurrent nodes for this runtime instead.

    The other arguments are those of `unroll`. Two metadata entries of the result describe its use:
    ``rnnlower.state`` (which output feeds which input in the next call) and ``rnnlower.stream`` (the time
    axes).

    Raises:
        OptionError: An option does not fit the model, or the time axis cannot be determined.
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
        UnsupportedModelError: A node couples time steps in a way that no state can carry.
    """
    from rnnlower.passes.streaming import StreamOptions, stream_model

    options = StreamOptions(
        chunk,
        time_axes or {},
        allow_delay,
        strategy,
        None if target is None else find_target(target),
        dims or {},
        input_shapes or {},
        semantics,
        sets or {},
        dequantize,
        assume_linear_before_reset,
        compute_type,
        gates,
        freeze,
        strip,
    )
    return stream_model(model, options, progress or _silent)


def _lower(strategy: str, model: ir.Model, progress: Progress | None, **options: Any) -> Report:
    """Lower with the arguments of a public function; their names are those of `LoweringOptions`."""
    for name in ("dims", "input_shapes", "sets"):
        options[name] = options[name] or {}
    if "target" in options:
        options["target"] = find_target(options["target"])
    return lower_model(model, LoweringOptions(strategy, **options), progress or _silent)


def _silent(activity: str, done: int, total: int) -> None:
    pass
