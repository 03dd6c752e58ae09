"""Drawings of a recurrent node, and of one time step of its replacement, as inline SVG.

The layout of boxes is in layers from top to bottom, with room for the lines between them.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import statistics
from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from rnnlower.graph.operator_kinds import RESHAPING
from rnnlower.graph.walk import reachable, walk
from rnnlower.inspection import RecurrentNode
from rnnlower.reporting.page import escape, shorten

_MAX_NODES = 60
_BOX, _TALL, _LAYER = 118, 36, 62
_MAX_LETTERS = 18
_LETTER = 7
"""The approximate width of a letter in pixels."""
_STATE = re.compile(r"(?P<full>.+/[tr])\d+/y|(?P<lane>[a-z]?)y[0-9][0-9a-z]*")
"""H in a straight line: the node's name and the time step, or a letter for the direction and the step."""
_WHAT = re.compile(r".*/([A-Za-z_]+?)(?:_\d+)?|[a-z]?([a-z])[0-9][0-9a-z]*(?:_\d+)?")
"""The part of a name that is the role of the value."""
_GATES = {*"iofczrh"}
_NEW_STATES = {"y": "H(t)", "m": "C(t)"}
_OUTSIDE = {
    "y": "H(t-1)",
    "m": "C(t-1)",
    "x": "X(t) W",
    "w": "X(t) W",
    "number": "iteration",
    "go_on": "condition",
}
"""Labels of a step's values in a drawing, by the last part of their names."""
_PRODUCTS = {"Gemm", "MatMul", "MatMulInteger", "Einsum"}
_COLORS = {"product": "var(--blue)", "recurrent": "var(--orange)", "other": "var(--dim)"}


def find_step(model: ir.Model, name: str, steps: int | None) -> list[ir.Node]:
    """Return the nodes of one time step of the replacement of the recurrent node of this name.

    It is the body of its Scan or Loop, or the second step of its straight line (the first has no recurrent
    product if the initial state is zero). The list is empty if steps cannot be distinguished.
    """
    own = [node for node, _ in walk(model.graph) if (node.name or "").startswith(f"{name}/")]
    for node in own:
        for attribute in node.attributes.values():
            if node.op_type in ("Scan", "Loop") and attribute.type == ir.AttributeType.GRAPH:
                return [each for each in attribute.as_graph() if each.op_type != "Identity"]
    position = 1 if steps is None or steps > 1 else 0
    made = {value.name: value for node, _ in walk(model.graph) for value in node.outputs}
    near = [value for node in own for value in (*node.inputs, *node.outputs) if value is not None]
    near += [
        value for node in own for out in node.outputs for use in out.uses() for value in use.node.outputs
    ]
    found = [match for value in near if (match := _STATE.fullmatch(value.name or ""))]
    step: set[ir.Node] = set()
    for match in found:
        step |= _one_step(made, match, position)
    return [node for node, _ in walk(model.graph) if node in step]


def _one_step(made: Mapping[str | None, ir.Value], state: re.Match[str], position: int) -> set[ir.Node]:
    """Return the nodes that compute H and C of a step, as far as their values are named after the step."""
    numbers = [str(position), *(f"{position:0{width}}" for width in (2, 3, 4))]
    for number in numbers:
        if state["full"]:
            beginning, pattern = f"{state['full']}{number}/", rf"{re.escape(state['full'])}{number}/.+"
        else:
            beginning, pattern = state["lane"], rf"{state['lane']}[a-z]{{1,2}}{number}(?:_\d+)?"
        names = [f"{beginning}{what}" + ("" if state["full"] else number) for what in _NEW_STATES]
        pending = [made[name].producer() for name in names if name in made]
        step: set[ir.Node] = set()
        while pending:
            node = pending.pop()
            if node is None or node in step:
                continue
            if all(re.fullmatch(pattern, value.name or "") for value in node.outputs):
                step.add(node)
                pending += [value.producer() for value in node.inputs if value is not None]
        if step:
            return step
    return set()


def draw_node(node: RecurrentNode) -> str:
    """Draw the recurrent node with its inputs and outputs."""
    drawing = _Drawing()
    inputs = [drawing.add(name, "", "value", 0) for name in node.inputs]
    box = drawing.add(node.op_type, node.direction, "recurrent", 1)
    outputs = [drawing.add(name, "", "value", 2) for name in node.outputs]
    drawing.edges += [(each, box) for each in inputs] + [(box, each) for each in outputs]
    return drawing.svg()


def draw_step(nodes: Sequence[ir.Node]) -> str:
    """Draw the nodes in layers, each below its inputs; values from outside have no box."""
    if not 0 < len(nodes) <= _MAX_NODES:
        return ""
    drawing = _Drawing()
    makers = {value: node for node in nodes for value in node.outputs}
    depths = _depths(nodes, makers)
    boxes = {node: drawing.add(node.op_type, _role(node), _kind(node), depths[node]) for node in nodes}
    outside: dict[ir.Value, int] = {}
    for node in nodes:
        for value in dict.fromkeys(node.inputs):
            if value in makers:
                drawing.edges.append((boxes[makers[value]], boxes[node]))
            elif value is not None and value.const_value is None and not value.is_initializer():
                if value not in outside:
                    outside[value] = drawing.add(_outside_label(value), "", "value", depths[node] - 1)
                drawing.edges.append((outside[value], boxes[node]))
    return drawing.svg()


