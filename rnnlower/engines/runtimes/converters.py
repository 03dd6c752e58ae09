"""Adapters for runtimes for which a model is converted, or compiled to code, first."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import pathlib
import re
import shutil
import sys
import tempfile
import types
from typing import Any

from rnnlower.engines.child import Arrays, Model, Run, adapter


@adapter(
    "emx-onnx-cgen",
    packages=("emx-onnx-cgen",),
    install="pip install emx-onnx-cgen, and gcc",
    needs=("gcc",),
    tried="1.4.0",
)
def emx(model: Model) -> Run:
    """emx-onnx-cgen: C code for microcontrollers, compiled here with gcc and called as a shared library."""
    import ctypes

    import numpy as np
    import onnx
    import onnx.shape_inference

    loaded = onnx.load(model.path)
    # A result keeps the symbols of its outputs' sizes, even if fixed inputs determine them.
    inferred = onnx.shape_inference.infer_shapes(loaded, data_prop=True)
    for value in inferred.graph.output:
        dims = value.type.tensor_type.shape.dim
        model.outputs[value.name] = [dim.dim_value if dim.HasField("dim_value") else None for dim in dims]
    for name, sizes in {**model.inputs, **model.outputs}.items():
        if sizes is None or None in sizes:
            raise ValueError(f"it needs static shapes, and that of {name!r} is {sizes}")
    pathlib.Path(model.folder, "mdl.c").write_text(_compiler().compile(loaded), encoding="utf-8")
    # Optimizing what many steps in a straight line give takes minutes, and times here mean nothing elsewhere.
    model.run_program("gcc", "-std=gnu11", "-O0", "-w", "-shared", "-fPIC", "-o", "mdl.so", "mdl.c", "-lm")
    function = ctypes.CDLL(f"{model.folder}/mdl.so").mdl
    function.restype = None

    def run(feeds: Arrays) -> Arrays:
        results = {name: np.empty(sizes, model.dtypes[name]) for name, sizes in model.outputs.items()}
        arrays = [*(np.asarray(feeds[name], order="C") for name in model.inputs), *results.values()]
        function(*(ctypes.c_void_p(array.ctypes.data) for array in arrays))
        return results

    return run


@functools.cache
def _compiler() -> Any:
    """Return the code generator, the same for all models: it takes seconds to prepare its templates."""
    from emx_onnx_cgen.compiler import Compiler, CompilerOptions

    # Weights stay in the C file: above the threshold they would go to a separate file.
    return Compiler(CompilerOptions(model_name="mdl", large_weight_threshold=2_000_000_000))


@adapter(
    "IREE",
    packages=("iree-base-compiler", "iree-base-runtime", "onnx"),
    install="pip install 'iree-base-compiler[onnx]' iree-base-runtime",
    tried="3.13.0",
    slow=True,
)
def iree(model: Model) -> Run:
    """IREE, compiled for this machine's CPU."""
    import numpy as np
    from iree.compiler.tools.import_onnx import __main__ as importer

    # In this process: starting the tool takes longer than its work.
    words = [model.path, "-o", f"{model.folder}/model.mlir", "--opset-version", "17"]
    importer.main(importer.parse_arguments(words))
    cpu = ("--iree-hal-target-backends=llvm-cpu", "--iree-llvmcpu-target-cpu=host")
    model.run_program("iree-compile", "model.mlir", "-o", "model.vmfb", *cpu)
    import iree.runtime

    config = iree.runtime.Config("local-sync")
    compiled = iree.runtime.VmModule.mmap(config.vm_instance, f"{model.folder}/model.vmfb")
    module = iree.runtime.load_vm_module(compiled, config)
    inner = ("__init", "$async")
    names = [name for name in compiled.function_names if not name.startswith("_")]
    function = module[next(name for name in names if not name.endswith(inner))]

    def run(arrays: list[Any]) -> list[Any]:
        results = function(*arrays)
        return [*map(np.asarray, results if isinstance(results, (list, tuple)) else [results])]

    return model.in_order(run)


_OLDEST_ONNX2TF = (2, 4)


@adapter(
    "LiteRT through onnx2tf",
    packages=("onnx2tf", "ai-edge-litert"),
    tried="2.6.9",
    install="pip install 'onnx2tf>=2.4' ai-edge-litert  # Python 3.12 or newer",
    slow=True,
)
def litert(model: Model) -> Run:
    """LiteRT (TensorFlow Lite) in float32, through onnx2tf."""
    import numpy as np

    tflite = f"{model.folder}/model.tflite"
    shutil.move(_convert_to_tflite(model), tflite)
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(tflite)
    interpreter.allocate_tensors()
    runner = interpreter.get_signature_runner()
    # Letters of the names may be replaced, but the order is the graph's.
    inputs = [each["name"] for each in interpreter.get_input_details()]
    outputs = [each["name"] for each in interpreter.get_output_details()]

    def run(arrays: list[Any]) -> list[Any]:
        results: Any = runner(**dict(zip(inputs, arrays, strict=True)))
        return [np.asarray(results[name]) for name in outputs]

    return model.in_order(run)


