"""LSTM, GRU and RNN between all pairs of opsets, judged by the oracle."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.configs import Config, configs

from rnnlower.engines.reference import evaluate
from rnnlower.errors import OpsetError
from rnnlower.opset import OpsetReport, convert_opset
from rnnlower.opset.families.shaping import COMPUTED_SIZES

OPSETS = range(1, 27)
TOLERANCES = {"float16": 2e-2, "bfloat16": 4e-2, "float32": 1e-4, "float64": 1e-9}
# What the older versions cannot say, of the recurrent operators and of what stands around them in the models.
REASONS = re.compile(
    r"GRU-1 has no linear_before_reset"
    r"|does not take tensor\(bfloat16\)"
    r"|(Scan|Where|Loop|If|Identity)-\d+ does not exist before"
    r"|DequantizeLinear-13 does not take tensor\((float16|bfloat16)\)"
    r"|Reshape-5 cannot become Reshape-1"
    r"|Expand-8 does not exist before .*(not known|no way)"
    r"|Loop-1 needs at least one loop-carried value"
    # A double, the only way round, holds no int64 exactly.
    r"|(Add|Sub|Mul|Div)-6 cannot become (Add|Sub|Mul|Div)-1: .* does not take tensor\(int64\)"
)


def convert(model: onnx.ModelProto, target: int) -> tuple[onnx.ModelProto, OpsetReport]:
    """Return the converted model and the report."""
    work = ir.from_proto(model)
    report = convert_opset(work, target)
    return ir.to_proto(work), report


def check_conversion(config: Config, target: int, rng: np.random.Generator) -> bool:
    """Convert a config's model; False if that is refused for a known reason."""
    model, feeds = config.build(), config.make_inputs(rng)
    expected = config.expected(feeds)
    try:
        converted, report = convert(model, target)
    except OpsetError as error:
        if REASONS.search(str(error)):
            return False
        raise
    if COMPUTED_SIZES in report.notes and not all(array.size for array in feeds.values()):
        # The note says that this is not judged.
        return False
    if valid(model):
        onnx.checker.check_model(converted, full_check=True)
    actual = evaluate(converted, feeds)
    assert actual.keys() == expected.keys()
    for name, values in expected.items():
        tolerance = TOLERANCES[config.dtype]
        assert actual[name].shape == values.shape
        np.testing.assert_allclose(
            actual[name].astype(np.float64), values.astype(np.float64), rtol=tolerance, atol=tolerance
        )
    return True


def valid(model: onnx.ModelProto) -> bool:
    """Return whether the checker accepts the source: some configs declare what it does not like."""
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def plain_config(op_type: str, opset: int, rng: np.random.Generator) -> Config:
    """Return a config with random attributes of the version, alone in its graph."""

    def one_of(*options: Any) -> Any:
        return options[int(rng.integers(len(options)))]

    return Config(
        op_type=op_type,
        opset=opset,
        ir_version=3 if opset < 9 else 8,
        direction=one_of(None, "forward", "reverse", "bidirectional"),
        clip=one_of(None, 0.5),
        input_forget=one_of(None, 1) if op_type == "LSTM" else None,
        linear_before_reset=one_of(None, 0, 1) if op_type == "GRU" and opset >= 3 else None,
        layout=one_of(None, 0, 1) if opset >= 14 else None,
        output_sequence=1 if opset < 7 else None,
        B=one_of("initializer", "omitted"),
        sequence_lens=one_of("initializer", "omitted"),
        initial_h=one_of("initializer", "omitted"),
        initial_c=one_of("initializer", "omitted") if op_type == "LSTM" else "omitted",
        P=one_of("initializer", "omitted") if op_type == "LSTM" else "omitted",
        Y="graph",
        Y_h="graph",
        Y_c="graph" if op_type == "LSTM" else "omitted",
        seed=int(rng.integers(100)),
    )


