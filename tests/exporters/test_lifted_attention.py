"""DeltaNet and Mamba-2 blocks of PyTorch, exported as Loops: lifted, in chunks, streamed. Needs torch."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import rnnlower

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
B, T, FEATURES = 2, 12, 16


@torch.jit.script
def delta_rule(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, g: torch.Tensor, S: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    outputs = []
    for t in range(q.size(2)):
        S = S * g[:, :, t].exp()[..., None, None]
        known = (S * k[:, :, t].unsqueeze(-1)).sum(dim=-2)
        delta = (v[:, :, t] - known) * beta[:, :, t][..., None]
        S = S + k[:, :, t].unsqueeze(-1) * delta.unsqueeze(-2)
        outputs.append((S * q[:, :, t].unsqueeze(-1)).sum(dim=-2))
    return torch.stack(outputs, 2), S


@torch.jit.script
def state_space(
    x: torch.Tensor, b: torch.Tensor, c: torch.Tensor, dt: torch.Tensor, a: torch.Tensor, S: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    outputs = []
    for t in range(x.size(1)):
        added = torch.einsum("bh,bn,bhp->bhpn", dt[:, t], b[:, t], x[:, t])
        S = S * torch.exp(dt[:, t] * a)[..., None, None] + added
        outputs.append(torch.einsum("bhpn,bn->bhp", S, c[:, t]) + x[:, t])
    return torch.stack(outputs, 1), S


class DeltaNet(nn.Module):
    state = (2, 8, 8)

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(FEATURES, 16) for _ in range(3))
        self.rate, self.gate, self.out = (
            nn.Linear(FEATURES, 2),
            nn.Linear(FEATURES, 2),
            nn.Linear(16, FEATURES),
        )

    def forward(self, x: Any, S: Any) -> Any:
        def heads(value: Any) -> Any:
            return value.view(value.shape[0], value.shape[1], 2, 8)

        q, v = heads(self.q(x)).transpose(1, 2), heads(self.v(x)).transpose(1, 2)
        k = functional.normalize(heads(self.k(x)), dim=-1).transpose(1, 2)
        beta, g = torch.sigmoid(self.rate(x)), functional.logsigmoid(self.gate(x))
        output, S = delta_rule(q, k, v, beta.transpose(1, 2), g.transpose(1, 2), S)
        return self.out(output.transpose(1, 2).flatten(2)), S


class Mamba2(nn.Module):
    state = (4, 8, 16)

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(FEATURES, 32 + 32 + 32 + 4), nn.Linear(32, FEATURES)
        self.conv, self.norm = nn.Conv1d(64, 64, 4, groups=64, padding=3), nn.LayerNorm(32)
        self.a = nn.Parameter(torch.rand(4))

    def forward(self, x: Any, S: Any) -> Any:
        z, xbc, dt = torch.split(self.inner(x), [32, 64, 4], -1)
        xbc = functional.silu(self.conv(xbc.transpose(1, 2))[:, :, : x.shape[1]]).transpose(1, 2)
        own, b, c = torch.split(xbc, [32, 16, 16], -1)
        own = own.reshape(own.shape[0], own.shape[1], 4, 8)
        y, S = state_space(own, b, c, functional.softplus(dt), -torch.exp(self.a), S)
        return self.out(self.norm(y.flatten(2) * functional.silu(z))), S


def export(module: Any, dynamic: bool) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[np.ndarray]]:
    torch.manual_seed(0)
    own = module().eval()
    x, S = torch.randn(B, T, FEATURES), torch.randn(B, *module.state)
    file = io.BytesIO()
    torch.onnx.export(
        own,
        (x, S),
        file,
        dynamo=False,
        opset_version=17,
        input_names=["x", "S"],
        output_names=["y", "S_out"],
        dynamic_axes={"x": {1: "T"}, "y": {1: "T"}} if dynamic else {},
    )
    with torch.no_grad():
        wanted = [value.numpy() for value in own(x, S)]
    return onnx.load_from_string(file.getvalue()), {"x": x.numpy(), "S": S.numpy()}, wanted


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


CASES = [(DeltaNet, True), (DeltaNet, False), (Mamba2, False)]


@pytest.mark.parametrize(("module", "dynamic"), CASES)
def test_a_block_is_lifted_and_runs_in_chunks(module: Any, dynamic: bool) -> None:
    source, feeds, wanted = export(module, dynamic)
    assert "Loop" in {node.op_type for node in source.graph.node}
    lifted, report = rnnlower.lift.with_report(source)
    assert [node.op_type for node in report.nodes] == ["LinearAttention"]
    chunks = rnnlower.scan(source, unroll_factor=4)
    kernel = rnnlower.lower(source, target="onnxruntime")
    assert "com.microsoft" in {node.domain for node in kernel.graph.node}
    for model in (source, lifted, chunks, kernel):
        for got, want in zip(run(model, feeds), wanted, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-4)


def test_a_block_streams() -> None:
    source, feeds, wanted = export(DeltaNet, True)
    step = rnnlower.stream(source, chunk=3)
    states = {value.name: value.name for value in step.graph.input if value.name != "x"}
    (name,) = states
    state, parts = feeds["S"], []
    for start in range(0, T, 3):
        y, state = run(step, {"x": feeds["x"][:, start : start + 3], name: state})
        parts.append(y)
    np.testing.assert_allclose(np.concatenate(parts, 1), wanted[0], atol=1e-5, rtol=1e-4)
    np.testing.assert_allclose(state, wanted[1], atol=1e-5, rtol=1e-4)