def _convert_to_tflite(model: Model) -> str:
    """Return the path of the model that onnx2tf makes."""
    os.environ["TQDM_DISABLE"] = "1"
    import onnx2tf

    if tuple(map(int, onnx2tf.__version__.split(".")[:2])) < _OLDEST_ONNX2TF:
        # On the way through TensorFlow, a Transpose is guessed from its sizes: wrong where two are equal.
        raise RuntimeError(f"onnx2tf {onnx2tf.__version__} is too old: it must be 2.4 or newer")
    folder = _folder().name
    tflite = f"{folder}/model_float32.tflite"
    with contextlib.suppress(FileNotFoundError):
        os.remove(tflite)
    try:
        onnx2tf.convert(
            input_onnx_file_path=model.path,
            output_folder_path=folder,
            keep_shape_absolutely_input_names=list(model.inputs),
            output_signaturedefs=True,
            not_use_onnxsim=True,
            tflite_backend="flatbuffer_direct",
            non_verbose=True,
        )
    except Exception as error:
        if error.__cause__ is None:
            raise
        raise RuntimeError(f"{error} {error.__cause__}") from error
    return tflite


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    """Make one folder for all models: onnx2tf executes a copy of its schema from every new one."""
    return tempfile.TemporaryDirectory()


_CONVERT = "import sys, _tools; _tools.mnnconvert(['mnnconvert'] + sys.argv[1:])"


@adapter(
    "MNN",
    packages=("mnn",),
    tried="3.6.1",
    # Tanh is 2e-7 off near 0, and 3e-7 elsewhere.
    activation_error=3e-7,
)
def mnn(model: Model) -> Run:
    """MNN on the CPU.

    Its converter is called as a module: the script `mnnconvert` installs a package and posts usage data.
    """
    options = ("--bizCode", "x")
    files = ("--modelFile", model.path, "--MNNModel", "model.mnn")
    printed = model.run_program(sys.executable, "-c", _CONVERT, "-f", "ONNX", *files, *options)
    if not os.path.exists(f"{model.folder}/model.mnn"):
        lines = [line for line in printed.splitlines() if "rror" in line or "not supp" in line]
        raise RuntimeError(f"the converter wrote nothing: {' | '.join(lines[:3])}")
    import MNN.expr
    import MNN.nn
    import numpy as np

    inputs, outputs = list(model.inputs), list(model.outputs)
    net = MNN.nn.load_module_from_file(f"{model.folder}/model.mnn", inputs, outputs)
    kinds = {"f": MNN.expr.float, "i": MNN.expr.int}

    def run(arrays: list[Any]) -> list[Any]:
        # MNN computes integers and conditions in int32.
        fed = [array.astype(np.int32) if array.dtype.kind in "bui" else array for array in arrays]
        values = [MNN.expr.const(a, list(a.shape), MNN.expr.NCHW, kinds[a.dtype.kind]) for a in fed]
        results = zip(outputs, (value.read() for value in net.forward(values)), strict=True)
        return [a.astype(model.dtypes[name]) if a.dtype.kind == "i" else a.copy() for name, a in results]

    return model.in_order(run)


@adapter("ncnn", packages=("ncnn", "pnnx"), tried="1.0.20261020")
def ncnn(model: Model) -> Run:
    """ncnn on the CPU in float32, through pnnx."""
    import ncnn
    import numpy as np
    import pnnx

    bundled = os.path.join(os.path.dirname(pnnx.__file__), "pnnx")
    model.run_program(bundled if os.path.exists(bundled) else "pnnx", "model.onnx", "fp16=0")
    net = ncnn.Net()
    net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
    ends = (".ncnn.param", ".ncnn.bin", "_ncnn.py")
    param, weights, script = (pathlib.Path(model.folder, f"model{end}") for end in ends)
    # The first two lines are not layers.
    kinds = {line.split()[0] for line in param.read_text(encoding="utf-8").splitlines()[2:]}
    unknown = sorted(kind for kind in kinds if ncnn.layer_to_index(kind) < 0)
    if net.load_param(str(param)) or net.load_model(str(weights)):
        words = f"ncnn has no {', '.join(unknown)}" if unknown else "ncnn gives no reason"
        raise RuntimeError(f"the result of pnnx does not load: {words}")
    # The Python file that pnnx writes next to the model shows which axis is each array's batch.
    axes = {
        name: int(index)
        for line in script.read_text(encoding="utf-8").splitlines()
        for name, index in re.findall(r"\b((?:in|out)\d+)\b.*batch_index=(\d+)", line)
    }

    def run(feeds: Arrays) -> Arrays:
        extractor = net.create_extractor()
        for index, name in enumerate(model.inputs):
            array = np.ascontiguousarray(feeds[name])
            axis = axes.get(f"in{index}")
            mat = ncnn.Mat(array) if axis is None else ncnn.Mat(array, batch_index=axis)
            extractor.input(f"in{index}", mat.clone())
        results = {}
        for index, name in enumerate(model.outputs):
            status, mat = extractor.extract(f"out{index}")
            if status:
                raise RuntimeError(f"output {name!r} has status {status}")
            axis = axes.get(f"out{index}")
            results[name] = np.array(mat if axis is None else mat.numpy(batch_index=axis))
        return results

    return run


