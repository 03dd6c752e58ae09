"""The contents and shapes of values, for the whole sequence and for a chunk of it."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.graph.evaluation import Array
from rnnlower.graph.facts import Facts
from rnnlower.graph.walk import default_opset, ints_of_attribute_or_input, operand
from rnnlower.timeflow.tracks import MODERN_OPSET, CoupledError, Sample, opset_remedy, shapes_remedy


def facts_about(model: ir.Model, sample: Sample) -> Facts:
    """Return the facts about a model whose inputs have the shapes of a sample."""
    facts = Facts(model, declared=True)
    for value in model.graph.inputs:
        if (shape := sample.shape(value)) is not None:
            facts.assume(value, shape)
    return facts


class Contents:
    """The contents and shapes of the values of a model, twice.

    Args:
        model: The model; it is not changed.
        sample: The time axes of the inputs, and sizes.

    Attributes:
        opset: The version of the default domain.
        whole, part: The facts about the model for the whole sequence, and for one chunk.
        longer: The facts for a longer sequence, if the length is dynamic: numbers may agree by chance.
    """

    def __init__(self, model: ir.Model, sample: Sample) -> None:
        self.model, self.sample = model, sample
        self.opset = default_opset(model)
        self.whole, self.part = facts_about(model, sample), Facts(model, declared=True)
        self.longer = Facts(model, declared=True) if self.has_dynamic_length else self.whole
        # The values of known content; true if it depends on the length.
        self._is_sized: dict[ir.Value, bool] = {}

    @property
    def has_dynamic_length(self) -> bool:
        """True if the length of the sequence is dynamic in the model."""
        inputs = {value.name: value for value in self.model.graph.inputs}
        shapes = [(inputs[name].shape, axis) for name, axis in self.sample.axes.items()]
        return any(shape is not None and not isinstance(shape[axis], int) for shape, axis in shapes)

    def depends_on_length(self, value: ir.Value | None) -> bool:
        """Return whether a content depends on the length: a chunk's differs from the whole sequence's."""
        return value is not None and self._is_sized.get(value, False)

    def is_fixed(self, value: ir.Value | None) -> bool:
        """Return whether positions are the same at any length: where an example ends they do by chance."""
        return self.has_dynamic_length and not self.depends_on_length(value)

    def shape(self, node: ir.Node, index: int = 0) -> tuple[int, ...]:
        """Return the shape of an input for the whole sequence."""
        return self._known_shape(operand(node, index), "an input")

    def result_shape(self, node: ir.Node) -> tuple[int, ...]:
        """Return the shape of the first output for the whole sequence."""
        return self._known_shape(node.outputs[0], "a result")

    def _known_shape(self, value: ir.Value | None, what: str) -> tuple[int, ...]:
        shape = self.shape_of(value)
        if shape is None:
            remedy = opset_remedy() if self.opset < MODERN_OPSET else shapes_remedy()
            raise CoupledError(f"has {what} of unknown shape", remedy)
        return shape

    def shape_of(self, value: ir.Value | None) -> tuple[int, ...] | None:
        """Return the shape of a value for the whole sequence."""
        shape = self.whole.shape(value)
        return None if shape is None or None in shape else shape  # type: ignore[return-value]

    def content(self, value: ir.Value | None) -> Array | None:
        """Return the content of a value for the whole sequence, if it follows from constants and sizes."""
        if value is None or (value.producer() is not None and value not in self._is_sized):
            return None
        return self.whole.constant(value)

    def chunk_content(self, value: ir.Value | None) -> Array | None:
        """Return the content of a value for a chunk, if it follows from constants and sizes."""
        return self.part.constant(value) if self.depends_on_length(value) else self.content(value)

    def ints(self, node: ir.Node, name: str, index: int) -> tuple[list[int], list[int]] | None:
        """Return integers for the sequence and for a chunk: an attribute, or in newer versions an input."""
        unknown = CoupledError(f"takes its {name} from an unsupported computation")
        whole = ints_of_attribute_or_input(node, name, index, self.content, unknown)
        chunk = ints_of_attribute_or_input(node, name, index, self.chunk_content, unknown)
        if whole is None or chunk is None:
            return None
        value = operand(node, index)
        longer = self.longer.constant(value) if self.depends_on_length(value) else whole
        if longer is None or any(a == b != c for a, b, c in zip(whole, chunk, [*longer], strict=True)):
            raise unknown
        return whole, chunk

    def require_same_ints(self, node: ir.Node, name: str, index: int, but: int | None = None) -> None:
        """Refuse integers that differ between the sequence and a chunk, except for one of them."""
        pairs = zip(*(self.ints(node, name, index) or ([], [])), strict=True)
        if any(whole != chunk and place != but for place, (whole, chunk) in enumerate(pairs)):
            raise CoupledError(f"takes {name} of another axis than time from the number of time steps")

    def axes(self, node: ir.Node, index: int = 1) -> list[int] | None:
        """Return the axes that an operator works on, counted from the start, if they are given."""
        given, rank = self.ints(node, "axes", index), len(self.shape(node))
        if given is not None and given[0] != given[1]:
            raise CoupledError("takes its axes from the number of time steps")
        return None if given is None else [axis % rank for axis in given[0]]

    def dtype(self, value: ir.Value | None) -> ir.DataType:
        """Return the type of a value."""
        return self.whole.dtype(value) or ir.DataType.FLOAT
