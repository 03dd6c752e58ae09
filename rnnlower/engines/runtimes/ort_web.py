"""onnxruntime-web, the build for browsers, on WebAssembly in Node.js."""

from __future__ import annotations

import base64
import functools
import json
import os
from collections.abc import Callable
from typing import Any

from rnnlower.engines.child import Arrays, Model, Run

ABOUT = {
    "title": "onnxruntime-web",
    "install": "npm install onnxruntime-web, in the folder that RNNLOWER_NODE names, or here",
    "needs": ("node",),
    "tried": "1.30.0",
}


def version() -> str | None:
    """Return the version that Node.js finds."""
    try:
        with open(os.path.join(_package(), "package.json"), encoding="utf-8") as file:
            found: str = json.load(file)["version"]
    except OSError:
        return None
    return found


def _package() -> str:
    folder = os.path.abspath(os.environ.get("RNNLOWER_NODE") or ".")
    return os.path.join(folder, "node_modules", "onnxruntime-web")


def load(model: Model) -> Run:
    import numpy as np

    ask = _node()

    def run(feeds: Arrays) -> Arrays:
        values = {}
        for name, array in feeds.items():
            data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
            values[name] = {"type": str(array.dtype), "dims": list(array.shape), "data": data}
        results = {}
        for name, value in ask({"feeds": values}).items():
            raw = base64.b64decode(value["data"])
            results[name] = np.frombuffer(raw, np.dtype(value["type"])).reshape(value["dims"])
        return results

    ask({"model": model.path})
    return run


@functools.cache
def _node() -> Callable[[Any], Any]:
    """Start a node process, which takes long and holds the last loaded model, and return how to ask it."""
    import subprocess

    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ort_web.mjs")
    node = subprocess.Popen(["node", script, _package()], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def ask(request: Any) -> Any:
        assert node.stdin is not None
        assert node.stdout is not None
        node.stdin.write(json.dumps(request).encode() + b"\n")
        node.stdin.flush()
        line = node.stdout.readline()
        if not line:
            _node.cache_clear()
            raise RuntimeError("node ended")
        answer = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    return ask
