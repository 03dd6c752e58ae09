"""Entry point of `python -m rnnlower`."""

from rnnlower.cli import main

main()
