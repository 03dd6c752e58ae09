"""The environment of a measurement.

python benchmarks/environment.py > benchmarks/results/environment.json
"""

from __future__ import annotations

import json
import os
import platform
import time
from importlib.metadata import version
from pathlib import Path


def describe() -> dict[str, str | int | float]:
    """Return processor, versions, date, and how busy the machine was."""
    return {
        "processor": _processor(),
        "processors": os.cpu_count() or 0,
        "load": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        "onnxruntime": version("onnxruntime"),
        "onnx": version("onnx"),
        "date": time.strftime("%Y-%m-%d"),
    }


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


if __name__ == "__main__":
    print(json.dumps(describe(), indent=1))
