from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper
from support.quantizing import Network, static
from support.small_models import info, lowered_by, model_of, recurrent_model, weights

import rnnlower
from rnnlower.errors import InvalidModelError, OptionError, UnverifiableError
from rnnlower.verification import verify

FLOAT = TensorProto.FLOAT
ORT, NUMPY = "onnxruntime", "rnnlower-reference"


def _engines(model: onnx.ModelProto, **options: Any) -> tuple[str, str]:
    result = verify(model, model, trials=3, **options)
    assert result
    return result.engines["reference"], result.engines["candidate"]


def test_onnxruntime_runs_what_it_can() -> None:
    assert _engines(recurrent_model("LSTM")) == (ORT, ORT)


@pytest.mark.parametrize(
    "model",
    [
        recurrent_model("GRU", layout=1),
        recurrent_model("LSTM", opset=6),
        recurrent_model("RNN", constants=weights("RNN", dtype=np.float64), elem_type=TensorProto.DOUBLE),
        recurrent_model("LSTM", constants=weights("LSTM", dtype=np.float64), elem_type=TensorProto.DOUBLE),
        recurrent_model(
            "GRU",
            constants=weights("GRU", dtype=ml_dtypes.bfloat16),
            elem_type=TensorProto.BFLOAT16,
            opset=22,
        ),
    ],
    ids=["layout 1", "opset 6", "RNN in float64", "LSTM in float64", "bfloat16"],
)
def test_numpy_runs_a_model_that_onnxruntime_cannot(model: onnx.ModelProto) -> None:
    assert _engines(model) == (NUMPY, NUMPY)


def test_each_model_has_an_engine_of_its_own() -> None:
    plain = recurrent_model("RNN", inputs={"X": (FLOAT, [4, 2, 3])}, outputs=("", "Y_h"))
    turned = recurrent_model("RNN", inputs={"Xt": (FLOAT, [2, 4, 3])}, outputs=(), layout=1)
    node = turned.graph.node[0]
    node.input[0] = "Xt"
    node.output[:] = ["", "h"]
    del turned.graph.input[:], turned.graph.output[:]
    turned.graph.input.append(info("X", FLOAT, [4, 2, 3]))
    turned.graph.output.append(info("Y_h", FLOAT, [1, 2, 4]))
    turned.graph.node.insert(0, helper.make_node("Transpose", ["X"], ["Xt"], perm=[1, 0, 2]))
    turned.graph.node.append(helper.make_node("Transpose", ["h"], ["Y_h"], perm=[1, 0, 2]))
    result = verify(plain, turned)
    assert result
    assert result.engines == {"reference": ORT, "candidate": NUMPY}


def test_spec_semantics_run_on_numpy() -> None:
    model = recurrent_model("LSTM", clip=0.2)
    assert _engines(model, semantics="spec") == (NUMPY, NUMPY)


def test_the_engine_can_be_chosen() -> None:
    assert _engines(recurrent_model("LSTM"), engine=NUMPY) == (NUMPY, NUMPY)
    with pytest.raises(UnverifiableError, match="layout"):
        verify(recurrent_model("GRU", layout=1), recurrent_model("GRU", layout=1), engine=ORT)


def test_a_missing_kernel_is_noted() -> None:
    node = helper.make_node("Elu", ["x"], ["y"])
    double = TensorProto.DOUBLE
    model = model_of([node], [info("x", double, [3])], [info("y", double, [3])])
    result = verify(model, model)
    assert result
    assert result.engines == {"reference": NUMPY, "candidate": NUMPY}
    assert any("Elu" in note for note in result.skipped)


def test_a_model_that_no_engine_runs_is_unverifiable() -> None:
    node = helper.make_node("Strange", ["x"], ["y"], domain="unknown")
    model = model_of([node], [info("x", FLOAT, [3])], [info("y", FLOAT, [3])], extra_domains=["unknown"])
    with pytest.raises(UnverifiableError, match="Strange"):
        verify(model, model)


@pytest.mark.parametrize(("op_type", "time"), [("LSTM", 0), ("GRU", 0)])
def test_zero_length_inputs_never_reach_a_native_kernel(op_type: str, time: int) -> None:
    empty = {"X": np.zeros((time, 2, 3), np.float32)}
    result = verify(recurrent_model(op_type), recurrent_model(op_type), inputs=empty)
    assert result
    assert result.engines == {"reference": NUMPY, "candidate": NUMPY}


def test_a_kernel_that_aborts_does_so_in_a_child_process() -> None:
    # Every fourth step is taken, from the fifth on: short sequences leave none.
    constants = weights("GRU") | {"from": np.array([4]), "to": np.array([2**31]), "axis": np.array([0])}
    nodes = [
        helper.make_node("Slice", ["X", "from", "to", "axis", "axis_step"], ["part"]),
        helper.make_node("GRU", ["part", "W", "R", "B"], ["Y"], hidden_size=4),
    ]
    constants["axis_step"] = np.array([4])
    model = model_of(nodes, [info("X", FLOAT, ["T", 2, 3])], [info("Y", FLOAT, None)], constants)
    # The third trial asks for one step first, which kills the child, and then for others.
    result = verify(model, model, trials=3)
    assert result
    assert result.trials == 3
    assert result.engines["reference"] == ORT


