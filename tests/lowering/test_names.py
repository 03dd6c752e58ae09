"""Names of what is emitted: unique for every runtime, telling where it comes from, the same each time."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from support.grids import pairs_of
from support.judge import all_nodes
from support.small_models import recurrent_model, weights

import rnnlower
from rnnlower.graph.names import NameSource
from rnnlower.lowering.step_names import base36

FLOAT = onnx.TensorProto.FLOAT
BOTH = {"direction": "bidirectional"}


def source_of(op_type: str, steps: Any = 5, **attributes: Any) -> onnx.ModelProto:
    constants = weights(op_type, directions=2 if "direction" in attributes else 1)
    inputs = {"X": (FLOAT, [steps, 2, 3])}
    return recurrent_model(op_type, constants=constants, inputs=inputs, **attributes)


def lowered(model: onnx.ModelProto, strategy: str, **options: Any) -> onnx.ModelProto:
    result = getattr(rnnlower, strategy)(model, **options)
    assert isinstance(result, onnx.ModelProto)
    return result


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from graphs(attribute.g)


def value_names(model: onnx.ModelProto) -> list[str]:
    """Every value, once for each place that makes it."""
    names = []
    for graph in graphs(model.graph):
        made = [value.name for value in (*graph.input, *graph.initializer)]
        names += dict.fromkeys([*made, *(name for node in graph.node for name in node.output)])
    return names


def as_identifier(name: str) -> str:
    for separator in "/.:":
        name = name.replace(separator, "_")
    return name.lower()


def assert_unique(names: list[str]) -> None:
    assert all(names)
    identifiers = [as_identifier(name) for name in names]
    assert sorted(identifiers) == sorted(set(identifiers))


@pytest.mark.parametrize("attributes", [{}, BOTH], ids=["forward", "both"])
@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize(("strategy", "steps"), [("unroll", 5), ("scan", 5), ("scan", "T"), ("loop", "T")])
def test_every_node_and_value_has_a_name_of_its_own(
    op_type: str, strategy: str, steps: Any, attributes: dict[str, Any]
) -> None:
    result = lowered(source_of(op_type, steps, **attributes), strategy)
    assert_unique([node.name for node in all_nodes(result)])
    assert_unique(value_names(result))


@pytest.mark.parametrize("factor", [1, 3])
def test_names_are_unique_in_chunks(factor: int) -> None:
    result = lowered(source_of("LSTM", 7, **BOTH), "scan", unroll_factor=factor)
    assert_unique([node.name for node in all_nodes(result)])
    assert_unique(value_names(result))


def test_names_of_the_model_stay_apart() -> None:
    """Also where only case or separators tell them apart."""
    source = source_of("LSTM")
    graph = source.graph
    first = [made.name for made in lowered(source, "unroll").graph.node if made.output[0] != "Y"]
    taken = [name.upper().replace("/", ".") for name in first]
    graph.node.extend(helper.make_node("Identity", ["Y"], [name], name=name) for name in taken)
    result = lowered(source, "unroll")
    assert_unique([node.name for node in result.graph.node])
    assert_unique(value_names(result))


def called(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    model.graph.node[0].name = name
    return model


def test_names_tell_node_step_and_gate() -> None:
    """All in names of nodes, and in those of values what a file of many steps has room for."""
    names = {
        node.name: list(node.output)
        for node in lowered(called(source_of("LSTM"), "enc"), "unroll").graph.node
    }
    assert names["enc/t3/i"] == ["i3", "o3", "f3"]
    assert names["enc/t3/y"] == ["y3"]
    assert "enc/Gemm" in names
    names = {
        node.name: list(node.output) for node in lowered(called(source_of("RNN"), "enc"), "unroll").graph.node
    }
    assert names["enc/t3/y"] == ["enc/t3/y"]
    source = called(source_of("GRU", 12, **BOTH), "enc")
    names = {node.name: list(node.output) for node in lowered(source, "unroll").graph.node}
    assert names["enc/t11/z"] == ["z11", "r11"]
    assert names["enc/r11/z"] == ["az11", "ar11"]
    assert "enc/reverse/Gemm" in names
    names = {node.name: [] for node in all_nodes(lowered(source, "scan"))}
    assert {"enc/Scan", "enc/step/z", "enc/step/reverse/y"} <= {*names}


def bytes_of_a_step(op_type: str, steps: tuple[int, int], name: str, opset: int, **attributes: Any) -> float:
    short, long = (
        lowered(called(source_of(op_type, count, **attributes), name), "unroll", opset=opset).ByteSize()
        for count in steps
    )
    return (long - short) / (steps[1] - steps[0]) / (2 if attributes else 1)


NAMES = {"short": "encoder", "long": "/encoder/" + "layer_" * 15 + "/LSTM"}
DIRECTIONS: dict[str, dict[str, Any]] = {"forward": {}, "both": BOTH}
LINES = [
    *itertools.product(["LSTM"], [(3, 10), (11, 50)], [14, 21]),
    *itertools.product(["GRU"], [(3, 50)], [14, 21]),
    # From here on the opset makes no other difference.
    ("LSTM", (150, 250), 14),
    ("LSTM", (1100, 1150), 21),
    ("GRU", (150, 250), 21),
    ("RNN", (3, 250), 14),
]


@pytest.mark.parametrize(("line", "direction", "name"), pairs_of(LINES, DIRECTIONS, NAMES))
def test_a_step_takes_less_than_400_bytes(
    line: tuple[str, tuple[int, int], int], direction: str, name: str
) -> None:
    op_type, steps, opset = line
    assert bytes_of_a_step(op_type, steps, NAMES[name], opset, **DIRECTIONS[direction]) < 400


MORE = {
    "lengths": {"inputs": {"sequence_lens": (onnx.TensorProto.INT32, ["N"])}},
    "peepholes": {"constants": {"P": np.ones((1, 12), np.float32)}},
}


def growth(
    op_type: str, rows: Any = 2, inputs: Any = None, constants: Any = None, **more: Any
) -> list[float]:
    """Bytes and nodes that a step of 4 units adds between 1,100 and 1,150 of them."""
    short, long = (
        lowered(
            recurrent_model(
                op_type,
                inputs={"X": (FLOAT, [steps, rows, 3]), **(inputs or {})},
                constants=weights(op_type) | (constants or {}),
                **more,
            ),
            "unroll",
        )
        for steps in (1100, 1150)
    )
    sizes = [(long.ByteSize(), short.ByteSize()), (len(long.graph.node), len(short.graph.node))]
    return [(of_long - of_short) / 50 for of_long, of_short in sizes]


@pytest.mark.parametrize(
    ("op_type", "more"),
    [("LSTM", {"rows": "batch"}), ("GRU", MORE["lengths"])],
    ids=["symbol", "lengths"],
)
def test_a_step_with_a_symbol_or_a_node_more_takes_less_than_400_bytes(
    op_type: str, more: dict[str, Any]
) -> None:
    assert growth(op_type, **more)[0] < 400


@pytest.mark.parametrize("more", [*MORE.values()], ids=[*MORE])
def test_a_larger_step_of_an_lstm_takes_less_than_40_bytes_a_node(more: dict[str, Any]) -> None:
    size, nodes = growth("LSTM", **more)
    assert size < 40 * nodes


def test_a_few_names_that_look_like_those_of_steps_make_no_other_longer() -> None:
    assert NameSource(["h0", "c0"]).step_prefix() == ""
    assert NameSource(f"h{number}" for number in range(50)).step_prefix() == "a"


def test_long_names_are_shortened_to_what_tells_the_node() -> None:
    long = "/encoder/" + "layer_" * 15 + "/GRU"
    names = {node.name for node in lowered(called(source_of("GRU", 12), long), "unroll").graph.node}
    assert {"GRU/t11/z", f"{long}/Gemm"} <= names


def test_two_nodes_do_not_share_a_short_name() -> None:
    source = called(source_of("GRU", 12), "/first/layer_of_many_units/cell")
    again = helper.make_node(
        "GRU", ["X", "W", "R", "B"], ["Z"], "/second/layer_of_many_units/cell", hidden_size=4
    )
    source.graph.node.append(again)
    source.graph.output.append(helper.make_tensor_value_info("Z", FLOAT, None))
    result = lowered(source, "unroll")
    assert_unique([node.name for node in result.graph.node])
    assert_unique(value_names(result))
    names = {node.name for node in result.graph.node}
    assert "cell/t11/z" in names
    assert not {f"cell/t11/z_{number}" for number in range(9)} & names


@pytest.mark.parametrize("strategy", ["unroll", "scan", "loop"])
def test_same_model_same_bytes(strategy: str) -> None:
    one, two = (lowered(source_of("GRU", **BOTH), strategy).SerializeToString() for _ in range(2))
    assert one == two


@pytest.mark.parametrize("steps", [3, 16, 36, 100, 360, 361, 1000, 1296, 12_960, 20_000])
def test_a_number_in_base_36_makes_no_keyword(steps: int) -> None:
    numbers = [base36(number, steps) for number in range(steps)]
    assert len(set(numbers)) == steps
    assert len({len(number) for number in numbers}) == 1
    assert all(number[0].isdecimal() for number in numbers)


@pytest.mark.parametrize("strategy", ["unroll", "scan", "loop"])
@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_every_emitted_node_has_a_namespace(op_type: str, strategy: str) -> None:
    model = source_of(op_type, 40, **BOTH)
    plain = lowered(model, strategy)
    assert not any(node.metadata_props for node in all_nodes(plain))
    result = lowered(model, strategy, namespaces=True)
    spaces = [
        {entry.key: entry.value for entry in node.metadata_props}["namespace"] for node in all_nodes(result)
    ]
    assert {space.split("/")[0] for space in spaces} == {rnnlower.inspect(model)[0].name}
    gates = {space.split("/", 1)[1] for space in spaces if "/" in space}
    assert ({"t39/y", "r0/y", "t7"} if strategy == "unroll" else {"step/y"}) <= gates
    for node in all_nodes(result):
        del node.metadata_props[:]
    assert result.SerializeToString() == plain.SerializeToString()


def test_an_exporters_namespace_stays_around_the_steps() -> None:
    model = source_of("GRU", 3)
    model.graph.node[0].metadata_props.add(key="namespace", value=": net.Net/gru: torch.nn.GRU")
    spaces = [node.metadata_props[0].value for node in all_nodes(lowered(model, "unroll", namespaces=True))]
    assert all(space.startswith(": net.Net/gru: torch.nn.GRU") for space in spaces)
    assert ": net.Net/gru: torch.nn.GRU/t2/z" in spaces


def test_namespaces_are_not_added_and_removed_at_once() -> None:
    with pytest.raises(rnnlower.OptionError, match="removes the metadata"):
        lowered(source_of("RNN"), "unroll", namespaces=True, strip=True)
