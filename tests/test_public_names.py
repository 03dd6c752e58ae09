"""The public names of `rnnlower` and `rnnlower.passes`, on which users' scripts rely."""

from __future__ import annotations

import subprocess
import sys

import onnx_ir as ir
import pytest

import rnnlower
import rnnlower.passes


def test_every_public_name_is_there():
    for name in rnnlower.__all__:
        assert getattr(rnnlower, name).__name__.rpartition(".")[2] == name
    assert {"unroll", "scan", "loop", "convert", "verify", "inspect"} <= set(dir(rnnlower))
    assert {"UnsupportedModelError", "InvalidModelError", "OpsetError", "VerificationError"} <= {
        error.__name__ for error in rnnlower.RnnLowerError.__subclasses__()
    }


@pytest.mark.parametrize("name", rnnlower.passes.__all__)
def test_every_pass_is_an_in_place_pass(name):
    assert issubclass(getattr(rnnlower.passes, name), ir.passes.InPlacePass)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'unrol'"):
        rnnlower.unrol  # noqa: B018


def test_importing_the_command_line_loads_neither_onnx_nor_onnxruntime():
    code = (
        "import sys, rnnlower.cli; "
        "print(*({'onnx', 'onnx_ir', 'onnxruntime', 'onnxscript', 'numpy'} & set(sys.modules)))"
    )
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert loaded.stdout.strip() == ""
