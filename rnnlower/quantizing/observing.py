"""Ranges by role: the float recurrence runs over recordings, with the values of each role as outputs.

The same lowering announces the same roles to the observer and to the quantizer.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import pathlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import onnx_ir as ir

from rnnlower import wording
from rnnlower.engines.session import IsolatedSession
from rnnlower.errors import OptionError, UnsupportedModelError
from rnnlower.files.model_io import to_proto
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.walk import LocatedNode, subgraphs_of
from rnnlower.lowering.node_emitter import Listener, NodeEmitter
from rnnlower.passes.options import LoweringOptions
from rnnlower.passes.pipeline import lower_model
from rnnlower.quantizing.recordings import Array, Feeds, open_model, run_on_recording


@dataclasses.dataclass(frozen=True, order=True)
class Role:
    """A role of values, at a node and in a direction (``""`` for both)."""

    node: str
    direction: str
    name: str

    def to_dict(self) -> dict[str, Any]:
        """Return the role as JSON data."""
        return {"node": self.node, "direction": self.direction, "role": self.name}


@dataclasses.dataclass(frozen=True)
class Range:
    """The least and the largest value of a role over all steps."""

    least: float
    largest: float

    @property
    def is_zero(self) -> bool:
        """True if nothing but 0 was seen."""
        return self.least == self.largest == 0

    def union(self, other: Range) -> Range:
        return Range(min(self.least, other.least), max(self.largest, other.largest))

    def scaled(self, factor: float) -> Range:
        return Range(self.least * factor, self.largest * factor)

    def tightened(self, seen: Range) -> Range:
        """Return the range halved as often as it still contains the range that was seen, unless that is 0."""
        half = self.scaled(0.5)
        inside = half.least <= seen.least and seen.largest <= half.largest and not seen.is_zero
        return half.tightened(seen) if inside and half.largest > _MIN_HALVED else self


Ranges = dict[Role, Range]

_MIN_HALVED = 2.0**-20
"""Where halving ends: values may be very small."""

_MAX_FLOAT = float(np.finfo(np.float32).max)

COMPLEMENT = "1-"
"""The prefix of the role of 1 minus a gate; its range follows from the gate's."""

FACTOR = " factor"
"""The suffix of the role of a factor of a product; the value itself has another role already."""


def _make_observer(located: LocatedNode, seen: dict[ir.Value, Role]) -> Listener:
    """Return a listener that records the role of each value of a node and leaves the values unchanged."""

    def note(e: NodeEmitter, value: ir.Value, role: str, direction: str) -> ir.Value:
        if constant_of(value) is None and not (role.endswith(FACTOR) or role.startswith(COMPLEMENT)):
            seen.setdefault(value, Role(str(located), direction, role))
        return value

    return note


def observed_values(model: ir.Model, feeds: Iterable[Feeds]) -> Iterator[list[tuple[Role, Array]]]:
    """Yield the values of each role, call by call.

    Raises:
        UnsupportedModelError: A recurrent node is in a subgraph.
        UnverifiableError: The model does not run without onnxruntime's optimizations.
    """
    opened: dict[tuple[tuple[str, tuple[int, ...]], ...], tuple[IsolatedSession, dict[str, Role]]] = {}
    with contextlib.ExitStack() as stack:
        for call in feeds:
            key = tuple((name, array.shape) for name, array in call.items())
            if key not in opened:
                opened[key] = _open_observed(model, dict(key))
                stack.callback(opened[key][0].close)
            session, roles = opened[key]
            outputs = run_on_recording(session, call)
            yield [(role, outputs[name]) for name, role in roles.items()]


def _open_observed(
    model: ir.Model, shapes: Mapping[str, tuple[int, ...]]
) -> tuple[IsolatedSession, dict[str, Role]]:
    """Open the model with its recurrences as Loops; return the session and the roles of the added outputs.

    A Loop, unlike a Scan, needs no If around it where the number of steps may be 0.
    """
    own = model.clone()
    seen: dict[ir.Value, Role] = {}
    sizes = {name: list(shape) for name, shape in shapes.items()}
    options = LoweringOptions("loop", input_shapes=sizes, fold=False, gates="fused")
    lower_model(own, options, lambda located: _make_observer(located, seen))
    roles = dict(_expose_roles(own, seen))
    return open_model(to_proto(own), optimize=False), roles


