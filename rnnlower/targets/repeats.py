"""Values that repeat another value along an axis."""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

_ARRANGING = frozenset({"Cast", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})


def repeated_by(value: ir.Value | None, op_types: Collection[str], *, alone: bool = False) -> str:
    """Return which of the given operators repeats an axis of size 1 to compute the value, or ``""``.

    Operators that only rearrange elements may follow it. With `alone`, nothing else may read the values in
    between, and a Concat with other values may follow, too.
    """
    while value is not None and value.producer() is not None:
        producer = value.producer()
        assert producer is not None
        if alone and len(value.uses()) > 1:
            return ""
        if producer.domain == "" and producer.op_type in op_types:
            return producer.op_type if _may_repeat_one(producer.inputs[0], value) else ""
        if alone and producer.domain == "" and producer.op_type == "Concat":
            parts = (repeated_by(part, op_types) for part in producer.inputs)
            return next(filter(None, parts), "")
        if producer.domain or producer.op_type not in _ARRANGING:
            return ""
        value = producer.inputs[0]
    return ""


def _may_repeat_one(before: ir.Value | None, after: ir.Value) -> bool:
    """Return whether an axis of size 1 grows, as far as the shapes are known."""
    if before is None or before.shape is None:
        return True
    sizes = list(before.shape)
    if after.shape is None:
        return 1 in sizes or not before.shape.is_static()
    grown = list(after.shape)[len(after.shape) - len(sizes) :]
    if len(after.shape) > len(sizes):
        return True
    return any(
        old != new and (old == 1 or not isinstance(old, int)) for old, new in zip(sizes, grown, strict=True)
    )
