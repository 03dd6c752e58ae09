"""QuantizeLinear and DequantizeLinear around the values of a recurrence, by role."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.walk import LocatedNode
from rnnlower.lowering.node_emitter import NodeEmitter
from rnnlower.quantizing.observing import COMPLEMENT, FACTOR, Range, Ranges, Role
from rnnlower.quantizing.schemes import Encoding, Scheme

_WEIGHT, _ADDEND = " weight", "addend"

_FINE, _MIN_STEP, _MAX_STEP = 2.0**-60, 2.0**-100, 2.0**-30
"""The steps without visible rounding, next to a scale; some recordings may be much smaller than the range."""


@dataclasses.dataclass
class Quantization:
    """The scales of a model, and what was quantized with them.

    Attributes:
        ranges: The ranges of the roles.
        fine: Whether scales are so small that rounding has no visible effect, and nothing is clipped. Such a
            model computes the same as the float model if every quantizer is in its place.
        encodings: The encodings that were used.
        unquantized: The roles of values that need quantizers, and have none.
        unseen: The roles whose values were always 0, which tells no range.
    """

    scheme: Scheme
    ranges: Ranges
    fine: bool = False
    encodings: dict[Role, Encoding] = dataclasses.field(default_factory=dict)
    unquantized: set[Role] = dataclasses.field(default_factory=set)
    unseen: set[Role] = dataclasses.field(default_factory=set)

    def encoding(self, located: LocatedNode, role: str, direction: str) -> Encoding:
        """Return the encoding of a role.

        Raises:
            UnsupportedModelError: Its range is not known.
        """
        key = Role(str(located), direction, role)
        fixed = self.scheme.fixed(role)
        if fixed is not None:
            self.encodings[key] = fixed
        elif key not in self.encodings:
            observed = self.scheme.observed(role)
            # One scale for both directions lets them be joined as integers.
            names = {direction, *(("forward", "reverse") if direction else ())}
            of_both = [Role(key.node, each, observed) for each in sorted(names)]
            found = [self.ranges[each] for each in of_both if each in self.ranges]
            if not found:
                raise UnsupportedModelError(
                    f"the calibration holds no range of {observed!r}",
                    node=located,
                    remedy="calibrate on this model (`rnnlower calibrate`), with recordings that take each "
                    f"branch, or fix the shapes of its inputs ({wording.option('input-shape')})",
                )
            seen = functools.reduce(Range.union, found)
            if seen.is_zero:
                self.unseen.add(Role(key.node, "", observed))
            if role.startswith(COMPLEMENT):
                seen = Range(1 - seen.largest, 1 - seen.least)
            self.encodings[key] = self.scheme.encoding(role, seen)
        return self.encodings[key]


class Quantizers:
    """The listener that inserts the quantizers of a node, by the roles that the lowering announces."""

    def __init__(self, quantization: Quantization, located: LocatedNode) -> None:
        self._all, self._located = quantization, located
        self._made: dict[tuple[NodeEmitter, ir.Value, str], ir.Value] = {}
        self._read: set[ir.Value] = set()
        self._scale_of_weight = 0.0

    def __call__(self, e: NodeEmitter, value: ir.Value, role: str, direction: str) -> ir.Value:
        """Emit the quantizers of a value and return the result.

        Raises:
            UnsupportedModelError: It is a weight that is not constant, or no range is known.
        """
        if role in self._all.scheme.unrounded or (value in self._read and not role.endswith(FACTOR)):
            # Without a bias, the sum is the product.
            return value
        key = (e, value, role)
        if key not in self._made:
            made = self._made[key] = self._quantize(e, value, role, direction)
            self._read.add(made)
            if made is value and not role.endswith((_ADDEND, _WEIGHT)) and constant_of(value) is None:
                self._all.unquantized.add(Role(str(self._located), direction, role))
        return self._made[key]

    def _quantize(self, e: NodeEmitter, value: ir.Value, role: str, direction: str) -> ir.Value:
        if role.endswith(_WEIGHT):
            return self._quantize_weight(e, value)
        tensor = constant_of(value)
        if tensor is not None:
            return self._quantize_constant(e, value, tensor.numpy(), role)
        if role.endswith(_ADDEND):
            # A product of X, which has its quantizers.
            return value
        encoding = self._all.encoding(self._located, role, direction)
        if self._all.fine:
            # With power-of-two steps, growing values stay exact multiples.
            step = e.scalar(min(max(encoding.rounded().scale * _FINE, _MIN_STEP), _MAX_STEP))
            return _emit_one(e, "Mul", _emit_one(e, "Round", _emit_one(e, "Div", value, step)), step)
        scale, zero_point = _parameters(e, encoding)
        return _emit_one(
            e, "DequantizeLinear", _emit_one(e, "QuantizeLinear", value, scale, zero_point), scale, zero_point
        )

    def _quantize_constant(self, e: NodeEmitter, value: ir.Value, array: np.ndarray, role: str) -> ir.Value:
        if self._all.fine or not array.any():
            return value
        if self._all.scheme.integer_bias and role == f"x {_ADDEND}":
            return self._quantize_bias(e, value, array)
        scheme = dataclasses.replace(self._all.scheme, headroom=1.0)
        encoding = scheme.encoding(role, Range(float(array.min()), float(array.max())))
        info = np.iinfo(encoding.dtype.numpy())
        integers = np.rint(array / encoding.scale) + encoding.zero_point
        scale, zero_point = _parameters(e, encoding)
        stored = np.clip(integers, info.min, info.max).astype(encoding.dtype.numpy())
        return _emit_one(e, "DequantizeLinear", e.constant(stored, name=value.name or ""), scale, zero_point)

    def _quantize_bias(self, e: NodeEmitter, value: ir.Value, array: np.ndarray) -> ir.Value:
        """Emit a bias in int32, with the scale of the product that it is added to."""
        scale = self._all.encoding(self._located, "x", "").scale * self._scale_of_weight
        integers = np.rint(array / scale)
        if not np.abs(integers).max() <= np.iinfo(np.int32).max:
            raise UnsupportedModelError(
                f"a bias of {np.abs(array).max():g} does not fit into 32 bits with the scale {scale:g} of "
                "its product: the weights of its gate, or X, are too small",
                node=self._located,
                remedy=f"choose another scheme ({wording.option('scheme', 'qdq')})",
            )
        stored = e.constant(integers.astype(np.int32), name=value.name or "")
        return _emit_one(e, "DequantizeLinear", stored, e.constant(np.array(scale, np.float32)))

    def _quantize_weight(self, e: NodeEmitter, value: ir.Value) -> ir.Value:
        tensor = constant_of(value)
        if tensor is None:
            raise UnsupportedModelError(
                "a weight is not a constant of its own, and cannot be stored in 8 bits",
                node=self._located,
                remedy="make W and R initializers that nothing else reads; of graph inputs, "
                f"{wording.option('freeze', True)} makes constants",
            )
        integers: np.ndarray
        integers, scale = self._all.scheme.weight(tensor.numpy())
        self._scale_of_weight = float(scale.max())
        if self._all.fine:
            scale = (scale / 2**22).astype(np.float32)
            integers = np.rint(tensor.numpy() / scale.astype(np.float64)).astype(np.int32)
        stored = e.constant(integers, name=value.name or "")
        operands = [stored, e.constant(scale), e.constant(np.zeros(scale.shape, integers.dtype))]
        axis: Mapping[str, int] = {"axis": 1} if scale.ndim else {}
        return e.ops("DequantizeLinear", *operands, outputs=1, **axis)[0]


def _parameters(e: NodeEmitter, encoding: Encoding) -> tuple[ir.Value, ir.Value]:
    """Return the scale and the zero point as constants."""
    zero_point = np.array(encoding.zero_point, encoding.dtype.numpy())
    scale = ir.Tensor(np.array(encoding.scale, np.float32))
    # Every step of a straight line repeats the names.
    return e.often_read(scale, "q"), e.often_read(ir.Tensor(zero_point), "z")


def _emit_one(e: NodeEmitter, op_type: str, *inputs: ir.Value) -> ir.Value:
    return e.ops(op_type, *inputs, outputs=1)[0]
