"""Graph inputs that the user fixes to a value.

Before::

    (float[2] x, float scale) => (float[2] y) {
        y = Mul (x, scale)
    }

After ``SetInputsPass({"scale": 0.5})``::

    (float[2] x) => (float[2] y) <float scale = {0.5}> {
        y = Mul (x, scale)
    }
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from rnnlower import wording
from rnnlower.errors import OptionError
from rnnlower.files import beyond_ir
from rnnlower.graph.facts import Facts
from rnnlower.graph.names import NameSource, names_in
from rnnlower.passes.base import Pass
from rnnlower.passes.freeze_dims import FreezeDimsPass


def _inputs_are_constants(model: ir.Model, setting: SetInputsPass) -> bool:
    inputs = {value.name for value in model.graph.inputs}
    return inputs.isdisjoint(setting.values) and setting.values.keys() <= model.graph.initializers.keys()


class SetInputsPass(Pass):
    """Turns graph inputs into initializers that hold the given values, in the inputs' types and shapes.

    A number fills every element. An array fixes a dynamic shape.

    Args:
        sets: Values by the input's name: numbers, lists or arrays.

    Attributes:
        values: The values in the model, by name.

    Raises:
        OptionError: `sets` is not a dictionary.
    """

    ENSURES = (_inputs_are_constants,)

    def __init__(self, sets: Mapping[str, Any]) -> None:
        super().__init__()
        if not isinstance(sets, Mapping):
            raise OptionError(f"sets is {sets!r}; it must be a dictionary")
        self._sets = sets
        self.values: dict[str, np.ndarray] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Set the inputs.

        Raises:
            OptionError: A name that the model does not have, or a value of another type or shape.
        """
        inputs = {value.name: value for value in model.graph.inputs}
        for name, given in self._sets.items():
            if name not in inputs:
                known = ", ".join(str(known) for known in inputs) or "none"
                raise OptionError(f"the model has no input named {name!r} to be set; it has {known}")
            if name in beyond_ir.names_in_training(model):
                raise OptionError(f"input {name!r} cannot be set: the model's training reads it")
            array = _in_type(inputs[name], given)
            self.values[name] = _in_shape(model, self.facts, inputs[name], array)
        for name, array in self.values.items():
            _make_initializer(model, inputs[name], array)
        return ir.passes.PassResult(model, modified=bool(self.values))


def _in_type(value: ir.Value, given: Any) -> np.ndarray:
    """Return the given value as an array of the input's type."""
    if not isinstance(value.type, ir.TensorType) or value.dtype in (None, ir.DataType.STRING):
        raise OptionError(f"input {value.name!r} cannot be set: it is not a tensor of a known numeric type")
    dtype = value.type.dtype.numpy()
    wanted = _wanted(value)
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise OptionError(f"input {value.name!r} cannot be {given!r}: rows of different lengths") from error
    is_float = value.type.dtype.is_floating_point()
    fits = {"b": dtype == np.bool_, "i": dtype != np.bool_, "u": dtype != np.bool_}
    if array.size == 0:
        return array.astype(dtype)
    if not fits.get(array.dtype.kind, is_float and array.dtype.kind in "fV"):
        raise OptionError(f"input {value.name!r} cannot be {_brief(given)}: it takes {wanted}")
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        before, after = array.astype(np.float64), converted.astype(np.float64)
    # A float rounds the given value; it does not overflow.
    exact = np.isfinite(after) | ~np.isfinite(before) if is_float else before == after
    if not exact.all():
        raise OptionError(f"input {value.name!r} cannot hold {_brief(given)}: it takes {wanted}")
    return converted


def _wanted(value: ir.Value) -> str:
    assert value.dtype is not None
    if value.dtype == ir.DataType.BOOL:
        return "true or false"
    if value.dtype.is_floating_point():
        return f"numbers of type {value.dtype.numpy()}"
    if not value.dtype.is_integer():
        return f"values of type {value.dtype.numpy()}"
    limits = ml_dtypes.iinfo(value.dtype.numpy())  # type: ignore[no-untyped-call]
    return f"integers from {limits.min} to {limits.max}"


def _in_shape(model: ir.Model, facts: Facts, value: ir.Value, array: np.ndarray) -> np.ndarray:
    """Return the array in the input's shape, and fix the shape if it is dynamic."""
    if value.shape is None:
        return array
    declared = [dim if isinstance(dim, int) and dim >= 0 else None for dim in value.shape]
    if array.ndim == 0 and None not in declared:
        return np.full([size for size in declared if size is not None], array)
    agrees = all(size in (None, own) for size, own in zip(declared, array.shape, strict=False))
    if array.ndim != len(declared) or not agrees:
        shape = ", ".join(str(dim) for dim in value.shape)
        options = wording.several([wording.option("dim"), wording.option("input-shape")])
        open_ = f" once its sizes are fixed ({options})" if None in declared else ""
        raise OptionError(
            f"input {value.name!r} has the shape [{shape}], and the value given {list(array.shape)}: "
            f"give an array of that shape, or one number{open_}, which fills it"
        )
    FreezeDimsPass(input_shapes={str(value.name): array.shape})(model, facts)
    return array


def _make_initializer(model: ir.Model, value: ir.Value, array: np.ndarray) -> None:
    graph = model.graph
    if value.is_graph_output():
        # An output stays the output of a node, under its name.
        identity = ir.node("Identity", [value])
        graph.insert_before(next(iter(graph)), identity) if len(graph) else graph.append(identity)
        out = identity.outputs[0]
        out.type, out.shape = value.type, value.shape
        for index, each in enumerate(graph.outputs):
            if each is value:
                graph.outputs[index] = out
        out.name, value.name = value.name, NameSource(names_in(model)).fresh(f"{value.name}_set")
    graph.inputs.remove(value)
    graph.initializers.pop(str(value.name), None)
    value.shape = ir.Shape(array.shape)
    value.const_value = ir.Tensor(array, dtype=value.dtype, name=value.name)
    graph.register_initializer(value)


def _brief(given: Any) -> str:
    text = repr(given.tolist() if isinstance(given, np.ndarray) else given)
    return text if len(text) <= 60 else f"{text[:57]}..."
