"""Time the lowering itself, and the command from start to end, against the number of time steps.

python benchmarks/lowering.py --json lowering.json

The lowering is the Python function. The command is a process of its own, which reads, lowers, writes and
verifies; it tells itself how long each of these took.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import onnx
from measuring import VARIANTS, best_of, exponent, recurrent

import rnnlower


def command(model: onnx.ModelProto) -> dict[str, Any]:
    """Return the seconds of `rnnlower unroll` and of its phases, and its processor time with its children."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.onnx")
        onnx.save(model, path)
        line = [sys.executable, "-m", "rnnlower", "unroll", path, "-o", Path(folder, "out.onnx"), "--json"]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        run = subprocess.run([*map(str, line)], stdout=subprocess.PIPE, check=True)
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": seconds, "processor": spent, "phases": json.loads(run.stdout)["seconds"]}


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
        whole = command(model)
        rows.append(
            {
                "steps": steps,
                "seconds": seconds,
                "nodes": nodes,
                "bytes": result.ByteSize(),
                "command": whole,
            }
        )
        per_step = (result.ByteSize() - model.ByteSize()) / steps
        print(f"{steps:6d} {seconds:8.3f} {nodes:7d} {nodes / seconds:8.0f} {per_step:10.0f}", flush=True)
        phases = ", ".join(f"{name} {phase:.2f}" for name, phase in whole["phases"].items())
        print(f"       the command {whole['seconds']:.2f} s: {phases}", flush=True)
    growth = exponent([row["steps"] for row in rows], [row["seconds"] for row in rows])
    whole_growth = exponent([row["steps"] for row in rows], [row["command"]["processor"] for row in rows])
    print(f"exponent {growth:.2f}, of the command's processor time {whole_growth:.2f}")
    if arguments.json:
        arguments.json.write_text(
            json.dumps({"rows": rows, "exponent": growth, "command_exponent": whole_growth}, indent=1)
        )


if __name__ == "__main__":
    main()
