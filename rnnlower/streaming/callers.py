"""The caller's code of a streamed model: states, chunks and delay, in Python, JavaScript or C.

The code in C is for what emx-onnx-cgen generates of the model.
"""

from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir

from rnnlower.errors import UnsupportedModelError
from rnnlower.files.metadata import StreamMetadata
from rnnlower.graph.evaluation import Array
from rnnlower.wording import option

Reference = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""A function that runs a model: outputs by name."""

Opener = Callable[[onnx.ModelProto], Reference]
"""A function that opens a model."""

_C_TYPES = {"FLOAT": "float", "DOUBLE": "double", "INT64": "int64_t", "INT32": "int32_t"}
_CALLS = 3
"""The calls of the test, after those in which nothing but the delay comes out."""

_COMPARED = """\
        for (int i = 0; i < @SIZE@; i++) {
            double found = (double)((@KIND@ *)@NAME@)[i];
            double expected = (double)((const @KIND@ *)test_@NAME@[call])[i];
            if (found != expected && !(isnan(found) && isnan(expected))
                && !(fabs(found - expected) <= 1e-4 * (1 + fabs(expected)))) {
                printf("call %d: @NAME@[%d] is %g, not %g\\n", call, i, found, expected);
                wrong++;
            }
        }"""

SUFFIXES = {"python": ".py", "js": ".js", "c": ".c"}
"""The languages, with the suffix of a file."""

_PYTHON = '''\
"""The caller's side of a streamed model: write() takes frames of any number, flush() ends a recording."""

import json
import math

import numpy as np
import onnxruntime


