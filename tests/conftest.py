"""Settings for all tests: an output path, fewer garbage collections, and commands that are built once."""

from __future__ import annotations

import functools
import gc
import signal
import sys
from pathlib import Path

import pytest
import typer.main
from support.forking import python

# Reading the signatures of all commands takes longer than many commands; each call of an app does it.
typer.main.get_command = functools.cache(typer.main.get_command)


def pytest_configure(config: pytest.Config) -> None:
    """Heed signals that nohup and background shells ignore, as child processes would then do."""
    # The interpreter then frees at its end what it would otherwise report as a leak. Before, pytest collects
    # garbage several times.
    config.add_cleanup(gc.unfreeze)
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Keep the garbage collector from walking all modules, tests and large graphs again and again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000_000, 20, 20)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The place of a result."""
    return tmp_path / "out.onnx"


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let child processes fork from one with all libraries, where their start is not the test."""
    monkeypatch.setattr(sys, "executable", python())
