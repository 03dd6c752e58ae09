"""Facts about values that hold before a model runs: types, shapes, contents, iterations of loops."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from rnnlower.graph.evaluation import Array, Dim, Dims
from rnnlower.graph.inlining import resolve_references
from rnnlower.graph.loop_signature import FIRST_SCAN_WITHOUT_BATCH, LoopSignature, counters
from rnnlower.graph.node_facts import NodeFacts
from rnnlower.graph.suppression import quiet_libraries
from rnnlower.graph.walk import (
    captured_values,
    look_through,
    producer_of,
    reachable,
    subgraph_owners,
    subgraphs_of,
    values_read_by,
    walk,
    walk_values,
)

_MAX_ITERATIONS = 1000


class Facts(NodeFacts):
    """The facts about each value of a model, derived node by node on demand, and cached.

    Declared shapes are trusted for graph inputs and initializers only: inside a graph they are what an
    exporter saw. Branches that are known not to be taken do not count. Facts stay valid while values are
    replaced by equivalent ones; after any other change, `forget` them all.

    Args:
        model: The model; it is not changed.
        weights: Whether to compute also what DequantizeLinear returns, and numbers of other types than
            NumPy's.
        declared: Whether to trust what the model declares where nothing follows from its inputs. These are
            the shapes, and up to IR 3, where every initializer is an input, the defaults of inputs.
            Branches that are not taken then have facts, too.
        largest: Largest size in bytes of contents that are looked at.
    """

    def forget(self) -> None:
        """Forget everything: the model's inputs, its opset or the meaning of its values have changed."""
        super().forget()
        self._is_visiting = False
        self._owners: dict[ir.Graph | None, ir.Node | None] = {}
        self._inlined_copies: dict[ir.Value, list[ir.Value]] = {}

    def inlined_copies(self, value: ir.Value) -> list[ir.Value]:
        """Return the values that stand for a value of a function, one for each call."""
        return self._inlined_copies.get(value, [])

    def visit(self, *nodes: ir.Node) -> None:
        """Derive the facts about the outputs of nodes, even outside the graph; a single node, again."""
        pending = [*reversed(nodes)]
        with self._visiting():
            while pending:
                node = pending[-1]
                used = (*filter(None, node.inputs), *captured_values(node))
                before = [each for each in map(self._unvisited, used) if each is not None]
                pending += before
                if not before:
                    self._visit(pending.pop())
                while pending and pending[-1] in self._visited:
                    pending.pop()

    def condition(self, node: ir.Node) -> bool | None:
        """Return whether an If takes its then_branch, or ``None`` if that is not known."""
        array = self.constant(node.inputs[0])
        return bool(array.reshape(-1)[0]) if array is not None and array.size == 1 else None

    def run_iteration(
        self, body: ir.Graph, nodes: Iterable[ir.Node], given: Mapping[ir.Value, Array]
    ) -> None:
        """Replace the facts about a body by those of some nodes in one iteration.

        Args:
            nodes: Its nodes to visit, in order.
            given: The contents of its inputs.
        """
        with self._visiting():
            self._forget_body(body)
            self._learn_contents(given)
            for node in nodes:
                self._visit(node)

    def leave_iterations(self, node: ir.Node) -> None:
        """Replace the facts about a body by those that hold in all iterations."""
        with self._visiting():
            for body in subgraphs_of(node):
                self._forget_body(body)
            self._visit(node)

    def _ensure_visited(self, value: ir.Value) -> None:
        """Visit the nodes that determine the value."""
        if not self._is_visiting and (node := self._unvisited(value)) is not None:
            self.visit(node)

    @contextlib.contextmanager
    def _visiting(self) -> Iterator[None]:
        self._is_visiting = True
        try:
            with quiet_libraries():
                yield
        finally:
            self._is_visiting = False

    def _unvisited(self, value: ir.Value) -> ir.Node | None:
        """Return the outermost node that is to be visited before anything is known of the value."""
        node, found = value.producer(), None
        graph = value.graph if node is None else node.graph
        if node is not None and node not in self._visited:
            found = node
        while graph is not self.model.graph:
            if graph is not None and graph not in self._owners:
                self._owners[graph] = None
                self._owners.update(subgraph_owners(self.model.graph))
            holder = None if graph is None else self._owners[graph]
            if holder is None:
                return None
            found = found if holder in self._visited else holder
            graph = holder.graph
        return found

    def _visit_graph(self, graph: ir.Graph) -> None:
        for node in graph:
            self._visit(node)

    def _visit(self, node: ir.Node) -> None:
        kind = "" if node.domain else node.op_type
        if kind == "If":
            self._visit_if(node)
        elif kind == "Loop":
            self._visit_loop(node)
        elif kind == "Scan":
            self._visit_scan(node)
        elif node.op_identifier() in self.model.functions:
            self._visit_call(node, self.model.functions[node.op_identifier()])
        elif not self._evaluate(node):
            for graph in subgraphs_of(node):
                self._visit_graph(graph)
            self._infer(node)
        self._visited.add(node)

    def _visit_call(self, node: ir.Node, function: ir.Function) -> None:
        """Visit a copy of the function's body, with the attributes and inputs of the call."""
        body = function.clone()
        for inner, _ in walk(body):
            resolve_references(inner, {**function.attributes, **node.attributes})
        for formal, actual in zip(body.inputs, node.inputs, strict=False):
            if actual is not None:
                self.transfer(actual, formal)
        for original, copied in zip(walk_values(function.graph), walk_values(body.graph), strict=True):
            self._inlined_copies.setdefault(original, []).append(copied)
        outer, self._imports = self._imports, {**self.model.opset_imports, **function.opset_imports}
        self._visit_graph(body.graph)
        self._imports = outer
        for out, result in zip(node.outputs, body.outputs, strict=False):
            self.transfer(result, out)

    def _visit_if(self, node: ir.Node) -> None:
        taken = self.condition(node)
        branches = [node.attributes[name].as_graph() for name in ("then_branch", "else_branch")]
        if taken is not None:
            never = branches.pop(1 if taken else 0)
            self._visit_graph(never)
            self._visited |= {inner for inner, _ in walk(never)}
        for branch in branches:
            self._visit_graph(branch)
        for value, *results in zip(node.outputs, *(branch.outputs for branch in branches), strict=True):
            if len(results) == 1:
                self.transfer(results[0], value)
            else:
                self._learn(
                    value, self.type(results[0]), _merge_shapes([self.dims(result) for result in results])
                )

    def _visit_loop(self, node: ir.Node) -> None:
        body = node.attributes["body"].as_graph()
        for value, array in zip(body.inputs, counters(body, 0), strict=False):
            self._learn(value, ir.TensorType(ir.DataType.from_numpy(array.dtype)), array.shape)
        states = body.inputs[2:]
        results = body.outputs[1:]
        before = [self.dims(source) for source in node.inputs[2:]]
        shapes = self._visit_body(body, states, node.inputs[2:], results, before)
        steps = trip_count(self, node, simulate=False)
        shapes += [
            None if (each := self.dims(out)) is None else (steps, *each) for out in results[len(states) :]
        ]
        self._learn_outputs(node, results, shapes)

    def _visit_scan(self, node: ir.Node) -> None:
        scan = LoopSignature(node)
        body, count = scan.body, scan.count
        first = int(self._imports[""] < FIRST_SCAN_WITHOUT_BATCH)
        batch: list[Dim] = [None] * first
        steps: Dim = None
        shapes = []
        for index, source in enumerate(node.inputs[first:]):
            dims = self.dims(source)
            if dims is not None and len(dims) >= first:
                batch, dims = [*dims[:first]], dims[first:]
            if index < count:
                shapes.append(dims)
                continue
            axis = scan.input_axes[index - count]
            if dims is not None and -len(dims) <= axis < len(dims):
                axis %= len(dims)
                steps = dims[axis] if steps is None else steps
                dims = (*dims[:axis], *dims[axis + 1 :])
            # A Loop around may have been visited with another shape.
            self._forget(body.inputs[index])
            self._learn(body.inputs[index], self.type(source), dims)
        shapes = self._visit_body(body, body.inputs[:count], node.inputs[first:], body.outputs, shapes)
        for out, axis in zip(scan.stacked, scan.output_axes, strict=True):
            dims = self.dims(out)
            if dims is not None:
                axis %= len(dims) + 1
                dims = (*dims[:axis], steps, *dims[axis:])
            shapes.append(dims)
        self._learn_outputs(
            node, body.outputs, [None if dims is None else (*batch, *dims) for dims in shapes]
        )

    def _visit_body(
        self,
        body: ir.Graph,
        states: Sequence[ir.Value],
        sources: Sequence[ir.Value | None],
        results: Sequence[ir.Value],
        shapes: list[Dims | None],
    ) -> list[Dims | None]:
        """Visit a body with shapes of its states that hold in every iteration; return these shapes.

        The states come first in `sources` and `results`; `shapes` are those in the first iteration.
        """
        while True:
            for state, source, shape in zip(states, sources, shapes, strict=False):
                self._forget(state)
                self._learn(state, self.type(source), shape)
            self._visit_graph(body)
            merged = [_merge_shapes([old, self.dims(out)]) for old, out in zip(shapes, results, strict=False)]
            if merged == shapes:
                return shapes
            # Facts derived from sizes that change are wrong.
            for out in (out for inner, _ in walk(body) for out in inner.outputs):
                self._forget(out)
            shapes = merged

    def _learn_outputs(
        self, node: ir.Node, results: Sequence[ir.Value], shapes: Sequence[Dims | None]
    ) -> None:
        for value, result, shape in zip(node.outputs, results, shapes, strict=False):
            self._learn(value, self.type(result), shape)

    def _forget_body(self, body: ir.Graph) -> None:
        """Forget the data of one iteration."""
        for graph in (body, *body.subgraphs()):
            for value in (*graph.inputs, *(out for node in graph for out in node.outputs)):
                self._forget(value)


