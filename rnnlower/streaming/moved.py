"""Common parts of operators that only move values: the track of the moved value, and the axes."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.streaming.facts import CoupledError, Track, numbers
from rnnlower.streaming.flow import Flow


def moved_track(flow: Flow, node: ir.Node) -> Track:
    """Return the track of the moved value; the other inputs only control the move."""
    track = flow.track(node)
    if track is None:
        raise CoupledError(
            "takes sizes or positions from the number of time steps in a way that is not followed"
        )
    for index in range(1, len(node.inputs)):
        if flow.fact(node.inputs[index]).streams:
            raise CoupledError("moves values to positions that follow from the stream")
    return track


def axes_of(flow: Flow, node: ir.Node, index: int = 1) -> list[int] | None:
    """Return the axes of an operator: an attribute, or the constant input at ``index``."""
    given = numbers(node, "axes")
    content = flow.content(node, index)
    if given is None and content is not None:
        given = tuple(int(axis) for axis in content[0].reshape(-1))
    if given is None and index < len(node.inputs) and node.inputs[index] is not None:
        raise CoupledError("moves axes that are not constant")
    return None if given is None else list(given)
