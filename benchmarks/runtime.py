"""Run time of the lowered graph on onnxruntime as a ratio to the native kernel.

python benchmarks/runtime.py --json runtime.json
python benchmarks/runtime.py --variants lstm gru --sizes 50,1,64,64 --forms scan unroll scan:4
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from measuring import SIZES, VARIANTS, feeds_of, lowered, ratio_rounds, recurrent

CLOCKS = {"cpu": time.thread_time, "wall": time.perf_counter}
STATISTICS = {"median": statistics.median, "least": min}
FORMS = ("unroll", "scan", "scan:4", "loop")


def measure(
    variant: str, size: tuple[int, ...], forms: list[str], rounds: int, clock: str, statistic: str
) -> dict[str, Any]:
    """One row of the table."""
    source = recurrent(VARIANTS[variant], size)
    models = {form: lowered(source, form) for form in ["native", *forms]}
    seconds = ratio_rounds(
        models, feeds_of(VARIANTS[variant], size), rounds, CLOCKS[clock], STATISTICS[statistic]
    )
    return {
        "variant": variant,
        "size": list(size),
        "native_ms": 1e3 * seconds["native"],
        "ratios": {form: seconds[form] / seconds["native"] for form in forms},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--variants", nargs="+", choices=VARIANTS, default=["lstm", "bilstm", "gru_linear", "gru"]
    )
    parser.add_argument("--sizes", nargs="+", default=[",".join(map(str, size)) for size in SIZES])
    parser.add_argument("--forms", nargs="+", default=list(FORMS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=CLOCKS, default="cpu", help="the thread's own time, or the wall's")
    parser.add_argument("--statistic", choices=STATISTICS, default="median", help="of the runs of a round")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = []
    print(
        f"{'':14} {'T,B,I,H':>16} {'native ms':>9}"
        + "".join(f"{form:>9}" for form in arguments.forms)
        + "     best"
    )
    for variant in arguments.variants:
        for text in arguments.sizes:
            size = tuple(int(number) for number in text.split(","))
            row = measure(
                variant, size, arguments.forms, arguments.rounds, arguments.clock, arguments.statistic
            )
            rows.append(row)
            ratios = list(row["ratios"].values())
            cells = "".join(f"{ratio:9.2f}" for ratio in ratios)
            print(f"{variant:14} {text:>16} {row['native_ms']:9.3f}{cells}{min(ratios):9.2f}", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
