"""The caller's code of a streamed model: states, chunks and delay, in Python, JavaScript or C."""

from __future__ import annotations

import json
import math

import numpy as np
import onnx_ir as ir

from rnnlower.errors import UnsupportedModelError
from rnnlower.files.stream_metadata import StreamMetadata
from rnnlower.wording import option

SUFFIXES = {"python": ".py", "js": ".js", "c": ".c"}
"""The languages, with the suffix of a file."""
_C_TYPES = {"FLOAT": "float", "DOUBLE": "double", "INT64": "int64_t", "INT32": "int32_t"}

_PYTHON = '''\
"""The caller's side of a streamed model: write() takes frames of any number, flush() ends a recording."""

import json

import numpy as np
import onnxruntime

TYPES = {"tensor(float)": "f4", "tensor(float16)": "f2", "tensor(double)": "f8", "tensor(int64)": "i8"}


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
        self.state, self.rest, self.steps, self.late = {}, {}, 0, self.stream["delay"]
        for value in self.session.get_inputs():
            if value.name in self.stream["start"]:
                shape = [size if isinstance(size, int) else 1 for size in value.shape]
                start = np.asarray(self.stream["start"][value.name], TYPES[value.type])
                self.state[value.name] = np.ascontiguousarray(np.broadcast_to(start, shape))

    def call(self, **chunk):
        """Run one chunk; return its outputs as they are, late by the delay."""
        names = [value.name for value in self.session.get_outputs()]
        outputs = dict(zip(names, self.session.run(None, {**chunk, **self.constants, **self.state})))
        self.state = {name: outputs.pop(output) for output, name in self.states.items()}
        return outputs

    def write(self, **frames):
        """Take frames; return the outputs of whole chunks, or nothing yet."""
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
            self.late -= skipped
            found.append(outputs)
        return self._joined(found)

    def flush(self):
        """Feed zeros until the last frame has left; return the rest of the outputs."""
        steps = {name: self.rest[name].shape[axis] for name, axis in self.stream["inputs"].items()}
        left = max(steps.values()) + self.stream["delay"]
        zeros = {}
        for name, axis in self.stream["inputs"].items():
            shape = list(self.rest[name].shape)
            shape[axis] = -(-left // self.chunk) * self.chunk - steps[name]
            zeros[name] = np.zeros(shape, self.rest[name].dtype)
        outputs = self.write(**zeros)
        for name, axis in self.stream["outputs"].items():
            if name in outputs:
                frames = round(left * self.stream.get("rates", {}).get(name, 1))
                outputs[name] = outputs[name].take(range(min(frames, outputs[name].shape[axis])), axis)
        self.reset()
        return outputs

    def _joined(self, found):
        outputs = dict(found[-1]) if found else {}
        for name, axis in self.stream["outputs"].items():
            if found:
                outputs[name] = np.concatenate([each[name] for each in found], axis)
        return outputs
'''

