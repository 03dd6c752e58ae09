"""Other tools in their own environments: `peers_of_commands.py` starts this.

python benchmarks/elsewhere.py FUNCTION JOB.json

It prints one JSON object. It imports nothing of rnnlower, which those environments lack.
"""

from __future__ import annotations

import json
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

Job = dict[str, Any]
STEPS = 1
"""The time steps of a chunk."""


def openvino_fusions(job: Job) -> dict[str, str]:
    """Return for each model what its recurrence is once OpenVINO has compiled it for the CPU."""
    import openvino

    found = {}
    for path in job["models"]:
        try:
            compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        except RuntimeError as error:
            found[path] = f"fails: {error}"
            continue
        layers = [
            each.get_rt_info()["layerType"].astype(str) for each in compiled.get_runtime_model().get_ops()
        ]
        fused = any(layer.startswith(("RNNSeq", "RNNCell")) for layer in layers)
        found[path] = "fused" if fused else "not fused"
    return found


Runner = Callable[[str, np.ndarray, Job], list[np.ndarray]]


def _judged(path: str, chunks: Runner, whole: Runner, about: Job) -> str:
    """Return whether the outputs of a stream, joined, are those of the whole sequence."""
    with np.load(about["arrays"]) as archive:
        x, expected = archive["X"], [archive[f"out{index}"] for index in range(len(about["out_axes"]))]
    try:
        answers = chunks(path, x, about)
    except Exception as error:
        return f"fails: {type(error).__name__}: {error}"
    if _equal(expected, answers):
        return "right"
    return "wrong" if _equal(expected, whole(path, x, about)) else "wrong as a whole, too"


def _equal(expected: list[np.ndarray], answers: list[np.ndarray]) -> bool:
    return all(
        wanted.shape == got.shape and np.allclose(wanted, got, 1e-3, 1e-4)
        for wanted, got in zip(expected, answers, strict=True)
    )


def _joined(outputs: list[list[np.ndarray]], axes: list[int | None]) -> list[np.ndarray]:
    """Return each output of all chunks: joined along time, or the last one where it has none."""
    return [
        each[-1] if axis is None else np.concatenate(each, axis)
        for each, axis in zip(zip(*outputs, strict=True), axes, strict=True)
    ]


