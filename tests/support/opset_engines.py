"""Runs of a model on every engine that can run it, and their comparison."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime

from rnnlower.engines.reference import evaluate
from rnnlower.graph.versions import versions
from support.installed import newest_opset
from support.sessions import session

onnxruntime.set_default_logger_severity(4)
# Evaluating these with NumPy takes long, and onnxruntime runs all their versions from 7 on.
SLOW = frozenset(
    {"AveragePool", "MaxPool", "LpPool", "Conv", "ConvTranspose", "DeformConv", "GridSample", "RoiAlign"}
)
# Outputs of these are random: only their shapes can be compared.
RANDOM = frozenset(
    {
        "Bernoulli",
        "Dropout",
        "Multinomial",
        "RandomNormal",
        "RandomNormalLike",
        "RandomUniform",
        "RandomUniformLike",
    }
)


def default_opset(model: onnx.ModelProto) -> int:
    """Return the opset of the default domain."""
    return next((each.version for each in model.opset_import if each.domain in ("", "ai.onnx")), 1)


def all_operators(model: onnx.ModelProto) -> set[str]:
    """Return the operators of the default domain in the model, subgraphs and functions included."""
    found: set[str] = set()
    _collect(model.graph.node, found)
    for function in model.functions:
        _collect(function.node, found)
    return found


def _collect(nodes: Any, found: set[str]) -> None:
    for node in nodes:
        if node.domain in ("", "ai.onnx"):
            found.add(node.op_type)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                _collect(graph.node, found)


def meaning_of(model: onnx.ModelProto) -> Hashable:
    """Return the nodes, the versions of their operators, and whether onnxruntime is asked at all."""
    opset = default_opset(model)
    numbers = [(op, *(v for v in versions(op) if v <= opset)) for op in sorted(all_operators(model))]
    parts = [part.SerializeToString(deterministic=True) for part in (model.graph, *model.functions)]
    return (7 <= opset <= newest_opset(), *numbers, *parts)


def outcomes(model: onnx.ModelProto, feeds: Mapping[str, Any], slowly: bool = False) -> dict[str, list[Any]]:
    """Return the outputs by engine, without the engines that do not run the model."""
    found: dict[str, list[Any]] = {}
    # Whatever an engine raises: it does not run this model.
    if 7 <= default_opset(model) <= newest_opset():
        with contextlib.suppress(Exception):
            found["onnxruntime"] = run_ort(model, feeds)
    if found and not slowly and all_operators(model) & SLOW:
        return found
    with contextlib.suppress(Exception):
        results = evaluate(model, feeds)
        found["numpy"] = [results[output.name] for output in model.graph.output]
    return found


def run_ort(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    """Return the outputs by onnxruntime, unoptimized, or by NumPy if the model is too new for it."""
    if default_opset(model) > newest_opset():
        return list(evaluate(model, feeds).values())
    return list(session(model, optimized=False).run(None, dict(feeds)))


def same(first: Any, second: Any) -> bool:
    """Return whether two outputs are the same up to the rounding of their type."""
    if isinstance(first, (list, tuple)) or isinstance(second, (list, tuple)):
        lists = isinstance(first, (list, tuple)) and isinstance(second, (list, tuple))
        return lists and len(first) == len(second) and all(map(same, first, second))
    if first is None or second is None:
        return first is second
    a, b = np.asarray(first), np.asarray(second)
    if a.shape != b.shape:
        return False
    if a.dtype.kind in "OUST" or b.dtype.kind in "OUST":
        return np.array_equal(a.astype(str), b.astype(str))
    if a.dtype != b.dtype:
        return False
    if a.dtype.kind in "biu":
        return np.array_equal(a, b)
    wide = np.complex128 if a.dtype.kind == "c" else np.float64
    relative = 1e-2 if a.dtype.itemsize <= 2 else 1e-4
    return np.allclose(a.astype(wide), b.astype(wide), rtol=relative, atol=relative / 10, equal_nan=True)


def agree(found: Mapping[str, list[Any]], expected: Sequence[list[Any]]) -> dict[str, bool]:
    """For each engine, whether its outputs are one of the lists that are expected."""

    def equal(first: list[Any], second: list[Any]) -> bool:
        return len(first) == len(second) and all(map(same, first, second))

    return {engine: any(equal(outputs, each) for each in expected) for engine, outputs in found.items()}
