"""The forms of a model that a benchmark compares: each is a file, or the reason why there is none."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import onnx_ir as ir

from rnnlower.benchmarking.bench_result import BenchVariant, Status
from rnnlower.errors import OpsetError, UnsupportedModelError
from rnnlower.files.model_io import ModelLike, load_model, staged
from rnnlower.graph.walk import count_ops
from rnnlower.passes.lowering_options import LoweringOptions
from rnnlower.passes.pipeline import lower_model
from rnnlower.verification.models import HeldModel

OF_TARGET = ("adapt", "lower")
"""The forms that only a target has."""


@dataclasses.dataclass
class Entry:
    """A variant that is being measured; ``path`` is set if there is a file to run."""

    variant: BenchVariant
    path: str = ""
    sessions: list[float] = dataclasses.field(default_factory=list)
    latencies: list[float] = dataclasses.field(default_factory=list)

    def drop(self, status: Status, reason: str) -> None:
        """Exclude it from the benchmark."""
        self.variant = dataclasses.replace(self.variant, status=status, reason=reason)

    @property
    def is_timed(self) -> bool:
        """True if nothing prevents timing it so far."""
        return self.variant.status == "timed"


def native_form(own: ir.Model, source: HeldModel, folder: Path) -> Entry:
    """Return the model as it is; ``own`` is a copy of it, for counting ops."""
    path = source.path
    if path is None:
        path = folder / "native.onnx"
        path.write_bytes(source.proto.SerializeToString())
    variant = BenchVariant(
        "native", "native", file_bytes=_file_bytes(own, path), ops=sum(count_ops(own).values())
    )
    return Entry(variant, str(path))


def lowered_form(model: ModelLike, strategy: str, options: LoweringOptions, folder: Path) -> Entry:
    """Return the lowered model, in the operators of the options' target if any, or why there is none.

    Args:
        model: The model.
        strategy: ``unroll``, ``scan`` or ``loop``, or one of `OF_TARGET`: ``adapt``, the target's own
            operators adapted, or ``lower``, what is found to be the fastest.
        options: How it is lowered.
        folder: Where the file is written.

    Raises:
        OptionError: An option does not fit the model.
        InvalidModelError: The model breaks the ONNX specification.
    """
    factor = options.unroll_factor
    name = strategy if factor == 1 else f"{strategy} x{factor}"
    variant = BenchVariant(name, strategy, factor)
    lowered = load_model(model)
    try:
        report = lower_model(lowered, options)
    except (UnsupportedModelError, OpsetError) as error:
        return Entry(dataclasses.replace(variant, status="not made", reason=str(error)))
    taken = [*(node.strategy for node in report.nodes), *("keep" for _ in report.kept)]
    if strategy == "adapt" and "adapt" not in taken:
        problem = "there is nothing that can be adapted"
        return Entry(dataclasses.replace(variant, status="not made", reason=problem))
    if strategy == "lower":
        variant = dataclasses.replace(variant, taken=tuple(dict.fromkeys(taken)))
    path = folder / f"{strategy}_{factor}.onnx"
    ops = sum(count_ops(lowered).values())
    with staged(lowered, path) as stage:
        stage.accept()
    return Entry(dataclasses.replace(variant, file_bytes=_file_bytes(lowered, path), ops=ops), str(path))


def _file_bytes(model: ir.Model, path: Path) -> int:
    """Return the size of the file and of the external data that it refers to."""
    tensors = (value.const_value for graph in model.graphs() for value in graph.initializers.values())
    return path.stat().st_size + sum(t.nbytes for t in tensors if isinstance(t, ir.ExternalTensor))
