"""Suppression of libraries' log output and of the garbage collector during long work."""

from __future__ import annotations

import contextlib
import gc
import logging
import warnings
from collections.abc import Iterator

_NOWHERE = logging.NullHandler()
_LOGGERS = [logging.getLogger(name) for name in ("onnx_ir", "onnxscript")]


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Suppress the logs and warnings of onnx_ir and onnxscript while they analyze a copy."""
    # Another level would empty the caches of all loggers, which takes longer than visiting a node.
    before = [(logger.handlers, logger.propagate) for logger in _LOGGERS]
    try:
        for logger in _LOGGERS:
            logger.handlers, logger.propagate = [_NOWHERE], False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, (handlers, propagate) in zip(_LOGGERS, before, strict=True):
            logger.handlers, logger.propagate = handlers, propagate


@contextlib.contextmanager
def paused_gc() -> Iterator[None]:
    """Pause the garbage collector, which would walk the growing graph repeatedly and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
