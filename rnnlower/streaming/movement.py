"""Operators that move whole axes."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from rnnlower.streaming.edits import Replaced, SetAttribute
from rnnlower.streaming.facts import CoupledError, number, numbers
from rnnlower.streaming.flow import LATEST, Flow, Outcome, Rule
from rnnlower.streaming.moved import axes_of, moved_track


def _transpose(flow: Flow, node: ir.Node) -> Outcome:
    track, rank = moved_track(flow, node), len(flow.shape(node))
    perm = numbers(node, "perm") or tuple(reversed(range(rank)))
    return track.at(perm.index(track.axis))


def _squeeze(flow: Flow, node: ir.Node) -> Outcome:
    track, shape = moved_track(flow, node), flow.shape(node)
    axes = axes_of(flow, node)
    if axes is None:
        axes = [axis for axis, size in enumerate(shape) if size == 1]
        if track.chunk_size == 1 and track.axis not in axes:
            flow.edits.append(_explicit_squeeze(flow, node, axes))
    gone = {axis % len(shape) for axis in axes}
    if track.axis in gone:
        return LATEST
    return track.at(track.axis - sum(axis < track.axis for axis in gone))


def _explicit_squeeze(flow: Flow, node: ir.Node, axes: list[int]) -> Replaced | SetAttribute:
    if flow.opset < 13:
        return SetAttribute(node, "axes", tuple(axes))
    return Replaced(node, 1, np.array(axes, np.int64))


def _unsqueeze(flow: Flow, node: ir.Node) -> Outcome:
    track, rank = moved_track(flow, node), len(flow.result(node))
    new = {axis % rank for axis in axes_of(flow, node) or ()}
    return track.at([axis for axis in range(rank) if axis not in new][track.axis])


def _tile(flow: Flow, node: ir.Node) -> Outcome:
    track, content = moved_track(flow, node), flow.content(node, 1)
    if content is None or flow.fact(node.inputs[1]).is_sized:
        raise CoupledError("repeats by a number that is not constant")
    if int(content[0].reshape(-1)[track.axis]) != 1:
        raise CoupledError("repeats the sequence")
    return track


def _split(flow: Flow, node: ir.Node) -> Outcome:
    track = moved_track(flow, node)
    if number(node, "axis", 0) % len(flow.shape(node)) == track.axis:
        raise CoupledError("cuts the sequence into parts")
    return track


def _range(flow: Flow, node: ir.Node) -> Outcome:
    raise CoupledError("numbers the steps from the first one: a stream has no positions")


MOVEMENT: dict[str, Rule] = {
    "Range": _range,
    "Split": _split,
    "Squeeze": _squeeze,
    "Tile": _tile,
    "Transpose": _transpose,
    "Unsqueeze": _unsqueeze,
}
