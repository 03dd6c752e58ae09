"""Lowered nodes on every runtime that is installed, here or where RNNLOWER_PYTHON_NAME says.

onnxruntime and the NumPy reference are left to the tests of verification.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from support.configs import Config
from support.faults import SOURCE_FAULTS
from support.places import MODELS

import rnnlower
from rnnlower.engines.catalog import Engine, engines
from rnnlower.engines.opened_models import Attempts
from rnnlower.targets import find_target, target_names

NAMES = [engine.name for engine in engines() if engine.name not in ("onnxruntime", "rnnlower-reference")]
NODES = {
    "lstm": Config(seq_length=3, Y_h="graph", Y_c="graph"),
    "lengths": Config(seq_length=3, sequence_lens="input", Y_h="graph", Y_c="graph"),
    "states": Config(
        seq_length=3, direction="reverse", initial_h="input", initial_c="input", P="initializer", Y_h="graph"
    ),
    "layout": Config(op_type="RNN", seq_length=50, layout=1, initial_h="input"),
}
"""They are verified in one model; `tests/targets/test_runtimes.py` has more, each as a model."""
FAULTS = {"lstm": "direction flipped", "lengths": "", "states": "a weight of R off by 5%"}
WHOLE = {
    "gru_two_layers_dynamic": {"tokens": (3, 2, 6), "lengths": (2,)},
    "ocr_conv_bilstm_gemm": {"image": (2, 1, 8, 16)},
    "streaming_lstm_stack": {"features": (1, 4, 8)},
}


@functools.cache
def installed(name: str) -> Engine:
    return next(engine for engine in engines() if engine.name == name)


@pytest.fixture(params=NAMES)
def runtime(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    if installed(name).missing:
        pytest.skip(installed(name).missing)
    return name


def lowered_for_engine(model: onnx.ModelProto, runtime: str, **options: Any) -> onnx.ModelProto:
    """For the runtime's target; of straight-line primitive ops where it has none, or is not to keep nodes."""
    targets = [name for name in target_names() if find_target(name).engine == runtime]
    result = (
        rnnlower.lower(model, target=targets[0], **options) if targets else rnnlower.unroll(model, **options)
    )
    assert isinstance(result, onnx.ModelProto)
    return result


def test_large_states_behind_closed_gates() -> None:
    if installed("tract").missing:
        pytest.skip(installed("tract").missing)
    model = Config(seq_length=2, initial_h="input", initial_c="input", Y_h="graph", Y_c="graph").build()
    for native in ("keep", "lower"):
        result = rnnlower.verify(model, rnnlower.lower(model, target="tract", native=native), on="tract")
        assert result, result
        # Without the allowance for its activations, the trials with states in the hundreds would fail.
        assert max(output.max_abs for output in result.outputs) > 2e-5


def in_one_model(runtime: str, faults: Mapping[str, str]) -> onnx.ModelProto:
    """Return nodes side by side, each with its fault, if it has one; values are named after them."""
    models = []
    for node, fault in faults.items():
        config = NODES[node]
        if installed(runtime).slow:
            # It compiles many steps for minutes.
            config = dataclasses.replace(config, seq_length=min(config.seq_length, 3))
        model = config.build()
        assert not fault or SOURCE_FAULTS[fault](model, np.random.default_rng(0))
        models.append(onnx.compose.add_prefix(model, f"{node}_"))
    return functools.reduce(lambda first, second: onnx.compose.merge_models(first, second, []), models)


def test_lowered_nodes_are_equal_on_the_runtime(runtime: str) -> None:
    model = in_one_model(runtime, dict.fromkeys(NODES, ""))
    verdict = rnnlower.verify(model, lowered_for_engine(model, runtime), on=runtime, trials=1)
    assert verdict, str(verdict)
    assert verdict.engines["candidate"] == runtime


def test_planted_faults_are_noticed_on_the_runtime(runtime: str) -> None:
    model, faulty = (in_one_model(runtime, faults) for faults in (dict.fromkeys(FAULTS, ""), FAULTS))
    verdict = rnnlower.verify(model, lowered_for_engine(faulty, runtime), on=runtime, trials=1)
    assert verdict.on is not None
    assert verdict.on.ran
    assert not verdict, str(verdict)
    different = {output.name.partition("_")[0] for output in verdict.outputs if not output.equal}
    assert different == {node for node, fault in FAULTS.items() if fault}