class Stream:
    """One stream. Values that are the same in every call are given to the constructor, by name."""

    def __init__(self, path, **constants):
        self.session = onnxruntime.InferenceSession(path)
        said = self.session.get_modelmeta().custom_metadata_map
        self.stream, self.states = json.loads(said["rnnlower.stream"]), json.loads(said["rnnlower.state"])
        self.chunk, self.constants = self.stream["chunk"] or 1, constants
        self.reset()

    def reset(self):
        """Begin a new recording."""
        self.state, self.rest, self.late = {}, {}, self.stream["delay"]
        self.steps, self.given = 0, dict.fromkeys(self.stream["outputs"], 0)
        for value in self.session.get_inputs():
            if value.name in self.stream["start"]:
                factors = [str(size).split("*") for size in value.shape]
                shape = [math.prod(int(each) for each in size if each.isdecimal()) for size in factors]
                kind = value.type.removeprefix("tensor(").removesuffix(")")
                start = self.stream["start"][value.name]
                start = np.asarray(start, "float32" if kind == "float" else kind)
                self.state[value.name] = np.ascontiguousarray(np.broadcast_to(start, shape))

    def call(self, **chunk):
        """Run one chunk; return its outputs as they are, late by the delay."""
        names = [value.name for value in self.session.get_outputs()]
        outputs = dict(zip(names, self.session.run(None, {**chunk, **self.constants, **self.state})))
        self.state = {name: outputs.pop(output) for output, name in self.states.items()}
        return outputs

    def write(self, **frames):
        """Take frames, or the inputs of a call where they have none; return the outputs of whole chunks."""
        if not self.stream["inputs"]:
            return self.call(**frames)
        for name, axis in self.stream["inputs"].items():
            kept = self.rest.get(name)
            self.rest[name] = frames[name] if kept is None else np.concatenate([kept, frames[name]], axis)
        found = []
        while min(self.rest[name].shape[axis] for name, axis in self.stream["inputs"].items()) >= self.chunk:
            chunk = {}
            for name, axis in self.stream["inputs"].items():
                chunk[name], self.rest[name] = np.split(self.rest[name], [self.chunk], axis)
            outputs, skipped = self.call(**chunk), min(self.late, self.chunk)
            for name, axis in self.stream["outputs"].items():
                first = outputs[name].shape[axis] * skipped // self.chunk
                outputs[name] = outputs[name].take(range(first, outputs[name].shape[axis]), axis)
                self.given[name] += outputs[name].shape[axis]
            self.late -= skipped
            self.steps += self.chunk
            found.append(outputs)
        return self._joined(found)

    def flush(self):
        """Feed zeros until the last frame has left; return the rest of the outputs."""
        if not self.rest:
            self.reset()
            return {}
        steps = {name: self.rest[name].shape[axis] for name, axis in self.stream["inputs"].items()}
        left = max(steps.values()) + self.stream["delay"]
        whole = self.steps + max(steps.values())
        missing = {name: self._frames(name, whole) - given for name, given in self.given.items()}
        zeros = {}
        for name, axis in self.stream["inputs"].items():
            shape = list(self.rest[name].shape)
            shape[axis] = -(-left // self.chunk) * self.chunk - steps[name]
            zeros[name] = np.zeros(shape, self.rest[name].dtype)
        outputs = self.write(**zeros)
        for name, axis in self.stream["outputs"].items():
            if name in outputs:
                outputs[name] = outputs[name].take(range(min(missing[name], outputs[name].shape[axis])), axis)
        self.reset()
        return outputs

    def _frames(self, name, steps):
        """Return the frames of an output for a recording of this many time steps."""
        for factor, more, stride in self.stream.get("stages", {}).get(name, []):
            steps = (steps * factor + more) // stride
        return steps

    def _joined(self, found):
        outputs = dict(found[-1]) if found else {}
        for name, axis in self.stream["outputs"].items():
            if found:
                outputs[name] = np.concatenate([each[name] for each in found], axis)
        return outputs
'''


def generate_caller(model: ir.Model, language: str, open_model: Opener) -> str:
    """Return the code that calls a streamed model; in C with a test against a run of it.

    Raises:
        UnsupportedModelError: The language needs sizes or types that the model leaves open.
    """
    stream = StreamMetadata.read(model.metadata_props)
    assert stream is not None
    if language == "python":
        return _PYTHON
    return _generate_javascript(model, stream) if language == "js" else _generate_c(model, stream, open_model)


def _generate_javascript(model: ir.Model, stream: StreamMetadata) -> str:
    same = ("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32")
    names = {"FLOAT": "float32", "DOUBLE": "float64", **{name: name.lower() for name in same}}
    inputs, states = {*stream.states.values()}, {}
    for value in (*model.graph.inputs, *model.graph.outputs):
        name = str(value.name)
        if name in inputs:
            states[name] = {
                "type": names[_require_type(value, names)],
                "shape": _require_shape(value, "JavaScript"),
                "start": stream.start.get(name, 0.0),
            }
        elif name in stream.inputs or name in stream.outputs:
            _require_type(value, names)
    description = {
        "chunk": stream.chunk or 1,
        "delay": stream.delay,
        "inputs": stream.inputs,
        "outputs": stream.outputs,
        "stages": stream.stages,
        "feeds": stream.states,
        "states": states,
    }
    return _read_template("caller.js").replace("@DESCRIPTION@", json.dumps(description, indent=2))


def _read_template(name: str) -> str:
    """Return the text of a file of this folder."""
    return pathlib.Path(__file__).with_name(name).read_text(encoding="utf-8")


def _require_shape(value: ir.Value, language: str) -> list[int]:
    """Return the shape of a value, which must be known."""
    if value.shape is None or not value.shape.is_static():
        raise UnsupportedModelError(
            f"{value.name!r} has a dynamic size, and the code in {language} needs its size",
            remedy=f"fix it ({option('dim')}, {option('chunk', 'K')})",
        )
    return list(value.shape.numpy())


def _require_type(value: ir.Value, known: Mapping[str, str]) -> str:
    """Return the name of a value's type, for which there must be code."""
    name = "" if value.dtype is None else value.dtype.name
    if name not in known:
        raise UnsupportedModelError(f"{value.name!r} has type {name}, for which no code is written")
    return name


def _generate_c(model: ir.Model, stream: StreamMetadata, open_model: Opener) -> str:
    """Return the code in C, with a test vector."""
    inputs, outputs = list(model.graph.inputs), list(model.graph.outputs)
    fields, reset, values, arguments, parameters = [], [], [], [], []
    rest, zeros, flushed = [], [], []
    taken = {name: f"s{number}" for number, name in enumerate(stream.states.values())}
    for number, value in enumerate((*inputs, *outputs)):
        is_input, name = number < len(inputs), str(value.name)
        kind, shape = _C_TYPES[_require_type(value, _C_TYPES)], _require_shape(value, "C") or [1]
        dims = "".join(f"[{size}]" for size in shape)
        const = "const " * is_input
        parameters.append(f"{const}{kind} v{number}{dims}")
        state = taken.get(name if is_input else stream.states.get(name, ""))
        if state is None:
            values.append(f", {const}{kind} v{number}{dims} {_comment(name)}")
            arguments.append(f"v{number}")
            flushed.append(f", v{number}")
            if is_input and name in stream.inputs:
                zeros.append(f"    static const {kind} v{number}{dims};")
            else:
                rest.append(values[-1])
            continue
        arguments.append(f"{'state->' if is_input else 'next.'}{state}")
        if is_input:
            fields.append(f"    {kind} {state}{dims}; {_comment(name)}")
            reset += _state_start_lines(stream.start.get(name, 0.0), kind, state, shape)
    calls = list(_run_calls(model, stream, open_model(ir.to_proto(model))))
    text = _add_test(_read_template("caller.c"), model, stream, calls)
    text = text.replace("@CHUNK@", str(stream.chunk)).replace("@DELAY@", str(stream.delay))
    text = text.replace("@PARAMETERS@", ", ".join(parameters)).replace("@FIELDS@", "\n".join(fields))
    text = text.replace("@RESET@", "\n".join(reset)).replace("@VALUES@", "".join(values))
    text = text.replace("@ARGUMENTS@", ", ".join(arguments)).replace("@REST@", "".join(rest))
    return text.replace("@ZEROS@", "\n".join(zeros)).replace("@FLUSHED@", "".join(flushed))


def _comment(name: str) -> str:
    """Return a comment in C; a name may hold what ends one."""
    return f"/* {name.replace('*/', '* /')} */"


def _state_start_lines(start: object, kind: str, state: str, shape: list[int]) -> list[str]:
    """Return the lines that set a state to its start."""
    size = math.prod(shape)
    flat = np.broadcast_to(np.array(start, np.float64), shape).reshape(-1)
    if len({*flat.tolist()}) == 1:
        target, number = f"(({kind} *)state->{state})[i]", _c_initializer(flat[0])
        return [f"    for (int i = 0; i < {size}; i++) {target} = ({kind}){number};"]
    return [
        f"    static const {kind} start_{state}[{size}] = {_c_initializer(flat)};",
        f"    memcpy(state->{state}, start_{state}, sizeof start_{state});",
    ]


def _add_test(
    text: str, model: ir.Model, stream: StreamMetadata, calls: Sequence[Mapping[str, Array]]
) -> str:
    """Return the code with the test: input numbers, and the outputs of the reference."""
    given, buffers, tested, compared = [], [], [], []
    count = len(model.graph.inputs)
    for number, value in enumerate((*model.graph.inputs, *model.graph.outputs)):
        name, place = str(value.name), f"v{number}"
        if name in stream.states or name in stream.states.values():
            continue
        kind, shape = _C_TYPES[_require_type(value, _C_TYPES)], _require_shape(value, "C") or [1]
        dims = "".join(f"[{size}]" for size in shape)
        rows = ",\n    ".join(_c_initializer(np.atleast_1d(call[name])) for call in calls)
        given.append(
            f"static const {kind} test_{place}[{len(calls)}]{dims} = {{\n    {rows}\n}}; {_comment(name)}"
        )
        tested.append(f", test_{place}[call]" if number < count else f", {place}")
        if number >= count:
            buffers.append(f"        static {kind} {place}{dims};")
            size = str(math.prod(shape))
            comparison = _COMPARED.replace("@SIZE@", size).replace("@KIND@", kind)
            compared.append(comparison.replace("@NAME@", place))
    text = text.replace("@VECTOR@", "\n".join(given)).replace("@CALLS@", str(len(calls)))
    text = text.replace("@OUTPUTS@", "\n".join(buffers)).replace("@TESTED@", "".join(tested))
    return text.replace("@COMPARED@", "\n".join(compared))


def _run_calls(model: ir.Model, stream: StreamMetadata, run: Reference) -> Iterator[Mapping[str, Array]]:
    """Yield the inputs and outputs of some calls, with the states carried from each to the next."""
    rng = np.random.default_rng(0)
    states: dict[str, Array] = {}
    for _ in range(_CALLS + -(-stream.delay // (stream.chunk or 1))):
        feeds = {}
        for value in model.graph.inputs:
            name, shape = str(value.name), _require_shape(value, "C")
            assert value.dtype is not None
            kind = value.dtype.numpy()
            start = np.array(stream.start.get(name, 0.0))
            # An integer may be an index: 0 is one.
            is_drawn = name not in stream.states.values() and kind.kind == "f"
            drawn = rng.standard_normal(shape) if is_drawn else np.broadcast_to(start, shape)
            feeds[name] = states.get(name, np.array(drawn, kind))
        outputs = run(feeds)
        states = {name: outputs[output] for output, name in stream.states.items()}
        yield {**feeds, **outputs}


def _c_initializer(array: Any) -> str:
    """Return an array as an initializer in C."""
    if array.ndim:
        return f"{{{', '.join(map(_c_initializer, array))}}}"
    number = array.item()
    if isinstance(number, float) and not math.isfinite(number):
        return "NAN" if math.isnan(number) else f"{'-' * (number < 0)}INFINITY"
    return f"{number:.9g}" if array.dtype == np.float32 else repr(number)
