"""Progress on stderr, and the times of a command's phases.

Progress is shown for work that takes longer than a second, if stderr is a terminal.
"""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Iterator

from rnnlower.cli.common import to_stderr
from rnnlower.passes.options import Progress as Tell

_SECONDS = 1.0


class Phases:
    """The times of a command's activities, for -v and --json; steps of one activity are one phase."""

    def __init__(self, wanted: bool) -> None:
        self._wanted = wanted
        self.seconds: dict[str, float] = {}
        self._current, self._since = "", 0.0

    def begin(self, activity: str) -> None:
        """End the previous phase and begin one, named after the activity's first word and its role."""
        now = time.perf_counter()
        if self._current:
            self.seconds[self._current] = self.seconds.get(self._current, 0.0) + now - self._since
        found = re.match(r"verifying: \w+|\w+|", activity)
        self._current, self._since = found.group() if found else "", now

    def rounded(self) -> dict[str, float]:
        """Return the time of each phase, to the millisecond."""
        return {name: round(seconds, 3) for name, seconds in self.seconds.items()}

    def print(self) -> None:
        """Print the phases on stderr, if they are wanted."""
        if self._wanted:
            phases = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in self.seconds.items())
            to_stderr(f"rnnlower: {phases}")


@contextlib.contextmanager
def progress(
    activity: str, quiet: bool, phases: Phases | None = None, *, estimated: bool = False
) -> Iterator[Tell]:
    """Show the progress from the second second on; yield the callback for the next activity or step.

    Args:
        activity: The first activity.
        phases: Gets the times of the activities.
        estimated: Whether totals are estimates. Then the time left is shown, not the time so far, and an
            activity without a total is a line that stays, on a terminal or not.
    """
    phases = phases or Phases(False)
    phases.begin(activity)
    with _progress_bar(activity, quiet, estimated) as show:

        def tell(activity: str, done: int, total: int) -> None:
            phases.begin(activity)
            show(activity, done, total)

        yield tell
    phases.begin("")


def _lines(activity: str, done: int, total: int) -> None:
    if not total:
        to_stderr(activity)


@contextlib.contextmanager
def _progress_bar(activity: str, quiet: bool, estimated: bool) -> Iterator[Tell]:
    """Yield the callback that writes to the terminal, if there is one."""
    if quiet or not sys.stderr.isatty():
        yield _lines if estimated and not quiet else lambda activity, done, total: None
        return
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        Progress,
        SpinnerColumn,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    # A name may contain what rich would interpret as markup.
    words = TextColumn("{task.description}", markup=False)
    ends = [TimeRemainingColumn(), TextColumn("left")] if estimated else [TimeElapsedColumn()]
    bar = Progress(SpinnerColumn(), words, BarColumn(), *ends, console=Console(stderr=True), transient=True)
    task = bar.add_task(activity, total=None)

    def tell(activity: str, done: int, total: int) -> None:
        if estimated and not total:
            bar.console.print(activity, markup=False, highlight=False)
            return
        counted = f"{activity} {done} of {'about ' * estimated}{total}" if total else activity
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
