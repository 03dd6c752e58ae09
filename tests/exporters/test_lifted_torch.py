"""Cells of PyTorch in Python loops, exported in both ways and lifted; and what must stay. Needs torch."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import rnnlower

torch = pytest.importorskip("torch")

T, B, FEATURES, H = 3, 2, 5, 4
RECURRENT = ("GRU", "LSTM", "RNN")
nn, sigmoid, tanh = torch.nn, torch.sigmoid, torch.tanh
Run = Callable[[Any, Any], Any]


@dataclasses.dataclass
class Kind:
    """A way to write a recurrence: its layers, what they compute of x, and the operators that it is."""

    layers: Callable[[], dict[str, Any]]
    run: Run
    becomes: Sequence[str]


class Module(nn.Module):
    def __init__(self, kind: Kind) -> None:
        super().__init__()
        self.layers, self.run = nn.ModuleDict(kind.layers()), kind.run

    def forward(self, x: Any) -> Any:
        return self.run(self.layers, x)


def zeros(x: Any) -> Any:
    return torch.zeros(x.shape[1], H)


def lstm(
    layers: Any, x: Any, *, order: Sequence[int] = range(T), name: str = "cell"
) -> tuple[list[Any], Any]:
    h, c, out = zeros(x), zeros(x), []
    for t in order:
        h, c = layers[name](x[t], (h, c))
        out.append(h)
    return out, c


def each(step: Callable[[Any, Any, Any], Any]) -> Run:
    """Return a run that stacks the states of a cell with one state."""

    def run(layers: Any, x: Any) -> Any:
        h, out = zeros(x), []
        for t in range(T):
            h = step(layers, x[t], h)
            out.append(h)
        return torch.stack(out)

    return run


def pair(step: Callable[..., Any]) -> Run:
    """Return a run that stacks the first state of a cell with two."""

    def run(layers: Any, x: Any) -> Any:
        h, c, out = zeros(x), zeros(x), []
        for t in range(T):
            h, c = step(layers, x[t], h, c)
            out.append(h)
        return torch.stack(out)

    return run


def linears(*names: str, size: int = FEATURES + H) -> Callable[[], dict[str, Any]]:
    return lambda: {name: nn.Linear(size, H) for name in names}


def both(x: Any, h: Any) -> Any:
    return torch.cat([x, h], 1)


def joined_gates(layers: Any, x: Any, h: Any, c: Any) -> Any:
    i, f, g, o = layers["all"](both(x, h)).chunk(4, 1)
    c = sigmoid(f) * c + sigmoid(i) * tanh(g)
    return sigmoid(o) * tanh(c), c


def separate_gates(layers: Any, x: Any, h: Any, c: Any) -> Any:
    i, f, o = (sigmoid(layers[gate](both(x, h))) for gate in "ifo")
    c = f * c + i * tanh(layers["g"](both(x, h)))
    return o * tanh(c), c


def peepholes(layers: Any, x: Any, h: Any, c: Any) -> Any:
    i, f, g, o = layers["all"](both(x, h)).chunk(4, 1)
    p = layers["p"].weight
    new = sigmoid(f + p[0] * c) * c + sigmoid(i + p[1] * c) * tanh(g)
    return sigmoid(o + p[2] * new) * tanh(new), new


def coupled(layers: Any, x: Any, h: Any, c: Any) -> Any:
    f, o = (sigmoid(layers[gate](both(x, h))) for gate in "fo")
    c = f * c + (1 - f) * tanh(layers["g"](both(x, h)))
    return o * tanh(c), c


def forgetless(layers: Any, x: Any, h: Any, c: Any) -> Any:
    i, o = (sigmoid(layers[gate](both(x, h))) for gate in "io")
    c = c + i * tanh(layers["g"](both(x, h)))
    return o * tanh(c), c


def hard(layers: Any, x: Any, h: Any, c: Any) -> Any:
    i, f, o = (nn.functional.hardsigmoid(layers[gate](both(x, h))) for gate in "ifo")
    c = f * c + i * tanh(layers["g"](both(x, h)))
    return o * tanh(c), c


def gru_before(layers: Any, x: Any, h: Any) -> Any:
    z, r = (sigmoid(layers[gate](both(x, h))) for gate in "zr")
    return (1 - z) * tanh(layers["n"](both(x, r * h))) + z * h


def gru_after(layers: Any, x: Any, h: Any) -> Any:
    xz, xr, xn = layers["x"](x).chunk(3, 1)
    hz, hr, hn = layers["h"](h).chunk(3, 1)
    n, z = tanh(xn + sigmoid(xr + hr) * hn), sigmoid(xz + hz)
    return n + z * (h - n)


def gru_other_sense(layers: Any, x: Any, h: Any) -> Any:
    z, r = (sigmoid(layers[gate](both(x, h))) for gate in "zr")
    return h + z * (tanh(layers["n"](both(x, r * h))) - h)


def minimal(layers: Any, x: Any, h: Any) -> Any:
    f = sigmoid(layers["f"](both(x, h)))
    return (1 - f) * h + f * tanh(layers["n"](both(x, f * h)))


def elman(layers: Any, x: Any, h: Any) -> Any:
    return tanh(layers["x"](x) + layers["h"](h))


def last_only(layers: Any, x: Any) -> Any:
    return lstm(layers, x)[0][-1]


def all_and_last(layers: Any, x: Any) -> Any:
    out, c = lstm(layers, x)
    return torch.stack(out), out[-1], c


def batch_first(layers: Any, x: Any) -> Any:
    x, h, out = x.transpose(0, 1), zeros(x), []
    for t in range(T):
        h = layers["cell"](x[:, t], h)
        out.append(h.unsqueeze(1))
    return torch.cat(out, 1)


def unbound(layers: Any, x: Any) -> Any:
    h, out = zeros(x), []
    for element in x.unbind(0):
        h = layers["cell"](element, h)
        out.append(h)
    return torch.stack(out)


def without_a_state(layers: Any, x: Any) -> Any:
    state, out = None, []
    for t in range(T):
        state = layers["cell"](x[t], state)
        out.append(state[0])
    return torch.stack(out)


def in_one_step(layers: Any, x: Any) -> Any:
    first, second, out = (zeros(x), zeros(x)), (zeros(x), zeros(x)), []
    for t in range(T):
        first = layers["one"](x[t], first)
        second = layers["two"](first[0], second)
        out.append(second[0])
    return torch.stack(out)


def one_after_another(layers: Any, x: Any) -> Any:
    return each(lambda layers, x, h: layers["two"](x, h))(layers, torch.stack(lstm(layers, x, name="one")[0]))


def backward(layers: Any, x: Any) -> Any:
    return torch.stack(lstm(layers, x, order=range(T - 1, -1, -1))[0][::-1])


def bidirectional(layers: Any, x: Any) -> Any:
    forward = lstm(layers, x, name="one")[0]
    back = lstm(layers, x, order=range(T - 1, -1, -1), name="two")[0][::-1]
    return torch.cat([torch.stack(forward), torch.stack(back)], 2)


def hoisted(layers: Any, x: Any) -> Any:
    h, out, products = zeros(x), [], layers["x"](x)
    for t in range(T):
        h = tanh(products[t] + layers["h"](h))
        out.append(h)
    return torch.stack(out)


def one_row(layers: Any, x: Any) -> Any:
    h, out = torch.zeros(H), []
    for t in range(T):
        h = tanh(layers["x"](x[t, 0]) + layers["h"](h))
        out.append(h)
    return torch.stack(out)


def projected(layers: Any, x: Any) -> Any:
    h, c, out = zeros(x), zeros(x), []
    for t in range(T):
        h, c = joined_gates(layers, x[t], h, c)
        h = layers["p"](h)
        out.append(h)
    return torch.stack(out)


def of(cell: Any, **more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"cell": cell(FEATURES, H, **more)}


def two(first: Any, second: Any, size: int = H) -> Callable[[], dict[str, Any]]:
    return lambda: {"one": first(FEATURES, H), "two": second(size, H)}


def four() -> dict[str, Any]:
    return {"all": nn.Linear(FEATURES + H, 4 * H)}


def product(size: int = H, **more: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {"x": nn.Linear(FEATURES, size), "h": nn.Linear(H, size, **more)}


def cell(layers: Any, x: Any, h: Any) -> Any:
    return layers["cell"](x, h)


def stacked(layers: Any, x: Any) -> Any:
    return torch.stack(lstm(layers, x)[0])


def masked(layers: Any, x: Any) -> Any:
    h, out = zeros(x), []
    for t in range(T):
        h = torch.where(x[t, :, :1] > 0, layers["cell"](x[t], h), h)
        out.append(h)
    return torch.stack(out)


LIFTED = {
    "LSTMCell": Kind(of(nn.LSTMCell), stacked, ["LSTM"]),
    "LSTMCell, the last state": Kind(of(nn.LSTMCell), last_only, ["LSTM"]),
    "LSTMCell, all states and the last": Kind(of(nn.LSTMCell), all_and_last, ["LSTM"]),
    "LSTMCell without bias": Kind(of(nn.LSTMCell, bias=False), stacked, ["LSTM"]),
    "LSTMCell without a first state": Kind(of(nn.LSTMCell), without_a_state, ["LSTM"]),
    "LSTMCell backward": Kind(of(nn.LSTMCell), backward, ["LSTM"]),
    "LSTMCell in both directions": Kind(two(nn.LSTMCell, nn.LSTMCell, FEATURES), bidirectional, ["LSTM"]),
    "two LSTMCells in a step": Kind(two(nn.LSTMCell, nn.LSTMCell), in_one_step, ["LSTM", "LSTM"]),
    "LSTMCells, then GRUCells": Kind(two(nn.LSTMCell, nn.GRUCell), one_after_another, ["GRU", "LSTM"]),
    "GRUCell": Kind(of(nn.GRUCell), each(cell), ["GRU"]),
    "GRUCell without bias": Kind(of(nn.GRUCell, bias=False), each(cell), ["GRU"]),
    "GRUCell, batch first": Kind(of(nn.GRUCell), batch_first, ["GRU"]),
    "GRUCell, unbound": Kind(of(nn.GRUCell), unbound, ["GRU"]),
    "RNNCell": Kind(of(nn.RNNCell), each(cell), ["RNN"]),
    "RNNCell of relu": Kind(of(nn.RNNCell, nonlinearity="relu"), each(cell), ["RNN"]),
    "one product": Kind(four, pair(joined_gates), ["LSTM"]),
    "a product for each gate": Kind(linears(*"ifgo"), pair(separate_gates), ["LSTM"]),
    "peepholes": Kind(lambda: {**four(), "p": nn.Linear(H, 3)}, pair(peepholes), ["LSTM"]),
    "coupled gates": Kind(linears(*"fgo"), pair(coupled), ["LSTM"]),
    "no forget gate": Kind(linears(*"igo"), pair(forgetless), ["LSTM"]),
    "hard sigmoids": Kind(linears(*"ifgo"), pair(hard), ["LSTM"]),
    "a projection": Kind(lambda: {**four(), "p": nn.Linear(H, H, bias=False)}, projected, ["LSTM"]),
    "reset before the product": Kind(linears(*"zrn"), each(gru_before), ["GRU"]),
    "reset after the product": Kind(product(3 * H), each(gru_after), ["GRU"]),
    "the other sense of the update gate": Kind(linears(*"zrn"), each(gru_other_sense), ["GRU"]),
    "a minimal gated unit": Kind(linears(*"fn"), each(minimal), ["GRU"]),
    "two products": Kind(product(), each(elman), ["RNN"]),
    "the input's product before the loop": Kind(product(), hoisted, ["RNN"]),
    "one row": Kind(product(), one_row, ["RNN"]),
    "a mask that is no prefix": Kind(of(nn.GRUCell), masked, ["GRU"]),
}


def attending(layers: Any, x: Any, h: Any) -> Any:
    scores = torch.softmax((x.unsqueeze(1) * h.unsqueeze(2)).sum(1), 1)
    return layers["cell"](scores * x, h)


def normalized(layers: Any, x: Any, h: Any) -> Any:
    return tanh(layers["norm"](layers["x"](x) + layers["h"](h)))


def zoneout(layers: Any, x: Any, h: Any) -> Any:
    return 0.1 * h + 0.9 * layers["cell"](x, h)


def residual(layers: Any, x: Any, h: Any) -> Any:
    return layers["cell"](x, h) + x.sum(1, keepdim=True)


def rounded(layers: Any, x: Any, h: Any) -> Any:
    return torch.round(layers["cell"](x, h) * 128) / 128


def fed_back(layers: Any, x: Any, h: Any) -> Any:
    return layers["cell"](x + torch.relu(layers["out"](h)), h)


def inner_cells(layers: Any, x: Any) -> Any:
    h, c, out = zeros(x), zeros(x), []
    for t in range(T):
        h, c = layers["cell"](x[t], (h, c))
        out.append(c)
    return torch.stack(out)


def run_time_weights(layers: Any, x: Any, h: Any) -> Any:
    return tanh(layers["x"](x) + h @ (layers["h"].weight * x.sum()))


def single(layers: Any, x: Any) -> Any:
    return layers["cell"](x[0], (zeros(x), zeros(x)))[0]


STAYING = {
    "attention in the step": Kind(of(nn.GRUCell), each(attending), []),
    "layer norm in the step": Kind(lambda: {**product()(), "norm": nn.LayerNorm(H)}, each(normalized), []),
    "zoneout": Kind(of(nn.GRUCell), each(zoneout), []),
    "a residual in the step": Kind(of(nn.GRUCell), each(residual), []),
    "rounding in the step": Kind(of(nn.GRUCell), each(rounded), []),
    "an output that is fed back": Kind(
        lambda: {**of(nn.GRUCell)(), "out": nn.Linear(H, FEATURES)}, each(fed_back), []
    ),
    "inner cell states that are read": Kind(of(nn.LSTMCell), inner_cells, []),
    "weights of run time": Kind(product(), each(run_time_weights), []),
    "a single step": Kind(of(nn.LSTMCell), single, []),
}


@pytest.mark.parametrize("dynamo", [False, True], ids=["script", "dynamo"])
@pytest.mark.parametrize("name", [*LIFTED, *STAYING])
def test_cells_are_lifted_or_stay_as_listed(name: str, dynamo: bool) -> None:
    torch.manual_seed(0)
    kind = (LIFTED | STAYING)[name]
    module, x = Module(kind).eval(), torch.randn(T, B, FEATURES)
    model = exported(module, x, dynamo)
    lifted, report = rnnlower.lift.with_report(model)
    onnx.checker.check_model(lifted, full_check=True)
    found = sorted(node.op_type for node in lifted.graph.node if node.op_type in RECURRENT)
    assert found == kind.becomes, [node.reason for node in report.nodes]
    if not kind.becomes:
        assert [node.op_type for node in lifted.graph.node] == [node.op_type for node in model.graph.node]
    expected = module(x)
    for given in (model, lifted):
        session = onnxruntime.InferenceSession(given.SerializeToString(), providers=["CPUExecutionProvider"])
        actual = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        for want, have in zip(expected if isinstance(expected, tuple) else (expected,), actual, strict=True):
            np.testing.assert_allclose(have, want.detach().numpy(), rtol=1e-4, atol=1e-5)


class ScriptedLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(FEATURES, H)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h, c = torch.zeros(x.size(1), 4), torch.zeros(x.size(1), 4)
        out: list[torch.Tensor] = []
        for t in range(x.size(0)):
            h, c = self.cell(x[t], (h, c))
            out.append(h)
        return torch.stack(out)


class ScriptedGRU(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(FEATURES, 3 * H), nn.Linear(H, 3 * H)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.size(1), 4)
        for t in range(x.size(0)):
            xz, xr, xn = self.x(x[t]).chunk(3, 1)
            hz, hr, hn = self.h(h).chunk(3, 1)
            n, z = torch.tanh(xn + torch.sigmoid(xr + hr) * hn), torch.sigmoid(xz + hz)
            h = n + z * (h - n)
        return h


class ScriptedRNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.x, self.h = nn.Linear(FEATURES, H), nn.Linear(H, H)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.size(1), 4)
        out: list[torch.Tensor] = []
        for t in range(x.size(0)):
            h = torch.tanh(self.x(x[x.size(0) - 1 - t]) + self.h(h))
            out.append(h)
        return torch.stack(out)


class ScriptedNorm(ScriptedRNN):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = torch.zeros(x.size(1), 4)
        for t in range(x.size(0)):
            h = torch.tanh(nn.functional.layer_norm(self.x(x[t]) + self.h(h), [4]))
        return h


SCRIPTED = {ScriptedLSTM: ["LSTM"], ScriptedGRU: ["GRU"], ScriptedRNN: ["RNN"], ScriptedNorm: []}


@pytest.mark.parametrize("is_open", [False, True], ids=["static", "open"])
@pytest.mark.parametrize("kind", SCRIPTED)
def test_a_loop_of_a_script_is_lifted(kind: Any, is_open: bool) -> None:
    torch.manual_seed(0)
    module, x, buffer = kind().eval(), torch.randn(T, B, FEATURES), io.BytesIO()
    axes = {"x": {0: "T", 1: "B"}} if is_open else None
    script = torch.jit.script(module)
    torch.onnx.export(
        script, (x,), buffer, dynamo=False, opset_version=17, input_names=["x"], dynamic_axes=axes
    )
    model = onnx.load_from_string(buffer.getvalue())
    assert "Loop" in [node.op_type for node in model.graph.node]
    lifted, report = rnnlower.lift.with_report(model)
    found = [node.op_type for node in lifted.graph.node if node.op_type in (*RECURRENT, "Loop")]
    assert found == (SCRIPTED[kind] or ["Loop"]), [node.reason for node in report.nodes]
    session = onnxruntime.InferenceSession(lifted.SerializeToString(), providers=["CPUExecutionProvider"])
    for given in [x, torch.randn(2 * T, 1, FEATURES)] if is_open else [x]:
        (actual,) = session.run(None, {"x": given.numpy()})
        np.testing.assert_allclose(actual, module(given).detach().numpy(), rtol=1e-4, atol=1e-5)


def exported(module: Any, x: Any, dynamo: bool) -> onnx.ModelProto:
    if dynamo:
        return torch.onnx.export(module, (x,), dynamo=True, verbose=False).model_proto
    buffer = io.BytesIO()
    torch.onnx.export(module, (x,), buffer, dynamo=False, opset_version=17)
    return onnx.load_from_string(buffer.getvalue())
