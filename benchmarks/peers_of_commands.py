"""Sections of docs/peers.md: what other tools do where rnnlower has `lift`, `stream` and `quantize`.

`peers.py` writes them; each table needs the environments that its variables name (RNNLOWER_PYTHON_OPENVINO,
RNNLOWER_PYTHON_TRACT, RNNLOWER_PYTHON_LITERT, PEERS_AI_EDGE, PEERS_LITERT_TORCH, PEERS_TINYNN).
"""

from __future__ import annotations

import collections
import inspect
import json
import os
import pathlib
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from long_memory import LongMemory, recordings
from onnx import numpy_helper

import rnnlower

ELSEWHERE = pathlib.Path(__file__).with_name("elsewhere.py")
STEPS, ROWS = 6, 2
"""Time steps and rows of what is streamed."""
UNITS, LENGTH = 64, 30
"""The LSTM that is quantized."""


def elsewhere(python: str, what: str, job: Any) -> Any:
    """Return what a function of elsewhere.py finds in the environment that has this interpreter."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", delete=False) as file:
        json.dump(job, file)
    try:
        line = [python, str(ELSEWHERE), what, file.name]
        done = subprocess.run(line, capture_output=True, text=True, check=True)
    finally:
        pathlib.Path(file.name).unlink()
    answer: Any = json.loads(done.stdout.splitlines()[-1])
    return answer


def counted(words: Sequence[str], order: Sequence[str]) -> str:
    """Return how often each word occurs."""
    counts = collections.Counter(word.partition(":")[0] for word in words)
    return ", ".join(f"{counts[word]} {word}" for word in order if counts[word])


def fusions(models: Sequence[pathlib.Path], place: pathlib.Path) -> Iterator[str]:
    """Yield the rows of the table of `lift`."""
    python = os.environ["RNNLOWER_PYTHON_OPENVINO"]
    for form, lower in (("Loop", rnnlower.loop), ("Scan", rnnlower.scan), ("straight line", rnnlower.unroll)):
        paths, lifted, native = [], [], []
        for model in models:
            path = place / f"{model.stem}.{form.split()[0]}.onnx"
            onnx.save(lower(model), path)
            paths.append(str(path))
            result, after = rnnlower.lift(path), place / f"lifted.{path.name}"
            onnx.save(result, after)
            native.append(str(after))
            found = rnnlower.inspect(result)
            equal = found and rnnlower.verify(model, result, trials=4)
            lifted.append("recurrent again" if equal else "not recurrent")
        there = elsewhere(python, "openvino_fusions", {"models": paths})
        again = elsewhere(python, "openvino_fusions", {"models": native})
        order = ("fused", "not fused", "fails")
        cells = [
            counted(lifted, ("recurrent again", "not recurrent")),
            counted([*there.values()], order),
            counted([*again.values()], order),
        ]
        yield f"| {form} | {len(paths)} | {' | '.join(cells)} |"


def _only_x(model: onnx.ModelProto) -> bool:
    held = {each.name for each in model.graph.initializer}
    (port, *others) = [each for each in model.graph.input if each.name not in held]
    return not others and port.type.tensor_type.elem_type == onnx.TensorProto.FLOAT


def _streamable(path: pathlib.Path, place: pathlib.Path) -> dict[str, Any] | None:
    """Return what a stream of the model needs, with the outputs of the whole; None if it has no stream."""
    source = onnx.load(path)
    if not _only_x(source):
        return None
    try:
        stream = rnnlower.stream(source, chunk=1)
    except rnnlower.RnnLowerError:
        return None
    metadata = {each.key: each.value for each in stream.graph.metadata_props}
    metadata |= {each.key: each.value for each in stream.metadata_props}
    about, states = (json.loads(metadata[key]) for key in ("rnnlower.stream", "rnnlower.state"))
    ((name, axis),) = about["inputs"].items()
    timed = [each for each in source.graph.output if each.name in about["outputs"]]
    if timed:
        # Last states are what a stream carries: nobody needs them as outputs, and pulses lack them.
        del source.graph.output[:]
        source.graph.output.extend(timed)
    trimmed = place / path.name
    onnx.save(source, trimmed)
    dims = next(each for each in source.graph.input if each.name == name).type.tensor_type.shape.dim
    sizes = [each.dim_value if each.dim_value > 0 else ROWS for each in dims]
    sizes[axis] = dims[axis].dim_value if dims[axis].dim_value > 0 else STEPS
    x = np.random.default_rng(0).normal(size=sizes).astype(np.float32)
    try:
        expected = onnxruntime.InferenceSession(source.SerializeToString()).run(None, {name: x})
    except Exception:  # onnxruntime has no kernel for old or unusual nodes
        return None
    arrays = place / f"{path.stem}.npz"
    np.savez(arrays, allow_pickle=False, X=x, **{f"out{index}": each for index, each in enumerate(expected)})
    outputs = [each.name for each in source.graph.output]
    return {
        "model": str(trimmed),
        "input": name,
        "axis": axis,
        "arrays": str(arrays),
        "out_axes": [about["outputs"].get(output) for output in outputs],
        "verdict": _streamed(stream, states, name, x, expected, outputs, about),
    }


def _streamed(
    stream: onnx.ModelProto,
    states: dict[str, str],
    name: str,
    x: np.ndarray,
    expected: list[np.ndarray],
    outputs: list[str],
    about: dict[str, Any],
) -> str:
    """Return whether rnnlower's stream gives the outputs of the whole sequence."""
    session = onnxruntime.InferenceSession(stream.SerializeToString())
    ports = {each.name: each for each in session.get_inputs()}
    axis, axes = about["inputs"][name], about["outputs"]
    feeds: dict[str, np.ndarray] = {}
    for port in states.values():
        shape = [size if isinstance(size, int) else ROWS for size in ports[port].shape]
        feeds[port] = np.ascontiguousarray(np.broadcast_to(np.float32(about["start"][port]), shape))
    names = [each.name for each in session.get_outputs()]
    found: dict[str, list[np.ndarray]] = {each: [] for each in outputs}
    for chunk in np.split(x, x.shape[axis], axis):
        answers = dict(zip(names, session.run(None, feeds | {name: chunk}), strict=True))
        feeds = {port: answers[output] for output, port in states.items()}
        for output in outputs:
            found[output].append(answers[output])
    for output, wanted in zip(outputs, expected, strict=True):
        got = np.concatenate(found[output], axes[output]) if output in axes else found[output][-1]
        if not np.allclose(wanted, got, 1e-3, 1e-4):
            return "wrong"
    return "right"


