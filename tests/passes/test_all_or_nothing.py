"""A pass that fails halfway leaves the model as it was: the same nodes, the same values, the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import onnx
import onnx_ir as ir
import pytest
from support.quantized_models import QuantizedLstm

import rnnlower.passes as passes
from rnnlower.graph.walk import walk
from rnnlower.targets import find_target

RNNS = """
    main (float[T, 2, 3] X) => (float[T, 1, 2, 3] Y, float[1, 2, 3] Z)
    <float[1, 3, 3] V = {1, 2, 3, 4, 5, 6, 7, 8, 9}, float[1, 3, 3] S = {1, 2, 3, 4, 5, 6, 7, 8, 9},
     int64[1] axis = {1}>
    {
        W = Neg (V)
        R = Abs (S)
        once = Identity (X)
        A = RNN <hidden_size = 3> (once, W, R)
        again = Squeeze (A, axis)
        twice = Identity (again)
        Y, Z = RNN <hidden_size = 3> (twice, W, R)
    }
"""
SQUEEZED = """
    main (float[1, 2, 1] x) => (float[2] y) <int64[1] first = {0}, int64[1] last = {1}>
    {
        a = Squeeze (x, first)
        y = Squeeze (a, last)
    }
"""
GATED = """
    main (float[4, 2, 3] X, float[1, 9, 3] W, float[1, 9, 3] R) => (float[1, 2, 3] y, float[1, 2, 3] z)
    {
        a, y = GRU <hidden_size = 3> (X, W, R)
        b, z = GRU <hidden_size = 3> (X, W, R)
    }
"""
LSTMS = """
    main (float[2, 4, 1] X) => (float[2, 4, 1, 1] Y, float[2, 4, 1, 1] Z)
    <float[1, 4, 1] W = {1, 2, 3, 4}, float[1, 4, 1] R = {5, 6, 7, 8}>
    {
        Y = LSTM <hidden_size = 1, layout = 1> (X, W, R)
        Z = LSTM <hidden_size = 1, layout = 1> (X, W, R)
    }
"""
FUNCTION = """
    main (float[4, 2, 3] X, float[1, 3, 3] W, float[1, 3, 3] R) => (float[4, 1, 2, 3] Y, float[4, 1, 2, 3] Z)
    {
        Y = local.encoder (X, W, R)
        Z = local.encoder (X, W, R)
    }
    <domain: "local", opset_import: ["" : 17]>
    encoder (x, w, r) => (y)
    {
        n = Neg (x)
        y = RNN <hidden_size = 3> (n, w, r)
    }
"""
STREAM = """
    main (float[T, 1, 3] X, float[1, 9, 3] W, float[1, 9, 3] R) => (float[T, 1, 1, 3] Y)
    <int64[1] axis = {1}>
    {
        A = GRU <hidden_size = 3, linear_before_reset = 1> (X, W, R)
        again = Squeeze (A, axis)
        Y = GRU <hidden_size = 3, linear_before_reset = 1> (again, W, R)
    }
"""
BRANCHES = """
    main (float[2] x) => (float[2] y) <bool on = {1}>
    {
        a = If (on) <
            then_branch = t () => (float[2] p) { p = Neg (x) },
            else_branch = e () => (float[2] q) { q = Abs (x) }
        >
        y = If (on) <
            then_branch = u () => (float[2] r) { r = Neg (a) },
            else_branch = f () => (float[2] s) { s = Abs (a) }
        >
    }
"""
LOOPS = """
    main (float[2] x) => (float[2] y) <int64 n = {2}, bool on = {1}>
    {
        a = Loop (n, on, x) <body = b (int64 i, bool c, float[2] h) => (bool d, float[2] g) {
            d = Identity (c)
            g = Add (h, x)
        }>
        y = Loop (n, on, a) <body = v (int64 j, bool k, float[2] l) => (bool m, float[2] o) {
            m = Identity (k)
            o = Mul (l, x)
        }>
    }
"""
UNKNOWN = """
    main (float[4, 12] x, float[1, 3, 3] W, float[1, 3, 3] R) => (float a, float b)
    <int64[3] sizes = {-1, 2, 3}, float[2, 2] wrong>
    {
        first = Reshape (x, sizes)
        a = RNN <hidden_size = 3> (first, W, R)
        second = Reshape (x, sizes)
        b = RNN <hidden_size = 3> (second, W, R)
    }
"""
WRONG = """
    main (float[1, 1, 12] x) => (float[1, 12] y) <int64[1] axis = {1}, float[7] one, float[9] two>
    {
        one = Neg (x)
        two = Neg (one)
        y = Squeeze (two, axis)
    }
"""
UNUSED = """
    main (float[2] x) => (float[2] y)
    {
        y = Neg (x)
        a = Abs (y)
        b = Abs (x)
    }
