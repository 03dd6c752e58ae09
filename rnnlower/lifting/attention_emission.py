"""The emission of a LinearAttention in the place of a frame."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from rnnlower.graph.facts import Facts
from rnnlower.graph.names import NameSource
from rnnlower.graph.walk import LocatedNode, is_read, producer_of
from rnnlower.lifting.affine_forms import NotLiftableError
from rnnlower.lifting.attention import FoundAttention, find_attentions
from rnnlower.lifting.attention_reads import Product, Read, indices_of
from rnnlower.lifting.frames import Frame
from rnnlower.lifting.lifted_nodes import LiftedNode, emit_state_operator, open_emitter, replace_lifted
from rnnlower.lifting.product_sums import Term
from rnnlower.lifting.vectorizing import StepVectorizer
from rnnlower.lowering.emitter import RuntimeDim
from rnnlower.recurrent.state_operators import LINEAR_ATTENTION


def lift_attentions(
    facts: Facts,
    names: NameSource,
    located: LocatedNode,
    frame: Frame,
    no_cell: Exception,
    *,
    shifts: bool = True,
) -> list[LiftedNode]:
    """Replace a frame by LinearAttentions, one for each state, at opset 26 and below com.microsoft's.

    `no_cell` is why it is none of the other operators. Without `shifts`, a state that is read before it
    changes stays.

    Raises:
        NotLiftableError: It computes something else; nothing has changed.
    """
    body = located.node.attributes["body"].as_graph()
    try:
        found = find_attentions(facts, frame, body)
        if not shifts and any(each.is_read_before for each in found):
            raise NotLiftableError("the state is read before it changes")
    except NotLiftableError as error:
        raise NotLiftableError(f"{no_cell}; as a LinearAttention: {error}") from None
    with open_emitter(facts, names, located, ir.DataType.FLOAT) as e:
        vectorizer = StepVectorizer(e, facts, frame, found[0].products)
        ends = [
            end
            for each in found
            for end in _AttentionEmitter(vectorizer, facts, frame, each).emit(located.name)
        ]
        replaced = [*_emit_outputs(vectorizer, frame), *ends, *frame.unchanged]
    replace_lifted(facts, located, frame.node, e.nodes, replaced)
    form, reports = located.node.op_type.lower(), []
    for each in found:
        sizes = each.products.dims(each.state.before)[1:]
        size = math.prod(size for size in sizes if isinstance(size, int))
        reports.append(LiftedNode(located.name, located.path, form, LINEAR_ATTENTION, "forward", size))
    return reports


def _emit_outputs(vectorizer: StepVectorizer, frame: Frame) -> list[tuple[ir.Value, ir.Value]]:
    """Emit the tensors that the steps write; return the values of the graph with their replacements."""
    results = []
    for series in (each for each in frame.outputs if is_read(each.outer)):
        value, has_time = vectorizer.emit(series.inner)
        if not has_time:
            rank = len(vectorizer.products.dims(series.inner))
            vectorizer.define(series.inner, vectorizer.repeat(value, rank))
        results.append((series.outer, vectorizer.emit_output(series)))
    return results


class _AttentionEmitter:
    """An emitter of one LinearAttention."""

    def __init__(self, vectorizer: StepVectorizer, facts: Facts, frame: Frame, found: FoundAttention) -> None:
        self.e, self.facts, self.frame, self.found = vectorizer.e, facts, frame, found
        self.vectorizer = vectorizer
        self.value_axes = () if found.value_axis is None else (found.value_axis,)
        rows = [axis for axis in found.axes if axis not in (found.key_axis, *self.value_axes)]
        self.head_axes = [axis for axis in rows if isinstance(found.products.sizes[axis], int)][-1:]
        self.row_axes = [axis for axis in rows if axis not in self.head_axes]
        self.order = [*self.row_axes, *self.head_axes, found.key_axis, *self.value_axes]

    def size(self, axes: Sequence[int]) -> RuntimeDim:
        """Return the size of an axis, or 1 if there is none."""
        return self.vectorizer.size(self.found.products.sizes[axes[0]]) if axes else 1

    def emit(self, name: str) -> list[tuple[ir.Value, ir.Value]]:
        """Emit the node; return the final state in the graph, if it is read, with its replacement."""
        e, found, read = self.e, self.found, self.found.read
        batch, steps, heads = self.size(self.row_axes), self.vectorizer.steps, self.size(self.head_axes)
        assert isinstance(heads, int)
        groups = tuple(axis for axis in read.axes if axis not in found.axes) if read else ()
        group = self.size(groups)
        values = self.size(self.value_axes)
        assert isinstance(group, int)
        assert isinstance(values, int)
        key = (found.key_axis,)
        query = self.emit_product(Product(1.0, read.query.factors), (*groups, *key)) if read else None
        keys = self.emit_product(found.key, key)
        inputs = [
            query or keys,
            keys,
            self.emit_product(found.value, self.value_axes),
            None if found.decay is None else self.emit_log_decay(found.decay),
            None if found.beta is None else self.emit_product(found.beta, ()),
        ]
        if found.is_read_before:
            # After a first step that changes nothing, each query meets the state before its own step.
            inputs = [each and self.add_step(each, is_last=each is query) for each in inputs]
        inputs.insert(3, self.emit_initial_state())
        rule = "delta" if found.beta is not None else "linear"
        if found.decay is not None:
            rule = "gated_delta" if found.beta is not None else "gated"
        attributes = [
            ir.AttrInt64("q_num_heads", heads * group),
            ir.AttrInt64("kv_num_heads", heads),
            ir.AttrFloat32("scale", read.query.coef if read else 1.0),
            ir.AttrString("update_rule", rule),
        ]
        outputs = emit_state_operator(e, name, LINEAR_ATTENTION, inputs, attributes)
        if read is not None:
            output = self.with_shape(outputs[0], heads * group * values, is_longer=found.is_read_before)
            if found.is_read_before:
                output = self.with_shape(e.slice(output, [0], [-1], [1]), heads * group * values)
            for term in read.added:
                output = e.op("Add", output, self.emit_added(term, (*groups, *self.value_axes)))
            self.define_read(read, e.reshape(output, [batch, steps, heads, group, values]), groups)
        return self.emit_final_state(outputs[1])

    def with_shape(self, output: ir.Value, width: int, *, is_longer: bool = False) -> ir.Value:
        """Declare the shape of an output, so that older opsets have the Reshape that follows."""
        rows, steps = (
            self.found.products.sizes[self.row_axes[0]] if self.row_axes else 1,
            self.vectorizer.named_steps(),
        )
        if is_longer:
            steps = steps + 1 if isinstance(steps, int) else None
        output.type = ir.TensorType(ir.DataType.FLOAT)
        output.shape = ir.Shape([rows, steps, width])
        return output

    def add_step(self, value: ir.Value, *, is_last: bool) -> ir.Value:
        """Add a first or last step of zeros."""
        pads = [0, 0, 0, 0, 1, 0] if is_last else [0, 1, 0, 0, 0, 0]
        if self.e.opset < 11:
            return self.e.op("Pad", value, pads=pads)
        return self.e.op("Pad", value, self.e.integers(*pads))

    def define_read(self, read: Read, output: ir.Value, groups: Sequence[int]) -> None:
        """Let the steps read the output as what they read of the state."""
        e, found = self.e, self.found
        axes = [(0, self.row_axes), (2, self.head_axes), (3, groups), (4, self.value_axes)]
        places = {axis: place for place, own in axes for axis in own}
        ones = [place for place, own in axes if not own]
        output = e.transpose(output, [1, *(places[axis] for axis in read.axes), *ones])
        dims = [self.vectorizer.size(size) for size in found.products.dims(read.value)]
        self.vectorizer.define(read.value, e.reshape(output, [self.vectorizer.steps, *dims]))

    def emit_added(self, term: Term, axes: Sequence[int]) -> ir.Value:
        """Emit what is added to what is read of the state, as the output."""
        e, summed = self.e, tuple(term.summed)
        inner = [factor for factor in term.factors if {*summed} & indices_of(factor)]
        outside = tuple(factor for factor in term.factors if factor not in inner)
        total = self.multiply(Product(term.coef, outside), axes)
        if inner:
            part = self.multiply(Product(1.0, tuple(inner)), (*axes, *summed))
            size = self.size(summed)
            assert isinstance(size, int)
            ones = e.constant(np.ones((size, 1), np.float32))
            rank = len(self.row_axes) + len(self.head_axes) + len(axes) + 1
            total = e.op("Mul", e.with_axes("Squeeze", e.op("MatMul", part, ones), [rank]), total)
        return self.pack(total, axes)

    def emit_initial_state(self) -> ir.Value | None:
        """Emit the initial state, unless it is zero."""
        constant = self.facts.constant(self.found.state.start)
        if constant is not None and not constant.any():
            return None
        value = self.e.transpose(self.found.state.start, self.state_axes())
        key, values = self.size([self.found.key_axis]), self.size(self.value_axes)
        return self.e.reshape(value, [self.size(self.row_axes), self.size(self.head_axes), key, values])

    def state_axes(self) -> list[int]:
        """Return the axes of the state: first those of size 1, then rows, heads, keys and values."""
        found = self.found
        dims = found.products.dims(found.state.before)
        used = [axis for axis, size in enumerate(dims) if size != 1]
        ones = [axis for axis, size in enumerate(dims) if size == 1]
        return [*ones, *(used[found.axes.index(axis)] for axis in self.order)]

    def emit_final_state(self, present: ir.Value) -> list[tuple[ir.Value, ir.Value]]:
        """Emit the final state in the layout of the step's state."""
        end = self.found.state.end
        if not is_read(end):
            return []
        axes = self.state_axes()
        sizes = [self.size([axis]) for axis in self.order]
        value = self.e.reshape(present, [*[1] * (len(axes) - len(sizes)), *sizes])
        return [(end, self.e.transpose(value, [axes.index(axis) for axis in range(len(axes))]))]

    def emit_log_decay(self, decay: Product) -> ir.Value:
        """Emit the logarithm of a decay; that of an Exp is its input."""
        key = self.found.key_axis
        per_key = (key,) if any(key in axis for _, axes in decay.factors for axis in axes) else ()
        return self.emit_product(decay, per_key, is_log=True)

    def emit_log(self, value: ir.Value) -> tuple[ir.Value, bool]:
        """Emit the logarithm of a value for all steps, as the vectorizer does."""
        exp = producer_of(value, "Exp") if value not in self.frame.aliases else None
        if exp is not None and exp.inputs[0] is not None:
            return self.vectorizer.emit(exp.inputs[0])
        for series in (each for each in self.frame.inputs if each.inner is value):
            exp = producer_of(series.outer, "Exp")
            if exp is not None and exp.inputs[0] is not None:
                return self.vectorizer.emit_series(dataclasses.replace(series, outer=exp.inputs[0])), True
        given, has_time = self.vectorizer.emit(value)
        return self.e.op("Log", given), has_time

    def emit_product(self, product: Product, axes: Sequence[int], *, is_log: bool = False) -> ir.Value:
        """Emit a product, or its logarithm, as ``[batch, steps, heads * size of the axes]``."""
        return self.pack(self.multiply(product, axes, is_log=is_log), axes)

    def multiply(self, product: Product, axes: Sequence[int], *, is_log: bool = False) -> ir.Value:
        """Emit a product, or its logarithm, so that it broadcasts to ``[steps, rows, heads, ...axes]``."""
        e, op_type, total = self.e, "Add" if is_log else "Mul", None
        for value, own in product.factors:
            part = self.lay_out(*(self.emit_log if is_log else self.vectorizer.emit)(value), own, axes)
            total = part if total is None else e.op(op_type, total, part)
        if product.coef != 1 or total is None:
            number = e.op("Log", e.scalar(product.coef)) if is_log else e.scalar(product.coef)
            total = number if total is None else e.op(op_type, total, number)
        return total

    def lay_out(
        self, given: ir.Value, has_time: bool, own: Sequence[Sequence[int]], axes: Sequence[int]
    ) -> ir.Value:
        """Emit a factor as ``[steps, rows, heads, ...axes]``, with size 1 where it has no such axis."""
        e, sizes = self.e, self.found.products.sizes
        wanted = [*self.row_axes, *self.head_axes, *axes]
        flat = [index for axis in own for index in axis]
        lead: list[RuntimeDim] = [self.vectorizer.steps] if has_time else [1]
        dims = [self.vectorizer.size(sizes[index]) for index in flat]
        if not has_time or [(index,) for index in flat] != [*own]:
            given = e.reshape(given, [*lead, *dims])
        order = [flat.index(index) + 1 for index in wanted if index in flat]
        if order != sorted(order):
            given = e.transpose(given, [0, *order])
        missing = [place + 1 for place, index in enumerate(wanted) if index not in flat]
        return e.with_axes("Unsqueeze", given, missing) if missing else given

    def pack(self, value: ir.Value, axes: Sequence[int]) -> ir.Value:
        """Emit ``[batch, steps, heads * ...axes]`` of ``[steps, rows, heads, ...axes]``, broadcast to it."""
        e, steps = self.e, self.vectorizer.steps
        batch, heads = self.size(self.row_axes), self.size(self.head_axes)
        inner = [self.size([axis]) for axis in axes]
        whole = [*([batch] if self.row_axes else []), *([heads] if self.head_axes else []), *inner]
        value = e.op("Expand", value, e.size_vector([steps, *whole]), since=8)
        if self.row_axes:
            value = e.transpose(value, [1, 0, *range(2, len(whole) + 1)])
        width = 1
        for size in (heads, *inner):
            assert isinstance(size, int)
            width *= size
        return e.reshape(value, [batch, steps, width])
