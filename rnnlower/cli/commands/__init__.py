"""The commands, one file each; `rnnlower.cli.app` lists them. They import what they use when they run."""
