"""Convert onnx's node tests through every version step, down and up again: the large run on demand.

python tests/opset_sweep.py            # every node test
python tests/opset_sweep.py --expanded # the definitions of operators, too
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import sys
from collections.abc import Hashable, Iterable, Iterator
from typing import Any

import onnx
import onnx_ir as ir
from support.opset_cases import Case, frozen, node_cases
from support.opset_engines import RANDOM, agree, all_operators, default_opset, meaning_of, outcomes

from rnnlower.errors import OpsetError
from rnnlower.graph.versions import operators, versions
from rnnlower.opset import convert_opset

ENDS = (26, 28)


@dataclasses.dataclass
class Sweep:
    """Counts of the outcomes of conversions, the reasons of refusals, and the failures."""

    counts: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    steps: set[tuple[str, int, int]] = dataclasses.field(default_factory=set)
    refusals: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)
    upward_refusals: list[str] = dataclasses.field(default_factory=list)
    disputes: list[str] = dataclasses.field(default_factory=list)
    problems: list[str] = dataclasses.field(default_factory=list)
    _verdicts: dict[Hashable, dict[str, bool]] = dataclasses.field(default_factory=dict)

    def run(self, cases: Iterable[Case]) -> None:
        """Convert every case, and every case with its small inputs as constants."""
        for case in cases:
            for each in (case, frozen(case)):
                if each is not None:
                    self.run_case(each)

    def run_case(self, case: Case) -> None:
        """Convert down to every version that one of the case's operators had, and from each up again."""
        found = outcomes(case.model, case.feeds, slowly=True)
        if not found:
            self.counts["sources that nothing runs"] += 1
            return
        # Where an engine does not give what onnx's test expects of the source, it is asked to repeat itself.
        expected = [case.outputs, *found.values()]
        self.counts["sources"] += 1
        self._verdicts.clear()
        source = default_opset(case.model)
        boundaries = sorted({v for op in all_operators(case.model) for v in versions(op) if v > 1})
        for model in self._downwards(case, source, boundaries, expected):
            lowered = default_opset(model)
            higher = [v for v in boundaries if v > lowered]
            for target in sorted({*higher[:1], *(end for end in ENDS if end > lowered)}):
                self._convert(case, model, target, expected)

    def _downwards(
        self, case: Case, source: int, boundaries: list[int], expected: list[list[Any]]
    ) -> Iterator[onnx.ModelProto]:
        yield case.model
        for target in sorted((v - 1 for v in boundaries if v <= source), reverse=True):
            model = self._convert(case, case.model, target, expected)
            if model is None:
                return
            yield model

    def _convert(self, case: Case, model: onnx.ModelProto, target: int, expected: list[list[Any]]) -> Any:
        source = default_opset(model)
        label = f"{case.name} {default_opset(case.model)}->{source}->{target}"
        work = ir.from_proto(model)
        try:
            convert_opset(work, target)
        except OpsetError as error:
            self.counts["refused"] += 1
            self.refusals[str(error).split(": ", 1)[-1]] += 1
            if target > source:
                self.upward_refusals.append(f"{label}: {error}")
            return None
        converted = ir.to_proto(work)
        try:
            onnx.checker.check_model(converted, full_check=True)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
            if _valid(model):
                self._problem("invalid", label, str(error))
                return converted
        self._compare(case, source, converted, label, expected)
        return converted

    def _compare(
        self, case: Case, source: int, converted: onnx.ModelProto, label: str, expected: list[list[Any]]
    ) -> None:
        verdicts = self._verdicts_on(case, converted, expected)
        if all_operators(case.model) & RANDOM:
            self.counts["random"] += 1
        elif not verdicts:
            self.counts["run by no engine"] += 1
        elif not any(verdicts.values()):
            self._problem("wrong", label, str(verdicts))
        elif all(verdicts.values()):
            self.counts["right"] += 1
            self._note_steps(case.model, source, default_opset(converted))
        else:
            self.counts["right by one engine, wrong by another"] += 1
            self.disputes.append(f"{label}: {verdicts}")

    def _verdicts_on(
        self, case: Case, converted: onnx.ModelProto, expected: list[list[Any]]
    ) -> dict[str, bool]:
        """Tell which engines agree; what is the same in two opsets is run once."""
        key = meaning_of(converted)
        if key not in self._verdicts:
            verdicts = agree(outcomes(converted, case.feeds), expected)
            if not any(verdicts.values()):
                verdicts = agree(outcomes(converted, case.feeds, slowly=True), expected)
            self._verdicts[key] = verdicts
        return self._verdicts[key]

    def _note_steps(self, model: onnx.ModelProto, source: int, target: int) -> None:
        """Count the steps that the operators of the case crossed, in the direction of the crossing."""
        low, high = sorted((source, target))
        for operator in all_operators(model):
            numbers = versions(operator)
            for pair in zip([0, *numbers], numbers, strict=False):
                if low < pair[1] <= high:
                    self.steps.add((operator, *(pair if target > source else pair[::-1])))

    def _problem(self, kind: str, label: str, detail: str) -> None:
        self.counts[kind] += 1
        self.problems.append(f"{kind}: {label}: {detail}")


def _valid(model: onnx.ModelProto) -> bool:
    try:
        onnx.checker.check_model(model, full_check=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError):
        return False
    return True


def main() -> int:
    """Print the figures; 1 when anything went wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--expanded", action="store_true")
    parser.add_argument("--refusals", action="store_true", help="list the reasons of all refusals")
    parser.add_argument("modules", nargs="*", help="modules of onnx.backend.test.case.node; all if left out")
    options = parser.parse_args()
    sweep = Sweep()
    sweep.run(node_cases(options.modules or None))
    if options.expanded:
        sweep.run(node_cases(options.modules or None, expanded=True))
    print(dict(sweep.counts))
    pairs = {
        (op, *pair) for op in operators() for pair in zip([0, *versions(op)], versions(op), strict=False)
    }
    for name, steps in (
        ("up", {pair for pair in pairs if pair[1]}),
        ("down", {(op, high, low) for op, low, high in pairs if (low, high) != (0, 1)}),
    ):
        print(f"steps {name} that were compared: {len(steps & sweep.steps)} of {len(steps)}")
        others = ("{} {}->{}".format(*step) for step in sorted(steps - sweep.steps))
        print("refused, or not tried:", ", ".join(others))
    for line in (*sweep.problems, *sweep.disputes, *sweep.upward_refusals):
        print(line)
    if options.refusals:
        for reason, count in sweep.refusals.most_common():
            print(count, reason)
    return 1 if sweep.problems else 0


if __name__ == "__main__":
    sys.exit(main())