def _merge_shapes(shapes: Sequence[Dims | None]) -> Dims | None:
    """Return the sizes that all shapes share."""
    ranks = {None if shape is None else len(shape) for shape in shapes}
    if len(ranks) != 1 or None in ranks:
        return None
    return tuple(
        sizes[0] if len(set(sizes)) == 1 else None
        for sizes in zip(*(shape for shape in shapes if shape is not None), strict=True)
    )


def cover_axis(facts: Facts, lengths: ir.Value, tensor: ir.Value | None, axis: int) -> bool:
    """Return whether the lengths of all rows are the size of an axis."""
    while (node := producer_of(look_through(lengths), "Expand", "Tile")) is not None:
        if facts.constant(lengths) is not None or node.inputs[0] is None:
            break
        lengths = node.inputs[0]
    dims, sizes = facts.dims(tensor), facts.sizes(look_through(lengths))
    return dims is not None and sizes is not None and all(size == dims[axis] for size in sizes.flat)


def trip_count(facts: Facts, node: ir.Node, simulate: bool = True) -> int | None:
    """Return how many times the body of a Loop or Scan runs; ``None`` if that is not known.

    A Loop that ends by a condition is run for that, where its iterations follow from constants.
    """
    if node.op_type == "Scan":
        return _scan_trip_count(facts, node)
    trips = facts.constant(node.inputs[0])
    if node.inputs[0] is not None and trips is None:
        return None
    limit = None if trips is None or not trips.size else max(int(trips.reshape(-1)[0]), 0)
    if len(node.inputs) > 1 and node.inputs[1] is not None:
        condition = facts.constant(node.inputs[1])
        if condition is None:
            return None
        if not condition.reshape(-1)[0]:
            return 0
    if limit == 0:
        return 0
    body = node.attributes["body"].as_graph()
    condition = facts.constant(body.outputs[0])
    if condition is not None and not condition.reshape(-1)[0]:
        return 1
    if condition is not None or look_through(body.outputs[0], ("Cast", "Identity")) is body.inputs[1]:
        return limit
    return _simulate_loop(facts, node, limit) if simulate else None


