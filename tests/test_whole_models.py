"""The run of whole models on runtimes: wrong results are reported, and nothing is tried twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
import whole_models
from onnx import numpy_helper
from support.judge import run

pytestmark = pytest.mark.usefixtures("forks")

MODEL = Path(__file__).parents[1] / "models" / "lstm14_states.onnx"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "models").mkdir()
    return Path(shutil.copy(MODEL, tmp_path / "models"))


def record(path: Path, off: float) -> None:
    """Record inputs and outputs, each of which is off."""
    ((inputs, outputs),) = whole_models.cases(path).values()
    arrays = {f"in::{name}": array for name, array in inputs.items()}
    arrays |= {f"out::{name}": array + np.float32(off) for name, array in outputs.items()}
    folder = path.parents[1] / "real_io"
    folder.mkdir()
    np.savez(folder / f"{path.stem}.npz", **arrays)


def test_a_wrong_result_is_reported_and_tried_again(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record(path, 0.01)
    cells = path.with_name("cells.jsonl")
    arguments = [str(path.parent), "--on", "onnxruntime", "--cells", str(cells)]
    assert whole_models.main(arguments) == 1
    said = capsys.readouterr().out
    assert "| lstm14_states | wrong → wrong |" in said
    assert "- onnxruntime, lstm14_states: wrong: Y: max abs 0.01" in said

    def mend(cell: whole_models.Cell) -> whole_models.Cell:
        return cell | {"verdict": "right", "why": ""}

    native, lowered = whole_models.read_cells(cells)
    table = "\n".join(whole_models.markdown([native, mend(lowered)]))
    assert "- onnxruntime: native 1 wrong; lowered 1 right" in table
    shutil.rmtree(path.parents[1] / "real_io")
    # The recorded case is gone, so that generated inputs are a case of their own.
    assert whole_models.main(arguments) == 0
    assert "| lstm14_states, generated | right → right |" in capsys.readouterr().out
    assert len(whole_models.read_cells(cells)) == 4
    assert whole_models.main([*arguments, "--again"]) == 0
    assert len(cells.read_text().splitlines()) == 4


def test_a_fault_of_the_lowering_shows_in_the_lowered_form_alone(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowered_file = whole_models.lowered_file

    def faulty(*arguments: object) -> object:
        model, notes, sets = lowered_file(*arguments)
        weight = max(model.graph.initializer, key=lambda tensor: len(tensor.raw_data))
        weight.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(weight), weight.name))
        return model, notes, sets

    monkeypatch.setattr(whole_models, "lowered_file", faulty)
    verdicts = [
        whole_models.attempt_case(path, whole_models.GENERATED, "onnxruntime", form)["verdict"]
        for form in whole_models.FORMS
    ]
    assert verdicts == ["right", "wrong"]


def test_an_input_that_decides_is_set_as_the_notes_advise(path: Path) -> None:
    model = MODEL.with_name("lstm13_in_if.onnx")
    inputs, expected = whole_models.cases(model)[whole_models.GENERATED]
    lowered, _, sets = whole_models.lowered_file(model, "primitive", inputs)
    (name,) = sets
    assert name not in {value.name for value in lowered.graph.input}
    outputs = run(lowered, {key: value for key, value in inputs.items() if key != name})
    for output, value in expected.items():
        np.testing.assert_allclose(outputs[output], value, rtol=1e-4, atol=1e-5)


def test_a_folder_without_recurrent_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    node = onnx.helper.make_node("Abs", ["x"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1]) for name in "xy")
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", [x], [y])), tmp_path / "abs.onnx")
    assert whole_models.main([str(tmp_path), "--on", "onnxruntime"]) == 2
    assert capsys.readouterr().err == "no model with a recurrent node\n"
