"""`rnnlower inspect`."""

from __future__ import annotations

import dataclasses
import json

from rnnlower.cli.options import Json, Model
from rnnlower.cli.running import emit, exit_codes, say

__all__ = ["inspect"]


@exit_codes
def inspect(model: Model, json_: Json = False) -> None:
    """List the recurrent nodes."""
    from rnnlower.cli import tables
    from rnnlower.files.model_io import read_model
    from rnnlower.inspection import inspect_model
    from rnnlower.recurrent.suspicions import find_suspicions

    loaded = read_model(model)
    nodes = inspect_model(loaded)
    suspicions = find_suspicions(loaded)
    if json_:
        opset = {domain or "ai.onnx": version for domain, version in loaded.opset_imports.items()}
        recurrent = [node.to_dict() for node in nodes]
        result = {"ir_version": loaded.ir_version, "opset": opset, "recurrent": recurrent}
        result["warnings"] = [dataclasses.asdict(suspicion) for suspicion in suspicions]
        emit(json.dumps(result))
    else:
        tables.print_inspection(loaded, nodes)
    for suspicion in suspicions:
        say(f"rnnlower: warning: {suspicion}", json_)
