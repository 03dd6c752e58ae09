"""Write docs/peers.md: the results of other tools on LSTM, GRU and RNN nodes.

    benchmarks/peers FOLDER

makes the environments in FOLDER and runs this script. Each tool gets each model of models/, in a process that
may crash or hang. Counted are results without recurrent nodes, and results that compute the same. A tool that
is not installed is left out.

Converters to other formats run as engines of rnnlower do, each in the environment that a variable names:
RNNLOWER_PYTHON_LITERT (onnx2tf), RNNLOWER_PYTHON_NCNN (pnnx), RNNLOWER_PYTHON_ONNX2TORCH. The tables of
`peers_of_commands.py` need RNNLOWER_PYTHON_OPENVINO, RNNLOWER_PYTHON_TRACT, PEERS_AI_EDGE, PEERS_LITERT_TORCH
and PEERS_TINYNN.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import importlib.metadata
import multiprocessing
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator

import onnx
from long_memory import LongMemory
from peers_of_commands import LENGTH, UNITS, fusions, integers, onnxsim_functions, streams

import rnnlower

ROOT = pathlib.Path(__file__).parents[1]
PAGE = ROOT / "docs" / "peers.md"
RECURRENT = {"LSTM", "GRU", "RNN"}
OPSET = 21
SECONDS = 60
TRIALS = 4

CONVERTED = (
    "rnn07_defaults",
    "gru14_defaults",
    "gru14_linear_before_reset",
    "lstm14_defaults",
    "lstm14_bidirectional",
    "lstm14_peephole",
    "ocr_conv_bilstm_gemm",
)
"""Models that go to other formats, which take their time."""
SIZES = {"ocr_conv_bilstm_gemm": {"batch": 1, "width": 64}}
CONVERTERS = (
    ("onnx2tf", "ai-edge-litert", "litert"),
    ("pnnx", "ncnn", "ncnn"),
    ("onnx2torch", "torch", "onnx2torch"),
)

Tool = Callable[[pathlib.Path, pathlib.Path], None]

INTRODUCTION = """\
# Other tools

<!-- Written by benchmarks/peers.py. -->

None of the other packages that write ONNX replaces LSTM, GRU or RNN nodes by primitive operators. They
simplify graphs, fold constants or convert opsets, and combine well with rnnlower: run them before or after.
Converters to other formats have recurrent layers of their own, and support some of the nodes.

Measured on {date}. `benchmarks/peers FOLDER` makes the environments of all tools and measures everything on
this page.

## Tools that write ONNX

Each tool ran, without options, on the {count} models of `models/` that have a recurrent node: small ones of
every version, attribute and place, from opset 1 on, many of them unusual on purpose.

- *without recurrent nodes*: the number of results that have none left, including *different* ones.
- *equal*: the result computes the same as the source, by `rnnlower verify`.
- *different*: it computes something else, or no engine runs it.
- *fails*: the tool ends with an error, crashes, or takes over {seconds} seconds. `rnnlower unroll` refuses
  models without a static length.
- *not compared*: no engine runs the source.

"""


COMMANDS = """
## Next to `lift`: OpenVINO's fusions

OpenVINO has passes that turn Loops and TensorIterators into its own sequences when it loads a model
(`ConvertLoopToLSTMSequence`, `SequenceFusion`). Here it gets {converted} models in three forms, as
`rnnlower loop`, `scan` and `unroll` write them, and once more after `rnnlower lift`.

- *recurrent again*: the lifted model has its recurrent node, and computes the same.
- *fused*: the model that OpenVINO {openvino} compiled for the CPU has a recurrent layer.

| form | models | rnnlower lift | OpenVINO | OpenVINO, after `rnnlower lift` |
|---|---|---|---|---|
{fusions}

## Next to `stream`: LowLatency2 and pulse

OpenVINO's LowLatency2 keeps the states of recurrent layers inside the compiled model, and tract's pulse
makes a model for chunks of time. Both work inside their own runtime; `rnnlower stream` writes an ONNX file.
The models are those of `models/` with a single float32 input that `rnnlower stream` accepts and onnxruntime
runs. They are fed one time step a call, and the outputs of all calls are compared with those of the whole
sequence. Outputs without a time axis are left out where there are others.

