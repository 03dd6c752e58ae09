"""The SONNX profile: its equations against the oracle and the lowered graphs, and its restrictions."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest
from support import sonnx_oracle
from support.configs import Config
from support.judge import STRATEGIES, differences, run
from typer.testing import CliRunner

import rnnlower
from rnnlower.cli import app
from rnnlower.passes import InferTypesPass
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.sonnx import RULES, Departure, find_departures

ALLOWED = {"Sigmoid": ("Sigmoid", "Tanh", "Tanh"), "Relu": ("Relu", "Tanh", "Tanh")}
INPUTS = ("W", "R", "B", "sequence_lens", "initial_h", "initial_c", "P")
EXPLICIT = dict.fromkeys(INPUTS, "initializer")
CONFORMING = Config(
    opset=14, batch_size=1, input_forget=0, layout=0, activations=ALLOWED["Sigmoid"], **EXPLICIT
)


def explicit_config(direction: str, first: str, **fields: Any) -> Config:
    """Return a node with every input given; each direction with its own set of activations."""
    names = ALLOWED[first]
    if direction == "bidirectional":
        names += ALLOWED["Relu" if first == "Sigmoid" else "Sigmoid"]
    return dataclasses.replace(CONFORMING, batch_size=2, direction=direction, activations=names, **fields)


EQUATIONS = [
    pytest.param(
        explicit_config(direction, first, clip=clip, input_forget=coupled, seed=seed),
        id=f"{direction}-{first}-clip_{clip}-input_forget_{coupled}",
    )
    for seed, (direction, first, clip, coupled) in enumerate(
        itertools.product(("forward", "reverse", "bidirectional"), ALLOWED, (None, 0.5), (0, 1))
    )
]


def values_of(config: Config) -> dict[str, np.ndarray]:
    """Return every input of the node; all rows are as long as X."""
    values = config.constants() | config.make_inputs(np.random.default_rng(config.seed))
    values["sequence_lens"] = np.full(config.batch_size, config.seq_length, np.int32)
    return values


def sonnx_y(config: Config, values: dict[str, np.ndarray]) -> np.ndarray:
    return sonnx_oracle.lstm(
        values,
        activations=config.activations or (),
        direction=config.direction or "forward",
        clip=config.clip,
        input_forget=config.input_forget or 0,
    )


@pytest.mark.parametrize("config", EQUATIONS)
def test_the_equations_agree_with_the_oracle(config: Config) -> None:
    values = values_of(config)
    Y = sonnx_y(config, values)
    given = {name: values[name].astype(np.float64) for name in values if name != "sequence_lens"}
    own = config._evaluate(given["X"], given | {"sequence_lens": values["sequence_lens"]}, "spec")
    np.testing.assert_allclose(own["Y"], Y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("config", EQUATIONS)
def test_the_lowered_graphs_follow_the_equations(config: Config) -> None:
    values = values_of(config)
    expected = {"Y": sonnx_y(config, values).astype(np.float32)}
    model = config.build()
    for tensor in model.graph.initializer:
        tensor.CopyFrom(onnx.numpy_helper.from_array(values[tensor.name], tensor.name))
    for strategy in STRATEGIES:
        lowered = getattr(rnnlower, strategy)(model, semantics="spec")
        assert differences(expected, run(lowered, {"X": values["X"]}), "float32") == []


def found(model: onnx.ModelProto) -> list[Departure]:
    read = ir.from_proto(model)
    InferTypesPass()(read)
    return [departure for located in find_recurrent(read) for departure in find_departures(located)]


def test_a_conforming_node_has_no_departure() -> None:
    assert found(CONFORMING.build()) == []
    for name in ("reverse", "bidirectional"):
        activations = ALLOWED["Relu"] * (2 if name == "bidirectional" else 1)
        config = dataclasses.replace(CONFORMING, direction=name, activations=activations, input_forget=1)
        assert found(config.build()) == []


SIZED_BY_BATCH = dict.fromkeys(("sequence_lens", "initial_h", "initial_c"), "empty")
DEPARTURES: dict[str, tuple[dict[str, Any], str, str]] = {
    "W at run time": ({"W": "input"}, "W", "comes at run time"),
    "R computed": ({"R": "computed"}, "R", "is computed from constants"),
    "W overridable": ({"W": "initializer_input"}, "W", "can be overridden"),
    "no B": ({"B": "omitted"}, "B", "is left out"),
    "no sequence_lens": ({"sequence_lens": "empty"}, "sequence_lens", "is left out"),
    "sequence_lens at run time": ({"sequence_lens": "input"}, "sequence_lens", "comes at run time"),
    "no initial_h": ({"initial_h": "empty"}, "initial_h", "is left out"),
    "initial_c at run time": ({"initial_c": "input"}, "initial_c", "comes at run time"),
    "no P": ({"P": "omitted"}, "P", "is left out"),
    "another activation": ({"activations": ("HardSigmoid", "Tanh", "Tanh")}, "activations", "allowed are"),
    "activations left out": ({"activations": None}, "activations", "are not written out"),
    "no hidden_size": ({"hidden_size_given": False}, "hidden_size", "is not written out"),
    "no input_forget": ({"input_forget": None}, "input_forget", "is not written out"),
    "no layout": ({"layout": None}, "layout", "is not written out"),
    "layout 1": ({"layout": 1}, "layout", "is 1"),
    "older than layout": ({"opset": 13, "layout": None}, "layout", "does not exist in LSTM-7"),
    "symbolic batch": ({"x_dims": "batch", **SIZED_BY_BATCH}, "batch_size", "is not a number"),
    "two rows": ({"batch_size": 2}, "batch_size", "is 2"),
    "Y_h": ({"Y_h": "graph"}, "Y_h", "is read"),
    "Y_c": ({"Y_c": "consumed"}, "Y_c", "is read"),
}


@pytest.mark.parametrize(("fields", "subject", "what"), DEPARTURES.values(), ids=DEPARTURES)
def test_a_departure_is_named(fields: dict[str, Any], subject: str, what: str) -> None:
    named = {
        departure.subject: departure for departure in found(dataclasses.replace(CONFORMING, **fields).build())
    }
    assert what in str(named[subject])
    assert "'LSTM_0'" in str(named[subject])
    assert set(named) == {subject} | (set(SIZED_BY_BATCH) & set(fields))


def test_every_rule_is_departed_from_in_a_test() -> None:
    assert {subject for _, subject, _ in DEPARTURES.values()} == RULES.keys()


def test_each_direction_has_its_own_activations() -> None:
    names = (*ALLOWED["Sigmoid"], "Tanh", "Tanh", "Tanh")
    config = dataclasses.replace(CONFORMING, direction="bidirectional", activations=names)
    (departure,) = found(config.build())
    assert departure.subject == "activations"
    assert "are Tanh, Tanh, Tanh" in str(departure)


def test_a_batch_is_a_note_only() -> None:
    (departure,) = found(dataclasses.replace(CONFORMING, batch_size=2).build())
    assert departure.level == "note"


@pytest.mark.parametrize("op_type", ["GRU", "RNN"])
def test_other_recurrent_operators_are_not_in_the_profile(op_type: str) -> None:
    (departure,) = found(Config(op_type=op_type).build())
    assert departure.subject == "operator"
    assert f"{op_type} node" in str(departure)
    assert "rnnlower.unroll(model, nodes=" in departure.remedy


def test_check_and_lower_on_the_command_line(tmp_path: Path) -> None:
    source, result = tmp_path / "source.onnx", tmp_path / "result.onnx"
    config = Config(opset=13, direction="bidirectional", W="computed", Y_h="graph", B="omitted")
    onnx.save(config.build(), source)
    runner = CliRunner()
    check = ["check", "--target", "sonnx", "--json"]
    before = runner.invoke(app, [*check, str(source)])
    assert before.exit_code == 1
    reasons = [misfit["reason"] for misfit in json.loads(before.stdout)["misfits"]]
    for subject in (
        "W",
        "B",
        "sequence_lens",
        "initial_h",
        "P",
        "activations",
        "input_forget",
        "layout",
        "Y_h",
    ):
        assert any(reason.startswith(f"{subject} ") for reason in reasons), subject
    lower = ["lower", str(source), "-o", str(result), "--target", "sonnx", "--json"]
    lowered = runner.invoke(app, lower)
    assert lowered.exit_code == 0, lowered.output
    report = json.loads(lowered.stdout)
    assert [node["strategy"] for node in report["nodes"]] == ["conform"]
    assert report["verification"]["equal"]
    after = runner.invoke(app, [*check, str(result)])
    assert (after.exit_code, json.loads(after.stdout)["misfits"]) == (0, [])


def test_what_cannot_conform_is_refused_on_the_command_line(tmp_path: Path) -> None:
    source, result = tmp_path / "source.onnx", tmp_path / "result.onnx"
    onnx.save(Config(opset=14, Y_c="graph").build(), source)
    refused = CliRunner().invoke(app, ["lower", str(source), "-o", str(result), "--target", "sonnx"])
    assert refused.exit_code == 3
    assert "LSTM node 'LSTM_0': Y_c is read" in refused.stderr
    assert not result.exists()


def test_states_computed_from_static_shapes_are_constants_of_the_result(tmp_path: Path) -> None:
    """What torch writes for LSTMs without states, the second of them fed by the first."""
    source, result = tmp_path / "source.onnx", tmp_path / "result.onnx"
    zeros = """
        s{0} = Shape (x{0})
        n{0} = Gather (s{0}, one)
        r{0} = Unsqueeze (n{0}, axis)
        sizes{0} = Concat <axis = 0> (one_size, r{0}, hidden)
        h{0} = Expand (zero, sizes{0})
        y{0} = LSTM <hidden_size = 1> (x{0}, W, R, , , h{0}, h{0})
    """
    text = f"""
        <ir_version: 8, opset_import: ["" : 14]>
        main (float[N, 5, 1] X) => (float[N, 5, 1] Y)
        <float[1, 4, 1] W = {{1, 2, 3, 4}}, float[1, 4, 1] R = {{4, 3, 2, 1}}, float zero = {{0}},
         int64 one = {{1}}, int64[1] one_size = {{1}}, int64[1] hidden = {{1}}, int64[1] axis = {{0}}>
        {{
            x0 = Transpose <perm = [1, 0, 2]> (X)
            {zeros.format(0)}
            x1 = Squeeze (y0, one_size)
            {zeros.format(1)}
            last = Squeeze (y1, one_size)
            Y = Transpose <perm = [1, 0, 2]> (last)
        }}
    """
    onnx.save(onnx.parser.parse_model(text), source)
    lower = ["lower", str(source), "-o", str(result), "--target", "sonnx", "--json"]
    refused = CliRunner().invoke(app, lower)
    assert refused.exit_code == 3
    assert "batch_size is not a number" in refused.stderr
    lowered = CliRunner().invoke(app, [*lower, "--input-shape", "X:2,5,1"])
    assert lowered.exit_code == 0, lowered.output
    assert json.loads(lowered.stdout)["verification"]["equal"]
    assert {node.op_type for node in onnx.load(result).graph.node} == {"Transpose", "LSTM", "Squeeze"}
    assert rnnlower.check(result, target="sonnx") == []