def streams(models: Sequence[pathlib.Path], place: pathlib.Path) -> Iterator[str]:
    """Yield the rows of the table of `stream`."""
    found = (_streamable(path, place) for path in models)
    jobs = {about["model"]: about for about in found if about is not None}
    order = ("right", "wrong", "wrong as a whole, too", "fails")
    yield f"| rnnlower stream | {len(jobs)} | {counted([each['verdict'] for each in jobs.values()], order)} |"
    for title, variable, what in (
        ("OpenVINO, LowLatency2", "RNNLOWER_PYTHON_OPENVINO", "openvino_stream"),
        ("tract, pulse", "RNNLOWER_PYTHON_TRACT", "tract_stream"),
    ):
        verdicts = elsewhere(os.environ[variable], what, {"models": jobs})
        yield f"| {title} | {len(jobs)} | {counted([*verdicts.values()], order)} |"


def integers(place: pathlib.Path) -> Iterator[str]:
    """Yield the rows of the table of `quantize`."""
    source = LongMemory("LSTM", UNITS, LENGTH).build()
    data = recordings(8, LENGTH)
    weights = {each.name[-1]: numpy_helper.to_array(each)[0] for each in source.graph.initializer}
    np.savez(place / "data.npz", X=data, **weights)
    model = place / "lstm.onnx"
    onnx.save(source, model)
    size = model.stat().st_size
    for activations in ("int8", "int16", "int8-only"):
        result, report = rnnlower.quantize.with_report(
            source, calibration={"X": data}, activations=activations, strategy="unroll", verify=True
        )
        share = len(result.SerializeToString()) / size
        yield f"| rnnlower quantize, {activations} | ONNX | {report.outputs[0].sqnr:.1f} | {share:.2f} |"
    onnx.save(rnnlower.lower(source, target="litert"), place / "line.onnx")
    job: dict[str, Any] = {"recordings": str(place / "data.npz"), "folder": str(place)}
    files = {
        "from PyTorch by litert-torch": _litert_torch(place, job),
        "as it is, by onnx2tf": _tflite(place / "lstm.onnx", place / "lstm"),
        "after `rnnlower lower --target litert`, by onnx2tf": _tflite(place / "line.onnx", place / "line"),
    }
    job["models"] = [*map(str, files.values())]
    found = elsewhere(os.environ["PEERS_AI_EDGE"], "ai_edge", job)
    for title, path in files.items():
        for scheme in ("static_wi8_ai8", "static_wi8_ai16"):
            about = found[str(path)][scheme]
            name = f"AI Edge, {scheme}, {title}"
            if "problem" in about:
                yield f"| {name} | TensorFlow Lite | {about['problem']} | |"
            else:
                what = "TensorFlow Lite, the LSTM in float32" if about["kept"] else "TensorFlow Lite"
                yield f"| {name} | {what} | {about['db']:.1f} | {about['bytes'] / size:.2f} |"
    for scheme, about in elsewhere(os.environ["PEERS_TINYNN"], "tiny_nn", job).items():
        what = f"TensorFlow Lite, {'an LSTM' if about['kept'] else 'a straight line'}"
        yield f"| TinyNeuralNetwork, {scheme} | {what} | {about['db']:.1f} | {about['bytes'] / size:.2f} |"