def _cut(x: np.ndarray, axis: int) -> list[np.ndarray]:
    return np.split(x, x.shape[axis] // STEPS, axis)


def openvino_stream(job: Job) -> dict[str, str]:
    """Stream models by OpenVINO's LowLatency2."""
    import openvino
    from openvino.passes import LowLatency2, Manager

    def chunks(path: str, x: np.ndarray, about: Job) -> list[np.ndarray]:
        core = openvino.Core()
        model = core.read_model(path)
        shape = list(x.shape)
        shape[about["axis"]] = STEPS
        model.reshape({about["input"]: shape})
        manager = Manager()
        manager.register_pass(LowLatency2())
        manager.run_passes(model)
        request = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"}).create_infer_request()
        outputs = []
        for chunk in _cut(x, about["axis"]):
            answer = request.infer({about["input"]: chunk})
            outputs.append([np.array(answer[index]) for index in range(len(about["out_axes"]))])
        return _joined(outputs, about["out_axes"])

    def whole(path: str, x: np.ndarray, about: Job) -> list[np.ndarray]:
        model = openvino.Core().read_model(path)
        model.reshape({about["input"]: list(x.shape)})
        compiled = openvino.Core().compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
        return [*compiled({about["input"]: x}).values()]

    return {path: _judged(path, chunks, whole, about) for path, about in job["models"].items()}


def tract_stream(job: Job) -> dict[str, str]:
    """Stream models by tract's pulse."""
    import tract
    from tract.transform import Pulse

    def load(path: str, sizes: list[str]) -> Any:
        model = tract.onnx().load(path)
        model.set_input_fact(0, ",".join([*sizes, "f32"]))
        for index in range(model.output_count()):
            model.set_output_fact(index, None)
        return model.into_model()

    def whole(path: str, x: np.ndarray, about: Job) -> list[np.ndarray]:
        return [each.to_numpy() for each in load(path, [*map(str, x.shape)]).into_runnable().run([x])]

    def chunks(path: str, x: np.ndarray, about: Job) -> list[np.ndarray]:
        sizes = ["S" if axis == about["axis"] else str(size) for axis, size in enumerate(x.shape)]
        typed = load(path, sizes)
        typed.transform(Pulse(str(STEPS), symbol="S"))
        delays = typed.property("pulse.delay").to_numpy() if "pulse.delay" in typed.property_keys() else [0]
        if any(delays):
            raise ValueError(f"delays {delays}")
        state = typed.into_runnable().spawn_state()
        outputs = [[each.to_numpy() for each in state.run([chunk])] for chunk in _cut(x, about["axis"])]
        return _joined(outputs, about["out_axes"])

    return {path: _judged(path, chunks, whole, about) for path, about in job["models"].items()}


def _interpreted(content: bytes, x: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Return the output of a TensorFlow Lite file, and its operators."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(model_content=content)
    interpreter.allocate_tensors()
    entry, output = interpreter.get_input_details()[0], interpreter.get_output_details()[0]
    scale, zero = entry["quantization"]
    if scale:
        limits = np.iinfo(entry["dtype"])
        x = np.clip(np.round(x / scale) + zero, limits.min, limits.max)
    interpreter.set_tensor(entry["index"], x.reshape(entry["shape"]).astype(entry["dtype"]))
    interpreter.invoke()
    operators = sorted({each["op_name"] for each in interpreter._get_ops_details()})
    scale, zero = output["quantization"]
    result = interpreter.get_tensor(output["index"]).astype(np.float64)
    return ((result - zero) * scale if scale else result), operators


def _decibels(expected: np.ndarray, answer: np.ndarray) -> float:
    """Return the ratio of signal to noise."""
    noise = expected - answer.reshape(expected.shape)
    return float(10 * np.log10(np.sum(expected**2) / max(np.sum(noise**2), 1e-300)))


def ai_edge(job: Job) -> dict[str, Any]:
    """Quantize TensorFlow Lite files by AI Edge's quantizer, and return the outputs on the held recording."""
    import ai_edge_quantizer as quantizer
    from ai_edge_litert.interpreter import Interpreter
    from ai_edge_quantizer import recipe

    found: dict[str, Any] = {}
    with np.load(job["recordings"]) as archive:
        data = archive["X"]
    for path in job["models"]:
        content = pathlib.Path(path).read_bytes()
        expected, operators = _interpreted(content, data[-1])
        name = next(iter(_runners(Interpreter, content)))
        found[path] = {"operators": operators, "bytes": len(content)}
        for scheme in ("static_wi8_ai8", "static_wi8_ai16"):
            try:
                tool = quantizer.Quantizer(path, getattr(recipe, scheme)())
                (port,) = _runners(Interpreter, content)[name]
                shape = Interpreter(model_content=content).get_input_details()[0]["shape"]
                calls = [{port: each.reshape(shape).astype(np.float32)} for each in data[:-1]]
                result = bytes(tool.quantize(tool.calibrate({name: calls})).quantized_model)
                ratio = _decibels(expected, _interpreted(result, data[-1])[0])
                kept = "UNIDIRECTIONAL_SEQUENCE_LSTM" in operators and len(result) >= len(content)
                found[path][scheme] = {"db": ratio, "bytes": len(result), "kept": kept}
            except Exception as error:
                found[path][scheme] = {"problem": f"{type(error).__name__}: {error}"}
    return found


def _runners(interpreter: Any, content: bytes) -> dict[str, list[str]]:
    signatures = interpreter(model_content=content).get_signature_list()
    return {name: each["inputs"] for name, each in signatures.items()}


def _lstm(job: Job) -> tuple[Any, np.ndarray]:
    """Return the LSTM of PyTorch with the weights of an ONNX node, and the recordings."""
    import torch

    with np.load(job["recordings"]) as archive:
        arrays = dict(archive)
    W, R, B = (arrays[name] for name in "WRB")
    units, inputs = R.shape[1], W.shape[1]

    class Lstm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = torch.nn.LSTM(inputs, units)
            names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
            for name, array in zip(names, (W, R, *np.split(B, 2)), strict=True):
                i, o, f, c = np.split(array, 4)
                getattr(self.lstm, name).data = torch.tensor(np.concatenate([i, f, c, o]))

        def forward(self, x: Any) -> Any:
            return self.lstm(x)[0]

    return Lstm().eval(), arrays["X"]


def litert_torch(job: Job) -> str:
    """Write the LSTM as litert-torch converts it; return the file."""
    import litert_torch as tool
    import torch

    model, data = _lstm(job)
    tool.convert(model, (torch.tensor(data[0]),)).export(job["file"])
    return str(job["file"])


def tiny_nn(job: Job) -> dict[str, Any]:
    """Quantize the LSTM by TinyNeuralNetwork, and return its error on the held recording."""
    import torch
    from tinynn.converter import TFLiteConverter
    from tinynn.graph.quantization.quantizer import PostQuantizer

    model, data = _lstm(job)
    calls = [torch.tensor(each) for each in data]
    with torch.no_grad():
        expected = model(calls[-1]).numpy().astype(np.float64)
    weights = {"hybrid_quantization_from_float": True, "hybrid_per_channel": False}
    # As in its examples/quantization: ptq.py and ptq_with_dynamic_q_lstm.py; the last as in docs/FAQ.md.
    schemes: dict[str, tuple[Job | None, Job]] = {
        "static": ({}, {"group_tensors": True}),
        "LSTM rewritten": (
            {"quantize_op_action": {torch.nn.LSTM: "rewrite"}},
            {**weights, "hybrid_asymmetric_inputs": False, "hybrid_int16_lstm": True},
        ),
        "dynamic": (None, weights),
    }
    found: dict[str, Any] = {}
    for scheme, (config, options) in schemes.items():
        result, path = model, f"{job['folder']}/{scheme.replace(' ', '_')}.tflite"
        if config is not None:
            quantizer = PostQuantizer(model, calls[0], work_dir=f"{job['folder']}/work", config=config)
            prepared = quantizer.quantize()
            with torch.no_grad():
                for each in calls[:-1]:
                    prepared(each)
            result = quantizer.convert(prepared.eval())
            torch.backends.quantized.engine = quantizer.backend
            options = {**options, "rewrite_quantizable": True}
        TFLiteConverter(result, calls[0], tflite_path=path, quantize_target_type="int8", **options).convert()
        content = pathlib.Path(path).read_bytes()
        answer, operators = _interpreted(content, data[-1])
        kept = "UNIDIRECTIONAL_SEQUENCE_LSTM" in operators
        found[scheme] = {"db": _decibels(expected, answer), "bytes": len(content), "kept": kept}
    return found


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]](json.loads(pathlib.Path(sys.argv[2]).read_text("utf-8")))))
