"""`rnnlower inspect`."""

from __future__ import annotations

import json

from rnnlower.cli.options import Json, Model
from rnnlower.cli.running import emit, exit_codes

__all__ = ["inspect"]


@exit_codes
def inspect(model: Model, json_: Json = False) -> None:
    """List the recurrent nodes."""
    from rnnlower.cli import tables
    from rnnlower.files.model_io import read_model
    from rnnlower.inspection import inspect_model

    loaded = read_model(model)
    nodes = inspect_model(loaded)
    if json_:
        opset = {domain or "ai.onnx": version for domain, version in loaded.opset_imports.items()}
        recurrent = [node.to_dict() for node in nodes]
        emit(json.dumps({"ir_version": loaded.ir_version, "opset": opset, "recurrent": recurrent}))
    else:
        tables.print_inspection(loaded, nodes)
