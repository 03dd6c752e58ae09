"""A runtime with faults, for probes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import onnx

from rnnlower.engines.opened_models import EngineError
from rnnlower.engines.reference import evaluate

Feeds = Mapping[str, Any]


class Runtime:
    """The NumPy reference with faults, in the place of a runtime's process."""

    asked = 0

    def __init__(self, engine: object) -> None: ...

    def __exit__(self, *_: object) -> None: ...

    def run(self, model: onnx.ModelProto, *trials: Feeds) -> list[dict[str, Any]]:
        Runtime.asked += 1
        results = []
        for node in model.graph.node:
            attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
            if node.op_type in ("Loop", "Scan", "Erf") or attributes.get("alpha") == 0.5:
                raise EngineError(f"no {node.op_type}")
            if node.op_type == "Split" and len(node.output) > 9:
                raise EngineError("out of memory", "crashes")
            if node.op_type == "Transpose" and "perm" not in attributes:
                raise EngineError("no layer Transpose")
            if node.op_type == "GRU" and attributes.get("direction") == b"forward":
                raise EngineError("unsupported GRU direction b'forward'")
            if node.op_type == "GRU" and len(node.input) < 6:
                raise EngineError("h0.rows == expectedRows")
            if node.op_type == "RNN" or "sequence_lens" in node.input or "layout" in attributes:
                raise EngineError("not supported")
            if node.op_type == "LSTM" and "activation_alpha" in attributes:
                raise EngineError("LSTM activation_alpha must match activations")
            if node.op_type == "LSTM" and (len(node.input) == 4 and not node.input[3]):
                raise EngineError("an empty B")
            if node.op_type == "If" and any(
                each.op_type == "LSTM" for each in attributes["then_branch"].node
            ):
                raise EngineError("no LSTM in a body")
            if node.op_type == "LSTM" and attributes.get("direction") == b"reverse":
                results = [{name: -array for name, array in evaluate(model, trials[0]).items()}]
        return results or [evaluate(model, feeds) for feeds in trials]
