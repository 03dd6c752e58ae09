"""`python -m rnnlower`."""

from rnnlower.cli import main

main()
