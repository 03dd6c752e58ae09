"""Write docs/quantization.md: lowered models through onnxruntime's quantization.

python docs/quantization.py  # needs pip install -e ".[test,runtimes]"
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
sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "benchmarks"))
from quantized import (
    HEADER,
    REAL_HEADER,
    STOCK_HEADER,
    real,
    real_rows,
    rows,
    runtime_table,
    small,
    stock_rows,
)
from support.quantizing import Network, dynamic, half, products, static

PAGE = pathlib.Path(__file__).with_name("quantization.md")
STEPS = 25
INTRODUCTION = """\
# Quantization

<!-- Written by docs/quantization.py with {versions}. -->

`rnnlower quantize` computes LSTM, GRU and RNN in integers: static scales, one for each role of values
(the state, a gate, a sum), whatever the number of steps. onnxruntime's own tools, further down, leave the
recurrence in float32 or give each step of a straight line scales of its own.

You need `model.onnx`, a float32 model with an input `X`, and `samples.npz`, whose array `X` holds some
typical inputs, stacked.

## Integers in the recurrence

```sh
rnnlower quantize model.onnx -o quantized.onnx --calibration samples.npz
rnnlower quantize model.onnx -o wide.onnx --calibration samples.npz --activations int16
rnnlower calibrate model.onnx samples.npz -o calibration.npz --ranges ranges.json
rnnlower quantize model.onnx -o again.onnx --calibration ranges.json --inputs samples.npz
```

- Three of four recordings give the ranges, over all of their steps; every fourth is set aside, and the result
  is measured on it: the ratio of signal to noise (SQNR, in dB), overall and for each quarter of the sequence,
  of the file as it is written and in onnxruntime's default session. Below `--min-sqnr` (20) the exit code is
  1 and nothing is written. On x86 processors without VNNI, products of uint8 and int8 saturate in the default
  session: its ratio is then shown, with a warning, but not counted. `-v` shows the scale of each role, and
  the share of values that it clips.
- A result is not equal to its source, but its quantizers are in the right places: with scales too small to
  round anything, it equals the float model. That is checked each time, too.
- `--activations int8`: weights have 8 bits, one scale for each output channel; X and H have 8 bits where
  they enter a product; all else has 16, with ranges twice as large as those that were seen (`--headroom`).
  `int16` and `uint16`: every activation has 16 bits (W8A16). `int8-only`: every one has 8, which loses much
  of a long memory, for devices that have nothing else.
- `--scheme pow2` makes every scale a power of two and every zero point 0. `--scheme tflite` takes the
  integers of TensorFlow Lite's LSTM, which CMSIS-NN computes, too: X and H int8, sums Q3.12, gates Q0.15,
  C int16 with a power of two, biases int32, one scale for the weight of a gate. It refuses GRU and RNN.
- Up to 32 steps become a straight line, more of them or a dynamic length a Scan (a Loop where the target has
  no Scan), with QuantizeLinear and DequantizeLinear inside of its body (`--strategy`). The rest of the model
  is quantized by onnxruntime's tool, or stays in float32 (`--recurrent-only`).
- Models of `rnnlower stream` are called chunk by chunk, with their states carried: `calibrate` writes the
  inputs and states of each call, for onnxruntime (`--format npz`, `python`), RKNN and QNN. Steps at the end
  of a recording that do not fill a chunk are left out, with a note.
- `rnnlower verify model.onnx quantized.onnx --tolerance int8 --inputs recording.npz` compares the two; inputs
  that are generated exceed the ranges of the calibration.
- `--integer-states` makes int16 of the state inputs and outputs of such a model; notes give their scales.
- 16-bit integers are for NPUs. onnxruntime's CPU kernels have none: between QuantizeLinear and
  DequantizeLinear it computes in float32, slower than the float model.

Models whose gates forget over 50 steps in half of the units, trained on averages of the last 50 steps
(`benchmarks/trained.py`); weights drawn at random would forget an error as fast as everything else, and look
too good. Calibrated on 24 sequences of 200 steps, measured on 8 others. *Scan* and *straight line* are the
sizes of the files next to float32's, the line of 30 steps; *scales* those of activations in the Scan, and in
the line:

{long_memory}

The same straight line of 30 steps by `quantize_static` alone, whose scales grow with the steps:

