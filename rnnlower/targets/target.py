"""Targets: the abilities of runtimes."""

from __future__ import annotations

import functools

import onnx_ir as ir

from rnnlower.lowering.dialect import NoPrices, Prices
from rnnlower.recurrent.operators import RECURRENT_OPS
from rnnlower.recurrent.state_operators import STATE_OPERATORS
from rnnlower.targets.format import Claim, TargetFile
from rnnlower.targets.vocabulary import standard_operators


class Target(TargetFile, frozen=True, kw_only=True):
    """A runtime, described by a file: a `Dialect` of what may be emitted.

    Attributes:
        name: The name of the target: that of its file.
        path: The path of its file if it is not built in.
    """

    name: str
    path: str = ""

    @property
    def address(self) -> str:
        """The name under which a command finds it: that of a file is its path."""
        return self.path or self.name

    @property
    def profile(self) -> str:
        """The profile that kept recurrent nodes must conform to; ``""`` if there is none."""
        return next((rule.profile for rule in self.recurrent if rule.profile), "")

    @functools.cached_property
    def op_types(self) -> frozenset[str]:
        """The operators of the default domain that it runs, except the recurrent ones."""
        if self.ops.allowed is not None:
            ops = frozenset(op_type for op_type in self.ops.allowed if "." not in op_type)
        else:
            ops = standard_operators() - {*(self.ops.absent or ())}
        return (ops - {*RECURRENT_OPS}) | {*self.control_flow.ops}

    @functools.cached_property
    def domains(self) -> frozenset[str]:
        """The domains, other than the default one, with operators that it runs."""
        single = {op_type.rpartition(".")[0] for op_type in self.ops.allowed or () if "." in op_type}
        return frozenset({*self.ops.domains} | single)

    def has_foreign(self, domain: str, op_type: str) -> bool:
        """Return whether it runs an operator of a domain other than the default one.

        Its domains do not include operators that carry states, which are newer: those are listed by name.
        """
        name = f"{domain}.{op_type}"
        if domain in self.ops.domains and op_type not in STATE_OPERATORS:
            return name not in (self.ops.absent or ())
        return name in (self.ops.allowed or ())

    @property
    def prices(self) -> Prices:
        """The prices; none where the file has no costs."""
        return self.costs or NoPrices()

    @property
    def split_outputs(self) -> int | None:
        """The maximum number of outputs of a Split; ``None``: no limit."""
        limits = (limit.max_outputs for limit in self.limits if "Split" in limit.ops)
        return min((most for most in limits if most is not None), default=None)

    def has(self, op_type: str, dtype: ir.DataType | None = None) -> bool:
        """Return whether an operator may be emitted, for an element type if one is given."""
        if op_type not in self.op_types:
            return False
        return dtype != ir.DataType.DOUBLE or op_type not in _without_float64()

    def needs_constant(self, op_type: str, index: int) -> bool:
        """Return whether an input of an operator must be a constant."""
        return any(op_type in limit.ops and index in limit.constant for limit in self.limits)

    def claims(self) -> list[tuple[str, Claim]]:
        """Return all claims, with the names of their tables."""
        tables = ("opset", "control_flow", "shapes", "dtypes", "ops")
        claims: list[tuple[str, Claim]] = [(name, getattr(self, name)) for name in tables]
        claims += [(f"limits of {', '.join(limit.ops)}", limit) for limit in self.limits]
        claims += [(f"native {', '.join(rule.ops)}", rule) for rule in self.recurrent]
        claims += [(f"lowered {', '.join(caution.ops)}", caution) for caution in self.cautions]
        more = [(name, getattr(self, name)) for name in ("arithmetic", "costs", "tried")]
        return claims + [(name, claim) for name, claim in more if claim is not None]


@functools.cache
def _without_float64() -> frozenset[str]:
    """Return the operators for which onnxruntime, which verifies every result, has no float64 kernel."""
    from rnnlower.targets.reading import find_target  # It reads files into targets.

    limits = find_target("onnxruntime").limits
    return frozenset(
        op_type
        for limit in limits
        if limit.dtypes is not None and "float64" not in limit.dtypes
        for op_type in limit.ops
    )
