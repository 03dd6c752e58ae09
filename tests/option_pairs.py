"""Run every command with pairs of its options, on a few small models.

python tests/option_pairs.py --seed 1 --runs 5000

The options are those of the command line itself. Each run covers as many new pairs of values as it can: an
exit code of 0 to 4, no traceback, one JSON object on stdout if asked for, nothing left behind, nothing
written unless the code is 0, and then a result that `verify` accepts.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import itertools
import json
import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import typer.main
from support.configs import random_config
from typer.testing import CliRunner

import rnnlower
from rnnlower.cli import app

SKIPPED = ("help", "report", "plot", "new", "schema")
"""Options that are no choice (`--help`), or write files of their own."""
SLOW = ("probe", "engines")
RECORDINGS = "recordings.npz"
"""Stands for recordings of the inputs of the model that is drawn."""

VALUES = {
    "dims": ["T=4", "T=0", "nope=3", "T"],
    "input_shapes": ["X:5,2,3", "X:0,1,1", "Z:1"],
    "sets": ["X=1", "nope=1"],
    "nodes": ["*", "nope*"],
    "semantics": ["ort", "spec", "no"],
    "opset": [18, 7, 14, 99],
    "unroll_factor": [1, 3],
    "unroll_factors": [2],
    "control_flow": ["keep", "unroll"],
    "compute_type": ["float32", "float64"],
    "gates": ["auto", "fused", "separate"],
    "native": ["auto", "keep", "lower"],
    "strategy": ["none", "scan", "loop"],
    "strategies": ["unroll", "scan", "adapt"],
    "target": ["primitive", "litert", "nope"],
    "chunk": [1, 2, "20ms", "any"],
    "time_axes": ["X:0", "X:9"],
    "trials": [1, 3],
    "seed": [0, 7],
    "atol": [0.0, 1e-3],
    "rtol": [1e-2],
    "tolerance": ["float16", "int8", "float8"],
    "inputs": ["missing.npz"],
    "states": ["Y_h=initial_h", "Y=X"],
    "on": ["none", "nope"],
    "engine": ["onnxruntime", "rnnlower-reference"],
    "external_data": ["auto", "always", "never", "share"],
    "threads": [1],
    "runs": [1],
    "warmup": [0],
    "max": ["T=8"],
    "steps": [2, 9],
    "rate": [100.0],
    "connect": ["Y=X"],
    "emit": ["python", "c", "ada"],
    "calibration": [RECORDINGS, "missing.npz"],
    "activations": ["int8", "int16", "int8-only", "int9"],
    "scheme": ["qdq", "tflite", "pow2"],
    "headroom": [1.0, 0.0],
    "min_sqnr": [-100.0, 200.0],
    "format": ["npz", "python", "csv"],
    "ranges": ["missing/ranges.json"],
}
"""Values to try by option, right and wrong ones. A flag is given, negated or left out.

