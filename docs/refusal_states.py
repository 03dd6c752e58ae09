"""Models with LinearAttention and CausalConvWithState that are refused."""

from __future__ import annotations

from typing import Any

import onnx
from onnx import TensorProto, helper
from refusal_models import Case, Change, rename_input, set_attribute, then

SCAN = "scan model.onnx -o out.onnx"
UNROLL = "unroll model.onnx -o out.onnx"
MICROSOFT = "com.microsoft"
_SHAPES: dict[str, list[Any]] = {
    "query": [1, "T", 4],
    "key": [1, "T", 4],
    "value": [1, "T", 6],
    "past_state": [1, 2, 2, 3],
    "decay": [1, "T", 2],
    "beta": [1, "T", 2],
}


def attention(rule: str = "gated_delta", domain: str = "", **shapes: list[Any] | None) -> onnx.ModelProto:
    """Return one LinearAttention called `attention`, of 2 heads; `shapes` are those of its inputs."""
    wanted = {name: shapes.get(name, shape) for name, shape in _SHAPES.items()}
    names = [name for name in _SHAPES if name in shapes or name not in ("decay", "beta")]
    names = [*_SHAPES] if rule == "gated_delta" else names
    attributes = {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": rule}
    return _model("LinearAttention", "attention", {name: wanted[name] for name in names}, domain, attributes)


def convolution(domain: str = "", **shapes: list[Any] | None) -> onnx.ModelProto:
    """Return one CausalConvWithState called `conv`, of 4 channels and 3 taps."""
    own = {"input": [1, 4, "T"], "weight": [4, 1, 3], "bias": [4], "past_state": [1, 4, 2]}
    return _model("CausalConvWithState", "conv", {**own, **shapes}, domain, {})


def _model(
    op_type: str, name: str, shapes: dict[str, Any], domain: str, attributes: dict[str, Any]
) -> onnx.ModelProto:
    floats = TensorProto.FLOAT
    outputs = ["output", "present_state"]
    node = helper.make_node(op_type, [*shapes], outputs, name=name, domain=domain, **attributes)
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info(each, floats, shape) for each, shape in shapes.items()],
        [helper.make_tensor_value_info(each, floats, None) for each in outputs],
    )
    imports = [helper.make_opsetid("", 21 if domain else 27)]
    imports += [helper.make_opsetid(domain, 1)] if domain else []
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def _typed(elem_type: int) -> Change:
    """Return another type of the first input."""

    def change(model: onnx.ModelProto) -> None:
        model.graph.input[0].type.tensor_type.elem_type = elem_type

    return change


def _without(position: int) -> Change:
    return then(rename_input(position, ""), lambda model: model.graph.input.pop(position))


OF_MICROSOFT = attention(domain=MICROSOFT)
CONV_OF_MICROSOFT = convolution(MICROSOFT)
STATES = [
    Case("no length to unroll", UNROLL, model=attention()),
    Case("an opset without dynamic slices", "convert model.onnx -o out.onnx --opset 9", model=attention()),
    Case("a window of states", SCAN, set_attribute("state_window", 2), OF_MICROSOFT),
    Case("an image", SCAN, set_attribute("ndim", 2), CONV_OF_MICROSOFT),
    Case("an unknown attribute", SCAN, set_attribute("epsilon", 1.0), OF_MICROSOFT),
    Case("an attribute of another type", SCAN, set_attribute("scale", 1), OF_MICROSOFT),
    Case("no heads", SCAN, set_attribute("q_num_heads", 0), attention()),
    Case("heads that do not divide", SCAN, set_attribute("q_num_heads", 3), attention(query=[1, "T", 6])),
    Case("an unknown rule", SCAN, set_attribute("update_rule", "gate"), attention()),
    Case("a rule without its input", SCAN, set_attribute("update_rule", "gated"), attention("linear")),
    Case("an input that the rule lacks", SCAN, set_attribute("update_rule", "linear"), attention()),
    Case("no key", SCAN, _without(1), OF_MICROSOFT),
    Case("types", SCAN, _typed(TensorProto.DOUBLE), OF_MICROSOFT),
    Case("unknown shapes", SCAN, None, attention(query=None, key=None, value=None, past_state=None)),
    Case("a rank", SCAN, None, attention(domain=MICROSOFT, query=[1, "T", 2, 2])),
    Case("features of heads", SCAN, None, attention(domain=MICROSOFT, value=[1, "T", 5])),
    Case("features of keys", SCAN, None, attention(domain=MICROSOFT, key=[1, "T", 6])),
    Case("decays", SCAN, None, attention(domain=MICROSOFT, decay=[1, "T", 3])),
    Case("rates", SCAN, None, attention(domain=MICROSOFT, beta=[1, "T", 3])),
    Case("lengths", SCAN, None, attention(domain=MICROSOFT, query=[1, 3, 4], key=[1, 4, 4])),
    Case("a state", SCAN, None, attention(domain=MICROSOFT, past_state=[1, 2, 3, 2])),
    Case("an unknown activation", SCAN, set_attribute("activation", "relu"), convolution()),
    Case("dilation", SCAN, set_attribute("dilation", 0), CONV_OF_MICROSOFT),
    Case("channels", SCAN, None, convolution(MICROSOFT, bias=[3])),
    Case("the length of a state", SCAN, None, convolution(MICROSOFT, past_state=[1, 4, 5])),
]
