"""NumPy evaluation of models, with complete LSTM, GRU and RNN; it shares no code with the lowering."""

from __future__ import annotations

from rnnlower.engines.reference.evaluator import Evaluator, evaluate
from rnnlower.engines.reference.recurrent_ops import GRU, LSTM, RNN, recurrent_ops

__all__ = ["GRU", "LSTM", "RNN", "Evaluator", "evaluate", "recurrent_ops"]
