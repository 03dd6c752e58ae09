"""onnx2torch: PyTorch modules made from ONNX models."""

from __future__ import annotations

import importlib.util
import sys
import types
from typing import Any

from rnnlower.engines.child import Model, Run

ABOUT = {
    "title": "onnx2torch",
    "packages": ("onnx2torch", "torch"),
    "install": "pip install torch && pip install --no-deps onnx2torch",
    "tried": "1.5.15",
    "threads": True,
}


def load(model: Model) -> Run:
    _stand_in_for_torchvision()
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


def _stand_in_for_torchvision() -> None:
    """Replace torchvision, which onnx2torch imports for image operators that no recurrent model has."""
    if "torchvision" in sys.modules or importlib.util.find_spec("torchvision"):
        return
    package: Any = types.ModuleType("torchvision")
    ops: Any = types.ModuleType("torchvision.ops")
    package.ops = ops
    ops.__getattr__ = lambda name: None
    sys.modules.update({"torchvision": package, "torchvision.ops": ops})
