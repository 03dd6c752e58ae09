"""The loop of docs/streaming.md, run on models of any kind.

    python tests/support/streaming_page.py MODEL ...

streams each model, runs the page's loop on it, and compares its outputs with those of whole sequences.
"""

from __future__ import annotations

import json
import pathlib
import re
import sys
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx.helper import tensor_dtype_to_np_dtype

import rnnlower

ROOT = pathlib.Path(__file__).parents[2]


def blocks() -> list[str]:
    """Return the Python blocks of the page: the loop, and its use."""
    page = (ROOT / "docs" / "streaming.md").read_text(encoding="utf-8")
    return re.findall(r"```python\n(.*?)```", page, re.DOTALL)


def run_page_loop(model: onnx.ModelProto, steps: int = 24, rows: int = 1, **options: Any) -> list[str]:
    """Stream the model, run the page's loop on random sequences, and return the names of the equal outputs.

    The states that the model has already start as the metadata says, in both models.
    """
    page: dict[str, Any] = {}
    exec(blocks()[0], page)
    streamed = rnnlower.stream(model, **options)
    said = {entry.key: json.loads(entry.value) for entry in streamed.metadata_props}
    stream, states = said["rnnlower.stream"], {*said["rnnlower.state"].values()}
    sequences = _sequences(model, stream["inputs"], states, steps, rows)
    found = page["run_in_chunks"](streamed, sequences, rows)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    own = states & {value.name for value in model.graph.input}
    whole = {name: array for name, array in page["first_state"](session, stream, rows).items() if name in own}
    names = [value.name for value in session.get_outputs()]
    for name, expected in zip(names, session.run(None, {**sequences, **whole}), strict=True):
        axis = stream["outputs"].get(name)
        if axis is not None:
            expected = expected.take(range(found[name].shape[axis]), axis)
        scale = float(np.abs(expected).max(initial=1.0))
        tolerance = (2e-2 if expected.dtype == np.float16 else 1e-4) * scale
        np.testing.assert_allclose(found[name], expected, rtol=1e-3, atol=tolerance, err_msg=name)
    return names


def _sequences(
    model: onnx.ModelProto, axes: Mapping[str, int], states: Collection[str], steps: int, rows: int
) -> dict[str, np.ndarray]:
    """Return random sequences for the inputs other than states and defaults, of the model's length."""
    rng = np.random.default_rng(0)
    defaults = {tensor.name for tensor in model.graph.initializer}
    made = {}
    for value in model.graph.input:
        if value.name in states or value.name in defaults:
            continue
        dims = value.type.tensor_type.shape.dim
        axis = axes.get(value.name)
        shape = [dim.dim_value or (steps if place == axis else rows) for place, dim in enumerate(dims)]
        dtype = tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type)
        made[value.name] = (rng.standard_normal(shape) / 10).astype(dtype)
    return made


def main() -> None:
    for path in sys.argv[1:]:
        print(f"{path}: {', '.join(run_page_loop(onnx.load(path)))} equal", flush=True)


if __name__ == "__main__":
    main()