- *wrong as a whole, too*: the runtime (OpenVINO {openvino}, tract {tract}) does not compute the model
  correctly in one piece either.

| tool | models | result |
|---|---|---|
{streams}

## Next to `quantize`: AI Edge and TinyNeuralNetwork

An LSTM of 64 units over 30 steps, half of whose units forget over 50 steps (`benchmarks/long_memory.py`),
calibrated on seven recordings of noise. An eighth gives the ratio of signal to noise. AI Edge's quantizer
{ai_edge} takes TensorFlow Lite files, here those of litert-torch {litert_torch} and onnx2tf {onnx2tf}.
TinyNeuralNetwork {tinynn} takes models of PyTorch. *size*: relative to the ONNX file in float32.

- *LSTM rewritten*: an LSTM operator in 8 bits, its cell state in 16, as in its example
  `ptq_with_dynamic_q_lstm.py`.
- *dynamic*: the weights in 8 bits; inputs, outputs and states stay in float32.

| tool | format | dB | size |
|---|---|---|---|
{integers}

## onnxsim's functions of a model

onnxsim {onnxsim} has functions that quantize, prune and legalize models. Of those whose names begin with
`quantize`, `apply`, `legalize` or `auto_quantize`, {total} take a model alone. Each of them got the LSTM
above:

| result | functions |
|---|---|
{functions}

Those that leave other weights are {converting}.

`onnxsim.graph_grad` makes gradients of {differentiable} operators; LSTM, GRU and RNN are {recurrent} them. Of
the operators of the LSTM above after `rnnlower unroll`, {missing}.

onnxsim's repository has `unroll_lstm` and `unroll_gru`, in `scripts/axera/legalize.py`. The package has
{unroll}. Read, not run: they take nodes of a static length, forward, with constant weights,
without peepholes and `sequence_lens`; others stay as they are.
"""


CONVERSION = """
## Converters to other formats

{models} of the models above, each with a static length. A model is converted and runs on the
converter's runtime, as it is and after `rnnlower unroll`; the numbers are compared with those of onnxruntime
on the model as it is.

- *right*: the same names, shapes and numbers.
- *wrong*: it runs and gives something else.
- *fails*: the converter or the runtime refuses it.

