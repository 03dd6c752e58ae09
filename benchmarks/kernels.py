"""Count the kernels of a time step in onnxruntime's profile: those of 21 steps beyond those of 20.

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
CASES = [
    *((variant, 1, 64) for variant in VARIANTS),
    ("lstm", 1, 512),
    ("gru_linear", 1, 512),
    ("lstm", 16, 64),
    ("gru_linear", 64, 64),
    ("gru", 64, 64),
]
"""Variants, with batch and hidden size."""
_RUN = "_kernel_time"


def kernels(variant: str, form: str, size: tuple[int, ...]) -> collections.Counter[str]:
    """Return the kernels that one run of the graph runs, by operator."""
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


def of_a_step(variant: str, form: str, batch: int, hidden_size: int) -> dict[str, int]:
    """Return the kernels of one more step, by operator."""
    more, fewer = (
        kernels(variant, form, (steps, batch, hidden_size, hidden_size)) for steps in (STEPS + 1, STEPS)
    )
    return dict((more - fewer).most_common())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cases", type=int, help="only the first ones, so many")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    for variant, batch, hidden_size in CASES[: arguments.cases]:
        steps = {form: of_a_step(variant, form, batch, hidden_size) for form in FORMS}
        rows.append({"variant": variant, "size": [batch, hidden_size], "kernels": steps})
        for form, counts in steps.items():
            text = ", ".join(f"{count} {op_type}" for op_type, count in counts.items())
            print(
                f"{variant:15} {batch:3},{hidden_size:<3} {form:7} {sum(counts.values()):3}: {text}",
                flush=True,
            )
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