def _litert_torch(place: pathlib.Path, job: dict[str, Any]) -> pathlib.Path:
    """Return the LSTM as litert-torch writes it."""
    file = place / "litert_torch.tflite"
    elsewhere(os.environ["PEERS_LITERT_TORCH"], "litert_torch", {**job, "file": str(file)})
    return file


def _tflite(model: pathlib.Path, folder: pathlib.Path) -> pathlib.Path:
    """Return the model as onnx2tf writes it."""
    converter = pathlib.Path(os.environ["RNNLOWER_PYTHON_LITERT"]).with_name("onnx2tf")
    line = [str(converter), "-i", str(model), "-o", str(folder), "-kat", "X", "-n"]
    subprocess.run(line, capture_output=True, check=True)
    return folder / f"{model.stem}_float32.tflite"


def onnxsim_functions() -> dict[str, list[str]]:
    """Return onnxsim's functions of a model alone, by what they make of an LSTM."""
    import onnxsim

    source = LongMemory("LSTM", UNITS, LENGTH).build()
    before = _recurrent_weights(source)
    kinds = ("the LSTM as it was", "other weights in the LSTM", "no LSTM left", "fails")
    outcomes: dict[str, list[str]] = {kind: [] for kind in kinds}
    for name in sorted(dir(onnxsim)):
        function = getattr(onnxsim, name)
        if not name.startswith(("quantize", "apply", "legalize", "auto_quantize")) or name.endswith("_cpp"):
            continue
        parameters = inspect.signature(function).parameters.values()
        required = [
            each.name
            for each in parameters
            if each.default is each.empty and each.kind not in (each.VAR_POSITIONAL, each.VAR_KEYWORD)
        ]
        if required not in (["model"], ["float_model"]):
            continue
        outcomes[_outcome(function, source, before)].append(name)
    return outcomes


def _outcome(function: Any, source: onnx.ModelProto, before: list[bytes]) -> str:
    copy = onnx.ModelProto()
    copy.CopyFrom(source)
    try:
        result = function(copy)
    except Exception:
        return "fails"
    results = result if isinstance(result, tuple) else [result]
    models = [each for each in results if isinstance(each, onnx.ModelProto)]
    if not models:
        return "fails"
    after = _recurrent_weights(models[0])
    if not after:
        return "no LSTM left"
    return "the LSTM as it was" if after == before else "other weights in the LSTM"


def _recurrent_weights(model: onnx.ModelProto) -> list[bytes]:
    """Return the contents of W and R of all LSTMs; nothing for one whose weights are computed."""
    held = {each.name: numpy_helper.to_array(each).tobytes() for each in model.graph.initializer}
    nodes = [node for node in model.graph.node if node.op_type == "LSTM"]
    return [held.get(name, b"") for node in nodes for name in node.input[1:3]]
