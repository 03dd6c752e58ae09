"""Every model below a folder in float16, lowered as it is and with ``--compute-type float32``: a table.

    python tests/half_table.py FOLDER [OPTION ...]

onnxruntime's converter makes the float16 models; one that is float16 already stays. The error is the largest
difference from the float16 model itself, whose recurrent kernels compute in float32. The options go to
``rnnlower scan`` as they are.
"""

from __future__ import annotations

import json
import pathlib
import sys
import tempfile

import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16
from support.folders_of_models import recurrent_models
from typer.testing import CliRunner

import rnnlower
from rnnlower.cli import app

FORMS = ((), ("--compute-type", "float32"))


def half(path: pathlib.Path) -> onnx.ModelProto:
    """The model in float16."""
    model = onnx.load(path)
    if any(node.dtype == "float16" for node in rnnlower.inspect(model)):
        return model
    # Names of sizes that the converter's own inference gives nodes keep it from running twice.
    made = convert_float_to_float16(model, keep_io_types=False, disable_shape_infer=True)
    # An older converter leaves the value of a ConstantOfShape in float32.
    onnx.checker.check_model(made, full_check=True)
    return made


def outcome(path: pathlib.Path, options: list[str]) -> tuple[int, str]:
    """The exit code of a Scan, and its largest error, or what it said instead."""
    with tempfile.TemporaryDirectory() as folder:
        output = str(pathlib.Path(folder) / "lowered.onnx")
        run = CliRunner().invoke(app, ["scan", str(path), "-o", output, "--json", *options])
    if not run.stdout.strip():
        return run.exit_code, " ".join(run.output.strip().splitlines()[-1:])
    said = json.loads(run.stdout)
    if not said.get("verification"):
        return run.exit_code, said["error"]["message"].splitlines()[0][:160]
    errors = [out["max_abs"] for out in said["verification"]["outputs"]]
    return run.exit_code, f"{max(errors):.2g}" if None not in errors else "infinite"


def main() -> int:
    paths, options = recurrent_models(pathlib.Path(sys.argv[1])), sys.argv[2:]
    print("| model | exit code | largest error | with float32 | largest error |\n|---|---|---|---|---|")
    worse = 0
    with tempfile.TemporaryDirectory() as halves:
        for path in paths:
            own = pathlib.Path(halves) / path.name
            try:
                onnx.save(half(path), own)
            except (ValueError, RuntimeError, onnx.shape_inference.InferenceError) as error:
                print(f"| {path.name} | not converted: {str(error).splitlines()[0]} | | | |", flush=True)
                continue
            (code, error), (wide_code, wide_error) = (outcome(own, [*options, *form]) for form in FORMS)
            worse += wide_code == 1
            print(f"| {path.name} | {code} | {error} | {wide_code} | {wide_error} |", flush=True)
    return int(worse > 0)


if __name__ == "__main__":
    sys.exit(main())
