"""The integers of TensorFlow Lite's LSTM, which CMSIS-NN computes, too.

Source: tensorflow/lite/tools/optimize/operator_property.cc, unidirectional_sequence_lstm.cc of TFLM.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import UnsupportedModelError
from rnnlower.graph.walk import Located
from rnnlower.passes.command_options import QuantizeOptions
from rnnlower.quantizing.observing import Range
from rnnlower.quantizing.schemes import Encoding, Scheme, asymmetric, symmetric
from rnnlower.recurrent.parsing import parse_recurrent

_SUM = Encoding(ir.DataType.INT16, 2.0**-12, 0)
"""Q3.12: what an activation is applied to."""

_ACTIVATED = Encoding(ir.DataType.INT16, 2.0**-15, 0)
"""Q0.15: gates and tanh(C)."""

_ACTIVATIONS = ("Sigmoid", "Tanh", "Tanh")


@dataclasses.dataclass(frozen=True)
class TfliteScheme(Scheme):
    """X and H are int8, C and what it is the sum of is int16 with a power of two, all else is fixed.

    A gate has a product of its own, with one scale for its weight; its bias is int32 with the scale of the
    product, which is not rounded before the sum.
    """

    gates: ClassVar = "separate"
    unrounded: ClassVar = ("x factor", "x product")
    integer_bias: ClassVar = True

    @classmethod
    def of(cls, options: QuantizeOptions) -> Scheme:
        return cls(headroom=options.headroom, per_tensor=True)

    def check(self, located: Located) -> None:
        """Refuse a node that TensorFlow Lite's operator cannot be.

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
        return symmetric(ir.DataType.INT16, seen.times(self.headroom)).rounded()