@adapter("rknn-toolkit2", packages=("rknn-toolkit2",), precision="float16", tried="2.5.0", slow=True)
def rknn(model: Model) -> Run:
    """Rockchip's rknn-toolkit2: its NPU simulator, which computes in float16."""
    import onnx
    from rknn.api import RKNN

    # It refuses inputs that no node reads.
    read = {name for node in onnx.load(model.path).graph.node for name in node.input}
    toolkit = RKNN(verbose=False)
    toolkit.config(target_platform=os.environ.get("RKNN_TARGET", "rk3588"))
    inputs, outputs = [name for name in model.inputs if name in read], list(model.outputs)
    steps = {
        "load_onnx": lambda: toolkit.load_onnx(
            model=model.path, inputs=inputs, input_size_list=[model.inputs[name] for name in inputs]
        ),
        "build": lambda: toolkit.build(do_quantization=False),
        "init_runtime": toolkit.init_runtime,
    }
    for name, step in steps.items():
        if step():
            raise RuntimeError(f"its {name} fails")

    def run(feeds: Arrays) -> Arrays:
        results = toolkit.inference(
            inputs=[feeds[name] for name in inputs], data_format=["nchw"] * len(inputs)
        )
        if results is None:
            raise RuntimeError("its inference fails")
        return dict(zip(outputs, results, strict=True))

    return run


@adapter("TVM", packages=("apache-tvm", "onnx"), tried="0.27.0.post1")
def tvm(model: Model) -> Run:
    """Apache TVM: the Relax frontend, compiled for the CPU."""
    import onnx
    import tvm
    from tvm import relax
    from tvm.relax.frontend.onnx import from_onnx

    module = relax.transform.LegalizeOps()(from_onnx(onnx.load(model.path), keep_params_in_input=False))
    device = tvm.cpu()
    machine = relax.VirtualMachine(tvm.compile(module, target="llvm"), device)

    def run(arrays: list[Any]) -> list[Any]:
        results = machine["main"](*(tvm.runtime.tensor(array, device) for array in arrays))
        return [result.numpy() for result in ([results] if hasattr(results, "numpy") else results)]

    return model.in_order(run)


@adapter(
    "onnx2torch",
    packages=("onnx2torch", "torch"),
    install="pip install torch && pip install --no-deps onnx2torch",
    tried="1.5.15",
    threads=True,
)
def onnx2torch(model: Model) -> Run:
    """onnx2torch: PyTorch modules made from ONNX models."""
    _stub_torchvision()
    import onnx
    import onnx2torch
    import torch

    if model.threads:
        torch.set_num_threads(model.threads)
    # By default, BatchNormalization and Dropout are in training mode.
    module = onnx2torch.convert(model.path).eval()
    outputs = list(model.outputs)
    graph = onnx.load(model.path, load_external_data=False).graph
    made_by = {name: tuple(node.output) for node in graph.node for name in node.output if name}
    nodes = list(dict.fromkeys(made_by.get(name, (name,)) for name in outputs))

    def run(arrays: list[Any]) -> list[Any]:
        with torch.no_grad():
            results = module(*map(torch.from_numpy, arrays))
        # One result for each node with outputs of the graph: of several outputs, all of them.
        if len(nodes) == 1:
            results = [results]
        found: dict[str, Any] = {}
        for names, result in zip(nodes, results, strict=True):
            found.update(zip(names, result if isinstance(result, (list, tuple)) else [result], strict=False))
        return [found[name].numpy() for name in outputs]

    return model.in_order(run)


def _stub_torchvision() -> None:
    """Replace torchvision, which onnx2torch imports for image operators that no recurrent model has."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision"):
        return
    package: Any = types.ModuleType("torchvision")
    ops: Any = types.ModuleType("torchvision.ops")
    package.ops = ops
    ops.__getattr__ = lambda name: None
    sys.modules.update({"torchvision": package, "torchvision.ops": ops})
