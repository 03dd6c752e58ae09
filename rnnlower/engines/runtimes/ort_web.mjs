// node ort_web.mjs PACKAGE: answers lines of JSON with lines of JSON; {model} is loaded, on {feeds} it is run.
import fs from "node:fs";
import readline from "node:readline";
import { createRequire } from "node:module";

const [, , folder] = process.argv;
const ort = createRequire(folder + "/package.json")(folder);
ort.env.wasm.numThreads = 1;
ort.env.logLevel = "error";

const ARRAYS = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, bool: Uint8Array,
  int8: Int8Array, int16: Int16Array, int32: Int32Array, int64: BigInt64Array,
  uint8: Uint8Array, uint16: Uint16Array, uint32: Uint32Array, uint64: BigUint64Array,
};

function decoded({ type, dims, data }) {
  const bytes = Buffer.from(data, "base64");
  const buffer = bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.length);
  return new ort.Tensor(type, new ARRAYS[type](buffer), dims);
}

function encoded({ type, dims, data }) {
  const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
  return { type, dims, data: bytes.toString("base64") };
}

function converted(values, how) {
  return Object.fromEntries(Object.entries(values).map(([name, value]) => [name, how(value)]));
}

let session;

async function answered({ model, feeds }) {
  if (feeds) return converted(await session.run(converted(feeds, decoded)), encoded);
  await session?.release();
  session = undefined;
  session = await ort.InferenceSession.create(new Uint8Array(fs.readFileSync(model)), { executionProviders: ["wasm"] });
  return {};
}

for await (const line of readline.createInterface({ input: process.stdin })) {
  let answer;
  try {
    answer = await answered(JSON.parse(line));
  } catch (error) {
    answer = { error: String(error.message ?? error) };
  }
  process.stdout.write(JSON.stringify(answer) + "\n");
}
