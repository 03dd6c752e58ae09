"""Lowering for a target: only its operators, and the oracle's numbers."""

from __future__ import annotations

import os
import re
import zlib
from pathlib import Path

import generate
import hypothesis
import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.configs import Config, configs
from support.judge import all_nodes, differences, recurrent_left, run
from support.target_judge import foreign_ops, judge_target

import rnnlower
from rnnlower.targets import target_names

MODELS = Path(generate.__file__).parent
TABLE, NETWORKS = generate.TABLE, generate.NETWORKS
EXAMPLES = int(os.environ.get("RNNLOWER_EXAMPLES", "25"))
BUDGET = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="RNNLOWER_EXAMPLES" not in os.environ,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
NOT_IN_PRIMITIVES = {"Elu": "Exp", "Softplus": "Exp", "Softsign": "Reciprocal", "ThresholdedRelu": "Less"}
LEGAL = (
    "no default alpha and beta",
    "sequence length is unknown",
    "does not follow from the shapes",
    "; give the model another type",
)
"""What any target may refuse: what is not defined, not static, or of a type it lacks."""
NARROW = ("axera", "esp-dl", "hailo", "ncnn", "stm32n6", "tidl")
"""Targets that lack operators of some activations, or of lengths given at run time."""


def primitive_refusals(config: Config, semantics: str) -> set[str]:
    """Return the messages required when a config is lowered to primitive operators; none if it succeeds."""
    reasons = set()
    if config.x_dims == "unknown_rank":
        reasons.add("sequence length is unknown")
    if semantics == "spec" and "ScaledTanh" in (config.activations or ()):
        reasons.add("no default alpha and beta")
    if config.dtype == "bfloat16":
        reasons.add("its type is bfloat16")
    if config.sequence_lens not in ("empty", "omitted", "initializer", "constant"):
        reasons.add("input sequence_lens needs Cast")
    for name in config.activations or ():
        if name in NOT_IN_PRIMITIVES:
            reasons.add("which target primitive lacks")
    return reasons


@pytest.mark.parametrize("name", TABLE)
def test_small_model_in_primitive_operators(name: str) -> None:
    config = generate.small_config(name)
    outcome, details = judge_target(config, "primitive", np.random.default_rng(0))
    reasons = primitive_refusals(config, "ort")
    if outcome.startswith("refused"):
        assert any(reason in details for reason in reasons), details
    else:
        assert outcome == "right", details


@BUDGET
@given(config=configs(), semantics=st.sampled_from(["ort", "spec"]), seed=st.integers(0, 7))
def test_any_model_in_primitive_operators(config: Config, semantics: str, seed: int) -> None:
    outcome, details = judge_target(config, "primitive", np.random.default_rng(seed), semantics)
    if outcome.startswith("refused"):
        reasons = primitive_refusals(config, semantics)
        assert any(reason in details for reason in reasons), f"{details}\n{config}"
    else:
        assert outcome == "right", f"{details}\n{config}"


