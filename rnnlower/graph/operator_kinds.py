"""Kinds of operators, and the axes on which they work by their attributes, their inputs and the opset."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

RESHAPING = frozenset(["Reshape", "Squeeze", "Unsqueeze"])
"""Operators that change only the shape."""
REARRANGING = RESHAPING | {"Flatten", "Identity", "Transpose"}
"""Operators that keep all elements, at most in another order or shape."""
VIEWS = RESHAPING | {"Cast", "Identity"}
"""Operators that keep all elements in their order."""
SHAPE_READERS = frozenset(["Shape", "Size"])
"""Operators that read the shape of a value, not its content."""
RANDOM = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)
_UNARY = (
    "Abs Acos Acosh Asin Asinh Atan Atanh BitwiseNot Cast CastLike Ceil Celu Clip Cos Cosh Dropout Elu Erf "
    "Exp Floor Gelu HardSigmoid HardSwish Identity IsInf IsNaN LeakyRelu Log Mish Neg Not QuickGelu "
    "Reciprocal Relu Round Selu Shrink Sigmoid Sign Sin Sinh Softplus Softsign Sqrt Swish Tan Tanh "
    "ThresholdedRelu"
)
_NARY = (
    "Add And BitwiseAnd BitwiseOr BitwiseXor BitShift Div Equal Greater GreaterOrEqual Less LessOrEqual Max "
    "Mean Min Mod Mul Or PRelu Pow Sub Sum Where Xor"
)
POINTWISE = frozenset(f"{_UNARY} {_NARY}".split())
"""Operators that compute each element of the result from those at its place in the operands."""
_FIRST_SOFTMAX_OF_ONE_AXIS = 13
_SOFTMAXES = ("Hardmax", "LogSoftmax", "Softmax")
_TO_THE_LAST = ("LayerNormalization", "RMSNormalization", "SimplifiedLayerNormalization")
"""Operators that work along all axes from the one in their attribute on."""


def axes_along(node: ir.Node, rank: int, opset: int) -> range:
    """Return the axes along which an operator with an attribute `axis` combines elements.

    Args:
        node: A Softmax, LogSoftmax, Hardmax, ArgMax, ArgMin, TopK, or a normalization.
        rank: The rank of its input.
        opset: The version of the default domain.
    """
    is_flat = node.op_type in _SOFTMAXES and opset < _FIRST_SOFTMAX_OF_ONE_AXIS
    default = 1 if is_flat else 0 if node.op_type in ("ArgMax", "ArgMin") else -1
    first = node.attributes.get_int("axis", default) % rank
    return range(first, rank if is_flat or node.op_type in _TO_THE_LAST else first + 1)


def reduced_axes(node: ir.Node, rank: int, given: Sequence[int] | None) -> list[int]:
    """Return the axes of a reduction; `given` are those in its attribute or input, if it has any."""
    if given:
        return [axis % rank for axis in given]
    return [] if node.attributes.get_int("noop_with_empty_axes", 0) else [*range(rank)]


def source_axes(node: ir.Node, shape: Sequence[int], given: Sequence[int] | None) -> list[int | None]:
    """Return the axis of the input that each axis of the output is, ``None`` for a new one.

    Args:
        node: A Transpose, Squeeze or Unsqueeze.
        shape: The shape of its input.
        given: The axes in its attribute or input, if it has any.
    """
    if node.op_type == "Transpose":
        return [*node.attributes.get_ints("perm", range(len(shape))[::-1])]
    if node.op_type == "Squeeze":
        if given is None:
            given = [axis for axis, size in enumerate(shape) if size == 1]
        removed = {axis % len(shape) for axis in given}
        return [axis for axis in range(len(shape)) if axis not in removed]
    rank = len(shape) + len(given or ())
    new, old = {axis % rank for axis in given or ()}, iter(range(rank))
    return [None if axis in new else next(old) for axis in range(rank)]
