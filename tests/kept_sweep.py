"""Lower random nodes at real sizes for a runtime and run them there, judged by the oracle.

python tests/kept_sweep.py tract --count 20000 --record kept.jsonl      # static shapes
python tests/kept_sweep.py openvino --count 100 --open                  # open batch and length too
python tests/kept_sweep.py opencv --count 100 --native keep             # what could be kept
python tests/kept_sweep.py tract --record kept.jsonl --table

Half of the nodes are as exporters write them, the others as odd as the specification allows. Those of one
opset run as one model, since loading takes longest: one that fails, or is wrong, is split down to its nodes.
The oracle judges; a difference that `rnnlower verify` finds explained by rounding is ``rounding``.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from support import sweeping
from support.configs import Config, random_config
from support.judge import differences, recurrent_left

import rnnlower
from rnnlower.engines.catalog import Engine, find_engine
from rnnlower.engines.opened_models import Attempts, EngineError
from rnnlower.targets import find_target, target_names

Arrays = Mapping[str, np.ndarray]
Choose = Callable[[Sequence[Any]], Any]


@dataclasses.dataclass(frozen=True)
class Node:
    """A random node, lowered, with its inputs and what the oracle expects."""

    number: int
    config: Config
    model: onnx.ModelProto
    inputs: Arrays
    expected: Arrays

    @property
    def how(self) -> str:
        return "kept" if recurrent_left(self.model) else "lowered"

    @property
    def kind(self) -> tuple[object, ...]:
        """Its opsets and IR version, the same for all nodes of one model."""
        imports = sorted((each.domain, each.version) for each in self.model.opset_import)
        return self.model.ir_version, *imports


def draw_kept(choose: Choose, *, is_open: bool) -> Config:
    """Return a node with default activations, as exporters write them.

    Where the batch is open, states and lengths are those of any batch; and a node of open sizes stands in
    no If, whose other branch would have to compute its shape from X.
    """
    op_type = choose(["LSTM", "GRU", "RNN"])
    opset = choose([7, 9, 11, 13, 14, 17, 18])
    weights = ["initializer"] * 3 + ["constant", "input", "computed"]
    x_dims = choose(["static", "batch", "time", "symbolic"]) if is_open else "static"
    any_batch = x_dims in ("batch", "symbolic")
    states = ["omitted", "omitted", "empty", "input", *([] if any_batch else ["initializer", "constant"])]
    states += ["expanded"] if opset >= 8 else []
    hidden_size = choose([1, 16, 16, 20, 64, 128, 256])
    config = Config(
        op_type=op_type,
        opset=opset,
        direction=choose([None, "forward", "reverse", "bidirectional"]),
        seq_length=choose([1, 2, 3, 7, 50]),
        batch_size=choose([1, 1, 2, 3, 16]),
        input_size=choose([1, 1, 3, 8, 64]),
        hidden_size=hidden_size,
        hidden_size_given=choose([True, True, True, False]),
        linear_before_reset=choose([None, 0, 1]) if op_type == "GRU" else None,
        W=choose(weights),
        R=choose(weights),
        B=choose(["initializer", "initializer", "omitted", "empty", "constant", "input"]),
        layout=choose([None, 0, 1]) if opset >= 14 else None,
        sequence_lens=choose(["omitted"] * 8 + ["empty", "input", *([] if any_batch else ["initializer"])]),
        initial_h=choose(states),
        x_dims=x_dims,
        place=choose(["main"] * 4 + ["loop", *(["if"] if x_dims == "static" else [])]),
        captured=choose([True, False]),
        # Larger recurrent weights make a chaotic system, in which no two summation orders agree.
        weight_scale=0.3 if hidden_size <= 20 else 0.1 if hidden_size <= 128 else 0.05,
        seed=choose(range(16)),
    )
    outputs = ["Y", "Y_h", "Y_c"] if op_type == "LSTM" else ["Y", "Y_h"]
    more = {name: choose(["omitted", "unused", "empty", "graph", "graph", "consumed"]) for name in outputs}
    more[choose(outputs)] = "graph"
    if op_type == "LSTM":
        more["initial_c"] = choose([config.initial_h, config.initial_h, *states])
        more["P"] = choose(["omitted"] * 3 + ["empty", "initializer"])
    return dataclasses.replace(config, **more)


def draw_odd(rng: np.random.Generator) -> Config:
    """Return any legal node that has a step, a row, and a type that runtimes have.

    What is around it is none of their faults, for which a group would be split: one If, Loop or function.
    """
    config = random_config(rng)
    least = {name: max(1, getattr(config, name)) for name in ("seq_length", "batch_size")}
    place = {"if_in_if": "if", "if_in_loop": "loop", "scan": "main"}.get(config.place, config.place)
    x_dims = "unknown" if config.x_dims == "unknown_rank" else config.x_dims
    opset = min(config.opset, 21)
    return dataclasses.replace(config, dtype="float32", opset=opset, place=place, x_dims=x_dims, **least)


def draw(rng: np.random.Generator, *, is_open: bool) -> tuple[Config, dict[str, np.ndarray], dict[str, Any]]:
    """Return a node, its inputs, and the options that fix its sizes."""
    if is_open or rng.random() < 0.5:
        config = draw_kept(lambda choices: choices[int(rng.integers(len(choices)))], is_open=is_open)
        inputs = config.make_inputs(rng)
        if "sequence_lens" in inputs:
            lengths = np.minimum(inputs["sequence_lens"] + 1, config.seq_length)
            inputs["sequence_lens"] = lengths.astype(np.int32)
        return config, inputs, {}
    config = draw_odd(rng)
    # Few runtimes take a value for an input that has a default.
    overridden = [name for name, how in config.provisions.items() if how == "initializer_input"]
    inputs = {name: array for name, array in config.make_inputs(rng).items() if name not in overridden}
    return config, inputs, {"input_shapes": {name: array.shape for name, array in inputs.items()}}


def merge(nodes: Sequence[Node]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Return one model of which each node is a part of its own, and its inputs."""
    merged, inputs = onnx.ModelProto(), {}
    merged.CopyFrom(nodes[0].model)
    for field in ("graph", "functions"):
        merged.ClearField(field)
    merged.graph.name = "nodes"
    for node in nodes:
        part = onnx.compose.add_prefix(node.model, _prefix(node))
        for field in ("node", "initializer", "sparse_initializer", "input", "output", "value_info"):
            getattr(merged.graph, field).extend(getattr(part.graph, field))
        merged.functions.extend(part.functions)
        inputs |= {_prefix(node) + name: array for name, array in node.inputs.items()}
    return merged, inputs


