"""Session creation on onnxruntime for an unrolled LSTM, against the number of time steps and the textbook's.

python benchmarks/loading.py --json loading.json
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

from measuring import VARIANTS, best_of, exponent, lowered, recurrent, session
from textbook import textbook


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=VARIANTS, default="lstm")
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--steps", type=int, nargs="+", default=[1000, 2000, 4000, 8000])
    parser.add_argument("--textbook-steps", type=int, nargs="*", default=[1000, 2000, 4000])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    seconds: dict[str, dict[int, float]] = {"unroll": {}, "textbook": {}}
    print(f"{'form':9} {'steps':>6} {'nodes':>7} {'seconds':>8}")
    for steps in arguments.steps:
        for form in seconds:
            if form == "textbook" and steps not in arguments.textbook_steps:
                continue
            source = recurrent(
                VARIANTS[arguments.variant], (steps, 1, arguments.hidden_size, arguments.hidden_size)
            )
            model = textbook(source) if form == "textbook" else lowered(source, form)
            content = model.SerializeToString()
            seconds[form][steps] = best_of(
                lambda content=content: session(content), arguments.repeats, time.process_time
            )
            print(f"{form:9} {steps:6d} {len(model.graph.node):7d} {seconds[form][steps]:8.2f}", flush=True)
    growth = {
        form: exponent(list(times), list(times.values())) for form, times in seconds.items() if len(times) > 1
    }
    print("exponents", {form: round(value, 2) for form, value in growth.items()})
    if arguments.json:
        arguments.json.write_text(json.dumps({"seconds": seconds, "exponents": growth}, indent=1))


if __name__ == "__main__":
    main()