| converter | runtime | as it is | after `rnnlower unroll` |
|---|---|---|---|
"""


def _version_converter(source: pathlib.Path, output: pathlib.Path) -> None:
    from onnx import version_converter

    onnx.save(version_converter.convert_version(onnx.load(source), OPSET), output)


def _onnxscript_converter(source: pathlib.Path, output: pathlib.Path) -> None:
    import onnx_ir as ir
    from onnxscript import version_converter

    model = ir.load(source)
    version_converter.convert_version(model, target_version=OPSET)
    ir.save(model, output)


def _onnxscript_optimizer(source: pathlib.Path, output: pathlib.Path) -> None:
    from onnxscript import optimizer

    onnx.save(optimizer.optimize(onnx.load(source)), output)


def _onnxslim(source: pathlib.Path, output: pathlib.Path) -> None:
    import onnxslim

    onnx.save(onnxslim.slim(onnx.load(source)), output)


def _onnxsim(source: pathlib.Path, output: pathlib.Path) -> None:
    import onnxsim

    simplified, _ = onnxsim.simplify(onnx.load(source))
    onnx.save(simplified, output)


def _onnxoptimizer(source: pathlib.Path, output: pathlib.Path) -> None:
    import onnxoptimizer

    onnx.save(onnxoptimizer.optimize(onnx.load(source)), output)


def _polygraphy(source: pathlib.Path, output: pathlib.Path) -> None:
    from polygraphy.backend.onnx import fold_constants

    onnx.save(fold_constants(onnx.load(source)), output)


def _onnxruntime(source: pathlib.Path, output: pathlib.Path) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(output)
    onnxruntime.InferenceSession(str(source), options, providers=["CPUExecutionProvider"])


def _rnnlower_scan(source: pathlib.Path, output: pathlib.Path) -> None:
    onnx.save(rnnlower.scan(source), output)


def _rnnlower_unroll(source: pathlib.Path, output: pathlib.Path) -> None:
    onnx.save(rnnlower.unroll(source), output)


TOOLS: list[tuple[str, str, str, Tool]] = [
    ("rnnlower scan", "rnnlower", "recurrent nodes become primitives in a Scan", _rnnlower_scan),
    (
        "rnnlower unroll",
        "rnnlower",
        "recurrent nodes of a static length become straight lines",
        _rnnlower_unroll,
    ),
    ("onnx.version_converter", "onnx", f"converts the opset, here to {OPSET}", _version_converter),
    (
        "onnxscript.version_converter",
        "onnxscript",
        f"converts the opset, here to {OPSET}",
        _onnxscript_converter,
    ),
    ("onnxscript.optimizer", "onnxscript", "folds constants, rewrites patterns", _onnxscript_optimizer),
    ("onnxslim", "onnxslim", "simplifies graphs", _onnxslim),
    ("onnxsim", "onnxsim", "simplifies graphs", _onnxsim),
    ("onnxoptimizer", "onnxoptimizer", "fuses and eliminates nodes", _onnxoptimizer),
    ("polygraphy fold_constants", "polygraphy", "folds constants", _polygraphy),
    ("onnxruntime, saved graph", "onnxruntime", "writes the graph that it optimized", _onnxruntime),
]


def _recurrent(graph: onnx.GraphProto | onnx.FunctionProto) -> int:
    """Return the recurrent nodes of a graph and its subgraphs."""
    found = 0
    for node in graph.node:
        found += node.op_type in RECURRENT and node.domain in ("", "ai.onnx")
        for attribute in node.attribute:
            found += sum(map(_recurrent, [attribute.g, *attribute.graphs]))
    return found


def _left(path: pathlib.Path) -> int:
    model = onnx.load(path)
    return sum(map(_recurrent, [model.graph, *model.functions]))


def _in_child(work: Callable[[], str]) -> str:
    """Return the result of the work; empty if it raises, crashes or hangs."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        sender.send(work())

    process = context.Process(target=run)
    process.start()
    sender.close()
    try:
        answer = receiver.recv() if receiver.poll(SECONDS) else ""
    except EOFError:
        answer = ""
    process.kill()
    process.join()
    return str(answer)


def _compared(source: pathlib.Path, output: pathlib.Path) -> str:
    try:
        return "equal" if rnnlower.verify(source, output, trials=TRIALS) else "different"
    except rnnlower.UnverifiableError as error:
        return "different" if "candidate" in str(error) else "not compared"
    except rnnlower.RnnLowerError:
        return "different"


def measure(tool: Tool, models: Iterable[pathlib.Path]) -> collections.Counter[str]:
    """Return a summary of the tool's results on the models."""
    counts: collections.Counter[str] = collections.Counter()
    for source in models:
        with tempfile.TemporaryDirectory() as folder:
            output = pathlib.Path(folder) / "out.onnx"

            def convert(source: pathlib.Path = source, output: pathlib.Path = output) -> str:
                tool(source, output)
                return f"{_left(output)}"

            left = _in_child(convert)
            if not left:
                counts["fails"] += 1
                continue
            verdict = _compared(source, output)
            counts[verdict] += 1
            counts["without recurrent nodes"] += left == "0"
    return counts


def _there(source: pathlib.Path, candidate: onnx.ModelProto, engine: str) -> str:
    try:
        return "right" if rnnlower.verify(source, candidate, on=engine, trials=TRIALS) else "wrong"
    except rnnlower.UnverifiableError:
        return "fails"


def _package_version(package: str, engine: str) -> str:
    """The version in the environment of an engine."""
    return _version_there(package, os.environ.get(f"RNNLOWER_PYTHON_{engine.upper()}", sys.executable))


def _version_there(package: str, python: str) -> str:
    code = f"import importlib.metadata as m; print(m.version({package!r}))"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def convert(folder: pathlib.Path) -> Iterator[str]:
    """A row of the second table for each converter that is installed."""
    installed = {engine.name for engine in rnnlower.engines() if engine.version is not None}
    for converter, runtime, engine in CONVERTERS:
        if engine not in installed:
            print(f"{converter} or {runtime} is not installed")
            continue
        counts: list[collections.Counter[str]] = [collections.Counter(), collections.Counter()]
        for name in CONVERTED:
            with tempfile.TemporaryDirectory() as place:
                source = pathlib.Path(place) / "model.onnx"
                onnx.save(_sized(folder / f"{name}.onnx", SIZES.get(name, {})), source)
                for count, candidate in zip(
                    counts, (onnx.load(source), rnnlower.unroll(source)), strict=True
                ):
                    count[_there(source, candidate, engine)] += 1
        names = [f"{each} {_package_version(each, engine)}" for each in (converter, runtime)]
        cells = [
            ", ".join(f"{count[word]} {word}" for word in ("right", "wrong", "fails") if count[word])
            for count in counts
        ]
        yield f"| {' | '.join([*names, *cells])} |"