{stock}

Step models of speech, whose states are carried from call to call, on sounds like speech: a published voice
activity detector (512 samples a call; its convolutions stay in float32), and a denoiser of two GRUs with 400
units between linear layers, trained for this page (a frame a call). The times are those of a call in
onnxruntime's default session, on one thread:

{real}

The same files on other runtimes (`--on`): *exact*, or by how many dB the result is better or worse than the
file as it is written. A runtime with better figures computes in float32 what the file says in integers, as
OpenVINO does between quantizers of 16 bits (`quantize --target openvino` says so); what is wrong is below
`--min-sqnr`, which refuses it:

{real_there}

Straight lines of 20 steps with 32 units there:

{small_there}

`--target` refuses what a runtime is known not to compute: `rnnlower probe` asks for the product of each kind
of activations.

## onnxruntime's own tools

They quantize products with constant weights. `quantize_static` (QDQ) leaves LSTM,
GRU and RNN in float32; `quantize_dynamic` supports only LSTM, as an operator of onnxruntime's
own (`com.microsoft.DynamicQuantizeLSTM`). A lowered model consists of products, which both of them quantize.
The steps below: lower, quantize one way or the other, compare. A test runs them, for LSTM and GRU.

You also need `sample.npz`, whose array `X` is another input.

## 1. Lower

```sh
rnnlower lower model.onnx -o lowered.onnx --target ort-quantization
```

writes MatMul and Add instead of Gemm: `quantize_dynamic` rewrites a Gemm by transposing its weight in place,
which goes wrong if two Gemms share one, as the time steps of an unrolled graph do. A few steps become a
straight line; many steps, or a dynamic length, become a Scan. `quantize_static` ignores bodies: it quantizes
the products before and after a Scan, and the recurrent ones stay in float32 (5 of 9 products in the
table below). To quantize all of them, avoid the Scan: fix the length (`--dim T=16`), or use `unroll`.
`--gates separate` gives each gate a product, and so a range, of its own.

## 2. Dynamic: 8-bit weights, ranges at run time

```python
from onnxruntime.quantization import QuantType, quantize_dynamic

quantize_dynamic(
    "lowered.onnx",
    "dynamic.onnx",
    weight_type=QuantType.QInt8,
    reduce_range=True,  # on x86 processors without VNNI, signed weights of 8 bits saturate
    extra_options={{"EnableSubgraph": True}},  # the body of a Scan or Loop, too
)
```

## 3. Static: ranges from samples

```python
import numpy as np
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static


class Samples(CalibrationDataReader):
    def __init__(self):
        self.samples = iter(np.load("samples.npz")["X"])

    def get_next(self):
        sample = next(self.samples, None)
        return None if sample is None else {{"X": sample}}


quantize_static(
    "lowered.onnx",
    "static.onnx",
    Samples(),
    quant_format=QuantFormat.QDQ,
    weight_type=QuantType.QInt8,
    reduce_range=True,
    op_types_to_quantize=["MatMul"],
)
```

With `MatMul` alone, sums and activations stay in float32, which costs few bytes and preserves accuracy. For
an NPU that needs integers throughout, leave out `op_types_to_quantize`.

## 4. Compare

```sh
rnnlower verify model.onnx dynamic.onnx --inputs sample.npz --atol 0.1
rnnlower verify model.onnx static.onnx --inputs sample.npz --atol 0.1
```

Compare on typical inputs: generated ones exceed the ranges of the samples. Expect an error of a few
percent of an output's spread, and more if it integrates over many steps. Set `--atol` to what the
model's task allows; the table shows the error next to the standard deviation of the scores.

## Accuracy and size of each step

Two layers of 128 units, {steps} steps of 40 features, a linear layer of 12 classes; weights drawn at
random as PyTorch does; calibrated on 8 inputs, judged on 16 others. The error is that of the scores against
the float32 model, next to their standard deviation. *Products* counts the nodes that multiply by integer
weights, of all that multiply by weights.

| model | form | quantized by | products | bytes before | bytes after | largest error | mean error | std |
|---|---|---|---|---|---|---|---|---|
"""
QUANTIZED = """
## Models that are quantized already

