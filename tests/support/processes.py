"""Code that runs in a Python child process."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time
from pathlib import Path

from rnnlower.engines import session
from support.places import ROOT


def process(code: str, *line: object, limit: int | None = None) -> subprocess.CompletedProcess[str]:
    def set_limit() -> None:
        if limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(path for path in sys.path if path))
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, line)],
        capture_output=True,
        text=True,
        env=environment,
        cwd=ROOT,
        preexec_fn=set_limit,  # the child has no threads yet
        check=False,
    )


def open_or_die(key: int, source: str | bytes, optimize: bool, *others: object) -> None:
    """In the place of what opens a session of onnxruntime: the variable says which models end the process."""
    which = os.environ["DIES"]
    content = Path(source).read_bytes() if isinstance(source, str) else source
    if which == "always" or (optimize and (which == "optimizing" or which.encode() in content)):
        os.abort()
    if which == "late":
        time.sleep(1000)
    session._open(key, source, optimize, *others)
