"""Trained models: long memory, and a denoiser of speech; and recordings like speech. Needs PyTorch.

Training starts from weights that remember (`long_memory.py`), and keeps half of the units slow: what is to be
learned are averages over the last 50 steps.
"""

from __future__ import annotations

import functools
import itertools

import numpy as np
import onnx
from long_memory import CLASSES, FEATURES, MEMORY, LongMemory, recordings
from onnx import helper, numpy_helper

BINS, UNITS, RATE, HOP, WINDOW = 257, 400, 16000, 256, 512

_TORCH_ROWS = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2)}
"""The gates of PyTorch's weights, as numbers of ONNX's."""


@functools.cache
def train(shape: LongMemory, iterations: int = 100) -> onnx.ModelProto:
    """Return the model after training, with a dynamic length."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = shape.build()
    weights = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
    widths = [FEATURES, shape.units][: shape.layers]
    names = ["first", "second"][: shape.layers]
    both = shape.direction == "bidirectional"
    cells = [getattr(torch.nn, shape.op_type)(width, shape.units, bidirectional=both) for width in widths]
    head = torch.nn.Linear(shape.units * (1 + both), CLASSES, bias=False)
    for name, cell in zip(names, cells, strict=True):
        _copy(weights, name, cell, shape, into_torch=True)
    if "head" in weights:
        head.weight.data = torch.tensor(weights["head"].T)
    parameters = [each for module in (*cells, head) for each in module.parameters()]
    optimizer = torch.optim.Adam(parameters, 2e-3)
    for iteration in range(iterations):
        x = torch.tensor(np.concatenate(recordings(16, 200, 1000 + iteration), 1))
        value = x
        for cell in cells:
            value, _ = cell(value)
        loss = torch.mean((head(value) - _averages(x)) ** 2)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
    for name, cell in zip(names, cells, strict=True):
        _copy(weights, name, cell, shape, into_torch=False)
    if "head" in weights:
        weights["head"] = head.weight.detach().numpy().T.copy()
    for each in model.graph.initializer:
        each.CopyFrom(numpy_helper.from_array(weights[each.name], each.name))
    return model


def _averages(x):  # type: ignore[no-untyped-def]
    """Return averages of the first features over the last steps, ``[steps, rows, CLASSES]``."""
    import torch

    average, averages = torch.zeros_like(x[0, :, :CLASSES]), []
    for step in x[..., :CLASSES]:
        average = average + (step - average) / MEMORY
        averages.append(average)
    return 3 * torch.stack(averages)


def _copy(weights, name, cell, shape, *, into_torch):  # type: ignore[no-untyped-def]
    """Copy the weights of a layer from ONNX's order of gates to PyTorch's, or back."""
    import torch

    order = _TORCH_ROWS[shape.op_type]
    order = order if into_torch else tuple(order.index(gate) for gate in range(len(order)))
    for direction, suffix in enumerate(["", "_reverse"][: weights[f"{name}.W"].shape[0]]):
        for letter, kinds in (("W", ["weight_ih"]), ("R", ["weight_hh"]), ("B", ["bias_ih", "bias_hh"])):
            parts = np.split(weights[f"{name}.{letter}"][direction], len(kinds))
            for index, kind in enumerate(kinds):
                parameter = getattr(cell, f"{kind}_l0{suffix}")
                given = parts[index] if into_torch else parameter.detach().numpy()
                rows = np.split(given, len(order))
                sorted_rows = np.concatenate([rows[gate] for gate in order])
                if into_torch:
                    parameter.data = torch.tensor(sorted_rows)
                else:
                    parts[index] = sorted_rows
            if not into_torch:
                changed = weights[f"{name}.{letter}"].copy()
                changed[direction] = np.concatenate(parts)
                weights[f"{name}.{letter}"] = changed


def speech_like(draw: np.random.Generator, samples: int) -> np.ndarray:
    """Return harmonics of a voice that comes and goes, with some noise: ``[samples]``."""
    time = np.arange(samples) / RATE
    pitch = 2 * np.pi * np.cumsum(120 + 20 * np.sin(4 * time + draw.uniform(0, 6))) / RATE
    voice = sum(np.sin(number * pitch) / number for number in range(1, 20))
    spoken = np.sin(15 * time + draw.uniform(0, 6)) > -0.2
    return (0.1 * voice * spoken + 0.005 * draw.normal(size=samples)).astype(np.float32)


def spectra(draw: np.random.Generator, frames: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a noisy voice as log powers, ``[frames, 1, BINS]``, and the mask that removes the noise."""
    samples = HOP * (frames + 1)
    voice = speech_like(draw, samples)
    noise = np.convolve(draw.normal(size=samples), [1, -0.9 * draw.uniform()], "same") * draw.uniform(
        0.01, 0.1
    )
    windows = np.lib.stride_tricks.sliding_window_view(np.stack([voice, noise]), WINDOW, 1)[:, ::HOP]
    powers = np.abs(np.fft.rfft(windows * np.hanning(WINDOW))) ** 2
    mask = powers[0] / (powers.sum(0) + 1e-9)
    return np.log10(powers.sum(0) + 1e-6)[:, None].astype(np.float32), mask[:, None].astype(np.float32)


