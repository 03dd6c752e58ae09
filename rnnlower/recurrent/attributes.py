"""Parser of the attributes of LSTM, GRU and RNN nodes of every version; it resolves all defaults."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rnnlower.errors import InvalidModelError, UnsupportedModelError
from rnnlower.graph.walk import Located
from rnnlower.recurrent.node import Activation, Semantics
from rnnlower.recurrent.operators import (
    ATTRIBUTE_TYPES,
    DIRECTIONS,
    ORT_PARAMETERS,
    RECURRENT_OPS,
    SIGNATURES,
    SPEC_PARAMETERS,
)


class AttributeReader:
    """A reader of the attributes of one node; all errors name the node."""

    def __init__(self, located: Located, semantics: Semantics, lenient: bool) -> None:
        self.node = located.node
        self.lenient = lenient
        self.located = located
        self.signature = SIGNATURES[self.node.domain, self.node.op_type]
        self.op_type = self.signature.cell
        self.cell = RECURRENT_OPS[self.op_type]
        self.version = max(v for v in self.signature.versions if v <= located.opset)
        self.semantics = semantics

    def invalid(self, what: str, remedy: str = "") -> InvalidModelError:
        return InvalidModelError(what, node=self.located, remedy=remedy)

    def unsupported(self, what: str, remedy: str = "") -> UnsupportedModelError:
        return UnsupportedModelError(what, node=self.located, remedy=remedy)

    def check_attributes(self) -> None:
        known = self.signature.attributes
        own = sorted(name for name, (first, last) in known.items() if first <= self.version <= last)
        for name, attribute in self.node.attributes.items():
            if name not in known:
                raise self.invalid(
                    f"unknown attribute {name!r}; {self.node.op_type}-{self.version} has {', '.join(own)}"
                )
            first, last = known[name]
            if not first <= self.version <= last:
                raise self.invalid(
                    f"attribute {name!r} does not exist in {self.node.op_type}-{self.version}",
                    "remove it or change the model's opset",
                )
            if attribute.is_ref() and self.lenient:
                continue
            if attribute.is_ref():
                raise self.unsupported(
                    f"attribute {name!r} refers to the function attribute {attribute.ref_attr_name!r}, "
                    "which no call of the function sets",
                    "set it or give it a default",
                )
            if attribute.type != ATTRIBUTE_TYPES[name]:
                raise self.invalid(
                    f"attribute {name!r} has type {attribute.type.name}; "
                    f"it must be {ATTRIBUTE_TYPES[name].name}"
                )

    def value(self, name: str) -> Any:
        attribute = self.node.attributes.get(name)
        return None if attribute is None or attribute.is_ref() else attribute.value

    def integer(self, name: str, default: int) -> int:
        value = self.value(name)
        return default if value is None else int(value)

    def direction(self) -> str:
        # The schema of GRU-1 misspells its default as "foward". No other value is corrected.
        direction = self.value("direction") or "forward"
        if self.op_type == "GRU" and self.version < 3 and direction == "foward":
            direction = "forward"
        if direction not in DIRECTIONS:
            raise self.invalid(
                f"attribute direction is {direction!r}; it must be one of {', '.join(DIRECTIONS)}"
            )
        return str(direction)

    def clip(self) -> float | None:
        clip = self.value("clip")
        if clip is None:
            return None
        # onnxruntime's RNN kernel takes a threshold of 0, its LSTM and GRU kernels do not.
        lowest_is_zero = self.op_type == "RNN"
        if not (clip > 0 or (lowest_is_zero and clip == 0)):
            raise self.unsupported(
                f"attribute clip is {clip}; a threshold must be positive",
                "remove the attribute to clip nothing",
            )
        return float(clip)

    def activations(self, num_directions: int) -> tuple[tuple[Activation, ...], ...]:
        names = self._activation_names(num_directions)
        table = ORT_PARAMETERS if self.semantics == "ort" else SPEC_PARAMETERS
        alphas = iter(self.value("activation_alpha") or ())
        betas = iter(self.value("activation_beta") or ())
        activations = []
        for given in names:
            name = self._known_activation(given)
            parameters = table[name]
            activation = Activation(
                name,
                None if parameters.alpha is None else _float32(next(alphas, parameters.alpha)),
                None if parameters.beta is None else _float32(next(betas, parameters.beta)),
            )
            if activation.alpha != activation.alpha or activation.beta != activation.beta:
                raise self.unsupported(
                    f"activation {name} has no default alpha and beta in the ONNX spec",
                    "set activation_alpha and activation_beta",
                )
            activations.append(activation)
        count = len(self.cell.activations)
        return tuple(tuple(activations[d * count : (d + 1) * count]) for d in range(num_directions))

    def _activation_names(self, num_directions: int) -> Sequence[str]:
        names: Sequence[str] | None = self.value("activations")
        if names is None:
            return self.cell.activations * num_directions
        expected = len(self.cell.activations) * num_directions
        if self.op_type == "RNN" and num_directions == 1 and len(names) == 2:
            return names[:1]  # The schema's own default has two entries, whatever the direction.
        if len(names) != expected:
            raise self.invalid(f"attribute activations has {len(names)} entries; it must have {expected}")
        return names

    def _known_activation(self, given: str) -> str:
        ignore_case = self.semantics == "ort" and self.op_type != "RNN"
        for name in SPEC_PARAMETERS:
            if given == name or (ignore_case and given.lower() == name.lower()):
                return name
        raise self.unsupported(f"unknown activation {given!r}; known are {', '.join(SPEC_PARAMETERS)}")


def _float32(number: float) -> float:
    """Return the number in the precision of an attribute."""
    return float(np.float32(number))
