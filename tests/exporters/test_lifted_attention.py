"""DeltaNet and Mamba-2 blocks of PyTorch, exported as Loops: lifted, in chunks, streamed. Needs torch."""

from __future__ import annotations

import io
from typing import Any, ClassVar

import numpy as np
import onnx
import onnxruntime
import pytest

import rnnlower

torch = pytest.importorskip("torch")
nn, functional = torch.nn, torch.nn.functional
B, T, FEATURES = 2, 12, 16


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


def delta_rule_into_a_buffer(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, g: torch.Tensor, S: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    outputs = torch.zeros_like(v)
    for t in range(q.size(2)):
        S = S * g[:, :, t].exp()[..., None, None]
        known = (S * k[:, :, t].unsqueeze(-1)).sum(dim=-2)
        delta = (v[:, :, t] - known) * beta[:, :, t][..., None]
        S = S + k[:, :, t].unsqueeze(-1) * delta.unsqueeze(-2)
        outputs[:, :, t] = (S * q[:, :, t].unsqueeze(-1)).sum(dim=-2)
    return outputs, S


def delta_rule_into_rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, beta: torch.Tensor, g: torch.Tensor, S: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = q.permute(2, 0, 1, 3), k.permute(2, 0, 1, 3), v.permute(2, 0, 1, 3)
    beta, g, outputs = beta.permute(2, 0, 1), g.permute(2, 0, 1), torch.zeros_like(v)
    for t in range(q.size(0)):
        S = S * g[t].exp()[..., None, None]
        known = (S * k[t].unsqueeze(-1)).sum(dim=-2)
        S = S + k[t].unsqueeze(-1) * ((v[t] - known) * beta[t][..., None]).unsqueeze(-2)
        outputs[t] = (S * q[t].unsqueeze(-1)).sum(dim=-2)
    return outputs.permute(1, 2, 0, 3), S


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
    states: ClassVar[dict[str, tuple[int, ...]]] = {"S": (2, 8, 8)}
    rule = staticmethod(torch.jit.script(delta_rule))

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
        output, S = self.rule(q, k, v, beta.transpose(1, 2), g.transpose(1, 2), S)
        return self.out(output.transpose(1, 2).flatten(2)), S


class DeltaNetIntoABuffer(DeltaNet):
    rule = staticmethod(torch.jit.script(delta_rule_into_a_buffer))


class DeltaNetIntoRows(DeltaNet):
    rule = staticmethod(torch.jit.script(delta_rule_into_rows))


class Mamba2(nn.Module):
    states: ClassVar[dict[str, tuple[int, ...]]] = {"S": (4, 8, 16), "C": (64, 3)}
    padding = 0
    space = staticmethod(torch.jit.script(state_space))

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.Linear(FEATURES, 32 + 32 + 32 + 4), nn.Linear(32, FEATURES)
        self.conv = nn.Conv1d(64, 64, 4, groups=64, padding=self.padding)
        self.norm, self.a = nn.LayerNorm(32), nn.Parameter(torch.rand(4))

    def forward(self, x: Any, S: Any, C: Any = None) -> Any:
        past = [] if C is None else [C]
        z, xbc, dt = torch.split(self.inner(x), [32, 64, 4], -1)
        whole = torch.cat([*past, xbc.transpose(1, 2)], -1)
        xbc = functional.silu(self.conv(whole)[:, :, : x.shape[1]]).transpose(1, 2)
        own, b, c = torch.split(xbc, [32, 16, 16], -1)
        own = own.reshape(own.shape[0], own.shape[1], 4, 8)
        y, S = self.space(own, b, c, functional.softplus(dt), -torch.exp(self.a), S)
        output = self.out(self.norm(y.flatten(2) * functional.silu(z)))
        return (output, S, *(whole[:, :, -3:] for _ in past))


class PaddedMamba2(Mamba2):
    states: ClassVar[dict[str, tuple[int, ...]]] = {"S": (4, 8, 16)}
    padding = 3


def export(module: Any, dynamic: bool) -> tuple[onnx.ModelProto, dict[str, np.ndarray], list[np.ndarray]]:
    torch.manual_seed(0)
    own = module().eval()
    given = {"x": torch.randn(B, T, FEATURES)}
    given |= {name: torch.randn(B, *shape) for name, shape in module.states.items()}
    file = io.BytesIO()
    torch.onnx.export(
        own,
        tuple(given.values()),
        file,
        dynamo=False,
        opset_version=17,
        input_names=[*given],
        output_names=["y", *(f"{name}_out" for name in module.states)],
        dynamic_axes={"x": {1: "T"}, "y": {1: "T"}} if dynamic else {},
    )
    with torch.no_grad():
        wanted = [value.numpy() for value in own(*given.values())]
    feeds = {name: value.numpy() for name, value in given.items()}
    return onnx.load_from_string(file.getvalue()), feeds, wanted


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


BLOCKS = [DeltaNet, DeltaNetIntoABuffer, DeltaNetIntoRows, Mamba2, PaddedMamba2]


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("module", BLOCKS)
def test_a_block_is_lifted_and_runs_in_chunks(module: Any, dynamic: bool) -> None:
    source, feeds, wanted = export(module, dynamic)
    assert "Loop" in {node.op_type for node in source.graph.node}
    lifted, report = rnnlower.lift.with_report(source)
    convolutions = ["CausalConvWithState"] if issubclass(module, Mamba2) else []
    assert [node.op_type for node in report.nodes] == ["LinearAttention", *convolutions]
    chunks = rnnlower.scan(source, unroll_factor=4)
    kernel = rnnlower.lower(source, target="onnxruntime")
    kernels = {node.op_type for node in kernel.graph.node if node.domain == "com.microsoft"}
    assert kernels == {"LinearAttention", *(convolutions if "C" in module.states else [])}
    for model in (source, lifted, chunks, kernel):
        for got, want in zip(run(model, feeds), wanted, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-4)


class TracedDeltaNet(DeltaNet):
    rule = staticmethod(delta_rule)


class TracedDeltaNetIntoABuffer(DeltaNet):
    rule = staticmethod(delta_rule_into_a_buffer)


class TracedDeltaNetIntoRows(DeltaNet):
    rule = staticmethod(delta_rule_into_rows)


class TracedMamba2(PaddedMamba2):
    space = staticmethod(state_space)


@pytest.mark.parametrize("dynamo", [True, False])
@pytest.mark.parametrize(
    "module", [TracedDeltaNet, TracedDeltaNetIntoABuffer, TracedDeltaNetIntoRows, TracedMamba2]
)
def test_a_traced_block_is_lifted(module: Any, dynamo: bool) -> None:
    torch.manual_seed(0)
    own, given = module().eval(), {"x": torch.randn(B, T, FEATURES)}
    given |= {name: torch.randn(B, *shape) for name, shape in module.states.items()}
    options: dict[str, Any] = {"input_names": [*given], "output_names": ["y", "S_out"]}
    sizes = {name: {0: "N"} for name in given}
    options |= {"dynamic_shapes": (*sizes.values(),)} if dynamo else {"dynamic_axes": sizes}
    file = io.BytesIO()
    if dynamo:
        source = torch.onnx.export(own, (*given.values(),), dynamo=True, verbose=False, **options).model_proto
    else:
        torch.onnx.export(own, (*given.values(),), file, dynamo=False, opset_version=17, **options)
        source = onnx.load_from_string(file.getvalue())
    lifted, report = rnnlower.lift.with_report(source)
    found = [(node.form, node.op_type) for node in report.nodes if node.op_type != "CausalConvWithState"]
    assert found == [("line", "LinearAttention")]
    assert not {"Loop", "Scan"} & {node.op_type for node in lifted.graph.node}
    wanted = [value.detach().numpy() for value in own(*given.values())]
    feeds = {name: value.numpy() for name, value in given.items()}
    for model in (source, lifted, rnnlower.scan(lifted, unroll_factor=4)):
        for got, want in zip(run(model, feeds), wanted, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("module", [DeltaNet, Mamba2])
def test_a_block_streams(module: Any) -> None:
    source, feeds, wanted = export(module, True)
    step = rnnlower.stream(source, chunk=3)
    names = [value.name for value in step.graph.input if value.name != "x"]
    assert names == [*module.states]
    states, parts = [feeds[name] for name in names], []
    for start in range(0, T, 3):
        x = feeds["x"][:, start : start + 3]
        y, *states = run(step, {"x": x, **dict(zip(names, states, strict=True))})
        parts.append(y)
    for got, want in zip([np.concatenate(parts, 1), *states], wanted, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-4)


def delta_step(S: Any, of_step: Any) -> Any:
    q, k, v, beta, g = of_step
    S = S * g.exp()[..., None, None]
    known = (S * k.unsqueeze(-1)).sum(dim=-2)
    S = S + k.unsqueeze(-1) * ((v - known) * beta[..., None]).unsqueeze(-2)
    return S, (S * q.unsqueeze(-1)).sum(dim=-2)


def delta_rule_by_scan(*given: Any) -> Any:
    from torch._higher_order_ops.scan import scan

    *series, S = given
    S, outputs = scan(delta_step, S, tuple(each.movedim(2, 0) for each in series))
    return outputs.movedim(0, 2), S


def space_step(S: Any, of_step: Any) -> Any:
    x, b, c, dt, decay = of_step
    S = S * decay[..., None, None] + torch.einsum("bh,bn,bhp->bhpn", dt, b, x)
    return S, torch.einsum("bhpn,bn->bhp", S, c) + x


def state_space_by_scan(x: Any, b: Any, c: Any, dt: Any, a: Any, S: Any) -> Any:
    from torch._higher_order_ops.scan import scan

    series = (x, b, c, dt, torch.exp(dt * a))
    S, outputs = scan(space_step, S, tuple(each.movedim(1, 0) for each in series))
    return outputs.movedim(0, 1), S


class DeltaNetByScan(DeltaNet):
    rule = staticmethod(delta_rule_by_scan)


class Mamba2ByScan(Mamba2):
    space = staticmethod(state_space_by_scan)


@pytest.mark.parametrize("module", [DeltaNetByScan, Mamba2ByScan])
def test_a_block_with_a_scan_is_lifted(module: Any) -> None:
    pytest.importorskip("torch._higher_order_ops.scan")
    torch.manual_seed(0)
    own, given = module().eval(), [torch.randn(B, T, FEATURES)]
    given += [torch.randn(B, *shape) for shape in module.states.values()]
    sizes = ({1: torch.export.Dim("T", min=2, max=4096)}, *[None] * len(module.states))
    names = {
        "input_names": ["x", *module.states],
        "output_names": ["y", *(f"{n}_out" for n in module.states)],
    }
    program = torch.onnx.export(own, tuple(given), dynamo=True, verbose=False, dynamic_shapes=sizes, **names)
    source, wanted = program.model_proto, [value.detach().numpy() for value in own(*given)]
    assert "Scan" in {node.op_type for node in source.graph.node}
    lifted, report = rnnlower.lift.with_report(source)
    convolutions = ["CausalConvWithState"] if "C" in module.states else []
    assert [node.op_type for node in report.nodes] == ["LinearAttention", *convolutions]
    chunks, kernel = rnnlower.scan(source, unroll_factor=4), rnnlower.lower(source, target="onnxruntime")
    feeds = {name: value.numpy() for name, value in zip(names["input_names"], given, strict=True)}
    for model in (source, lifted, chunks, kernel):
        for got, want in zip(run(model, feeds), wanted, strict=True):
            np.testing.assert_allclose(got, want, atol=1e-5, rtol=1e-4)
    step = rnnlower.stream(source, chunk=3)
    assert [value.name for value in step.graph.input] == names["input_names"]