@functools.cache
def denoiser(iterations: int = 60) -> onnx.ModelProto:
    """Return a trained denoiser like nsnet2: a linear layer, two GRUs of 400 units, three linear layers."""
    import torch

    torch.manual_seed(0)
    torch.set_num_threads(1)
    draw = np.random.default_rng(0)
    before = torch.nn.Linear(BINS, UNITS)
    cells = torch.nn.GRU(UNITS, UNITS, 2)
    sizes = (UNITS, 600, 600, BINS)
    after = [torch.nn.Linear(*pair) for pair in itertools.pairwise(sizes)]
    parameters = [each for module in (before, cells, *after) for each in module.parameters()]
    optimizer = torch.optim.Adam(parameters, 1e-3)
    for _ in range(iterations):
        drawn = [spectra(draw, 100) for _ in range(8)]
        x, mask = (torch.tensor(np.concatenate(each, 1)) for each in zip(*drawn, strict=True))
        value, _ = cells(before(x))
        for layer in after[:-1]:
            value = torch.relu(layer(value))
        loss = torch.mean((torch.sigmoid(after[-1](value)) - mask) ** 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return _denoiser_model(before, cells, after)


def _denoiser_model(before, cells, after) -> onnx.ModelProto:  # type: ignore[no-untyped-def]
    nodes, weights = [], [numpy_helper.from_array(np.array([1], np.int64), "axis")]

    def linear(name: str, layer: object, source: str, activation: str) -> str:
        for letter, array in (("w", layer.weight.T), ("b", layer.bias)):  # type: ignore[attr-defined]
            weights.append(numpy_helper.from_array(array.detach().numpy().copy(), f"{name}.{letter}"))
        nodes.append(
            helper.make_node("MatMul", [source, f"{name}.w"], [f"{name}.product"], f"{name}_product")
        )
        nodes.append(
            helper.make_node("Add", [f"{name}.product", f"{name}.b"], [f"{name}.sum"], f"{name}_sum")
        )
        if activation:
            nodes.append(helper.make_node(activation, [f"{name}.sum"], [f"{name}.y"], f"{name}_y"))
        return f"{name}.{'y' if activation else 'sum'}"

    value = linear("before", before, "spectrum", "")
    for number in range(2):
        rows = {
            letter: np.concatenate(
                [
                    np.concatenate([np.split(array.detach().numpy(), 3)[gate] for gate in (1, 0, 2)])
                    for array in (getattr(cells, f"{kind}_l{number}") for kind in kinds)
                ]
            )[None]
            for letter, kinds in (("W", ["weight_ih"]), ("R", ["weight_hh"]), ("B", ["bias_ih", "bias_hh"]))
        }
        names = [f"gru{number}.{letter}" for letter in rows]
        weights += map(numpy_helper.from_array, rows.values(), names)
        result = f"gru{number}.y"
        options = {"hidden_size": UNITS, "linear_before_reset": 1}
        nodes.append(helper.make_node("GRU", [value, *names], [f"{result}4"], f"gru{number}", **options))
        nodes.append(helper.make_node("Squeeze", [f"{result}4", "axis"], [result], f"squeeze{number}"))
        value = result
    for number, layer in enumerate(after):
        value = linear(f"after{number}", layer, value, "Relu" if number < 2 else "Sigmoid")
    nodes.append(helper.make_node("Identity", [value], ["mask"], "result"))
    X, mask = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["T", 1, BINS])
        for name in ("spectrum", "mask")
    )
    graph = helper.make_graph(nodes, "denoiser", [X], [mask], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
