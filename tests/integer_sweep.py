"""Quantize random recurrent models: each result is measured, or refused with a message.

python tests/integer_sweep.py --count 500 --seed 1
"""

from __future__ import annotations

import argparse
import collections
import pathlib
import sys
import traceback

import numpy as np

sys.path.append(str(pathlib.Path(__file__).parent.parent / "benchmarks"))
from support.configs import Config, random_config

import rnnlower
from rnnlower.errors import RnnLowerError

MIN_SQNR = {"int8": 20, "int16": 30, "uint16": 30, "int8-only": 5}
"""The dB that are expected of a few random steps."""

RECORDINGS = 4


def outcome_of(config: Config, rng: np.random.Generator) -> tuple[str, str]:
    """Return the outcome of a model, and details."""
    activations = str(rng.choice([*MIN_SQNR]))
    strategy = str(rng.choice(["unroll", "scan"] if config.x_dims in ("static", "batch") else ["scan"]))
    label = f"{activations} {strategy} {config}"
    recordings = [config.make_inputs(rng) for _ in range(RECORDINGS)]
    defaults = {name for name, how in config.provisions.items() if how == "initializer_input"}
    data = [{name: each[name] for name in each.keys() - defaults} for each in recordings]
    try:
        report = rnnlower.quantize.with_report(
            config.build(),
            calibration=data,
            activations=activations,
            strategy=strategy,
            freeze=True,
            verify=True,
        )[1]
    except RnnLowerError as error:
        return f"{type(error).__name__}", f"{error}\n  {label}"
    except Exception:
        return "crash", f"{label}\n{traceback.format_exc(limit=-4)}"
    figures = [(each.name, each.sqnr, each.sqnr_default) for each in report.outputs]
    low = report.sqnr is not None and report.sqnr < MIN_SQNR[activations]
    return ("low" if low else "measured"), f"{figures}\n  {label}"


def main() -> int:
    """Quantize the models, and print what became of them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    outcomes: collections.Counter[str] = collections.Counter()
    number = arguments.first
    while sum(outcomes.values()) < arguments.count:
        rng = np.random.default_rng([arguments.seed, number])
        number += 1
        config = random_config(rng)
        refused = "input" in (config.W, config.R) or config.place not in ("main", "function")
        if refused or config.dtype != "float32" or not config.seq_length or not config.batch_size:
            continue
        outcome, details = outcome_of(config, rng)
        outcomes[outcome] += 1
        if outcome != "measured":
            print(f"{number - 1} {outcome}: {details}", flush=True)
    print(dict(outcomes))
    return bool(outcomes["crash"])


if __name__ == "__main__":
    sys.exit(main())