"""
DEFAULTS = """
    main (float[2] x, float[2] w) => (float[2] y) <float[2] w = {1, 2}>
    {
        y = Mul (x, w)
    }
"""
LEGACY = """
    main (float[2, 3] X) => (float[2, 3] Y) <float[3] a = {1, 2, 3}, float[3] b = {4, 5, 6}>
    {
        product = Mul (X, a)
        Y = Add (product, b)
    }
"""
NAMED = """
    main (float[2] x) => (float[2] y)
    {
        [first] a = Abs (x)
        [second] y = Neg (a)
    }
"""
SWISH = """
    main (float[2] x) => (float[2] y)
    {
        a = HardSwish (x)
        y = HardSwish (a)
    }
"""
READ = """
    main (float[2] x) => (float[2] y, float[2] z, float[2] a)
    {
        y = Neg (x)
        z = Abs (y)
        a = Add (y, z)
    }
"""


SUMS = """
    main (float[2] a, float[2] b) => (float[2] y, float[2] z)
    {
        s = Add (a, b)
        y = Tanh (s)
        z = Tanh (s)
    }
"""

MASKED = """
    main (float[2, 3] x) => (float[2, 3] y, float[2, 3] z) <float mask = {-inf}>
    {
        m = Add (x, mask)
        s = Softmax (m)
        y = Tanh (s)
        z = Tanh (y)
    }
"""

CARRIED = """
    main (float[3, 2] x, float[2] w) => (float[3, 2] y, float[3, 2] z) <int64 n = {3}> {
        a, y = Loop (n, , w) <body = b (int64 i, bool c, float[2] v) => (bool c, float[2] v, float[2] r)
            { t = Gather (x, i)  r = Mul (t, v) }>
        d, z = Loop (n, , w) <body = e (int64 k, bool f, float[2] u) => (bool f, float[2] u, float[2] q)
            { s = Gather (x, k)  q = Add (s, u) }>
    }
"""

COUNTED = """
    main (float[3, 2] x) => (float[3, 2] y, float[3, 2] z)
        <int64 n = {3}, int64 zero = {0}, int64 one = {1}> {
        a, y = Loop (n, , zero) <body = b (int64 i, bool c, int64 s) => (bool f, int64 t, float[2] r)
            { r = Gather (x, s)  t = Add (s, one)  f = Less (t, n) }>
        d, z = Loop (n, , zero) <body = e (int64 j, bool g, int64 u) => (bool h, int64 v, float[2] q)
            { q = Gather (x, u)  v = Add (u, one)  h = Less (v, n) }>
    }
"""

SEQUENCE = """
    main (float[2] a, float[2] b) => (float[4] y, float[4] z)
    {
        pair = SequenceConstruct (a, b)
        y = ConcatFromSequence <axis = 0> (pair)
        z = ConcatFromSequence <axis = 0> (pair)
    }
"""

APPENDED = """
    main (float[3, 2] x) => (float[3, 2] y, float[3, 2] z) <int64 n = {3}> {
        none = SequenceEmpty ()
        a = Loop (n, , none) <body = b (int64 i, bool c, seq(float) s) => (bool c, seq(float) s_out)
            { t = Gather (x, i)  s_out = SequenceInsert (s, t) }>
        y = ConcatFromSequence <axis = 0, new_axis = 1> (a)
        d = Loop (n, , none) <body = e (int64 k, bool f, seq(float) u) => (bool f, seq(float) u_out)
            { v = Gather (x, k)  w = Neg (v)  u_out = SequenceInsert (u, w) }>
        z = ConcatFromSequence <axis = 0, new_axis = 1> (d)
    }
"""

SCANS = """
    main (float[3, 1, 2] x, float[1, 2] h) => (float[3, 1, 2] y, float[3, 1, 2] z)
    <float[2, 2] W = {1, 2, 3, 4}, float[2, 2] R = {1, 2, 3, 4}> {
        a, y = Scan <num_scan_inputs = 1, body = b (float[1, 2] v, float[1, 2] t)
            => (float[1, 2] u, float[1, 2] w)
            { p = MatMul (t, W)  q = MatMul (v, R)  r = Add (p, q)  u = Tanh (r)  w = Identity (u) }> (h, x)
        d, z = Scan <num_scan_inputs = 1, body = e (float[1, 2] k, float[1, 2] l)
            => (float[1, 2] m, float[1, 2] n)
            { f = MatMul (l, W)  g = MatMul (k, R)  i = Add (f, g)  m = Relu (i)  n = Identity (m) }> (h, y)
    }
"""

PADDED = """
    main (float[T, 2] x) => (float[1, 2] y, float[T, 2] z) {
        y = ReduceMean <axes = [0]> (x)
        z = Softmax <axis = 0> (x)
    }
