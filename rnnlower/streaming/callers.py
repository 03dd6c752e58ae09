"""The caller's code of a streamed model: states, chunks and delay, in Python, JavaScript or C."""

from __future__ import annotations

import json

import onnx_ir as ir

from rnnlower.files.metadata import StreamMetadata
from rnnlower.streaming.caller_in_c import Opener, generate_c, read_template, require_shape, require_type

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
    return _generate_javascript(model, stream) if language == "js" else generate_c(model, stream, open_model)


def _generate_javascript(model: ir.Model, stream: StreamMetadata) -> str:
    same = ("BOOL", "INT8", "INT16", "INT32", "INT64", "UINT8", "UINT16", "UINT32")
    names = {"FLOAT": "float32", "DOUBLE": "float64", **{name: name.lower() for name in same}}
    inputs, states = {*stream.states.values()}, {}
    for value in (*model.graph.inputs, *model.graph.outputs):
        name = str(value.name)
        if name in inputs:
            states[name] = {
                "type": names[require_type(value, names)],
                "shape": require_shape(value, "JavaScript"),
                "start": stream.start.get(name, 0.0),
            }
        elif name in stream.inputs or name in stream.outputs:
            require_type(value, names)
    description = {
        "chunk": stream.chunk or 1,
        "delay": stream.delay,
        "inputs": stream.inputs,
        "outputs": stream.outputs,
        "stages": stream.stages,
        "feeds": stream.states,
        "states": states,
    }
    return read_template("caller.js").replace("@DESCRIPTION@", json.dumps(description, indent=2))
