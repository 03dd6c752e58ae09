"""Export from PyTorch: recurrent layers become primitive ops, and the result is compared with the module.

    from rnnlower.exporters.torch import export

    export(module.eval(), (x,), "model.onnx", strategy="unroll")

For a call of ``torch.onnx.export`` of your own, `custom_translation_table` translates the layers only.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.shape_inference
import onnxruntime
import torch
from torch.utils import _pytree as pytree

from rnnlower import api
from rnnlower.arguments import check_choice
from rnnlower.engines.session import Array, prepare_run, to_array
from rnnlower.errors import OptionError, RnnLowerError, UnverifiableError, VerificationError
from rnnlower.exporters.aten import STRATEGIES, Translation
from rnnlower.files.model_io import load_model, stage_model
from rnnlower.inspection import inspect_model
from rnnlower.passes.options import LowerOptions
from rnnlower.verification.verdict.compare import compare_values, merge, tolerance_for
from rnnlower.verification.verification_result import OutputComparison, VerificationResult

_TRIALS = 4
_LAYERS = {name: getattr(torch.ops.aten, name).input for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")}


def custom_translation_table(strategy: str | None = "unroll") -> dict[Callable[..., Any], Callable[..., Any]]:
    """Return the argument of this name of ``torch.onnx.export(..., dynamo=True)``.

    An LSTM with ``proj_size``, which ONNX's LSTM lacks, and RNN layers, which PyTorch does not export, are
    translated as well. Layers on packed sequences are left to PyTorch, which refuses them.

    Args:
        strategy: ``unroll``, ``scan`` or ``loop``; ``None``: ONNX's LSTM, GRU and RNN.

    Raises:
        OptionError: There is no such strategy.
    """
    if strategy is not None:
        check_choice("the strategy is", strategy, tuple(STRATEGIES))
    numbers = itertools.count()

    def translated(name: str) -> Callable[..., Any]:
        emit = Translation(name, strategy, numbers).emit

        @functools.wraps(emit)
        def translate(*args: Any, **options: Any) -> Any:
            # PyTorch sets an attribute, which no method has.
            return emit(*args, **options)

        return translate

    return {layer: translated(name) for name, layer in _LAYERS.items()}


def export(
    module: torch.nn.Module,
    args: tuple[Any, ...],
    path: str | pathlib.Path,
    strategy: str = "unroll",
    *,
    kwargs: Mapping[str, Any] | None = None,
    exporter: Mapping[str, Any] | None = None,
    atol: float | None = None,
    rtol: float | None = None,
    **options: Any,
) -> VerificationResult:
    """Export a module, lower its recurrent layers, compare the result with the module, and write it.

    Args:
        module: The module, in evaluation mode.
        args: Its arguments.
        path: The file to write. It is only written if the results are equal.
        strategy: ``unroll``, ``scan`` or ``loop``; ``lower``, with a `target` among the options.
        kwargs: Its keyword arguments.
        exporter: Further arguments of ``torch.onnx.export``, such as ``dynamic_shapes`` and ``input_names``.
        atol: As for `rnnlower.verify`.
        rtol: As for `rnnlower.verify`.
        **options: Those of the function of the strategy, such as `rnnlower.unroll`.

    Returns:
        The comparison with the module, on its arguments and on random numbers in place of their floats.

    Raises:
        OptionError: The module is in training mode, or an option does not fit.
        VerificationError: The results differ from the module's.
        UnverifiableError: onnxruntime does not run the result.
        UnsupportedModelError: A node cannot be lowered as asked.
    """
    if module.training:
        raise OptionError("the module is in training mode", remedy="call module.eval()")
    given = dict(exporter or {})
    if {"f", "dynamo", "custom_translation_table", "kwargs"} & given.keys():
        raise OptionError("the exporter's f, dynamo, kwargs and custom_translation_table are set by rnnlower")
    if "dynamic_axes" in given:
        raise OptionError("dynamic_axes are of PyTorch's older exporter", remedy="pass dynamic_shapes")
    lower, wanted = _lowering(strategy, options)
    program = _export_program(module, args, dict(kwargs or {}), given)
    model = load_model(_infer_dynamic_shapes(program.model_proto))
    steps = max((node.seq_len for node in inspect_model(model) if isinstance(node.seq_len, int)), default=1)
    lower(model, wanted)
    with stage_model(model, pathlib.Path(path)) as stage:
        result = _compare_with_module(module, args, dict(kwargs or {}), stage.path, (atol, rtol, steps))
        if not result:
            raise VerificationError(f"the result differs from the module: {result}")
        stage.accepted = True
    return result


def _lowering(strategy: str, options: Mapping[str, Any]) -> tuple[Callable[[Any, Any], object], Any]:
    """Return the function of a strategy, and its options."""
    functions: dict[str, tuple[Any, Any]] = {**STRATEGIES, "lower": (api.lower, LowerOptions)}
    check_choice("the strategy is", strategy, tuple(functions))
    function, kind = functions[strategy]
    try:
        return function.run, kind(**options)
    except TypeError as error:
        raise OptionError(f"the options do not fit strategy {strategy!r}: {error}") from error


def _export_program(module: Any, args: Any, kwargs: Any, given: Mapping[str, Any]) -> Any:
    """Return the ONNX program; a size that is asked to be dynamic and is not is PyTorch's error."""
    try:
        # torch.onnx.export alone would fix such a size to the example's.
        with _skip_layer_steps(), torch.fx.experimental._config.patch(backed_size_oblivious=True):
            program = torch.export.export(
                module, args, kwargs, dynamic_shapes=given.get("dynamic_shapes"), strict=False
            )
            return torch.onnx.export(
                program,
                args,
                kwargs=kwargs,
                dynamo=True,
                custom_translation_table=custom_translation_table(None),
                **{"verbose": False, **given},
            )
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, RnnLowerError):
                raise cause from error
            cause = cause.__cause__
        raise


