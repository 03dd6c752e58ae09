"""The Python functions: kinds of models, options, errors, and unchanged arguments."""

from __future__ import annotations

import inspect as python_inspect
import os
import pkgutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import generate
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx.external_data_helper import convert_model_to_external_data
from support.judge import STRATEGIES, recurrent_left
from support.small_models import recurrent_model, weights

import rnnlower
import rnnlower.passes
from rnnlower.passes.constant_inputs import LegacyConstantsPass
from rnnlower.passes.convert_opset import ConvertOpsetPass
from rnnlower.passes.declared_sizes import FreezeDimsPass
from rnnlower.passes.expand_functions import InlineFunctionsPass
from rnnlower.passes.static_shapes import InferTypesPass

MODELS = Path(generate.__file__).parent
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "unroll": rnnlower.unroll,
    "scan": rnnlower.scan,
    "loop": rnnlower.loop,
    "convert": lambda model: rnnlower.convert(model, opset=17),
}


def static_model() -> onnx.ModelProto:
    return recurrent_model(inputs={"X": (onnx.TensorProto.FLOAT, [5, 2, 3])}, opset=16)


def proto_of(model: onnx.ModelProto | ir.Model) -> onnx.ModelProto:
    return ir.to_proto(model) if isinstance(model, ir.Model) else model


def test_public_names() -> None:
    assert set(rnnlower.__all__) >= {
        *("convert", "inspect", "loop", "scan", "unroll", "verify"),
        *("InvalidModelError", "OpsetError", "RnnLowerError", "UnsupportedModelError", "VerificationError"),
        *("OptionError", "UnverifiableError"),
        *("OutputComparison", "RecurrentNode", "VerificationResult"),
    }
    assert sorted(rnnlower.__all__) == list(rnnlower.__all__)
    for name in rnnlower.__all__:
        assert getattr(rnnlower, name).__doc__


def test_errors_have_one_base() -> None:
    errors = [getattr(rnnlower, name) for name in rnnlower.__all__ if name.endswith("Error")]
    assert all(issubclass(error, rnnlower.RnnLowerError) for error in errors)


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_the_result_is_of_the_kind_of_the_argument(function: Callable[..., Any], tmp_path: Path) -> None:
    proto = static_model()
    path = tmp_path / "model.onnx"
    onnx.save(proto, path)
    results = [function(model) for model in (path, str(path), proto, ir.from_proto(proto))]
    assert [isinstance(result, onnx.ModelProto) for result in results] == [True, True, True, False]
    assert isinstance(results[3], ir.Model)
    expected = results[0].SerializeToString(deterministic=True)
    for result in results:
        assert proto_of(result).SerializeToString(deterministic=True) == expected


@pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)
def test_a_proto_or_file_stays_unchanged(function: Callable[..., Any], tmp_path: Path) -> None:
    proto = static_model()
    before = proto.SerializeToString(deterministic=True)
    function(proto)
    assert proto.SerializeToString(deterministic=True) == before
    path = tmp_path / "model.onnx"
    path.write_bytes(before)
    function(path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["lstm17_weights_computed", "lstm18_function_ref_attr", "lstm13_in_if"])
@pytest.mark.parametrize("function", [*FUNCTIONS.values(), rnnlower.inspect], ids=[*FUNCTIONS, "inspect"])
def test_an_ir_model_stays_unchanged(function: Callable[..., Any], name: str) -> None:
    own = ir.from_proto(onnx.load(MODELS / f"{name}.onnx"))
    before = ir.to_proto(own).SerializeToString(deterministic=True)
    nodes = list(own.graph)
    function(own)
    assert list(own.graph) == nodes
    assert ir.to_proto(own).SerializeToString(deterministic=True) == before


def test_options_are_applied() -> None:
    model = recurrent_model()
    lowered = rnnlower.unroll(model, dims={"T": 4, "N": 2}, opset=18, nodes=["c*"], semantics="spec")
    assert isinstance(lowered, onnx.ModelProto)
    assert lowered.opset_import[0].version == 18
    assert recurrent_left(rnnlower.unroll(model, input_shapes={"X": [4, 2, 3]})) == []
    for function in (rnnlower.scan, rnnlower.loop):
        assert recurrent_left(function(model, unroll_factor=2, opset=16)) == []


