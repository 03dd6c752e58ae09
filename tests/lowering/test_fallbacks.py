"""Fallbacks: operators expressed by others give the numbers of the operator itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.workbench import Workbench

from rnnlower.lowering.fallbacks.arithmetic import ARITHMETIC

X = np.array([-100, -3, -1, -0.5, -1e-3, 0, 1e-3, 0.25, 1, 2, 50], np.float32)
OTHERS = {"Add", "Clip", "Exp", "Identity", "Log", "Max", "Mul", "Reciprocal", "Sub"}
ATTRIBUTES: dict[str, dict[str, float]] = {
    "Elu": {"alpha": 0.7},
    "HardSigmoid": {"alpha": 0.3, "beta": 0.4},
    "LeakyRelu": {"alpha": 0.1},
}
BINARY = {"Div", "Greater", "Less", "PRelu", "Sub"}
OF_OTHER_INPUTS = {"Clip", "Equal", "Gelu", "Gemm", "Identity", "LpNormalization", "MatMul", "Sum"}
"""Those are tried as nodes of a model; so is every other."""


def computed(op_type: str, ops: set[str] | None, attributes: dict[str, Any]) -> tuple[np.ndarray, list[str]]:
    bench = Workbench(17, ops)
    inputs = [bench.input("a", X.shape), bench.input("b", X.shape)][: 1 + (op_type in BINARY)]
    feeds = {"a": X, "b": np.where(X == 0, 4, X[::-1] + 0.125).astype(np.float32)}
    value = bench.e.op(op_type, *inputs, **attributes)
    emitted = bench.emitted
    if op_type in ("Greater", "Less"):
        value = bench.e.ops("Cast", value, outputs=1, to=1)[0]
    if op_type not in BINARY:
        bench.model.graph.inputs.pop()
        del feeds["b"]
    return bench.compute([value], **feeds)[0], emitted


@pytest.mark.parametrize("op_type", sorted(ARITHMETIC.keys() - OF_OTHER_INPUTS))
def test_a_fallback_computes_the_operator(op_type: str) -> None:
    attributes = ATTRIBUTES.get(op_type, {})
    expected, _ = computed(op_type, None, attributes)
    allowed = (OTHERS | set(ARITHMETIC) | {"Cast"}) - {op_type}
    found, emitted = computed(op_type, allowed, attributes)
    assert op_type not in emitted
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_identity_falls_back_to_a_product() -> None:
    bench = Workbench(17, {"Mul"})
    bench.e.op("Identity", bench.input("x", X.shape))
    assert bench.emitted == ["Mul"]