_JS = """\
// The caller's side of a streamed model, for onnxruntime-node and -web: write() takes frames of any
// number, flush() ends a recording.

const DESCRIPTION = @DESCRIPTION@;
const ARRAYS = { float32: Float32Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array };

const product = (sizes) => sizes.reduce((a, b) => a * b, 1);

class Stream {
  // ort: the module; session: an InferenceSession; constants: tensors that are the same in every call.
  constructor(ort, session, constants = {}) {
    this.ort = ort;
    this.session = session;
    this.constants = constants;
    this.reset();
  }

  // Begin a new recording.
  reset() {
    this.state = {};
    this.rest = {};
    this.late = DESCRIPTION.delay;
    for (const [name, { type, shape, start }] of Object.entries(DESCRIPTION.states)) {
      const size = product(shape);
      const flat = [start].flat(Infinity);
      const array = new ARRAYS[type](size);
      for (let i = 0; i < size; i++) {
        const value = flat[flat.length === 1 ? 0 : i];
        array[i] = type === "int64" ? BigInt(value) : value;
      }
      this.state[name] = new this.ort.Tensor(type, array, shape);
    }
  }

  // Run one chunk: tensors by input name. Return the outputs that are not states, late by the delay.
  async call(chunk) {
    const outputs = { ...(await this.session.run({ ...chunk, ...this.constants, ...this.state })) };
    for (const [output, name] of Object.entries(DESCRIPTION.feeds)) {
      this.state[name] = outputs[output];
      delete outputs[output];
    }
    return outputs;
  }

  // Take frames: tensors by input name. Return the outputs of whole chunks, or nothing yet.
  async write(frames) {
    const inputs = Object.entries(DESCRIPTION.inputs);
    for (const [name, axis] of inputs) {
      this.rest[name] = name in this.rest ? this.join([this.rest[name], frames[name]], axis) : frames[name];
    }
    const found = [];
    while (inputs.every(([name, axis]) => this.rest[name].dims[axis] >= DESCRIPTION.chunk)) {
      const chunk = {};
      for (const [name, axis] of inputs) {
        chunk[name] = this.cut(this.rest[name], axis, 0, DESCRIPTION.chunk);
        this.rest[name] = this.cut(this.rest[name], axis, DESCRIPTION.chunk);
      }
      const outputs = await this.call(chunk);
      const skipped = Math.min(this.late, DESCRIPTION.chunk);
      for (const [name, axis] of Object.entries(DESCRIPTION.outputs)) {
        const size = outputs[name].dims[axis];
        outputs[name] = this.cut(outputs[name], axis, (size * skipped) / DESCRIPTION.chunk);
      }
      this.late -= skipped;
      found.push(outputs);
    }
    const joined = found.length ? { ...found[found.length - 1] } : {};
    for (const [name, axis] of found.length ? Object.entries(DESCRIPTION.outputs) : []) {
      joined[name] = this.join(found.map((each) => each[name]), axis);
    }
    return joined;
  }

  // Feed zeros until the last frame has left; return the rest of the outputs.
  async flush() {
    const steps = Object.entries(DESCRIPTION.inputs).map(([name, axis]) => this.rest[name].dims[axis]);
    const left = Math.max(...steps) + DESCRIPTION.delay;
    const zeros = {};
    for (const [name, axis] of Object.entries(DESCRIPTION.inputs)) {
      const { type, dims } = this.rest[name];
      const shape = [...dims];
      shape[axis] = Math.ceil(left / DESCRIPTION.chunk) * DESCRIPTION.chunk - dims[axis];
      zeros[name] = new this.ort.Tensor(type, new ARRAYS[type](product(shape)), shape);
    }
    const outputs = await this.write(zeros);
    for (const [name, axis] of Object.entries(DESCRIPTION.outputs)) {
      if (name in outputs) {
        outputs[name] = this.cut(outputs[name], axis, 0, Math.round(left * (DESCRIPTION.rates[name] ?? 1)));
      }
    }
    this.reset();
    return outputs;
  }

  // Return the part of a tensor from `first` to `last` on an axis.
  cut({ type, data, dims }, axis, first, last = dims[axis]) {
    const shape = [...dims];
    shape[axis] = Math.max(Math.min(last, dims[axis]) - first, 0);
    const inner = product(dims.slice(axis + 1));
    const [row, wide] = [dims[axis] * inner, shape[axis] * inner];
    const array = new ARRAYS[type](product(shape));
    for (let i = 0; i * wide < array.length; i++) {
      array.set(data.subarray(i * row + first * inner, i * row + first * inner + wide), i * wide);
    }
    return new this.ort.Tensor(type, array, shape);
  }

  // Concatenate tensors on an axis.
  join(tensors, axis) {
    const shape = [...tensors[0].dims];
    shape[axis] = tensors.reduce((sum, each) => sum + each.dims[axis], 0);
    const array = new ARRAYS[tensors[0].type](product(shape));
    for (let i = 0, at = 0; at < array.length; i++) {
      for (const { data, dims } of tensors) {
        const wide = product(dims.slice(axis));
        array.set(data.subarray(i * wide, (i + 1) * wide), at);
        at += wide;
      }
    }
    return new this.ort.Tensor(tensors[0].type, array, shape);
  }
}

module.exports = { Stream, DESCRIPTION };
"""

_C = """\
/* The caller's side of a streamed model that emx-onnx-cgen has compiled: link it with that file.
   After the last chunk, call stream_flush STREAM_FLUSH times: the outputs are late by STREAM_DELAY steps. */

#include <stdint.h>
#include <string.h>

#define STREAM_CHUNK @CHUNK@
#define STREAM_DELAY @DELAY@
#define STREAM_FLUSH ((STREAM_DELAY + STREAM_CHUNK - 1) / STREAM_CHUNK)

extern void model(@PARAMETERS@);

/* The states of one stream. */
typedef struct {
@FIELDS@
    int late; /* time steps that are still to be skipped */
} stream_state;

/* Begin a new recording. */
void stream_reset(stream_state *state) {
@RESET@
    state->late = STREAM_DELAY;
}

/* Run one chunk. Return the time steps at the start of the outputs that belong to no frame: skip them. */
int stream_call(stream_state *state@VALUES@) {
    stream_state next;
    int skipped = state->late < STREAM_CHUNK ? state->late : STREAM_CHUNK;
    model(@ARGUMENTS@);
    next.late = state->late - skipped;
    *state = next;
    return skipped;
}

/* Run one chunk of zeros after the last one. Return the same. */
int stream_flush(stream_state *state@REST@) {
@ZEROS@
    return stream_call(state@FLUSHED@);
}
"""


