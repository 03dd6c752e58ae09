"""Recurrent nodes among other nodes: shared and passed-on values, subgraphs, names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from support.judge import STRATEGIES, differences, interface, recurrent_left, run
from support.small_models import info, model_of, weights

import rnnlower

FLOAT, BOOL, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL, onnx.TensorProto.INT64
RUNS = [*((strategy, 1) for strategy in STRATEGIES), ("scan", 2), ("loop", 3)]
X = info("X", FLOAT, [5, 2, 3])


def floats(name: str, *dims: Any) -> onnx.ValueInfoProto:
    return info(name, FLOAT, dims)


def cell(inputs: str, outputs: str, op_type: str = "LSTM", **attributes: Any) -> onnx.NodeProto:
    attributes.setdefault("hidden_size", 4)
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def node(op_type: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs.split(), outputs.split(), **attributes)


def branch(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, np.ndarray] | None = None,
) -> onnx.GraphProto:
    initializers = [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()]
    return helper.make_graph(nodes, "branch", [], outputs, initializers)


def feeds(model: onnx.ModelProto, given: Mapping[str, np.ndarray], size: int = 3) -> dict[str, np.ndarray]:
    """Return random values for the inputs that are not given; unknown dimensions have one size."""
    rng = np.random.default_rng(0)
    return dict(given) | {
        value.name: rng.standard_normal(
            [dim.dim_value or size for dim in value.type.tensor_type.shape.dim]
        ).astype(np.float32)
        for value in model.graph.input
        if value.name not in given
    }


def checked(model: onnx.ModelProto, strategy: str, unroll_factor: int = 1, **options: Any) -> onnx.ModelProto:
    """Return the lowered model, which must be valid and agree with the source on onnxruntime."""
    given = options.pop("given", {})
    left = options.pop("left", 0)
    if strategy != "unroll":
        options["unroll_factor"] = unroll_factor
    before = model.SerializeToString(deterministic=True)
    lowered = getattr(rnnlower, strategy)(model, **options)
    assert model.SerializeToString(deterministic=True) == before
    onnx.checker.check_model(lowered, full_check=True)
    assert len(recurrent_left(lowered)) == left
    if not options.get("dims"):
        assert interface(lowered) == interface(model)
    inputs = feeds(model, given)
    assert differences(run(model, inputs), run(lowered, inputs), "float32") == []
    return lowered


@pytest.mark.parametrize(("strategy", "factor"), RUNS)
@pytest.mark.parametrize("between", ["Squeeze", "Reshape"])
def test_stacked_nodes_that_pass_on_their_states(between: str, strategy: str, factor: int) -> None:
    second = {f"{name}2": value for name, value in weights("LSTM", 4, 4, seed=1).items()}
    shapes = {"one": np.array([1]), "shape": np.array([0, -1, 4])}
    middle = node("Squeeze", "Y1 one", "S") if between == "Squeeze" else node("Reshape", "Y1 shape", "S")
    last = helper.make_node("LSTM", ["S", "W2", "R2", "B2", "", "H1", "C1"], ["Y2", "H2"], hidden_size=4)
    model = model_of(
        [cell("X W R B", "Y1 H1 C1"), middle, last],
        [floats("X", "T", "N", 3)],
        [floats("Y1", "T", 1, "N", 4), floats("H2", 1, "N", 4), floats("H1", 1, "N", 4)],
        weights("LSTM", 3, 4) | second | shapes,
    )
    checked(model, strategy, factor, **({"dims": {"T": 3, "N": 3}} if strategy == "unroll" else {}))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_shared_weights(strategy: str) -> None:
    nodes = [cell("X W R B", "Y1 H1"), cell("X W R B", "Y2", direction="reverse")]
    outputs = [floats("Y1", 5, 1, 2, 4), floats("H1", 1, 2, 4), floats("Y2", 5, 1, 2, 4)]
    lowered = checked(model_of(nodes, [X], outputs, weights("LSTM", 3, 4)), strategy)
    total = sum(value.size for value in weights("LSTM", 3, 4).values())
    floating = [tensor for tensor in lowered.graph.initializer if tensor.data_type == FLOAT]
    assert sum(numpy_helper.to_array(tensor).size for tensor in floating) <= total


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_weight_may_be_shared_by_different_inputs(strategy: str) -> None:
    array = weights("RNN", 4, 4)["W"]
    nodes = [
        cell("X A B", "Y1", "RNN"),
        cell("X B A", "Y2", "RNN"),
        helper.make_node("RNN", ["X", "A", "A", "", "", "A"], ["Y3"], hidden_size=4),
        cell("A B A", "Y4", "RNN"),
        node("Neg", "B", "negative"),
    ]
    outputs = [floats(f"Y{number}", 5, 1, 4, 4) for number in (1, 2, 3)]
    outputs += [floats("Y4", 1, 1, 4, 4), floats("negative", 1, 4, 4), floats("B", 1, 4, 4)]
    constants = {"A": array, "B": array[:, ::-1].copy()}
    checked(model_of(nodes, [floats("X", 5, 4, 4)], outputs, constants), strategy)


@pytest.mark.parametrize("name", ["r", "r0", "ra", "rr", "rrrr"])
def test_generated_names_avoid_the_models(name: str) -> None:
    nodes = [cell(f"{name}x W R B", f"r1 {name}"), node("Add", f"{name} {name}", f"{name}z")]
    outputs = [floats("r1", 5, 1, 2, 4), floats(f"{name}z", 1, 2, 4)]
    for strategy in STRATEGIES:
        checked(model_of(nodes, [floats(f"{name}x", 5, 2, 3)], outputs, weights("LSTM", 3, 4)), strategy)


def test_a_name_with_brackets_matches_itself() -> None:
    nodes = [cell("X W R B", "Y1", name="cell[0]"), cell("X W R B", "Y2", name="cell[1]")]
    outputs = [floats("Y1", 5, 1, 2, 4), floats("Y2", 5, 1, 2, 4)]
    model = model_of(nodes, [X], outputs, weights("LSTM", 3, 4))
    lowered = checked(model, "scan", nodes=["cell[0]"], left=1)
    assert [left.name for left in lowered.graph.node if left.op_type == "LSTM"] == ["cell[1]"]


@pytest.mark.parametrize("taken", [True, False])
def test_folded_weight_whose_name_a_sibling_branch_has_too(taken: bool) -> None:
    outputs = [floats("y", 5, 1, 2, 4)]
    constants = weights("LSTM", 3, 4)
    first = branch(
        [
            node("Unsqueeze", "flat axes", "w"),
            cell("X w R B", "a", name="wanted"),
            cell("X w R B", "b", name="other"),
            node("Add", "a b", "y"),
        ],
        outputs,
        {"flat": constants["W"][0], "axes": np.array([0])},
    )
    second = branch([node("Neg", "X", "w"), cell("w W R B", "y", name="sibling")], outputs)
    model = model_of(
        [node("If", "c", "Y", then_branch=first, else_branch=second)],
        [info("c", BOOL, []), X],
        [floats("Y", 5, 1, 2, 4)],
        constants,
    )
    checked(model, "scan", given={"c": np.array(taken)}, nodes=["wanted"], left=2)


def _by_length(x: str, out: str, constants: Mapping[str, np.ndarray]) -> onnx.NodeProto:
    """Return an If over lengths that the condition settles; its branches have equal names."""
    constants = dict(constants) | {"one": np.array([1])}
    ends = [cell("t W R B", "y h"), node("Squeeze", "y one", "z")]
    outputs = [floats("z", None, None, 4)]
    return node(
        "If",
        "long",
        out,
        then_branch=branch([node("Concat", f"{x} {x}", "t", axis=0), *ends], outputs, constants),
        else_branch=branch([node("Neg", x, "t"), *ends], outputs, constants),
    )


@pytest.mark.parametrize("nested", [False, True])
def test_unrolled_branches_with_equal_names(nested: bool) -> None:
    inner = [
        _by_length("X", "A", weights("LSTM", 3, 4)),
        _by_length("A", "B", weights("LSTM", 4, 4, seed=1)),
    ]
    if nested:
        outputs = [floats("last", None, None, 4)]
        yes, no = (branch([*inner, node(op_type, "B", "last")], outputs) for op_type in ("Identity", "Neg"))
        inner = [node("If", "long", "C", then_branch=yes, else_branch=no)]
    else:
        inner.append(node("Neg", "B", "C"))
    length = [node("Shape", "X", "s"), node("Gather", "s zero", "t0"), node("Greater", "t0 two", "long")]
    constants = {"zero": np.array(0), "two": np.array(2)}
    model = model_of(length + inner, [floats("X", "T", 2, 3)], [floats("C", "U", 2, 4)], constants, opset=17)
    checked(model, "unroll", dims={"T": 3})
    checked(model, "scan")


@pytest.mark.parametrize("stale", [(7, 2, 3), (5, 1, 3)])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_shapes_follow_from_the_inputs_not_from_stale_declarations(
    strategy: str, stale: tuple[int, ...]
) -> None:
    nodes = [node("Neg", "X", "x"), cell("x W R B", "Y")]
    model = model_of(nodes, [X], [floats("Y", 5, 1, 2, 4)], weights("LSTM", 3, 4))
    model.graph.value_info.append(floats("x", *stale))
    checked(model, strategy)


@pytest.mark.parametrize("name", ["W", "R", "B", "initial_h"])
def test_outputs_named_like_inputs(name: str) -> None:
    constants = {key.lower(): value for key, value in weights("RNN", 3, 4).items()}
    bare = helper.make_node("RNN", ["X", "w", "r", "b"], [name])
    model = model_of([bare], [X], [floats(name, 5, 1, 2, 4)], constants)
    lowered = rnnlower.unroll(model)
    bare.attribute.append(helper.make_attribute("hidden_size", 4))
    complete = model_of([bare], [X], [floats(name, 5, 1, 2, 4)], constants)
    inputs = feeds(complete, {})
    assert differences(run(complete, inputs), run(lowered, inputs), "float32") == []


def test_padded_weight_of_an_old_opset() -> None:
    constants = weights("LSTM", 3, 4)
    nodes = [node("Pad", "short", "W", pads=[0, 0, 0, 0, 0, 1], value=0.5), cell("X W R B", "Y")]
    constants["short"] = constants.pop("W")[:, :, :2].copy()
    lowered = checked(model_of(nodes, [X], [floats("Y", 5, 1, 2, 4)], constants, opset=10), "scan")
    assert "Pad" not in {each.op_type for each in lowered.graph.node}


def test_cost_of_unrolling_counts_nodes_of_one_name() -> None:
    nodes = [cell("long W R B", "Y1", name="a"), cell("X W R B", "Y2", name="a")]
    outputs = [floats("Y1", 300_000, 1, 1, 4), floats("Y2", 5, 1, 2, 4)]
    model = model_of(nodes, [X, floats("long", 300_000, 1, 3)], outputs, weights("LSTM", 3, 4))
    with pytest.raises(rnnlower.UnsupportedModelError, match="300,000 steps"):
        rnnlower.unroll(model)


def test_no_remedy_is_suggested_that_would_not_help() -> None:
    nodes = [helper.make_node("Opaque", ["X"], ["x"], domain="own"), cell("x W R B", "Y")]
    model = model_of(nodes, [X], [floats("Y", None, 1, 2, 4)], weights("LSTM", 3, 4), extra_domains=["own"])
    with pytest.raises(rnnlower.UnsupportedModelError) as refusal:
        rnnlower.unroll(model)
    assert "--dim" not in str(refusal.value)
    assert "dims=" not in str(refusal.value)
    assert "rnnlower.scan(" in str(refusal.value)


def test_a_node_that_nothing_reads_was_in_no_branch() -> None:
    nodes = [cell("X W R", "Y"), cell("X W R", "unread")]
    nodes[1].name = "idle"
    initializers = {name: value for name, value in weights("LSTM").items() if name != "B"}
    model = model_of(nodes, [X], [floats("Y", 5, 1, 2, 4)], initializers)
    _, report = rnnlower.unroll.with_report(model, fold=True)
    assert report.notes == ["LSTM node 'idle' was removed, as nothing that runs with these inputs reads it"]


def test_nodes_of_one_name_in_two_branches_do_not_hide_each_other() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[3, 1, 3] X, bool c, float[1, 8, 3] W, float[1, 8, 2] R) => (float[3, 1, 1, 2] Y) {
            Y = If (c) <
                then_branch = one () => (A) { [cell] A = LSTM <hidden_size = 2> (X, W, R) },
                else_branch = two () => (B) {
                    [cell] B = LSTM <hidden_size = 2, direction = "reverse"> (X, W, R)
                }
            >
        }
    """)
    _, report = rnnlower.unroll.with_report(model, sets={"c": True})
    assert report.notes == [
        "LSTM node 'If_0/else_branch/cell' never runs with these inputs, and was removed with its branch"
    ]
