"""The pass and the pipeline of stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.arguments import MAX_LENGTH, dictionary, integer
from rnnlower.errors import OptionError
from rnnlower.files.metadata import PadMetadata, StreamMetadata
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR, InitializerPool
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.rewiring import remove_orphans, take_place_of
from rnnlower.graph.slicing import axis_slices
from rnnlower.graph.symbols import dim_name
from rnnlower.graph.walk import operand, producer_of
from rnnlower.passes.base import Pass
from rnnlower.passes.command_options import StreamOptions
from rnnlower.passes.constant_inputs import FreezeInitializersPass
from rnnlower.passes.expand_functions import InlineFunctionsPass
from rnnlower.passes.pipeline import lower_model
from rnnlower.passes.removing import remove_zero_states
from rnnlower.passes.reports import Report, StreamReport
from rnnlower.passes.steps import lifting_steps, preparing, shared
from rnnlower.passes.steps.work import Step, Work, run_steps
from rnnlower.recurrent.finding import find_recurrent, is_recurrent
from rnnlower.streaming.analysis import Analysis, analyze
from rnnlower.streaming.first_frames import choose_first_frames
from rnnlower.streaming.rewriter import StreamRewriter
from rnnlower.streaming.state_pairs import pair_states
from rnnlower.timeflow.axes import SingleStepError, find_axes
from rnnlower.wording import counted, option

_MIN_SLICES = 2
"""The fewest slices that are gathered at once."""


def _states_are_outside(model: ir.Model, streaming: StreamPass) -> bool:
    inputs = {value.name for value in model.graph.inputs}
    outputs = {value.name for value in model.graph.outputs}
    return outputs >= streaming.states.keys() and inputs >= {*streaming.states.values()}


def _name_unknown_dims(model: ir.Model, axes: Mapping[str, int]) -> None:
    """Name the unnamed sizes of the inputs, except time, so that states can declare the same ones."""
    inputs = [value for value in model.graph.inputs if value.shape is not None]
    names = NameSource(filter(None, (dim_name(dim) for value in inputs for dim in value.shape or ())))
    for value in inputs:
        dims = list(value.shape or ())
        for axis, dim in enumerate(dims):
            if not isinstance(dim, int) and dim_name(dim) is None and axes.get(value.name or "") != axis:
                dims[axis] = ir.SymbolicDim(names.fresh(f"{value.name}_dim_{axis}"))
        value.shape = ir.Shape(dims)


def gather_slices(model: ir.Model, facts: Facts) -> None:
    """Replace each Concat of slices of equal length and distance by a Gather with constant indices.

    Before: ``Concat(Unsqueeze(x[0:16]), Unsqueeze(x[8:24]), ...)``.
    After: ``Gather(x, [[0, 1, ...], [8, 9, ...]])``.
    """
    pool = InitializerPool(model, NameSource(all_names(model)))
    for node in list(model.graph):
        cut = [_match_slice(value, facts) for value in node.inputs] if node.op_type == "Concat" else []
        found = [each for each in cut if each is not None]
        if len(cut) < _MIN_SLICES or len(found) < len(cut):
            continue
        sources, axes, starts, ends, new_axes = zip(*found, strict=True)
        frames = [np.arange(*bounds) for bounds in zip(starts, ends, strict=True)]
        axis = node.attributes.get_int("axis", 0)
        if any(len({*each}) > 1 for each in (sources, axes, new_axes, map(len, frames))):
            continue
        source, own, new = sources[0], axes[0], new_axes[0]
        rank = len(facts.shape(source) or ()) + 1
        # The new axis is where the frames are concatenated, next to that of their elements.
        if axis % rank != new or new not in (own, own + 1):
            continue
        places = np.array(frames) if new == own else np.array(frames).T
        gather = ir.node(
            "Gather", [source, pool.intern(ir.Tensor(np.ascontiguousarray(places)))], {"axis": own}
        )
        model.graph.insert_before(node, gather)
        take_place_of(gather.outputs[0], node.outputs[0])
        remove_orphans(node.outputs)


def _match_slice(value: ir.Value | None, facts: Facts) -> tuple[ir.Value, int, int, int, int] | None:
    """Return the source of a slice to which an axis is added, the axis, the bounds, and the new axis."""
    outer = producer_of(value, "Unsqueeze")
    node = None if outer is None else producer_of(outer.inputs[0], "Slice")
    cuts = axis_slices(node, facts.constant)
    source = None if node is None or not node.inputs else node.inputs[0]
    shape = facts.shape(source)
    if outer is None or source is None or shape is None or cuts is None:
        return None
    new = outer.attributes.get_ints("axes") or facts.constant(operand(outer, 1))
    if new is None or len(new) != 1 or [cut.step for cut in cuts] != [1]:
        return None
    ((start, end, axis, _),) = cuts
    axis %= len(shape)
    size = shape[axis]
    if not isinstance(size, int) or not 0 <= start < end <= size:
        return None
    return source, axis, start, end, int(new[0]) % (len(shape) + 1)


def _refuse_rewritten(model: ir.Model) -> None:
    """Refuse a model whose metadata is about time already: another chunk would make it false."""
    stream = StreamMetadata.read(model.metadata_props)
    if stream is not None and stream.inputs:
        chunk = "any number of" if stream.chunk is None else stream.chunk
        raise OptionError(
            f"the model is streamed already, and takes {chunk} time steps a call",
            remedy="stream its source with the other chunk",
        )
    if PadMetadata.read(model.metadata_props) is not None:
        raise OptionError("the model is padded, and a stream has no length", remedy="stream its source")


class StreamPass(Pass):
    """Turns a model of whole sequences into one of a chunk per call, with all states as inputs and outputs.

    A convolution over time is preceded by the last frames of the previous chunk, and so are the other
    operators that need them. The metadata states which output feeds which input (``rnnlower.state``).

    Before::

        (float[T, 1, 4] X, float[1, 6, 4] W, float[1, 6, 2] R) => (float[T, 1, 1, 2] Y) {
            [gru] Y = GRU <hidden_size = 2> (X, W, R)
        }

    After ``StreamPass(chunk=1)``::

        (float[1, 1, 4] X, float[1, 6, 4] W, float[1, 6, 2] R, float[1, 1, 2] gru_h_in)
        => (float[1, 1, 1, 2] Y, float[1, 1, 2] gru_h_out) {
            Y, gru_h_out = GRU <hidden_size = 2> (X, W, R, , , gru_h_in)
        }

    Args:
        chunk: Time steps per call; ``None``: any number, which may differ between calls.
        time_axes: The axis of time of inputs, where it does not follow from the recurrent nodes.
        allow_delay: Whether convolutions may look ahead, with a delay.
        states: States that the model has already: ``{output: input}``.

    Attributes:
        analysis: The analysis of the model.
        states: For each output that holds a state, the input that takes it in the next call.

    Raises:
        OptionError: The chunk has no step.
    """

    ENSURES = (_states_are_outside,)

    def __init__(
        self,
        chunk: int | None = 1,
        time_axes: Mapping[str, int] | None = None,
        allow_delay: bool = False,
        states: Mapping[str, str] | None = None,
    ) -> None:
        self._chunk = None if chunk is None else integer("chunk", chunk, 1, MAX_LENGTH)
        self._time_axes = dictionary("time_axes", time_axes)
        self._allow_delay = allow_delay
        self._given = dictionary("states", states)
        self.analysis: Analysis
        self.states: Mapping[str, str] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Convert the model.

        Raises:
            OptionError: The chunk or the time axis does not fit the model.
            UnsupportedModelError: A node couples time steps in a way that no state outside can carry.
        """
        _refuse_rewritten(model)
        InlineFunctionsPass(wanted=lambda node: True)(model, self.facts)
        if model.ir_version < FREE_INITIALIZERS_IR:
            FreezeInitializersPass()(model, self.facts)
        gather_slices(model, self.facts)
        choose_first_frames(model, self.facts)
        remove_zero_states(self.facts, filter(is_recurrent, model.graph))
        if self._given:
            return self._keep(model, pair_states(model, self._given))
        try:
            axes = find_axes(model, self._time_axes)
        except SingleStepError as error:
            states = pair_states(model, {})
            if not states:
                error.advise(f"{error.remedy}; {option('state', 'OUT=IN')} names states that it has")
                raise
            return self._keep(model, states)
        _name_unknown_dims(model, axes)
        self.analysis = analyze(model, axes, self._chunk, allow_delay=self._allow_delay)
        self.states = StreamRewriter(model).rewrite(self.analysis)
        return ir.passes.PassResult(model, modified=True)

    def _keep(self, model: ir.Model, states: Mapping[str, str]) -> ir.passes.PassResult:
        """Keep a model of one step per call, and say which of its outputs are states."""
        if self._chunk not in (None, 1):
            raise OptionError(f"the model takes one step per call, and the chunk is {self._chunk}")
        self.analysis = Analysis(1, axes={}, steps=1, outputs={}, delay=0, edits=[], unreached={}, limit=None)
        self.states = states
        defaults = {value.name: value.const_value for value in model.graph.inputs}
        start = {
            name: 0.0 if (default := defaults[name]) is None else default.numpy().tolist()
            for name in states.values()
        }
        StreamMetadata(1, {}, {}, 0, states, start).write(model.metadata_props)
        return ir.passes.PassResult(model, modified=True)


