"""Time session creation on onnxruntime for an unrolled LSTM, against the time steps and the textbook's.

python benchmarks/loading.py --json loading.json
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import VARIANTS, best_of, exponent, lowered, recurrent, session
from textbook import textbook


def seconds_to_load(content: bytes, repeats: int, limit: float) -> float | None:
    """Return the processor time of the best session creation; ``None`` if they take longer than the limit."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        command = [sys.executable, __file__, "--load", file.name, "--repeats", str(repeats)]
        try:
            result = subprocess.run(command, timeout=limit * repeats, check=True, capture_output=True)
        except subprocess.TimeoutExpired:
            return None
    return float(result.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--variant", choices=VARIANTS, default="lstm")
    parser.add_argument("--hidden-size", type=int, default=64)
    parser.add_argument("--steps", type=int, nargs="+", default=[1000, 2000, 4000, 8000])
    parser.add_argument("--textbook-steps", type=int, nargs="*", default=[1000, 2000, 4000])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--limit", type=float, default=120, help="seconds after which a load is given up")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.load:
        content = arguments.load.read_bytes()
        print(best_of(lambda: session(content), arguments.repeats, time.process_time))
        return
    seconds: dict[str, dict[int, float]] = {"unroll": {}, "unroll, any batch": {}, "textbook": {}}
    beyond: dict[str, list[int]] = {form: [] for form in seconds}
    print(f"{'form':17} {'steps':>6} {'nodes':>7} {'seconds':>8}")
    for steps in arguments.steps:
        for form in seconds:
            if form == "textbook" and steps not in arguments.textbook_steps:
                continue
            source = recurrent(
                VARIANTS[arguments.variant], (steps, 1, arguments.hidden_size, arguments.hidden_size)
            )
            if form == "unroll, any batch":
                source.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "N"
            model = textbook(source) if form == "textbook" else lowered(source, "unroll")
            taken = seconds_to_load(model.SerializeToString(), arguments.repeats, arguments.limit)
            shown = f"over {arguments.limit:.0f}" if taken is None else f"{taken:.2f}"
            print(f"{form:17} {steps:6d} {len(model.graph.node):7d} {shown:>8}", flush=True)
            if taken is None:
                beyond[form].append(steps)
            else:
                seconds[form][steps] = taken
    growth = {
        form: exponent(list(times), list(times.values())) for form, times in seconds.items() if len(times) > 1
    }
    print("exponents", {form: round(value, 2) for form, value in growth.items()})
    if arguments.json:
        data = {"seconds": seconds, "exponents": growth, "limit": arguments.limit, "beyond": beyond}
        arguments.json.write_text(json.dumps(data, indent=1))


if __name__ == "__main__":
    main()
