"""Put the results in benchmarks/results into the tables of docs/performance.md and docs/forms.md.

python docs/performance.py
"""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Callable, Sequence
from typing import Any

HERE = pathlib.Path(__file__).parent
PAGES = (HERE / "performance.md", HERE / "forms.md")
RESULTS = HERE.parent / "benchmarks" / "results"
TITLES = {
    "lstm": "LSTM",
    "bilstm": "LSTM, bidirectional",
    "gru": "GRU, linear_before_reset=0",
    "gru_linear": "GRU, linear_before_reset=1",
    "rnn": "RNN",
    "bigru": "GRU, linear_before_reset=1, bidirectional",
    "lstm_lens": "LSTM with sequence_lens",
    "lstm_clip": "LSTM with clip",
    "lstm_peepholes": "LSTM with peepholes",
}


def _table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def _ratios(data: dict[str, Any]) -> str:
    """Return a row for each size, a column for each form."""
    forms = list(data["rows"][0]["ratios"])
    rows = [
        [
            TITLES[row["variant"]],
            ",".join(map(str, row["size"])),
            f"{row['native_ms']:.3f}",
            *(f"{row['ratios'][form]:.2f} ({row['medians'][form]:.2f})" for form in forms),
        ]
        for row in data["rows"]
    ]
    return _table(["", "T,B,I,H", "native ms", *forms], rows)


def _growth(data: dict[str, Any]) -> str:
    """Return a row for each number of time steps, a column for each form; the exponents last."""
    forms = list(data["exponents"])
    steps = sorted({int(step) for times in data["seconds"].values() for step in times})
    steps = sorted({*steps, *(step for beyond in data["beyond"].values() for step in beyond)})

    def shown(form: str, step: int) -> str:
        if step in data["beyond"][form]:
            return f"over {data['limit']:.0f}"
        return _seconds(data["seconds"][form].get(str(step)))

    rows = [[step, *(shown(form, step) for form in forms)] for step in steps]
    rows.append(["exponent", *(f"{data['exponents'][form]:.2f}" for form in forms)])
    return _table(["time steps", *(f"{form}, s" for form in forms)], rows)


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _lowering(data: dict[str, Any]) -> str:
    rows = [
        [row["steps"], f"{row['seconds']:.3f}", row["nodes"], f"{row['nodes'] / row['seconds']:,.0f}"]
        for row in data["rows"]
    ]
    rows.append(["exponent", f"{data['exponent']:.2f}", "", ""])
    return _table(["time steps", "seconds", "nodes", "nodes a second"], rows)


def _startup(data: dict[str, Any]) -> str:
    base = data["rows"][0]["processor_s"]
    rows = [
        [f"`{row['command']}`", row["wall_s"], row["processor_s"], f"{row['processor_s'] / base:.2f}"]
        for row in data["rows"]
    ]
    return _table(["", "clock, s", "processor, s", "times `import onnx`"], rows)


def _environment(data: dict[str, Any]) -> str:
    return (
        f"{data['processor']}, {data['processors']} processors, load {data['load']} at the start; Python "
        f"{data['python']}, onnx {data['onnx']}, onnxruntime {data['onnxruntime']}; {data['date']}."
    )


def _kernels(data: dict[str, Any]) -> str:
    forms = list(data["rows"][0]["kernels"])

    def shown(counts: dict[str, int]) -> str:
        ops = (f"{count} {op_type}" if count > 1 else op_type for op_type, count in counts.items())
        return f"**{sum(counts.values())}**: {', '.join(ops)}"

    rows = [
        [
            TITLES[row["variant"]],
            ",".join(map(str, row["size"])),
            *(shown(row["kernels"][form]) for form in forms),
        ]
        for row in data["rows"]
    ]
    return _table(["", "B,H", *forms], rows)


