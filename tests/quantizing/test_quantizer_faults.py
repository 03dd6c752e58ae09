"""Faults in the placement of quantizers are seen in the figures, and nothing is written."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from long_memory import LongMemory, recordings
from support.cli_helpers import rnnlower as command
from support.cli_helpers import save
from support.quantized_faults import QUANTIZER_FAULTS, planted

import rnnlower

ROLES = {
    "LSTM": ("x", "h factor", "h product", "sum iofc", "f Sigmoid", "i*c~", "f*c", "c", "h Tanh", "h"),
    "GRU": ("x", "h factor", "h product", "x sum zr", "sum zr", "g Tanh", "r*sum", "h-n", "z*(h-n)", "h"),
}


@pytest.mark.parametrize("op_type", ROLES)
def test_a_fault_in_the_quantizers_of_any_role_is_noticed(op_type: str, tmp_path: Path) -> None:
    source, out = save(LongMemory(op_type, 16).build(), tmp_path), tmp_path / "out.onnx"
    *calibrated, held = recordings(4, 40)
    # A fault in the quantizers changes no range.
    found = rnnlower.calibrate(source, {"X": np.array(calibrated)}, ranges=True)
    assert found.ranges is not None
    found.save_ranges(tmp_path / "ranges.json")
    np.savez(tmp_path / "held.npz", X=held)
    options = ("--calibration", tmp_path / "ranges.json", "--inputs", tmp_path / "held.npz")
    arguments = ("quantize", source, "-o", out, *options, "--min-sqnr", "30", "--recurrent-only", "--json")
    for role in ROLES[op_type]:
        for fault in QUANTIZER_FAULTS:
            with planted(fault, role):
                failed = command(*arguments, code=1)
            assert failed.json["error"]["kind"] == "VerificationError", (role, fault)
            assert not out.exists()
    command(*arguments)
    assert out.exists()
