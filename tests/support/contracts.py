"""A judge of contracts: the conditions of passes and steps, and those that all of them keep."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from unittest import mock

import onnx
import onnx_ir as ir

from rnnlower.graph.initializers import FREE_INITIALIZERS_IR
from rnnlower.graph.symbols import dim_name
from rnnlower.passes import SetInputsPass, StreamPass, pipeline
from rnnlower.passes.base import Condition
from rnnlower.passes.steps.work import Work
from support.step_contracts import CONTRACTS, Contract

_SETS_INPUTS = (SetInputsPass, StreamPass)
"""The passes whose purpose is to change the interface."""


@dataclasses.dataclass(frozen=True)
class Port:
    """A graph input or output, as a caller sees it."""

    name: str
    dtype: ir.DataType | None
    dims: tuple[int | str | None, ...] | None

    @classmethod
    def of(cls, value: ir.Value) -> Port:
        dims = None
        if value.shape is not None:
            dims = tuple(dim if isinstance(dim, int) else dim_name(dim) for dim in value.shape)
        return cls(str(value.name), value.dtype, dims)

    def allows(self, later: Port) -> bool:
        """Return whether the later one is the same, but for sizes that have become known."""
        if (self.name, self.dtype) != (later.name, later.dtype):
            return False
        if self.dims is None or later.dims is None:
            return self.dims is None
        pairs = list(zip(self.dims, later.dims, strict=False))
        return len(self.dims) == len(later.dims) and all(
            new == old or (not _is_number(old) and isinstance(new, int)) or old is None for old, new in pairs
        )


def _is_number(dim: object) -> bool:
    return isinstance(dim, int) and dim >= 0


@dataclasses.dataclass(frozen=True)
class Interface:
    """The inputs without a default, and the outputs."""

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]

    @classmethod
    def of(cls, model: ir.Model) -> Interface:
        graph = model.graph
        needed = [value for value in graph.inputs if value.name not in graph.initializers]
        return cls(tuple(map(Port.of, needed)), tuple(map(Port.of, graph.outputs)))

    def _unset(self, sets: Iterable[str]) -> list[Port]:
        return [port for port in self.inputs if port.name not in {*sets}]

    def check(self, model: ir.Model, where: str, sets: Iterable[str] = ()) -> None:
        """Check that the model still has it, but for inputs that may have been set."""
        now = Interface.of(model)
        for mine, others in ((self._unset(sets), now._unset(sets)), (self.outputs, now.outputs)):
            same = len(mine) == len(others) and all(a.allows(b) for a, b in zip(mine, others, strict=False))
            assert same, f"{where} makes {others} of {mine}"


def _check(conditions: Iterable[Condition], model: ir.Model, owner: object, where: str) -> None:
    for condition in conditions:
        assert condition(model, owner), f"{where}: {condition.__name__}"


@contextlib.contextmanager
def contracts_hold() -> Iterator[list[str]]:
    """Check the contracts of all that runs inside; yields the names of the passes and steps that ran."""
    ran: list[str] = []
    # The model after a step is that before the next one.
    last: list[tuple[Work, bool]] = []
    call = ir.passes.PassBase.__call__

    def checked_call(pass_: ir.passes.PassBase, model: ir.Model) -> ir.passes.PassResult:
        name = type(pass_).__name__
        before = Interface.of(model)
        _check(getattr(pass_, "REQUIRES", ()), model, pass_, f"{name} requires")
        result = call(pass_, model)
        _check(getattr(pass_, "ENSURES", ()), model, pass_, f"{name} ensures")
        if not isinstance(pass_, _SETS_INPUTS):
            before.check(model, name)
        ran.append(name)
        return result

    def checked_step(step: pipeline.Step) -> pipeline.Step:
        name = step.run.__name__

        def run(work: Work) -> None:
            before = Interface.of(work.model)
            was_sound = last.pop()[1] if last and last[0][0] is work else _is_sound(work.model)
            contract = CONTRACTS.get(step.run, Contract())
            _check(contract.requires, work.model, work, f"{name} requires")
            step.run(work)
            _check(contract.ensures, work.model, work, f"{name} ensures")
            before.check(work.model, name, work.options.sets or ())
            is_sound = _is_sound(work.model)
            assert not was_sound or is_sound, f"{name} leaves a model that is not sound"
            last[:] = [(work, is_sound)]
            ran.append(name)

        return dataclasses.replace(step, run=run)

    steps = tuple(map(checked_step, pipeline.LOWER))
    with (
        mock.patch.object(ir.passes.PassBase, "__call__", checked_call),
        mock.patch.object(pipeline, "LOWER", steps),
    ):
        yield ran


def _is_sound(model: ir.Model) -> bool:
    proto = ir.to_proto(model)
    # Initializers that old IR versions lack are there until `legacy_constants`, whose contract says so.
    proto.ir_version = max(proto.ir_version, FREE_INITIALIZERS_IR)
    try:
        onnx.checker.check_model(proto)
    except onnx.checker.ValidationError:
        return False
    return True
