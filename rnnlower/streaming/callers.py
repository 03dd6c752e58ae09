"""The caller's code of a streamed model: states, chunks and delay, in Python, JavaScript or C."""

from __future__ import annotations

import json

import onnx_ir as ir

from rnnlower.files.metadata import StreamMetadata
from rnnlower.streaming.caller_in_c import Opener, generate_c, require_shape, require_type

SUFFIXES = {"python": ".py", "js": ".js", "c": ".c"}
"""The languages, with the suffix of a file."""

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


def generate_caller(model: ir.Model, language: str, open_model: Opener) -> str:
    """Return the code that calls a streamed model; in C with a test against a run of it.

    Raises:
        UnsupportedModelError: The language needs sizes or types that the model leaves open.
    """
    stream = StreamMetadata.read(model.metadata_props)
    assert stream is not None
    if language == "python":
        return _PYTHON
    return _generate_javascript(model, stream) if language == "js" else generate_c(model, stream, open_model)


def _generate_javascript(model: ir.Model, stream: StreamMetadata) -> str:
    values = {value.name: value for value in model.graph.inputs}
    names = {"FLOAT": "float32", "DOUBLE": "float64", "INT64": "int64", "INT32": "int32"}
    states = {}
    for name in stream.states.values():
        value = values[name]
        states[name] = {
            "type": names[require_type(value, names)],
            "shape": require_shape(value, "JavaScript"),
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
