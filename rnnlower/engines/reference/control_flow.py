"""Loop and Scan for the evaluator.

onnx's own versions stack scan outputs along the wrong axis if they have rank 2 or more (Loop), support
neither axes nor directions (Scan), treat an omitted Loop condition as false, and cannot do zero iterations.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from onnx import NodeProto
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference.op_run import OpRun

from rnnlower.engines.reference.activation_functions import Array
from rnnlower.errors import InvalidModelError


def _stack(values: Sequence[Array], body: Any, index: int) -> Array:
    """Return the stack; without iterations as the body declares it, with 0 for unknown dimensions."""
    if values:
        return np.stack(values)
    tensor = body.output_types_[index].tensor_type
    shape = [d.dim_value if d.HasField("dim_value") else 0 for d in tensor.shape.dim]
    return np.empty((0, *shape), tensor_dtype_to_np_dtype(tensor.elem_type))


# Seconds after which a Loop is given up: it may never end.
LONGEST_LOOP = 600.0


def inputs_of(nodes: Iterable[NodeProto]) -> Iterator[str]:
    """Yield the names that nodes read, and their subgraphs from outside."""
    for node in nodes:
        yield from node.input
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                own = {name for inner in graph.node for name in inner.output}
                own |= {value.name for value in (*graph.input, *graph.initializer)}
                yield from {*inputs_of(graph.node), *(value.name for value in graph.output)} - own


class _Body(OpRun):  # type: ignore[misc,unused-ignore]
    """An operator with a ``body`` that can read the enclosing scope."""

    body: Any

    def need_context(self) -> bool:
        return True

    @cached_property
    def _reads(self) -> set[str]:
        return {*self.body.output_names, *inputs_of(self.body.nodes_)}

    def _iterate(self, context: dict[str, Any], inputs: Sequence[Any]) -> list[Any]:
        feeds = {name: context[name] for name in self._reads if name in context}
        feeds.update(zip(self.body.input_names, inputs, strict=True))
        outputs: list[Any] = self.body.run(None, feeds, attributes={})
        return outputs


class Loop(_Body):
    """Loop of versions 1, 11, 13 and later."""

    def _run(self, M: Array | None, cond: Array | None, *carried: Any, **attributes: Any) -> tuple[Any, ...]:
        context = attributes["context"]
        state = list(carried)
        stacks: list[list[Array]] = [[] for _ in self.body.output_names[1 + len(state) :]]
        keep_going = True if cond is None else bool(np.asarray(cond).item())
        limit = None if M is None else int(np.asarray(M).item())
        iteration = 0
        deadline = time.monotonic() + LONGEST_LOOP
        while keep_going and (limit is None or iteration < limit):
            inputs = [np.array(iteration, np.int64), np.array(keep_going), *state]
            condition, *outputs = self._iterate(context, inputs)
            if time.monotonic() > deadline:
                raise RuntimeError(f"a Loop has not ended after {LONGEST_LOOP:.0f} s and {iteration:,} steps")
            # If the cond input is omitted, the body's condition counts.
            keep_going = bool(np.asarray(condition).item())
            state = outputs[: len(state)]
            for stack, value in zip(stacks, outputs[len(state) :], strict=True):
                stack.append(value)
            iteration += 1
        first = 1 + len(state)
        return (*state, *(_stack(s, self.body, first + k) for k, s in enumerate(stacks)))


def _option(values: Sequence[int] | None, count: int) -> list[int]:
    return list(values) if values else [0] * count


def _scan(op: _Body, context: dict[str, Any], states: list[Any], slices: Sequence[Array], length: int) -> Any:
    """Run ``op.body`` over the leading axis of ``slices``; return the final states and the stacks."""
    stacks: list[list[Array]] = [[] for _ in op.body.output_names[len(states) :]]
    for step in range(length):
        outputs = op._iterate(context, [*states, *(s[step] for s in slices)])
        for stack, value in zip(stacks, outputs[len(states) :], strict=True):
            stack.append(value)
        states = outputs[: len(states)]
    return states, [_stack(s, op.body, len(states) + k) for k, s in enumerate(stacks)]


class Scan_9(_Body):  # noqa: N801 (named after the version)
    """Scan of versions 9, 11 and later: axes and directions, including zero steps."""

    def _run(self, *args: Any, **attributes: Any) -> tuple[Any, ...]:
        count = attributes["num_scan_inputs"]
        states, scanned = list(args[: len(args) - count]), args[len(args) - count :]
        axes = _option(attributes.get("scan_input_axes"), count)
        backwards = _option(attributes.get("scan_input_directions"), count)
        slices = [np.moveaxis(x, axis, 0) for x, axis in zip(scanned, axes, strict=True)]
        slices = [x[::-1] if back else x for x, back in zip(slices, backwards, strict=True)]
        if len({x.shape[0] for x in slices}) != 1:
            raise InvalidModelError(f"Scan node {self.onnx_node.name!r}: scan inputs differ in length")
        states, stacks = _scan(self, attributes["context"], states, slices, slices[0].shape[0])
        out_axes = _option(attributes.get("scan_output_axes"), len(stacks))
        out_backwards = _option(attributes.get("scan_output_directions"), len(stacks))
        stacks = [s[::-1] if back else s for s, back in zip(stacks, out_backwards, strict=True)]
        return (*states, *(np.moveaxis(s, 0, axis) for s, axis in zip(stacks, out_axes, strict=True)))


class Scan_8(_Body):  # noqa: N801 (named after the version)
    """Scan of version 8: a leading batch dimension on all values, and optional sequence lengths."""

    def _run(self, sequence_lens: Array | None, *args: Any, **attributes: Any) -> tuple[Any, ...]:
        count = attributes["num_scan_inputs"]
        backwards = _option(attributes.get("directions"), count)
        num_states = len(args) - count
        batch, length = args[num_states].shape[:2]
        lengths = np.full(batch, length) if sequence_lens is None else sequence_lens
        rows = []
        for b in range(batch):
            slices = [
                x[b, : lengths[b]][::-1] if back else x[b, : lengths[b]]
                for x, back in zip(args[num_states:], backwards, strict=True)
            ]
            states, stacks = _scan(
                self, attributes["context"], [s[b] for s in args[:num_states]], slices, int(lengths[b])
            )
            padded = [np.pad(s, [(0, length - s.shape[0])] + [(0, 0)] * (s.ndim - 1)) for s in stacks]
            rows.append([*states, *padded])
        return tuple(np.stack(column) for column in zip(*rows, strict=True))