def test_options_are_the_command_lines() -> None:
    shared = {
        "opset",
        "dims",
        "input_shapes",
        "nodes",
        "semantics",
        "sets",
        "fold",
        "freeze",
        "strip",
        "namespaces",
        "progress",
    }
    shared |= {"dequantize", "assume_linear_before_reset", "compute_type", "gates", "lift"}
    for name in STRATEGIES:
        parameters = python_inspect.signature(getattr(rnnlower, name)).parameters
        assert set(parameters) - {"model"} == shared | (
            {"control_flow"} if name == "unroll" else {"unroll_factor"}
        )
        assert all(
            parameter.kind == parameter.KEYWORD_ONLY
            for key, parameter in parameters.items()
            if key != "model"
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dims": {"absent": 3}}, "absent"),
        ({"dims": {"T": -3}}, "-3"),
        ({"input_shapes": {"absent": [1]}}, "absent"),
        ({"input_shapes": {"X": [1, 2]}}, "rank 3"),
        ({"input_shapes": {"X": [4, 2, 5]}}, "axis 2"),
        ({"dims": {"T": 3}, "input_shapes": {"X": [4, 2, 3]}}, "axis 0"),
        ({"nodes": ["absent"]}, "cell"),
        ({"nodes": "lstm*"}, r"nodes=\['lstm\*'\]"),
        ({"dims": {"T": "5"}}, "dimension 'T' cannot have the size '5': it must be an integer"),
        ({"dims": {"T": 5.0}}, "dimension 'T' cannot have the size 5.0: it must be an integer"),
        ({"dims": {"T": None}}, "dimension 'T' cannot have the size None: it must be an integer"),
        ({"dims": "T=5"}, "dims is 'T=5'; it must be a dictionary"),
        ({"dims": [("T", 5)]}, "dims is .*; it must be a dictionary"),
        ({"input_shapes": ["X"]}, "input_shapes is .*; it must be a dictionary"),
        ({"input_shapes": {"X": "523"}}, "input 'X' cannot have the shape '523': it must be a list"),
        ({"input_shapes": {"X": [5, 2.5, 3]}}, "input 'X' cannot have the size 2.5: it must be an integer"),
        ({"input_shapes": {"X": 5}}, "input 'X' cannot have the shape 5: it must be a list"),
        ({"opset": 6}, "from 7 to 28"),
        ({"unroll_factor": 0}, "unroll factor"),
        ({"unroll_factor": 2**31}, "at most 200000"),
        ({"semantics": "torch"}, "torch"),
    ],
    ids=str,
)
def test_invalid_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(rnnlower.OptionError, match=message):
        rnnlower.scan(recurrent_model(), **options)


