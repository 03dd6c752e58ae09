"""Measure quantized recurrences: dB by activations and model, along the sequence, with scales and sizes.

python benchmarks/quantized.py            # prints the table
python benchmarks/quantized.py --stock    # also what onnxruntime's tool alone makes of a straight line
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
from long_memory import LongMemory, recordings

import rnnlower

STEPS, SHORT = 200, 30
HEADER = (
    "| model | units | activations | dB | first quarter | last quarter | default session | scales | Scan | "
    "straight line |\n|---|---|---|---|---|---|---|---|---|---|"
)

RUNTIME_HEADER = (
    "| runtime | LSTM int8 | uint16 | int8-only | GRU int8 | uint16 | int8-only |\n" + "|---" * 7 + "|"
)
STOCK_HEADER = "| model | units | activations | dB | size | scales |\n|---|---|---|---|---|---|"


def models(units: tuple[int, ...]) -> Iterator[tuple[str, LongMemory]]:
    """Yield the models, with their names."""
    for op_type in ("LSTM", "GRU"):
        for count in units:
            yield op_type, LongMemory(op_type, count)
            yield f"{op_type}, bidirectional", LongMemory(op_type, count, direction="bidirectional")
            yield f"two {op_type}s, Dense", LongMemory(op_type, count, layers=2)


def rows(
    units: tuple[int, ...] = (64, 128), activations: tuple[str, ...] = ("int8", "int16")
) -> Iterator[str]:
    """Yield the rows of the table."""
    for name, shape in models(units):
        source = shape.build()
        for kind in activations:
            data = {"X": recordings(steps=STEPS)}
            scan, report = rnnlower.quantize.with_report(
                source, calibration=data, activations=kind, strategy="scan", verify=True
            )
            short = dataclasses.replace(shape, steps=SHORT).build()
            line, of_line = rnnlower.quantize.with_report(
                short, calibration={"X": recordings(steps=SHORT)}, activations=kind, strategy="unroll"
            )
            output = report.outputs[0]
            figures = (output.sqnr, output.quarters[0], output.quarters[-1], output.sqnr_default)
            sizes = (scan.ByteSize() / source.ByteSize(), line.ByteSize() / short.ByteSize())
            cells = [name, str(shape.units), kind, *(f"{each:.1f}" for each in figures)]
            cells += [f"{len(report.scales)} ({len(of_line.scales)})", *(f"{size:.2f}" for size in sizes)]
            yield f"| {' | '.join(cells)} |"


def stock(shape: LongMemory, wide: bool) -> tuple[float, float, int]:
    """Return dB, size over float, and the scales of onnxruntime's tool alone on a straight line."""
    from onnxruntime import InferenceSession
    from onnxruntime.quantization import CalibrationDataReader, QuantType, quantize_static

    class Reader(CalibrationDataReader):
        def __init__(self, sequences: np.ndarray) -> None:
            self._left = iter(sequences)

        def get_next(self) -> dict[str, np.ndarray] | None:
            sequence = next(self._left, None)
            return None if sequence is None else {"X": sequence}

    steps = shape.steps or SHORT
    source = dataclasses.replace(shape, steps=steps).build()
    line = rnnlower.unroll(source, opset=21)
    data = recordings(steps=steps)
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
            decibels, size, scales = stock(LongMemory(op_type, 128, SHORT), wide)
            kind = "uint16" if wide else "uint8"
            yield f"| {op_type} | 128 | {kind} | {decibels:.1f} | {size:.2f} | {scales} |"


def runtime_rows(steps: int = 20, units: int = 32) -> Iterator[str]:
    """Yield the rows of the table of runtimes: dB on each one that is installed."""
    data = {"X": recordings(steps=steps)}
    for engine in rnnlower.engines():
        if not engine.version or engine.name == "onnxruntime":
            continue
        cells = []
        for op_type in ("LSTM", "GRU"):
            source = LongMemory(op_type, units, steps).build()
            for kind in ("int8", "uint16", "int8-only"):
                options = {"calibration": data, "activations": kind, "strategy": "unroll", "verify": True}
                try:
                    report = rnnlower.quantize.with_report(source, **options, on=engine.name)[1]
                except rnnlower.UnverifiableError:
                    cells.append("refused")
                    continue
                output = report.outputs[0]
                assert output.sqnr_on is not None
                off = output.sqnr_on - output.sqnr
                cells.append(f"{output.sqnr_on:.1f}" + (f" ({off:+.1f})" if abs(off) >= 0.1 else ""))
        yield f"| {engine.title} {engine.version} | {' | '.join(cells)} |"


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--stock", action="store_true", help="onnxruntime's tool alone, on a straight line")
    arguments = parser.parse_args()
    print(HEADER)
    for row in rows():
        print(row, flush=True)
    if arguments.stock:
        print(f"\n{STOCK_HEADER}")
        for row in stock_rows():
            print(row, flush=True)


if __name__ == "__main__":
    main()
