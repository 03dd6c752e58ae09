"""The commands, a file each; `rnnlower.cli` lists them. They import what they use when they run."""
