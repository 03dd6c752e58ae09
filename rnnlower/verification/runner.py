"""Execution of the two models on their engines, with notes on workarounds."""

from __future__ import annotations

import copy
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from onnx.helper import tensor_dtype_to_np_dtype

from rnnlower import wording
from rnnlower.engines.catalog import Engine as Runtime
from rnnlower.engines.opened_models import open_on
from rnnlower.engines.session import RECORDED_SHAPE, Array, LacksKernelError, LoadError, RunError, brief
from rnnlower.verification.engine_choice import (
    Engine,
    NumpyEngine,
    OnnxRuntimeEngine,
    Semantics,
    open_engine,
    reasons_against_onnxruntime,
    reference_fails_alike,
)
from rnnlower.verification.inputs.graph_facts import gather_facts, gather_recurrent_facts
from rnnlower.verification.inputs.uses import QUANTIZED_LSTM
from rnnlower.verification.interfaces import float_casts
from rnnlower.verification.models import ParsedModel, RunModel, op_types
from rnnlower.verification.rewritten_models import (
    SMALL_FLOATS,
    convert_floats,
    largest_int8_weight,
    perturb,
    perturb_weights,
    round_like,
    small_floats,
    with_float_activations,
)
from rnnlower.verification.verdict.compare import map_floats
from rnnlower.verification.verify_options import VerifyOptions

# Beyond this many nodes onnxruntime's optimizations take minutes.
_LARGE_GRAPH = 10_000
_DRAWS_OF_WEIGHTS = 3
# onnxruntime's kernel of RNN, unlike those of LSTM and GRU, is this far off in a Tanh of small numbers, too,
# and so is 2 * sigmoid(2 * x) - 1, which targets without Tanh get.
_TANH_ERROR = 1.2e-7
# In units of the largest error, with a seed for the signs; without one, all are positive.
_ERRORS_OF_ACTIVATIONS = ((1.0, None), (1.0, 0), (4.0, 1), (4.0, 2))
# Seconds of loading that are worth a note, if the model is a straight line: this many times the nodes.
_LONG_LOAD = 5.0
_STRAIGHT_LINE = 50


