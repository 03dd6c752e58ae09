"""Random LinearAttention and CausalConvWithState models of both domains, with the oracle's results."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import onnx
from onnx import helper

from support.linear_attention import RULES, causal_conv, linear_attention

MICROSOFT = "com.microsoft"


@dataclasses.dataclass(frozen=True)
class AttentionCase:
    """A model of one LinearAttention node; `dynamic` leaves batch and steps open."""

    rule: str = "gated_delta"
    domain: str = ""
    opset: int = 27
    batch: int = 1
    steps: int = 20
    queries: int = 2
    keys: int = 2
    heads: int = 2
    key_size: int = 8
    value_size: int = 4
    per_key: bool = False
    beta_per_head: bool = True
    past: bool = True
    scale: float = 0.0
    dtype: str = "float32"
    state_dtype: str = "float32"
    dynamic: bool = False
    superfluous: bool = False

    @property
    def attributes(self) -> dict[str, Any]:
        attributes = {"q_num_heads": self.queries, "kv_num_heads": self.heads, "update_rule": self.rule}
        return attributes | ({"scale": self.scale} if self.scale else {})

    def feeds(self, seed: int) -> dict[str, np.ndarray]:
        draw = np.random.default_rng(seed)
        lead = (self.batch, self.steps)
        keys = draw.normal(size=(*lead, self.keys, self.key_size))
        keys /= np.maximum(np.linalg.norm(keys, axis=-1, keepdims=True), 1e-3)
        feeds = {
            "query": draw.normal(size=(*lead, self.queries * self.key_size)),
            "key": keys.reshape(*lead, self.keys * self.key_size),
            "value": draw.normal(size=(*lead, self.heads * self.value_size)),
        }
        if self.past:
            feeds["past_state"] = draw.normal(size=(self.batch, self.heads, self.key_size, self.value_size))
        if "gated" in self.rule or self.superfluous:
            width = self.heads * (self.key_size if self.per_key else 1)
            feeds["decay"] = -draw.exponential(0.3, size=(*lead, width))
        if "delta" in self.rule or self.superfluous:
            feeds["beta"] = draw.uniform(size=(*lead, self.heads if self.beta_per_head else 1))
        types = {name: self.state_dtype if name == "past_state" else self.dtype for name in feeds}
        return {name: value.astype(types[name]) for name, value in feeds.items()}

    def expected(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        queries = max(self.queries, self.heads)
        given = {name: feeds[name] for name in ("value", "past_state") if name in feeds}
        given |= {name: feeds[name] for name in ("decay",) if "gated" in self.rule}
        given |= {name: feeds[name] for name in ("beta",) if "delta" in self.rule}
        return [
            *linear_attention(
                _repeated(feeds["query"], self.queries, queries),
                _repeated(feeds["key"], self.keys, self.heads),
                **given,
                q_num_heads=queries,
                kv_num_heads=self.heads,
                update_rule=self.rule,
                scale=self.scale,
            )
        ]

    def model(self) -> onnx.ModelProto:
        feeds = self.feeds(0)
        names = ("query", "key", "value", "past_state", "decay", "beta")
        inputs = []
        for name, array in feeds.items():
            shape: list[Any] = [*array.shape]
            if self.dynamic:
                shape[: 1 if name == "past_state" else 2] = ["B"] if name == "past_state" else ["B", "T"]
            inputs.append(helper.make_tensor_value_info(name, _elem_type(array.dtype.name), shape))
        return _model(
            "LinearAttention",
            [name if name in feeds else "" for name in names],
            inputs,
            (self.dtype, self.state_dtype),
            self.domain,
            self.opset,
            self.attributes,
        )


@dataclasses.dataclass(frozen=True)
class ConvolutionCase:
    """A model of one CausalConvWithState node; `dynamic` leaves batch and steps open."""

    domain: str = ""
    opset: int = 27
    batch: int = 1
    channels: int = 4
    steps: int = 9
    width: int = 3
    bias: bool = True
    past: bool = True
    activation: str = "none"
    dilation: int = 1
    channels_last: bool = False
    dtype: str = "float32"
    dynamic: bool = False

    @property
    def attributes(self) -> dict[str, Any]:
        attributes: dict[str, Any] = {"activation": self.activation}
        if self.domain:
            attributes |= {"dilation": self.dilation, "channels_last": int(self.channels_last)}
        return attributes

    def feeds(self, seed: int) -> dict[str, np.ndarray]:
        draw = np.random.default_rng(seed)
        feeds = {
            "input": self._laid_out(draw.normal(size=(self.batch, self.channels, self.steps))),
            "weight": draw.normal(size=(self.channels, 1, self.width)),
        }
        if self.bias:
            feeds["bias"] = draw.normal(size=self.channels)
        if self.past:
            span = (self.width - 1) * self.dilation
            feeds["past_state"] = self._laid_out(draw.normal(size=(self.batch, self.channels, span)))
        return {name: value.astype(self.dtype) for name, value in feeds.items()}

    def expected(self, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
        weight = np.zeros((self.channels, 1, (self.width - 1) * self.dilation + 1))
        weight[:, :, :: self.dilation] = feeds["weight"]
        past = feeds.get("past_state")
        results = causal_conv(
            self._laid_out(feeds["input"]),
            weight,
            feeds.get("bias"),
            None if past is None else self._laid_out(past),
            activation=self.activation,
        )
        return [self._laid_out(each) for each in results]

    def model(self) -> onnx.ModelProto:
        feeds = self.feeds(0)
        inputs = []
        for name, array in feeds.items():
            shape: list[Any] = [*array.shape]
            if self.dynamic and name in ("input", "past_state"):
                shape[0] = "B"
            if self.dynamic and name == "input":
                shape[1 if self.channels_last else 2] = "L"
            inputs.append(helper.make_tensor_value_info(name, _elem_type(self.dtype), shape))
        return _model(
            "CausalConvWithState",
            [name if name in feeds else "" for name in ("input", "weight", "bias", "past_state")],
            inputs,
            (self.dtype, self.dtype),
            self.domain,
            self.opset,
            self.attributes,
        )

    def _laid_out(self, value: np.ndarray) -> np.ndarray:
        return np.swapaxes(value, 1, 2) if self.channels_last else value


Case = AttentionCase | ConvolutionCase


def random_case(seed: int) -> Case:
    """Return a case of either operator, over all attributes and types."""
    draw = np.random.default_rng(seed)

    def one_of(*options: Any) -> Any:
        return options[int(draw.integers(len(options)))]

    domain = one_of("", MICROSOFT)
    common = {"domain": domain, "opset": one_of(7, 13, 21, 26) if domain else one_of(27, 28)}
    common |= {"batch": one_of(1, 2, 3), "past": one_of(True, False), "dynamic": one_of(True, False)}
    dtype = one_of("float32", "float32", "float16")
    if one_of(True, True, False):
        heads = one_of(1, 2, 4)
        keys, queries = heads, heads * one_of(1, 1, 2, 3)
        if domain and heads > 1 and one_of(True, False):
            keys, queries = one_of(1, heads), one_of(1, heads, heads * 2)
        return AttentionCase(
            **common,
            rule=one_of(*RULES),
            steps=one_of(1, 2, 5, 16, 37, 70),
            queries=queries,
            keys=keys,
            heads=heads,
            key_size=one_of(1, 4, 8),
            value_size=one_of(1, 3, 8),
            per_key=one_of(True, False),
            beta_per_head=one_of(True, False),
            scale=one_of(0.0, 0.0, 0.7),
            dtype=dtype,
            state_dtype=dtype if domain or not common["past"] else one_of("float32", "float16"),
            superfluous=bool(domain) and one_of(True, False),
        )
    return ConvolutionCase(
        **common,
        channels=one_of(1, 4, 6),
        steps=one_of(1, 2, 9, 33),
        width=one_of(1, 2, 4),
        bias=one_of(True, False),
        activation=one_of("none", "silu", "swish"),
        dilation=one_of(1, 2, 3) if domain else 1,
        channels_last=bool(domain) and one_of(True, False),
        dtype=dtype,
    )


def _repeated(packed: np.ndarray, own: int, heads: int) -> np.ndarray:
    """Return packed heads with each head several times, next to each other."""
    rows, steps, width = packed.shape
    parted = packed.reshape(rows, steps, own, width // own)
    return np.repeat(parted, heads // own, axis=2).reshape(rows, steps, heads * (width // own))


def _elem_type(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _model(
    op_type: str,
    names: list[str],
    inputs: list[onnx.ValueInfoProto],
    dtypes: tuple[str, str],
    domain: str,
    opset: int,
    attributes: dict[str, Any],
) -> onnx.ModelProto:
    while not names[-1]:
        names.pop()
    outputs = [
        helper.make_tensor_value_info(name, _elem_type(dtype), [None] * 3 if name == "output" else None)
        for name, dtype in zip(("output", "present_state"), dtypes, strict=True)
    ]
    node = helper.make_node(op_type, names, ["output", "present_state"], "node", domain=domain, **attributes)
    graph = helper.make_graph([node], "graph", inputs, outputs)
    imports = [helper.make_opsetid("", opset)] + [helper.make_opsetid(domain, 1)] * bool(domain)
    return helper.make_model(graph, opset_imports=imports, ir_version=10)