def _sized(path: pathlib.Path, sizes: dict[str, int]) -> onnx.ModelProto:
    model = onnx.load(path)
    for value in model.graph.input:
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in sizes:
                dim.dim_value = sizes[dim.dim_param]
    return model


def commands(folder: pathlib.Path) -> str:
    """Return the sections on the peers of single commands."""
    import onnxsim
    from onnxsim import graph_grad

    with tempfile.TemporaryDirectory() as name:
        place = pathlib.Path(name)
        sized = []
        for model in CONVERTED:
            sized.append(place / f"{model}.onnx")
            onnx.save(_sized(folder / f"{model}.onnx", SIZES.get(model, {})), sized[-1])
        tables = {
            "fusions": fusions(sized, place),
            "streams": streams(sorted(folder.glob("*.onnx")), place),
            "integers": integers(place),
        }
        rows = {title: "\n".join(each) for title, each in tables.items()}
    outcomes = onnxsim_functions()
    differentiable = set(graph_grad.supported_ops())
    line = rnnlower.unroll(LongMemory("LSTM", UNITS, LENGTH).build())
    missing = sorted({node.op_type for node in line.graph.node} - differentiable)
    counts = "\n".join(f"| {kind} | {len(names)} |" for kind, names in outcomes.items())
    return COMMANDS.format(
        **rows,
        converted=len(CONVERTED),
        openvino=_package_version("openvino", "openvino"),
        tract=_package_version("tract", "tract"),
        onnx2tf=_package_version("onnx2tf", "litert"),
        ai_edge=_version_there("ai-edge-quantizer", os.environ["PEERS_AI_EDGE"]),
        litert_torch=_version_there("litert-torch", os.environ["PEERS_LITERT_TORCH"]),
        tinynn=_version_there("TinyNeuralNetwork", os.environ["PEERS_TINYNN"])[: len("0.1.0.20260303")],
        onnxsim=importlib.metadata.version("onnxsim"),
        functions=counts,
        total=sum(map(len, outcomes.values())),
        differentiable=len(differentiable),
        recurrent="among" if RECURRENT & differentiable else "not among",
        missing=f"{', '.join(missing)} have none" if missing else "all have one",
        converting=", ".join(f"`{each}`" for each in outcomes["other weights in the LSTM"]),
        unroll="them, too" if hasattr(onnxsim, "unroll_lstm") else "neither of them",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=str(ROOT / "models"), help="the folder of models")
    arguments = parser.parse_args()
    models = sorted(path for path in pathlib.Path(arguments.models).glob("*.onnx") if _left(path))
    columns = ("without recurrent nodes", "equal", "different", "fails", "not compared")
    lines = [
        f"| tool | version | what it does | {' | '.join(columns)} |",
        f"|---|---|---|{'---|' * len(columns)}",
    ]
    for name, package, what, tool in TOOLS:
        try:
            version = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            print(f"{package} is not installed")
            continue
        counts = measure(tool, models)
        cells = " | ".join(str(counts[column]) for column in columns)
        lines.append(f"| {name} | {version} | {what} | {cells} |")
        print(lines[-1], flush=True)
    converted = []
    for row in convert(pathlib.Path(arguments.models)):
        print(row, flush=True)
        converted.append(row)
    today = datetime.date.today().isoformat()
    text = INTRODUCTION.format(count=len(models), seconds=SECONDS, date=today) + "\n".join(lines) + "\n"
    text += commands(pathlib.Path(arguments.models))
    if converted:
        text += CONVERSION.format(models=len(CONVERTED)) + "\n".join(converted) + "\n"
    PAGE.write_text(text)


if __name__ == "__main__":
    main()
