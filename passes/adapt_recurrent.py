"""A runtime's own LSTM, GRU or RNN, with ops around it for what the runtime lacks.

Before::

    (float[5, 1, 1] X) => (float[5, 1, 1, 1] Y)
    <float[1, 4, 1] W = {1, 2, 3, 4}, float[1, 4, 1] R = {4, 3, 2, 1}> {
        Y = LSTM <hidden_size = 1, direction = "reverse"> (X, W, R)
    }

After ``AdaptRecurrentPass(find_target("opencv"))``::

    (float[5, 1, 1] X) => (float[5, 1, 1, 1] Y)
    <float[1, 4, 1] W = {1, 2, 3, 4}, float[1, 4, 1] R = {4, 3, 2, 1},
     int64[5] last_first = {4, 3, 2, 1, 0}> {
        turned = Gather <axis = 0> (X, last_first)
        y = LSTM <hidden_size = 1> (turned, W, R)
        Y = Gather <axis = 0> (y, last_first)
    }
"""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from rnnlower.graph.walk import Located
from rnnlower.lowering.replacing import EMITTED, Emitters, LoweredNode, replace_node
from rnnlower.passes.base import Pass
from rnnlower.passes.contracts import no_function_is_recurrent
from rnnlower.recurrent.finding import find_recurrent
from rnnlower.recurrent.node import Semantics
from rnnlower.recurrent.parsing import parse_recurrent
from rnnlower.targets.adapting import AdaptedNode, find_changes
from rnnlower.targets.format import ADAPTABLE
from rnnlower.targets.native import OnTarget
from rnnlower.targets.target import Target


def _adapted_nodes_are_gone(model: ir.Model, adapting: AdaptRecurrentPass) -> bool:
    return all(located.node.graph is None for located in adapting.replaced)


class AdaptRecurrentPass(Pass):
    """Adapts the nodes that a target does not run as they are to what it runs, where its data allows that.

    Undeclared types (`InferTypesPass`) and functions (`InlineFunctionsPass`) are handled by
    other passes. A node that cannot be adapted stays as it is.

    Args:
        target: The target; the key ``adapt`` of its rules lists what may be adapted.
        nodes: The nodes, with the changes that were chosen for each; ``None``: every recurrent node of the
            model that can be adapted.
        semantics: Which one to follow where onnxruntime and the ONNX spec differ: ``ort`` or ``spec``.

    Attributes:
        adapted: Reports on the adapted nodes.
        replaced: Those nodes, which are no longer in the model.
    """

    REQUIRES = (no_function_is_recurrent,)
    ENSURES = (_adapted_nodes_are_gone,)

    def __init__(
        self,
        target: Target,
        nodes: Mapping[Located, frozenset[str]] | None = None,
        semantics: Semantics = "ort",
    ) -> None:
        super().__init__()
        self._target = target
        self._nodes = nodes
        self._semantics = semantics
        self.adapted: list[LoweredNode] = []
        self.replaced: list[Located] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        """Adapt the nodes.

        Raises:
            InvalidModelError: A node breaks the ONNX spec.
        """
        emitters = Emitters(model, self._target)
        chosen = self._nodes
        if chosen is None:
            places = [OnTarget(each, self._target, self._semantics) for each in find_recurrent(model)]
            chosen = {place.located: changes for place in places if (changes := find_changes(place))}
        for located, changes in chosen.items():
            node = parse_recurrent(located, self._semantics, lenient=True)
            assert node.dtype is not None
            form = AdaptedNode(emitters.at(located.name, node.dtype), node, changes)
            replace_node(node.node, form.emit(), form.e.nodes, mark=True)
            for each in form.recurrent:
                # It is the target's own operator, and judged as such.
                del each.meta[EMITTED]
            self.replaced.append(located)
            done = ", ".join(words for name, words in ADAPTABLE.items() if name in changes)
            reason = f"{self._target.name} runs its own operator: {done}"
            self.adapted.append(
                LoweredNode.of(located, "adapt", len(form.e.nodes), reason, node.direction, node.seq_length)
            )
        return ir.passes.PassResult(model, modified=bool(self.adapted))
