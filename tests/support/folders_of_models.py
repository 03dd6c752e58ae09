"""Folders of models, for the tables that are made on demand."""

from __future__ import annotations

import pathlib

import rnnlower


def recurrent_models(folder: pathlib.Path) -> list[pathlib.Path]:
    """Return the models with a recurrent node in a folder and below it; end the script if there are none."""
    paths = [path for path in sorted(folder.rglob("*.onnx")) if rnnlower.inspect(path)]
    if not paths:
        raise SystemExit(f"no model with a recurrent node below {folder}")
    return paths