@pytest.mark.parametrize(
    ("function", "options", "message"),
    [
        (rnnlower.stream, {"time_axes": 0}, "time_axes is 0; it must be a dictionary"),
        (rnnlower.stream, {"time_axes": {"X": "0"}}, "time axis of input 'X' is '0'; it must be an integer"),
        (rnnlower.stream, {"states": ["Y_h"]}, "states is .*; it must be a dictionary"),
        (rnnlower.stream, {"chunk": "10ms", "rate": "1"}, "rate.* is '1'; it must be a number"),
        (rnnlower.pad, {"max": {"T": 5}, "time_axes": ["X"]}, "time_axes is .*; it must be a dictionary"),
        (rnnlower.pad, {"max": {"T": 5}, "time_axes": {"X": 0.0}}, "time axis of input 'X' is 0.0"),
        (rnnlower.verify, {"candidate": recurrent_model(), "states": 5}, "states is 5; it must be a dict"),
        (rnnlower.verify, {"candidate": recurrent_model(), "sets": 5}, "sets is 5; it must be a dictionary"),
        (rnnlower.verify, {"candidate": recurrent_model(), "on": 5}, "there is no engine 5"),
        (rnnlower.calibrate, {"recordings": 5}, "a recording is of type int"),
        (rnnlower.quantize, {"calibration": None}, "a recording is of type NoneType"),
        (rnnlower.quantize, {"calibration": [{}], "headroom": "2"}, "the headroom is '2'"),
        (rnnlower.bench, {"seed": -1}, "the seed is -1; it must be at least 0"),
        (rnnlower.bench, {"on": 5}, "there is no engine 5"),
    ],
)
def test_arguments_of_another_type_are_refused(function: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(rnnlower.OptionError, match=message):
        function(recurrent_model(), **options)


def test_each_problem_raises_its_kind_of_error(tmp_path: Path) -> None:
    with pytest.raises(rnnlower.InvalidModelError, match="absent"):
        rnnlower.scan(tmp_path / "absent.onnx")
    with pytest.raises(rnnlower.InvalidModelError, match="no graph"):
        rnnlower.scan(onnx.ModelProto())
    with pytest.raises(rnnlower.InvalidModelError, match="color"):
        rnnlower.scan(recurrent_model(color=1))
    with pytest.raises(rnnlower.UnsupportedModelError, match="clip"):
        rnnlower.scan(recurrent_model(clip=-1.0))
    with pytest.raises(rnnlower.UnsupportedModelError, match="sequence length"):
        rnnlower.unroll(recurrent_model())
    with pytest.raises(rnnlower.OpsetError, match="opset 99"):
        rnnlower.convert(recurrent_model(), opset=99)


def test_verify_is_truthy_when_equal() -> None:
    model = recurrent_model()
    assert rnnlower.verify(model, rnnlower.scan(model), trials=2)
    other = recurrent_model(constants=weights("LSTM", seed=1))
    result = rnnlower.verify(model, rnnlower.scan(other), trials=2)
    assert not result
    assert {output.name for output in result.outputs if not output.equal} == {"Y", "Y_h"}


def test_inspect() -> None:
    (node,) = rnnlower.inspect(recurrent_model(direction="reverse", clip=2.0))
    assert isinstance(node, rnnlower.RecurrentNode)
    assert (node.name, node.op_type, node.path, node.direction) == ("cell", "LSTM", "", "reverse")
    assert (node.hidden_size, node.input_size, node.seq_len, node.batch) == (4, 3, "T", "N")
    assert (node.dtype, node.layout, node.weights) == ("float32", 0, "constant")
    assert list(node.inputs) == ["X", "W", "R", "B"]
    assert list(node.outputs) == ["Y", "Y_h"]
    assert dict(node.attributes) == {"direction": "reverse", "clip": 2.0}


def test_external_data_of_an_ir_model_is_not_read(tmp_path: Path) -> None:
    model = recurrent_model(constants=weights("LSTM", hidden_size=16), hidden_size=16)
    convert_model_to_external_data(model, location="weights.bin", size_threshold=0)
    onnx.save(model, tmp_path / "model.onnx")
    own = ir.load(tmp_path / "model.onnx")
    (tmp_path / "weights.bin").rename(tmp_path / "elsewhere.bin")
    del own.graph.initializers["B"]
    own.graph.node(0).replace_input_with(3, None)
    lowered = rnnlower.scan(own)
    stores = [graph.initializers for graph in (lowered.graph, *lowered.graph.subgraphs())]
    tensors = [value.const_value for store in stores for name, value in store.items() if name[0] in "WR"]
    assert all(isinstance(tensor, ir.ExternalTensor) for tensor in tensors)
    stored = weights("LSTM", hidden_size=16)
    assert sum(tensor.nbytes for tensor in tensors) == stored["W"].nbytes + stored["R"].nbytes


_PASSES: dict[str, ir.passes.PassBase] = {
    "FreezeDimsPass": FreezeDimsPass({"T": 4}),
    "InlineFunctionsPass": InlineFunctionsPass(lambda node: node.op_type == "LSTM"),
    "InferTypesPass": InferTypesPass(),
    "LegacyConstantsPass": LegacyConstantsPass(),
    "ConvertOpsetPass": ConvertOpsetPass(18),
}


def test_passes_compose() -> None:
    result = ir.passes.Sequential(*_PASSES.values())(ir.from_proto(recurrent_model()))
    assert result.modified
    assert result.model.opset_imports[""] == 18
    assert result.model.graph.inputs[0].shape == [4, "N", 3]


def test_every_pass_is_in_place() -> None:
    found = {}
    for module in pkgutil.iter_modules(rnnlower.passes.__path__):
        loaded = __import__(f"rnnlower.passes.{module.name}", fromlist=["*"])
        passes = {name: value for name, value in vars(loaded).items() if name.endswith("Pass")}
        found |= {name: value for name, value in passes.items() if value.__module__ == loaded.__name__}
    assert set(found) >= {*_PASSES, "FoldWeightsPass", "StaticShapesPass", "LowerRecurrentPass"}
    assert all(issubclass(cls, ir.passes.InPlacePass) and cls.__doc__ for cls in found.values())


_DETERMINISM = """
import functools, hashlib, sys, rnnlower
commands = [rnnlower.unroll, rnnlower.scan, rnnlower.loop]
commands += [functools.partial(rnnlower.lower, target=name) for name in ("onnxruntime", "openvino")]
commands += [functools.partial(rnnlower.convert, opset=opset) for opset in (11, 26)]
for number, path in enumerate(sys.argv[1:]):
    # The models of a kind of node take turns with the commands.
    for command in commands[number % 4 :: 4]:
        try:
            print(hashlib.sha256(command(path).SerializeToString()).hexdigest())
        except rnnlower.RnnLowerError as error:
            print(error)
"""


def test_same_bytes_whatever_the_hash_seed() -> None:
    paths = [str(path) for path in sorted(MODELS.glob("*.onnx"))]
    children = [
        subprocess.Popen(
            [sys.executable, "-c", _DETERMINISM, *paths],
            env=os.environ | {"PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for seed in ("0", "1")
    ]
    printed = [child.communicate()[0].splitlines() for child in children]
    assert len(printed[0]) > len(paths)
    assert printed[0] == printed[1]


def test_numbers_of_constants_are_not_rounded() -> None:
    exact = weights("LSTM")
    lowered = rnnlower.scan(recurrent_model(constants=exact))
    assert isinstance(lowered, onnx.ModelProto)
    stored = [onnx.numpy_helper.to_array(tensor) for tensor in lowered.graph.initializer]
    rows = {array.tobytes() for tensor in stored if tensor.ndim == 2 for array in tensor}
    assert rows >= {row.tobytes() for row in exact["W"][0]}


@pytest.mark.parametrize(
    ("call", "plain", "other"),
    [
        (rnnlower.unroll, {"nodes": ["*"]}, {"nodes": iter(["*"])}),
        (rnnlower.scan, {"unroll_factor": 2}, {"unroll_factor": np.int32(2)}),
        (rnnlower.unroll, {"opset": 15}, {"opset": np.array(15)}),
        (rnnlower.pad, {"max": {"T": 24}}, {"max": {"T": np.int64(24)}}),
        (rnnlower.stream, {"chunk": 2}, {"chunk": np.int8(2)}),
        (rnnlower.stream, {"time_axes": {"X": 0}}, {"time_axes": {"X": np.int64(0)}}),
    ],
)
def test_options_may_be_iterators_and_numpy_integers(
    call: Callable[..., Any], plain: dict[str, Any], other: dict[str, Any]
) -> None:
    model = MODELS / "lstm14_dynamic.onnx"
    sizes = {} if call in (rnnlower.pad, rnnlower.stream) else {"dims": {"T": 4}}
    assert call(model, **sizes, **other) == call(model, **sizes, **plain)


def test_forms_of_bench_may_be_iterators() -> None:
    result = rnnlower.bench(static_model(), runs=1, strategies=iter(["scan"]), unroll_factors=iter([2]))
    assert len(result.variants) == 3


def test_notes_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    model = recurrent_model(inputs={"X": (onnx.TensorProto.FLOAT, [5, 2, 3])}, opset=17)
    node = onnx.helper.make_node("LSTM", ["x", "w", "r"], ["y"], hidden_size=4)
    opsets = [onnx.helper.make_opsetid("", 17)]
    model.functions.append(onnx.helper.make_function("own", "spare", ["x", "w", "r"], ["y"], [node], opsets))
    model.opset_import.append(onnx.helper.make_opsetid("own", 1))
    for call in (lambda: rnnlower.scan(model), lambda: rnnlower.convert(model, opset=13)):
        caplog.clear()
        with caplog.at_level("INFO", logger="rnnlower"):
            call()
        (record,) = [each for each in caplog.records if each.name.startswith("rnnlower")]
        assert "own::spare" in record.getMessage()
