"""The commands; `rnnlower.cli.app` lists them. They import what they use when they run."""
