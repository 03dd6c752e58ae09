"""The rule of each known operator over time, one row per operator; any other operator is refused."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.graph.operator_kinds import POINTWISE
from rnnlower.timeflow.bounds import BOUNDS
from rnnlower.timeflow.convolutions import WINDOWS
from rnnlower.timeflow.flow import Flow, Rule
from rnnlower.timeflow.loop_bodies import LOOPS
from rnnlower.timeflow.pointwise import ALONG, elementwise
from rnnlower.timeflow.recurrence import RECURRENCE
from rnnlower.timeflow.reshaping import RESHAPING
from rnnlower.timeflow.tracks import Sample
from rnnlower.timeflow.windowed_attention import SCORES

RULES: dict[str, Rule] = {
    **dict.fromkeys(POINTWISE, elementwise),
    **ALONG,
    **RESHAPING,
    **BOUNDS,
    **WINDOWS,
    **RECURRENCE,
    **LOOPS,
}


def follow(model: ir.Model, sample: Sample, *, strict: bool = False) -> Flow:
    """Follow the time axis of the sample's inputs through a main graph without function calls.

    The result has the track of each value over time, and the obstacles.

    Raises:
        CoupledError: A node couples time steps, and the flow is strict.
    """
    return Flow(model, sample, RULES, SCORES, strict=strict).run()
