"""Passes that change declared sizes."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from rnnlower.arguments import dictionary
from rnnlower.errors import OptionError
from rnnlower.files.metadata import StreamMetadata
from rnnlower.graph.evaluation import Dim, Shape
from rnnlower.graph.facts import Facts
from rnnlower.graph.inference import forget_negative_sizes
from rnnlower.graph.names import NameSource
from rnnlower.graph.symbols import dim_name
from rnnlower.graph.walk import ancestors, operand, root_graphs, walk, walk_values
from rnnlower.passes.base import Pass
from rnnlower.recurrent.finding import is_recurrent
from rnnlower.recurrent.operators import STATE_INPUTS

_SIZE_LIMIT = 2**63
"""The first size that int64, the type of sizes, does not hold."""


class CorrectShapesPass(Pass):
    """Replaces declared shapes by inferred ones; values without a declared shape get none.

    A name of the inputs' dimensions replaces another name, which an exporter makes up for each value.

    Graph outputs keep their declared sizes, except numbers that contradict the inferred ones.

    Before::

        (float[3] x) => (float[3] y) <float[9] h> {
            h = Neg (x)
            y = Abs (h)
        }

    After ``CorrectShapesPass()``::

        (float[3] x) => (float[3] y) <float[3] h> {
            h = Neg (x)
            y = Abs (h)
        }

    Args:
        outputs: Whether to declare missing shapes of graph outputs, and missing sizes of graph outputs and of
            the inputs and outputs of bodies: the number, or else a name, if possible that which the model's
            inputs have for it. Some runtimes require it. In bodies, such a number or name also replaces a
            name.

    Attributes:
        notes: A line for each graph output that declared another shape.
    """

    KEEPS_FACTS = True

    def __init__(self, *, outputs: bool = False) -> None:
        self._outputs = outputs
        self.notes: list[str] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified, of_inputs = False, _open_sizes(model)
        for out in (out for node, _ in walk(model.graph) for out in node.outputs):
            dims = self.facts.dims(out)
            if dims is None or out.shape is None or out.is_graph_output():
                continue
            declared = list(out.shape)
            same_rank = len(declared) == len(dims)
            known = [
                size if isinstance(size, int) or size in of_inputs else declared[axis] if same_rank else None
                for axis, size in enumerate(dims)
            ]
            if known != declared:
                out.shape = ir.Shape(known)
                modified = True
        for out in model.graph.outputs:
            shape = self.facts.shape(out)
            if out.shape is None:
                if self._outputs and shape is not None and None not in shape:
                    out.shape = ir.Shape(shape)
                    modified = True
            elif shape is not None and len(shape) == len(out.shape):
                modified |= self._correct(out, out.shape, shape)
        if self._outputs:
            modified |= self._name_sizes(model)
        return ir.passes.PassResult(model, modified)

    def _correct(self, out: ir.Value, declared: ir.Shape, shape: Shape) -> bool:
        sizes = [
            known if isinstance(said, int) and known is not None else said
            for said, known in zip(declared, shape, strict=True)
        ]
        if sizes == list(declared):
            return False
        out.shape = ir.Shape(sizes)
        old, new = (f"[{', '.join(map(str, each))}]" for each in (declared, sizes))
        self.notes.append(f"output {out.name!r} declares the shape {old} and has {new}: corrected")
        return True

    def _name_sizes(self, model: ir.Model) -> bool:
        shapes = [value.shape for value in walk_values(model.graph) if value.shape is not None]
        names = NameSource(filter(None, (dim_name(dim) for shape in shapes for dim in shape)))
        modified, of_inputs = False, _open_sizes(model)
        in_bodies = dict.fromkeys(
            value for body in model.graph.subgraphs() for value in (*body.inputs, *body.outputs)
        )
        for value in (*model.graph.outputs, *in_bodies):
            declared = list(value.shape or ())
            dims = self.facts.dims(value) or ()
            known = dims if len(dims) == len(declared) else [None] * len(declared)
            sizes = list[int | ir.SymbolicDim | str | None]()
            for axis, (dim, size) in enumerate(zip(declared, known, strict=True)):
                said = isinstance(dim, int) or dim_name(dim)
                is_known = isinstance(size, int) or size in of_inputs
                if is_known and (not said or value in in_bodies):
                    sizes.append(size)
                else:
                    sizes.append(dim if said else names.fresh(f"{value.name}_{axis}"))
            if sizes != declared:
                value.shape = ir.Shape(sizes)
                modified = True
        return modified


def _open_sizes(model: ir.Model) -> set[Dim]:
    """Return the named sizes of the inputs."""
    return {dim for value in model.graph.inputs for dim in value.shape or () if dim_name(dim)}


class NameBatchPass(Pass):
    """Gives the batch of a recurrent node one name where X and the initial states declare several.

    The ONNX spec requires these sizes to be equal, and a runtime that follows names must know it.

    Before::

        (float[T, N, 1] X, float[1, M, 1] h, float[1, 1, 1] W, float[1, 1, 1] R) => (float[T, 1, N, 1] Y) {
            Y = RNN <hidden_size = 1> (X, W, R, , , h)
        }

    After ``NameBatchPass()``::

        (float[T, N, 1] X, float[1, N, 1] h, float[1, 1, 1] W, float[1, 1, 1] R) => (float[T, 1, N, 1] Y) {
            Y = RNN <hidden_size = 1> (X, W, R, , , h)
        }

    Attributes:
        names: The new name of each dimension that has got one.
    """

    def __init__(self) -> None:
        self.names: dict[str, str] = {}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        dims = [dim for value in model.graph.inputs for dim in value.shape or ()]
        declared = [name for dim in dims if (name := dim_name(dim))]
        for sizes in _batch_sizes(model, self.facts):
            found = {self.names.get(name, name) for name in map(dim_name, sizes) if name in declared}
            equal = sorted(found, key=declared.index)
            for name in equal[1:]:
                self.names |= {each: equal[0] for each in declared if self.names.get(each, each) == name}
        for value in walk_values(model.graph) if self.names else ():
            if any(dim_name(dim) in self.names for dim in value.shape or ()):
                value.shape = ir.Shape(
                    [self.names.get(dim_name(dim) or "", dim) for dim in value.shape or ()]
                )
        return ir.passes.PassResult(model, bool(self.names))


def batches_of_states(model: ir.Model, facts: Facts) -> dict[str, int]:
    """Return the sizes of open dimensions of inputs, by name, that are the batch of initial states.

    Exporters leave the batch of X open and write initial states of the batch that they traced: no other runs.
    """
    dims = [dim for value in model.graph.inputs for dim in value.shape or ()]
    declared = {name for dim in dims if (name := dim_name(dim))}
    found: dict[str, int] = {}
    for sizes in _batch_sizes(model, facts):
        numbers = {size for size in sizes if isinstance(size, int)}
        if len(numbers) == 1:
            found |= {name: min(numbers) for size in sizes if (name := dim_name(size)) in declared}
    return found


def _batch_sizes(model: ir.Model, facts: Facts) -> Iterator[list[Dim]]:
    """Yield for each recurrent node the batch of X and of the initial states, which have to be equal.

    The ONNX spec requires it. A node whose results nobody reads never runs, and requires nothing.
    """
    needed = ancestors(*model.graph.outputs)
    for node in filter(is_recurrent, model.graph):
        if not needed.isdisjoint(node.outputs):
            axis = 0 if node.attributes.get_int("layout", 0) else 1
            found = (facts.dims(operand(node, index)) for index in (0, *STATE_INPUTS))
            yield [dims[axis] for dims in found if dims is not None and len(dims) > axis]


def follow_inputs(model: ir.Model) -> None:
    """Keep what the metadata of a streamed model says about its inputs true."""
    shapes = {str(value.name): tuple(value.shape or ()) for value in model.graph.inputs}
    StreamMetadata.follow(model.metadata_props, shapes)


def _sizes_are_frozen(model: ir.Model, freezing: FreezeDimsPass) -> bool:
    inputs = {value.name: value.shape for value in model.graph.inputs}
    names = {dim_name(dim) for shape in inputs.values() if shape is not None for dim in shape}
    given = freezing._input_shapes.items()
    return names.isdisjoint(freezing._dims) and all(inputs[name] == list(shape) for name, shape in given)


class FreezeDimsPass(Pass):
    """Replaces symbolic dimensions by numbers, wherever they appear.

    Values between inputs and outputs lose a shape that names the dimension: the sizes there follow from the
    inputs. A declared size of -1, which some exporters write for an unknown one, becomes unknown.

    Before::

        (float[T, N] x) => (float[T, N] y) {
            y = Neg (x)
        }

    After ``FreezeDimsPass({"T": 16})``::

        (float[16, N] x) => (float[16, N] y) {
            y = Neg (x)
        }

    Args:
        dims: Sizes by the dimension's name.
        input_shapes: Shapes by the graph input's name. A symbolic dimension that such a shape fixes
            is fixed everywhere.

    Raises:
        OptionError: An argument has another form.
    """

    ENSURES = (_sizes_are_frozen,)

    def __init__(
        self, dims: Mapping[str, int] | None = None, input_shapes: Mapping[str, Sequence[int]] | None = None
    ) -> None:
        sizes, shapes = dictionary("dims", dims), dictionary("input_shapes", input_shapes)
        self._dims = {name: _parse_size(size, f"dimension {name!r}") for name, size in sizes.items()}
        self._input_shapes = {name: _parse_shape(shape, name) for name, shape in shapes.items()}

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Freeze the dimensions.

        Raises:
            OptionError: A name that the model does not have, or a size that contradicts it or another option.
        """
        values = [
            value for root in root_graphs(model) for value in walk_values(root) if value.shape is not None
        ]
        self._check_dims(values)
        sizes = dict(self._dims)
        given = [(self._bind(model, name, shape, sizes), shape) for name, shape in self._input_shapes.items()]
        # Nothing is written before everything is known to fit.
        for value, shape in given:
            value.shape = ir.Shape(list(shape))
        modified = bool(given)
        for value in values:
            assert value.shape is not None
            frozen = [sizes.get(dim_name(dim) or "", dim) for dim in value.shape]
            if frozen == list(value.shape):
                continue
            # Inside a graph a dimension's name is only an exporter's assumption: two sizes may share it.
            is_interface = value.producer() is None or value.is_graph_output()
            value.shape = ir.Shape(frozen) if is_interface else None
            modified = True
        if modified:
            # Inference now knows sizes there, and onnx's checker would see -1 as a contradiction.
            forget_negative_sizes(model)
            follow_inputs(model)
        return ir.passes.PassResult(model, modified)

    def _check_dims(self, values: Sequence[ir.Value]) -> None:
        known = sorted({name for value in values for dim in value.shape or () if (name := dim_name(dim))})
        for name, size in self._dims.items():
            if name not in known:
                names = ", ".join(known) or "no symbolic dimension"
                raise OptionError(f"the model has no dimension named {name!r}; it has {names}")
            if not 0 <= size < _SIZE_LIMIT:
                raise OptionError(f"dimension {name!r} cannot have the size {size}")

    def _bind(self, model: ir.Model, name: str, shape: Sequence[int], sizes: dict[str, int]) -> ir.Value:
        """Return the input of this name, whose rank the shape fits; `sizes` collects its named dimensions."""
        inputs = {value.name: value for value in model.graph.inputs}
        if name not in inputs:
            known = ", ".join(str(known) for known in inputs)
            raise OptionError(f"the model has no input named {name!r}; it has {known}")
        value = inputs[name]
        old: Sequence[int | ir.SymbolicDim | None] = (
            [None] * len(shape) if value.shape is None else list(value.shape)
        )
        if len(old) != len(shape):
            raise OptionError(
                f"input {name!r} has rank {len(old)}, but the shape given has {len(shape)} sizes"
            )
        for axis, (size, dim) in enumerate(zip(shape, old, strict=True)):
            symbol = dim_name(dim)
            bound = sizes.get(symbol, size) if symbol else dim if isinstance(dim, int) and dim >= 0 else size
            where = f"input {name!r} cannot have the size {size} on axis {axis}"
            if not 0 <= size < _SIZE_LIMIT:
                raise OptionError(where)
            if bound != size and symbol in self._dims:
                raise OptionError(f"{where}: {symbol!r} is given as {bound}")
            if bound != size:
                raise OptionError(f"{where}: the model has {bound}")
            if symbol:
                sizes[symbol] = size
        return value


def _parse_shape(shape: Sequence[int], name: str) -> list[int]:
    if isinstance(shape, str) or not isinstance(shape, Iterable):
        raise OptionError(f"input {name!r} cannot have the shape {shape!r}: it must be a list of integers")
    return [_parse_size(size, f"input {name!r}") for size in shape]


def _parse_size(size: int, whose: str) -> int:
    try:
        return operator.index(size)
    except TypeError as error:
        raise OptionError(f"{whose} cannot have the size {size!r}: it must be an integer") from error
