"""Lower every model below a folder by every strategy, and compare with recorded outputs or native runs.

    python tests/real_models.py FOLDER

Recorded data may be in ``../real_io/x*.npz`` for ``x.onnx``, with ``in::NAME`` and ``out::NAME`` arrays, or
in ``test_data_set_*`` folders of the ONNX standard; without either, source and result are run on generated
inputs.
"""

from __future__ import annotations

import pathlib
import sys
import tempfile
from collections.abc import Iterator, Mapping

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import numpy_helper
from typer.testing import CliRunner

import rnnlower
from rnnlower.cli import app
from rnnlower.recurrent.finding import find_recurrent

TOLERANCE = 1e-4
Arrays = Mapping[str, np.ndarray]


def recorded(path: pathlib.Path) -> Iterator[tuple[str, Arrays, Arrays]]:
    """Yield recorded inputs and outputs of a model."""
    for file in sorted((path.parent.parent / "real_io").glob(f"{path.stem}*.npz")):
        if file.stem != path.stem and not file.stem.startswith(f"{path.stem}."):
            continue
        arrays = np.load(file)
        inputs = {name[4:]: arrays[name] for name in arrays if name.startswith("in::")}
        yield file.stem, inputs, {name[5:]: arrays[name] for name in arrays if name.startswith("out::")}
    for folder in sorted(path.parent.glob("test_data_set_*")):
        graph = onnx.load(path).graph
        yield folder.name, _read(folder, "input", graph.input), _read(folder, "output", graph.output)


def _read(folder: pathlib.Path, kind: str, values: Iterator[onnx.ValueInfoProto]) -> Arrays:
    arrays = {}
    for index, value in enumerate(values):
        tensor = onnx.TensorProto.FromString((folder / f"{kind}_{index}.pb").read_bytes())
        arrays[value.name] = numpy_helper.to_array(tensor)
    return arrays


def run_file(path: pathlib.Path, inputs: Arrays) -> Arrays:
    """Return the outputs of a model on onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = [out.name for out in session.get_outputs()]
    return dict(zip(names, session.run(names, inputs), strict=True))


def lower_file(path: pathlib.Path, strategy: str, inputs: Arrays, output: pathlib.Path) -> str:
    """Lower by the command line; gives what is wrong with that, or nothing."""
    shapes = []
    if strategy == "unroll":
        shapes = [f"--input-shape={name}:{','.join(map(str, array.shape))}" for name, array in inputs.items()]
        shapes = shapes or [f"--dim={name}={size}" for name, size in _sizes(path).items()]
    result = CliRunner().invoke(app, [strategy, str(path), "-o", str(output), *shapes])
    if result.exit_code:
        return f"exit code {result.exit_code}: {result.output.strip().splitlines()[-1:]}"
    if find_recurrent(ir.load(output)):
        return "a recurrent node is left"
    return ""


def _sizes(path: pathlib.Path) -> dict[str, int]:
    """Return a size for each symbolic dimension of the inputs, large enough for a few strides."""
    graph = onnx.load(path, load_external_data=False).graph
    dims = [dim.dim_param for value in graph.input for dim in value.type.tensor_type.shape.dim]
    return {name: 2 if name.startswith("b") else 64 for name in dims if name}


def check_file(path: pathlib.Path, strategy: str) -> list[str]:
    """Return a line for each set of inputs: how far the result is from what was recorded."""
    lines = []
    cases = list(recorded(path)) or [("generated inputs", {}, {})]
    for name, inputs, expected in cases:
        with tempfile.TemporaryDirectory() as folder:
            output = pathlib.Path(folder) / "lowered.onnx"
            problem = lower_file(path, strategy, inputs, output)
            if problem:
                lines.append(f"FAILED {name}: {problem}")
                continue
            actual = run_file(output, inputs) if expected else {}
            pairs = [(actual[out].astype(float), want.astype(float)) for out, want in expected.items()]
            worst = max([np.max(np.abs(have - want), initial=0.0) for have, want in pairs], default=0.0)
            scale = max([1.0, *(np.max(np.abs(want), initial=0.0) for _, want in pairs)])
            verdict = "ok" if worst <= TOLERANCE * scale else "FAILED"
            lines.append(f"{verdict} {name}: max abs {worst:.2g}")
    return lines


def main() -> int:
    folder = pathlib.Path(sys.argv[1])
    paths = [path for path in sorted(folder.rglob("*.onnx")) if rnnlower.inspect(path)]
    if not paths:
        print(f"no model with a recurrent node below {folder}", file=sys.stderr)
        return 2
    failures = 0
    for path in paths:
        for strategy in ("scan", "loop", "unroll"):
            for line in check_file(path, strategy):
                failures += line.startswith("FAILED")
                print(f"{path.name} {strategy}: {line}", flush=True)
    print(f"{failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