def find_ranges(model: ir.Model, feeds: Iterable[Feeds]) -> Ranges:
    """Return the range of each role, pooled over all steps of all calls.

    Raises:
        UnsupportedModelError: A value is NaN or infinite.
    """
    ranges: Ranges = {}
    for role, values in itertools.chain.from_iterable(observed_values(model, feeds)):
        if not np.isfinite(values).all():
            raise UnsupportedModelError(
                f"{role.name!r} of node {role.node!r} is NaN or infinite on a recording, and has no range",
                remedy="leave out that recording, or correct the model",
            )
        if values.size:
            found = Range(float(np.min(values)), float(np.max(values)))
            ranges[role] = found.union(ranges.get(role, found))
    return ranges


def _expose_roles(model: ir.Model, seen: Mapping[ir.Value, Role]) -> Iterator[tuple[str, Role]]:
    """Make values of the main graph and of the bodies of its Loops graph outputs; yield their names."""
    owners = {body: node for node in model.graph for body in subgraphs_of(node)}
    names = NameSource(all_names(model))
    for number, (value, role) in enumerate(seen.items()):
        node = value.producer()
        if node is None and value not in model.graph.inputs:
            continue
        graph = model.graph if node is None else node.graph
        assert graph is not None
        type_ = value.type or ir.TensorType(ir.DataType.FLOAT)
        outer = ir.Value(name=names.fresh(f"rnnlower.role.{number}"), type=type_)
        # An output of a body must be none of its inputs, nor another output.
        graph.append(ir.node("Identity", [value], outputs=[outer]))
        if graph is not model.graph:
            owner = owners.get(graph)
            if owner is None or owner.op_type != "Loop":
                options = {"target": "onnxruntime", "native": "keep", "control-flow": "unroll"}
                unrolling = wording.call("lower", **options)
                raise UnsupportedModelError(
                    f"node {role.node!r} is in a subgraph, where its ranges cannot be observed",
                    remedy=f"set inputs that decide branches or shapes ({wording.sets('NAME')}), "
                    f"or unroll Loops first: `{unrolling}`",
                )
            graph.outputs.append(outer)
            outer = _add_output(owner, names.fresh(f"rnnlower.role.{number}.steps"))
        model.graph.outputs.append(outer)
        yield str(outer.name), role


def _add_output(loop: ir.Node, name: str) -> ir.Value:
    """Add an output to a Loop whose body has one more, and return it."""
    loop.resize_outputs(len(loop.outputs) + 1)
    value = loop.outputs[-1]
    value.name, value.type = name, ir.TensorType(ir.DataType.FLOAT)
    return value


def ranges_to_json(ranges: Ranges) -> str:
    """Return the ranges as the text of a JSON file."""
    entries = [
        role.to_dict() | {"min": ranges[role].least, "max": ranges[role].largest} for role in sorted(ranges)
    ]
    return json.dumps({"ranges": entries}, indent=1) + "\n"


def read_ranges(paths: Iterable[pathlib.Path]) -> Ranges:
    """Read files of ranges, and pool the ranges of each role.

    Raises:
        OptionError: One is not such a file.
    """
    ranges: Ranges = {}
    for path in paths:
        try:
            for entry in json.loads(path.read_text(encoding="utf-8"))["ranges"]:
                role = Role(entry["node"], entry["direction"], entry["role"])
                found = Range(float(entry["min"]), float(entry["max"]))
                if not -_MAX_FLOAT <= found.least <= found.largest <= _MAX_FLOAT:
                    raise ValueError(
                        f"{role.name!r} of node {role.node!r} is from {found.least} to {found.largest}"
                    )
                ranges[role] = found.union(ranges.get(role, found))
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise OptionError(
                f"{path} is no file of ranges ({error!r}); `rnnlower calibrate --ranges` writes one"
            ) from error
    return ranges
