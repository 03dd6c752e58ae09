"""A command that stands for a runtime: a script that runs the model on onnxruntime and may change things."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

_SCRIPT = """
import sys
import numpy as np, onnxruntime
model = sys.argv[1]
{model}
session = onnxruntime.InferenceSession(model)
inputs = np.load(sys.argv[2])
names = [output.name for output in session.get_outputs()]
outputs = dict(zip(names, session.run(None, {{name: inputs[name] for name in inputs.files}})))
{outputs}
np.savez(sys.argv[3], **outputs)
"""


def runtime_command(folder: Path, *, model: str = "", outputs: str = "") -> str:
    """Return a ``cmd:`` line; ``model`` (its path) and ``outputs`` are code that changes those."""
    script = folder / "board.py"
    script.write_text(_SCRIPT.format(model=model, outputs=outputs))
    return f"cmd:{shlex.quote(sys.executable)} {shlex.quote(str(script))} {{model}} {{inputs}} {{outputs}}"
