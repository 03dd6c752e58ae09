"""Running the command line inside the test process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
from typer.testing import CliRunner

from rnnlower.cli import app


class Run:
    """The outcome of a command: ``code``, ``stdout``, ``stderr``."""

    def __init__(self, *arguments: object) -> None:
        result = CliRunner().invoke(app, [str(argument) for argument in arguments])
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        self.code, self.stdout, self.stderr = result.exit_code, result.stdout, result.stderr

    @property
    def json(self) -> Any:
        """Standard output, which must be one JSON object and nothing else."""
        return json.loads(self.stdout)


def rnnlower(*arguments: object, code: int = 0) -> Run:
    """Run the command and checks its exit code; no code ever comes with a traceback."""
    run = Run(*arguments)
    assert run.code == code, f"exit code {run.code} for {arguments}:\n{run.stdout}{run.stderr}"
    assert "Traceback" not in run.stderr
    return run


def save(model: onnx.ModelProto, folder: Path, name: str = "model.onnx") -> Path:
    """Write the model into the folder."""
    path = folder / name
    onnx.save(model, path)
    return path
