"""Writes docs/refusals.md: the message of every refusal, by running into it.

python docs/refusals.py          # write the page
python docs/refusals.py --check  # exit code 1 if the page is not current
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from rnnlower.cli import app

__all__ = ["PAGE", "page", "versions"]

PAGE = pathlib.Path(__file__).with_name("refusals.md")
INTRODUCTION = """\
# Refusals

<!-- Written by docs/refusals.py with {versions}. -->

What is not handled is refused before anything is written: one message on stderr, and an exit code. Each
message below comes from running the command on a model made for it. What `convert` refuses of each operator
stands in [opsets.md](opsets.md).

| exit code | meaning |
|---|---|
| 1 | the two models differ; nothing was written |
| 2 | wrong usage |
| 3 | the model cannot be read, is invalid, or uses something that is refused |
| 4 | could not be verified; nothing was written |
"""

Change = Callable[[onnx.ModelProto], object]
SCAN = "scan model.onnx -o out.onnx"
UNROLL = "unroll model.onnx -o out.onnx"


def _model(op_type: str = "LSTM", opset: int = 17) -> onnx.ModelProto:
    gates = {"LSTM": 4, "GRU": 3, "RNN": 1}[op_type]
    shapes = {"W": (1, 2 * gates, 3), "R": (1, 2 * gates, 2), "B": (1, 4 * gates)}
    weights = [numpy_helper.from_array(np.ones(shape, np.float32), name) for name, shape in shapes.items()]
    node = helper.make_node(op_type, ["X", *shapes], ["Y", "Y_h"], name="cell", hidden_size=2)
    X = helper.make_tensor_value_info("X", TensorProto.FLOAT, ["T", 1, 3])
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * rank)
        for name, rank in (("Y", 4), ("Y_h", 3))
    ]
    graph = helper.make_graph([node], "graph", [X], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)


def _set(name: str, value: object, kind: int | None = None) -> Change:
    def change(model: onnx.ModelProto) -> None:
        attributes = model.graph.node[0].attribute
        kept = [each for each in attributes if each.name != name]
        del attributes[:]
        attributes.extend([*kept, helper.make_attribute(name, value, attr_type=kind)])

    return change


def _drop(name: str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        attributes = model.graph.node[0].attribute
        kept = [each for each in attributes if each.name != name]
        del attributes[:]
        attributes.extend(kept)

    return change


def _rename_input(position: int, name: str) -> Change:
    return lambda model: model.graph.node[0].input.__setitem__(position, name)


def _more_inputs(*names: str) -> Change:
    return lambda model: model.graph.node[0].input.extend(names)


def _x(elem_type: int, *shape: int | str | None) -> Change:
    new = helper.make_tensor_value_info("X", elem_type, shape)
    return lambda model: model.graph.input[0].CopyFrom(new)


def _tensor(change: Callable[[TensorProto], object]) -> Change:
    return lambda model: change(model.graph.initializer[0])


def _lens(elem_type: int) -> Change:
    def change(model: onnx.ModelProto) -> None:
        model.graph.input.append(helper.make_tensor_value_info("lens", elem_type, [1]))
        model.graph.node[0].input.append("lens")

    return change


def _reference(model: onnx.ModelProto) -> None:
    attribute = AttributeProto(name="clip", ref_attr_name="threshold", type=AttributeProto.FLOAT)
    model.graph.node[0].attribute.append(attribute)


def _recursion(model: onnx.ModelProto) -> None:
    node = helper.make_node("Cell", ["x"], ["y"], domain="own")
    imports = [helper.make_opsetid("own", 1)]
    model.functions.append(helper.make_function("own", "Cell", ["x"], ["y"], [node], imports))
    model.opset_import.append(helper.make_opsetid("own", 1))


def _twice(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Identity", ["X"], ["Y"], name="copy"))


def _late_operator(model: onnx.ModelProto) -> None:
    model.graph.node.append(helper.make_node("Bernoulli", ["X"], ["drawn"], name="draw"))


def _rename_output(model: onnx.ModelProto) -> None:
    model.graph.node[0].output[1] = model.graph.output[1].name = "final"


def _cycle(model: onnx.ModelProto) -> None:
    model.graph.node[0].input[0] = "looped"
    model.graph.node.append(helper.make_node("Squeeze", ["Y"], ["looped"]))


def _external(location: str, **entries: int) -> Change:
    def change(tensor: TensorProto) -> None:
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value=location)
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=str(value))

    return _tensor(change)


def _double(*names: str) -> Change:
    def change(model: onnx.ModelProto) -> None:
        for tensor in model.graph.initializer:
            if tensor.name in names:
                array = numpy_helper.to_array(tensor).astype(np.float64)
                tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))

    return change


def _own_operator(model: onnx.ModelProto) -> None:
    model.graph.node[0].CopyFrom(helper.make_node("Mystery", ["X"], ["Y", "Y_h"], domain="own"))
    model.opset_import.append(helper.make_opsetid("own", 1))


def _own_opset_twice(model: onnx.ModelProto) -> None:
    model.opset_import.append(helper.make_opsetid("ai.onnx", 12))


def _sparse(model: onnx.ModelProto) -> None:
    values = numpy_helper.from_array(np.ones(1, np.float32), "values")
    sparse = helper.make_sparse_tensor(values, numpy_helper.from_array(np.array([1])), [3])
    model.graph.node.append(helper.make_node("Constant", [], ["sparse"], sparse_value=sparse))


def _no_shape(model: onnx.ModelProto) -> None:
    model.graph.input[0].type.tensor_type.ClearField("shape")


def _sequence(model: onnx.ModelProto) -> None:
    model.graph.input.append(helper.make_tensor_sequence_value_info("S", TensorProto.FLOAT, None))
    model.graph.node.append(helper.make_node("SequenceLength", ["S"], ["length"]))


FLOAT, UINT8 = TensorProto.FLOAT, TensorProto.UINT8
CASES: dict[str, list[tuple[str, str, onnx.ModelProto | bytes | None, Change | None]]] = {
    "The file": [
        ("no such file", SCAN, None, None),
        ("a folder", "scan . -o out.onnx", _model(), None),
        ("not ONNX", SCAN, b"<html></html>", None),
        ("truncated", SCAN, _model().SerializeToString()[:-30], None),
        ("empty", SCAN, b"", None),
    ],
    "The graph": [
        ("a cycle", SCAN, _model(), _cycle),
        ("an input that nothing produces", SCAN, _model(), _rename_input(0, "nowhere")),
        (
            "an output that nothing produces",
            SCAN,
            _model(),
            lambda m: setattr(m.graph.output[0], "name", "Z"),
        ),
        ("a name given twice", SCAN, _model(), _twice),
        ("a function that calls itself", SCAN, _model(), _recursion),
        (
            "a name that is no text",
            SCAN,
            _model().SerializeToString().replace(b"cell", b"\xff\xfe\xfd\xfc"),
            None,
        ),
        ("an opset below 1", SCAN, _model(), lambda m: setattr(m.opset_import[0], "version", 0)),
        (
            "an opset that is not known yet",
            SCAN,
            _model(),
            lambda m: setattr(m.opset_import[0], "version", 99),
        ),
        (
            "an attribute without a type",
            SCAN,
            _model(),
            lambda m: m.graph.node[0].attribute[0].ClearField("type"),
        ),
        (
            "an attribute whose value is of another type",
            SCAN,
            _model(),
            lambda m: setattr(m.graph.node[0].attribute[0], "f", 1.0),
        ),
        (
            "an attribute without a name",
            SCAN,
            _model(),
            lambda m: m.graph.node[0].attribute[0].ClearField("name"),
        ),
        ("no version of the format", SCAN, _model(), lambda m: m.ClearField("ir_version")),
        ("two versions of the operators", SCAN, _model(), _own_opset_twice),
        ("more elements than anything holds", SCAN, _model(), _x(FLOAT, 2**40, 2**40, 3)),
        ("a sparse constant", SCAN, _model(), _sparse),
        (
            "an attribute given twice",
            SCAN,
            _model(),
            lambda m: m.graph.node[0].attribute.append(m.graph.node[0].attribute[0]),
        ),
    ],
    "Tensors and external data": [
        ("too little data", SCAN, _model(), _tensor(lambda t: setattr(t, "raw_data", t.raw_data[:-4]))),
        ("no known type", SCAN, _model(), _tensor(lambda t: setattr(t, "data_type", 99))),
        ("a shape that nothing can hold", SCAN, _model(), _tensor(lambda t: t.dims.extend([2**40, 2**40]))),
        ("no name of a file", SCAN, _model(), _external("")),
        ("an offset below 0", SCAN, _model(), _external("short.bin", offset=-1)),
        (
            "the model's data as the result's name",
            "scan model.onnx -o weights.data",
            _model(),
            _external("weights.data", length=96),
        ),
        ("a negative size", SCAN, _model(), _tensor(lambda t: t.dims.__setitem__(0, -1))),
        ("no such file", SCAN, _model(), _external("weights.bin")),
        ("outside of the folder", SCAN, _model(), _external("../weights.bin")),
        ("a file too short", SCAN, _model(), _external("short.bin")),
        ("another length", SCAN, _model(), _external("short.bin", length=4)),
        ("a symbolic link", SCAN, _model(), _external("link.bin", length=96)),
    ],
    "Recurrent nodes": [
        ("an unknown attribute", SCAN, _model(), _set("alpha", 1.0)),
        ("an attribute of another version", SCAN, _model(opset=12), _set("layout", 1)),
        ("an attribute of another type", SCAN, _model(), _set("clip", 3)),
        ("a function's attribute outside of a function", SCAN, _model(), _reference),
        ("direction", SCAN, _model(), _set("direction", "backward")),
        ("layout", SCAN, _model(), _set("layout", 2)),
        ("clip", SCAN, _model(), _set("clip", 0.0)),
        ("an unknown activation", SCAN, _model("GRU"), _set("activations", ["Sigmoid", "Swish"])),
        ("too few activations", SCAN, _model(), _set("activations", ["Sigmoid", "Tanh"])),
        (
            "an activation without defaults",
            f"{SCAN} --semantics spec",
            _model("GRU"),
            _set("activations", ["Sigmoid", "ScaledTanh"]),
        ),
        ("hidden_size", SCAN, _model(), _set("hidden_size", 0)),
        ("too many inputs", SCAN, _model("RNN"), _more_inputs("", "", "W")),
        ("no R", SCAN, _model(), _rename_input(2, "")),
        ("a type the operator lacks", SCAN, _model(), _x(UINT8, "T", 1, 3)),
        ("types that differ", SCAN, _model(), _double("W")),
        ("the type of sequence_lens", SCAN, _model(), _lens(TensorProto.INT64)),
        ("the rank of X", SCAN, _model(), _x(FLOAT, "T", 3)),
        ("the features of X", SCAN, _model(), _x(FLOAT, "T", 1, 4)),
        ("the shape of R", SCAN, _model(), _set("hidden_size", 3)),
        ("a batch that is too large to write", SCAN, _model(), _x(FLOAT, "T", 2**30, 3)),
    ],
    "Lengths": [
        ("unknown when unrolling", UNROLL, _model(), None),
        ("unknown and without a name", UNROLL, _model(), _x(FLOAT, None, 1, 3)),
        ("too long to unroll", UNROLL, _model(), _x(FLOAT, 10**9, 1, 3)),
    ],
    "Options": [
        ("--dim", f"{UNROLL} --dim T", _model(), None),
        ("a dimension that is not there", f"{UNROLL} --dim S=4", _model(), None),
        ("--input-shape", f"{UNROLL} --input-shape X", _model(), None),
        ("an input that is not there", f"{UNROLL} --input-shape Z:1", _model(), None),
        ("another rank", f"{UNROLL} --input-shape X:3,1", _model(), None),
        ("a size that contradicts", f"{UNROLL} --input-shape X:3,2,3", _model(), None),
        ("--node", f"{SCAN} --node gru*", _model(), None),
        ("--semantics", f"{SCAN} --semantics onnx", _model(), None),
        ("--opset", f"{SCAN} --opset 4", _model(), None),
        ("--opset of convert", "convert model.onnx -o out.onnx --opset 0", _model(), None),
        ("--external-data", f"{SCAN} --external-data maybe", _model(), None),
        ("a folder that is not there", "scan model.onnx -o no/such/out.onnx", _model(), None),
        ("a destination that is no file", "scan model.onnx -o /dev/null", _model(), None),
        ("another format", "scan model.onnx -o out.json", _model(), None),
        ("--seed", f"{SCAN} --seed -1", _model(), None),
        ("--atol", f"{SCAN} --atol inf", _model(), None),
        ("--state", f"{SCAN} --state Y_h", _model(), None),
        ("a state that is not there", f"{SCAN} --state Y_h=h", _model(), None),
        ("a state of another shape", f"{SCAN} --state Y=X", _model(), None),
        ("states and inputs", f"{SCAN} --state Y=X --inputs good.npz", _model(), None),
        ("inputs that are no archive", f"{SCAN} --inputs plain.npz", _model(), None),
        ("inputs of another rank", f"{SCAN} --inputs rank.npz", _model(), None),
        ("inputs of another type", f"{SCAN} --inputs dtype.npz", _model(), None),
        ("inputs of another name", f"{SCAN} --inputs name.npz", _model(), None),
        ("inputs left out", f"{SCAN} --inputs none.npz", _model(), None),
        ("inputs that do not suit", f"{SCAN} --inputs shape.npz", _model(), None),
        ("a folder without inputs", f"{SCAN} --inputs nothing", _model(), None),
        ("a folder with too many", f"{SCAN} --inputs many", _model(), None),
        ("a folder with other files", f"{SCAN} --inputs broken", _model(), None),
        ("an .npz file that is not there", f"{SCAN} --inputs inputs.npz", _model(), None),
    ],
    "Conversion": [
        ("what replaces the node is newer", f"{SCAN} --opset 7", _model(), None),
        ("nothing older says it", "convert model.onnx -o out.onnx --opset 13", _model(), _late_operator),
    ],
    "Verification": [
        ("an output that is gone", "verify other.onnx model.onnx --trials 1", _model(), _rename_output),
        ("no engine has the operator", "verify model.onnx model.onnx --trials 1", _model(), _own_operator),
        ("only the candidate has it", "verify other.onnx model.onnx --trials 1", _model(), _own_operator),
        ("another rank of an input", "verify other.onnx model.onnx", _model(), _x(FLOAT, "T", 3)),
        ("another size of an input", "verify other.onnx model.onnx", _model(), _x(FLOAT, "T", 2, 3)),
        ("an input of unknown rank", "verify model.onnx model.onnx", _model(), _no_shape),
        ("an input that is no tensor", "verify model.onnx model.onnx", _model(), _sequence),
        ("inputs too large to generate", SCAN, _model(), _x(FLOAT, 10**9, 1, 3)),
        ("--engine", "verify model.onnx other.onnx --engine tinygrad", _model(), None),
    ],
}


def versions() -> str:
    """The libraries whose words some of the messages hold."""
    return ", ".join(f"{name} {metadata.version(name)}" for name in ("onnx", "onnxruntime", "protobuf"))


def page() -> str:
    """The text of the page."""
    lines = [INTRODUCTION.format(versions=versions())]
    for section, cases in CASES.items():
        lines += [f"## {section}", ""]
        for title, command, model, change in cases:
            code, message = _run(command, model, change)
            lines += [f"**{title}** (exit code {code}, `rnnlower {command}`)", "", "```", message, "```", ""]
    return "\n".join(lines)


def _run(command: str, model: onnx.ModelProto | bytes | None, change: Change | None) -> tuple[int, str]:
    with _folder() as folder:
        if isinstance(model, onnx.ModelProto):
            altered = onnx.ModelProto.FromString(model.SerializeToString())
            (folder / "other.onnx").write_bytes(altered.SerializeToString())
            if change is not None:
                change(altered)
            model = altered.SerializeToString()
        if model is not None:
            (folder / "model.onnx").write_bytes(model)
        before = sorted(folder.iterdir())
        result = CliRunner().invoke(app, command.split())
        if result.exit_code == 0 or sorted(folder.iterdir()) != before:
            raise RuntimeError(f"{command} was not refused: {result.output}")
        if not isinstance(result.exception, SystemExit):
            raise RuntimeError(f"{command} ended in an error of its own") from result.exception
        said = "\n".join(line.rstrip() for line in result.output.strip().splitlines())
        return result.exit_code, said.replace(str(folder), "FOLDER")


@contextlib.contextmanager
def _folder() -> Iterator[pathlib.Path]:
    """A folder to be in, with files for external data."""
    here = pathlib.Path.cwd()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name).resolve()
        (folder / "short.bin").write_bytes(b"\0" * 40)
        (folder / "link.bin").symlink_to("short.bin")
        (folder / "weights.data").write_bytes(b"\0" * 96)
        _write_inputs(folder)
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(here)


def _write_inputs(folder: pathlib.Path) -> None:
    X = np.ones((2, 1, 3), np.float32)
    sets = {"good": {"X": X}, "rank": {"X": X[0]}, "dtype": {"X": X.astype(np.float64)}}
    sets |= {"name": {"X": X, "Z": X}, "none": {}, "shape": {"X": np.ones((2, 1, 4), np.float32)}}
    for name, arrays in sets.items():
        np.savez(folder / f"{name}.npz", **arrays)
    with (folder / "plain.npz").open("wb") as file:
        np.save(file, X)
    for name, file_name, data in (("many", "input_9.pb", b""), ("broken", "input_0.pb", b"no tensor")):
        (folder / name).mkdir()
        (folder / name / file_name).write_bytes(data)
    (folder / "nothing").mkdir()


def main() -> int:
    text = page()
    if "--check" in sys.argv[1:]:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
