"""Time of the lowering itself, through the Python function, against the number of time steps.

python benchmarks/lowering.py --json lowering.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from measuring import VARIANTS, best_of, exponent, recurrent

import rnnlower


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=VARIANTS, default="lstm")
    parser.add_argument("--steps", type=int, nargs="+", default=[1000, 2000, 4000, 8000])
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=8)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    rnnlower.unroll(recurrent(VARIANTS[arguments.variant], (10, 1, 64, 64)))  # imports
    print(f"{'steps':>6} {'seconds':>8} {'nodes':>7} {'nodes/s':>8} {'bytes/step':>10}")
    for steps in arguments.steps:
        size = (steps, 1, arguments.hidden_size, arguments.hidden_size)
        model = recurrent(VARIANTS[arguments.variant], size)
        seconds = best_of(lambda model=model: rnnlower.unroll(model), arguments.repeats, time.process_time)
        result = rnnlower.unroll(model)
        nodes = len(result.graph.node)
        rows.append({"steps": steps, "seconds": seconds, "nodes": nodes, "bytes": result.ByteSize()})
        per_step = (result.ByteSize() - model.ByteSize()) / steps
        print(f"{steps:6d} {seconds:8.3f} {nodes:7d} {nodes / seconds:8.0f} {per_step:10.0f}", flush=True)
    growth = exponent([row["steps"] for row in rows], [row["seconds"] for row in rows])
    print(f"exponent {growth:.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "exponent": growth}, indent=1))


if __name__ == "__main__":
    main()
