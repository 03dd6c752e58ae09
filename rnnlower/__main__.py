"""Entry point of `rnnlower` and of `python -m rnnlower`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line; Ctrl-C while it is still loading is no traceback either."""
    _open_standard_streams()
    try:
        from rnnlower.cli import main as run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _open_standard_streams() -> None:
    """Open those that the caller has closed: a model file that got their number would get their output."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w", encoding="utf-8", closefd=False))  # noqa: SIM115


if __name__ == "__main__":
    main()
