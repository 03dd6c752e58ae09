"""Running the command line inside the test process."""

from __future__ import annotations

import contextlib
import functools
import io
import json
from pathlib import Path
from typing import Any

import onnx
import typer.main

from rnnlower.cli import app

# Reading the signatures of all commands takes longer than many commands.
_command = functools.cache(typer.main.get_command)


class Run:
    """The outcome of a command: ``code``, ``stdout``, ``stderr``."""

    def __init__(self, *arguments: object) -> None:
        streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            try:
                _command(app).main([str(argument) for argument in arguments], prog_name="rnnlower")
            except SystemExit as end:
                self.code = end.code
        self.stdout, self.stderr = (stream.buffer.getvalue().decode() for stream in streams)

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
