"""The command `rnnlower inspect`."""

from __future__ import annotations

import dataclasses
import pathlib

from rnnlower.cli.defining import command
from rnnlower.cli.running import emit_json, say_notes, warn


@command()
def inspect(*, model: pathlib.Path, json_: bool = False) -> None:
    """List the inputs, outputs, operators and recurrent nodes."""
    from rnnlower.cli import tables
    from rnnlower.files.model_io import read_model, size_on_disk
    from rnnlower.files.pad_metadata import PadMetadata
    from rnnlower.files.provenance import read_provenance
    from rnnlower.graph.versions import notes_on_operators
    from rnnlower.inspection import find_liftable, find_warnings, inspect_model, summarize

    loaded = read_model(model)
    summary, size = summarize(loaded), size_on_disk(model, loaded)
    liftable = find_liftable(loaded)
    nodes = inspect_model(loaded)
    warnings = find_warnings(loaded)
    notes = notes_on_operators(loaded)
    say_notes(notes, quiet=False)
    warn(warnings)
    origin, pad = read_provenance(loaded.metadata_props), PadMetadata.read(loaded.metadata_props)
    if json_:
        opset = {domain or "ai.onnx": version for domain, version in loaded.opset_imports.items()}
        recurrent = [node.to_dict() for node in nodes]
        result = {"ir_version": loaded.ir_version, "opset": opset, "recurrent": recurrent}
        result |= dataclasses.asdict(summary) | {"bytes": size, "notes": notes, "provenance": origin}
        result["pad"] = None if pad is None else dataclasses.asdict(pad)
        result["liftable"] = [dataclasses.asdict(node) for node in liftable]
        emit_json(result | {"warnings": [dataclasses.asdict(warning) for warning in warnings]})
    else:
        tables.print_inspection(loaded, summary, size, nodes, liftable, origin, pad)
