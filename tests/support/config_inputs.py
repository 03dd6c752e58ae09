"""The sources of a ``Config``'s weights and states: initializers, constants, or computed from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

if TYPE_CHECKING:
    from support.configs import Config

_QUANTUM, _ZERO_POINT = 1 / 64, 3


@dataclass
class Scope:
    """The nodes and initializers of one graph or function; ``prefix`` keeps names apart."""

    config: Config
    prefix: str = ""
    is_function: bool = False
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, op_type: str, inputs: Sequence[str], output: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op_type, inputs, [output], **attributes))
        return output

    def constant(self, name: str, value: np.ndarray, *, as_node: bool = False) -> str:
        """Return an initializer, or a Constant node where asked for and in functions."""
        name = self.prefix + name
        tensor = numpy_helper.from_array(np.ascontiguousarray(value), name)
        if as_node or self.is_function:
            return self.add("Constant", [], name, value=tensor)
        self.initializers.append(tensor)
        return name

    def unsqueeze(self, x: str, output: str) -> str:
        if self.config.opset >= 13:
            axes = self.constant(f"{output}_axes".removeprefix(self.prefix), np.array([0], np.int64))
            return self.add("Unsqueeze", [x, axes], output)
        return self.add("Unsqueeze", [x], output, axes=[0])

    def slice(self, x: str, start: int, end: int, output: str) -> str:
        if self.config.opset >= 10:
            bounds = [
                self.constant(f"{output}_{which}".removeprefix(self.prefix), np.array([value], np.int64))
                for which, value in (("start", start), ("end", end))
            ]
            return self.add("Slice", [x, *bounds], output)
        return self.add("Slice", [x], output, axes=[0], starts=[start], ends=[end])


def dequantized(value: np.ndarray) -> np.ndarray:
    """Return ``value`` behind a DequantizeLinear: multiples of a power of two, which no dtype rounds."""
    return ((_quantized(value).astype(np.int32) - _ZERO_POINT) * _QUANTUM).astype(value.dtype)


def _quantized(value: np.ndarray) -> np.ndarray:
    steps = np.round(value.astype(np.float64) / _QUANTUM) + _ZERO_POINT
    return np.clip(steps, -128, 127).astype(np.int8)


def provide(scope: Scope, name: str, how: str, value: np.ndarray | None, x: str) -> str:
    """Make the node's input ``name`` the way ``how`` says; return the value's name."""
    if how in ("input", "same"):
        return name
    assert value is not None
    if how == "constant":
        return scope.constant(name, value, as_node=True)
    if how == "computed":
        return _computed(scope, name, value)
    if how == "dequantized":
        zero_point = np.array(_ZERO_POINT, np.int8)
        parts = {"quantized": _quantized(value), "scale": np.array(_QUANTUM, value.dtype), "zero": zero_point}
        names = [scope.constant(f"{name}_{part}", array) for part, array in parts.items()]
        return scope.add("DequantizeLinear", names, scope.prefix + name)
    if how == "expanded":
        return _expanded(scope, name, value, x)
    return scope.constant(name, value)


def _computed(scope: Scope, name: str, value: np.ndarray) -> str:
    """Return ``value``, stored with the halves of each entry swapped and put right by Slice and Concat."""
    entries = []
    for k, entry in enumerate(value):
        stem = f"{name}_{k}"
        half = len(entry) // 2
        swapped = scope.constant(f"{stem}_swapped", np.concatenate([entry[half:], entry[:half]]))
        stem = scope.prefix + stem
        if half:
            cut = len(entry) - half
            front = scope.slice(swapped, cut, len(entry), f"{stem}_front")
            back = scope.slice(swapped, 0, cut, f"{stem}_back")
            swapped = scope.add("Concat", [front, back], f"{stem}_joined", axis=0)
        entries.append(scope.unsqueeze(swapped, f"{stem}_entry"))
    if not entries:
        return scope.constant(name, value)
    return scope.add("Concat", entries, scope.prefix + name, axis=0)


def _expanded(scope: Scope, name: str, value: np.ndarray, x: str) -> str:
    """Return ``value``, whose batch size is 1, at the batch size of X."""
    config = scope.config
    batch_axis = (0 if config.layout else 1) + (config.place == "scan")
    shape = scope.add("Shape", [x], f"{name}_x_shape")
    axis = scope.constant(f"{name}_axis", np.array([batch_axis], np.int64))
    batch = scope.add("Gather", [shape, axis], f"{name}_batch", axis=0)
    directions = scope.constant(f"{name}_directions", np.array([config.num_directions], np.int64))
    hidden = scope.constant(f"{name}_hidden", np.array([config.hidden_size], np.int64))
    dims = [batch, directions, hidden] if config.layout else [directions, batch, hidden]
    target = scope.add("Concat", dims, f"{name}_shape", axis=0)
    return scope.add("Expand", [scope.constant(f"{name}_row", value), target], name)
