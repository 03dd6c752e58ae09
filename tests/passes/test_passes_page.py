"""docs/passes.md: the order that it shows works, and the rest is what the docstrings say."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import rnnlower
import rnnlower.passes

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "passes.md").read_text(encoding="utf-8")
ORDER = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
SHOWN = ("ocr_conv_bilstm_gemm.onnx", {"width": 64, "batch": 1})
OTHERS = [
    ("gru01_foward_default.onnx", {}),
    ("gru_two_layers_dynamic.onnx", {"time": 3, "batch": 2}),
    ("lstm06_bidirectional_output_sequence.onnx", {}),
    ("lstm09_weights_computed.onnx", {}),
    ("lstm13_in_if.onnx", {}),
    ("lstm18_function_ref_attr.onnx", {}),
]


@pytest.mark.parametrize(("name", "sizes"), [SHOWN, *OTHERS], ids=lambda each: str(each)[:20])
def test_the_order_of_passes_on_the_page_lowers_a_model(
    name: str, sizes: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "models").symlink_to(ROOT / "models")
    assert ORDER is not None
    code = ORDER[1].replace(f'"models/{SHOWN[0]}"', f'"models/{name}"')
    code = re.sub(r"^sizes = .*$", f"sizes = {sizes}", code, flags=re.MULTILINE)
    exec(code, {})
    assert not rnnlower.inspect("lowered.onnx")


def test_the_page_is_current() -> None:
    script = runpy.run_path(str(ROOT / "docs" / "passes.py"))
    assert script["page"]() == PAGE, "run python docs/passes.py"


def test_the_page_on_python_lists_every_public_name() -> None:
    page = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
    listed = re.findall(r"^::: rnnlower\.(?:[\w.]+\.)?(\w+)$", page, re.MULTILINE)
    assert sorted(listed) == sorted(rnnlower.__all__)
