"""A runtime whose Sigmoid and Tanh are less exact than those of others."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import onnx
import pytest
from onnx import helper
from support.faults import graphs_of
from support.small_models import info, model_of, recurrent_model, weights

import rnnlower
from rnnlower.engines.catalog import Engine, find_engine
from rnnlower.engines.reference import Evaluator
from rnnlower.verification import verifier, verify

ERROR = 6e-7
STEPS, FEATURES, UNITS = 30, 64, 16


def classifier(factor: float = 1.0) -> onnx.ModelProto:
    """Return three LSTMs whose states have no bounds, and a softmax; `factor` is that of the last R."""
    constants, nodes = {}, []
    sizes = [FEATURES, UNITS, 2 * UNITS, UNITS]
    for layer, (inner, units) in enumerate(itertools.pairwise(sizes)):
        random = np.random.default_rng(layer)
        gates = [np.linalg.qr(random.standard_normal((units, units)))[0] for _ in range(4)]
        limit = np.sqrt(6 / (inner + units))
        constants[f"W{layer}"] = random.uniform(-limit, limit, (1, 4 * units, inner))
        constants[f"R{layer}"] = 1.3 * np.concatenate(gates)[np.newaxis]
        source = "X" if layer == 0 else f"x{layer}"
        last = layer == 2
        lstm = helper.make_node(
            "LSTM",
            [source, f"W{layer}", f"R{layer}"],
            ["", "h"] if last else [f"y{layer}"],
            name=f"lstm{layer}",
            hidden_size=units,
            activations=["Sigmoid", "Relu", "Relu"],
        )
        nodes.append(lstm)
        if not last:
            nodes.append(helper.make_node("Squeeze", [f"y{layer}"], [f"x{layer + 1}"], axes=[1]))
    constants["R2"] *= factor
    constants["D"] = weights("RNN", input_size=UNITS, hidden_size=3)["W"][0].T
    nodes += [
        helper.make_node("MatMul", ["h", "D"], ["d"]),
        helper.make_node("Softmax", ["d"], ["Z"], axis=2),
    ]
    return model_of(
        nodes,
        [info("X", onnx.TensorProto.FLOAT, [STEPS, 2, FEATURES])],
        [info("Z", onnx.TensorProto.FLOAT, [1, 2, 3])],
        {name: value.astype(np.float32) for name, value in constants.items()},
        opset=12,
    )


def with_open_gates(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the lowered model with the errors of a rational function behind its sigmoids."""
    changed = onnx.ModelProto.FromString(model.SerializeToString())
    for graph in graphs_of(changed):
        nodes = []
        for node in graph.node:
            nodes.append(node)
            if node.op_type == "Sigmoid":
                name = node.output[0]
                node.output[0] = f"{name}/exact"
                error = helper.make_tensor("error", onnx.TensorProto.FLOAT, [], [0.8 * ERROR])
                nodes.append(helper.make_node("Constant", [], [f"{name}/error"], value=error))
                nodes.append(helper.make_node("Add", [f"{name}/exact", f"{name}/error"], [name]))
        copies = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
        del graph.node[:]
        graph.node.extend(copies)
    return changed


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch) -> Engine:
    """A runtime that tells the error of its Sigmoid."""
    engine = dataclasses.replace(find_engine("rnnlower-reference"), activation_error=ERROR)
    monkeypatch.setattr(verifier, "find_engine", lambda name: engine)
    return engine


def test_a_note_names_the_inexact_sigmoid(runtime: Engine) -> None:
    source = classifier()
    candidate = with_open_gates(rnnlower.scan(source))
    assert not verify(source, candidate), "without that runtime, it is a difference"
    result = verify(source, candidate, on=runtime.name)
    assert result, str(result)
    assert any("the Sigmoid and Tanh of" in note and "6e-07 off" in note for note in result.skipped)


def test_a_wrong_weight_is_no_inexact_sigmoid(runtime: Engine) -> None:
    wrong = with_open_gates(rnnlower.scan(classifier(1.05)))
    assert not verify(classifier(), wrong, on=runtime.name)


@pytest.mark.parametrize("error", [0.0, 1e-3])
def test_the_tanh_of_the_kernel_of_rnn_is_inexact_near_zero(error: float) -> None:
    """What this leads to grows with the steps, in a model that was lifted to an RNN."""

    def rnn(error: float) -> onnx.ModelProto:
        random = np.random.default_rng(0)
        recurrence = 1.5 / np.sqrt(24) * random.standard_normal((1, 24, 24))
        recurrence[0, 3, 4] += error
        constants = {"W": random.uniform(-0.4, 0.4, (1, 24, 8)), "R": recurrence}
        node = helper.make_node("RNN", ["X", "W", "R"], ["Y"], hidden_size=24)
        X, Y = info("X", onnx.TensorProto.FLOAT, [9, 2, 8]), info("Y", onnx.TensorProto.FLOAT, None)
        return model_of([node], [X], [Y], {name: each.astype(np.float32) for name, each in constants.items()})

    assert bool(verify(rnnlower.unroll(rnn(0.0)), rnn(error))) == (error == 0)


@pytest.mark.parametrize("error", [0.0, 1e-3])
def test_a_tanh_by_sigmoids_is_inexact_near_zero(error: float) -> None:
    """What this leads to grows with the steps."""

    def line(error: float, by_sigmoid: bool) -> onnx.ModelProto:
        random = np.random.default_rng(0)
        recurrence = (1.5 / np.sqrt(24) * random.standard_normal((24, 24))).astype(np.float32)
        recurrence[3, 4] += error
        nodes, h = [], "X"
        for step in range(12):
            nodes.append(helper.make_node("MatMul", [h, "R"], [f"a{step}"]))
            h = "Y" if step == 11 else f"h{step}"
            if by_sigmoid:
                nodes += [
                    helper.make_node("Mul", [f"a{step}", "two"], [f"b{step}"]),
                    helper.make_node("Sigmoid", [f"b{step}"], [f"s{step}"]),
                    helper.make_node("Mul", [f"s{step}", "two"], [f"d{step}"]),
                    helper.make_node("Sub", [f"d{step}", "one"], [h]),
                ]
            else:
                nodes.append(helper.make_node("Tanh", [f"a{step}"], [h]))
        X, Y = info("X", onnx.TensorProto.FLOAT, [2, 24]), info("Y", onnx.TensorProto.FLOAT, None)
        constants = {"R": recurrence, "two": np.float32(2), "one": np.float32(1)}
        return model_of(nodes, [X], [Y], {name: np.asarray(each) for name, each in constants.items()})

    assert bool(verify(line(0.0, False), line(error, True))) == (error == 0)


def test_what_an_error_leads_to() -> None:
    """Of a Sigmoid alone and of one in a node."""
    model = recurrent_model("RNN", activations=["Sigmoid"], outputs=["Y"])
    model.graph.node.append(helper.make_node("Sigmoid", ["Y"], ["Z"]))
    model.graph.output.append(info("Z", onnx.TensorProto.FLOAT, None))
    feeds = {"X": np.ones((1, 1, 3), np.float32)}
    exact = Evaluator(model).run(feeds)
    moved = Evaluator(model, inexact=lambda y: y + y.dtype.type(0.1)).run(feeds)
    assert moved["Y"] == pytest.approx(exact["Y"] + 0.1)
    assert moved["Z"] == pytest.approx(1 / (1 + np.exp(-moved["Y"])) + 0.1)