"""


STATES = """
    main (float[1, 4, 5] x, float[4, 1, 3] w) => (float[1, 4, 5] y, float[1, 4, 2] z)
    {
        a, s = com.microsoft.CausalConvWithState (x, w)
        y, z = com.microsoft.CausalConvWithState (a, w)
    }
"""


FOLDED = """
    main (float[N, T, 4] x, float[N, T, 4] z, float[4, 2] w) => (float[N, T, 2] y, float[a, b, c] v)
    <int64[2] rows = {-1, 4}, int32[2] at = {0, 1}, int32[1] last = {2}> {
        sizes = Shape (x)
        narrow = Cast <to = 6> (sizes)
        first = Gather (narrow, at)
        shape = Concat <axis = 0> (first, last)
        wide = Cast <to = 7> (shape)
        again = Cast <to = 7> (shape)
        f = Reshape (x, rows)
        g = MatMul (f, w)
        y = Reshape (g, wide)
        p = Reshape (z, rows)
        q = Gemm (p, w)
        v = Reshape (q, again)
    }
"""


STATEFUL = """
    main (float[T, N, 2] x, float[1, M, 2] h, float[1, 2, 2] W, float[1, 2, 2] R)
    => (float[T, 1, N, 2] y, float[1, M, 2] z)
    {
        y, z = RNN <hidden_size = 2> (x, W, R, , , h)
    }
"""


SERIES = """
    main (float[T, 2] x, float[2] h) => (float[2] last, float[T, 2] y, float[T, 2] z) <int64 first = {0}> {
        sizes = Shape (x)
        steps = Gather (sizes, first)
        middle, y = Loop (steps, , h) <body = one (int64 i, bool c, float[2] s)
            => (bool d, float[2] t, float[2] u) {
            v = Gather (x, i) t = Add (s, v) u = Neg (t) d = Identity (c)
        }>
        last, z = Loop (steps, , middle) <body = other (int64 j, bool e, float[2] k)
            => (bool f, float[2] l, float[2] m) {
            n = Gather (y, j) l = Mul (k, n) m = Abs (l) f = Identity (e)
        }>
    }