def _prefix(node: Node) -> str:
    return f"n{node.number}_"


def run_nodes(attempts: Attempts, engine: Engine, nodes: Sequence[Node]) -> Iterator[tuple[Node, str, str]]:
    """Yield what becomes of each node, and words; ``crash`` is also that the runtime refuses it."""
    alone = len(nodes) == 1
    model, inputs = (nodes[0].model, nodes[0].inputs) if alone else merge(nodes)
    try:
        (outputs,) = attempts.run(model, inputs)
    except EngineError as error:
        if alone:
            yield nodes[0], "crash", f"{error.how}: {error}"
        else:
            for half in (nodes[: len(nodes) // 2], nodes[len(nodes) // 2 :]):
                yield from run_nodes(attempts, engine, half)
        return
    for node in nodes:
        found = {name: outputs[name if alone else _prefix(node) + name] for name in node.expected}
        wrong = differences(node.expected, found, "float16" if engine.is_coarse else node.config.dtype)
        if not wrong:
            yield node, "right", ""
        elif alone:
            yield node, *_verified(node, engine, wrong)
        else:
            yield from run_nodes(attempts, engine, [node])


def _verified(node: Node, engine: Engine, wrong: list[str]) -> tuple[str, str]:
    """Return ``rounding`` if that explains what is wrong, as it does for users; else ``wrong``."""
    verdict = rnnlower.verify(node.config.build(), node.model, on=engine.name, inputs=dict(node.inputs))
    return ("rounding", "") if verdict else ("wrong", "; ".join(wrong))


def judge_models(seed: int, numbers: range, arguments: argparse.Namespace) -> Iterator[tuple[str, str]]:
    """Yield the outcome of each node, and its description."""
    target = arguments.target
    engine = find_engine(find_target(target).engine)
    groups: dict[object, list[Node]] = collections.defaultdict(list)
    for number in numbers:
        rng = np.random.default_rng([seed, number])
        config, inputs, sizes = draw(rng, is_open=arguments.open)
        try:
            source = config.build()
            model = rnnlower.lower(source, target=target, native=arguments.native, strict=True, **sizes)
        except rnnlower.RnnLowerError as error:
            yield f"{target}: refused: {type(error).__name__}: {str(error).partition(': ')[2]}", ""
            continue
        assert isinstance(model, onnx.ModelProto)
        node = Node(number, config, model, inputs, config.expected(inputs))
        groups[node.kind].append(node)
    with Attempts(engine) as attempts:
        for nodes in groups.values():
            for first in range(0, len(nodes), arguments.group):
                for node, verdict, words in run_nodes(
                    attempts, engine, nodes[first : first + arguments.group]
                ):
                    yield f"{target} {node.how}: {verdict}", f"{node.number}: {node.config}\n{words}"


def main() -> int:
    parser = sweeping.parser(__doc__)
    runnable = [name for name in target_names() if find_target(name).engine]
    parser.add_argument("target", choices=runnable)
    parser.add_argument("--open", action="store_true", help="open batches and lengths, too")
    parser.add_argument("--native", choices=["auto", "keep", "lower"], default="auto")
    parser.add_argument("--group", type=int, default=32, help="nodes in one model")
    arguments = parser.parse_args()
    run = f"{arguments.target} {arguments.native}{' open' if arguments.open else ''}"
    return sweeping.main(judge_models, arguments, ("right", "rounding", "refused", *sweeping.WRONG), run)


if __name__ == "__main__":
    sys.exit(main())
