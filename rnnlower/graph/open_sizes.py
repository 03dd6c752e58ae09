"""Dynamic sizes of graph inputs, and the options that fix them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

import onnx_ir as ir

from rnnlower import wording
from rnnlower.graph.walk import dim_name

_EXAMPLE = 16


@dataclasses.dataclass(frozen=True)
class OpenSizes:
    """The options that fix the sizes of inputs.

    Attributes:
        dims: Sizes for named dimensions; `N` stands for a size to fill in.
        input_shapes: Shapes of inputs with an unnamed dynamic size, where `N` stands for the same.
    """

    dims: Mapping[str, int | str]
    input_shapes: Mapping[str, Sequence[int | str]]

    def __str__(self) -> str:
        """Write the options in the style of the command line or of Python."""
        words = [wording.dims(self.dims)] if self.dims else []
        words += [wording.input_shapes(self.input_shapes)] if self.input_shapes else []
        return wording.several(words)


def is_open(value: ir.Value) -> bool:
    """Return whether a size of a tensor is dynamic."""
    if not isinstance(value.type, ir.TensorType | None):
        return False
    return value.shape is None or any(not isinstance(dim, int) or dim < 0 for dim in value.shape)


def open_sizes(inputs: Iterable[ir.Value], example: int | str = _EXAMPLE) -> OpenSizes:
    """Return the options that fix the dynamic sizes of these inputs; an unknown rank is taken as 3."""
    dims: dict[str, int | str] = {}
    shapes: dict[str, Sequence[int | str]] = {}
    for value in inputs:
        if not is_open(value):
            continue
        if value.shape is None:
            shapes[str(value.name)] = [2, 3, 4]
            continue
        names = [dim_name(dim) for dim in value.shape if not isinstance(dim, int)]
        if all(names) and not any(isinstance(dim, int) and dim < 0 for dim in value.shape):
            dims |= {str(name): example for name in names}
        else:
            shapes[str(value.name)] = [_size(dim, example) for dim in value.shape]
    return OpenSizes(dims, shapes)


def _size(dim: int | ir.SymbolicDim, example: int | str) -> int | str:
    if isinstance(dim, int):
        return dim if dim >= 0 else "N"
    return example if dim_name(dim) else "N"