An option that a command requires is always given; its first value is the one that most rows have.
"""

STRICTER = {"--atol", "--rtol"}
"""Options with which a result may differ although it is right."""

MEASURED = ("check", "verify", "quantize")
"""Commands that end with 1 for a right result, too: a model that does not fit, or has too few dB."""

Choice = tuple[str, tuple[str, ...]]


def choices(command: str) -> dict[str, list[Choice]]:
    """Return the words to try for each option of a command; an option without any is refused."""
    group: Any = typer.main.get_command(app)
    found: dict[str, list[Choice]] = {}
    for option in group.commands[command].params:
        if not option.name or option.name in SKIPPED or option.param_type_name != "option":
            continue
        if option.name == "output":
            continue
        if option.is_flag:
            flags = [option.opts[0], *option.secondary_opts[:1]]
            words = [(flag,) for flag in flags]
        elif option.name in VALUES:
            words = [(option.opts[0], str(value)) for value in VALUES[option.name]]
        else:
            raise LookupError(f"{command}: no values to try for {option.opts[0]} ({option.name})")
        left_out = [] if option.required else [(option.name, ())]
        found[option.name] = [*left_out, *((option.name, each) for each in words)]
    return found


def pairwise(options: Sequence[Sequence[Choice]], rng: random.Random) -> Iterator[list[Choice]]:
    """Yield rows with one choice of each option, until every pair of choices has been in one.

    A row begins with a pair that is not covered. Of the others, one in ten has the choice that covers most;
    the rest has its first one, which is to be left out where that is possible: a refusal of one would hide
    what the pair does.
    """
    if len(options) == 1:
        yield from ([choice] for choice in options[0])
    left = {
        frozenset(pair)
        for one, other in itertools.combinations(options, 2)
        for pair in itertools.product(one, other)
    }
    while left:
        row = dict(rng.choice(sorted(map(sorted, left))))
        for option in rng.sample(options, len(options)):
            name = option[0][0]
            if name not in row and rng.random() < 0.1:
                given = [*row.items()]
                row |= [max(option, key=lambda each: sum(frozenset((each, one)) in left for one in given))]
        row = {option[0][0]: row.get(option[0][0], option[0][1]) for option in options}
        left -= {frozenset(pair) for pair in itertools.combinations(row.items(), 2)}
        yield [*row.items()]


def write_models(folder: Path, count: int, seed: int) -> list[Path]:
    """Write random models of one recurrent node each, half of open sizes, and recordings of 4 sequences."""
    rng = np.random.default_rng(seed)
    paths = []
    for number in range(count):
        paths.append(folder / f"model_{number}.onnx")
        config = random_config(rng)
        config = config if number % 2 else dataclasses.replace(config, x_dims="symbolic")
        onnx.save(config.build(), paths[-1])
        inputs = [config.make_inputs(rng) for _ in range(4)]
        names = set.intersection(*(set(each) for each in inputs))
        stacks = {name: np.stack([each[name] for each in inputs]) for name in sorted(names)}
        np.savez(recordings(paths[-1]), allow_pickle=False, **stacks)
    return paths


def recordings(model: Path) -> Path:
    """Return the file of recordings of a model."""
    return model.with_suffix(".npz")


def faults(words: Sequence[str], model: Path, folder: Path) -> tuple[int, list[str]]:
    """Run a command in an empty folder; return its exit code and what is wrong about the run."""
    out, before = folder / "out.onnx", model.read_bytes()
    result = CliRunner().invoke(app, list(words))
    found = []
    if result.exit_code not in range(5) or not isinstance(result.exception, SystemExit | None):
        found.append(f"exit code {result.exit_code}, {result.exception!r}")
    if "Traceback" in result.stderr or "unexpected" in result.stderr:
        found.append(result.stderr)
    if "--json" in words:
        try:
            json.loads(result.stdout)
        except ValueError:
            found.append(f"no JSON: {result.stdout[:300]!r}")
    if result.exit_code == 1 and words[0] not in MEASURED and not STRICTER & {*words}:
        found.append(f"differs: {result.stderr}")
    names = {each.name for each in folder.iterdir()}
    # The script that calibrates has its arrays next to it, and a stream its loop (--emit).
    written = {"out.onnx", "out.onnx.data", "out.npz", "out.py", "out.c"}
    allowed = written if result.exit_code == 0 else set()
    if names - allowed:
        found.append(f"left behind: {sorted(names - allowed)}")
    if model.read_bytes() != before:
        found.append("the source was changed")
    if result.exit_code == 0 and "-o" in words:
        if not out.exists():
            found.append("no result")
        elif "--no-verify" in words and not _is_right(words, model, out):
            found.append("the result is wrong")
    return result.exit_code, found


def _is_right(words: Sequence[str], model: Path, out: Path) -> bool:
    """Return whether an unverified result computes the same, where its interface is still the source's."""
    ports = [
        [each.name for each in onnx.load(path, load_external_data=False).graph.input] for path in (model, out)
    ]
    changes = ("--semantics", "--assume-linear-before-reset", "--dequantize", "--set")
    if ports[0] != ports[1] or words[0] in ("stream", "quantize") or any(word in changes for word in words):
        return True
    try:
        return bool(rnnlower.verify(model, out, trials=2))
    except rnnlower.RnnLowerError:
        return True


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("commands", nargs="*", help="which; all but probe and engines if left out")
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    group: Any = typer.main.get_command(app)
    commands = arguments.commands or [each for each in group.commands if each not in SLOW]
    codes: dict[str, collections.Counter[int]] = {each: collections.Counter() for each in commands}
    wrong = 0
    with tempfile.TemporaryDirectory() as name:
        paths = write_models(Path(name), arguments.models, arguments.seed)
        rows = {each: pairwise([*choices(each).values()], rng) for each in commands}
        turn = 0
        while rows and turn < arguments.runs:
            command = [*rows][turn % len(rows)]
            row = next(rows[command], None)
            if row is None:
                del rows[command]
                continue
            model = paths[rng.randrange(len(paths))]
            with tempfile.TemporaryDirectory(dir=name) as folder:
                kinds = [each.name for each in group.commands[command].params]
                sources = [str(model) for each in kinds if each in ("model", "reference", "candidate")]
                sources += [RECORDINGS for each in kinds if each == "recordings"]
                words = [command, *sources, *(word for _, each in row for word in each)]
                words = [str(recordings(model)) if word == RECORDINGS else word for word in words]
                words += ["-o", str(Path(folder) / "out.onnx")] if "output" in kinds else []
                code, found = faults(words, model, Path(folder))
            codes[command][code] += 1
            turn += 1
            for each in found:
                wrong += 1
                print(f"{' '.join(words)}\n  {each}", flush=True)
    for command, counter in codes.items():
        told = ", ".join(f"{count} of exit code {code}" for code, count in sorted(counter.items()))
        print(f"{command:8} {counter.total():5} runs: {told}{', pairs left' if command in rows else ''}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