"""


def is_a(*op_types: str) -> Callable[[ir.Node], bool]:
    return lambda node: node.op_type in op_types


CASES: dict[str, tuple[Callable[[], ir.passes.PassBase], str]] = {
    "AdaptNodesPass": (lambda: passes.AdaptNodesPass(is_a("Squeeze")), SQUEEZED),
    "AdaptRecurrentPass": (lambda: passes.AdaptRecurrentPass(find_target("opencv")), GATED),
    "AssumeLinearBeforeResetPass": (passes.AssumeLinearBeforeResetPass, GATED),
    "CaptureStatesPass": (passes.CaptureStatesPass, CARRIED),
    "ConformSonnxPass": (passes.ConformSonnxPass, LSTMS),
    "ConvertOpsetPass": (lambda: passes.ConvertOpsetPass(12), RNNS),
    "CountIterationsPass": (passes.CountIterationsPass, COUNTED),
    "CopyOutputsPass": (passes.CopyOutputsPass, READ),
    "CorrectShapesPass": (passes.CorrectShapesPass, WRONG),
    "DequantizeRecurrentPass": (passes.DequantizeRecurrentPass, ""),
    "ExpandDefinitionsPass": (lambda: passes.ExpandDefinitionsPass(is_a("HardSwish")), SWISH),
    "FoldConstantsPass": (passes.FoldConstantsPass, RNNS),
    "FoldWeightsPass": (passes.FoldWeightsPass, RNNS),
    "FreezeDimsPass": (lambda: passes.FreezeDimsPass({"T": 4}), RNNS),
    "FreezeInitializersPass": (passes.FreezeInitializersPass, DEFAULTS),
    "InferTypesPass": (passes.InferTypesPass, UNKNOWN),
    "InlineFunctionsPass": (passes.InlineFunctionsPass, FUNCTION),
    "KeepNaNPass": (lambda: passes.KeepNaNPass(["Tanh"]), MASKED),
    "LegacyConstantsPass": (passes.LegacyConstantsPass, LEGACY),
    "LiftRecurrentPass": (passes.LiftRecurrentPass, SCANS),
    "LowerRecurrentPass": (lambda: passes.LowerRecurrentPass("scan"), GATED),
    "LowerStateOperatorsPass": (lambda: passes.LowerStateOperatorsPass("scan"), STATES),
    "NameBatchPass": (passes.NameBatchPass, STATEFUL),
    "PadLengthsPass": (lambda: passes.PadLengthsPass({"T": 8}), PADDED),
    "PlainLoopInputsPass": (passes.PlainLoopInputsPass, CARRIED),
    "RemoveNoopsPass": (passes.RemoveNoopsPass, RNNS),
    "RemoveUnusedPass": (passes.RemoveUnusedPass, UNUSED),
    "ResolveSequencesPass": (passes.ResolveSequencesPass, SEQUENCE),
    "SeparateSumsPass": (lambda: passes.SeparateSumsPass(["Tanh"]), SUMS),
    "SetInputsPass": (lambda: passes.SetInputsPass({"W": 1.0, "R": 2.0}), GATED),
    "StackSequencesPass": (passes.StackSequencesPass, APPENDED),
    "StaticShapesPass": (passes.StaticShapesPass, UNKNOWN),
    "StreamPass": (passes.StreamPass, STREAM),
    "StripPass": (passes.StripPass, NAMED),
    "TakeBranchesPass": (passes.TakeBranchesPass, BRANCHES),
    "UnfoldRowsPass": (passes.UnfoldRowsPass, FOLDED),
    "UnrollControlFlowPass": (passes.UnrollControlFlowPass, LOOPS),
    "WidenSizesPass": (passes.WidenSizesPass, FOLDED),
    "WriteScansPass": (passes.WriteScansPass, SERIES),
}

CHANGES: list[tuple[Any, str]] = [
    (type(ir.node("Neg", []).attributes), "__setitem__"),
    (ir.Node, "replace_input_with"),
    (ir.Node, "name"),
    *((type(ir.Graph([], [], nodes=[]).inputs).__base__, name) for name in ("clear", "extend")),
    *((ir.Graph, name) for name in ("append", "extend", "insert_after", "insert_before", "remove")),
    *((ir.Value, name) for name in ("const_value", "name", "shape", "type")),
]
"""What changes a model: methods, and properties that are set."""


class PlantedError(Exception):
    """The failure."""


class Changes:
    """Counts what is done to one model, and fails in the midst of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.parts: dict[int, Any] = {}
        self.made, self.fatal = 0, -1
        for owner, name in CHANGES:
            member = owner.__dict__[name]
            if isinstance(member, property):
                assert member.fset is not None
                counted = property(member.fget, self._counted(member.fset))
            else:
                counted = self._counted(member)
            monkeypatch.setattr(owner, name, counted)

    def watch(self, model: ir.Model, fatal: int = -1) -> None:
        watched = [*parts(model)]
        watched += [part.attributes for part in watched if isinstance(part, ir.Node)]
        watched += [part.inputs for part in watched if isinstance(part, ir.Graph)]
        self.parts = {id(part): part for part in watched}
        self.made, self.fatal = 0, fatal

    def _counted(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(part: Any, *arguments: Any, **options: Any) -> Any:
            if id(part) in self.parts:
                self.made += 1
                if self.made == self.fatal:
                    self.parts = {}
                    raise PlantedError
            return function(part, *arguments, **options)

        return call


def model_of(name: str) -> ir.Model:
    text = CASES[name][1]
    if not text:
        twice = QuantizedLstm().build()
        again = onnx.compose.add_prefix(twice, "again_")
        return ir.from_proto(onnx.compose.merge_models(twice, again, io_map=[]))
    ir_version = 3 if name == "LegacyConstantsPass" else 8
    local = "".join(f', "{domain}" : 1' for domain in ("local", "com.microsoft") if domain in text)
    parsed = onnx.parser.parse_model(f'<ir_version: {ir_version}, opset_import: ["" : 17{local}]>{text}')
    return ir.from_proto(parsed)


def parts(model: ir.Model) -> Iterator[Any]:
    """Graphs, nodes and values."""
    for graph in (model.graph, *(function.graph for function in model.functions.values())):
        for each in (graph, *graph.subgraphs()):
            yield each
            yield from (*each.inputs, *each.initializers.values())
        for node, _ in walk(graph):
            yield node
            yield from node.outputs


def content(model: ir.Model) -> bytes:
    data: bytes = ir.to_proto(model).SerializeToString()
    return data


def test_every_pass_has_a_case() -> None:
    assert {*CASES} == {*passes.__all__}


@pytest.mark.parametrize("name", CASES)
def test_a_failure_leaves_the_model_as_it_was(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make = CASES[name][0]
    changes = Changes(monkeypatch)
    model = model_of(name)
    before = content(model)
    changes.watch(model)
    assert make()(model).modified
    after, total = content(model), changes.made
    assert after != before
    assert total >= 2
    for fatal in {1, 2, total // 2, total - 1, total} - {0}:
        own = model_of(name)
        old = [*parts(own)]
        changes.watch(own, fatal)
        with pytest.raises(PlantedError):
            make()(own)
        assert content(own) == before
        assert [*parts(own)] == old
        assert make()(own).modified
        assert content(own) == after
