"""Random recurrent models through every strategy, judged by the oracle. The large run on demand:

python tests/sweep.py --count 20000 --seed 1
"""

from __future__ import annotations

import argparse
import collections
import ctypes
import re
import sys
import traceback

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
from configs import Config, random_config

import rnnlower

STRATEGIES = ("unroll", "scan", "loop")
TOLERANCES = {"float16": 2e-2, "float32": 2e-4, "float64": 1e-9, "bfloat16": 4e-2}


def lower(
    config: Config, strategy: str, inputs: dict[str, np.ndarray], rng: np.random.Generator, semantics: str
) -> onnx.ModelProto:
    """The config's model, lowered; a dynamic length is fixed where the strategy wants one."""
    model = config.build()
    options = {"semantics": semantics}
    if strategy == "unroll":
        options["input_shapes"] = {"X": inputs["X"].shape}
    else:
        options["unroll_factor"] = int(rng.choice([1, 1, 2, 3, 7]))
    return getattr(rnnlower, strategy)(model, **options)


def run(model: onnx.ModelProto, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The lowered model's outputs on onnxruntime."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [out.name for out in session.get_outputs()]
    if not any(value.type == "tensor(bfloat16)" for value in (*session.get_inputs(), *session.get_outputs())):
        return dict(zip(names, session.run(names, inputs), strict=True))
    # onnxruntime's bridge to NumPy does not know bfloat16, so that its bits pass; `bits` keeps them alive.
    bits = {
        name: np.ascontiguousarray(array).view(np.uint16) if array.dtype == ml_dtypes.bfloat16 else array
        for name, array in inputs.items()
    }
    make = onnxruntime.OrtValue
    values = {
        name: make.ortvalue_from_numpy_with_onnx_type(bits[name], onnx.TensorProto.BFLOAT16)
        if array.dtype == ml_dtypes.bfloat16
        else make.ortvalue_from_numpy(array)
        for name, array in inputs.items()
    }
    return {
        name: _to_numpy(value)
        for name, value in zip(names, session.run_with_ort_values(names, values), strict=True)
    }


def _to_numpy(value: onnxruntime.OrtValue) -> np.ndarray:
    if value.data_type() != "tensor(bfloat16)":
        return value.numpy()
    size = 2 * int(np.prod(value.shape(), dtype=np.int64))
    bits = np.frombuffer(ctypes.string_at(value.data_ptr(), size), np.uint16)
    return bits.view(ml_dtypes.bfloat16).reshape(value.shape())


def differences(expected: dict[str, np.ndarray], actual: dict[str, np.ndarray], dtype: str) -> list[str]:
    """What is wrong, a line an output."""
    wrong = []
    tolerance = TOLERANCES[dtype]
    for name, want in expected.items():
        have = actual[name]
        if have.shape != want.shape or have.dtype != want.dtype:
            wrong.append(f"{name}: {have.dtype}{list(have.shape)} for {want.dtype}{list(want.shape)}")
        elif not np.allclose(
            have.astype(np.float64), want.astype(np.float64), rtol=tolerance, atol=tolerance, equal_nan=True
        ):
            error = np.nanmax(np.abs(have.astype(np.float64) - want.astype(np.float64)))
            wrong.append(f"{name}: max abs {error:.3g}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stop", type=int, default=10, help="failures after which to stop")
    parser.add_argument("--trace", action="store_true", help="name each config before it runs")
    arguments = parser.parse_args()
    rng = np.random.default_rng(arguments.seed)
    outcomes: collections.Counter[str] = collections.Counter()
    failures = 0
    for _ in range(arguments.count):
        config = random_config(rng)
        if arguments.trace:
            print(config, file=sys.stderr, flush=True)
        strategy = str(rng.choice(STRATEGIES))
        semantics = str(rng.choice(["ort", "spec"]))
        try:
            outcome, details = judge(config, strategy, semantics, rng)
        except Exception:
            outcome, details = "crash", traceback.format_exc(limit=-3)
        outcomes[outcome] += 1
        if outcome in ("wrong", "crash", "invalid"):
            failures += 1
            print(f"{outcome}: {strategy} {semantics} {config}\n{details}", flush=True)
            if failures >= arguments.stop:
                break
    for outcome, count in sorted(outcomes.items()):
        print(f"{count:7d}  {outcome}")
    return 1 if failures else 0


def judge(config: Config, strategy: str, semantics: str, rng: np.random.Generator) -> tuple[str, str]:
    """One config: right, wrong, invalid, or refused with the reason."""
    inputs = config.make_inputs(rng)
    try:
        lowered = lower(config, strategy, inputs, rng, semantics)
    except rnnlower.RnnLowerError as error:
        return f"refused: {type(error).__name__}: {re.sub(r'^[^:]*: ', '', str(error))}", ""
    try:
        onnx.checker.check_model(lowered, full_check=config.x_dims != "negative")
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        return "invalid", str(error)
    try:
        expected = config.expected(inputs, semantics)
    except ValueError as error:
        return "wrong", f"the oracle refuses ({error}), the lowering does not"
    with np.errstate(all="ignore"):
        wrong = differences(expected, run(lowered, inputs), config.dtype)
    return ("wrong", "\n".join(wrong)) if wrong else ("right", "")


if __name__ == "__main__":
    sys.exit(main())
