"""Timing of forms on a runtime other than onnxruntime, with the interface of :mod:`.worker`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import onnx

from rnnlower.benchmarking.worker import WorkerError
from rnnlower.engines.known import Engine
from rnnlower.engines.opened import EngineError, Opened, open_on
from rnnlower.engines.session import Array


class RuntimeWorker:
    """Model on a runtime, in a child process that ends with each request."""

    def __init__(self, runtime: Engine, threads: int) -> None:
        self._runtime, self._threads = runtime, threads

    def close(self) -> None:
        """Release nothing."""

    def check(self, path: str, feeds: Mapping[str, Array]) -> tuple[dict[str, Any], int | None]:
        """Return the outputs of one run; the number of kernels in it is not known.

        Raises:
            WorkerError: The model does not run.
        """
        with self._opened(path) as opened:
            return opened.run(feeds), None

    def measure(
        self, path: str, feeds: Mapping[str, Array], warmup: int, runs: int
    ) -> tuple[float, list[float]]:
        """Return the seconds to load the model, and of each of its runs after ``warmup`` others.

        Raises:
            WorkerError: The model does not run.
        """
        with self._opened(path) as opened:
            return opened.measure(feeds, warmup, runs)

    @contextlib.contextmanager
    def _opened(self, path: str) -> Iterator[Opened]:
        try:
            with contextlib.closing(open_on(self._runtime, onnx.load(path), self._threads)) as opened:
                yield opened
        except EngineError as error:
            raise WorkerError(str(error)) from error