def _widen(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """Return 16-bit floats as float32, and anything else unchanged."""
    small = SMALL_FLOATS.values()
    return {name: a.astype(np.float32) if str(a.dtype) in small else a for name, a in arrays.items()}


class Runner:
    """The two models, the facts about them, and the engines that ran them.

    ``empty_inputs`` must be set before the first run if inputs have zero length. ``notes`` collects messages
    for the result. ``sets`` holds values of inputs that every run gets if the model still has the input.
    ``states`` maps the outputs that were fed back to their inputs.
    """

    def __init__(
        self,
        reference: ParsedModel,
        candidate: ParsedModel,
        options: VerifyOptions,
        sets: Mapping[str, Array] | None = None,
    ) -> None:
        self.reference, self.candidate, self.options = reference, candidate, options
        self.reference_facts = gather_facts(reference.proto)
        self.candidate_facts = gather_recurrent_facts(candidate.proto)
        self.sets = dict(sets or {})
        self.engines: dict[str, str] = {}
        self.notes: list[str] = []
        self.states: dict[str, str] = {}
        self.empty_inputs = False
        self.runtime: Runtime | None = None
        # The type to which only one model's constants are rounded.
        self.rounded_to: str | None = options.tolerance
        self.casts: dict[str, str] = {}
        if options.tolerance is not None:
            ours, theirs = reference.proto.graph, candidate.proto.graph
            self.casts = float_casts(ours.input, theirs.input) | float_casts(ours.output, theirs.output)
        # The magnitudes of constants that both models have.
        self._exact_magnitudes: Collection[float] = ()
        self._perturbed: list[RunModel] = []
        self._sessions = ExitStack()
        self._retyped: dict[tuple[str, np.dtype[Any], Semantics], Engine] = {}
        small = [m.role for m in (candidate, reference) if len(m.proto.graph.node) <= _LARGE_GRAPH]
        read = [reference, *([] if options.tolerance is None else [candidate])]
        # Optimized float16 models skip some roundings.
        half = any("float16" in small_floats(model.proto) for model in read)
        # In such graphs, onnxruntime's optimizations turn float operators into integer ones.
        ops = op_types(reference.proto) | op_types(candidate.proto)
        quantized = not ops.isdisjoint(("DequantizeLinear", QUANTIZED_LSTM))
        self._optimized = small[0] if small and not (quantized or half) else None

    def on_runtime(self, runtime: Runtime) -> Runner:
        """Return a copy that runs the candidate on another runtime."""
        other = copy.copy(self)
        other.engines, other.notes, other.runtime = dict(self.engines), [*self.notes], runtime
        return other

    def note(self, text: str) -> None:
        """Add a note, once."""
        if text not in self.notes:
            self.notes.append(text)

    @contextmanager
    def open(self, model: ParsedModel) -> Iterator[RunModel]:
        """Yield a function that runs ``model``, in NumPy if onnxruntime turns out to lack a kernel.

        One graph runs unchanged, the other with onnxruntime's optimizations: the candidate, unless it is so
        large that optimizing takes minutes (then the reference). Quantized and float16 graphs are not
        optimized.

        Raises:
            LoadError: No engine accepts the model.
        """
        fixed = self._fixed_inputs(model)
        if model.role == "candidate" and self.runtime is not None:
            self.engines[model.role] = self.runtime.name
            with closing(open_on(self.runtime, model.with_data())) as opened:
                yield self._cast_for(model, lambda feeds: opened.run(feeds | fixed))
            return
        engine: Engine
        started = time.monotonic()
        engine, notes = open_engine(
            model,
            self.reference_facts if model.role == "reference" else self.candidate_facts,
            self.options.semantics,
            self.options.engine,
            optimize=model.role == self._optimized,
            empty_inputs=self.empty_inputs,
            excuse=lambda error, optimize: (
                model.role == "reference" or reference_fails_alike(error, self.reference, optimize)
            ),
        )
        self.engines[model.role] = engine.name
        for text in notes:
            self.note(text)
        if model is self.candidate and engine.name == OnnxRuntimeEngine.name:
            self._note_long_load(time.monotonic() - started)

        def run(feeds: dict[str, Array]) -> dict[str, Any]:
            nonlocal engine
            feeds = feeds | fixed
            try:
                return engine.run(feeds)
            except (LacksKernelError, RunError) as error:
                if self.options.engine is not None or not self._may_run_in_numpy(error, model):
                    raise
                self.note(f"the {model.role} does not run on onnxruntime: {brief(error)}")
                engine.close()
                engine = NumpyEngine(model, self.options.semantics)
                self.engines[model.role] = engine.name
                return engine.run(feeds)

        try:
            yield self._cast_for(model, run)
        finally:
            engine.close()

    def _note_long_load(self, seconds: float) -> None:
        nodes, before = (len(model.proto.graph.node) for model in (self.candidate, self.reference))
        if seconds > _LONG_LOAD and nodes > _STRAIGHT_LINE * before:
            self.note(
                f"onnxruntime takes {seconds:.0f} s to load the candidate's {nodes:,} nodes; "
                f"`{wording.call('scan')}` makes one loop of all time steps, which loads at once"
            )

    def _cast_for(self, model: ParsedModel, run: RunModel) -> RunModel:
        """Wrap the candidate's `run` in casts of its inputs, and of its outputs to the reference's types."""
        if model.role == "reference" or not self.casts:
            return run
        kinds = {
            value.name: np.dtype(tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type))
            for values in (model.proto.graph.input, self.reference.proto.graph.output)
            for value in values
            if value.name in self.casts
        }

        def cast(arrays: Mapping[str, Any]) -> dict[str, Any]:
            with np.errstate(over="ignore"):
                return {
                    name: array.astype(kinds[name]) if name in kinds else array
                    for name, array in arrays.items()
                }

        return lambda feeds: cast(run(cast(feeds)))

    def second_opinion(self, feeds: dict[str, Array]) -> dict[str, Any] | None:
        """Return the reference's outputs computed by NumPy, in another precision than its engine's."""
        return self.run_in_numpy(feeds, precise=self.engines["reference"] != NumpyEngine.name)

    def run_in_numpy(self, feeds: dict[str, Array], **options: Any) -> dict[str, Any] | None:
        """Return the reference's outputs computed by NumPy; ``None`` if it fails or the model is large."""
        if len(self.reference.proto.graph.node) > _LARGE_GRAPH:
            return None
        try:
            return NumpyEngine(self.reference, self.options.semantics, **options).run(feeds | self.sets)
        except (LoadError, RunError):
            return None

    def run_in_type(
        self,
        dtype: np.dtype[Any],
        model: ParsedModel,
        feeds: dict[str, Array],
        semantics: Semantics | None = None,
    ) -> dict[str, Any] | None:
        """Return the model's outputs in a float type; ``None`` if it fails or the model is large.

        onnxruntime computes float64 if it has the kernels: a Scan runs a hundred times as fast as in NumPy.
        """
        if len(model.proto.graph.node) > _LARGE_GRAPH or not model.fits_memory:
            return None
        semantics = semantics or self.options.semantics
        fed = map_floats(feeds | self._fixed_inputs(model), lambda array: array.astype(dtype))
        key = model.role, dtype, semantics
        try:
            if key not in self._retyped:
                self._retyped[key] = self._open_retyped(convert_floats(model, dtype), dtype, semantics)
                self._sessions.callback(self._retyped[key].close)
            return self._retyped[key].run(fed)
        except (LoadError, RunError):
            return None

    def _open_retyped(self, model: ParsedModel, dtype: np.dtype[Any], semantics: Semantics) -> Engine:
        facts = gather_recurrent_facts(model.proto)
        native = reasons_against_onnxruntime(facts, semantics, self.empty_inputs)
        if dtype != np.float64 or native or self.options.engine == NumpyEngine.name:
            return NumpyEngine(model, semantics)
        try:
            return OnnxRuntimeEngine(model, optimize=False)
        except LoadError:
            # Some operators have no kernel in float64.
            return NumpyEngine(model, semantics)

    def in_float32(self, feeds: Sequence[Mapping[str, Array]]) -> Runner | None:
        """Return a runner in which small floats are float32, also those of inputs; ``None`` without any."""
        models = [self.reference, self.candidate]
        if self.options.tolerance in ("int8", "int16"):
            models[1] = with_float_activations(self.candidate)
        kinds = set().union(*(small_floats(model.proto) for model in models))
        held = all(model.fits_memory and len(model.proto.graph.node) <= _LARGE_GRAPH for model in models)
        if not (kinds or models[1] is not self.candidate) or not held:
            return None
        wide = [convert_floats(model, np.dtype(np.float32), SMALL_FLOATS) for model in models]
        # bfloat16 is coarser than float16.
        rounded_to: str = self.options.tolerance or min(kinds)
        kept: Collection[float] = ()
        if rounded_to in SMALL_FLOATS.values():
            wide[0], kept = round_like(wide[1], wide[0], rounded_to)
        options = replace(self.options, tolerance=None, feeds=[_widen(each) for each in feeds])
        runner = Runner(wide[0], wide[1], options, _widen(self.sets))
        runner.casts = self.casts
        runner.empty_inputs, runner.states = self.empty_inputs, self.states
        runner.rounded_to, runner._exact_magnitudes = rounded_to, kept
        return runner

    def with_perturbed_weights(self, feeds: dict[str, Array]) -> Iterator[dict[str, Any]]:
        """Yield the reference's outputs with constants perturbed by rounding to the candidate's type."""
        if self.rounded_to is None or not self.reference.fits_memory:
            return
        if not self._perturbed:
            largest = largest_int8_weight(self.candidate, self.rounded_to)
            models = [
                perturb_weights(self.reference, self.rounded_to, seed, self._exact_magnitudes, largest)
                for seed in range(_DRAWS_OF_WEIGHTS)
            ]
            self._perturbed += [self._sessions.enter_context(self.open(model)) for model in models]
        for seed, run in enumerate(self._perturbed):
            if self.options.tolerance in ("int8", "int16"):
                # Its activations are rounded like its weights.
                rng = np.random.default_rng(seed)
                feeds = map_floats(feeds, partial(perturb, kind=self.options.tolerance, rng=rng))
            try:
                yield run(feeds)
            except RunError:
                continue

    def with_inexact_activations(self, feeds: dict[str, Array]) -> Iterator[dict[str, Any]]:
        """Yield the reference's outputs with Sigmoid and Tanh as inexact as where the candidate runs.

        First all values are too large, as for a gate that should be closed; then some are too small. An
        element errs in the same direction at every step, as a function of a slowly changing number does.
        After a Softmax, a few draws are not representative: therefore also a multiple of the error.
        """
        error = 0.0 if self.runtime is None else self.runtime.activation_error
        has_rnn = any(node.op_type == "RNN" for node in self.candidate_facts.recurrent)
        has_rnn &= self.engines.get("candidate", "onnxruntime") == "onnxruntime"
        before, after = (op_types(each.proto) for each in (self.reference, self.candidate))
        if has_rnn or ("Tanh" in before and "Tanh" not in after and "Sigmoid" in after):
            error = max(error, _TANH_ERROR)
        if not error:
            return

        def moved(values: Array, size: float, seed: int | None) -> Array:
            signs = 1 if seed is None else np.random.default_rng(seed).choice((-1, 1), values.shape)
            return np.asarray(values + np.asarray(size * error * signs, values.dtype))

        for size, seed in _ERRORS_OF_ACTIVATIONS:
            outputs = self.run_in_numpy(feeds, inexact=partial(moved, size=size, seed=seed))
            if outputs is None:
                return
            yield outputs

    def close(self) -> None:
        """Close the sessions of other precisions and perturbed weights."""
        self._sessions.close()
        self._retyped.clear()

    def _fixed_inputs(self, model: ParsedModel) -> dict[str, Array]:
        accepted = {value.name for value in model.proto.graph.input}
        return {name: array for name, array in self.sets.items() if name in accepted}

    def _may_run_in_numpy(self, error: Exception, model: ParsedModel) -> bool:
        """Return whether NumPy may try what onnxruntime failed on."""
        if self.engines[model.role] == NumpyEngine.name:
            return False
        if isinstance(error, LacksKernelError):
            return True
        # A declared shape differs from the computed one. If only NumPy ran the reference, which ignores
        # declared shapes, the reference may contain the same error.
        only_numpy = self.engines["reference"] == NumpyEngine.name
        return model.role == "candidate" and only_numpy and RECORDED_SHAPE in str(error)