@pytest.mark.parametrize("target", sorted(set(target_names()) - {"primitive", "sonnx"}))
def test_any_model_for_a_target(target: str) -> None:
    """Other models for each target: a few of each are more together than many of one kind."""

    @hypothesis.seed(zlib.crc32(target.encode()))
    @settings(BUDGET, max_examples=EXAMPLES // 6)
    @given(config=configs(), unroll_factor=st.sampled_from([1, 3]), seed=st.integers(0, 7))
    def is_right(config: Config, unroll_factor: int, seed: int) -> None:
        outcome, details = judge_target(config, target, np.random.default_rng(seed), "ort", unroll_factor)
        if outcome.startswith("refused"):
            legal = (*LEGAL, f"which target {target} lacks") if target in NARROW else LEGAL
            assert any(reason in details for reason in legal), f"{details}\n{config}"
        else:
            assert outcome == "right", f"{details}\n{config}"

    is_right()


FORMS = {
    "Split": {"Slice"},
    "Gemm": {"MatMul"},
    "Unsqueeze": {"Reshape"},
    "HardSigmoid": {"Clip"},
    "LeakyRelu": {"Relu"},
    "Clip": {"Max", "Min"},
    "Elu": {"Exp"},
    "Softplus": {"Log"},
    "Softsign": {"Div"},
    "Div": {"Reciprocal"},
    "Abs": {"Relu"},
    "Where": {"Mul"},
    "Less": {"Greater"},
    "Sigmoid": {"Tanh"},
    "Tanh": {"Sigmoid"},
    "Relu": {"Max"},
    "Identity": {"Mul"},
    "Sub": {"Add", "Mul"},
}
"""Which operators stand in where one is lacking."""

CASES = {
    "Split": Config(),
    "Gemm": Config(op_type="GRU", linear_before_reset=1),
    "Unsqueeze": Config(Y_h="graph"),
    "HardSigmoid": Config(activations=("HardSigmoid", "HardSigmoid", "Tanh")),
    "LeakyRelu": Config(op_type="RNN", activations=("LeakyRelu",), activation_alpha=(0.3,)),
    "Clip": Config(clip=0.3),
    "Elu": Config(op_type="RNN", activations=("Elu",), activation_alpha=(0.7,)),
    "Softplus": Config(op_type="RNN", activations=("Softplus",)),
    "Softsign": Config(op_type="RNN", activations=("Softsign",)),
    "Div": Config(op_type="RNN", activations=("Softsign",)),
    "Abs": Config(op_type="RNN", activations=("Softsign",)),
    "Where": Config(sequence_lens="input", initial_h="input", Y_h="graph", Y_c="graph"),
    "Less": Config(sequence_lens="input"),
    "Sigmoid": Config(),
    "Tanh": Config(),
    "Relu": Config(op_type="RNN", activations=("Relu",)),
    "Identity": Config(seq_length=0),
    "Sub": Config(op_type="GRU"),
}


@pytest.mark.parametrize("lacking", FORMS)
def test_each_fallback_is_used_where_its_operator_is_missing(tmp_path: Path, lacking: str) -> None:
    absent = {"Div": ["Div", "Softsign"], "Abs": ["Abs", "Softsign"]}.get(lacking, [lacking])
    target = write_target(tmp_path, absent)
    semantics = "spec" if lacking == "Softplus" else "ort"
    outcome, details = judge_target(CASES[lacking], target, np.random.default_rng(0), semantics)
    assert outcome == "right", details
    lowered = rnnlower.lower(CASES[lacking].build(), target=target, semantics=semantics)
    used = {node.op_type for node in all_nodes(lowered)}
    assert not used & set(absent)
    assert used >= FORMS[lacking]


def write_target(folder: Path, absent: list[str]) -> str:
    path = folder / "own.toml"
    path.write_text(
        f"""
        opset = {{ range = [7, 26], source = "me" }}
        control_flow = {{ ops = [], source = "me" }}
        shapes = {{ static = true, source = "me" }}
        dtypes = {{ allowed = ["float16", "float32", "float64", "int32", "bool"], source = "me" }}
        ops = {{ absent = {absent}, source = "me" }}
        """
    )
    return str(path)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("states", ["input", "omitted"])
def test_constant_lengths_need_no_selection_of_a_row(tmp_path: Path, direction: str, states: str) -> None:
    target = write_target(tmp_path, ["Where", "Less", "Greater", "Cast"])
    config = Config(
        direction=direction,
        sequence_lens="initializer",
        batch_size=3,
        seq_length=5,
        initial_h=states,
        initial_c=states,
        Y_h="graph",
        Y_c="graph",
    )
    for seed in range(4):
        variant = Config(**(vars(config) | {"seed": seed}))
        outcome, details = judge_target(variant, target, np.random.default_rng(seed))
        assert outcome == "right", details


def test_the_remedy_for_lengths_at_run_time_names_the_input_and_works():
    """PyTorch's exporter casts the lengths before the node."""
    config = Config(sequence_lens="input", seq_length=4, batch_size=3)
    model = config.build()
    (given,) = (value for value in model.graph.input if value.name == "sequence_lens")
    given.name, given.type.tensor_type.elem_type = "l", onnx.TensorProto.INT64
    model.graph.node.insert(
        0, onnx.helper.make_node("Cast", ["l"], ["sequence_lens"], to=onnx.TensorProto.INT32)
    )
    with pytest.raises(rnnlower.UnsupportedModelError, match=r'a constant \(sets={"l": VALUE}\)'):
        rnnlower.lower(model, target="primitive")
    lowered = rnnlower.lower(model, target="primitive", sets={"l": [4, 1, 2]})
    assert rnnlower.verify(model, lowered, sets={"l": [4, 1, 2]})


def test_garbage_in_the_padding_stays_out_of_the_states():
    config = Config(sequence_lens="initializer", seq_length=4, batch_size=3, Y="omitted", Y_h="graph", seed=3)
    lens = config.constants()["sequence_lens"]
    assert lens.min() < 4
    model = rnnlower.lower(config.build(), target="primitive")
    inputs = config.make_inputs(np.random.default_rng(0))
    clean = run(model, inputs)
    for row, length in enumerate(lens):
        inputs["X"][length:, row] = np.nan
    assert differences(clean, run(model, inputs), "float32") == []


def test_a_node_that_the_target_runs_correctly_is_kept():
    model = Config(clip=0.5, P="initializer").build()
    kept = rnnlower.lower(model, target="onnxruntime")
    assert recurrent_left(kept) == ["LSTM"]
    for fields, left in (({"layout": 1}, ["LSTM"]), ({"dtype": "float64"}, []), ({"seq_length": 0}, [])):
        lowered = rnnlower.lower(Config(**fields).build(), target="onnxruntime")
        assert recurrent_left(lowered) == left
    assert recurrent_left(rnnlower.lower(model, target="onnxruntime", semantics="spec")) == []


@pytest.mark.parametrize(
    "fields",
    [{"P": "initializer"}, {"input_forget": 1}, {"layout": 1}, {"clip": 0.5}, {"direction": "reverse"}],
)
def test_a_node_that_the_target_gets_wrong_is_lowered(fields: dict[str, object]) -> None:
    config = Config(sequence_lens="input", **fields)  # type: ignore[arg-type]
    for target in ("openvino", "opencv", "ort-qnn", "onnx2c"):
        assert recurrent_left(rnnlower.lower(config.build(), target=target)) == []


def test_linear_before_reset_is_reported_as_wrong_on_webnn():
    config = Config(op_type="GRU", linear_before_reset=1)
    (misfit,) = rnnlower.check(config.build(), target="ort-webnn")
    assert misfit.reason == "ort-webnn gets GRU with attribute linear_before_reset = 1 silently wrong"


@pytest.mark.parametrize("name", NETWORKS)
def test_network_in_primitive_operators(name: str) -> None:
    model = onnx.load(MODELS / f"{name}.onnx")
    with pytest.raises(rnnlower.UnsupportedModelError, match=re.escape("give them numbers: dims={")):
        rnnlower.lower(model, target="primitive")
    sizes = {
        "streaming_lstm_stack": {"features": (1, 7, 8)},
        "ocr_conv_bilstm_gemm": {"image": (2, 1, 8, 20)},
    }
    if name not in sizes:
        return
    shapes = {"h_in": (2, 1, 12), "c_in": (2, 1, 12)} if "streaming" in name else {}
    lowered = rnnlower.lower(model, target="primitive", input_shapes=sizes[name] | shapes)
    assert recurrent_left(lowered) == []
    assert foreign_ops(model, lowered, "primitive") == set()
    rng = np.random.default_rng(1)
    inputs = {
        key: rng.standard_normal(shape).astype(np.float32) for key, shape in (sizes[name] | shapes).items()
    }
    assert differences(run(model, inputs), run(lowered, inputs), "float32") == []


def test_strategy_follows_the_control_flow(tmp_path: Path) -> None:
    path = Path(write_target(tmp_path, []))
    text = path.read_text().replace("static = true", "static = false")
    model = Config(x_dims="symbolic").build()
    path.write_text(text)
    with pytest.raises(rnnlower.UnsupportedModelError, match="target own needs a number"):
        rnnlower.lower(model, target=path)
    for ops, expected in {
        "['If', 'Loop', 'Scan']": "Scan",
        "['Loop', 'Scan']": "Loop",
        "['Loop']": "Loop",
    }.items():
        path.write_text(text.replace("ops = []", f"ops = {ops}"))
        used = {node.op_type for node in all_nodes(rnnlower.lower(model, target=path))}
        assert {"Loop", "Scan"} & used == {expected}


@pytest.mark.parametrize(
    ("target", "config", "expected"),
    [
        ("openvino", Config(x_dims="time", clip=0.3), ["Loop"]),
        ("openvino", Config(seq_length=300, clip=0.3), ["Scan"]),
        ("openvino", Config(seq_length=300, sequence_lens="input"), ["Scan"]),
        ("openvino", Config(x_dims="batch", sequence_lens="input"), []),
        ("tract", Config(seq_length=300, direction="bidirectional", clip=0.3), ["Scan", "Scan"]),
        ("tract", Config(x_dims="time", direction="bidirectional", clip=0.3), ["Scan", "Scan"]),
        ("tract", Config(x_dims="batch", direction="bidirectional"), ["Scan", "Scan"]),
        ("tract", Config(x_dims="time", direction="bidirectional"), ["LSTM"]),
    ],
)
def test_forms_for_dynamic_and_long_nodes(target: str, config: Config, expected: list[str]) -> None:
    lowered = rnnlower.lower(config.build(), target=target)
    ops = [node.op_type for node in all_nodes(lowered) if node.op_type in ("LSTM", "Scan", "Loop")]
    assert ops == expected


def test_a_branch_that_cannot_run_where_the_target_cannot_say_so() -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 14]>
        main (float[5, 2, 3] given, bool c) => (float[5, 1, 2, 2] Y)
        <float[1, 2, 3] W = {1, 1, 1, 1, 1, 1}, float[1, 2, 2] R = {1, 1, 1, 1}>
        {
            Y = If (c) <
                then_branch = p () => (float[5, 1, 2, 2] a) { a = RNN <hidden_size = 2> (given, W, R) },
                else_branch = q () => (b) {
                    x = Flatten (given)
                    b = RNN <hidden_size = 2> (x, W, R)
                }
            >
        }
    """)
    with pytest.raises(rnnlower.UnsupportedModelError, match="RNN_1': it cannot run on inputs"):
        rnnlower.lower(model, target="onnx2torch")


@pytest.mark.parametrize(
    "config",
    [
        Config(initial_h="input"),
        Config(B="omitted", initial_h="input", initial_c="input"),
        Config(sequence_lens="empty"),
        Config(hidden_size_given=False),
        Config(op_type="GRU", place="loop"),
    ],
)
def test_a_node_that_opencv_refuses_is_adapted_or_lowered(config: Config) -> None:
    # Folding leaves out an empty name at the end, which OpenCV takes for an input.
    _, report = rnnlower.lower.with_report(config.build(), target="opencv", fold=False)
    assert (len(report.nodes), report.kept) == (1, [])
    whole = Config(initial_h="input", initial_c="input")
    assert recurrent_left(rnnlower.lower(whole.build(), target="opencv", native="keep")) == ["LSTM"]


@pytest.mark.parametrize("target", ["opencv", "tract"])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_opencv_and_tract_compute_in_float32(target: str, dtype: str) -> None:
    with pytest.raises(rnnlower.UnsupportedModelError, match="; give the model another type"):
        rnnlower.lower(Config(dtype=dtype).build(), target=target)
