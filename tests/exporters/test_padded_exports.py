"""Modules of PyTorch, exported by both exporters, padded, and right on other runtimes. Needs torch."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import onnx
import pytest
from support.runtimes import RUNTIMES

import rnnlower

torch = pytest.importorskip("torch")
nn = torch.nn


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.out = nn.Embedding(40, 16), nn.Linear(48, 7)
        self.lstm = nn.LSTM(16, 24, 2, bidirectional=True, batch_first=True)

    def forward(self, x: Any) -> Any:
        return self.out(self.lstm(self.embedding(x))[0])


class Reader(nn.Module):
    """A CRNN: convolutions and pools over an image, a bidirectional GRU along its width."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(16)])
        self.gru, self.out = nn.GRU(64, 24, bidirectional=True, batch_first=True), nn.Linear(48, 11)

    def forward(self, x: Any) -> Any:
        y = torch.max_pool2d(torch.relu(self.norms[0](self.first(x))), (2, 2))
        y = torch.max_pool2d(torch.relu(self.norms[1](self.second(y))), (2, 1))
        return self.out(self.gru(y.permute(0, 3, 1, 2).flatten(2))[0]).log_softmax(-1)


class Classifier(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru, self.out = nn.GRU(8, 24, bidirectional=True, batch_first=True), nn.Linear(48, 5)

    def forward(self, x: Any) -> Any:
        return self.out(self.gru(x)[0].mean(1)).softmax(-1)


class WithLengths(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(8, 24, bidirectional=True, batch_first=True), nn.Linear(48, 5)

    def forward(self, x: Any, lengths: Any) -> Any:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        y, (h, _) = self.lstm(packed)
        return self.out(nn.utils.rnn.pad_packed_sequence(y, batch_first=True)[0]), torch.cat([h[0], h[1]], -1)


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.first, self.out = nn.Linear(8, 32), nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        return self.out(self.layers(self.first(x)))


class WithAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.attention = nn.Linear(8, 32), nn.MultiheadAttention(32, 4, batch_first=True)
        self.lstm, self.out = nn.LSTM(32, 16, bidirectional=True, batch_first=True), nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        y = self.first(x)
        return self.out(self.lstm(y + self.attention(y, y, y)[0])[0])


MODULES = {
    "tagger": (Tagger, lambda: (torch.randint(0, 40, (1, 13)),), 1),
    "CRNN": (Reader, lambda: (torch.randn(1, 1, 16, 40),), 3),
    "mean": (Classifier, lambda: (torch.randn(1, 13, 8),), 1),
    "lengths": (WithLengths, lambda: (torch.randn(1, 13, 8), torch.tensor([13])), 1),
    "encoder": (Encoder, lambda: (torch.randn(1, 13, 8),), 1),
    "attention": (WithAttention, lambda: (torch.randn(1, 13, 8),), 1),
}
"""For each module its inputs, and the axis of time of the first one."""
EXAMPLE_IN_SHAPES = (("encoder", "torchscript"), ("attention", "torchscript"))
"""Exports in which the length of the example stands in a Reshape: they run at that length alone."""
NOT_EXPORTED = (("lengths", "dynamo"), ("CRNN", "dynamo"))
"""PyTorch 2.13 exports neither packed sequences nor a width that is divided."""
EXPORTS = [
    (name, exporter)
    for name in MODULES
    for exporter in ("torchscript", "dynamo")
    if (name, exporter) not in NOT_EXPORTED
]
TARGETS = [name for name in ("openvino", "tract", "opencv", "ort-qnn") if not RUNTIMES[name].engine.missing]


def exported(name: str, exporter: str, folder: Path) -> tuple[onnx.ModelProto, str]:
    """Return the exported model and the name of its length."""
    kind, example, axis = MODULES[name]
    torch.manual_seed(0)
    module, args, path = kind().eval(), example(), folder / "model.onnx"
    names = ["x", "lengths"][: len(args)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if exporter == "dynamo":
            dynamic = ({axis: torch.export.Dim.DYNAMIC}, *({} for _ in args[1:]))
            program = torch.onnx.export(
                module, args, dynamo=True, dynamic_shapes=dynamic, input_names=names, verbose=False
            )
            program.save(str(path))
        else:
            axes = {"x": {axis: "T"}}
            torch.onnx.export(module, args, str(path), dynamo=False, input_names=names, dynamic_axes=axes)
    model = onnx.load(path)
    return model, model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param


@pytest.mark.parametrize(("name", "exporter"), [each for each in EXPORTS if each not in EXAMPLE_IN_SHAPES])
def test_a_padded_export_is_equal_on_every_runtime(name: str, exporter: str, tmp_path: Path) -> None:
    source, symbol = exported(name, exporter, tmp_path)
    padded = rnnlower.pad(source, max={symbol: 24})
    found = rnnlower.verify(source, padded)
    assert found
    assert max(output.max_abs for output in found.outputs) < 2e-6
    for target in TARGETS:
        lowered = rnnlower.lower(padded, target=target)
        there = rnnlower.verify(source, lowered, on=target, trials=1)
        assert there, f"{target}: {there.problems}"


@pytest.mark.parametrize(("name", "exporter"), EXAMPLE_IN_SHAPES)
def test_an_export_of_one_length_is_refused(name: str, exporter: str, tmp_path: Path) -> None:
    source, symbol = exported(name, exporter, tmp_path)
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"Reshape.*a fixed number of steps, 13"):
        rnnlower.pad(source, max={symbol: 24})
