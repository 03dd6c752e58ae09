"""A recurrent node, and one time step of what took its place, drawn as graphs in inline SVG."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from rnnlower.graph.walk import walk
from rnnlower.inspection import RecurrentNode
from rnnlower.reporting.page import escape

__all__ = ["draw_node", "draw_step", "step_of"]

_MOST_NODES = 60
_BOX, _TALL, _GAP, _LAYER = 118, 36, 16, 66
_STEP = re.compile(r"([a-z]+)(\d+)[a-z]+(?:_\d+)?")
"""The name of a straight line's node or value: letters for the recurrent node, the time step, what it is."""
_PRODUCTS = {"Gemm", "MatMul", "MatMulInteger", "Einsum"}
_RECURRENT = {"LSTM", "GRU", "RNN", "DynamicQuantizeLSTM"}
_COLOURS = {"product": "var(--blue)", "recurrent": "var(--orange)", "other": "var(--dim)"}


def step_of(model: ir.Model, name: str, steps: int | None) -> list[ir.Node]:
    """The nodes of one time step of what took the place of the recurrent node of this name.

    The body of its Scan or Loop, or the second step of its straight line (the first has no recurrent product
    where the initial state is zero). None where they cannot be told apart.
    """
    own = [node for node, _ in walk(model.graph) if (node.name or "").startswith(f"{name}/")]
    for node in own:
        for attribute in node.attributes.values():
            if node.op_type in ("Scan", "Loop") and attribute.type == ir.AttributeType.GRAPH:
                return list(attribute.as_graph())
    values = [value for node in own for value in node.outputs]
    near = [value.name for value in values] + [use.node.name for value in values for use in value.uses()]
    found = (_STEP.fullmatch(each or "") for each in near)
    aliases = {match.group(1) for match in found if match}
    step = 1 if steps is None or steps > 1 else 0
    return [
        node
        for node, _ in walk(model.graph)
        if (match := _STEP.fullmatch(node.name or ""))
        and match.group(1) in aliases
        and int(match.group(2)) == step
    ]


def draw_node(node: RecurrentNode) -> str:
    """The recurrent node, with what it reads and gives."""
    drawing = _Drawing()
    inputs = [drawing.add(name, "", "value", 0) for name in node.inputs]
    box = drawing.add(node.op_type, node.direction, "recurrent", 1)
    outputs = [drawing.add(name, "", "value", 2) for name in node.outputs]
    drawing.edges += [(each, box) for each in inputs] + [(box, each) for each in outputs]
    return drawing.svg()


def draw_step(nodes: Sequence[ir.Node]) -> str:
    """The nodes in layers, each below what it reads; values that come from outside are named above."""
    if not 0 < len(nodes) <= _MOST_NODES:
        return ""
    drawing = _Drawing()
    makers = {value: node for node in nodes for value in node.outputs}
    depths = _depths(nodes, makers)
    boxes = {node: drawing.add(node.op_type, _role(node), _kind(node), depths[node]) for node in nodes}
    outside: dict[ir.Value, int] = {}
    for node in nodes:
        for value in dict.fromkeys(node.inputs):
            if value is None:
                continue
            if value in makers:
                drawing.edges.append((boxes[makers[value]], boxes[node]))
            elif value.const_value is None and not value.is_initializer():
                if value not in outside:
                    outside[value] = drawing.add(value.name or "", "", "value", 0)
                drawing.edges.append((outside[value], boxes[node]))
    return drawing.svg()


def _depths(nodes: Sequence[ir.Node], makers: Mapping[ir.Value, ir.Node]) -> dict[ir.Node, int]:
    """The layer of each node: one below the lowest that it reads; nodes come sorted."""
    depths: dict[ir.Node, int] = {}
    for node in nodes:
        above = [
            depths.get(makers[value], 0) for value in node.inputs if value is not None and value in makers
        ]
        depths[node] = 1 + max(above, default=0)
    return depths


