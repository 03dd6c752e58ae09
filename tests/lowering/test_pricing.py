"""The cost of lowered graphs: kernels of a step in onnxruntime, widths, bytes, and the choice by price."""

from __future__ import annotations

import collections
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest
from support.judge import all_nodes, differences, run
from support.small_models import recurrent_model, weights

import rnnlower
from rnnlower.lowering import sketching
from rnnlower.lowering.sketching import Candidate, Task, cheapest, find_candidates
from rnnlower.lowering.weights import Weights, private_weights
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.node import ResolvedNode
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.targets import find_target
from rnnlower.targets.choosing import Chooser

FLOAT = onnx.TensorProto.FLOAT
BOTH = {"direction": "bidirectional"}
KERNELS: dict[str, tuple[str, dict[str, Any], int, int, int]] = {
    "lstm": ("LSTM", {}, 1, 8, 8),
    "lstm_rows": ("LSTM", {}, 2, 8, 8),
    "lstm_clip": ("LSTM", {"clip": 2.0}, 1, 12, 12),
    "lstm_peepholes": ("LSTM", {"P": True}, 1, 15, 15),
    "lstm_pair": ("LSTM", BOTH, 1, 16, 11),
    "lstm_pair_rows": ("LSTM", BOTH, 2, 16, 16),
    "gru": ("GRU", {"linear_before_reset": 0}, 1, 7, 7),
    "gru_linear": ("GRU", {"linear_before_reset": 1}, 1, 9, 9),
    "gru_pair": ("GRU", BOTH, 1, 14, 11),
    "gru_linear_pair": ("GRU", {**BOTH, "linear_before_reset": 1}, 1, 18, 12),
    "rnn": ("RNN", {}, 1, 1, 2),
    "rnn_pair": ("RNN", BOTH, 1, 2, 4),
    "lstm_large_batch": ("LSTM", {}, 512, 8, 10),
    "gru_large_batch": ("GRU", {"linear_before_reset": 0}, 1024, 7, 9),
    "gru_linear_large_batch": ("GRU", {"linear_before_reset": 1}, 1024, 9, 11),
    "rnn_large_batch": ("RNN", {}, 512, 1, 2),
}
"""Operator, attributes, batch, kernels of a step in a straight line and in the body of a Scan."""


def lowered_node(
    strategy: str, op_type: str, steps: int, batch: int = 1, **attributes: Any
) -> onnx.ModelProto:
    constants = weights(op_type, directions=2 if "direction" in attributes else 1)
    if attributes.pop("P", False):
        constants["P"] = constants["B"][:, :12]
    inputs = {"X": (FLOAT, [steps, batch, 3])}
    model = recurrent_model(op_type, constants=constants, inputs=inputs, **attributes)
    result = getattr(rnnlower, strategy)(model)
    assert isinstance(result, onnx.ModelProto)
    return result


def kernels(model: onnx.ModelProto, path: Path) -> collections.Counter[str]:
    """Return the nodes that onnxruntime runs, of all graphs, by operator."""
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(path)
    options.log_severity_level = 4
    ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return collections.Counter(node.op_type for node in all_nodes(onnx.load(path)))


def kernels_of_body(model: onnx.ModelProto, path: Path) -> int:
    """Return the number of nodes in the body of the Scan, as onnxruntime runs it."""
    kernels(model, path)
    (scan,) = (node for node in onnx.load(path).graph.node if node.op_type == "Scan")
    return len(next(attribute.g for attribute in scan.attribute if attribute.name == "body").node)


@pytest.mark.parametrize(
    ("op_type", "attributes", "batch", "straight", "scanned"), KERNELS.values(), ids=KERNELS
)
def test_a_step_runs_the_listed_number_of_kernels(
    op_type: str, attributes: dict[str, Any], batch: int, straight: int, scanned: int, tmp_path: Path
) -> None:
    ten, eleven = (
        kernels(lowered_node("unroll", op_type, steps, batch, **attributes), tmp_path / "optimized.onnx")
        for steps in (10, 11)
    )
    assert (eleven - ten).total() == straight
    scan = lowered_node("scan", op_type, 10, batch, **attributes)
    assert kernels_of_body(scan, tmp_path / "optimized.onnx") == scanned


