"""What the tests of a process share."""

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
