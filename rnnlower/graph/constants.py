"""The test whether a value always holds the same tensor."""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.errors import InvalidModelError

_TRAINED = "rnnlower.trained"
"""Key in the `meta` of the initializers that the model's training reads or sets."""


def constant_of(value: ir.Value | None) -> ir.TensorProtocol | None:
    """Return the tensor that a value always holds.

    ``None`` for a computed value, a graph input (a caller may override its default), and a value that the
    model's training updates.

    Raises:
        InvalidModelError: A Constant has none of the attributes that hold a value.
    """
    if value is None or value.is_graph_input() or is_trained(value):
        return None
    try:
        return ir.convenience.get_const_tensor(value)
    except ValueError as error:
        raise InvalidModelError(
            f"the Constant node that makes {value.name!r} has no value that ONNX knows",
            remedy="give it the attribute value, a tensor",
        ) from error


def mark_trained(value: ir.Value) -> None:
    """Mark an initializer that training reads or sets: it must stay, and is not a constant."""
    value.meta[_TRAINED] = True


def is_trained(value: ir.Value) -> bool:
    """Return whether the model's training reads or sets the initializer."""
    return bool(value.meta.get(_TRAINED))
