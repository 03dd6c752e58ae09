"""Shape declarations for the steps of a straight line whose number of rows is dynamic.

onnxruntime plans its memory by searching all free buffers for one of the same shape. Without declarations,
every step's number of rows gets its own symbol, no two shapes are equal, and the search is quadratic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx_ir as ir

__all__ = ["declare_rows", "symbol_of_rows"]

_Widths = Sequence[int | None]


def symbol_of_rows(X: ir.Value, axis: int) -> str | None:
    """Return the model's symbol for the number of rows."""
    dim = None if X.shape is None or axis >= len(X.shape) else X.shape[axis]
    return dim.value if isinstance(dim, ir.SymbolicDim) else None


def declare_rows(
    nodes: Iterable[ir.Node], widths: Mapping[ir.Value, int], rows: str, dtype: ir.DataType
) -> None:
    """Declare ``[rows, width]`` for values of known width and for the results of binary operators on them.

    Shape inference propagates the symbol through products, Splits and unary operators without help.

    Args:
        nodes: The nodes of the steps, in order.
        widths: The widths of the values that the steps start from.
        rows: The symbol of the number of rows.
        dtype: The type of the values.
    """
    known: dict[ir.Value, int] = dict(widths)
    declared = list(widths)
    for node in nodes:
        of_operands = [None if value is None else known.get(value) for value in node.inputs]
        results = _WIDTHS.get(node.op_type, _elementwise)(node, of_operands)
        known.update((out, w) for out, w in zip(node.outputs, results, strict=False) if w is not None)
        if len(node.inputs) > 1 and node.op_type not in _WIDTHS:
            declared += [out for out in node.outputs if out in known]
    for value in declared:
        value.type, value.shape = ir.TensorType(dtype), ir.Shape([rows, known[value]])


def _elementwise(node: ir.Node, widths: _Widths) -> _Widths:
    return [max((width for width in widths if width is not None), default=None)]


def _gemm(node: ir.Node, widths: _Widths) -> _Widths:
    weight = node.inputs[1]
    units = None
    if widths[0] is not None and weight is not None and weight.shape is not None:
        units = weight.shape[0 if "transB" in node.attributes else 1]
    return [units if isinstance(units, int) else None]


def _split(node: ir.Node, widths: _Widths) -> _Widths:
    if widths[0] is None or node.attributes["axis"].as_int() != 1:
        return []
    sizes = node.inputs[1].const_value if len(node.inputs) > 1 and node.inputs[1] is not None else None
    if sizes is not None:
        return [int(size) for size in sizes.numpy()]
    if "split" in node.attributes:
        return list(node.attributes["split"].as_ints())
    return [widths[0] // len(node.outputs)] * len(node.outputs)


def _unknown(node: ir.Node, widths: _Widths) -> _Widths:
    return []


_WIDTHS: Mapping[str, Callable[[ir.Node, _Widths], _Widths]] = {
    "Gemm": _gemm,
    "Split": _split,
    **dict.fromkeys(
        ["Cast", "Concat", "MatMul", "Reshape", "Shape", "Slice", "Transpose", "Unsqueeze"], _unknown
    ),
}
"""Operators whose result is not as wide as its widest operand."""
