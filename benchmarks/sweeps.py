"""Measure the ratio of run time to the native kernel against hidden size, batch and number of time steps.

python benchmarks/sweeps.py hidden_size --json benchmarks/results/hidden_size.json
python benchmarks/sweeps.py batch --json benchmarks/results/batch.json
python benchmarks/sweeps.py time_steps --json benchmarks/results/time_steps.json

The processor time of the one thread that runs is taken, so other processes count less than on the clock.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import onnx
from measuring import VARIANTS, feeds_of, lowered, ratios, recurrent
from textbook import textbook

SWEEPS = {
    "hidden_size": [(50, 1, n, n) for n in (16, 32, 64, 128, 256, 512)],
    "batch": [(50, n, 128, 128) for n in (1, 2, 4, 8, 16, 32)],
    "time_steps": [(n, 1, 128, 128) for n in (10, 25, 50, 100, 250, 500)],
}
"""Time steps, batch, input_size, hidden_size."""
FORMS = ("textbook", "unroll", "scan", "scan:4", "loop")


def form_of(source: onnx.ModelProto, form: str) -> onnx.ModelProto:
    """Return the model in one of `FORMS` or native."""
    return textbook(source) if form == "textbook" else lowered(source, form)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("sweep", choices=SWEEPS)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=["lstm", "bilstm", "gru"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--sizes", type=int, help="only the first ones, so many")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    print(f"{'':10} {'T,B,I,H':>16} {'native ms':>9}" + "".join(f"{form:>10}" for form in FORMS))
    for name in arguments.variants:
        for size in SWEEPS[arguments.sweep][: arguments.sizes]:
            source = recurrent(VARIANTS[name], size)
            models = {form: form_of(source, form) for form in ("native", *FORMS)}
            row = ratios(models, feeds_of(VARIANTS[name], size), arguments.rounds)
            rows.append({"variant": name, "size": size, **row})
            cells = "".join(f"{ratio:10.2f}" for ratio in row["ratios"].values())
            print(f"{name:10} {','.join(map(str, size)):>16} {row['native_ms']:9.3f}{cells}", flush=True)
    if arguments.json:
        text = json.dumps({"sweep": arguments.sweep, "rows": rows}, indent=1)
        arguments.json.write_text(text + "\n")


if __name__ == "__main__":
    main()
