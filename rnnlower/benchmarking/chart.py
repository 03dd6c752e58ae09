"""The chart of a benchmark, drawn by matplotlib, which the extra `plot` installs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rnnlower.benchmarking.bench_result import BenchResult
from rnnlower.errors import OptionError
from rnnlower.files.publishing import check_companion


def check_chart(path: Path) -> None:
    """Refuse a chart that cannot be drawn into this file, before anything is measured.

    Raises:
        OptionError: Another format than PNG or SVG, no folder to put it in, a folder in its place, or no
            matplotlib.
    """
    check_companion("--plot", path, (".png", ".svg"), "the chart is a .png or an .svg")
    _matplotlib()


def draw_chart(result: BenchResult, path: Path, title: str) -> None:
    """Draw bars of latency, session creation and file size, one for each variant that was timed."""
    matplotlib = _matplotlib()
    variants = list(reversed(result.timed))
    names = [variant.name for variant in variants]
    latencies = [variant.latency for variant in variants if variant.latency]
    sessions = [variant.session for variant in variants if variant.session]
    medians = [latency.median for latency in latencies]
    spread = [
        [latency.median - latency.p10 for latency in latencies],
        [latency.p90 - latency.median for latency in latencies],
    ]
    with matplotlib.rc_context({"svg.hashsalt": "rnnlower", "svg.fonttype": "none", "font.size": 9}):
        figure = matplotlib.figure.Figure(figsize=(10, 1.3 + 0.35 * len(names)), layout="constrained")
        figure.suptitle(title)
        axes = figure.subplots(1, 3, sharey=True)
        bars = axes[0].barh(names, medians, xerr=spread, capsize=2)
        ratios = ["" if variant.ratio is None else f"{variant.ratio:.2f}x" for variant in variants]
        axes[0].bar_label(bars, ratios, padding=4)
        axes[1].barh(names, [session.median for session in sessions], color="tab:orange")
        axes[2].barh(names, [(variant.file_bytes or 0) / 1e3 for variant in variants], color="tab:green")
        threads = f"{result.threads or 'all'} thread{'' if result.threads == 1 else 's'}"
        for axis, label in zip(
            axes, (f"latency, ms ({threads})", "session creation, ms", "file, kB"), strict=True
        ):
            axis.set_xlabel(label)
            axis.margins(x=0.2)
            axis.spines[["top", "right"]].set_visible(False)
        figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix.lower() == ".svg" else None)


def _matplotlib() -> Any:
    try:
        import matplotlib
        import matplotlib.figure
    except ImportError as error:
        raise OptionError(
            "--plot needs matplotlib, which rnnlower brings only if asked: pip install 'rnnlower[plot]'"
        ) from error
    return matplotlib
