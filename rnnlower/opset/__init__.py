"""Opset conversion: `convert_opset` moves a model to any opset of the default domain, or raises an error.

`version_fit` compares nodes with operator versions, `value_types` holds the facts about values, `conversion`
walks the model, `step` represents one node at one version step for the adapters. The adapters
are in one module per operator family (`broadcasting`, `shaping`, ...), each with its table `ROWS`;
`families` gathers them.
"""

from __future__ import annotations

from rnnlower.opset.conversion import convert_opset
from rnnlower.opset.conversion_state import NodePredicate, OpsetReport
from rnnlower.opset.version_fit import MAX_OPSET, MIN_OPSET

__all__ = ["OPSETS", "NodePredicate", "OpsetReport", "convert_opset"]

OPSETS = range(MIN_OPSET, MAX_OPSET + 1)
"""The opsets of the default domain that the installed onnx knows."""
