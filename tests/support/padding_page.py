"""The loops of docs/padding.md.

    PYTHONPATH=tests RNNLOWER_NODE=FOLDER python tests/support/padding_page.py

runs the one in JavaScript, on onnxruntime-web in the folder's node_modules, at every length, and compares
what it returns with the source's outputs.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import tempfile

import numpy as np
import onnx

import rnnlower
from support.padded_models import LSTM_BOTH, with_weights
from support.sessions import session

ROOT = pathlib.Path(__file__).parents[2]
MAXIMUM = 32
_DRIVER = """
import fs from "node:fs";
import { createRequire } from "node:module";
const ort = createRequire(process.cwd() + "/")("onnxruntime-web");
ort.env.wasm.numThreads = 1;
%s
const session = await ort.InferenceSession.create(new Uint8Array(fs.readFileSync(process.argv[2])));
const found = [];
for (const { x, steps } of JSON.parse(fs.readFileSync(process.argv[3])))
  found.push([...await run(session, Float32Array.from(x), steps, %d, 3)]);
console.log(JSON.stringify(found));
process.exit(0);
"""


def block(language: str) -> str:
    """Return the loop of the page in this language."""
    page = (ROOT / "docs" / "padding.md").read_text(encoding="utf-8")
    return re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)[-1]


def page_model() -> onnx.ModelProto:
    """Return a model as the page draws it: y has half as many steps as x, rounded up."""
    return with_weights(
        '<ir_version: 8, opset_import: ["" : 17]> main (float[T, 1, 3] x) => (float[U, 1, 4] y) { '
        f"{LSTM_BOTH.replace('(x,', '(i,').replace('y,', 'v,')} t = Transpose <perm = [0, 2, 1, 3]> (v) "
        "n = Constant <value_ints = [0, 0, -1]> () r = Reshape (t, n) y = MatMul (r, P) "
        "j = Transpose <perm = [1, 2, 0]> (x) d = Conv <pads = [1, 1], strides = [2]> (j, V3) "
        "i = Transpose <perm = [2, 0, 1]> (d) }"
    )


def expected(source: onnx.ModelProto) -> dict[int, tuple[np.ndarray, np.ndarray]]:
    """Return for each length an input and the source's output."""
    rng, whole, found = np.random.default_rng(0), session(source), {}
    for steps in range(1, MAXIMUM + 1):
        x = rng.normal(size=(steps, 1, 3)).astype(np.float32)
        found[steps] = x, whole.run(None, {"x": x})[0]
    return found


def main() -> None:
    source = page_model()
    runs = expected(source)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        onnx.save(rnnlower.pad(source, max={"T": MAXIMUM}), folder / "padded.onnx")
        given = [{"x": x.ravel().tolist(), "steps": steps} for steps, (x, _) in runs.items()]
        (folder / "inputs.json").write_text(json.dumps(given), encoding="utf-8")
        (folder / "loop.mjs").write_text(_DRIVER % (block("javascript"), MAXIMUM), encoding="utf-8")
        command = ["node", *(str(folder / each) for each in ("loop.mjs", "padded.onnx", "inputs.json"))]
        node = os.environ["RNNLOWER_NODE"]
        done = subprocess.run(command, cwd=node, stdout=subprocess.PIPE, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    differences = [
        float(np.abs(np.array(one).reshape(y.shape) - y).max())
        for one, (_, y) in zip(found, runs.values(), strict=True)
    ]
    print(f"the loop in JavaScript: lengths 1 to {MAXIMUM}, largest difference {max(differences):.1e}")
    assert max(differences) < 1e-5


if __name__ == "__main__":
    main()
