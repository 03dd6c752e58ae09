"""Inputs given by the user: a dictionary, an .npz file, or a test-data folder of the ONNX standard."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import numpy_helper
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower.arguments import dictionary
from rnnlower.engines import child
from rnnlower.engines.session import Array, restore_bfloat16
from rnnlower.errors import OptionError
from rnnlower.verification.models import required_inputs

GivenInputs: TypeAlias = "Mapping[str, Array] | str | os.PathLike[str]"


def read_inputs(
    given: GivenInputs, graph: onnx.GraphProto, sets: Mapping[str, Array] | None = None
) -> list[dict[str, Array]]:
    """Read the sets of inputs in ``given``, and check them against the inputs of ``graph``.

    A dictionary and an .npz file hold one set: arrays under the inputs' names, or under ``in::NAME``;
    entries ``out::NAME`` are ignored. A folder holds ``input_0.pb``, ``input_1.pb`` ... in the order of
    the inputs, or several such folders ``test_data_set_N``. Inputs that are in ``sets`` may be left out.

    Raises:
        OptionError: Neither of these, unreadable, an unknown or missing name, a wrong dtype or rank, or a
            value other than the one that is set.
    """
    fixed = sets or {}
    values = required_inputs(graph)
    if isinstance(given, Mapping):
        found = [dict(given)]
    elif not isinstance(given, str | os.PathLike):
        raise OptionError(f"inputs is of type {type(given).__name__}; it must be a dictionary or a path")
    else:
        path = Path(given)
        found = _read_folder(path, values) if path.is_dir() else [_read_npz(path)]
    required = {value.name for value in values} - fixed.keys()
    checked = [_check(entries, graph, required) for entries in found]
    for entries in checked:
        for name in fixed.keys() & entries.keys():
            if not np.array_equal(entries[name], fixed[name]):
                raise OptionError(
                    f"input {name!r} is set to {brief_value(fixed[name])}, and the inputs given hold "
                    f"{brief_value(entries[name])}: leave out one of the two"
                )
    return checked


def read_sets(sets: Mapping[str, Any] | None, graph: onnx.GraphProto) -> dict[str, Array]:
    """Return the values of inputs that are set, in the inputs' types; a number fills a static shape.

    Raises:
        OptionError: An unknown name, or a wrong dtype or rank.
    """
    types = {value.name: value.type.tensor_type for value in graph.input}
    arrays = {}
    for name, value in dictionary("sets", sets).items():
        array = np.asarray(value)
        tensor = types.get(name)
        if not isinstance(value, np.ndarray) and tensor is not None and tensor.elem_type:
            array = array.astype(tensor_dtype_to_np_dtype(tensor.elem_type))
            # Some exporters write -1 for a dynamic size.
            sizes = [d.dim_value for d in tensor.shape.dim if d.HasField("dim_value") and d.dim_value >= 0]
            if array.ndim == 0 and len(sizes) == len(tensor.shape.dim):
                array = np.full(sizes, array)
        arrays[name] = array
    return _check(arrays, graph, set())


def brief_value(array: Array) -> str:
    """Return a value as messages write it."""
    text = repr(array.tolist())
    return text if len(text) <= 60 else f"{array.dtype}{list(array.shape)}"


def _read_npz(path: Path) -> dict[str, Array]:
    try:
        entries = child.read_arrays(str(path))
    except ValueError as error:
        raise OptionError(f"cannot read inputs from {path}: {error}") from error
    return {
        name.removeprefix("in::"): array for name, array in entries.items() if not name.startswith("out::")
    }


def _read_folder(path: Path, values: Sequence[onnx.ValueInfoProto]) -> list[dict[str, Array]]:
    folders = sorted(path.glob("test_data_set_*"), key=_trailing_number) or [path]
    sets = []
    for folder in folders:
        files = sorted(folder.glob("input_*.pb"), key=_trailing_number)
        if not files:
            raise OptionError(f"{folder} holds no input_*.pb")
        entries = {}
        for file in files:
            index = _trailing_number(file)
            if index >= len(values):
                raise OptionError(f"{file}: the model has only {len(values)} inputs")
            entries[values[index].name] = _read_tensor(file)
        sets.append(entries)
    return sets


def _trailing_number(path: Path) -> int:
    found = re.search(r"(\d+)$", path.stem)
    return int(found.group(1)) if found else 0


def _read_tensor(file: Path) -> Array:
    try:
        return numpy_helper.to_array(onnx.load_tensor(file))
    except (OSError, DecodeError, TypeError, ValueError) as error:
        raise OptionError(f"{file} does not hold a tensor: {error}") from error


def _check(entries: dict[str, Array], graph: onnx.GraphProto, required: set[str]) -> dict[str, Array]:
    types = {value.name: value.type for value in graph.input}
    unknown, missing = sorted(set(entries) - set(types)), sorted(required - set(entries))
    if unknown:
        raise OptionError(f"inputs for {unknown[0]!r} given, but the model's inputs are {', '.join(types)}")
    if missing:
        raise OptionError(f"no value given for the input {missing[0]!r}")
    checked = {}
    for name, array in entries.items():
        tensor = types[name].tensor_type
        array = restore_bfloat16(np.asarray(array), tensor.elem_type)
        wanted = np.dtype(tensor_dtype_to_np_dtype(tensor.elem_type)) if tensor.elem_type else array.dtype
        if array.dtype != wanted and not (wanted.kind == "O" and array.dtype.kind in "US"):
            raise OptionError(f"input {name!r} has dtype {array.dtype}, the model needs {wanted}")
        if tensor.HasField("shape") and len(tensor.shape.dim) != array.ndim:
            raise OptionError(
                f"input {name!r} has rank {array.ndim}, the model needs {len(tensor.shape.dim)}"
            )
        for axis, (size, dim) in enumerate(zip(array.shape, tensor.shape.dim, strict=False)):
            if dim.dim_value > 0 and size != dim.dim_value:
                raise OptionError(
                    f"input {name!r} has {size} on axis {axis}, the model needs {dim.dim_value}"
                )
        checked[name] = array
    return checked