@contextlib.contextmanager
def _skip_layer_steps() -> Iterator[None]:
    """Let PyTorch learn the sizes of a layer's results without its steps, which would fix their number."""

    def sized(*args: Any) -> Any:
        x, hx, both = args[0], args[1], args[7]
        states = [hx] if isinstance(hx, torch.Tensor) else hx
        width = states[0].size(2) * (2 if both else 1)
        return (x.new_empty([*x.shape[:2], width]), *map(torch.empty_like, states))

    kept = [dict(layer.py_kernels) for layer in _LAYERS.values()]
    try:
        for layer in _LAYERS.values():
            layer.py_kernels.update(dict.fromkeys(layer.py_kernels, sized))
            layer._dispatch_cache.clear()
        yield
    finally:
        for layer, kernels in zip(_LAYERS.values(), kept, strict=True):
            layer.py_kernels.update(kernels)
            layer._dispatch_cache.clear()


def _infer_dynamic_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """Infer shapes anew where sizes are dynamic: after a layer, PyTorch declares the example's."""
    shapes = [value.type.tensor_type.shape for value in model.graph.input]
    if any(dim.dim_param for shape in shapes for dim in shape.dim):
        del model.graph.value_info[:]
        for output in model.graph.output:
            output.type.tensor_type.ClearField("shape")
        model = onnx.shape_inference.infer_shapes(model)
    return model


def _compare_with_module(
    module: Any, args: Any, kwargs: Any, path: pathlib.Path, limits: tuple[float | None, float | None, int]
) -> VerificationResult:
    """Compare the file with the module on the arguments, and on random numbers in place of their floats."""
    try:
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has one class of error for each status.
        raise UnverifiableError(f"onnxruntime does not load the result: {error}") from error
    names = [each.name for each in session.get_inputs()]
    outputs = [each.name for each in session.get_outputs()]
    worst: dict[str, OutputComparison] = {}
    for trial, (own, keywords) in enumerate(_trial_arguments(args, kwargs)):
        tensors = [each for each in pytree.tree_leaves((own, keywords)) if isinstance(each, torch.Tensor)]
        with torch.no_grad():
            expected = [each for each in pytree.tree_leaves(module(*own, **keywords)) if each is not None]
        if (len(tensors), len(expected)) != (len(names), len(outputs)):
            raise UnverifiableError(
                f"the module has {len(tensors)} tensors in and {len(expected)} out, and the export "
                f"{len(names)} and {len(outputs)}",
                remedy="pass tensors that the module reads, and return tensors that differ",
            )
        feeds = {name: _array(each) for name, each in zip(names, tensors, strict=True)}
        results = map(to_array, prepare_run(session, feeds)())
        for name, reference, candidate in zip(outputs, expected, results, strict=True):
            array = _array(reference)
            tolerance = tolerance_for(array.dtype, (), *limits)
            compared = compare_values(name, array, candidate, tolerance)
            worst[name] = merge(worst.get(name), compared, trial)
    return VerificationResult(
        equal=all(each.equal for each in worst.values()),
        engines={"reference": "torch", "candidate": "onnxruntime"},
        trials=_TRIALS,
        outputs=tuple(worst.values()),
        versions={"torch": torch.__version__, "onnxruntime": onnxruntime.__version__},
        tolerances={"atol": limits[0], "rtol": limits[1]},
    )


def _array(tensor: Any) -> Array:
    """Return a tensor as an array; PyTorch gives no bfloat16 to NumPy, and nothing that needs a gradient."""
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:
        return np.asarray(tensor.contiguous().view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return np.asarray(tensor.numpy())


def _trial_arguments(args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
    generator = torch.Generator().manual_seed(0)

    def random(value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            return value
        return torch.randn(value.shape, generator=generator).to(value.dtype)

    yield args, kwargs
    for _ in range(_TRIALS - 1):
        yield pytree.tree_map(random, (args, kwargs))
