// The caller's side of a streamed model, for onnxruntime-node and -web: write() takes frames of any
// number, flush() ends a recording.

const DESCRIPTION = @DESCRIPTION@;
const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array, int16: Int16Array,
  int8: Int8Array, uint32: Uint32Array, uint16: Uint16Array, uint8: Uint8Array, bool: Uint8Array,
};

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
    this.steps = 0;
    this.given = Object.fromEntries(Object.keys(DESCRIPTION.outputs).map((name) => [name, 0]));
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

  // Take frames, or the inputs of a call where they have none: tensors by input name. Return the outputs of
  // whole chunks, or nothing yet.
  async write(frames) {
    const inputs = Object.entries(DESCRIPTION.inputs);
    if (!inputs.length) return this.call(frames);
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
        this.given[name] += outputs[name].dims[axis];
      }
      this.late -= skipped;
      this.steps += DESCRIPTION.chunk;
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
    if (!Object.keys(this.rest).length) {
      this.reset();
      return {};
    }
    const steps = Object.entries(DESCRIPTION.inputs).map(([name, axis]) => this.rest[name].dims[axis]);
    const left = Math.max(...steps) + DESCRIPTION.delay;
    const whole = this.steps + Math.max(...steps);
    const given = { ...this.given };
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
        outputs[name] = this.cut(outputs[name], axis, 0, this.frames(name, whole) - given[name]);
      }
    }
    this.reset();
    return outputs;
  }

  // Return the frames of an output for a recording of this many time steps.
  frames(name, steps) {
    const stages = DESCRIPTION.stages[name] ?? [];
    return stages.reduce((n, [factor, more, stride]) => Math.floor((n * factor + more) / stride), steps);
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
