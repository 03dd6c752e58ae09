"""Values that are known without running the model: axes, scales, shapes and values computed from them."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.opset.types import ValueTypes, all_graphs

__all__ = ["Constants"]

logger = logging.getLogger(__name__)

# Operators with which exporters compute axes, shapes and scales.
FOLDED = frozenset(
    [
        "Add",
        "Cast",
        "Ceil",
        "Concat",
        "ConstantOfShape",
        "Div",
        "Equal",
        "Expand",
        "Floor",
        "Gather",
        "Greater",
        "Identity",
        "Less",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "Range",
        "Reshape",
        "Shape",
        "Size",
        "Slice",
        "Squeeze",
        "Sub",
        "Transpose",
        "Unsqueeze",
        "Where",
    ]
)
VALUE_TYPES: dict[str, Any] = {"int": np.int64, "float": np.float32, "string": np.object_}
# Larger tensors are not axes, shapes or scales, and even larger ones are weights.
SMALL_ELEMENTS = 1024
LARGE_ELEMENTS = 2**20


class Constants:
    """The constants of a model before its conversion, and those that the conversion adds."""

    def __init__(self, model: ir.Model, types: ValueTypes, *, fold: bool = True) -> None:
        self._types = types
        self._opset = model.graph.opset_imports.get("", 1)
        # Up to IR 3 every initializer had to be an input too, although nobody was expected to feed it.
        self._inputs_are_constant = model.ir_version < FREE_INITIALIZERS_IR
        self._folded: dict[ir.Value, np.ndarray] = {}
        if not fold:
            return
        for graph in all_graphs(model.graph):
            for node in graph:
                if node.domain == "" and node.op_type in FOLDED:
                    self._fold(node)

    def array(self, value: ir.Value | None, limit: int = LARGE_ELEMENTS) -> np.ndarray | None:
        """Return the content of `value`; ``None`` if it is not constant or has more than `limit` elements."""
        if value is None:
            return None
        if value in self._folded:
            found = self._folded[value]
            return found if found.size <= limit else None
        if value.const_value is not None and value.is_initializer():
            overridable = value.is_graph_input() and not self._inputs_are_constant
            if overridable or value.const_value.size > limit:
                return None
            return value.const_value.numpy()
        return self._of_constant_node(value, limit)

    def record(self, value: ir.Value, array: np.ndarray) -> None:
        """Record the content of a constant that the conversion has added."""
        self._folded[value] = array

    def alias(self, value: ir.Value, original: ir.Value, others: Constants) -> None:
        """Record that `value` equals `original` of `others`, the constants of another copy of the model."""
        if original in others._folded:
            self._folded[value] = others._folded[original]

    def _of_constant_node(self, value: ir.Value, limit: int) -> np.ndarray | None:
        node = value.producer()
        if node is None or node.domain or node.op_type != "Constant" or len(node.attributes) != 1:
            return None
        (attribute,) = node.attributes.values()
        if attribute.is_ref() or attribute.name == "sparse_value":
            return None
        if attribute.name == "value":
            tensor = attribute.as_tensor()
            return tensor.numpy() if tensor.size <= limit else None
        dtype = VALUE_TYPES[str(attribute.name).removeprefix("value_").removesuffix("s")]
        return np.array(attribute.value, dtype)

    def _fold(self, node: ir.Node) -> None:
        shape = self._types.shape(node.inputs[0]) if node.inputs else None
        if node.op_type in ("Shape", "Size") and shape is not None and shape.is_static():
            arrays: list[np.ndarray | None] = [np.broadcast_to(np.uint8(0), shape.numpy())]
        else:
            arrays = [self.array(value, SMALL_ELEMENTS) for value in node.inputs]
            if any(a is None and v is not None for a, v in zip(arrays, node.inputs, strict=True)):
                return
        result = self._run(node, arrays)
        if result is not None and result.size <= SMALL_ELEMENTS:
            self._folded[node.outputs[0]] = result

    def _run(self, node: ir.Node, arrays: list[np.ndarray | None]) -> np.ndarray | None:
        from onnx.reference import ReferenceEvaluator

        if any(attribute.is_ref() for attribute in node.attributes.values()) or len(node.outputs) != 1:
            return None
        names = [f"i{k}" if array is not None else "" for k, array in enumerate(arrays)]
        proto = onnx.helper.make_node(node.op_type, names, ["o"])
        proto.attribute.extend(ir.to_proto(attribute) for attribute in node.attributes.values())
        inputs = [onnx.helper.make_tensor_value_info(name, 0, None) for name in names if name]
        graph = onnx.helper.make_graph(
            [proto], "g", inputs, [onnx.helper.make_tensor_value_info("o", 0, None)]
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", self._opset)])
        feeds: dict[str, Any] = {name: array for name, array in zip(names, arrays, strict=True) if name}
        try:
            results: Any = ReferenceEvaluator(model).run(None, feeds)
        # The evaluator raises whatever its NumPy code raises; the value is then not a constant.
        except Exception as error:
            logger.debug("%s is not folded: %s", node.op_type, error)
            return None
        return np.asarray(results[0])
