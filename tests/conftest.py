"""A garbage collector that rests during all tests."""

from __future__ import annotations

import gc


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking all modules and tests again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter free at its end what it would otherwise report as a leak."""
    gc.unfreeze()
