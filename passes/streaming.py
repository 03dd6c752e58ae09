"""The pipeline of stream."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import onnx_ir as ir

from rnnlower.graph.walk import walk
from rnnlower.passes.pipeline import lower_model
from rnnlower.passes.reports import Report, StreamReport
from rnnlower.passes.rewriting_options import StreamOptions
from rnnlower.passes.steps import preparing, settling
from rnnlower.passes.steps.work import Step, Work, run
from rnnlower.passes.stream import StreamPass
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.streaming.analysis import Analysis
from rnnlower.streaming.caller_in_c import Opener
from rnnlower.streaming.callers import caller_code
from rnnlower.wording import counted


@dataclasses.dataclass
class StreamWork(Work):
    """The data that the steps of stream share.

    Attributes:
        analysis: The time axes and delays.
        states: For each output that holds a state, the input that takes it in the next call.
        lowering: The report on the lowering of the recurrent nodes, if there was one.
    """

    options: StreamOptions
    analysis: Analysis = dataclasses.field(init=False)
    states: Mapping[str, str] = dataclasses.field(init=False)
    lowering: Report | None = None


def stream_model(model: ir.Model, options: StreamOptions, open_model: Opener) -> StreamReport:
    """Stream the model in place. A failure leaves it half changed: it is to be a copy.

    Args:
        model: The model.
        options: The options.
        open_model: Opens the result, for the test in the caller's code.

    Raises:
        OptionError: An option does not fit the model, or the time axis cannot be determined.
        UnsupportedModelError: A node couples time steps in a way that no state can carry.
        OpsetError: The model cannot be converted to the opset that a lowering needs.
    """
    options.tell("preparing")
    work = run(STREAM, StreamWork(model, options))
    return StreamReport(
        chunk=options.steps,
        inputs=work.analysis.axes,
        outputs={name: track.axis for name, track in work.analysis.outputs.items()},
        delay=work.analysis.delay,
        states=work.states,
        lowering=work.lowering,
        caller=None if options.emit is None else caller_code(model, options.emit, open_model),
        **work.summary(),
    )


def _lift(work: StreamWork) -> None:
    """Lift the model's own recurrences.

    Before: Loops, Scans and Convs over a past that compute recurrent operators. After: these operators.
    """
    settling.lift_all(work, convolutions=True)


def _simplify(work: StreamWork) -> None:
    """Simplify as `settling.simplify_model` does, also where time must be followed through an If.

    Before: Ifs of known condition. After: a branch each.
    """
    if work.options.folds or any(
        node.op_type == "If" and not node.domain for node, _ in walk(work.model.graph)
    ):
        settling.simplify_model(work)


def _find_nodes(work: StreamWork) -> None:
    """Find the recurrent nodes. The graph stays as it is."""
    work.nodes = find_recurrent(work.model)


def _stream(work: StreamWork) -> None:
    """Carry states from call to call.

    Before: a model of whole sequences. After: one of a chunk, with its states as inputs and outputs.
    """
    work.options.tell("following time")
    options = work.options
    streaming = StreamPass(options.steps, options.time_axes, options.allow_delay, options.states)
    streaming(work.model, work.facts)
    assert streaming.analysis is not None
    work.analysis, work.states = streaming.analysis, streaming.states
    if not work.analysis.axes:
        pairs = ", ".join(f"{output} feeds {name}" for output, name in work.states.items())
        work.notes.append(f"the model takes one step per call already; its metadata says that {pairs}")
    work.notes += [
        f"output {name!r} of a whole sequence has {counted(frames, 'frame')} more at its end, which a stream "
        "never reaches"
        for name, frames in work.analysis.unreached.items()
    ]


def _lower_chunk(work: StreamWork) -> None:
    """Lower the recurrent nodes.

    Before: the recurrent nodes of a chunk. After: what `pipeline.PIPELINE` makes of them.
    """
    work.lowering = lower_model(work.model, work.options.of_lowering())
    work.notes += work.lowering.notes


STREAM: Sequence[Step[StreamWork]] = (
    Step(settling.freeze_dims, "Later steps know more if sizes are static."),
    Step(settling.set_inputs, "The value fills the shape, which is now known.", when=("sets",)),
    Step(settling.freeze_initializers, "Later steps know constants.", when=("may_freeze",)),
    Step(settling.raise_to_operators, "An operator that the opset lacks would be unknown to later steps."),
    Step(_simplify, "Nodes that never run need no state."),
    Step(
        settling.assume_linear_before_reset,
        "The warnings are about nodes as they are read.",
        when=("assume_linear_before_reset",),
    ),
    Step(settling.warn_of_suspicions, "Nothing has been moved."),
    Step(_lift, "A Loop couples time in ways that an operator does not.", when=("lift",)),
    Step(settling.warn_of_other_recurrences, "The model's own Loops can be distinguished from emitted ones."),
    Step(_find_nodes, "Nodes that never run are gone."),
    Step(preparing.dequantize_recurrent, "Float operators have states, too.", when=("dequantize",)),
    Step(_stream, "What is constant, and which nodes run, is known."),
    Step(_lower_chunk, "The chunk is the length of a straight line.", when=("lowers",)),
    Step(settling.tell_of_no_steps, "Only nodes that stay differ.", when=("lift",)),
    Step(settling.strip, "Messages name nodes.", when=("strip",)),
)
"""The steps of stream, in order."""
