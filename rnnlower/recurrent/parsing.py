"""Parser of LSTM, GRU and RNN nodes of every version: it validates them and resolves all defaults."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np
import onnx_ir as ir

from rnnlower.errors import InvalidModelError, UnsupportedModelError
from rnnlower.graph.initializers import constant_of
from rnnlower.graph.walk import LocatedNode
from rnnlower.recurrent.node import Activation, ResolvedNode, Semantics
from rnnlower.recurrent.operators import (
    DIRECTIONS,
    FLOAT_TYPES,
    ORT_PARAMETERS,
    RECURRENT_OPS,
    SIGNATURES,
    SPEC_PARAMETERS,
)

_MAX_STATE_ELEMENTS = 2**28
_FIRST_WITH_BFLOAT16 = 22
_ZERO_POINTS = ("W_zero_point", "R_zero_point")
_QUANTIZED = ("W", "W_zero_point", "R", "R_zero_point")


def parse_recurrent(
    located: LocatedNode, semantics: Semantics = "ort", *, lenient: bool = False
) -> ResolvedNode:
    """Parse an LSTM, GRU or RNN node.

    Args:
        located: The node. Attributes that refer to a function's parameter must have been resolved.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ: ``ort`` or ``spec``.
        lenient: Treat attributes that refer to a function's parameter as absent, and an unknown hidden_size
            as 0.

    Raises:
        InvalidModelError: The node breaks the ONNX spec.
        UnsupportedModelError: The node uses a feature that is not supported.
    """
    return _Parser(located, semantics, lenient).parse()


class _Parser:
    """A parser of one node: its attributes, inputs, outputs and shapes; all errors name the node."""

    def __init__(self, located: LocatedNode, semantics: Semantics, lenient: bool) -> None:
        self.node = located.node
        self.lenient = lenient
        self.located = located
        self.signature = SIGNATURES[self.node.domain, self.node.op_type]
        self.op_type = self.signature.cell
        self.cell = RECURRENT_OPS[self.op_type]
        self.version = max(v for v in self.signature.attributes if v <= located.opset)
        self.semantics = semantics

    def parse(self) -> ResolvedNode:
        self.check_attributes()
        self.inputs = self._inputs()
        x_shape = self.inputs["X"].shape
        outputs = self._outputs()
        direction = self.direction()
        directions = DIRECTIONS[direction]
        layout = self.integer("layout", 0)
        if layout not in (0, 1):
            raise self.invalid(f"attribute layout is {layout}; it must be 0 or 1")
        hidden_size, input_size = self._sizes(x_shape)
        seq_length, batch_size = _static_dim(x_shape, layout), _static_dim(x_shape, 1 - layout)
        batch_size = self._batch_size(batch_size, layout)
        self._check_shapes(hidden_size, batch_size, len(directions), layout)
        self._check_lengths(seq_length)
        if (batch_size or 0) * hidden_size > _MAX_STATE_ELEMENTS:
            raise self.unsupported(
                f"a state of {batch_size:,} rows and {hidden_size:,} units is too large to be written",
                "make the batch dynamic",
            )
        return ResolvedNode(
            node=self.node,
            op_type=self.op_type,
            version=self.version,
            direction=direction,
            hidden_size=hidden_size,
            input_size=input_size,
            seq_length=seq_length,
            batch_size=batch_size,
            dtype=self._dtype(),
            activations=self.activations(len(directions)),
            clip=self.clip(),
            semantics=self.semantics,
            input_forget=bool(self.integer("input_forget", 0)),
            linear_before_reset=bool(self.integer("linear_before_reset", 0)),
            layout=layout,
            inputs=self.inputs,
            outputs=outputs,
        )

    def invalid(self, what: str, remedy: str = "") -> InvalidModelError:
        return InvalidModelError(what, node=self.located, remedy=remedy)

    def unsupported(self, what: str, remedy: str = "") -> UnsupportedModelError:
        return UnsupportedModelError(what, node=self.located, remedy=remedy)

    def check_attributes(self) -> None:
        known = {*chain.from_iterable(self.signature.attributes.values())}
        own = self.signature.attributes[self.version]
        for name, attribute in self.node.attributes.items():
            if name not in known:
                raise self.invalid(
                    f"unknown attribute {name!r}; {self.node.op_type}-{self.version} has {', '.join(own)}"
                )
            if name not in own:
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
            if attribute.type != own[name]:
                raise self.invalid(
                    f"attribute {name!r} has type {attribute.type.name}; it must be {own[name].name}"
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
                None if parameters.alpha is None else round_to_float32(next(alphas, parameters.alpha)),
                None if parameters.beta is None else round_to_float32(next(betas, parameters.beta)),
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

    def _inputs(self) -> dict[str, ir.Value]:
        allowed = self.signature.inputs
        if len(self.node.inputs) > len(allowed):
            raise self.invalid(f"has {len(self.node.inputs)} inputs; it takes at most {len(allowed)}")
        inputs = {
            name: value for name, value in zip(allowed, self.node.inputs, strict=False) if value is not None
        }
        for name in self.signature.required:
            if name not in inputs:
                raise self.invalid(f"input {name} is missing; it is required")
        return inputs

    def _outputs(self) -> dict[str, ir.Value]:
        allowed = self.cell.outputs
        if len(self.node.outputs) > len(allowed):
            raise self.invalid(f"has {len(self.node.outputs)} outputs; it has at most {len(allowed)}")
        return {name: value for name, value in zip(allowed, self.node.outputs, strict=False) if value.name}

    def _dtype(self) -> ir.DataType | None:
        dtypes = {
            name: value.dtype
            for name, value in self.inputs.items()
            if name not in self._integers and value.dtype is not None
        }
        for name, dtype in dtypes.items():
            self._check_type(name, dtype)
        self._check_integers()
        if len(set(dtypes.values())) > 1:
            raise self.invalid(
                "inputs differ in type: "
                + ", ".join(f"{name} {dtype.name}" for name, dtype in dtypes.items())
            )
        lens = self.inputs.get("sequence_lens")
        if lens is not None and lens.dtype not in (None, ir.DataType.INT32):
            raise self.invalid(f"input sequence_lens has type {lens.dtype.name}; it must be INT32")
        return next(iter(dtypes.values()), None)

    @property
    def _integers(self) -> tuple[str, ...]:
        """The inputs whose type differs from that of X."""
        return ("sequence_lens", *_QUANTIZED) if self.signature.transposed else ("sequence_lens",)

    def _check_integers(self) -> None:
        """Refuse quantized weights and zero points that onnxruntime's kernel refuses."""
        for name in self._integers[1:]:
            dtype, weight = self.inputs[name].dtype, self.inputs[name[0]].dtype
            if dtype not in (None, ir.DataType.INT8, ir.DataType.UINT8):
                raise self.invalid(f"input {name} has type {dtype.name}; it must be INT8 or UINT8")
            if None not in (dtype, weight) and dtype != weight:
                raise self.invalid(f"inputs {name[0]} and {name} differ in type")
            tensor = constant_of(self.inputs[name])
            if tensor is None or name not in _ZERO_POINTS or len(tensor.shape) < 2:
                continue
            numbers = set(tensor.numpy().flat)
            if len(numbers) > 1 or (dtype == ir.DataType.INT8 and any(numbers)):
                raise self.invalid(
                    f"input {name} has a number for each column, which must then be 0 (INT8) or the same "
                    "everywhere (UINT8)",
                    "quantize the weights again",
                )

    def _check_type(self, name: str, dtype: ir.DataType) -> None:
        has_bfloat16 = self.version >= _FIRST_WITH_BFLOAT16
        known = [each for each in FLOAT_TYPES if each != ir.DataType.BFLOAT16 or has_bfloat16]
        if self.signature.transposed:
            known = [ir.DataType.FLOAT]
        if dtype in known:
            return
        remedy = f"it takes {', '.join(each.name for each in known)}"
        if dtype == ir.DataType.BFLOAT16:
            remedy = (
                f"cast to float32, or change the model's opset: {self.node.op_type} has it from opset "
                f"{_FIRST_WITH_BFLOAT16} on"
            )
        raise self.invalid(
            f"input {name} has type {dtype.name}, which {self.node.op_type}-{self.version} lacks", remedy
        )

    def _sizes(self, x_shape: ir.Shape | None) -> tuple[int, int | None]:
        for name in "XWR":
            shape = self.inputs[name].shape
            if shape is not None and len(shape) != 3:
                raise self.invalid(f"input {name} has rank {len(shape)}; it must have rank 3")
        derived = self._hidden_size_of_shapes()
        given = self.value("hidden_size")
        hidden_size = derived if given is None else int(given)
        if hidden_size is None and self.lenient:
            return 0, _static_dim(x_shape, 2)
        if hidden_size is None:
            raise self.unsupported(
                "attribute hidden_size is absent and does not follow from any shape", "set the attribute"
            )
        if hidden_size <= 0:
            raise self.invalid(f"attribute hidden_size is {hidden_size}; it must be positive")
        input_size = _static_dim(self.inputs["W"].shape, 1 if self.signature.transposed else 2)
        x_size = _static_dim(x_shape, 2)
        if input_size is not None and x_size is not None and input_size != x_size:
            raise self.invalid(f"input X has {x_size} features, but W takes {input_size}")
        return hidden_size, x_size if input_size is None else input_size

    def _check_lengths(self, seq_length: int | None) -> None:
        """Refuse constant lengths that no sequence can have; onnxruntime refuses them only when it runs."""
        tensor = constant_of(self.inputs.get("sequence_lens"))
        if tensor is None:
            return
        for length in tensor.numpy().flat:
            if length < 0 or (seq_length is not None and length > seq_length):
                longest = "" if seq_length is None else f" to {seq_length}, the time steps of X"
                raise self.invalid(f"input sequence_lens has {length}; lengths go from 0{longest}")

    def _hidden_size_of_shapes(self) -> int | None:
        """Return hidden_size from the first known shape: of R, W, B, P, the states or the outputs."""
        gates = len(self.cell.gates)
        rows, columns = (2, 1) if self.signature.transposed else (1, 2)
        places = [("R", columns, 1), ("R", rows, gates), ("W", rows, gates), ("B", 1, 2 * gates), ("P", 1, 3)]
        places += [("initial_h", 2, 1), ("initial_c", 2, 1)]
        known = [
            (self.inputs[name].shape, axis, factor) for name, axis, factor in places if name in self.inputs
        ]
        sizes = [(_static_dim(shape, axis), factor) for shape, axis, factor in known]
        shapes = [out.shape for out in self.node.outputs if out.shape]
        sizes += [(_static_dim(shape, len(shape) - 1), 1) for shape in shapes]
        return next((size // factor for size, factor in sizes if size is not None), None)

    def _batch_size(self, batch_size: int | None, layout: int) -> int | None:
        places = (("sequence_lens", 0), ("initial_h", 1 - layout), ("initial_c", 1 - layout))
        sizes = [_static_dim(self.inputs[name].shape, axis) for name, axis in places if name in self.inputs]
        return next((size for size in (batch_size, *sizes) if size is not None), None)

    def _check_shapes(
        self, hidden_size: int, batch_size: int | None, num_directions: int, layout: int
    ) -> None:
        rows = len(self.cell.gates) * hidden_size
        states: tuple[int | None, ...] = (num_directions, batch_size, hidden_size)
        if layout:
            states = (batch_size, num_directions, hidden_size)
        if not hidden_size:
            return
        expected: dict[str, tuple[int | None, ...]] = {
            "W": (num_directions, rows, None),
            "R": (num_directions, rows, hidden_size),
            "B": (num_directions, 2 * rows),
            "sequence_lens": (batch_size,),
            "initial_h": states,
            "initial_c": states,
            "P": (num_directions, 3 * hidden_size),
        }
        if self.signature.transposed:
            expected |= {"W": (num_directions, None, rows), "R": (num_directions, hidden_size, rows)}
            for name in ("W_scale", "W_zero_point", "R_scale", "R_zero_point"):
                shape = self.inputs[name].shape
                per_tensor = shape is not None and len(shape) == 1
                expected[name] = (num_directions,) if per_tensor else (num_directions, rows)
        for name, value in self.inputs.items():
            if name not in expected or value.shape is None:
                continue
            shape = value.shape
            sizes = [_static_dim(shape, axis) for axis in range(len(shape))]
            fits = len(shape) == len(expected[name]) and all(
                want is None or have is None or have == want
                for want, have in zip(expected[name], sizes, strict=True)
            )
            if not fits:
                wanted = ", ".join("?" if size is None else str(size) for size in expected[name])
                raise self.invalid(
                    f"input {name} has shape [{', '.join(map(str, shape))}]; it must be [{wanted}] "
                    f"(hidden_size {hidden_size}, {num_directions} direction(s))",
                    remedy=_PROJECTION if name == "initial_c" and (sizes[-1] or 0) > hidden_size else "",
                )


_PROJECTION = (
    "if this is PyTorch's LSTM with proj_size, which ONNX's LSTM lacks, "
    "export it with rnnlower.exporters.torch.export"
)
"""The remedy for a cell state of more units than hidden_size."""


def _static_dim(shape: ir.Shape | None, index: int) -> int | None:
    """Return the dimension if it is a valid static size (exporters also write -1)."""
    if shape is None or index >= len(shape):
        return None
    size = shape[index]
    return size if isinstance(size, int) and size >= 0 else None


def round_to_float32(number: float) -> float:
    """Return the number in the precision of an attribute."""
    return float(np.float32(number))
