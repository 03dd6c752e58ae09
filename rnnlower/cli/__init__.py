"""The command line, the only room that prints. Data goes to stdout, everything else to stderr."""

from rnnlower.cli.app import app, main

__all__ = ["app", "main"]
