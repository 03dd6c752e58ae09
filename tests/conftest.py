"""The place of a result, and a garbage collector that rests, for all tests."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking all modules and tests again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter free at its end what it would otherwise report as a leak."""
    gc.unfreeze()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The place of a result."""
    return tmp_path / "out.onnx"
