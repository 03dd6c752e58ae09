"""Code in a Python process of its own."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


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
