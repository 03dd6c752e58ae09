"""LinearAttention and CausalConvWithState of the reference engine, against the oracle and onnxruntime."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnxruntime
import pytest
from support.state_models import MICROSOFT, AttentionCase, ConvolutionCase, random_case

from rnnlower.engines.reference import evaluate
from rnnlower.errors import InvalidModelError, UnsupportedModelError


@pytest.mark.parametrize("seed", range(60))
def test_random_nodes_agree_with_the_oracle(seed: int) -> None:
    case = random_case(seed)
    feeds = case.feeds(seed)
    got = evaluate(case.model(), feeds)
    for value, expected in zip(got.values(), case.expected(feeds), strict=True):
        assert value.shape == expected.shape
        limit = 2e-3 if value.dtype == np.float16 else 1e-6
        assert np.abs(value - expected).max(initial=0) <= limit * max(1, np.abs(expected).max(initial=0))


@pytest.mark.parametrize("domain", ["", MICROSOFT])
def test_the_oracle_agrees_with_onnxruntime(domain: str) -> None:
    for rule in ("linear", "gated", "delta", "gated_delta"):
        case = AttentionCase(rule, domain=domain, opset=21 if domain else 27, queries=4)
        feeds = case.feeds(1)
        session = onnxruntime.InferenceSession(
            case.model().SerializeToString(), providers=["CPUExecutionProvider"]
        )
        for value, expected in zip(session.run(None, feeds), case.expected(feeds), strict=True):
            assert np.abs(value - expected).max() < 1e-5


def test_without_steps_the_state_is_passed_on() -> None:
    for batch, steps in ((2, 0), (0, 3)):
        case = dataclasses.replace(AttentionCase(dynamic=True), batch=batch, steps=steps)
        feeds = case.feeds(0)
        output, state = evaluate(case.model(), feeds).values()
        assert output.shape == (batch, steps, 8)
        assert steps or np.array_equal(state, feeds["past_state"])


def test_a_node_that_is_not_supported_is_refused() -> None:
    model = ConvolutionCase(domain=MICROSOFT, opset=21).model()
    model.graph.node[0].attribute.append(onnx.helper.make_attribute("ndim", 2))
    with pytest.raises(UnsupportedModelError, match="'ndim'"):
        evaluate(model, ConvolutionCase().feeds(0))
    case = AttentionCase("linear")
    model = case.model()
    model.graph.node[0].attribute[2].s = b"gated"
    with pytest.raises(InvalidModelError, match="decay"):
        evaluate(model, case.feeds(0))