def caller_code(model: ir.Model, language: str) -> str:
    """Return the code that calls a streamed model.

    Raises:
        UnsupportedModelError: The language needs sizes or types that the model leaves open.
    """
    stream = StreamMetadata.read(model.metadata_props)
    assert stream is not None
    if language == "python":
        return _PYTHON
    return _in_javascript(model, stream) if language == "js" else _in_c(model, stream)


def _shape(value: ir.Value, language: str) -> list[int]:
    """Return the shape of a value, which must be known."""
    shape = [] if value.shape is None else list(value.shape)
    if value.shape is None or not all(isinstance(size, int) for size in shape):
        raise UnsupportedModelError(
            f"{value.name!r} has a dynamic size, and the code in {language} needs its size",
            remedy=f"fix it ({option('dim')}, {option('chunk', 'K')})",
        )
    return [int(size) for size in shape if isinstance(size, int)]


def _in_javascript(model: ir.Model, stream: StreamMetadata) -> str:
    values = {value.name: value for value in model.graph.inputs}
    names = {"FLOAT": "float32", "DOUBLE": "float64", "INT64": "int64", "INT32": "int32"}
    states = {}
    for name in stream.states.values():
        value = values[name]
        states[name] = {
            "type": names[_type(value, names)],
            "shape": _shape(value, "JavaScript"),
            "start": stream.start.get(name, 0.0),
        }
    description = {
        "chunk": stream.chunk or 1,
        "delay": stream.delay,
        "inputs": dict(stream.inputs),
        "outputs": dict(stream.outputs),
        "rates": dict(stream.rates),
        "feeds": dict(stream.states),
        "states": states,
    }
    return _JS.replace("@DESCRIPTION@", json.dumps(description, indent=2))


def _type(value: ir.Value, known: dict[str, str]) -> str:
    name = "" if value.dtype is None else value.dtype.name
    if name not in known:
        raise UnsupportedModelError(f"{value.name!r} has type {name}, for which no code is written")
    return name


def _in_c(model: ir.Model, stream: StreamMetadata) -> str:
    inputs, outputs = list(model.graph.inputs), list(model.graph.outputs)
    fields, reset, values, arguments, parameters = [], [], [], [], []
    rest, zeros, flushed = [], [], []
    taken = {name: f"s{number}" for number, name in enumerate(stream.states.values())}
    for number, value in enumerate((*inputs, *outputs)):
        is_input, name = number < len(inputs), str(value.name)
        kind, shape = _C_TYPES[_type(value, _C_TYPES)], _shape(value, "C")
        dims = "".join(f"[{size}]" for size in shape)
        const = "const " * is_input
        parameters.append(f"{const}{kind} v{number}{dims}")
        state = taken.get(name if is_input else stream.states.get(name, ""))
        if state is None:
            values.append(f", {const}{kind} v{number}{dims} /* {name} */")
            arguments.append(f"v{number}")
            flushed.append(f", v{number}")
            if is_input and name in stream.inputs:
                zeros.append(f"    static const {kind} v{number}{dims};")
            else:
                rest.append(values[-1])
            continue
        arguments.append(f"{'state->' if is_input else 'next.'}{state}")
        if is_input:
            fields.append(f"    {kind} {state}{dims}; /* {name} */")
            reset += _start(stream.start.get(name, 0.0), kind, state, shape)
    text = _C.replace("@CHUNK@", str(stream.chunk)).replace("@DELAY@", str(stream.delay))
    text = text.replace("@PARAMETERS@", ", ".join(parameters)).replace("@FIELDS@", "\n".join(fields))
    text = text.replace("@RESET@", "\n".join(reset)).replace("@VALUES@", "".join(values))
    text = text.replace("@ARGUMENTS@", ", ".join(arguments)).replace("@REST@", "".join(rest))
    return text.replace("@ZEROS@", "\n".join(zeros)).replace("@FLUSHED@", "".join(flushed))


def _start(start: object, kind: str, state: str, shape: list[int]) -> list[str]:
    """Return the lines that set a state to its start."""
    size = math.prod(shape)
    flat = np.broadcast_to(np.array(start, np.float64), shape).reshape(-1).tolist()
    if len({*flat}) == 1:
        flat = flat[:1]
    if len(flat) == 1:
        target = f"(({kind} *)state->{state})[i]"
        return [f"    for (int i = 0; i < {size}; i++) {target} = ({kind}){flat[0]!r};"]
    numbers = ", ".join(repr(number) for number in flat)
    return [
        f"    static const {kind} start_{state}[{size}] = {{{numbers}}};",
        f"    memcpy(state->{state}, start_{state}, sizeof start_{state});",
    ]
