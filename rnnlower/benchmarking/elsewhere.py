"""Timing of forms on a runtime other than onnxruntime, with the interface of :mod:`.worker`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import onnx

from rnnlower.benchmarking.worker import Worker, WorkerError
from rnnlower.engines.known import Engine
from rnnlower.engines.opened import EngineError, Opened, open_on
from rnnlower.engines.session import Array


class RuntimeWorker(Worker):
    """Models on a runtime, in a child process that ends with each request; it counts no kernels."""

    def __init__(self, runtime: Engine, threads: int) -> None:
        super().__init__(threads)
        self._runtime = runtime

    def check(self, path: str, feeds: Mapping[str, Array]) -> tuple[dict[str, Any], int | None]:
        with self._opened(path) as opened:
            return opened.run(feeds), None

    def measure(
        self, path: str, feeds: Mapping[str, Array], warmup: int, runs: int
    ) -> tuple[float, list[float]]:
        with self._opened(path) as opened:
            return opened.measure(feeds, warmup, runs)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[Opened]:
        try:
            with contextlib.closing(open_on(self._runtime, onnx.load(path), self._threads)) as opened:
                yield opened
        except EngineError as error:
            raise WorkerError(str(error)) from error
