"""Models that resemble small real networks: several layers, a convolution first, a classifier last."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
from onnx import numpy_helper, parser


def _with_weights(text: str, shapes: dict[str, tuple[int, ...]], **fixed: np.ndarray) -> onnx.ModelProto:
    """Return the model of ``text``, with random initializers of ``shapes`` and those in ``fixed``."""
    model = parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in shapes.items():
        value = (rng.random(shape) - 0.5) * np.sqrt(12.0 / shape[-1])
        model.graph.initializer.append(numpy_helper.from_array(value.astype(np.float32), name))
    for name, value in fixed.items():
        model.graph.initializer.append(numpy_helper.from_array(value, name))
    return model


def _axes(*names: str) -> dict[str, np.ndarray]:
    """Return the numbers from 0 on, under ``names``."""
    return {name: np.array([number], np.int64) for number, name in enumerate(names)}


def _streaming_stack() -> onnx.ModelProto:
    """Return two LSTM layers over a chunk of audio features; the caller keeps the states between chunks."""
    text = """
    <ir_version: 8, opset_import: ["" : 16]>
    streaming (float[1, frames, 8] features, float[2, 1, 12] h_in, float[2, 1, 12] c_in)
        => (float[1, frames, 1] speech, float[2, 1, 12] h_out, float[2, 1, 12] c_out)
    {
        x = Transpose <perm = [1, 0, 2]> (features)
        h_0 = Slice (h_in, zero, one, zero)
        h_1 = Slice (h_in, one, two, zero)
        c_0 = Slice (c_in, zero, one, zero)
        c_1 = Slice (c_in, one, two, zero)
        y_0, h_0_out, c_0_out = LSTM <hidden_size = 12> (x, W_0, R_0, B_0, , h_0, c_0)
        y_0_flat = Squeeze (y_0, one)
        y_1, h_1_out, c_1_out = LSTM <hidden_size = 12> (y_0_flat, W_1, R_1, B_1, , h_1, c_1)
        y_1_flat = Squeeze (y_1, one)
        h_out = Concat <axis = 0> (h_0_out, h_1_out)
        c_out = Concat <axis = 0> (c_0_out, c_1_out)
        batch_first = Transpose <perm = [1, 0, 2]> (y_1_flat)
        logits = MatMul (batch_first, decoder)
        speech = Sigmoid (logits)
    }
    """
    shapes: dict[str, tuple[int, ...]] = {"decoder": (12, 1)}
    for layer, size in enumerate((8, 12)):
        shapes |= {f"W_{layer}": (1, 48, size), f"R_{layer}": (1, 48, 12), f"B_{layer}": (1, 96)}
    return _with_weights(text, shapes, **_axes("zero", "one", "two"))


def _ocr() -> onnx.ModelProto:
    """Build an OCR model: convolution, pooling over the height, bidirectional LSTM over the width, Gemm."""
    text = """
    <ir_version: 7, opset_import: ["" : 12]>
    ocr (float[batch, 1, 8, width] image) => (float[steps, characters] logits)
    {
        edges = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (image, kernel, kernel_bias)
        rectified = Relu (edges)
        pooled = MaxPool <kernel_shape = [8, 2], strides = [8, 2]> (rectified)
        columns = Squeeze <axes = [2]> (pooled)
        x = Transpose <perm = [2, 0, 1]> (columns)
        y = LSTM <hidden_size = 6, direction = "bidirectional"> (x, W, R, B)
        batch_major = Transpose <perm = [2, 0, 1, 3]> (y)
        flat = Reshape (batch_major, rows)
        logits = Gemm <transB = 1> (flat, classes, classes_bias)
    }
    """
    shapes = {
        "kernel": (4, 1, 3, 3),
        "kernel_bias": (4,),
        "W": (2, 24, 4),
        "R": (2, 24, 6),
        "B": (2, 48),
        "classes": (10, 12),
        "classes_bias": (10,),
    }
    return _with_weights(text, shapes, rows=np.array([-1, 12], np.int64))


def _gru_stack() -> onnx.ModelProto:
    """Return two GRU layers with lengths, the first bidirectional, and the last states joined."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    gru_stack (float[time, batch, 6] tokens, int32[batch] lengths)
        => (float[time, batch, 5] encoded, float[batch, 5] summary)
    {
        y_0, h_0 = GRU <hidden_size = 5, direction = "bidirectional", linear_before_reset = 1>
            (tokens, W_0, R_0, B_0, lengths)
        y_0_batch = Transpose <perm = [0, 2, 1, 3]> (y_0)
        y_0_flat = Reshape (y_0_batch, joined)
        y_1, h_1 = GRU <hidden_size = 5, linear_before_reset = 1> (y_0_flat, W_1, R_1, B_1, lengths)
        encoded = Squeeze (y_1, one)
        summary = Squeeze (h_1, zero)
    }
    """
    shapes = {"W_0": (2, 15, 6), "R_0": (2, 15, 5), "B_0": (2, 30)}
    shapes |= {"W_1": (1, 15, 10), "R_1": (1, 15, 5), "B_1": (1, 30)}
    joined = np.array([0, 0, -1], np.int64)
    return _with_weights(text, shapes, joined=joined, **_axes("zero", "one"))


def _denoiser() -> onnx.ModelProto:
    """Build a denoiser: a mask for each frame, from a layer, two GRUs that start at zero, and two layers."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    denoiser (float[1, frames, 9] spectrum) => (float[1, frames, 9] mask)
    {
        wide = MatMul (spectrum, first)
        biased = Add (wide, first_bias)
        x = Transpose <perm = [1, 0, 2]> (biased)
        sizes = Shape (x)
        batch = Gather <axis = 0> (sizes, one)
        states = Concat <axis = 0> (one, batch, units)
        zeros = ConstantOfShape (states)
        y_0 = GRU <hidden_size = 12, linear_before_reset = 1> (x, W_0, R_0, B_0, , zeros)
        y_0_flat = Squeeze (y_0, one)
        y_1 = GRU <hidden_size = 12, linear_before_reset = 1> (y_0_flat, W_1, R_1, B_1, , zeros)
        y_1_flat = Squeeze (y_1, one)
        batch_first = Transpose <perm = [1, 0, 2]> (y_1_flat)
        hidden = MatMul (batch_first, second)
        rectified = Relu (hidden)
        logits = MatMul (rectified, third)
        mask = Sigmoid (logits)
    }
    """
    shapes: dict[str, tuple[int, ...]] = {"first": (9, 12), "first_bias": (12,)}
    shapes |= {"second": (12, 16), "third": (16, 9)}
    for layer in range(2):
        shapes |= {f"W_{layer}": (1, 36, 12), f"R_{layer}": (1, 36, 12), f"B_{layer}": (1, 72)}
    model = _with_weights(text, shapes, one=np.array([1], np.int64), units=np.array([12], np.int64))
    for number, node in enumerate(n for n in model.graph.node if n.op_type == "GRU"):
        node.name = f"gru_{number}"
    return model


NETWORKS: dict[str, tuple[str, Callable[[], onnx.ModelProto]]] = {
    "streaming_lstm_stack": (
        "Two LSTM layers with states in and out, as a voice activity detector runs them chunk by chunk.",
        _streaming_stack,
    ),
    "denoiser_gru": (
        "A mask for each frame of a noisy recording by two GRUs: what `rnnlower stream` is for.",
        _denoiser,
    ),
    "ocr_conv_bilstm_gemm": (
        "Conv, pooling, bidirectional LSTM and Gemm with dynamic batch and width, as a text recognizer.",
        _ocr,
    ),
    "gru_two_layers_dynamic": (
        "A bidirectional GRU below a forward one, dynamic time and batch, lengths at run time.",
        _gru_stack,
    ),
}
"""The reason and the maker of every network, by file name without ``.onnx``."""
