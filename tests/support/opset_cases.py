"""onnx's own node tests, as models with inputs and outputs: a working node for nearly every operator."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

# Any onnxruntime that knows the opsets at all knows this IR version.
IR_VERSION = 10


@dataclasses.dataclass
class Case:
    """A model, what to feed it, and what it gives."""

    name: str
    model: onnx.ModelProto
    feeds: dict[str, Any]
    outputs: list[Any]


def node_cases(modules: Sequence[str] | None = None, expanded: bool = False) -> Iterator[Case]:
    """Yield the node tests; with `modules` only those of these modules, which is much faster to collect.

    The tests called expanded hold an operator's definition in place of the operator.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        package = importlib.import_module("onnx.backend.test.case.node")
        if modules is None:
            collected = package.collect_testcases()
        else:
            for module in modules:
                importlib.import_module(f"onnx.backend.test.case.node.{module}")
            collected = package._NodeTestCases
    for test in collected:
        domains = {each.domain for each in test.model.opset_import}
        if domains - {"", "ai.onnx"} or ("_expanded" in test.name) != expanded:
            continue
        inputs, outputs = test.data_sets[0]
        model = copy.deepcopy(test.model)
        model.ir_version = min(model.ir_version, IR_VERSION)
        names = [value.name for value in model.graph.input]
        feeds = dict(zip(names, map(_array, inputs), strict=True))
        yield Case(test.name, model, feeds, [_array(each) for each in outputs])


def _array(value: Any) -> Any:
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def frozen(case: Case) -> Case | None:
    """Return the case with its small inputs, such as axes and shapes, as initializers, if it has any."""
    model = copy.deepcopy(case.model)
    chosen = [
        value
        for value in model.graph.input[1:]
        if isinstance(case.feeds[value.name], np.ndarray) and case.feeds[value.name].size <= 64
    ]
    if not chosen:
        return None
    for value in chosen:
        model.graph.initializer.append(numpy_helper.from_array(case.feeds[value.name], value.name))
        model.graph.input.remove(value)
    names = {value.name for value in chosen}
    feeds = {name: value for name, value in case.feeds.items() if name not in names}
    return Case(f"{case.name}_frozen", model, feeds, case.outputs)
