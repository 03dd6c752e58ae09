"""Measurement: how fast a model and its lowered forms are on this machine, on onnxruntime."""

from __future__ import annotations

from rnnlower.benchmarking.driver import bench
from rnnlower.benchmarking.result import BenchResult, BenchVariant, Timing

__all__ = ["BenchResult", "BenchVariant", "Timing", "bench"]