@dataclasses.dataclass
class StreamWork(Work):
    """The data that the steps of stream share: what a `StreamPass` finds, and what a `StreamReport` has."""

    options: StreamOptions
    analysis: Analysis = dataclasses.field(init=False)
    states: Mapping[str, str] = dataclasses.field(init=False)
    lowering: Report | None = None


def stream_model(model: ir.Model, options: StreamOptions) -> StreamReport:
    """Stream the model in place. A failure leaves it half changed, so pass a copy.

    Raises:
        OptionError: An option does not fit the model, or the time axis cannot be determined.
        UnsupportedModelError: A node couples time steps in a way that no state can carry.
        OpsetError: The model cannot be converted to the opset that a lowering needs.
    """
    options.report_progress("preparing")
    work = run_steps(STREAM, StreamWork(model, options))
    return StreamReport(
        chunk=options.steps,
        inputs=work.analysis.axes,
        outputs={name: track.axis for name, track in work.analysis.outputs.items()},
        delay=work.analysis.delay,
        states=work.states,
        lowering=work.lowering,
        **work.summary(),
    )


def _lift(work: StreamWork) -> None:
    """Lift the model's own recurrences.

    Before: Loops, Scans and Convs over a past that compute recurrent operators. After: these operators.
    """
    lifting_steps.lift_all(work, convolutions=True, shifts=False)


