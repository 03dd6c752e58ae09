"""Composition of several files, whose outputs feed each other's inputs, to one model."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter

import onnx
import onnx.compose
from onnx_ir.passes.common import RemoveInitializersFromInputsPass

from rnnlower.arguments import dictionary
from rnnlower.errors import InvalidModelError, OptionError, UnsupportedModelError
from rnnlower.files.model_io import ModelLike, load_model, to_proto
from rnnlower.wording import call, option


def compose_files(paths: Sequence[ModelLike], connections: Mapping[str, str] | None) -> onnx.ModelProto:
    """Return one model of these files, with their data. Models without a path are numbered.

    An output is connected with the input that is named, or else with each of its own name in another model.
    Connected ones are neither inputs nor outputs of the result; other inputs of one name are one input. All
    else has the name of its model in front of its own.

    Args:
        connections: For inputs, the outputs of another name that feed them.

    Raises:
        InvalidModelError: A file cannot be read.
        OptionError: The connections do not fit the files.
        UnsupportedModelError: The files differ in their opsets.
    """
    wanted = dictionary("connect", connections)
    names = [
        pathlib.Path(path).stem if isinstance(path, str | os.PathLike) else f"model_{number}"
        for number, path in enumerate(paths)
    ]
    models = {name: _with_constants(path) for name, path in zip(names, paths, strict=True)}
    if len(models) != len(paths):
        raise OptionError(
            "two of the files have the same name, which goes in front of those of their nodes",
            remedy="rename one of them",
        )
    if len(models) < 2:
        raise OptionError("there are fewer than two files, and nothing to connect")
    makers = {out.name: name for name, model in models.items() for out in model.graph.output}
    given = {name: _find_connections(models, makers, name, wanted) for name in models}
    _check(models, makers, given, wanted)
    result = onnx.ModelProto()
    result.ir_version = max(model.ir_version for model in models.values())
    result.graph.name = " ".join(models)
    result.opset_import.extend(_opsets(models))
    for name, model in models.items():
        for entry in model.metadata_props:
            taken = {each.key: each.value for each in result.metadata_props}
            # A calling convention is that of one part alone.
            if not entry.key.startswith("rnnlower.") and taken.get(entry.key) != entry.value:
                key = f"{name}/{entry.key}" if entry.key in taken else entry.key
                result.metadata_props.add(key=key, value=entry.value)
    used = {out for inputs in given.values() for out in inputs.values()}
    outputs = {out.name: out for model in models.values() for out in model.graph.output}
    for name in _topological_order(models, makers, given):
        _append(result, name, models[name], given[name], outputs)
        for value, out in (connections or {}).items():
            if value != out and makers[out] == name:
                result.graph.node.append(onnx.helper.make_node("Identity", [out], [value]))
        result.graph.output.extend(out for out in models[name].graph.output if out.name not in used)
    return result


def _with_constants(path: ModelLike) -> onnx.ModelProto:
    """Read a model; initializers that are also inputs become constants, as two files may share a name."""
    model = load_model(path)
    RemoveInitializersFromInputsPass()(model)
    model.ir_version = max(model.ir_version, 4)
    return to_proto(model)


def _find_connections(
    models: Mapping[str, onnx.ModelProto],
    makers: Mapping[str, str],
    name: str,
    connections: Mapping[str, str],
) -> dict[str, str]:
    """Return the inputs of a model that another model's outputs feed, with these outputs."""
    found = {}
    for value in models[name].graph.input:
        output = connections.get(value.name, value.name)
        if value.name in connections or makers.get(output, name) != name:
            found[value.name] = output
    return found


def _check(
    models: Mapping[str, onnx.ModelProto],
    makers: Mapping[str, str],
    given: Mapping[str, Mapping[str, str]],
    connections: Mapping[str, str],
) -> None:
    inputs = [value.name for model in models.values() for value in model.graph.input]
    outputs = [value.name for model in models.values() for value in model.graph.output]
    for name, out in connections.items():
        if out not in makers or name not in inputs:
            raise OptionError(
                f"no file has an output {out!r}, or none an input {name!r}; "
                f"outputs are {', '.join(outputs)}, inputs {', '.join(dict.fromkeys(inputs))}"
            )
    twice = next((out for out in outputs if outputs.count(out) > 1), None)
    if twice is not None:
        raise OptionError(f"two files have an output {twice!r}", remedy="rename one of them")
    for name, connected in given.items():
        if not connected and all(makers[out] != name for each in given.values() for out in each.values()):
            raise OptionError(
                f"{name} is connected with no other file: its inputs are "
                f"{', '.join(value.name for value in models[name].graph.input)}",
                remedy=f"name the outputs they come from ({option('connect', 'OUT=IN')})",
            )
        for value in models[name].graph.input:
            if value.name in connected and makers[connected[value.name]] == name:
                raise OptionError(f"input {value.name!r} of {name} is connected with an output of its own")


def _opsets(models: Mapping[str, onnx.ModelProto]) -> list[onnx.OperatorSetIdProto]:
    found: dict[str, tuple[str, onnx.OperatorSetIdProto]] = {}
    for name, model in models.items():
        for entry in model.opset_import:
            first, other = found.setdefault(entry.domain, (name, entry))
            if other.version != entry.version:
                newest = max(other.version, entry.version)
                raise UnsupportedModelError(
                    f"{first} is of opset {other.version}, and {name} of opset {entry.version}",
                    remedy=f"convert the older one first ({call('convert', opset=newest)})",
                )
    return [entry for _, entry in found.values()]


def _topological_order(
    models: Mapping[str, onnx.ModelProto], makers: Mapping[str, str], given: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """Return the names of the models, each after those that it takes outputs of."""
    sorter = TopologicalSorter[str](dict.fromkeys(models, ()))
    for name in models:
        sorter.add(name, *(makers[out] for out in given[name].values()))
    try:
        return [*sorter.static_order()]
    except CycleError:
        raise OptionError("the files feed each other in a circle") from None


def _append(
    result: onnx.ModelProto,
    name: str,
    model: onnx.ModelProto,
    given: Mapping[str, str],
    outputs: Mapping[str, onnx.ValueInfoProto],
) -> None:
    """Append the nodes of a model; ``outputs`` are those of all models."""
    own = onnx.compose.add_prefix(model, f"{name}/", rename_inputs=False, rename_outputs=False)
    graph = own.graph
    shared = {each.name: each for each in result.graph.input}
    for value in graph.input:
        source = outputs[given[value.name]] if value.name in given else shared.get(value.name)
        if source is None:
            result.graph.input.append(value)
        elif len({each.type.tensor_type.elem_type for each in (source, value)} - {0}) > 1:
            raise InvalidModelError(f"input {value.name!r} has another type in {name}")
    result.graph.node.extend(graph.node)
    for kind in ("initializer", "sparse_initializer", "value_info"):
        getattr(result.graph, kind).extend(getattr(graph, kind))
    result.functions.extend(own.functions)
