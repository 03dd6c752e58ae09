"""Writes docs/quantization.md: lowered models through onnxruntime's quantization.

python docs/quantization.py
"""

from __future__ import annotations

import logging
import pathlib
import sys
from collections.abc import Iterator, Sequence
from importlib import metadata

import numpy as np
import onnx
import onnxruntime

import rnnlower

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "tests"))
from support.quantizing import Network, dynamic, products, static

PAGE = pathlib.Path(__file__).with_name("quantization.md")
STEPS = 25
INTRODUCTION = """\
# Quantization

<!-- Written by docs/quantization.py with {versions}. -->

onnxruntime's tools quantize products with constant weights. `quantize_static` (QDQ) has nothing for LSTM,
GRU and RNN and leaves them in float32; `quantize_dynamic` knows LSTM only, as an operator of onnxruntime's
own (`com.microsoft.DynamicQuantizeLSTM`). A lowered model consists of products:

```sh
rnnlower lower model.onnx -o lowered.onnx --target ort-quantization
```

writes MatMul and Add instead of Gemm: `quantize_dynamic` rewrites a Gemm by transposing its weight in place,
which goes wrong where two Gemms share one, as the time steps of an unrolled graph do. It quantizes the body
of a Scan or Loop with `extra_options={{"EnableSubgraph": True}}`; `quantize_static` does not look into
bodies, so that a model for it has to be unrolled. Both are given `reduce_range=True` here: on x86 processors
without VNNI, onnxruntime's kernels saturate with signed weights of 8 bits, natively as well as lowered.

Below: two layers of 128 units, {steps} steps of 40 features, a linear layer of 12 classes; weights drawn at
random as PyTorch does; calibrated on 8 inputs, judged on 16 others. The error is that of the scores against
the float32 model, beside their standard deviation. *Products* counts the nodes that multiply by weights of
integers, of all that multiply by weights.

| model | form | quantized by | products | bytes before | bytes after | largest error | mean error | std |
|---|---|---|---|---|---|---|---|---|
"""


def page() -> str:
    """The page."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("onnx", "onnxruntime"))
    return INTRODUCTION.format(versions=versions, steps=STEPS) + "\n".join(_rows()) + "\n"


def _rows() -> Iterator[str]:
    for op_type in ("LSTM", "GRU"):
        network = Network(op_type, steps=STEPS)
        dynamic_length = Network(op_type, steps="T").build()
        forms = {
            "native": network.build(),
            "unrolled": rnnlower.lower(network.build(), target="ort-quantization"),
            "Scan": rnnlower.lower(dynamic_length, target="ort-quantization"),
        }
        inputs = [network.inputs(seed, STEPS) for seed in range(100, 116)]
        reference = _scores(forms["native"], inputs)
        for form, model in forms.items():
            assert isinstance(model, onnx.ModelProto)
            for how, quantized in _quantized(network, model):
                scores = _scores(quantized, inputs)
                error = np.abs(scores - reference)
                cells = [op_type, form, how, "{} of {}".format(*products(quantized))]
                cells += [f"{model.ByteSize():,}", f"{quantized.ByteSize():,}"]
                cells += [f"{number:.2g}" for number in (error.max(), error.mean(), reference.std())]
                yield f"| {' | '.join(cells)} |"


def _scores(model: onnx.ModelProto, inputs: Sequence[dict[str, np.ndarray]]) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, ["CPUExecutionProvider"])
    return np.array([session.run(None, each)[0] for each in inputs])


def _quantized(network: Network, model: onnx.ModelProto) -> Iterator[tuple[str, onnx.ModelProto]]:
    def calibration() -> Iterator[dict[str, np.ndarray]]:
        return (network.inputs(seed, STEPS) for seed in range(8))

    yield "`quantize_dynamic`", dynamic(model)
    yield "`quantize_static`, all operators", static(model, calibration())
    yield "`quantize_static`, MatMul only", static(model, calibration(), ["MatMul"])


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    PAGE.write_text(page(), encoding="utf-8")