- **DynamicQuantizeLSTM**, which `quantize_dynamic` makes from an LSTM: `unroll`, `scan`, `loop` and `lower`
  rewrite it into DynamicQuantizeLinear, MatMulInteger and the float cell, with the same bits as onnxruntime's
  kernel on one thread. (With several, the kernel rounds the rows of each thread separately; the
  verification runs the source with one. Peepholes are added in another order: within 1e-6, unless a value is
  then rounded to another step.) For a target without these operators, the error names them.
- `--dequantize` makes it a float LSTM first: its weights are the dequantized integers, int8 in the file and
  before a DequantizeLinear, or float32 if the target lacks that operator. X and H are no longer rounded, so
  the numbers are not the source's: the verification reads the source the same way, and so does
  `rnnlower verify model.onnx lowered.onnx --dequantize`.
  A DynamicQuantizeLinear that follows, for example before a quantized linear layer, may round a float to the
  step next to the source's (60, not 59), since the floats differ by rounding. The output then differs by more
  than rounding, and the verification shows that this is the only cause ([verification.md](verification.md)).
  `--atol` excuses nothing: set it to what the task allows.
- **Weights from a DequantizeLinear** (one scale, one for each row or column, blocks; int8, int4): each group
  of gates keeps its integers, with a DequantizeLinear in front of its product.

Two layers as above, by `quantize_dynamic`, then lowered to a Scan; the difference is that of the scores from
the quantized source, run with one thread:

| form | bytes | largest difference |
|---|---|---|
"""
HALF = """
## float16

onnxruntime's native kernels compute float16 in float32 and round at the end. Lowered, each operator rounds;
`--compute-type float32` puts Casts around the recurrence, and weights stay float16 in the file. If a
result differs by more than rounding explains, the message names the option; for a runtime that sums products
of float16 in float16, `lower` sets it automatically. A layer of
128 units over 50 steps, with weights 4 times as large as above, so that errors grow; the difference of the
scores from those of the native kernel, the largest and the mean:

| model | form | float16, largest | mean | `--compute-type float32`, largest | mean |
|---|---|---|---|---|---|
"""


def page() -> str:
    """Return the page."""
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("onnx", "onnxruntime"))
    introduction = INTRODUCTION.format(
        versions=versions,
        steps=STEPS,
        long_memory="\n".join([HEADER, *rows()]),
        stock="\n".join([STOCK_HEADER, *stock_rows()]),
        real="\n".join([REAL_HEADER, *real_rows()]),
        real_there="\n".join(runtime_table(real())),
        small_there="\n".join(runtime_table(small())),
    )
    parts = [introduction, *_rows()]
    parts += [QUANTIZED, *_quantized_rows(), HALF, *_half_rows()]
    return "".join(parts)


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
                yield f"| {' | '.join(cells)} |\n"


def _quantized_rows() -> Iterator[str]:
    """Yield DynamicQuantizeLSTM, exactly and dequantized."""
    network = Network("LSTM", steps="T")
    source = dynamic(network.build())
    inputs = [network.inputs(seed, STEPS) for seed in range(100, 116)]
    reference = _scores(source, inputs)
    forms = {"source": source, "exact": rnnlower.scan(source)}
    forms["`--dequantize`"] = rnnlower.scan(source, dequantize=True)
    for name, model in forms.items():
        assert isinstance(model, onnx.ModelProto)
        difference = np.abs(_scores(model, inputs) - reference).max()
        yield f"| {name} | {model.ByteSize():,} | {difference:.2g} |\n"


def _half_rows() -> Iterator[str]:
    """Yield float16 recurrences, computed in float16 and in float32."""
    for op_type in ("LSTM", "GRU"):
        network = Network(op_type, steps=50, layers=1)
        model = half(network.build(scale=4))
        inputs = [{"X": network.inputs(seed)["X"].astype(np.float16)} for seed in range(8)]
        reference = _scores(model, inputs).astype(float)
        for form in ("unroll", "scan"):
            cells = [op_type, form]
            for compute_type in (None, "float32"):
                lowered = getattr(rnnlower, form)(model, compute_type=compute_type)
                errors = np.abs(_scores(lowered, inputs) - reference)
                cells += [f"{errors.max():.2g}", f"{errors.mean():.2g}"]
            yield f"| {' | '.join(cells)} |\n"


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
