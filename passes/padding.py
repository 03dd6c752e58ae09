"""The pipeline of pad."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import onnx_ir as ir

from rnnlower.files.metadata import PadMetadata
from rnnlower.passes.pad_lengths import PadLengthsPass, open_axes
from rnnlower.passes.reports import PadReport
from rnnlower.passes.rewriting_options import PadOptions
from rnnlower.passes.steps import settling
from rnnlower.passes.steps.work import Step, Work, run


@dataclasses.dataclass
class PadWork(Work):
    """The data that the steps of pad share.

    Attributes:
        metadata: The calling convention of the result.
    """

    options: PadOptions
    metadata: PadMetadata = dataclasses.field(init=False)


def pad_model(model: ir.Model, options: PadOptions) -> PadReport:
    """Pad the model in place. A failure leaves it half changed: it is to be a copy.

    Raises:
        OptionError: An option does not fit the model.
        UnsupportedModelError: A node does with padding what no rule undoes.
    """
    options.tell("preparing")
    work = run(PAD, PadWork(model, options))
    return PadReport(metadata=work.metadata, **work.summary())


def _open_axes(work: PadWork) -> None:
    """Open the length.

    Before: inputs of a static length. After: the length has its name, unless a shape that is given fixes it.
    """
    open_axes(work.model, work.options.max, work.options.time_axes or {})
    work.facts.forget()


def _pad(work: PadWork) -> None:
    """Pad.

    Before: a model of any length. After: one of the maximal length, which takes the length as an input.
    """
    work.options.tell("following time")
    options = work.options
    padding = PadLengthsPass(
        options.max, by_mask=options.mask, time_axes=options.time_axes, per_row=options.per_row
    )
    padding(work.model, work.facts)
    assert padding.metadata is not None
    work.metadata = padding.metadata
    work.notes += padding.notes


PAD: Sequence[Step[PadWork]] = (
    Step(_open_axes, "Sizes that follow from the length are not to be folded."),
    Step(settling.freeze_dims, "Later steps know more if sizes are static.", when=("fixes_sizes",)),
    Step(settling.set_inputs, "The value fills the shape, which is now known.", when=("sets",)),
    Step(settling.freeze_initializers, "Later steps know constants.", when=("may_freeze",)),
    Step(settling.simplify_model, "Branches that never run need no rule.", when=("folds",)),
    Step(settling.warn_of_suspicions, "Nothing has been moved."),
    Step(settling.lift, "A recurrent node has a rule; a Loop has none.", when=("lift",)),
    Step(_pad, "What is constant, and which nodes run, is known."),
    Step(settling.tell_of_no_steps, "Only nodes that stay differ.", when=("lift",)),
    Step(settling.strip, "Messages name nodes.", when=("strip",)),
)
"""The steps of pad, in order."""
