"""Scan-8, which has a batch axis, as a Scan-9 over the rows of the batch.

Each row is again a Scan. With sequence_lens it is a Loop of as many iterations as the row has steps,
and its results are padded to the longest row with zeros, where Scan-8 leaves the values undefined.
"""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from rnnlower.opset.step import Step


def scan_9_up(step: Step) -> None:
    """Scan-8 has a batch axis: an outer Scan iterates over its rows."""
    body, directions = step.attr("body"), step.attr("directions")
    scans = step.attr("num_scan_inputs")
    lengths, *values = step.node.inputs
    given = [value for value in (lengths, *values) if value is not None]
    rows = [_row_of(step, value) for value in given]
    writer = _Rows(step)
    if lengths is None:
        outputs = writer.scan(body, rows, scans, directions)
    else:
        outputs = writer.loop(body, rows[0], rows[1:], directions or [0] * scans)
    for outer, value in zip(step.node.outputs, outputs, strict=True):
        dtype, shape = step.dtype(outer), step.shape(outer)
        value.type = None if dtype is None else ir.TensorType(dtype)
        value.shape = None if shape is None else ir.Shape(shape[1:])
    name = step.session.fresh(f"{step.node.name or 'scan'}_batch")
    graph = ir.Graph(rows, outputs, nodes=writer.nodes, name=name)
    step.node.attributes.clear()
    step.set_inputs(*given)
    step.set("body", ir.AttrGraph("body", graph))
    step.set("num_scan_inputs", len(given))


def _row_of(step: Step, value: ir.Value) -> ir.Value:
    dtype, shape = step.dtype(value), step.shape(value)
    row = ir.Value(name=step.session.fresh(f"{value.name}_row"))
    row.type = None if dtype is None else ir.TensorType(dtype)
    row.shape = None if shape is None else ir.Shape(shape[1:])
    step.session.types.alias(row, row)
    return row


class _Rows:
    """A writer of the nodes, of opset 9, that process one row."""

    def __init__(self, step: Step) -> None:
        self.step = step
        self.nodes: list[ir.Node] = []

    def scan(
        self, body: ir.Graph, rows: list[ir.Value], scans: int, directions: list[int] | None
    ) -> list[ir.Value]:
        """Write the Scan of a row without lengths."""
        attributes: dict[str, Any] = {"body": body, "num_scan_inputs": scans}
        if directions:
            attributes["scan_input_directions"] = list(directions)
        return self._add(self.nodes, "Scan", rows, attributes, len(body.outputs))

    def loop(
        self, body: ir.Graph, length: ir.Value, rows: list[ir.Value], directions: list[int]
    ) -> list[ir.Value]:
        """Write the Loop of a row with lengths, whose results are padded."""
        states = len(rows) - len(directions)
        elements = list(body.outputs)
        inner: list[ir.Node] = []
        loop_body = self._loop_body(body, length, rows[states:], directions, inner)
        results = self._add(
            self.nodes, "Loop", [length, None, *rows[:states]], {"body": loop_body}, len(elements)
        )
        longest = self._size(self.nodes, rows[states])
        return results[:states] + [
            self._filled(value, length, longest, element)
            for value, element in zip(results[states:], elements[states:], strict=True)
        ]

    def _loop_body(
        self,
        body: ir.Graph,
        length: ir.Value,
        sequences: list[ir.Value],
        directions: list[int],
        nodes: list[ir.Node],
    ) -> ir.Graph:
        number = ir.Value(name=self._fresh("step"), type=ir.TensorType(ir.DataType.INT64), shape=ir.Shape([]))
        goes_on = ir.Value(
            name=self._fresh("go_on"), type=ir.TensorType(ir.DataType.BOOL), shape=ir.Shape([])
        )
        one = self._const(nodes, 1)
        last = self._one(nodes, "Sub", [length, one])
        backwards = self._one(nodes, "Sub", [last, number])
        states = list(body.inputs)[: len(body.inputs) - len(sequences)]
        elements = list(body.inputs)[len(states) :]
        for element, sequence, direction in zip(elements, sequences, directions, strict=True):
            position = backwards if direction else number
            ir.convenience.replace_all_uses_with(
                element, self._one(nodes, "Gather", [sequence, position], axis=0), replace_graph_outputs=True
            )
        outputs, own = list(body.outputs), list(body)
        initializers = list(body.initializers.values())
        body.inputs.clear()
        body.outputs.clear()
        body.initializers.clear()
        body.remove(own)
        nodes += own
        # If an output of a Loop's body were one of its inputs, one value would need two names.
        results = [self._one(nodes, "Identity", [value]) for value in (goes_on, *outputs)]
        return ir.Graph(
            [number, goes_on, *states],
            results,
            nodes=nodes,
            initializers=initializers,
            name=body.name,
            doc_string=body.doc_string,
            metadata_props=dict(body.metadata_props),
        )

    def _filled(
        self, value: ir.Value, length: ir.Value, longest: ir.Value, element: ir.Value | None
    ) -> ir.Value:
        nodes = self.nodes
        missing = self._one(nodes, "Sub", [longest, self._one(nodes, "Unsqueeze", [length], axes=[0])])
        shape = self._one(nodes, "Shape", [value])
        rest = self._one(nodes, "Slice", [shape], axes=[0], starts=[1], ends=[2**31 - 1])
        wanted = self._one(nodes, "Concat", [missing, rest], axis=0)
        dtype = self.step.known_dtype(element) if element is not None else ir.DataType.FLOAT
        zero = ir.Tensor(ir.tensor([0], ir.DataType.INT64).numpy().astype(dtype.numpy()), dtype=dtype)
        zeros = self._one(nodes, "ConstantOfShape", [wanted], value=ir.AttrTensor("value", zero))
        return self._one(nodes, "Concat", [value, zeros], axis=0)

    def _size(self, nodes: list[ir.Node], value: ir.Value) -> ir.Value:
        shape = self._one(nodes, "Shape", [value])
        return self._one(nodes, "Slice", [shape], axes=[0], starts=[0], ends=[1])

    def _const(self, nodes: list[ir.Node], number: int) -> ir.Value:
        return self._one(nodes, "Constant", [], value=ir.tensor(number, ir.DataType.INT64))

    def _one(
        self, nodes: list[ir.Node], op_type: str, inputs: list[ir.Value | None], **attributes: Any
    ) -> ir.Value:
        return self._add(nodes, op_type, inputs, attributes, 1)[0]

    def _add(
        self,
        nodes: list[ir.Node],
        op_type: str,
        inputs: list[ir.Value | None] | list[ir.Value],
        attributes: dict[str, Any],
        count: int,
    ) -> list[ir.Value]:
        node = ir.node(op_type, inputs, attributes, num_outputs=count, name=self._fresh(op_type.lower()))
        for value in node.outputs:
            value.name = self._fresh(f"{op_type.lower()}_row")
        nodes.append(node)
        return list(node.outputs)

    def _fresh(self, what: str) -> str:
        return self.step.session.fresh(f"{self.step.node.name or 'scan'}_{what}")
