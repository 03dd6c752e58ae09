"""Draw the plots of docs/performance.md from the results in benchmarks/results.

python benchmarks/plots.py
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

HERE = Path(__file__).parent
TITLES = {
    "lstm": "LSTM",
    "bilstm": "LSTM, bidirectional",
    "gru": "GRU, linear_before_reset=0",
    "gru_linear": "GRU, linear_before_reset=1",
}
# Axis of the sweep: its label, and its place in a size (T, B, I, H).
SWEEPS = {"hidden_size": ("hidden size", 3), "batch": ("batch", 1), "time_steps": ("time steps", 0)}
COLORS = {
    "textbook": "tab:gray",
    "native": "black",
    "unroll": "tab:blue",
    "scan": "tab:orange",
    "scan:4": "tab:red",
    "loop": "tab:green",
}


def results(name: str) -> dict[str, Any]:
    """Return the results that a script has written."""
    data: dict[str, Any] = json.loads((HERE / "results" / f"{name}.json").read_text())
    return data


def plot_sweep(name: str) -> None:
    """Plot the ratio to the native kernel, with a panel for each variant."""
    label, place = SWEEPS[name]
    rows = results(name)["rows"]
    variants = list(dict.fromkeys(row["variant"] for row in rows))
    figure = Figure(figsize=(3.4 * len(variants), 3.4), layout="constrained")
    panels = figure.subplots(1, len(variants), sharey=True, squeeze=False)[0]
    for axes, variant in zip(panels, variants, strict=True):
        own = [row for row in rows if row["variant"] == variant]
        sizes = [row["size"][place] for row in own]
        for form in own[0]["ratios"]:
            _line(axes, sizes, [row["ratios"][form] for row in own], form)
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_title(TITLES.get(variant, variant), fontsize=9)
        _log_axes(axes, sizes, label)
    panels[0].set_ylabel("run time, native kernel = 1")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=6, frameon=False)
    _save(figure, name)


def plot_growth(name: str, label: str) -> None:
    """Plot seconds against time steps, with a line for each form and its exponent."""
    data = results(name)
    if "rows" in data:
        data = {
            "seconds": {"unroll": {row["steps"]: row["seconds"] for row in data["rows"]}},
            "exponents": {"unroll": data["exponent"]},
        }
    figure = Figure(figsize=(4.6, 3.4), layout="constrained")
    axes = figure.subplots()
    steps: list[int] = []
    for form, times in data["seconds"].items():
        own = [int(step) for step in times]
        _line(axes, own, list(times.values()), form, f"{form} (exponent {data['exponents'][form]:.2f})")
        steps = sorted({*steps, *own})
    _log_axes(axes, steps, "time steps")
    axes.set_ylabel(label)
    axes.legend(frameon=False, fontsize=8)
    _save(figure, name)


def _line(axes: Axes, x: list[int], y: list[float], form: str, label: str = "") -> None:
    axes.plot(x, y, marker="o", markersize=3, color=COLORS.get(form), label=label or form)


def _log_axes(axes: Axes, ticks: list[int], label: str) -> None:
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel(label)
    axes.grid(True, linewidth=0.3)


def _save(figure: Figure, name: str) -> None:
    # No date and fixed ids, so that the same results give the same file.
    figure.savefig(HERE / "plots" / f"{name}.svg", metadata={"Date": None})


def main() -> None:
    (HERE / "plots").mkdir(exist_ok=True)
    with mpl.rc_context({"svg.hashsalt": "rnnlower", "svg.fonttype": "none", "font.size": 8}):
        for name in SWEEPS:
            plot_sweep(name)
        plot_growth("loading", "session creation, s")
        plot_growth("lowering", "lowering, s")


if __name__ == "__main__":
    main()
