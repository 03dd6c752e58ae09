"""Measure the start-up time of the command line against that of onnx.

python benchmarks/startup.py --json benchmarks/results/startup.json
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path

MODEL = str(Path(__file__).parent.parent / "models" / "lstm14_defaults.onnx")
COMMANDS = {
    'python -c "import onnx"': ["-c", "import onnx"],
    'python -c "import onnx_ir"': ["-c", "import onnx_ir"],
    "rnnlower --help": ["-m", "rnnlower", "--help"],
    "rnnlower unroll --help": ["-m", "rnnlower", "unroll", "--help"],
    "rnnlower inspect MODEL": ["-m", "rnnlower", "inspect", MODEL],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    wall: dict[str, list[float]] = {name: [] for name in COMMANDS}
    processor: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(arguments.rounds):
        for name, command in COMMANDS.items():
            before, start = _children(), time.perf_counter()
            subprocess.run([sys.executable, *command], stdout=subprocess.DEVNULL, check=True)
            wall[name].append(time.perf_counter() - start)
            processor[name].append(_children() - before)
    base = statistics.median(processor['python -c "import onnx"'])
    rows = []
    print(f"{'command':28} {'wall s':>8} {'processor s':>12} {'to import onnx':>15}")
    for name in COMMANDS:
        seconds, used = statistics.median(wall[name]), statistics.median(processor[name])
        rows.append({"command": name, "wall_s": round(seconds, 3), "processor_s": round(used, 3)})
        print(f"{name:28} {seconds:8.3f} {used:12.3f} {used / base:15.2f}")
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


if __name__ == "__main__":
    main()
