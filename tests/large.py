"""Measure the memory for lowering and converting a model whose weights fill a sparse file of any size.

python tests/large.py --gigabytes 4                 # lowers and converts it, without running it
python tests/large.py --gigabytes 4 --folder DIR    # ... leaves the files in DIR

It prints the peak memory of every command, and the size of the recurrent weights.
"""

from __future__ import annotations

import argparse
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import onnx
from onnx import helper

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
_ROOT = Path(__file__).parent.parent
_INPUT, _HIDDEN = 64, 32


def make_large(folder: Path, gigabytes: float, opset: int = 17) -> Path:
    """Return an embedding of this many gigabytes of zeros, then an LSTM and a GRU with real weights."""
    rows = max(4, int(gigabytes * 1e9) // (4 * _INPUT))
    shapes = {
        "embedding": (rows, _INPUT),
        "lstm_W": (1, 4 * _HIDDEN, _INPUT),
        "lstm_R": (1, 4 * _HIDDEN, _HIDDEN),
        "gru_W": (2, 3 * _HIDDEN, _HIDDEN),
        "gru_R": (2, 3 * _HIDDEN, _HIDDEN),
        "gru_B": (2, 6 * _HIDDEN),
    }
    random = np.random.default_rng(0)
    tensors = []
    with (folder / "large.data").open("wb") as data:
        for name, shape in shapes.items():
            size = 4 * int(np.prod(shape, dtype=np.int64))
            tensor = onnx.TensorProto(name=name, dims=shape, data_type=FLOAT)
            tensor.data_location = onnx.TensorProto.EXTERNAL
            entries = {"location": "large.data", "offset": data.tell(), "length": size}
            for key, value in entries.items():
                tensor.external_data.add(key=key, value=str(value))
            tensors.append(tensor)
            if name == "embedding":
                data.truncate(data.tell() + size)
                data.seek(size, os.SEEK_CUR)
            else:
                data.write((0.1 * random.standard_normal(shape)).astype(np.float32).tobytes())
    nodes = [
        helper.make_node("Gather", ["embedding", "tokens"], ["embedded"], name="embed"),
        helper.make_node("LSTM", ["embedded", "lstm_W", "lstm_R"], ["h"], name="lstm", hidden_size=_HIDDEN),
        helper.make_node("Squeeze", ["h", "one"], ["squeezed"], name="squeeze"),
        helper.make_node(
            "GRU",
            ["squeezed", "gru_W", "gru_R", "gru_B"],
            ["", "last"],
            name="gru",
            hidden_size=_HIDDEN,
            direction="bidirectional",
        ),
    ]
    tensors.append(helper.make_tensor("one", INT64, [1], [1]))
    graph = helper.make_graph(
        nodes,
        "large",
        [helper.make_tensor_value_info("tokens", INT64, [5, 2])],
        [helper.make_tensor_value_info("last", FLOAT, [2, 2, _HIDDEN])],
        tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    path = folder / "large.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _measure(folder: Path, *line: str) -> tuple[int, float, float]:
    """Exit code, peak memory in MB and seconds of one command."""
    code = (
        "import resource, sys\n"
        "from rnnlower.cli import app\n"
        "try:\n"
        "    app()\n"
        "finally:\n"
        "    print('peak', resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)\n"
    )
    start = time.monotonic()
    result = subprocess.run(
        [sys.executable, "-c", code, *line],
        cwd=folder,
        env=dict(os.environ, PYTHONPATH=str(_ROOT)),
        capture_output=True,
        text=True,
        check=False,
    )
    print(*result.stderr.splitlines()[:-1], sep="\n")
    peak = int(result.stderr.split()[-1])
    return result.returncode, peak / 1024, time.monotonic() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--verify", action="store_true", help="also run both models")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.folder or Path(name)
        folder.mkdir(exist_ok=True)
        make_large(folder, arguments.gigabytes)
        size = (folder / "large.data").stat().st_size
        print(f"source: {size / 1e9:.2f} GB of data, {_disk(folder / 'large.data') / 1e6:.1f} MB on disk")
        check = [] if arguments.verify else ["--no-verify"]
        failed = 0
        for command in ("unroll", "scan", "loop", "convert"):
            options = ["--opset", "20"] if command == "convert" else []
            line = [command, "large.onnx", "-o", f"{command}.onnx", *options, *check]
            code, peak, seconds = _measure(folder, *line)
            written = sum(path.stat().st_size for path in folder.glob(f"{command}.onnx*"))
            print(
                f"{command}: exit {code}, peak {peak:.0f} MB, {seconds:.1f} s, wrote {written / 1e6:.2f} MB"
            )
            failed |= code
    return failed


def _disk(path: Path) -> int:
    return path.stat().st_blocks * 512


if __name__ == "__main__":
    print(f"this process: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MB", flush=True)
    sys.exit(main())
