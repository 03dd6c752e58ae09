"""Isolation of runtimes from this machine, and termination of their processes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

from rnnlower.processes import limit_set

# Nothing listens at this address.
_NOWHERE = "http://127.0.0.1:9"
_LAST_WORDS = 300


def gigabytes() -> float:
    """Return how much memory a runtime may write to: RNNLOWER_ENGINE_GIGABYTES.

    Raises:
        OptionError: It is not a number above 0.
    """
    return limit_set("RNNLOWER_ENGINE_GIGABYTES", 8.0)


def guarded_environment(folder: str, python: str) -> dict[str, str]:
    """Return a runtime's environment, without a package index to install from or a proxy to send data to.

    ``folder`` is for temporary files. A different interpreter gets none of this interpreter's paths.
    """
    environment = {name: value for name, value in os.environ.items() if name.lower() != "no_proxy"}
    for name in ("http_proxy", "https_proxy", "all_proxy", "ftp_proxy"):
        environment |= {name: _NOWHERE, name.upper(): _NOWHERE}
    environment |= {"PIP_NO_INDEX": "1", "PIP_NO_INPUT": "1", "UV_OFFLINE": "1", "npm_config_offline": "true"}
    environment |= {
        "HF_HUB_OFFLINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "RUST_BACKTRACE": "0",
        "TMPDIR": folder,
    }
    if python == sys.executable:
        environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    else:
        for name in ("PYTHONPATH", "PYTHONHOME"):
            environment.pop(name, None)
    return environment


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a session, and the processes it started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def last_words(file: Path) -> str:
    """Return the last output of a process in one line, or ``""``."""
    text = file.read_bytes()[-4 * _LAST_WORDS :].decode(errors="replace") if file.exists() else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:_LAST_WORDS] if lines else ""
