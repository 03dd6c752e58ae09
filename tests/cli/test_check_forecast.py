"""The forecast of `check`: what `lower` would leave, and the options that would resolve it."""

from __future__ import annotations

from pathlib import Path

import onnx
from support.cli_helpers import rnnlower

LOOP = """
    <ir_version: 8, opset_import: ["" : 17]>
    main (float[2] x, int64 n) => (float[2] y) <bool go = {1}>
    {
        y = Loop <body = b (int64 i, bool c, float[2] s) => (bool k, float[2] r) {
            k = Identity (c)
            r = Add (s, s)
        }> (n, go, x)
    }
"""


def test_check_lists_the_misfits_that_lower_would_leave_and_the_option_that_resolves_them(
    tmp_path: Path,
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(onnx.parser.parse_model(LOOP), path)
    run = rnnlower("check", path, "--target", "primitive", "--json", code=1)
    assert "input 'n' decides it: --set n=VALUE" in run.stderr
    after = run.json["after_lower"]
    assert after["refused"] is None
    assert "Loop" in [each["op_type"] for each in after["misfits"]]
    settled = rnnlower("check", path, "--target", "primitive", "--set", "n=2", "--json", code=1)
    assert "then everything fits" in settled.stderr
