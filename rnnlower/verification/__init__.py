"""Verification that two models compute the same; it shares no code with the lowering it checks."""

from __future__ import annotations

from rnnlower.verification.verification_result import OutputComparison, RuntimeTrial, VerificationResult
from rnnlower.verification.verifier import verify

__all__ = ["OutputComparison", "RuntimeTrial", "VerificationResult", "verify"]