def _kind(node: ir.Node) -> str:
    if node.op_type in _RECURRENT:
        return "recurrent"
    return "product" if node.op_type in _PRODUCTS else "other"


def _role(node: ir.Node) -> str:
    """The weights of a product; the last part of another node's name."""
    if _kind(node) == "product":
        weights = [value.name or "" for value in node.inputs if value is not None and value.is_initializer()]
        if weights:
            return f"with {', '.join(weights)}"
    return (node.name or "").rpartition("/")[2]


class _Drawing:
    """Boxes in layers, and lines between them."""

    def __init__(self) -> None:
        self._boxes: list[tuple[str, str, str, int]] = []
        self.edges: list[tuple[int, int]] = []

    def add(self, title: str, subtitle: str, kind: str, layer: int) -> int:
        self._boxes.append((title, subtitle, kind, layer))
        return len(self._boxes) - 1

    def svg(self) -> str:
        layers: dict[int, list[int]] = {}
        for number, (_, _, _, layer) in enumerate(self._boxes):
            layers.setdefault(layer, []).append(number)
        widest = max(map(len, layers.values()))
        width = max(widest * (_BOX + _GAP), 260)
        places = self._places(layers, width)
        height = max(y for _, y in places.values()) + _TALL + 4
        parts = [*self._lines(places), *self._shapes(places)]
        body = "\n".join(parts)
        return (
            f'<div class="wide"><svg class="own-size" viewBox="0 0 {width} {height}" width="{width}" '
            f'height="{height}" role="img">{body}</svg></div>\n'
        )

    def _places(self, layers: Mapping[int, list[int]], width: int) -> dict[int, tuple[float, float]]:
        """The left upper corner of each box: within a layer, in the order of what they read."""
        places: dict[int, tuple[float, float]] = {}
        for row, layer in enumerate(sorted(layers)):
            middles = {number: self._middle(number, places) for number in layers[layer]}
            ordered = sorted(layers[layer], key=lambda number: middles[number])
            left = (width - len(ordered) * (_BOX + _GAP) + _GAP) / 2
            for column, number in enumerate(ordered):
                places[number] = (left + column * (_BOX + _GAP), 2 + row * _LAYER)
        return places

    def _middle(self, number: int, places: Mapping[int, tuple[float, float]]) -> float:
        above = [places[a][0] for a, b in self.edges if b == number and a in places]
        return sum(above) / len(above) if above else 0.0

    def _lines(self, places: Mapping[int, tuple[float, float]]) -> Iterator[str]:
        for a, b in self.edges:
            (x1, y1), (x2, y2) = places[a], places[b]
            x1, x2, y1 = x1 + _BOX / 2, x2 + _BOX / 2, y1 + _TALL
            bend = min(40.0, (y2 - y1) / 2)
            yield (
                f'<path d="M{x1:.1f} {y1:.1f} C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} '
                f'{x2:.1f} {y2:.1f}" fill="none" stroke="var(--dim)" stroke-opacity="0.55"/>'
            )

    def _shapes(self, places: Mapping[int, tuple[float, float]]) -> Iterator[str]:
        for number, (title, subtitle, kind, _) in enumerate(self._boxes):
            x, y = places[number]
            if kind == "value":
                yield _text(x, y + 23, title, ' class="dim"')
                continue
            yield (
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{_BOX}" height="{_TALL}" rx="5" fill="var(--paper)" '
                f'stroke="{_COLOURS[kind]}" stroke-width="1.5"/>'
            )
            yield _text(x, y + (16 if subtitle else 22), title, ' font-weight="600"')
            if subtitle:
                yield _text(x, y + 30, subtitle, ' class="dim"')


def _text(x: float, y: float, text: str, attributes: str) -> str:
    shown = text if len(text) <= 18 else f"...{text[-15:]}"
    return (
        f'<text x="{x + _BOX / 2:.1f}" y="{y:.1f}" text-anchor="middle"{attributes}>'
        f"<title>{escape(text)}</title>{escape(shown)}</text>"
    )
