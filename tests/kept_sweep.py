"""Lower random nodes at real sizes for a runtime and run them there: what is kept must be correct.

python tests/kept_sweep.py tract --count 300 --seed 1            # static shapes
python tests/kept_sweep.py openvino --count 100 --open           # open batch and length too
python tests/kept_sweep.py opencv --count 100 --lowered          # what is lowered, too
python tests/kept_sweep.py opencv --count 100 --native keep      # what could be kept, as it is or adapted
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
from support.configs import Config
from support.judge import recurrent_left

import rnnlower
from rnnlower.engines.known import find_engine
from rnnlower.engines.opened import Attempts, EngineError
from rnnlower.targets import find_target, target_names

Choose = Callable[[Sequence[Any]], Any]


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


def judge_kept(
    attempts: Attempts, config: Config, model: onnx.ModelProto, atol: float = 1e-4, rtol: float = 1e-3
) -> tuple[str, str]:
    """Return ``right``, or what became of it, and words."""
    inputs = config.make_inputs(np.random.default_rng(config.seed))
    if "sequence_lens" in inputs:
        lengths = np.minimum(inputs["sequence_lens"] + 1, config.seq_length)
        inputs["sequence_lens"] = lengths.astype(np.int32)
    try:
        (outputs,) = attempts.run(model, inputs)
    except EngineError as error:
        return error.how, str(error)[-200:]
    for name, expected in config.expected(inputs).items():
        if outputs[name].shape != expected.shape:
            return "wrong", f"{name} has shape {outputs[name].shape}, not {expected.shape}"
        if not np.allclose(outputs[name], expected, atol=atol, rtol=rtol):
            return "wrong", f"{name} is {np.abs(outputs[name] - expected).max():.2g} off"
    return "right", ""


def main() -> int:
    """Print what is not right, and a count."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    runnable = [name for name in target_names() if find_target(name).engine]
    parser.add_argument("target", choices=runnable)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--open", action="store_true")
    parser.add_argument("--lowered", action="store_true")
    parser.add_argument("--native", choices=["auto", "keep", "lower"], default="auto")
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    counts: collections.Counter[str] = collections.Counter()
    engine = find_engine(find_target(options.target).engine)
    tolerances = {"atol": 2e-2, "rtol": 2e-2} if engine.is_coarse else {}
    with Attempts(engine) as attempts:
        while sum(counts.values()) - counts["refused by rnnlower"] < options.count:
            config = draw_kept(lambda choices: choices[int(rng.integers(len(choices)))], is_open=options.open)
            try:
                model = rnnlower.lower(config.build(), target=options.target, native=options.native)
            except rnnlower.RnnLowerError:
                counts["refused by rnnlower"] += 1
                continue
            assert isinstance(model, onnx.ModelProto)
            how = "kept" if recurrent_left(model) else "lowered"
            if how == "lowered" and not options.lowered:
                continue
            verdict, why = judge_kept(attempts, config, model, **tolerances)
            counts[f"{how}, {verdict}"] += 1
            if verdict != "right":
                print(f"{how}, {verdict}: {config}: {why}", flush=True)
    print(f"{options.target}: {dict(counts)}")
    return int(any(not key.endswith(("right", "by rnnlower")) for key in counts))


if __name__ == "__main__":
    raise SystemExit(main())
