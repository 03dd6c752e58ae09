"""The search for the cell that computes a step."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from rnnlower.lifting.equations import Cell, Step
from rnnlower.lifting.errors import NotLiftableError
from rnnlower.lifting.forms import Atoms, Block, Form
from rnnlower.lifting.gru_equations import match_gru, match_rnn
from rnnlower.lifting.lstm_equations import match_lstm
from rnnlower.recurrent.node import Semantics


def match_cell(atoms: Atoms, states: Sequence[Block], new: Sequence[Form], semantics: Semantics) -> Cell:
    """Return the cell that computes these new states, H first.

    Raises:
        NotLiftableError: There is none.
    """
    reasons = []
    for match in (match_lstm,) if len(states) == 2 else (match_gru, match_rnn):
        for choice in itertools.product((0, -1), repeat=2):
            try:
                return match(Step(atoms, states, new, semantics, choice))
            except NotLiftableError as error:
                reasons.append(str(error))
    raise NotLiftableError(reasons[0])