def test_paths_and_ir_models_are_taken(tmp_path: Path) -> None:
    model = recurrent_model("GRU")
    onnx.save(model, tmp_path / "model.onnx")
    assert verify(tmp_path / "model.onnx", ir.from_proto(model))
    assert verify(str(tmp_path / "model.onnx"), model)


def test_external_data_is_found_next_to_the_model(tmp_path: Path) -> None:
    model = recurrent_model("GRU")
    onnx.save(
        recurrent_model("GRU"),
        tmp_path / "model.onnx",
        save_as_external_data=True,
        location="data",
        size_threshold=0,
    )
    assert verify(tmp_path / "model.onnx", model)
    assert verify(ir.load(tmp_path / "model.onnx"), model)
    with pytest.raises(OptionError, match="path"):
        verify(onnx.load(tmp_path / "model.onnx", load_external_data=False), model)


@pytest.mark.parametrize("content", [None, b"", b"\xff\xfe no model"])
def test_an_unreadable_model_is_refused(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "broken.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InvalidModelError, match=r"broken\.onnx"):
        verify(path, recurrent_model("RNN"))


@pytest.mark.parametrize("options", [{"trials": 0}, {"engine": "tpu"}, {"semantics": "other"}])
def test_options_out_of_range_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError):
        verify(recurrent_model("RNN"), recurrent_model("RNN"), **options)


def _cut_short(model: onnx.ModelProto) -> None:
    tensor = model.graph.initializer[0]
    tensor.raw_data = tensor.raw_data[:-4]


def _misread(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "nowhere"


@pytest.mark.parametrize("damage", [_cut_short, _misread, lambda model: model.Clear()])
def test_a_broken_proto_is_named(damage: Callable[[onnx.ModelProto], None]) -> None:
    broken = recurrent_model("RNN")
    damage(broken)
    with pytest.raises(InvalidModelError, match="the reference"):
        verify(broken, recurrent_model("RNN"))
    with pytest.raises(InvalidModelError, match="the candidate"):
        verify(recurrent_model("RNN"), broken)


def half_precision(time: int | str) -> onnx.ModelProto:
    """Return PyTorch's export of an LSTM with `batch_first` and a Linear after it, in half precision."""
    model = recurrent_model(
        "LSTM",
        constants=weights("LSTM", dtype=np.float16),
        inputs={"X": (TensorProto.FLOAT16, [time, 2, 3])},
        outputs=["Y"],
        elem_type=TensorProto.FLOAT16,
    )
    half = {"M": np.ones((4, 2), np.float16), "bias": np.ones(2, np.float16)}
    constants: dict[str, np.ndarray] = {**half, "one": np.array([1])}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(v, name) for name, v in constants.items())
    model.graph.node.extend(
        [
            helper.make_node("Squeeze", ["Y", "one"], ["rows"]),
            helper.make_node("Transpose", ["rows"], ["turned"], perm=[1, 0, 2]),
            helper.make_node("MatMul", ["turned", "M"], ["product"]),
            helper.make_node("Add", ["bias", "product"], ["Z"]),
        ]
    )
    del model.graph.output[:]
    model.graph.output.append(info("Z", TensorProto.FLOAT16, [2, time, 2]))
    return model


def loads(path: Path) -> bool:
    """Return whether onnxruntime loads a model with its own options, in a process of its own."""
    code = f"import onnxruntime; onnxruntime.InferenceSession({str(path)!r})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("time", [5, "T"])
def test_optimizations_that_abort_are_switched_off(time: int | str) -> None:
    """onnxruntime 1.31 does at a float16 product behind a Transpose of unknown sizes."""
    model = half_precision(time)
    assert _engines(model) == (ORT, ORT)


@pytest.mark.parametrize("strategy", ["unroll", "scan", "loop"])
def test_a_lowered_model_of_static_shapes_loads(strategy: str, tmp_path: Path) -> None:
    """Behind a Loop, too, whose outputs shape inference knows nothing of."""
    onnx.save(getattr(rnnlower, strategy)(half_precision(5)), tmp_path / "result.onnx")
    assert loads(tmp_path / "result.onnx")


def test_a_quantized_model_equals_itself() -> None:
    """onnxruntime optimizes it to compute in integers, which gives other numbers."""
    network = Network(steps=6, features=5, hidden_size=8, layers=1, classes=4)
    rng = np.random.default_rng(0)
    inputs = ({"X": rng.standard_normal((6, 1, 5)).astype(np.float32)} for _ in range(4))
    model = static(network.build(), inputs)
    assert "DequantizeLinear" in {node.op_type for node in model.graph.node}
    assert verify(model, model)
    assert verify(model, rnnlower.scan(model))


def test_nodes_in_another_order_are_no_difference() -> None:
    source = lowered_by(recurrent_model("GRU", inputs={"X": (TensorProto.FLOAT, [4, 1, 3])}), "unroll")
    turned = onnx.ModelProto.FromString(source.SerializeToString())
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in turned.graph.node]
    del turned.graph.node[:]
    turned.graph.node.extend(nodes[::-1])
    assert verify(source, turned, trials=1)
    assert verify(source, turned, trials=1, on="rnnlower-reference")
