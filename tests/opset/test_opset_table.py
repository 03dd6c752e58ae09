"""The table of adapters, and the page generated from it."""

from __future__ import annotations

import importlib.util
import itertools
import pathlib

import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from rnnlower.errors import OpsetError
from rnnlower.graph.versions import REQUIRED, operators, version_at, versions
from rnnlower.opset import conversion, convert_opset
from rnnlower.opset.families import FAMILIES, REVIEWED, ROWS
from rnnlower.opset.version_fit import MAX_OPSET

SCRIPT = pathlib.Path(__file__).parents[2] / "docs" / "opset_table.py"


older = pytest.mark.skipif(MAX_OPSET < REVIEWED, reason="the installed onnx is older than the table")


@older
def test_the_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("opset_table", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run python docs/opset_table.py"


def test_no_step_has_two_rows() -> None:
    assert len(ROWS) == sum(len(row.operators.split()) for family in FAMILIES for row in family.ROWS)


@older
@pytest.mark.parametrize("key", ROWS, ids=lambda key: f"{key[0]}-{key[1]}-{key[2]}")
def test_every_row_is_a_step_of_its_operator(key: tuple[str, int, int]) -> None:
    operator, low, high = key
    numbers = [0, *versions(operator)]
    assert (low, high) in set(itertools.pairwise(numbers))


def test_every_adapter_says_what_it_does() -> None:
    for key, row in ROWS.items():
        for adapter in (row.up, row.down):
            assert adapter is None or adapter.__doc__, key


def test_the_report_lists_each_version_step_of_a_node() -> None:
    text = """<ir_version: 7, opset_import: ["" : 13]>
        g (float[1, 3] x, float[1, 16, 3] w, float[1, 16, 4] r) => (float[1, 3, 4] y)
        { a = Constant<value = int64[1] {0}>()  s = Unsqueeze(x, a)  y = LSTM<hidden_size = 4>(s, w, r) }"""
    model = ir.from_onnx_text(text)
    told = {
        target: {(each.op_type, each.new): each.reason for each in convert_opset(model, target).adapted}
        for target in (6, 13)
    }
    assert told[6]["Unsqueeze", 11] == "`axes`, if it is constant, becomes an attribute"
    assert told[6]["LSTM", 1] == "`output_sequence` states whether Y is computed: it is if anything reads it"
    assert told[13]["Unsqueeze", 13] == "the axes became an input"
    assert told[13]["LSTM", 7] == "output_sequence was removed"


@pytest.mark.parametrize("operator", operators())
def test_a_step_without_a_row_only_adds(operator: str) -> None:
    """What is removed or changes its form needs a row, in which somebody says why."""
    numbers = versions(operator)
    for low, high in itertools.pairwise(numbers):
        old, new = version_at(operator, low), version_at(operator, high)
        if (operator, low, high) in ROWS or old is None or new is None or high > REVIEWED:
            continue
        assert set(old.attributes) - {"consumed_inputs"} <= set(new.attributes), (low, high)
        assert all(
            old.attributes[name].type == new.attributes[name].type
            for name in new.attributes
            if name in old.attributes
        )
        assert new.input_range[1] >= old.input_range[1]
        assert new.output_range[1] >= old.output_range[1]
        for before, after in zip(old.inputs, new.inputs, strict=False):
            assert before.types <= after.types, (low, high, before.name)
            assert before.option == REQUIRED or after.option != REQUIRED, (low, high, before.name)


def test_a_version_step_that_was_not_reviewed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion, "REVIEWED", 12)
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"], name="r")], "g", [x], [y])
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 12)], ir_version=7))
    with pytest.raises(OpsetError, match=r"Relu node 'r': Relu-6 cannot become Relu-13: .*update rnnlower"):
        convert_opset(model, 13)
