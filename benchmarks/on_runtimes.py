"""Every form of a recurrent node on a runtime: its own operator, adapted, lowered, and what `lower` takes.

python benchmarks/on_runtimes.py tract --json benchmarks/results/on_tract.json

Each form is checked before it is timed. Rows that the file holds are not measured again.
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from measuring import VARIANTS, recurrent

import rnnlower

VARIANT_NAMES = ("lstm", "bilstm", "gru", "gru_linear")
SIZES = ("50,1,64,64", "100,1,128,128", "100,1,256,256", "50,16,128,128", "200,1,32,32")
"""Time steps, batch, input_size, hidden_size."""


def measure(engine: str, variant: str, size: tuple[int, ...], runs: int) -> dict[str, Any]:
    """One row: milliseconds of a run (the tenth percentile) and of loading, by form."""
    result = rnnlower.bench(recurrent(VARIANTS[variant], size), on=engine, runs=runs)
    forms: dict[str, Any] = {}
    for each in result.variants:
        if each.latency is None or each.session is None:
            forms[each.name] = {"status": each.status, "reason": each.reason}
        else:
            forms[each.name] = {"ms": round(each.latency.p10, 4), "loading_ms": round(each.session.min, 1)}
    taken = next(each.taken for each in result.variants if each.name == "lower")
    label = engine if result.runtime is None else result.runtime.label
    return {"variant": variant, "size": list(size), "forms": forms, "taken": list(taken), "on": label}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("engine")
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANT_NAMES))
    parser.add_argument("--sizes", nargs="+", default=list(SIZES))
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--seconds", default="20", help="what loading or running may take")
    parser.add_argument("--json", type=Path, required=True)
    arguments = parser.parse_args()
    os.environ["RNNLOWER_ENGINE_SECONDS"] = arguments.seconds
    rows = json.loads(arguments.json.read_text())["rows"] if arguments.json.exists() else []
    done = {(row["variant"], *row["size"]) for row in rows}
    for variant in arguments.variants:
        for text in arguments.sizes:
            size = tuple(int(number) for number in text.split(","))
            if (variant, *size) in done:
                continue
            row = measure(arguments.engine, variant, size, arguments.runs)
            rows.append(row)
            times = {name: form.get("ms", form.get("status")) for name, form in row["forms"].items()}
            print(f"{variant:10} {text:>16} {times} {row['taken']}", flush=True)
            arguments.json.write_text(json.dumps({"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
