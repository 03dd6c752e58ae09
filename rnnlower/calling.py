"""Public functions made of an options class and a function that takes an object of it."""

from __future__ import annotations

import inspect
import logging
import os
import textwrap
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, cast, overload

import onnx
import onnx_ir as ir

from rnnlower.files.model_io import ModelLike, load_model, to_proto
from rnnlower.graph.suppression import paused_gc
from rnnlower.passes.options import HELP, Options
from rnnlower.recurrent.suspicions import Suspicion

_logger = logging.getLogger("rnnlower.api")


class HasNotes(Protocol):
    """A report with notes, which are logged."""

    @property
    def notes(self) -> Sequence[str]: ...


_Arguments = ParamSpec("_Arguments")
_Options = TypeVar("_Options", bound=Options)
_Report = TypeVar("_Report", bound=HasNotes, covariant=True)
_Result = TypeVar("_Result", covariant=True)
_Proto = str | os.PathLike[str] | onnx.ModelProto | Sequence["str | os.PathLike[str] | onnx.ModelProto"]


class OptionsFunction(Protocol[_Arguments, _Result]):
    """A function of a model, with the arguments of an options class."""

    def __call__(self, model: ModelLike, *args: _Arguments.args, **options: _Arguments.kwargs) -> _Result: ...


class ModelFunction(Protocol[_Arguments, _Report]):
    """A function from a model to another one of the same kind; a path counts as a ModelProto.

    `with_report` returns a pair: the model and the report on what was done.

    Attributes:
        run: What it does to a model in place, given an object of its options class.
    """

    run: Callable[[ir.Model, Any], Any]

    # Paths and protobufs first: without stubs for protobuf, a type checker accepts a ModelProto as any type.
    @overload
    def __call__(
        self, model: _Proto, *args: _Arguments.args, **options: _Arguments.kwargs
    ) -> onnx.ModelProto: ...

    @overload
    def __call__(self, model: ir.Model, *args: _Arguments.args, **options: _Arguments.kwargs) -> ir.Model: ...

    @overload
    def with_report(
        self, model: _Proto, *args: _Arguments.args, **options: _Arguments.kwargs
    ) -> tuple[onnx.ModelProto, _Report]: ...

    @overload
    def with_report(
        self, model: ir.Model, *args: _Arguments.args, **options: _Arguments.kwargs
    ) -> tuple[ir.Model, _Report]: ...


def options_function(
    kind: Callable[_Arguments, _Options],
) -> Callable[[Callable[[ModelLike, _Options], _Result]], OptionsFunction[_Arguments, _Result]]:
    """Make a public function, with the arguments of an options class, of one that takes the options."""

    def decorate(run: Callable[[ModelLike, _Options], _Result]) -> OptionsFunction[_Arguments, _Result]:
        def call(model: ModelLike, *args: _Arguments.args, **given: _Arguments.kwargs) -> _Result:
            return run(model, kind(*args, **given))

        _publish(call, run, kind, inspect.signature(run).return_annotation)
        return call

    return decorate


def model_function(
    kind: Callable[_Arguments, _Options],
) -> Callable[[Callable[[ir.Model, _Options], _Report]], ModelFunction[_Arguments, _Report]]:
    """Make a public function, with the arguments of an options class, of one that works in place.

    It works on a copy and returns the kind of model it was given.
    """

    def decorate(run: Callable[[ir.Model, _Options], _Report]) -> ModelFunction[_Arguments, _Report]:
        def with_report(
            model: ModelLike, *args: _Arguments.args, **given: _Arguments.kwargs
        ) -> tuple[Any, _Report]:
            options = kind(*args, **given)
            options.report_progress("reading")
            own = load_model(_joined(model, options))
            with paused_gc():
                report = run(own, options)
                log(report.notes, getattr(report, "warnings", ()))
                result = own if isinstance(model, ir.Model) else to_proto(own)
                # Nodes refer to one another: unless the graph is the result, the next collection frees it.
                del own
                return result, report

        def call(model: ModelLike, *args: _Arguments.args, **given: _Arguments.kwargs) -> Any:
            return with_report(model, *args, **given)[0]

        public: Any = call
        _publish(public, run, kind, "onnx.ModelProto | ir.Model")
        public.run, public.with_report = run, with_report
        with_report.__doc__ = f"Like `{run.__name__}`, but returns a pair: the model and the report."
        return cast(ModelFunction[_Arguments, _Report], public)

    return decorate


def _publish(public: Any, run: Callable[..., Any], kind: Callable[..., Options], returns: str) -> None:
    """Name a function after the one that it calls; give it signature and docstring with all options."""
    for name in ("__module__", "__name__", "__qualname__"):
        setattr(public, name, getattr(run, name))
    arguments = inspect.signature(kind).parameters
    model = inspect.Parameter("model", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation="ModelLike")
    public.__signature__ = inspect.Signature([model, *arguments.values()], return_annotation=returns)
    public.__doc__ = f"{inspect.getdoc(run)}\n\nArgs:\n" + _described(run.__name__, arguments)


def _joined(model: Any, options: Options) -> ModelLike:
    """Return the model; several are connected, where the function has an option for that."""
    if not isinstance(model, list | tuple) or not hasattr(options, "connect"):
        return cast("ModelLike", model)
    from rnnlower.files.composing import compose_files

    return compose_files(model, options.connect)


def _described(function: str, names: Iterable[str]) -> str:
    """Return the lines on the arguments in the docstring of a public function."""
    words = {"model": "A path, an `onnx.ModelProto` or an `onnx_ir.Model`."}
    words |= {name: HELP.get(f"{function}.{name}") or HELP[name] for name in names}
    return "\n".join(
        textwrap.fill(f"{name}: {text}", 100, initial_indent="    ", subsequent_indent=" " * 8)
        for name, text in words.items()
    )


def log(notes: Sequence[str], warnings: Sequence[Suspicion] = ()) -> None:
    """Log what the commands print as notes and warnings."""
    for note in notes:
        _logger.info("%s", note)
    for warning in warnings:
        _logger.warning("%s", warning)
