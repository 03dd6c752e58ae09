"""Chunks of LinearAttention against the recurrence in the ONNX spec."""

from __future__ import annotations

import dataclasses

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest
from support.grids import pairs_in
from support.linear_attention import RULES, linear_attention

from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import InitializerPool
from rnnlower.graph.names import NameSource, Scope
from rnnlower.graph.walk import LocatedNode
from rnnlower.lowering.emitter import Emitter
from rnnlower.lowering.linear_attention import Chunks
from rnnlower.lowering.strategies import STRATEGIES
from rnnlower.recurrent.state_operators import AttentionNode, parse_state_operators


@dataclasses.dataclass(frozen=True)
class Case:
    """A node and its sizes; `dynamic` leaves batch and steps open in the graph."""

    rule: str
    batch: int = 1
    steps: int = 20
    heads: int = 2
    group: int = 1
    key_size: int = 8
    value_size: int = 4
    per_key: bool = False
    beta_per_head: bool = True
    past: bool = True
    scale: float = 0.0
    dynamic: bool = False


def feeds_of(case: Case, seed: int = 0) -> dict[str, np.ndarray]:
    draw = np.random.default_rng(seed)
    lead = (case.batch, case.steps)
    keys = draw.normal(size=(*lead, case.heads, case.key_size))
    keys /= np.linalg.norm(keys, axis=-1, keepdims=True)
    feeds = {
        "query": draw.normal(size=(*lead, case.heads * case.group * case.key_size)),
        "key": keys.reshape(*lead, -1),
        "value": draw.normal(size=(*lead, case.heads * case.value_size)),
    }
    if case.past:
        feeds["past_state"] = draw.normal(size=(case.batch, case.heads, case.key_size, case.value_size))
    if "gated" in case.rule:
        width = case.heads * (case.key_size if case.per_key else 1)
        feeds["decay"] = -draw.exponential(0.3, size=(*lead, width))
    if "delta" in case.rule:
        feeds["beta"] = draw.uniform(size=(*lead, case.heads if case.beta_per_head else 1))
    return {name: value.astype(np.float32) for name, value in feeds.items()}


def lowered(case: Case, chunk: int, strategy: str | None) -> onnx.ModelProto:
    """Return a model of the emitted chunks."""
    inputs = {}
    for name, array in feeds_of(case).items():
        dims: list[int | str] = list(array.shape)
        if case.dynamic:
            dims[0] = "B"
            if name != "past_state":
                dims[1] = "T"
        inputs[name] = ir.Value(name=name, shape=ir.Shape(dims), type=ir.TensorType(ir.DataType.FLOAT))
    graph = ir.Graph(list(inputs.values()), [], nodes=[], opset_imports={"": 21}, name="g")
    model = ir.Model(graph, ir_version=10)
    names = NameSource(set(inputs))
    e = Emitter(21, Scope(names, "a/"), ir.DataType.FLOAT, InitializerPool(model, names))
    attributes = {
        "update_rule": case.rule,
        "q_num_heads": case.heads * case.group,
        "kv_num_heads": case.heads,
        "scale": case.scale,
    }
    order = ("query", "key", "value", "past_state", "decay", "beta")
    operator = ir.node("LinearAttention", [inputs.get(name) for name in order], attributes)
    (node,) = parse_state_operators([LocatedNode(operator, "a", "", 27)], Facts(model))
    assert isinstance(node, AttentionNode)
    run = None if strategy is None else STRATEGIES[strategy].run
    outputs = Chunks(e, node, inputs, chunk).emit(run)
    graph.extend(e.nodes)
    for value in outputs:
        value.type = ir.TensorType(ir.DataType.FLOAT)
        graph.outputs.append(value)
    return ir.to_proto(model)


def errors(case: Case, chunk: int, strategy: str | None, feeds: dict[str, np.ndarray]) -> list[float]:
    """Return the largest error of each output, relative to the largest value."""
    session = onnxruntime.InferenceSession(
        lowered(case, chunk, strategy).SerializeToString(), providers=["CPUExecutionProvider"]
    )
    got = session.run(None, feeds)
    expected = linear_attention(
        **feeds,
        q_num_heads=case.heads * case.group,
        kv_num_heads=case.heads,
        update_rule=case.rule,
        scale=case.scale,
    )
    assert [each.shape for each in got] == [each.shape for each in expected]
    return [
        float(np.abs(a - b).max(initial=0) / max(1, np.abs(b).max(initial=0)))
        for a, b in zip(got, expected, strict=True)
    ]


CHUNKS = [(1, "scan"), (1, "loop"), (1, "unroll"), (4, "scan"), (16, "loop"), (8, "unroll"), (32, "scan")]
WITHOUT_LOOP = [(4, None), (16, None), (64, None)]
WAYS = pairs_in(
    (rule, per_key, way, dynamic)
    for rule in RULES
    for per_key in ([False, True] if "gated" in rule else [False])
    for way in (CHUNKS if "delta" in rule else CHUNKS + WITHOUT_LOOP)
    for dynamic in ([False] if "unroll" in way else [False, True])
)


@pytest.mark.parametrize(("rule", "per_key", "way", "dynamic"), WAYS)
def test_chunks_compute_the_recurrence(
    rule: str, per_key: bool, way: tuple[int, str | None], dynamic: bool
) -> None:
    chunk, strategy = way
    for case in (
        Case(rule, per_key=per_key, dynamic=dynamic),
        Case(rule, 2, 37, 2, 3, 8, 4, per_key, beta_per_head=False, past=False, scale=0.7, dynamic=dynamic),
        Case(rule, 3, 1, 1, 1, 4, 8, per_key, dynamic=dynamic),
    ):
        assert max(errors(case, chunk, strategy, feeds_of(case))) < 2e-6


@pytest.mark.parametrize("chunk", [1, 16])
@pytest.mark.parametrize("rule", RULES)
def test_without_steps_the_state_is_passed_on(rule: str, chunk: int) -> None:
    case = Case(rule, dynamic=True)
    feeds = {name: array if "state" in name else array[:, :0] for name, array in feeds_of(case).items()}
    assert max(errors(case, chunk, "loop", feeds)) == 0


@pytest.mark.parametrize(("rule", "strategy"), [("gated", None), ("gated_delta", "loop")])
@pytest.mark.parametrize("per_key", [False, True])
@pytest.mark.parametrize("forgotten", [-1e4, -np.inf])
def test_a_forgotten_state_leaves_the_other_steps_exact(
    rule: str, strategy: str | None, per_key: bool, forgotten: float
) -> None:
    case = Case(rule, steps=64, per_key=per_key)
    feeds = feeds_of(case)
    feeds["decay"][:, 5::9] = forgotten
    assert max(errors(case, 32, strategy, feeds)) < 2e-6


@pytest.mark.parametrize("rule", ["delta", "gated_delta"])
def test_equal_keys_give_accurate_outputs(rule: str) -> None:
    case = Case(rule, steps=128, key_size=16)
    feeds = feeds_of(case)
    feeds["key"][:] = feeds["key"][:, :1]
    feeds["beta"][:] = 1
    assert max(errors(case, 64, "loop", feeds)) < 1e-5
