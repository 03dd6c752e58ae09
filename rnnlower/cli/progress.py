"""Progress on stderr, for what takes longer than a second, where stderr is a terminal."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Iterator
from typing import Protocol

__all__ = ["Tell", "progress"]

_SECONDS = 1.0


class Tell(Protocol):
    """Says what is being done, and how much of it is done."""

    def __call__(self, activity: str, done: int = 0, total: int = 0, /) -> None: ...


def _silent(activity: str, done: int = 0, total: int = 0, /) -> None:
    pass


@contextlib.contextmanager
def progress(activity: str, quiet: bool) -> Iterator[Tell]:
    """Shows what is going on from the second second on; yields what tells of the next activity or step."""
    if quiet or not sys.stderr.isatty():
        yield _silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    # A name may hold what rich would take for markup.
    words = TextColumn("{task.description}", markup=False)
    bar = Progress(
        SpinnerColumn(), words, BarColumn(), TimeElapsedColumn(), console=Console(stderr=True), transient=True
    )
    task = bar.add_task(activity, total=None)

    def tell(activity: str, done: int = 0, total: int = 0, /) -> None:
        counted = f"{activity} {done} of {total}" if total else activity
        bar.update(task, description=counted, completed=done, total=total or None)

    timer = threading.Timer(_SECONDS, bar.start)
    timer.daemon = True
    timer.start()
    try:
        yield tell
    finally:
        timer.cancel()
        timer.join()
        bar.stop()
