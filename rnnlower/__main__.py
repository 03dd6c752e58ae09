"""Entry point of `rnnlower` and of `python -m rnnlower`."""

from __future__ import annotations

__all__ = ["main"]


def main() -> None:
    """Run the command line; Ctrl-C while it is still loading is no traceback either."""
    try:
        from rnnlower.cli import main as run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


if __name__ == "__main__":
    main()
