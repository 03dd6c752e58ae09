"""Types of the public functions: each works on a copy and returns the kind of model it was given."""

from __future__ import annotations

import functools
import inspect
import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast, overload

import onnx
import onnx_ir as ir

from rnnlower.files.model_io import ModelLike, load_model, to_proto
from rnnlower.graph.suppression import paused_collection
from rnnlower.recurrent.exporter_warnings import Suspicion

logger = logging.getLogger("rnnlower.api")

Progress = Callable[[str, int, int], None]
"""Called with a description of the phase, the work done and the work in total; 0 of 0 if uncounted."""


class Told(Protocol):
    """A report with something to log."""

    @property
    def notes(self) -> Sequence[str]: ...


_Options = ParamSpec("_Options")
_Report = TypeVar("_Report", bound=Told, covariant=True)
_Proto = str | os.PathLike[str] | onnx.ModelProto


class ModelFunction(Protocol[_Options, _Report]):
    """A function from a model to another one of the same kind; a path counts as a ModelProto.

    `with_report` returns a pair: the model and the report on what was done.
    """

    # Paths and protobufs first: without stubs for protobuf, a type checker accepts a ModelProto as any type.
    @overload
    def __call__(
        self, model: _Proto, *args: _Options.args, **options: _Options.kwargs
    ) -> onnx.ModelProto: ...

    @overload
    def __call__(self, model: ir.Model, *args: _Options.args, **options: _Options.kwargs) -> ir.Model: ...

    @overload
    def with_report(
        self, model: _Proto, *args: _Options.args, **options: _Options.kwargs
    ) -> tuple[onnx.ModelProto, _Report]: ...

    @overload
    def with_report(
        self, model: ir.Model, *args: _Options.args, **options: _Options.kwargs
    ) -> tuple[ir.Model, _Report]: ...


def model_function(
    function: Callable[Concatenate[ir.Model, _Options], _Report],
) -> ModelFunction[_Options, _Report]:
    """Make a public function out of one that changes a model in place and returns a report."""

    def with_report(model: ModelLike, *args: Any, **options: Any) -> tuple[Any, _Report]:
        tell = options.get("progress")
        if tell is not None:
            tell("reading", 0, 0)
        own = load_model(model)
        with paused_collection():
            report = function(own, *args, **options)
            log(report.notes, getattr(report, "warnings", ()))
            return own if isinstance(model, ir.Model) else to_proto(own), report

    @functools.wraps(function)
    def call(model: ModelLike, *args: Any, **options: Any) -> Any:
        return with_report(model, *args, **options)[0]

    public: Any = call
    public.__signature__ = _signature(function)
    public.with_report = with_report
    with_report.__doc__ = f"Like `{function.__name__}`, but returns a pair: the model and the report."
    return cast(ModelFunction[_Options, _Report], public)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature that `help` shows: the model in any form, and no report."""
    signature = inspect.signature(function)
    first, *rest = signature.parameters.values()
    model = first.replace(annotation="ModelLike")
    return signature.replace(parameters=[model, *rest], return_annotation="onnx.ModelProto | ir.Model")


def log(notes: Sequence[str], warnings: Sequence[Suspicion] = ()) -> None:
    """Log what the commands print as notes and warnings."""
    for note in notes:
        logger.info("%s", note)
    for warning in warnings:
        logger.warning("%s", warning)
