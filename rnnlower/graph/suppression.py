"""Suppression of libraries' log output and of the garbage collector during long work."""

from __future__ import annotations

import contextlib
import gc
import logging
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def quiet_libraries() -> Iterator[None]:
    """Suppress the logs and warnings of onnx_ir and onnxscript while they analyze a copy."""
    loggers = [logging.getLogger(name) for name in ("onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    try:
        for logger in loggers:
            logger.setLevel(logging.CRITICAL)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextlib.contextmanager
def paused_collection() -> Iterator[None]:
    """Pause the garbage collector, which would walk the growing graph repeatedly and find nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
