"""Types and scales by role: onnxruntime's, and those of TensorFlow Lite's LSTM, which CMSIS-NN computes, too.

Source of the latter: tensorflow/lite/tools/optimize/operator_property.cc, unidirectional_sequence_lstm.cc of
TFLM.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from typing import Any, ClassVar

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from rnnlower import wording
from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.walk import LocatedNode
from rnnlower.lowering.replacing import Gates
from rnnlower.passes.command_options import QuantizeOptions
from rnnlower.quantizing.observing import COMPLEMENT, FACTOR, Range
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.targets.vocabulary import Activations

MAX_WEIGHT = 127
"""Weights are within +-127, so that the negative of each is one, too."""

_BOUNDS: Mapping[str, Range] = {
    "Sigmoid": Range(0.0, 1.0),
    "HardSigmoid": Range(0.0, 1.0),
    "Tanh": Range(-1.0, 1.0),
    "Softsign": Range(-1.0, 1.0),
}
"""The values of activations, whose scales are powers of two."""

_UNIT = Range(-1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class Encoding:
    """The integers that stand for the values of a role: ``(integer - zero_point) * scale``."""

    dtype: ir.DataType
    scale: float
    zero_point: int

    @property
    def bounds(self) -> Range:
        """The values that can be expressed."""
        info = np.iinfo(self.dtype.numpy())
        return Range(*((int(end) - self.zero_point) * self.scale for end in (info.min, info.max)))

    def rounded(self) -> Encoding:
        """Return the encoding with the next power of two as its scale."""
        return dataclasses.replace(self, scale=float(_next_power_of_two(self.scale)))

    def clipped(self, values: NDArray[np.float32]) -> int:
        """Return how many of the values are clipped: more than a step beyond the bounds."""
        least, largest = self.bounds.least - self.scale, self.bounds.largest + self.scale
        return int(np.count_nonzero((values < least) | (values > largest)))


@dataclasses.dataclass(frozen=True)
class Scheme:
    """The choice of types and scales.

    Attributes:
        activations: The integers of activations.
        headroom: Factor by which the ranges of 16-bit roles are larger than what was observed.
        per_tensor: Whether a weight has one scale rather than one for each output channel.
        powers: Whether scales are powers of two, and zero points 0.
        gates: The products of the gates, as an option of the lowering.
        unrounded: The roles that have no quantizers: the factor X has those of X.
        integer_bias: Whether the bias has 32 bits and the scale of its product.
    """

    gates: ClassVar[Gates] = "fused"
    unrounded: ClassVar[Collection[str]] = ("x factor",)
    integer_bias: ClassVar[bool] = False

    activations: Activations = "int8"
    headroom: float = 2.0
    per_tensor: bool = False
    powers: bool = False

    @classmethod
    def of(cls, options: QuantizeOptions) -> Scheme:
        """Return the scheme for the options."""
        return cls(options.activations, options.headroom, options.per_tensor, options.scheme == "pow2")

    @property
    def integers(self) -> set[str]:
        """The names of the types of activations."""
        return {self.dtype(role).name.lower() for role in ("x", "h")}

    def check(self, located: LocatedNode) -> None:
        """Refuse a node that the scheme does not support."""

    def observed(self, role: str) -> str:
        """Return the role whose range is that of this role."""
        return role.removesuffix(FACTOR).removeprefix(COMPLEMENT)

    def fixed(self, role: str) -> Encoding | None:
        """Return the encoding of a role if it does not depend on observations."""
        return None

    def dtype(self, role: str) -> ir.DataType:
        """Return the integer type of a role."""
        eight = ir.DataType.INT8 if self.powers else ir.DataType.UINT8
        if self.activations == "int8-only":
            return eight
        if self.activations == "uint16":
            return ir.DataType.UINT16
        narrow = self.activations == "int8" and (role == "x" or role.endswith(FACTOR))
        return eight if narrow else ir.DataType.INT16

    def encoding(self, role: str, seen: Range) -> Encoding:
        """Return the encoding of a role with this observed range."""
        dtype = self.dtype(role)
        fixed = None if role.startswith(COMPLEMENT) else _BOUNDS.get(role.split()[-1])
        if fixed is None and role.endswith(FACTOR) and seen.least >= -1 and seen.largest <= 1:
            fixed = _UNIT
        if fixed is not None:
            return _power_of_two_encoding(dtype, fixed.tightened(seen.scaled(self.headroom)))
        if dtype.itemsize == 2:
            seen = seen.scaled(self.headroom)
        if not dtype.is_signed():
            return asymmetric(dtype, seen)
        encoding = symmetric(dtype, seen)
        return encoding if not self.powers else encoding.rounded()

    def weight(self, array: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
        """Return a weight ``[inputs, outputs]`` as integers, and the scales: ``[outputs]`` or ``[]``."""
        largest = np.abs(array).max(initial=0.0, axis=None if self.per_tensor else 0)
        scale = (largest / MAX_WEIGHT).astype(np.float32)
        # Weights that are too small for a scale are 0.
        scale = np.where(scale > 0, scale, np.float32(1.0 / MAX_WEIGHT))
        scale = _next_power_of_two(scale).astype(np.float32) if self.powers else scale
        integers = np.clip(np.rint(array / scale), -MAX_WEIGHT, MAX_WEIGHT).astype(np.int8)
        return integers, scale


def _power_of_two_encoding(dtype: ir.DataType, bounds: Range) -> Encoding:
    """Return the encoding of the bounds with a power of two as scale: 1/256 or 1/128 at 8 bits."""
    values = 2 ** (8 * dtype.itemsize)
    if dtype.is_signed():
        return Encoding(dtype, 2 * bounds.largest / values, 0)
    scale = (bounds.largest - bounds.least) / values
    return Encoding(dtype, scale, round(-bounds.least / scale))


def symmetric(dtype: ir.DataType, seen: Range) -> Encoding:
    """Return the symmetric encoding that covers a range."""
    return Encoding(dtype, _scale(max(-seen.least, seen.largest), np.iinfo(dtype.numpy()).max), 0)


def asymmetric(dtype: ir.DataType, seen: Range) -> Encoding:
    """Return the asymmetric encoding of a range, extended to include 0."""
    least, largest = min(seen.least, 0.0), max(seen.largest, 0.0)
    info = np.iinfo(dtype.numpy())
    scale = _scale(largest - least, info.max - info.min)
    return Encoding(dtype, scale, info.min + round(-least / scale))


def _scale(size: float, steps: int) -> float:
    """Return the scale of a range of this size; values too small for one are 0."""
    scale = float(np.float32(size / steps))
    return scale if scale >= np.finfo(np.float32).tiny else 1.0 / steps


def _next_power_of_two(scale: Any) -> Any:
    """Return the least power of two that is not smaller."""
    return 2.0 ** np.ceil(np.log2(scale))


_SUM = Encoding(ir.DataType.INT16, 2.0**-12, 0)
"""Q3.12: the inputs of activations."""

_ACTIVATED = Encoding(ir.DataType.INT16, 2.0**-15, 0)
"""Q0.15: gates and tanh(C)."""

_ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")


@dataclasses.dataclass(frozen=True)
class TfliteScheme(Scheme):
    """X and H are int8, C and its summands int16 with a power of two; all others are fixed.

    A gate has a product of its own, with one scale for its weight; its bias is int32 with the scale of the
    product, which is not rounded before the sum.
    """

    gates: ClassVar = "separate"
    unrounded: ClassVar = ("x factor", "x product")
    integer_bias: ClassVar = True

    @classmethod
    def of(cls, options: QuantizeOptions) -> Scheme:
        return cls(headroom=options.headroom, per_tensor=True)

    @property
    def integers(self) -> set[str]:
        return {"int8", "int16"}

    def check(self, located: LocatedNode) -> None:
        """Refuse a node that TensorFlow Lite's operator cannot express.

        Raises:
            UnsupportedModelError: It is a GRU or RNN, or has other activations, or a clip.
        """
        node = parse_recurrent(located, "ort", lenient=True)
        names = {tuple(each.name for each in activations) for activations in node.activations}
        problem = ""
        if node.op_type != "LSTM":
            problem = f"TensorFlow Lite has no {node.op_type} in integers"
        elif names != {_ACTIVATIONS}:
            problem = f"attribute activations: the LSTM of TensorFlow Lite has {', '.join(_ACTIVATIONS)}"
        elif node.clip is not None:
            problem = "attribute clip: the LSTM of TensorFlow Lite does not clip the inputs of activations"
        if problem:
            raise UnsupportedModelError(
                problem, node=located, remedy=f"choose another scheme ({wording.option('scheme', 'qdq')})"
            )

    def observed(self, role: str) -> str:
        return "c" if role in ("f*c", "i*c~") else super().observed(role)

    def fixed(self, role: str) -> Encoding | None:
        name = self.observed(role)
        if name in ("x", "h", "c"):
            return None
        return _ACTIVATED if name.split()[-1] in _ACTIVATIONS else _SUM

    def encoding(self, role: str, seen: Range) -> Encoding:
        name = self.observed(role)
        if name in ("x", "h"):
            return asymmetric(ir.DataType.INT8, seen)
        if name != "c":
            # Peepholes.
            return symmetric(ir.DataType.INT16, seen)
        return symmetric(ir.DataType.INT16, seen.scaled(self.headroom)).rounded()
