"""Passes that move constants between graph inputs, initializers and Constant nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

from rnnlower import wording
from rnnlower.arguments import dictionary
from rnnlower.errors import OptionError
from rnnlower.files import beyond_ir
from rnnlower.files.metadata import PadMetadata, StreamMetadata
from rnnlower.graph.facts import Facts
from rnnlower.graph.initializers import FREE_INITIALIZERS_IR, constant_holds
from rnnlower.graph.names import NameSource, all_names
from rnnlower.graph.rewiring import prepend, take_place_of
from rnnlower.graph.walk import default_opset
from rnnlower.passes.base import Pass, initializers_suit_ir_version
from rnnlower.passes.declared_sizes import FreezeDimsPass, follow_inputs
from rnnlower.wording import counted

_FEW = 4


def constant_defaults(model: ir.Model) -> list[ir.Value]:
    """Return the inputs that have a default; that of a state is where a stream starts, and no constant."""
    stream = StreamMetadata.read(model.metadata_props)
    states = () if stream is None else stream.states.values()
    return [value for value in model.graph.inputs if value.is_initializer() and value.name not in states]


def _no_input_has_a_default(model: ir.Model, owner: object) -> bool:
    return not constant_defaults(model)


class FreezeInitializersPass(Pass):
    """Turns initializers that are also graph inputs into constants, and removes these inputs.

    The states of a streamed model stay inputs.

    Before IR version 4 every initializer had to be an input, which nobody could feed; the version is raised.

    Before::

        (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}> {
            y = Mul (x, w)
        }

    After ``FreezeInitializersPass()``::

        (float[2] x) => (float[2] y) <float[2] w = {1, 2}> {
            y = Mul (x, w)
        }

    Attributes:
        frozen: The names of the inputs that were removed.
    """

    ENSURES = (_no_input_has_a_default, initializers_suit_ir_version)

    def __init__(self) -> None:
        self.frozen: list[str] = []

    @property
    def notes(self) -> list[str]:
        """Messages for the user."""
        names = ", ".join(map(repr, self.frozen[:_FEW])) + (", ..." if len(self.frozen) > _FEW else "")
        what = f"{counted(len(self.frozen), 'graph input')} with an initializer became constants: {names}"
        return [what] if self.frozen else []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        self.frozen = [str(value.name) for value in constant_defaults(model)]
        if self.frozen:
            kept = [value for value in model.graph.inputs if value.name not in self.frozen]
            model.graph.inputs.clear()
            model.graph.inputs.extend(kept)
            model.ir_version = max(model.ir_version, FREE_INITIALIZERS_IR)
        return ir.passes.PassResult(model, modified=bool(self.frozen))


class LegacyConstantsPass(Pass):
    """Turns initializers that are not graph inputs into Constant nodes where the IR version demands it.

    Raising the IR version instead would turn the model's own weights, which must be listed as inputs there,
    from constants into defaults that a caller may override, and keep runtimes from folding them.

    Before, at opset 7 and IR version 3::

        (float[2] x) => (float[2] y) <float[2] c = {1, 2}> {
            y = Add (x, c)
        }

    After ``LegacyConstantsPass()``::

        (float[2] x) => (float[2] y) {
            c = Constant <value = float[2] {1, 2}> ()
            y = Add (x, c)
        }
    """

    ENSURES = (initializers_suit_ir_version,)

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        graph = model.graph
        if model.ir_version >= FREE_INITIALIZERS_IR:
            return ir.passes.PassResult(model, modified=False)
        values = [value for value in graph.initializers.values() if not value.is_graph_input()]
        opset, names = default_opset(model), NameSource(all_names(model) if values else ())
        nodes = [node for value in values for node in _replace_by_constant_node(value, opset, names)]
        prepend(graph, nodes)
        return ir.passes.PassResult(model, modified=bool(nodes))


def _replace_by_constant_node(value: ir.Value, opset: int, names: NameSource) -> list[ir.Node]:
    """Remove the initializer from its graph; return nodes that produce it instead."""
    assert value.graph is not None
    assert value.name is not None
    assert value.const_value is not None
    value.graph.initializers.pop(value.name)
    tensor = value.const_value
    if constant_holds(tensor.dtype, opset):
        nodes = [ir.node("Constant", [], {"value": tensor}, name="")]
    else:
        floats = ir.node("Constant", [], {"value": ir.Tensor(tensor.numpy().astype(np.float64))}, name="")
        floats.outputs[0].name = names.fresh(f"{value.name}.float64")
        nodes = [floats, ir.node("Cast", floats.outputs, {"to": tensor.dtype.value}, name="")]
    take_place_of(nodes[-1].outputs[0], value)
    return nodes


def _inputs_are_constants(model: ir.Model, setting: SetInputsPass) -> bool:
    inputs = {value.name for value in model.graph.inputs}
    return inputs.isdisjoint(setting.values) and setting.values.keys() <= model.graph.initializers.keys()


class SetInputsPass(Pass):
    """Turns graph inputs into initializers that hold the given values, in the inputs' types and shapes.

    A number fills every element. An array fixes a dynamic shape.

    Before::

        (float[2] x, float scale) => (float[2] y) {
            y = Mul (x, scale)
        }

    After ``SetInputsPass({"scale": 0.5})``::

        (float[2] x) => (float[2] y) <float scale = {0.5}> {
            y = Mul (x, scale)
        }

    Args:
        sets: Values by the input's name: numbers, lists or arrays.

    Attributes:
        values: The values in the model, by name.

    Raises:
        OptionError: `sets` is not a dictionary.
    """

    ENSURES = (_inputs_are_constants,)

    def __init__(self, sets: Mapping[str, Any]) -> None:
        self._sets = dictionary("sets", sets)
        self.values: dict[str, np.ndarray] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Set the inputs.

        Raises:
            OptionError: A name that the model does not have, or a value of another type or shape.
        """
        inputs = {value.name: value for value in model.graph.inputs}
        padding = PadMetadata.read(model.metadata_props)
        convention = set() if padding is None else {*padding.lengths.values(), *padding.inputs}
        for name, given in self._sets.items():
            if name not in inputs:
                known = ", ".join(str(known) for known in inputs) or "none"
                raise OptionError(f"the model has no input named {name!r} to set; it has {known}")
            if name in beyond_ir.names_in_training(model):
                raise OptionError(f"input {name!r} cannot be set: the model's training reads it")
            if name in convention:
                raise OptionError(
                    f"input {name!r} cannot be set: the model is padded, and this is a length or is padded",
                    remedy=f"set it in the source, or fix the length there ({wording.dims({'T': 16})})",
                )
            array = _convert_to_type(inputs[name], given)
            self.values[name] = _fit_to_shape(model, self.facts, inputs[name], array)
        for name, array in self.values.items():
            _make_initializer(model, inputs[name], array)
        follow_inputs(model)
        return ir.passes.PassResult(model, modified=bool(self.values))


