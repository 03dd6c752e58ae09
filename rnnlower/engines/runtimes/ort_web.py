"""onnxruntime-web, the build for browsers, on WebAssembly in Node.js."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    import base64
    import subprocess

    import numpy as np

    script = os.path.join(os.path.dirname(os.path.abspath(__file__)), "ort_web.mjs")
    node = subprocess.Popen(
        ["node", script, _package(), model.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )

    def ask(request: Any) -> Any:
        assert node.stdin is not None
        assert node.stdout is not None
        node.stdin.write(json.dumps(request).encode() + b"\n")
        node.stdin.flush()
        answer = json.loads(node.stdout.readline() or '{"error": "node ended"}')
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def run(feeds: Arrays) -> Arrays:
        values = {}
        for name, array in feeds.items():
            data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
            values[name] = {"type": str(array.dtype), "dims": list(array.shape), "data": data}
        results = {}
        for name, value in ask(values).items():
            raw = base64.b64decode(value["data"])
            results[name] = np.frombuffer(raw, np.dtype(value["type"])).reshape(value["dims"])
        return results

    ask({})
    return run