@pytest.mark.parametrize("options", [{}, {"clip": 0.5}, BOTH, {"input_forget": 1}], ids=str)
@pytest.mark.parametrize(("steps", "batch"), [(11, 1), (6, 2)])
def test_long_straight_lines_are_emitted_as_fused_kernels(
    steps: int, batch: int, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All gates of an LSTM have one product then, since onnxruntime takes quadratic time to fuse."""
    monkeypatch.setitem(find_target("onnxruntime").prices.thresholds, "long_line", 10)  # type: ignore[arg-type]
    directions = 2 if "direction" in options else 1
    source = recurrent_model(
        "LSTM",
        constants=weights("LSTM", directions=directions),
        inputs={"X": (FLOAT, [steps, batch, 3])},
        **options,
    )
    result = rnnlower.unroll(source)
    assert isinstance(result, onnx.ModelProto)
    products = sum(node.op_type == "Gemm" for node in result.graph.node)
    joint = steps * directions > 10 and "input_forget" not in options
    # The first step has no state to multiply, and X has one product for all steps.
    assert products == (1 if joint else 2) * steps * directions
    fused = kernels(result, tmp_path / "optimized.onnx")["FusedGemm"]
    assert fused == 0 if joint or "clip" in options else fused > 0
    X = {"X": np.random.default_rng(0).standard_normal((steps, batch, 3)).astype(np.float32)}
    assert differences(run(source, X), run(result, X), "float32") == []


@pytest.mark.parametrize("strategy", ["unroll", "scan"])
def test_nothing_that_could_be_done_once_is_done_in_each_step(strategy: str) -> None:
    """Products of X by W, biases and layouts: Gemms of R alone are left in the steps."""
    model = lowered_node(strategy, "LSTM", 40)
    stored = {tensor.name: list(tensor.dims) for tensor in model.graph.initializer}
    widths = collections.Counter(
        next(stored[name][1] for name in node.input[:2] if name in stored)
        for node in all_nodes(model)
        if node.op_type == "Gemm"
    )
    # The input has 3 features, the state 4: W's products stand outside, one for each group of gates.
    assert widths[3] == 2


@pytest.mark.parametrize("dims", [[7, 1, 3], [7, 2, 3], ["T", 1, 3], ["T", "N", 3]])
@pytest.mark.parametrize("scans", [1, 2])
def test_large_directions_run_one_after_the_other(dims: list[Any], scans: int) -> None:
    hidden_size = 256 + 8 * (scans - 1)
    constants = weights("GRU", hidden_size=hidden_size, directions=2)
    constants = {name: value / 8 for name, value in constants.items()}
    source = recurrent_model(
        "GRU", constants=constants, inputs={"X": (FLOAT, dims)}, hidden_size=hidden_size, **BOTH
    )
    result = rnnlower.scan(source)
    assert isinstance(result, onnx.ModelProto)
    assert sum(node.op_type == "Scan" for node in all_nodes(result)) == scans
    batch = dims[1] if isinstance(dims[1], int) else 3
    X = {"X": np.random.default_rng(0).standard_normal((7, batch, 3)).astype(np.float32)}
    assert differences(run(source, X), run(result, X), "float32") == []


@pytest.mark.parametrize("name", [name for name, row in KERNELS.items() if not {"clip", "P"} & {*row[1]}])
def test_prices_count_the_kernels_that_onnxruntime_runs(name: str) -> None:
    op_type, attributes, batch, straight, scanned = KERNELS[name]
    counted: dict[str, list[float]] = {"unroll": [], "scan": []}
    for steps in (10, 11):
        for strategy, own in counted.items():
            own.append(cheapest(candidates_of(op_type, steps, batch, strategy, **attributes)).counts.nodes)
    differences = {strategy: eleven - ten for strategy, (ten, eleven) in counted.items()}
    assert differences == {"unroll": straight, "scan": scanned}


def parsed(op_type: str, steps: Any, batch: int, hidden_size: int = 4, **attributes: Any) -> ResolvedNode:
    directions = 2 if "direction" in attributes else 1
    source = recurrent_model(
        op_type,
        constants=weights(op_type, hidden_size=hidden_size, directions=directions),
        inputs={"X": (FLOAT, [steps, batch, 3])},
        hidden_size=hidden_size,
        **attributes,
    )
    (located,) = find_recurrent(ir.from_proto(source))
    return parse_recurrent(located, "ort")


def weights_of(node: ResolvedNode) -> Weights:
    return Weights(private_weights([node.node]), ir.DataType.FLOAT)


def candidates_of(op_type: str, steps: int, batch: int, strategy: str, **attributes: Any) -> list[Candidate]:
    """The candidates of a strategy."""
    node = parsed(op_type, steps, batch, **attributes)
    emitting = find_target("onnxruntime")
    found = find_candidates(Task(node, weights_of(node), 17, emitting), [strategy])
    assert all(len(value.uses()) == 1 for value in node.inputs.values())
    return found


@pytest.mark.parametrize("attributes", [{}, BOTH], ids=str)
@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_three_steps_tell_the_counts_of_a_line_with_lengths(
    op_type: str, attributes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    node = parsed(op_type, 12, 2, **attributes)
    node.inputs["sequence_lens"] = ir.val("lengths", ir.DataType.INT32, [2])
    task = Task(node, weights_of(node), 17, find_target("onnxruntime"))
    whole = []
    for form in sketching._forms(task, "unroll"):
        with sketching._emit_sketches(task, "unroll", form, {}) as e:
            whole.append(sketching._counts(e, node, task.dialect))
    emitted = []
    lower_node = sketching.lower_node

    def noting(e: Any, each: ResolvedNode, *more: Any) -> Any:
        emitted.append(each.seq_length)
        return lower_node(e, each, *more)

    monkeypatch.setattr(sketching, "lower_node", noting)
    assert [each.counts for each in find_candidates(task, ["unroll"])] == whole
    assert {*emitted} == {2, 3}


@pytest.mark.parametrize(
    ("op_type", "hidden_size", "steps", "strategy"),
    [
        ("LSTM", 64, 4, "unroll"),
        ("LSTM", 64, 1000, "scan"),
        ("GRU", 8, 4001, "scan"),
        ("LSTM", 64, "T", "scan"),
    ],
)
def test_the_cheapest_strategy_is_chosen(op_type: str, hidden_size: int, steps: Any, strategy: str) -> None:
    node = parsed(op_type, steps, 1, hidden_size)
    plan = Chooser(find_target("onnxruntime"), ()).plan(node, weights_of(node), 17)
    assert plan.strategy == strategy
    assert plan.prices
    assert ("dynamic" in plan.reason) == (steps == "T")


def test_steps_of_no_known_number_have_no_price_as_a_line() -> None:
    """IREE's own GRU is compared with straight lines alone, which a size below 0 has none of."""
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> main (float[1, 2, T] x) => (float[S, 1, 1, 3] y) '
        "{ c = Conv (x, W5) t = Transpose <perm = [2, 0, 1]> (c) y = GRU <hidden_size = 3> (t, W, R) }"
    )
    model = onnx.parser.parse_model(text)
    for name, shape in {"W5": (2, 2, 5), "W": (1, 9, 2), "R": (1, 9, 3)}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones(shape, np.float32), name))
    lowered = rnnlower.lower(model, target="iree", dims={"T": 3})
    assert "GRU" in {node.op_type for node in lowered.graph.node}
