"""The public functions.

A path or a ModelProto gives a ModelProto, an ir.Model an ir.Model; arguments stay as they are.
What the commands print as notes is logged here at level INFO, and warnings at WARNING.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from rnnlower.calling import Progress, model_function
from rnnlower.files.model_io import ModelLike, load_model
from rnnlower.inspection import RecurrentNode, inspect_model
from rnnlower.lowering.replacing import Gates
from rnnlower.opset import OpsetReport
from rnnlower.passes.convert_opset import ConvertOpsetPass
from rnnlower.passes.legacy_constants import LegacyConstantsPass
from rnnlower.passes.pipeline import LoweringOptions, Report, lower_model
from rnnlower.passes.simplify import settle
from rnnlower.recurrent.node import Semantics
from rnnlower.targets import find_target
from rnnlower.targets.fit import Misfit, find_misfits, runs_op
from rnnlower.targets.plan import Native

if TYPE_CHECKING:
    from rnnlower.passes.streaming import StreamReport

__all__ = ["check", "convert", "inspect", "loop", "lower", "scan", "stream", "unroll"]


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
    control_flow: str | None = None,
    dequantize: bool = False,
    assume_linear_before_reset: bool = False,
    compute_type: str | None = None,
    gates: Gates = "auto",
    progress: Progress | None = None,
) -> Report:
    """Rewrites LSTM, GRU and RNN nodes into straight-line primitive ops.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`.
        opset: Default-domain opset of the result; left out: the source's, raised only as far as the ops need.
        dims: Sizes of symbolic dimensions, by name.
        input_shapes: Shapes of graph inputs, by name.
        nodes: Shell wildcards; only nodes whose name matches one are rewritten.
        semantics: Which reading wins where the ONNX text and onnxruntime differ, ``ort`` or ``spec``.
        sets: Values of graph inputs, by name: numbers, lists or arrays. These inputs become constants.
        fold: Fold constants and take the branches of Ifs that are decided; ``None``: where `sets`, `dims` or
            `input_shapes` is given, and for a target.
        control_flow: ``unroll``: the model's own Loop and Scan nodes become straight lines, too; ``keep``:
            they stay. ``None``: for a target, those go that it lacks.
        dequantize: Quantized recurrent operators become float ones, with dequantized weights.
        assume_linear_before_reset: Every GRU is read as ``linear_before_reset=1``.
        compute_type: ``float32``: float16 and bfloat16 recurrences compute in it, between Casts.
        gates: One product for several gates (``fused``), one each (``separate``), or what runs fastest.
        progress: Called with what is being done, how much of it is done, and how much there is to do.

    Returns:
        A ModelProto, or an `ir.Model` where one is given. ``unroll.with_report(...)`` gives a pair: the
        model, and a `Report` of what became of each node, with op counts, notes and warnings. So do `scan`,
        `loop` and `lower`; the report of `convert` is an `OpsetReport`.

    Raises:
        OptionError: An option does not fit the model.
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
        UnsupportedModelError: A node asks for what is refused, or has no static sequence length.
        OpsetError: The model cannot be moved to the opset.
    """
    options = LoweringOptions(
        "unroll",
        opset,
        dims or {},
        input_shapes or {},
        nodes,
        1,
        semantics,
        sets=sets or {},
        fold=fold,
        control_flow=control_flow,
        dequantize=dequantize,
        assume_linear_before_reset=assume_linear_before_reset,
        compute_type=compute_type,
        gates=gates,
    )
    return lower_model(model, options, progress or _silent)


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
    dequantize: bool = False,
    assume_linear_before_reset: bool = False,
    compute_type: str | None = None,
    gates: Gates = "auto",
    progress: Progress | None = None,
) -> Report:
    """Rewrites each LSTM, GRU and RNN node into primitive ops around one Scan.

    Args:
        unroll_factor: Time steps in an iteration; what does not fill one runs in a second Scan.

    The other arguments and the errors are those of `unroll`; the sequence length may be dynamic.
    """
    options = LoweringOptions(
        "scan",
        opset,
        dims or {},
        input_shapes or {},
        nodes,
        unroll_factor,
        semantics,
        sets=sets or {},
        fold=fold,
        dequantize=dequantize,
        assume_linear_before_reset=assume_linear_before_reset,
        compute_type=compute_type,
        gates=gates,
    )
    return lower_model(model, options, progress or _silent)


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
    dequantize: bool = False,
    assume_linear_before_reset: bool = False,
    compute_type: str | None = None,
    gates: Gates = "auto",
    progress: Progress | None = None,
) -> Report:
    """Rewrites each LSTM, GRU and RNN node into primitive ops around one Loop.

    The arguments and the errors are those of `scan`.
    """
    options = LoweringOptions(
        "loop",
        opset,
        dims or {},
        input_shapes or {},
        nodes,
        unroll_factor,
        semantics,
        sets=sets or {},
        fold=fold,
        dequantize=dequantize,
        assume_linear_before_reset=assume_linear_before_reset,
        compute_type=compute_type,
        gates=gates,
    )
    return lower_model(model, options, progress or _silent)


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
    control_flow: str | None = None,
    dequantize: bool = False,
    assume_linear_before_reset: bool = False,
    compute_type: str | None = None,
    gates: Gates = "auto",
    native: Native = "auto",
    progress: Progress | None = None,
) -> Report:
    """Rewrites the LSTM, GRU and RNN nodes that a runtime lacks or gets wrong into ops that it has.

    Args:
        target: The name of a target, or the path of a .toml file that describes one.
        strict: Whether ops of the rest of the model that do not fit the target are an error.
        native: ``keep``: the runtime's own operators stay, as they are or adapted, wherever it runs them
            right; ``lower``: none does; ``auto``: those that are faster than what replaces them.

    The other arguments and the errors are those of `scan`; in addition:

    Raises:
        OptionError: There is no such target, or it does not take the opset.
        UnsupportedModelError: The target's ops cannot say what a node does, or it takes static shapes only.
    """
    options = LoweringOptions(
        "target",
        opset,
        dims or {},
        input_shapes or {},
        nodes,
        unroll_factor,
        semantics,
        find_target(target),
        strict,
        sets or {},
        fold,
        control_flow,
        dequantize=dequantize,
        assume_linear_before_reset=assume_linear_before_reset,
        compute_type=compute_type,
        gates=gates,
        native=native,
    )
    return lower_model(model, options, progress or _silent)


def check(
    model: ModelLike,
    *,
    target: str | os.PathLike[str],
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    sets: Mapping[str, Any] | None = None,
    semantics: Semantics = "ort",
    progress: Progress | None = None,
) -> list[Misfit]:
    """What in the model a runtime does not run; nothing if all of it fits.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`.
        target: The name of a target, or the path of a .toml file that describes one.
        dims: As for `unroll`.
        input_shapes: As for `unroll`.
        sets: As for `unroll`.
        semantics: The reading by which a native recurrent node has to be right.
        progress: As for `unroll`.

    Raises:
        OptionError: There is no such target or reading, or a size does not fit the model.
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
    """
    tell = progress or _silent
    tell("reading", 0, 0)
    own = load_model(model)
    runtime = find_target(target)
    tell("checking", 0, 0)
    settle(own, dims, input_shapes, sets, lambda node: not runs_op(runtime, node))
    return find_misfits(own, runtime, semantics)


@model_function
def convert(
    model: ir.Model,
    *,
    opset: int,
    sets: Mapping[str, Any] | None = None,
    progress: Progress | None = None,
) -> OpsetReport:
    """Moves the model to another version of the default domain, up or down.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`.
        opset: The version.
        sets: As for `unroll`.
        progress: As for `unroll`.

    Raises:
        OptionError: A value does not fit the model.
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
        OpsetError: The model has something that this version cannot express.
    """
    (progress or _silent)("converting", 0, 0)
    if sets:
        settle(model, None, None, sets)
        LegacyConstantsPass()(model)
    conversion = ConvertOpsetPass(opset)
    conversion(model)
    assert conversion.report is not None
    return conversion.report


def inspect(model: ModelLike, *, progress: Progress | None = None) -> list[RecurrentNode]:
    """The model's recurrent nodes.

    Args:
        model: A path, an `onnx.ModelProto` or an `onnx_ir.Model`.
        progress: As for `unroll`.

    Raises:
        InvalidModelError: The model cannot be read or breaks the ONNX specification.
    """
    (progress or _silent)("reading", 0, 0)
    return inspect_model(load_model(model))


@model_function
def stream(
    model: ir.Model,
    *,
    chunk: int = 1,
    time_axes: Mapping[str, int] | None = None,
    allow_delay: bool = False,
    strategy: str = "none",
    target: str | os.PathLike[str] | None = None,
    dims: Mapping[str, int] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    sets: Mapping[str, Any] | None = None,
    semantics: Semantics = "ort",
    progress: Progress | None = None,
) -> StreamReport:
    """Makes a model of whole sequences one of a chunk a call, with every state an input and an output.

    Args:
        chunk: Time steps a call.
        time_axes: The axis of time by the input's name, where it does not follow from the recurrent nodes.
        allow_delay: Whether convolutions may look ahead, at a delay.
        strategy: ``unroll``, ``scan`` or ``loop``: the recurrent nodes of the chunk are lowered as well;
            ``none``: they stay.
        target: Lower them for this runtime instead.

    The other arguments are those of `unroll`. The metadata of the result tells which output feeds which input
    in the next call (``rnnlower.state``), and where time is (``rnnlower.stream``).

    Raises:
        OptionError: An option does not fit the model, or nothing tells which axis is time.
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
    )
    return stream_model(model, options, progress or _silent)


def _silent(activity: str, done: int, total: int) -> None:
    pass