def _outside_label(value: ir.Value) -> str:
    """Return the label of a value from outside; only products read H."""
    last = (value.name or "").rpartition("/")[2]
    what = _role_name(value)
    if what == "state":
        users = {use.node.op_type for use in value.uses()}
        return "H(t-1)" if users & {*_PRODUCTS, "Concat"} else "C(t-1)"
    known = _OUTSIDE.get(what)
    maker = value.producer()
    if known or maker is None:
        return known or last
    if maker.op_type in _PRODUCTS:
        return "X W"
    moved = maker.inputs[0] if maker.op_type in RESHAPING else None
    return last if moved is None else _outside_label(moved)


def _role_name(value: ir.Value) -> str:
    match = _WHAT.fullmatch(value.name or "")
    return (match.group(1) or match.group(2)) if match else ""


def _depths(nodes: Sequence[ir.Node], makers: Mapping[ir.Value, ir.Node]) -> dict[ir.Node, int]:
    """Return the layer of each node: one below its lowest input; the nodes are sorted."""
    depths: dict[ir.Node, int] = {}
    for node in nodes:
        above = [
            depths.get(makers[value], 0) for value in node.inputs if value is not None and value in makers
        ]
        depths[node] = 1 + max(above, default=0)
    return depths


def _kind(node: ir.Node) -> str:
    return "product" if node.op_type in _PRODUCTS else "other"


def _role(node: ir.Node) -> str:
    """Return a node's role: the weights of a product, or the gates or new state that it computes."""
    if _kind(node) == "product":
        weights = [value.name or "" for value in node.inputs if value is not None and value.is_initializer()]
        return f"with {', '.join(weights)}" if weights else ""
    made = [_role_name(value) for value in node.outputs]
    return " ".join(_NEW_STATES.get(each, each) for each in made if each in _GATES or each in _NEW_STATES)


class _Drawing:
    """A drawing of boxes in layers, and lines between them."""

    def __init__(self) -> None:
        self._boxes: list[tuple[str, str, str, int]] = []
        self.edges: list[tuple[int, int]] = []

    def add(self, title: str, subtitle: str, kind: str, layer: int) -> int:
        self._boxes.append((title, subtitle, kind, layer))
        return len(self._boxes) - 1

    def svg(self) -> str:
        first = min(layer for _, _, _, layer in self._boxes)
        layers = [layer - first for _, _, _, layer in self._boxes]
        layout = place([_width(*box) for box in self._boxes], layers, self.edges)
        width, height = layout.width + 4, max(layers) * _LAYER + _TALL + 4
        body = "\n".join([*self._lines(layout), *self._shapes(layout, layers)])
        return (
            f'<div class="wide"><svg class="own-size" viewBox="-2 -2 {width:.0f} {height}" '
            f'width="{width:.0f}" height="{height}" role="img">{body}</svg></div>\n'
        )

    def _lines(self, layout: Layout) -> Iterator[str]:
        """Yield curves from the bottom of one box to the top of another, through the layers in between."""
        for path in layout.paths:
            (first, x), *between, (last, end) = path
            points = [(x, first * _LAYER + _TALL), *((m, n * _LAYER + _TALL / 2) for n, m in between)]
            points.append((end, last * _LAYER))
            # At each point, the direction is that from one neighbor to the other; vertical at the ends.
            upright = (0.0, (_LAYER - _TALL) / 2)
            near = zip(points, points[2:], strict=False)
            bends = [upright, *(((c[0] - a[0]) / 6, (c[1] - a[1]) / 6) for a, c in near), upright]
            line = f"M{x:.1f} {points[0][1]}"
            for (a, go), (b, come) in itertools.pairwise(zip(points, bends, strict=True)):
                line += f" C{a[0] + go[0]:.1f} {a[1] + go[1]:.1f} {b[0] - come[0]:.1f} {b[1] - come[1]:.1f}"
                line += f" {b[0]:.1f} {b[1]:.1f}"
            yield f'<path d="{line}" fill="none" stroke="var(--dim)" stroke-opacity="0.55"/>'

    def _shapes(self, layout: Layout, layers: Sequence[int]) -> Iterator[str]:
        made = {b for _, b in self.edges}
        for number, box in enumerate(self._boxes):
            title, subtitle, kind, _ = box
            middle, y = layout.middles[number], layers[number] * _LAYER
            width = _width(*box)
            if kind == "value":
                yield _text(middle, y + (14 if number in made else 30), title, ' class="dim"')
                continue
            yield (
                f'<rect x="{middle - width / 2:.1f}" y="{y}" width="{width}" height="{_TALL}" rx="5" '
                f'fill="var(--paper)" stroke="{_COLORS[kind]}" stroke-width="1.5"/>'
            )
            yield _text(middle, y + (16 if subtitle else 22), title, ' font-weight="600"')
            if subtitle:
                yield _text(middle, y + 30, subtitle, ' class="dim"')


