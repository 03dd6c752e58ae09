"""One node at one version step: the facts that an adapter may read, and the edits that it may make."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import numpy as np
import onnx
import onnx_ir as ir

from rnnlower.errors import OpsetError
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR, constant_holds, copy_with_name, new_initializer
from rnnlower.graph.inlining import is_always_given
from rnnlower.graph.node_inference import infer_outputs
from rnnlower.graph.rewiring import set_input, take_place_of
from rnnlower.graph.versions import Version, version_at
from rnnlower.graph.walk import display_name, is_read, node_label, trim_omitted
from rnnlower.opset.conversion_state import Conversion, Subject
from rnnlower.opset.version_fit import describe_misfit

# Constants up to this size are shown to shape inference: axes, shapes and scales are small.
SHOWN = 64


class VersionStep:
    """A node at one version step, up or down, and the edits that bring it to the other version.

    New nodes are put before the node, or after one of its outputs by `wrap_output`. `opset` is the opset that
    they are written for. It is the target opset of the step, except for an operator that does not exist
    there: its replacement is written for the source opset, and converted after it.
    """

    def __init__(
        self,
        conversion: Conversion,
        graph: ir.Graph,
        node: ir.Node,
        versions: tuple[Version, Version | None],
        opsets: tuple[int, int],
        path: str,
    ) -> None:
        self.conversion = conversion
        self.graph = graph
        self.node = node
        self.old, self.new = versions
        self.source_opset, self.opset = opsets
        self.path = path
        self.made = next((str(value.name) for value in node.outputs if value.name), "")
        if self.new is None:
            self.opset = self.source_opset
        self.target = conversion.report.target
        # Of a value: its content if it is constant, its element type, rank and shape, each if it is known.
        self.array, self.dtype = conversion.types.array, conversion.types.dtype
        self.rank, self.shape = conversion.types.rank, conversion.types.shape
        # Edits put new nodes before the node, or after another one.
        self.emitted: list[ir.Node] = []
        self._after: ir.Node | None = None

    def attr(self, name: str) -> Any:
        """Return the attribute, else the old version's default; refuse a parameter."""
        attribute = self.node.attributes.get(name)
        if attribute is None:
            formal = self.old.attributes.get(name)
            return None if formal is None else formal.default
        if attribute.is_ref():
            self.refuse(
                f"its attribute {name!r} is a parameter of the function it is in",
                "inline the model's functions first",
            )
        return attribute.value

    def input(self, position: int) -> ir.Value | None:
        """Return the input at `position`, or ``None`` if it is omitted."""
        values = trim_omitted(self.node.inputs)
        return values[position] if position < len(values) else None

    def required_input(self, position: int = 0) -> ir.Value:
        """Return the input at `position`, which the operator requires."""
        value = self.input(position)
        if value is None:
            self.refuse(f"its required input {position} is missing")
        return value

    def output(self, position: int) -> ir.Value | None:
        """Return the output at `position`, or ``None`` if it is omitted."""
        values = trim_omitted(self.node.outputs)
        return values[position] if position < len(values) else None

    def used(self, position: int) -> bool:
        """Return whether anything reads the output at `position`, including graph outputs."""
        value = self.output(position)
        return value is not None and is_read(value)

    def ints(self, value: ir.Value | None) -> list[int] | None:
        """Return the content of `value` as a flat list of integers if it is constant."""
        array = self.array(value)
        return None if array is None else [int(each) for each in array.reshape(-1)]

    def known_ints(self, value: ir.Value | None, reason: str) -> list[int]:
        """Return the content of `value` as `ints` does; refuse for the reason if it is not constant."""
        values = self.ints(value)
        if values is None:
            self.refuse(reason)
        return values

    def known_number(self, value: ir.Value, reason: str) -> Any:
        """Return the number in `value`; refuse if it is empty, or for the reason if it is not constant."""
        array = self.array(value)
        if array is None or not array.size:
            self.refuse(reason if array is None else f"{value.name!r} is empty, and has to hold a number")
        return array.flat[0].item()

    def known_dtype(self, value: ir.Value) -> ir.DataType:
        """Return the element type of `value`; refuse if it is not known."""
        dtype = self.dtype(value)
        if dtype is None:
            self.refuse(f"the element type of {value.name!r} is not known", "declare it in value_info")
        return dtype

    def known_rank(self, value: ir.Value) -> int:
        """Return the rank of `value`; refuse if it is not known."""
        rank = self.rank(value)
        if rank is None:
            self.refuse(f"the rank of {value.name!r} is not known", "declare the shape in value_info")
        return rank

    def static_shape(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the shape of `value` if all its dimensions are numbers."""
        shape = self.shape(value)
        return shape.numpy() if shape is not None and shape.is_static() else None

    def refuse(self, reason: str, remedy: str = "") -> NoReturn:
        """Stop the conversion.

        Raises:
            OpsetError: Always; it names the node, the version step, `reason` and the remedy.
        """
        where = f" in {self.path}" if self.path else ""
        since, after = self.old.since, 0 if self.new is None else self.new.since
        fault = f"cannot become {self.new}" if after else f"does not exist before opset {since}"
        stay = f"ask for an opset below {after}" if after > since else f"ask for opset {since} or higher"
        advice = f"{remedy}, or {stay}" if remedy else stay
        origin = self.conversion.origins.get(self.node)
        written = f", written for {origin}" if origin else ""
        subject = Subject(self.node, self.path, f"{node_label(self.node)}{written}{where}")
        wanted = None if after > since else since
        raise OpsetError(f"{self.old} {fault}: {reason}", node=subject, remedy=advice, opset=wanted)

    def set(self, name: str, value: Any) -> None:
        """Set the attribute `name`."""
        self.node.attributes[name] = ir.convenience.convert_attribute(name, value)

    def drop(self, *names: str) -> None:
        """Remove attributes."""
        for name in names:
            self.node.attributes.pop(name, None)

    def take(self, name: str) -> Any:
        """Remove an attribute; return its value, else the old version's default."""
        value = self.attr(name)
        self.drop(name)
        return value

    def set_inputs(self, *values: ir.Value | None) -> None:
        """Replace all inputs of the node; those left out at the end are dropped."""
        given = trim_omitted(values)
        self.node.resize_inputs(len(given))
        for position, value in enumerate(given):
            self.node.replace_input_with(position, value)

    def set_input(self, position: int, value: ir.Value | None) -> None:
        """Replace one input, adding omitted ones before it if there are too few."""
        set_input(self.node, position, value)

    def note(self, sentence: str) -> None:
        """Tell the user something, once for the whole model."""
        if sentence not in self.conversion.report.notes:
            self.conversion.report.notes.append(sentence)

    def drop_outputs(self, count: int) -> None:
        """Keep the first `count` outputs; the others must be unused."""
        self.node.resize_outputs(min(count, len(self.node.outputs)))

    def name_outputs(self, count: int) -> None:
        """Give the node `count` outputs, all of them named."""
        if len(self.node.outputs) < count:
            self.node.resize_outputs(count)
        for value in self.node.outputs[:count]:
            if not value.name:
                value.name = self.conversion.names.fresh(display_name(self.node))

    def const(self, contents: Any, dtype: ir.DataType = ir.DataType.INT64) -> ir.Value:
        """Add a constant of `dtype` next to the node."""
        array = np.asarray(contents, dtype.numpy())
        name = self.conversion.names.fresh(f"{display_name(self.node)}_const")
        tensor = ir.Tensor(array, dtype=dtype, name=name)
        if constant_holds(dtype, self.opset):
            node = ir.node("Constant", [], {"value": ir.AttrTensor("value", tensor)})
            (value,) = node.outputs
            value.name = name
            self._check(node)
            self.place(node)
        else:
            value = self.add_initializer(name, tensor)
        self.conversion.types.record(value, ir.TensorType(dtype), ir.Shape(array.shape), array)
        return value

    def add_initializer(self, name: str, tensor: ir.TensorProtocol) -> ir.Value:
        """Add an initializer of the main graph, which every subgraph sees."""
        if self.path.startswith("function:"):
            self.refuse("it needs a constant that Constant-1 cannot hold, and a function has no initializers")
        return new_initializer(self.conversion.model.graph, name, tensor)

    def op(self, op_type: str, *inputs: ir.Value | None, **attributes: Any) -> ir.Value:
        """Add a node with one output next to the node, and return its output."""
        given = {name: value for name, value in attributes.items() if value is not None}
        node = ir.node(op_type, list(inputs), given)
        return self._insert(node, f"{display_name(self.node)}_{op_type.lower()}")

    def emit_reference(self, reference: ir.Attr) -> ir.Value:
        """Add a Constant with the value of a parameter of the function around it, which every call gives."""
        parameter = str(reference.ref_attr_name)
        if not is_always_given(self.conversion.model, self.node, parameter):
            self.refuse(
                f"a call of the function it is in leaves out {parameter!r}",
                "inline the model's functions first",
            )
        return self._insert(ir.node("Constant", [], {reference.name: reference}), display_name(self.node))

    def replace_with_initializer(self, tensor: ir.TensorProtocol) -> None:
        """Remove a Constant; an initializer of the main graph gets its content and its name."""
        old = self.node.outputs[0]
        name = str(old.name)
        root = self.conversion.model.graph
        fresh = self.conversion.names.fresh(f"{name}_value")
        # The tensor has another owner, and a value renames its own.
        value = self.add_initializer(fresh, copy_with_name(tensor, fresh))
        self.conversion.types.alias(value, old)
        if old.is_graph_output():
            self.replace(self.op("Identity", value))
            return
        old.replace_all_uses_with(value)
        old.name = self.conversion.names.fresh(f"{name}_constant")
        if self.graph is root:
            value.name = name
            value.doc_string = old.doc_string
            value.metadata_props.update(old.metadata_props)
            value.meta.update(old.meta)
        self.graph.remove(self.node, safe=True)

    def replace(self, *values: ir.Value | None) -> None:
        """Remove the node; `values` become its outputs, with their names, types and users."""
        heirs = []
        for old, new in zip(self.node.outputs, values, strict=False):
            if new is not None and old.name:
                heirs.append(self._take_over(old, new, list(old.uses())))
        self.graph.remove(self.node, safe=True)
        if heirs:
            heirs[0].name, heirs[0].doc_string = self.node.name, self.node.doc_string

    def wrap_output(
        self, position: int, build: Callable[[ir.Value], ir.Value], raw_dtype: ir.DataType | None = None
    ) -> None:
        """Put nodes after an output: the result of `build` takes its name, type and users.

        The output itself loses its shape, and gets the element type `raw_dtype` if that changed.
        """
        old = self.output(position)
        if old is None:
            return
        users = list(old.uses())
        final = ir.Value()
        self.conversion.types.alias(final, old)
        dtype = raw_dtype or self.dtype(old)
        self.conversion.types.record(old, None if dtype is None else ir.TensorType(dtype), None)
        self._after = self.node
        new = build(old)
        self._take_over(old, new, users)
        self._after = None
        self.conversion.types.alias(new, final)

    def cast(self, value: ir.Value, dtype: ir.DataType) -> ir.Value:
        """Add a Cast."""
        return self.op("Cast", value, to=int(dtype))

    def reshape(self, value: ir.Value, shape: ir.Value | Sequence[int]) -> ir.Value:
        """Add a Reshape."""
        return self.op("Reshape", value, shape if isinstance(shape, ir.Value) else self.const(list(shape)))

    def slice(self, value: ir.Value, start: int, end: int, axis: int = 0) -> ir.Value:
        """Add a Slice of one axis; everything is an attribute below opset 10."""
        if self.opset < 10:
            return self.op("Slice", value, starts=[start], ends=[end], axes=[axis])
        return self.op("Slice", value, self.const([start]), self.const([end]), self.const([axis]))

    def with_axes(
        self, op_type: str, value: ir.Value, axes: Sequence[int], since: int = 13, **attributes: Any
    ) -> ir.Value:
        """Add an operator whose axes are an input since an opset, and an attribute before."""
        if self.opset < since:
            return self.op(op_type, value, axes=list(axes), **attributes)
        return self.op(op_type, value, self.const(list(axes)), **attributes)

    def place(self, node: ir.Node) -> None:
        """Put a finished node, whose outputs are named, next to the node."""
        if not node.name:
            node.name = self.conversion.names.fresh(f"{display_name(self.node)}_{node.op_type}")
        node.metadata_props.update(self.node.metadata_props)
        origins = self.conversion.origins
        origins[node] = origins.get(self.node) or node_label(self.node)
        if self._after is not None:
            self.graph.insert_after(self._after, [node])
            self._after = node
        else:
            self.graph.insert_before(self.node, [node])
        self.emitted.append(node)

    def _insert(self, node: ir.Node, name: str) -> ir.Value:
        (value,) = node.outputs
        value.name = self.conversion.names.fresh(name)
        self._check(node)
        self.place(node)
        self._infer(node)
        return value

    def _check(self, node: ir.Node) -> None:
        version = version_at(node.op_type, self.opset)
        reason = (
            describe_misfit(node, version, self.conversion.types.types)
            if version
            else "the operator does not exist yet"
        )
        if reason:
            self.refuse(f"opset {self.opset} cannot express it ({reason})")

    def _infer(self, node: ir.Node) -> None:
        types = self.conversion.types
        dtypes = [types.dtype(value) for value in node.inputs]
        if any(each is None and value is not None for each, value in zip(dtypes, node.inputs, strict=True)):
            return
        try:
            found = infer_outputs(
                node,
                [None if dtype is None else ir.TensorType(dtype) for dtype in dtypes],
                [None if (shape := types.shape(value)) is None else tuple(shape) for value in node.inputs],
                [types.array(value, SHOWN) for value in node.inputs],
                {"": self.opset},
                FREE_INITIALIZERS_IR,
                strict=True,
            )
        except onnx.shape_inference.InferenceError as error:
            self.refuse(f"opset {self.opset} cannot express it: {error}")
        for value, (type_, dims) in zip(node.outputs, found, strict=True):
            if type_ is not None:
                types.record(value, type_, None if dims is None else ir.Shape(dims))

    def _take_over(self, old: ir.Value, new: ir.Value, users: Sequence[Any]) -> ir.Node:
        heir = new.producer()
        if heir is None or heir not in self.emitted or new.name == old.name:
            new = self.op("Identity", new)
            heir = self.emitted[-1]
        self.conversion.types.alias(new, old)
        new.doc_string = old.doc_string
        new.metadata_props.update(old.metadata_props)
        new.meta.update(old.meta)
        rest = self.conversion.names.fresh(f"{old.name}_{self.old.op_type.lower()}")
        take_place_of(new, old, old_name=rest, readers=users)
        old.type, old.shape, old.doc_string = None, None, None
        old.metadata_props.clear()
        old.meta.clear()
        return heir
