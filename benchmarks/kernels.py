"""Kernels of a time step, counted in onnxruntime's profile: what a run of 21 steps runs beyond one of 20.

python benchmarks/kernels.py --json benchmarks/results/kernels.json
"""

from __future__ import annotations

import argparse
import collections
import json
import tempfile
from pathlib import Path

import onnxruntime as ort
from measuring import VARIANTS, feeds_of, lowered, recurrent

FORMS = ("unroll", "scan", "loop")
STEPS = 20
HIDDEN_SIZE = 64
_RUN = "_kernel_time"


def kernels(variant: str, form: str, steps: int) -> collections.Counter[str]:
    """The kernels that one run of the graph runs, by operator."""
    size = (steps, 1, HIDDEN_SIZE, HIDDEN_SIZE)
    model = lowered(recurrent(VARIANTS[variant], size), form)
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.enable_profiling = True
        options.profile_file_prefix = f"{folder}/profile"
        options.log_severity_level = 3
        own = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        own.run(None, feeds_of(VARIANTS[variant], size))
        events = json.loads(Path(own.end_profiling()).read_text())
    nodes = [event for event in events if event.get("cat") == "Node" and event["name"].endswith(_RUN)]
    return collections.Counter(event["args"]["op_name"] for event in nodes)


def of_a_step(variant: str, form: str) -> dict[str, int]:
    """The kernels of one more step, by operator."""
    return dict((kernels(variant, form, STEPS + 1) - kernels(variant, form, STEPS)).most_common())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for variant in VARIANTS:
        steps = {form: of_a_step(variant, form) for form in FORMS}
        rows.append({"variant": variant, "kernels": steps})
        for form, counts in steps.items():
            text = ", ".join(f"{count} {op_type}" for op_type, count in counts.items())
            print(f"{variant:15} {form:7} {sum(counts.values()):3}: {text}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
