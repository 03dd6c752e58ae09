"""Measure LinearAttention on onnxruntime: its definition, com.microsoft's kernel, and rnnlower's chunks.

python benchmarks/linear_attention.py --steps 1024 --heads 4x64 1x32
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import time
from collections.abc import Sequence

import numpy as np
import onnx
import onnxruntime
from onnx import helper

import rnnlower

RULES = ("linear", "gated", "gated per key", "delta", "gated_delta", "gated_delta per key")
LOWERING = {"target": "onnxruntime", "native": "lower"}


def node_model(rule: str, steps: int, heads: int, size: int, domain: str = "") -> onnx.ModelProto:
    """Return a model of one node, a batch of 1 and states of `heads` times `size` times `size`."""
    name = rule.removesuffix(" per key")
    shapes = {"query": [1, steps, heads * size], "key": [1, steps, heads * size]}
    shapes |= {"value": [1, steps, heads * size], "past_state": [1, heads, size, size]}
    decays = heads * size if rule.endswith("per key") else heads
    shapes |= {"decay": [1, steps, decays]} if "gated" in name else {}
    shapes |= {"beta": [1, steps, heads]} if "delta" in name else {}
    order = ("query", "key", "value", "past_state", "decay", "beta")
    names = [each if each in shapes else "" for each in order]
    while not names[-1]:
        names.pop()
    floats = onnx.TensorProto.FLOAT
    node = helper.make_node(
        "LinearAttention",
        names,
        ["output", "present_state"],
        "node",
        domain=domain,
        q_num_heads=heads,
        kv_num_heads=heads,
        update_rule=name,
    )
    graph = helper.make_graph(
        [node],
        "graph",
        [helper.make_tensor_value_info(each, floats, shape) for each, shape in shapes.items()],
        [
            helper.make_tensor_value_info("output", floats, shapes["query"]),
            helper.make_tensor_value_info("present_state", floats, shapes["past_state"]),
        ],
    )
    opsets = [helper.make_opsetid("", 27), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=11)


def random_inputs(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """Return keys of length 1, decays below 0 and rates up to 1."""
    draw, feeds = np.random.default_rng(0), {}
    for value in model.graph.input:
        shape = [dim.dim_value for dim in value.type.tensor_type.shape.dim]
        array = draw.normal(size=shape)
        if value.name == "key":
            array /= np.linalg.norm(array, axis=-1, keepdims=True)
        elif value.name == "decay":
            array = -draw.exponential(0.1, size=shape)
        elif value.name == "beta":
            array = draw.uniform(size=shape)
        feeds[value.name] = array.astype(np.float32)
    return feeds


def session_of(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return a session of one thread."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def times(models: Sequence[onnx.ModelProto], feeds: dict[str, np.ndarray], rounds: int) -> list[float]:
    """Return the median milliseconds of the thread in a run of each model; they take turns."""
    sessions = [session_of(model) for model in models]
    found: list[list[float]] = [[] for _ in sessions]
    for turn, (own, session) in itertools.product(range(rounds), zip(found, sessions, strict=True)):
        begin = time.thread_time()
        session.run(None, feeds)
        if turn:
            own.append(1e3 * (time.thread_time() - begin))
    return [statistics.median(own) for own in found]


def nodes_in(graph: onnx.GraphProto) -> int:
    """Return the number of nodes, including those in bodies."""
    inner = sum(nodes_in(each.g) for node in graph.node for each in node.attribute if each.HasField("g"))
    return len(graph.node) + inner


def main() -> None:
    """Measure, and print a table in Markdown."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, nargs="*", default=[16, 128, 1024, 4096])
    parser.add_argument("--heads", nargs="*", default=["1x32", "4x64", "2x16"], help="heads x size")
    parser.add_argument("--rules", nargs="*", default=RULES)
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    print(
        "| rule | heads | steps | definition, ms | kernel, ms | chunks, ms | times faster | nodes | error |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for rule, shape, steps in itertools.product(arguments.rules, arguments.heads, arguments.steps):
        heads, size = map(int, shape.split("x"))
        definition = node_model(rule, steps, heads, size)
        chunks = rnnlower.lower(definition, **LOWERING)
        feeds = random_inputs(definition)
        models = [definition, node_model(rule, steps, heads, size, "com.microsoft"), chunks]
        body, kernel, own = times(models, feeds, arguments.rounds)
        a, b = (session_of(model).run(["output"], feeds)[0] for model in (definition, chunks))
        error = np.abs(a - b).max() / max(1, np.abs(a).max())
        print(
            f"| {rule} | {shape} | {steps} | {body:.2f} | {kernel:.2f} | {own:.2f} | {body / own:.1f} "
            f"| {nodes_in(chunks.graph)} | {error:.0e} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
