"""Verification of a model of one step a call: many calls in a row, each model with its own states."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rnnlower.verification.inputs.trials import Trial
from rnnlower.verification.interface import accepted_by
from rnnlower.verification.models import RunModel
from rnnlower.verification.procedures import Pairs, Procedure, faults_of_reference
from rnnlower.verification.runner import Runner
from rnnlower.verification.verify_options import Options

_CALLS = 60


@dataclasses.dataclass(frozen=True)
class StepCalls(Procedure):
    """The procedure that runs both models many times, with the states of the call before.

    Attributes:
        states: For each output that holds a state, the input that takes it in the next call.
    """

    states: Mapping[str, str]

    def run_reference(self, runner: Runner, options: Options) -> list[Trial]:
        trials = options.trials or (_CALLS if options.inputs is None else None)
        single = dataclasses.replace(options, trials=trials, states={})
        calls: list[Trial] = []
        made = super().run_reference(runner, single)
        with faults_of_reference(), runner.open(runner.reference) as run:
            for trial in made:
                feeds = dict(trial.feeds)
                for output, name in self.states.items():
                    before = calls[-1].outputs[output] if calls else np.zeros_like(feeds[name])
                    # Infinite states would say nothing of later calls; other sizes are another stream.
                    fits = before.shape == feeds[name].shape and np.isfinite(before).all()
                    feeds[name] = before if fits else np.zeros_like(feeds[name])
                calls.append(Trial(trial.number, feeds, run(feeds)))
        runner.states = dict(self.states)
        return calls

    def run_candidate(self, runner: Runner, run: RunModel, finished: list[Trial]) -> Pairs:
        outputs: dict[str, Any] = {}
        before: Trial | None = None
        for trial in finished:
            feeds = dict(trial.feeds)
            for output, name in self.states.items():
                if before is not None and feeds[name] is before.outputs[output]:
                    feeds[name] = outputs[output]
            outputs = run(accepted_by(runner.candidate.proto, feeds))
            before = trial
            yield trial, outputs