def _width(title: str, subtitle: str, kind: str, layer: int) -> int:
    text = _LETTER * max(len(shorten(text, _MAX_LETTERS)) for text in (title, subtitle))
    return max(40, text) if kind == "value" else max(_BOX, text + 2 * _LETTER)


def _text(x: float, y: float, text: str, attributes: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="middle"{attributes}>'
        f"<title>{escape(text)}</title>{escape(shorten(text, _MAX_LETTERS))}</text>"
    )


_GAP = 16
_BETWEEN = 60
"""Pixels between unconnected parts."""
_LINE = 10
"""The width of a line in a layer that it only crosses."""
_SWEEPS = 24

_Place = tuple[int, int]
"""A box, or an edge, by its number; and the layer. Edges are counted from -1 downwards."""


@dataclasses.dataclass(frozen=True)
class Layout:
    """The positions of all boxes and lines.

    Attributes:
        middles: The middle of each box, in pixels from the left.
        paths: For each edge, the layers that it touches and the position of the line there, downwards.
    """

    middles: Sequence[float]
    paths: Sequence[Sequence[tuple[int, float]]]
    width: float


def place(widths: Sequence[float], layers: Sequence[int], edges: Sequence[tuple[int, int]]) -> Layout:
    """Place boxes of these widths in their layers; an edge leads from a box to one in a lower layer."""
    chains = [
        [(a, layers[a]), *((-1 - n, layer) for layer in range(layers[a] + 1, layers[b])), (b, layers[b])]
        for n, (a, b) in enumerate(edges)
    ]
    near: dict[_Place, list[_Place]] = {each: [] for each in enumerate(layers)}
    for chain in chains:
        for upper, lower in itertools.pairwise(chain):
            near.setdefault(upper, []).append(lower)
            near.setdefault(lower, []).append(upper)
    room = {each: widths[each[0]] if each[0] >= 0 else _LINE for each in near}
    middles: dict[_Place, float] = {}
    right = 0.0
    for part in _connected_parts(near):
        own = _middles(part, near, room)
        left = min(own[each] - room[each] / 2 for each in part) - right
        middles |= {each: x - left for each, x in own.items()}
        right = max(middles[each] + room[each] / 2 for each in part) + _BETWEEN
    paths = [[(each[1], middles[each]) for each in chain] for chain in chains]
    return Layout([middles[each] for each in enumerate(layers)], paths, right - _BETWEEN)


def _connected_parts(near: Mapping[_Place, Sequence[_Place]]) -> list[list[_Place]]:
    """Return the connected parts, in the order in which they first occur."""
    found: list[list[_Place]] = []
    seen: set[_Place] = set()
    for first in near:
        if first not in seen:
            found.append(reachable([first], near.__getitem__))
            seen.update(found[-1])
    return found


def _middles(
    part: Sequence[_Place], near: Mapping[_Place, Sequence[_Place]], room: Mapping[_Place, float]
) -> dict[_Place, float]:
    """Move every box toward its neighbors: down and up the layers, and both at the end."""
    rows: dict[int, list[_Place]] = {}
    for each in sorted(part, key=lambda each: each[1]):
        rows.setdefault(each[1], []).append(each)
    middles = {each: float(index) for row in rows.values() for index, each in enumerate(row)}
    for sweep in range(_SWEEPS):
        down = sweep % 2 == 0
        both = sweep >= _SWEEPS // 2
        for layer in sorted(rows, reverse=not down):
            row = rows[layer]
            wanted = {}
            for each in row:
                others = [other for other in near[each] if both or (other[1] < layer) == down]
                wanted[each] = statistics.fmean([middles[other] for other in others or [each]])
            if not both:
                row.sort(key=wanted.__getitem__)
            middles.update(_resolve_overlaps(row, wanted, room))
    return middles


def _resolve_overlaps(
    row: Sequence[_Place], wanted: Mapping[_Place, float], room: Mapping[_Place, float]
) -> dict[_Place, float]:
    """Return positions close to the wanted ones; boxes that would overlap move as a block."""
    offsets: dict[_Place, float] = {}
    end = 0.0
    for each in row:
        offsets[each] = end + room[each] / 2
        end += room[each] + _GAP
    blocks: list[tuple[list[_Place], int, float]] = []
    for each in row:
        members, weight, start = [each], 1, wanted[each] - offsets[each]
        while blocks and blocks[-1][2] >= start:
            before, their_weight, their_start = blocks.pop()
            start = (start * weight + their_start * their_weight) / (weight + their_weight)
            members, weight = before + members, weight + their_weight
        blocks.append((members, weight, start))
    return {each: start + offsets[each] for members, _, start in blocks for each in members}
