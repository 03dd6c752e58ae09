"""Correction of declared shapes that contradict the model's inputs.

Before::

    (float[3] x) => (float[3] y) <float[9] h> {
        h = Neg (x)
        y = Abs (h)
    }

After ``CorrectShapesPass()``::

    (float[3] x) => (float[3] y) <float[3] h> {
        h = Neg (x)
        y = Abs (h)
    }
"""

from __future__ import annotations

import onnx_ir as ir

from rnnlower.graph.evaluation import Shape
from rnnlower.graph.walk import walk
from rnnlower.passes.base import Pass


class CorrectShapesPass(Pass):
    """Writes the shapes that follow from the inputs in the place of others, and none where there is none.

    Graph outputs keep their declared sizes, except numbers that contradict those that follow.

    Args:
        outputs: Whether to declare shapes of graph outputs without one: some runtimes require it.

    Attributes:
        notes: A line for each graph output that declared another shape.
    """

    KEEPS_FACTS = True

    def __init__(self, *, outputs: bool = False) -> None:
        super().__init__()
        self._outputs = outputs
        self.notes: list[str] = []

    def call(self, model: ir.Model) -> ir.passes.PassResult:
        modified = False
        for out in (out for node, _ in walk(model.graph) for out in node.outputs):
            shape = self.facts.shape(out)
            if shape is None or out.shape is None or out.is_graph_output():
                continue
            declared = list(out.shape)
            same_rank = len(declared) == len(shape)
            known = [
                size if size is not None else declared[axis] if same_rank else None
                for axis, size in enumerate(shape)
            ]
            if known != declared:
                out.shape = ir.Shape(known)
                modified = True
        for out in model.graph.outputs:
            shape = self.facts.shape(out)
            if out.shape is None:
                if self._outputs and shape is not None and None not in shape:
                    out.shape = ir.Shape(shape)
                    modified = True
            elif shape is not None and len(shape) == len(out.shape):
                modified |= self._correct(out, out.shape, shape)
        return ir.passes.PassResult(model, modified)

    def _correct(self, out: ir.Value, declared: ir.Shape, shape: Shape) -> bool:
        sizes = [
            known if isinstance(said, int) and known is not None else said
            for said, known in zip(declared, shape, strict=True)
        ]
        if sizes == list(declared):
            return False
        out.shape = ir.Shape(sizes)
        old, new = (f"[{', '.join(map(str, each))}]" for each in (declared, sizes))
        self.notes.append(f"output {out.name!r} declares the shape {old} and has {new}: corrected")
        return True
