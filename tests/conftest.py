"""Settings that all tests share: one command line for each process, and a garbage collector that rests."""

from __future__ import annotations

import functools
import gc

from typer import testing

# Typer reads the signatures of all commands again at each call, which takes longer than many commands.
testing._get_command = functools.cache(testing._get_command)  # type: ignore[attr-defined]


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking all modules and tests again and again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """Let the interpreter free at its end what it would otherwise report as a leak."""
    gc.unfreeze()