def test_integer_inputs_and_image_outputs_are_equal_on_the_runtime(runtime: str) -> None:
    """Integers are fed, and the output is that of a Conv, which runtimes keep in a layout of their own."""
    if runtime in ("litert", "ncnn"):
        pytest.skip("onnx2tf writes the channels of an image last; ncnn has no Gather")
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13]>
        text (int64[2, 9] tokens) => (float[2, 5, 1, 9] image) <int64[1] axis = {2}> {
            vectors = Gather (letters, tokens)
            features = Transpose <perm = [0, 2, 1]> (vectors)
            rows = Unsqueeze (features, axis)
            image = Conv <kernel_shape = [1, 3], pads = [0, 1, 0, 1]> (rows, kernel)
        }
    """)
    rng = np.random.default_rng(0)
    for name, shape in (("letters", (8, 7)), ("kernel", (5, 7, 1, 3))):
        array = rng.standard_normal(shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    tokens = {"tokens": rng.integers(0, 8, (2, 9))}
    verdict = rnnlower.verify(model, lowered_for_engine(model, runtime), on=runtime, inputs=tokens)
    assert verdict, str(verdict)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_models_are_equal_on_the_runtime(runtime: str, name: str) -> None:
    model = onnx.load(MODELS / f"{name}.onnx")
    result = lowered_for_engine(model, runtime, input_shapes=WHOLE[name])
    verdict = rnnlower.verify(model, result, on=runtime, trials=1)
    assert verdict, str(verdict)


def test_a_streamed_denoiser_is_equal_frame_by_frame(runtime: str) -> None:
    """One step a call, of primitive ops, its states outside: 10 frames in calls as the device makes them."""
    model = onnx.load(MODELS / "denoiser_gru.onnx")
    step = rnnlower.stream(model, strategy="unroll")
    spectrum = np.random.default_rng(0).standard_normal((1, 10, 9)).astype(np.float32)
    verdict = rnnlower.verify(model, step, on=runtime, inputs={"spectrum": spectrum})
    assert verdict, str(verdict)
    assert verdict.engines["candidate"] == runtime
    assert verdict.states == {"gru_0_h_out": "gru_0_h_in", "gru_1_h_out": "gru_1_h_in"}


def test_models_run_one_after_the_other_in_one_process(runtime: str) -> None:
    """As a probe asks: QNN's library, for one, is registered only once in a process."""
    config = NODES["lstm"]
    model = lowered_for_engine(config.build(), runtime)
    inputs = config.make_inputs(np.random.default_rng(0))
    with Attempts(installed(runtime)) as attempts:
        first, second = (attempts.run(model, inputs) for _ in range(2))
    for name, array in first[0].items():
        np.testing.assert_array_equal(array, second[0][name])


@pytest.mark.parametrize("runtime", ["onnx2torch"], indirect=True)
def test_batch_normalization_uses_the_stored_statistics(runtime: str) -> None:
    """PyTorch modules normalize by the batch they get until they are told not to.

    MNN 3.6.1 gets a BatchNormalization of three axes wrong by itself.
    """
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[1, 2, 4] x) => (float[1, 2, 4] y)
        <float[2] scale = {1, 2}, float[2] bias = {3, 4}, float[2] mean = {5, 6}, float[2] var = {7, 8}>
        { y = BatchNormalization (x, scale, bias, mean, var) }
    """)
    verdict = rnnlower.verify(model, model, on=runtime, trials=1)
    assert verdict, str(verdict)


@pytest.mark.parametrize("runtime", ["onnx2torch"], indirect=True)
def test_outputs_of_one_node_have_their_names(runtime: str) -> None:
    """A PyTorch module returns all outputs of a node at once, in the order of the node."""
    types = {"v": "float[2, 2] v", "i": "int64[2, 2] i", "z": "float[2, 4] z"}
    x = np.random.default_rng(0).standard_normal((2, 4)).astype(np.float32)
    with Attempts(installed(runtime)) as attempts:
        for names in ("ivz", "vz", "zi", "iv", "vi"):
            model = onnx.parser.parse_model(f"""
                <ir_version: 8, opset_import: ["" : 17]>
                main (float[2, 4] x) => ({", ".join(types[name] for name in names)})
                <int64[1] k = {{2}}>
                {{ v, i = TopK (x, k) z = Neg (x) }}
            """)
            (outputs,) = attempts.run(model, {"x": x})
            assert [*outputs] == [*names]
            for name, wanted in zip(
                names, onnx.reference.ReferenceEvaluator(model).run(None, {"x": x}), strict=True
            ):
                np.testing.assert_array_equal(outputs[name], wanted)


@pytest.mark.parametrize("runtime", ["iree", "mnn", "tvm"], indirect=True)
def test_a_condition_is_fed_as_a_bool(runtime: str) -> None:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 17]>
        main (float[2, 4] x, bool c) => (float[2, 4] y)
        {
            y = If (c) <then_branch = plus () => (float[2, 4] p) { p = Add (x, x) },
                        else_branch = minus () => (float[2, 4] m) { m = Neg (x) }>
        }
    """)
    verdict = rnnlower.verify(model, model, on=runtime, trials=4)
    assert verdict, str(verdict)