def _runtime(data: dict[str, Any]) -> str:
    """Return the quality of the choice, then a row for each size: ratios, and the time of loading."""
    forms = ("native", "adapt", "unroll", "scan", "loop")
    made = [form for form in forms if any("ms" in row["forms"][form] for row in data["rows"])]
    ratios, rows = [], []
    for row in data["rows"]:
        times = {name: form["ms"] for name, form in row["forms"].items() if "ms" in form}
        fastest, native = min(times.values()), times.get("native")
        taken = row["taken"][0]
        same = times.get("native" if taken == "keep" else taken, times["lower"])
        ratios.append(min(times["lower"], same) / fastest)
        cells = [_against(row["forms"][form], native, fastest) for form in made]
        loading = [f"{row['forms'][form]['loading_ms']:.0f}" if form in times else "" for form in made]
        size = ",".join(map(str, row["size"]))
        rows.append([TITLES[row["variant"]], size, *cells, f"{taken} {ratios[-1]:.2f}", " / ".join(loading)])
    close = sum(ratio <= 1.1 for ratio in ratios)
    told = (
        f"{data['rows'][0]['on']}: what `lower` takes is within 1.10 of the fastest right form in {close} of "
        f"{len(ratios)} rows; the worst takes {max(ratios):.2f} times as long."
    )
    return f"{told}\n\n" + _table(["", "T,B,I,H", *made, "`lower` takes", "loading ms"], rows)


def _fastest(runtimes: Sequence[dict[str, Any]]) -> str:
    """Return a row for each node and size, and for each runtime its fastest form."""
    columns = [{(row["variant"], *row["size"]): row["forms"] for row in data["rows"]} for data in runtimes]
    measured = dict.fromkeys(key for column in columns for key in column)
    rows = [
        [TITLES[key[0]], ",".join(map(str, key[1:])), *(_best(column.get(key, {})) for column in columns)]
        for key in measured
    ]
    return _table(["", "T,B,I,H", *(data["rows"][0]["on"] for data in runtimes)], rows)


def _best(forms: dict[str, Any]) -> str:
    times = {name: form["ms"] for name, form in forms.items() if "ms" in form and name != "lower"}
    if not times:
        return ""
    name = min(times, key=lambda each: times[each])
    if name == "native":
        return f"native, {times[name]:.3g} ms"
    native = f"{times['native'] / times[name]:.1f}x" if "native" in times else "no native"
    return f"{name}, {times[name]:.3g} ms ({native})"


def _against(form: dict[str, Any], native: float | None, fastest: float) -> str:
    """Milliseconds of the form; its ratios to the own operator, if that is right, and to the fastest."""
    if "ms" not in form:
        return {"different": "wrong", "does not run": "does not run"}.get(form["status"], "")
    to_native = "" if native is None else f"{form['ms'] / native:.2f}, "
    return f"{form['ms']:.3g} ({to_native}{form['ms'] / fastest:.2f})"


RUNTIMES = ("onnxruntime", "openvino", "opencv", "tract")
TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "environment": _environment,
    "runtime": _ratios,
    "dynamic": _ratios,
    "threads": _ratios,
    "kernels": _kernels,
    "hidden_size": _ratios,
    "batch": _ratios,
    "time_steps": _ratios,
    "loading": _growth,
    "lowering": _lowering,
    "startup": _startup,
    **{f"on_{name}": _runtime for name in RUNTIMES},
}


def content(name: str) -> str:
    """Return the content for ``name``: a table of results, or the output of a command."""
    if name == "fastest":
        files = (RESULTS / f"on_{runtime}.json" for runtime in RUNTIMES)
        return _fastest([json.loads(file.read_text(encoding="utf-8")) for file in files])
    if name not in TABLES:
        text = (RESULTS / f"{name}.txt").read_text(encoding="utf-8")
        return "```console\n" + "\n".join(line.rstrip() for line in text.splitlines()) + "\n```"
    return TABLES[name](json.loads((RESULTS / f"{name}.json").read_text(encoding="utf-8")))


def main() -> None:
    places = re.compile(r"(<!-- (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
    for page in PAGES:
        text = places.sub(lambda m: f"{m[1]}\n{content(m[2])}\n\n{m[3]}", page.read_text(encoding="utf-8"))
        page.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
