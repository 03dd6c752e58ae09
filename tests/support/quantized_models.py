"""Models of one com.microsoft.DynamicQuantizeLSTM, with inputs, run by onnxruntime with one thread."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import rnnlower
from support.judge import all_nodes
from support.sessions import session

INPUTS = (
    *("X", "W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P"),
    *("W_scale", "W_zero_point", "R_scale", "R_zero_point"),
)
OUTPUTS = ("Y", "Y_h", "Y_c")
_WEIGHTS = ("W", "R", "B", "P", *INPUTS[8:])


@dataclass(frozen=True)
class QuantizedLstm:
    """One node: its sizes, the form of its weights, and which inputs and outputs it has.

    With ``bits`` 7, no sum of two products exceeds 16 bits, where processors without VNNI saturate.
    """

    steps: int = 5
    batch: int = 1
    input_size: int = 6
    hidden_size: int = 8
    direction: str = "forward"
    signed: bool = True
    bits: int = 8
    per_column: bool = False
    optional: tuple[str, ...] = ("B",)
    lengths: tuple[int, ...] | None = None
    outputs: tuple[str, ...] = OUTPUTS
    dynamic: bool = False
    weights_at_run_time: bool = False
    opset: int = 17
    attributes: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    @property
    def all_attributes(self) -> dict[str, Any]:
        return {"hidden_size": self.hidden_size, "direction": self.direction, **self.attributes}

    def values(self) -> dict[str, np.ndarray]:
        """Return all inputs of the node by name."""
        rng = np.random.default_rng(self.seed)
        D, H, rows = 1 + (self.direction == "bidirectional"), self.hidden_size, 4 * self.hidden_size
        values: dict[str, np.ndarray] = {
            "X": rng.standard_normal((self.steps, self.batch, self.input_size)).astype(np.float32)
        }
        shape = (D, rows) if self.per_column else (D,)
        for name, columns in (("W", self.input_size), ("R", H)):
            half = 1 << (self.bits - 1)
            low, high, dtype = (1 - half, half, np.int8) if self.signed else (0, 2 * half, np.uint8)
            values[name] = rng.integers(low, high, (D, columns, rows)).astype(dtype)
            values[f"{name}_scale"] = (rng.uniform(0.5, 1.5, shape) / 64 / columns**0.5).astype(np.float32)
            zero = rng.integers(100, 150) if not self.signed else rng.integers(-20, 20)
            values[f"{name}_zero_point"] = np.full(
                shape, 0 if self.signed and self.per_column else zero, dtype
            )
        others = {"B": (D, 2 * rows), "P": (D, 3 * H)}
        others |= dict.fromkeys(("initial_h", "initial_c"), (D, self.batch, H))
        values |= {name: rng.uniform(-0.5, 0.5, others[name]).astype(np.float32) for name in self.optional}
        if self.lengths is not None:
            values["sequence_lens"] = np.array(self.lengths, np.int32)
        return values

    def feeds(self) -> dict[str, np.ndarray]:
        """Return the graph's inputs."""
        constant = () if self.weights_at_run_time else _WEIGHTS
        return {name: value for name, value in self.values().items() if name not in constant}

    def build(self) -> onnx.ModelProto:
        values, feeds = self.values(), self.feeds()
        node = helper.make_node(
            "DynamicQuantizeLSTM",
            [name if name in values else "" for name in INPUTS],
            [name if name in self.outputs else "" for name in OUTPUTS],
            name="quantized",
            domain="com.microsoft",
            **self.all_attributes,
        )
        rows: int | str = "N" if self.dynamic else self.batch
        state = [len(values["W"]), rows, self.hidden_size]
        time: int | str = "T" if self.dynamic else self.steps
        sizes = {"X": [time, rows, self.input_size], "sequence_lens": [rows]}
        sizes |= {"initial_h": state, "initial_c": state}
        graph = helper.make_graph(
            [node],
            "quantized",
            [
                helper.make_tensor_value_info(
                    name, helper.np_dtype_to_tensor_dtype(value.dtype), sizes.get(name, value.shape)
                )
                for name, value in feeds.items()
            ],
            [
                helper.make_tensor_value_info(
                    name, TensorProto.FLOAT, [time, *state] if name == "Y" else state
                )
                for name in self.outputs
            ],
            [numpy_helper.from_array(value, name) for name, value in values.items() if name not in feeds],
        )
        opsets = [helper.make_opsetid("", self.opset), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def draw(rng: np.random.Generator) -> QuantizedLstm:
    """Return a random node."""

    def one(*choices: Any) -> Any:
        return choices[rng.integers(len(choices))]

    steps, batch, direction = (
        one(1, 2, 3, 7, 20),
        one(1, 1, 2, 3, 16),
        one("forward", "reverse", "bidirectional"),
    )
    attributes: dict[str, Any] = {}
    if one(0, 0, 1):
        attributes["clip"] = float(rng.uniform(0.1, 2))
    if one(0, 0, 0, 1):
        attributes["input_forget"] = 1
    if one(0, 0, 0, 1):
        names = [one("Sigmoid", "HardSigmoid"), one("Tanh", "Relu", "Softsign"), one("Tanh", "Softsign")]
        attributes["activations"] = names * (1 + (direction == "bidirectional"))
    optional = [name for name in ("B", "P") if one(0, 1, name == "B")]
    optional += ["initial_h", "initial_c"] * one(0, 1)
    lengths = tuple(int(n) for n in rng.integers(0, steps + 1, batch)) if one(0, 1) else None
    if lengths and not max(lengths):
        lengths = (steps, *lengths[1:])
    return QuantizedLstm(
        steps=steps,
        batch=batch,
        input_size=one(1, 5, 40),
        hidden_size=one(1, 4, 16, 64),
        direction=direction,
        signed=one(True, False),
        per_column=one(True, False),
        optional=tuple(optional),
        lengths=lengths,
        outputs=one(OUTPUTS, OUTPUTS, ("Y",), ("Y", "Y_h")),
        dynamic=one(True, False),
        weights_at_run_time=one(False, False, False, True),
        opset=one(11, 13, 17, 21),
        attributes=attributes,
        seed=int(rng.integers(1 << 30)),
    )


def lowered_quantized(config: QuantizedLstm, strategy: str, **options: Any) -> onnx.ModelProto:
    """Return the node's model, lowered; a dynamic length is fixed where the strategy needs one."""
    if strategy == "unroll":
        options["input_shapes"] = {name: value.shape for name, value in config.feeds().items()}
    result = getattr(rnnlower, strategy)(config.build(), **options)
    onnx.checker.check_model(result, full_check=True)
    assert "DynamicQuantizeLSTM" not in {node.op_type for node in all_nodes(result)}
    return result


def run_single(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return all outputs: by one thread, of the graph as it is."""
    whole = session(model, optimized=False)
    return dict(zip([o.name for o in whole.get_outputs()], whole.run(None, dict(feeds)), strict=True))