def _scan_trip_count(facts: Facts, node: ir.Node) -> int | None:
    for value, axis in LoopSignature(node).scanned:
        shape = facts.shape(value)
        if shape is not None and -len(shape) <= axis < len(shape) and shape[axis] is not None:
            return shape[axis]
    return None


def _simulate_loop(facts: Facts, node: ir.Node, limit: int | None) -> int | None:
    """Count the iterations of a Loop whose condition follows from constants, by running it."""
    body = node.attributes["body"].as_graph()
    states = dict(zip(body.inputs[2:], body.outputs[1:], strict=False))
    # What the condition depends on, in earlier iterations as well.
    deciding = {*reachable([body.outputs[0]], lambda v: [states.get(v), *values_read_by(v.producer())])}
    nodes = [each for each in body if not deciding.isdisjoint(each.outputs)]
    deciding_states = [state for state in states if state in deciding]
    given = dict(zip(body.inputs[2:], map(facts.constant, node.inputs[2:]), strict=True))
    count: int | None = None
    for step in range(min(_MAX_ITERATIONS if limit is None else limit, _MAX_ITERATIONS)):
        known = {state: array for state in deciding_states if (array := given[state]) is not None}
        facts.run_iteration(body, nodes, dict(zip(body.inputs, counters(body, step), strict=False)) | known)
        goes_on = facts.constant(body.outputs[0])
        if goes_on is None:
            break
        if not goes_on.reshape(-1)[0] or step + 1 == limit:
            count = step + 1
            break
        given = {state: facts.constant(states[state]) for state in deciding_states}
    facts.leave_iterations(node)
    return count