@pytest.mark.parametrize("source", OPSETS)
def test_a_plain_node_converts_between_every_pair_of_opsets(source: int) -> None:
    """Each pair has one operator, and each operator converts from every opset and to every opset."""
    rng = np.random.default_rng(source)
    for target in OPSETS:
        op_type = ("LSTM", "GRU", "RNN")[(source + target) % 3]
        config = plain_config(op_type, source, rng)
        refused = op_type == "GRU" and target < 3 <= source and config.linear_before_reset == 1
        assert check_conversion(config, target, rng) is not refused


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(config=configs(), target=st.sampled_from(OPSETS), seed=st.integers(0, 1000))
def test_any_config_converts_to_any_opset(config: Config, target: int, seed: int) -> None:
    check_conversion(config, target, np.random.default_rng(seed))


def test_an_output_y_that_nobody_reads_goes_away_with_output_sequence() -> None:
    config = Config(opset=6, ir_version=3, Y="unused", Y_h="graph", output_sequence=0)
    converted, _ = convert(config.build(), 7)
    (node,) = converted.graph.node
    assert list(node.output) == ["", "Y_h"]
    assert not any(attribute.name == "output_sequence" for attribute in node.attribute)


@pytest.mark.parametrize(("y", "flag"), [("graph", 1), ("omitted", 0), ("unused", 0)])
def test_output_sequence_says_whether_y_is_read(y: str, flag: int) -> None:
    converted, _ = convert(Config(opset=7, ir_version=3, Y=y, Y_h="graph").build(), 6)
    (node,) = converted.graph.node
    assert {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}["output_sequence"] == flag
    assert bool(node.output[0]) == bool(flag)


@pytest.mark.parametrize("op_type", ["LSTM", "GRU", "RNN"])
def test_a_hidden_size_that_is_left_out_is_written(op_type: str) -> None:
    """onnxruntime, which has kernels from opset 7 on, does not load a node without it."""
    converted, _ = convert(Config(op_type=op_type, opset=6, ir_version=3, hidden_size_given=False).build(), 7)
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in converted.graph.node[0].attribute}
    assert attributes["hidden_size"] == Config().hidden_size


def test_the_misspelled_direction_is_corrected() -> None:
    config = Config(op_type="GRU", opset=2, ir_version=3, direction=None, Y_h="graph", output_sequence=1)
    converted, _ = convert(config.build(), 3)
    attributes = {a.name: onnx.helper.get_attribute_value(a) for a in converted.graph.node[0].attribute}
    assert attributes["direction"] == b"forward"


def test_linear_before_reset_is_refused_for_gru_1() -> None:
    config = Config(op_type="GRU", opset=7, ir_version=3, linear_before_reset=1)
    with pytest.raises(OpsetError, match="GRU-1 has no linear_before_reset; ask for opset 3 or higher"):
        convert(config.build(), 2)


def test_gru_1_requires_its_last_state() -> None:
    converted, _ = convert(Config(op_type="GRU", opset=7, ir_version=3, Y_h="omitted").build(), 2)
    (node,) = converted.graph.node
    assert len(node.output) == 2
    assert node.output[1]


def test_bfloat16_below_22_is_refused_by_name() -> None:
    config = Config(opset=22, ir_version=10, dtype="bfloat16")
    with pytest.raises(OpsetError, match=r"LSTM-22 cannot become LSTM-14: .*bfloat16.* ask for opset 22"):
        convert(config.build(), 21)


def test_layout_becomes_transposes() -> None:
    config = Config(layout=1, initial_h="initializer", initial_c="initializer", Y_h="graph", Y_c="graph")
    converted, report = convert(config.build(), 13)
    kinds = [node.op_type for node in converted.graph.node]
    assert kinds == ["Transpose"] * 3 + ["LSTM"] + ["Transpose"] * 3
    assert [value.name for value in converted.graph.output] == ["Y", "Y_h", "Y_c"]
    (adapted,) = report.adapted
    assert (adapted.op_type, adapted.output, adapted.old, adapted.new) == ("LSTM", "Y", 14, 7)