def _convert_to_type(value: ir.Value, given: Any) -> np.ndarray:
    """Return the given value as an array of the input's type."""
    if not isinstance(value.type, ir.TensorType) or value.dtype in (None, ir.DataType.STRING):
        raise OptionError(f"input {value.name!r} cannot be set: it is not a tensor of a known numeric type")
    dtype = value.type.dtype.numpy()
    wanted = _describe_type(value)
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise OptionError(f"input {value.name!r} cannot be {given!r}: rows of different lengths") from error
    is_float = value.type.dtype.is_floating_point()
    fits = {"b": dtype == np.bool_, "i": True, "u": True}
    if array.size == 0:
        return array.astype(dtype)
    if not fits.get(array.dtype.kind, is_float and array.dtype.kind in "fV"):
        raise OptionError(f"input {value.name!r} cannot be {_abbreviate(given)}: it takes {wanted}")
    with np.errstate(all="ignore"):
        converted = array.astype(dtype)
        before, after = array.astype(np.float64), converted.astype(np.float64)
    # A float rounds the given value; it does not overflow.
    exact = np.isfinite(after) | ~np.isfinite(before) if is_float else before == after
    if not exact.all():
        raise OptionError(f"input {value.name!r} cannot hold {_abbreviate(given)}: it takes {wanted}")
    return converted


def _describe_type(value: ir.Value) -> str:
    assert value.dtype is not None
    if value.dtype == ir.DataType.BOOL:
        return "true or false"
    if not value.dtype.is_integer():
        return f"numbers of type {value.dtype.numpy()}"
    limits = ml_dtypes.iinfo(value.dtype.numpy())  # type: ignore[no-untyped-call]
    return f"integers from {limits.min} to {limits.max}"


def _fit_to_shape(model: ir.Model, facts: Facts, value: ir.Value, array: np.ndarray) -> np.ndarray:
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
        prepend(graph, [identity])
        rest = NameSource(all_names(model)).fresh(f"{value.name}_set")
        take_place_of(identity.outputs[0], value, old_name=rest, readers=())
    graph.inputs.remove(value)
    graph.initializers.pop(str(value.name), None)
    value.shape = ir.Shape(array.shape)
    value.const_value = ir.Tensor(array, dtype=value.dtype, name=value.name)
    graph.register_initializer(value)


def _abbreviate(given: Any) -> str:
    text = repr(given.tolist() if isinstance(given, np.ndarray) else given)
    return text if len(text) <= 60 else f"{text[:57]}..."
