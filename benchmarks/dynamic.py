"""Measure run times with a dynamic length, in a branch and on several threads, relative to the native kernel.

python benchmarks/dynamic.py --json benchmarks/results/dynamic.json
python benchmarks/dynamic.py --threads 2 --json benchmarks/results/threads.json

On one thread the processor time of that thread counts, on several the clock.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import onnx
from measuring import SIZES, VARIANTS, feeds_of, lowered, ratios, recurrent
from onnx import helper

STRATEGIES = ("scan", "loop")


def in_branch(source: onnx.ModelProto) -> onnx.ModelProto:
    """Return the node in the taken branch of an If whose condition follows from X at run time."""
    outputs = [value.name for value in source.graph.output]
    node = source.graph.node[0]
    empty = [helper.make_node("Identity", ["zero"], [name]) for name in outputs]
    choice = helper.make_node(
        "If",
        ["positive"],
        outputs,
        then_branch=helper.make_graph([node], "taken", [], source.graph.output),
        else_branch=helper.make_graph(empty, "other", [], source.graph.output),
    )
    size = helper.make_node("Size", ["X"], ["size"])
    positive = helper.make_node("Cast", ["size"], ["positive"], to=onnx.TensorProto.BOOL)
    zero = helper.make_tensor("zero", onnx.TensorProto.FLOAT, [], [0.0])
    graph = helper.make_graph(
        [size, positive, choice],
        "graph",
        source.graph.input,
        source.graph.output,
        [*source.graph.initializer, zero],
    )
    return helper.make_model(graph, opset_imports=source.opset_import, ir_version=source.ir_version)


def models_of(variant: str, size: tuple[int, ...]) -> dict[str, onnx.ModelProto]:
    """Return the native node, and each strategy with a static length, a dynamic one, and both in a branch."""
    static = recurrent(VARIANTS[variant], size)
    dynamic = recurrent(VARIANTS[variant], size, dynamic=["T"])
    sources = {
        "static": static,
        "dynamic": dynamic,
        "static in If": in_branch(static),
        "dynamic in If": in_branch(dynamic),
    }
    models = {"native": static}
    for strategy in STRATEGIES:
        models |= {f"{strategy}, {name}": lowered(source, strategy) for name, source in sources.items()}
    return models


def threaded_models(variant: str, size: tuple[int, ...]) -> dict[str, onnx.ModelProto]:
    """Return the native node and each strategy with a static length."""
    source = recurrent(VARIANTS[variant], size)
    return {form: lowered(source, form) for form in ("native", "unroll", *STRATEGIES)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, default=["lstm", "bilstm", "gru_linear", "gru"]
    )
    parser.add_argument("--sizes", nargs="+", default=[",".join(map(str, size)) for size in SIZES])
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    clock = time.thread_time if arguments.threads == 1 else time.perf_counter
    rows = []
    for variant in arguments.variants:
        for text in arguments.sizes:
            size = tuple(int(number) for number in text.split(","))
            models = (models_of if arguments.threads == 1 else threaded_models)(variant, size)
            feeds = feeds_of(VARIANTS[variant], size)
            row = ratios(models, feeds, arguments.rounds, clock, arguments.threads)
            rows.append({"variant": variant, "size": list(size), **row})
            cells = "  ".join(f"{form} {ratio:.2f}" for form, ratio in row["ratios"].items())
            print(f"{variant:10} {text:>16} {row['native_ms']:9.3f} ms  {cells}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"threads": arguments.threads, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
