"""Benchmarks: the speed of a model and of its lowered forms on this machine."""

from __future__ import annotations

from rnnlower.benchmarking.driver import bench
from rnnlower.benchmarking.result import BenchResult, BenchVariant, Timing

__all__ = ["BenchResult", "BenchVariant", "Timing", "bench"]
