"""Facts about a graph: the uses of its inputs, and its recurrent nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import onnx

Dim = int | str | None
Dims = tuple[Dim, ...]

QUANTIZED_LSTM = "DynamicQuantizeLSTM"
STATE_AXES = {
    "LinearAttention": ("NT.", "NT.", "NT.", "N...", "NT.", "NT."),
    "CausalConvWithState": ("N.T", "...", ".", "N.."),
}
"""Operators of ai.onnx and com.microsoft with a state: the axes of their inputs; N: rows, T: steps."""
RECURRENT = ("LSTM", "GRU", "RNN", QUANTIZED_LSTM)


@dataclass
class Uses:
    """The uses of a graph input. Limits are exclusive sizes: an int, a dimension's name or ``None``.

    ``roles`` are words: ``weight``, ``state``, ``decay``, ``rate``, ``key``, ``shape``, ``count`` or
    ``place`` (an index that may count from the end).
    A linear attention grows without bounds unless its decays are at most 0 (they are logarithms), its rates
    from 0 to 1, and its keys of length 1.
    """

    lengths: list[Dim] = field(default_factory=list)
    indices: list[Dim] = field(default_factory=list)
    equal_to: set[float] = field(default_factory=set)
    ordered_with: set[float] = field(default_factory=set)
    roles: set[str] = field(default_factory=set)


@dataclass(frozen=True)
class Recurrent:
    """A recurrent node, with the properties that decide whether an engine runs it.

    ``state_dims`` are the known sizes of its sequence_lens and initial states; ``input_size`` is the number
    of features of X, from the shape of W.
    """

    name: str
    op_type: str
    version: int
    elem_type: int | None
    layout: int
    x_dims: Dims | None
    state_dims: tuple[int, ...]
    input_size: Dim = None


@dataclass
class GraphFacts:
    """Facts about a graph.

    ``uses`` by graph input; the recurrent nodes; the random or undefined outputs; dimensions
    that recurrent nodes need to be equal; the names of dimensions that are a node's batch or sequence length;
    the axis of time of the values that have one; by inputs that give a Reshape its shape, the inputs that it
    reshapes; the largest magnitude at which something clips or bends; whether sizes, counts or indices are
    computed, so that an integer may become one; whether shapes of inputs leave a pooling window too little;
    the least and the largest length by the inputs of a padded model that hold lengths or masks.
    """

    uses: dict[str, Uses] = field(default_factory=dict)
    recurrent: list[Recurrent] = field(default_factory=list)
    random_outputs: set[str] = field(default_factory=set)
    equal_dims: list[tuple[Dim, Dim]] = field(default_factory=list)
    batches: set[str] = field(default_factory=set)
    lengths: set[str] = field(default_factory=set)
    time_axes: dict[str, int] = field(default_factory=dict)
    reshapes: dict[str, str] = field(default_factory=dict)
    threshold: float = 0.0
    has_computed_sizes: bool = False
    padded: dict[str, tuple[int, int]] = field(default_factory=dict)
    has_narrow_pooling: Callable[[Mapping[str, Sequence[int]]], bool] = lambda shapes: False


def dims_of(value: onnx.ValueInfoProto) -> Dims | None:
    """Return a value's dimensions: sizes, names, or ``None`` if unknown (or -1); ``None`` without a shape."""
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        return None
    dims: list[Dim] = []
    for d in tensor.shape.dim:
        if d.HasField("dim_value") and d.dim_value >= 0:
            dims.append(d.dim_value)
        else:
            dims.append(d.dim_param if d.dim_param.strip("?") else None)
    return tuple(dims)


def unnamed_dim(name: str, axis: int) -> str:
    """Return the name used here for a nameless dimension of input ``name``."""
    return f"?{name}:{axis}"