def _find_nodes(work: StreamWork) -> None:
    """Find the recurrent nodes. The graph stays as it is."""
    work.nodes = find_recurrent(work.model)


def _stream(work: StreamWork) -> None:
    """Carry states from call to call.

    Before: a model of whole sequences. After: one of a chunk, with its states as inputs and outputs.
    """
    options = work.options
    options.report_progress("following time")
    streaming = work.apply(StreamPass(options.steps, options.time_axes, options.allow_delay, options.states))
    work.analysis, work.states = streaming.analysis, streaming.states
    if not work.analysis.axes:
        pairs = ", ".join(f"{output} feeds {name}" for output, name in work.states.items())
        work.notes.append(f"the model takes one step per call already; its metadata says that {pairs}")
    if work.analysis.single:
        work.notes.append("the model can be streamed with a batch of 1 alone, and declares that")
    work.notes += [
        f"output {name!r} of a whole sequence has {counted(frames, 'frame')} more at its end, which a stream "
        "never reaches"
        for name, frames in work.analysis.unreached.items()
    ]


def _lower_chunk(work: StreamWork) -> None:
    """Lower the recurrent nodes of the chunk, as the user asks.

    Before: the recurrent nodes of a chunk. After: what `pipeline.LOWER` makes of them.
    """
    work.lowering = lower_model(work.model, work.options.make_lowering_options())
    work.notes += work.lowering.notes
    work.rounds = work.lowering.rounds


STREAM: Sequence[Step[StreamWork, StreamOptions]] = (
    *shared.FIX_INPUTS,
    Step(shared.raise_opset_to_operators, "Later steps would not know an operator that the opset lacks."),
    Step(shared.simplify_around_ifs, "Nodes that never run need no state."),
    Step(
        shared.assume_linear_before_reset,
        "The warnings are about nodes as they are read.",
        when=lambda o: o.assume_linear_before_reset,
    ),
    Step(shared.warn_of_suspicions, "Nothing has been moved."),
    Step(_lift, "A Loop couples time in ways that an operator does not.", when=lambda o: o.lift),
    Step(shared.note_ifs, "Lifting removes some."),
    Step(lifting_steps.simplify_loops, "Loops that compute an operator have been lifted."),
    Step(shared.warn_of_other_recurrences, "The model's own Loops can be distinguished from emitted ones."),
    Step(_find_nodes, "Nodes that never run are gone."),
    Step(preparing.dequantize_recurrent, "Float operators have states, too.", when=lambda o: o.dequantize),
    Step(_stream, "It is known which values are constant and which nodes run."),
    Step(_lower_chunk, "The chunk is the length of a straight line.", when=lambda o: o.lowers),
    Step(lifting_steps.note_zero_steps, "Only kept nodes may lose the initial state.", when=lambda o: o.lift),
    Step(shared.strip, "Earlier messages use node names, so stripping is last.", when=lambda o: o.strip),
)
"""The steps of stream, in order."""
