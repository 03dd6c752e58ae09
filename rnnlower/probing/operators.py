"""Which operators a runtime has, in which forms, types and opsets."""

from __future__ import annotations

import collections
import contextlib
import functools
import io
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import helper

from rnnlower.engines.reference import evaluate
from rnnlower.passes.pipeline import LoweringOptions, lower_model
from rnnlower.probing.asking import Asker, Question, question
from rnnlower.probing.forms import FORMS, RANKED, opset_question, rank_question, split_question
from rnnlower.probing.recurrent import Node, node_question
from rnnlower.recurrent.operators import RECURRENT_OPS
from rnnlower.targets.target import CONTROL_FLOW

__all__ = ["control_flow", "dtypes", "is_dynamic", "limits", "operators", "opset_range"]

# Tried at the first of these that has the operator in the form of the case.
_OPSETS = (13, 17, 18, 20, 21, 22, 23, 24, 25, 26)
_CASES_AN_OPERATOR = 3
_LARGEST_CASE = 20_000
_FLOATS = ("float16", "float64")
_INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
_SPLITS = (2, 9, 50, 200)


def opset_range(asker: Asker) -> list[int]:
    """The first and the last opset that it takes, around opset 13; nothing if it does not take that."""
    known = range(7, _OPSETS[-1] + 1)
    right = [opset for opset in known if asker.right(f"opset {opset}", opset_question, opset)]
    around = [opset for opset in right if all(o in right for o in range(min(opset, 13), max(opset, 13)))]
    return [min(around), max(around)] if 13 in right else []


def operators(asker: Asker, last: int) -> list[str]:
    """The operators of which a form or a node test of ONNX is right, up to an opset."""
    formed = {form.op_type for form in FORMS if form.opset <= last and asker.right(str(form), form.question)}

    def has(op_type: str) -> bool:
        fitting = [(name, case) for name, case, opset in _node_cases().get(op_type, ()) if opset <= last]
        return op_type in formed or any(asker.right(name, _as_it_is, case) for name, case in fitting)

    return [
        name
        for name in sorted({*_node_cases(), *formed})
        if name not in (*RECURRENT_OPS, *CONTROL_FLOW) and has(name)
    ]


def _as_it_is(made: Question) -> Question:
    return made


@functools.cache
def _node_cases() -> Mapping[str, Sequence[tuple[str, Question, int]]]:
    """Questions of the tests that onnx has of each operator: the smallest, of float32 where there is one."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    found: dict[str, list[tuple[tuple[bool, bool, int], str, Any]]] = collections.defaultdict(list)
    case: Any
    for case in cases:
        arrays = [array for side in case.data_sets[0] for array in side]
        plain = all(
            isinstance(array, np.ndarray | np.generic) and array.dtype.kind in "fiub" for array in arrays
        )
        size = sum(array.size for array in arrays) if plain else 0
        if len(case.model.graph.node) == 1 and plain and 0 < size < _LARGEST_CASE and arrays:
            node = case.model.graph.node[0]
            if not node.domain and len(arrays[0].shape) <= 4:
                floats = all(array.dtype in (np.float32, np.int64, np.bool_) for array in arrays)
                plain_rank = len(arrays[0].shape) in (2, 3)
                found[node.op_type].append(((not floats, not plain_rank, size), case.name, case))
    made = {}
    for op_type, sized in found.items():
        questions: list[tuple[str, Question, int]] = []
        for _, name, case in sorted(sized, key=lambda entry: entry[:2]):
            if len(questions) < _CASES_AN_OPERATOR:
                questions += _case_questions(name, case)
        made[op_type] = questions
    return made


def _case_questions(name: str, case: Any) -> Iterator[tuple[str, Question, int]]:
    """The test at the first opset that has its form; shapes, axes and the like are constants."""
    node = case.model.graph.node[0]
    inputs = dict(zip([name for name in node.input if name], case.data_sets[0][0], strict=False))
    outputs = dict(zip([name for name in node.output if name], case.data_sets[0][1], strict=False))
    others = {name for index, name in enumerate(inputs) if index and inputs[name].dtype == np.int64}
    for opset in _OPSETS:
        try:
            asked = question([node], inputs, list(outputs), opset, others, outputs)
        except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError, TypeError, ValueError):
            continue
        yield f"{name} at opset {opset}", asked, opset
        return


def limits(asker: Asker, ops: Sequence[str], opsets: Sequence[int]) -> list[dict[str, Any]]:
    """The limits of single operators, without their sources."""
    found: dict[str, dict[str, Any]] = collections.defaultdict(dict)
    for form in FORMS:
        if form.op_type not in ops or not opsets[0] <= form.opset <= opsets[1]:
            continue
        if asker.right(str(form), form.question):
            continue
        key, what = form.limit
        limit = found[form.op_type]
        if key == "attributes":
            limit.setdefault("attributes", {})[what[0]] = [what[1]]
        elif key == "versions":
            limit.setdefault("versions", _versions(form.op_type)).remove(what)
        else:
            limit.setdefault(key, []).append(what)
    if "Split" in ops:
        most = _most(asker, "Split into {}", split_question, _SPLITS)
        if most < _SPLITS[-1]:
            found["Split"]["max_outputs"] = most
    for op_type in RANKED:
        if op_type in ops:
            ask = functools.partial(rank_question, op_type)
            rank = _most(asker, f"{op_type} of rank {{}}", ask, (3, 4, 5, 6))
            if rank < 6:
                found[op_type]["max_rank"] = rank
    # An operator of which no version is right is none that the runtime has.
    return [
        {"ops": [op_type], **limit} for op_type, limit in sorted(found.items()) if limit.get("versions", 1)
    ]


def _versions(op_type: str) -> list[int]:
    schemas = onnx.defs.get_all_schemas_with_history()
    return sorted(
        schema.since_version for schema in schemas if schema.name == op_type and schema.domain == ""
    )


def _most(asker: Asker, words: str, make: Any, numbers: Sequence[int]) -> int:
    """The last of the numbers up to which it is right; the first is taken for granted."""
    most = numbers[0]
    for number in numbers:
        if not asker.right(words.format(number), make, number):
            break
        most = number
    return most


def dtypes(asker: Asker) -> list[str]:
    """The types of data that it computes with; float32 and int64, of shapes, are taken for granted."""
    tried = [("MatMul", _FLOATS), ("Add", _INTEGERS)]
    right = [
        dtype
        for op_type, names in tried
        for dtype in names
        if asker.right(f"{op_type} of {dtype}", _typed, op_type, dtype)
    ]
    # bool is what comparisons give, rather than a model's input.
    right += ["bool"] if asker.right("Not between Casts", _bools) else []
    return sorted({*right, "float32", "int64"})


def _bools() -> Question:
    to_bool = helper.make_node("Cast", ["X"], ["x"], to=onnx.TensorProto.BOOL)
    to_float = helper.make_node("Cast", ["y"], ["Y"], to=onnx.TensorProto.FLOAT)
    nodes = [to_bool, helper.make_node("Not", ["x"], ["y"]), to_float]
    return question(nodes, {"X": np.array([0, 1, 1, 0], np.float32)}, ["Y"], 14)


def _typed(op_type: str, dtype: str) -> Question:
    """An operator of data of this type, in and out."""
    kind = ir.DataType.from_numpy(np.dtype(dtype))
    # Small integers, which every type holds exactly.
    x, w = (np.array(rows).astype(kind.numpy()) for rows in ([[0, 1, 2], [1, 0, 3]], [[1, 0, 1]] * 3))
    y = w + w if op_type == "Add" else x @ w
    feeds = {"X": w if op_type == "Add" else x, "W": w}
    graph = helper.make_graph(
        [helper.make_node(op_type, ["X", "W"], ["Y"])],
        "question",
        [helper.make_tensor_value_info(name, kind, feeds[name].shape) for name in feeds],
        [helper.make_tensor_value_info("Y", kind, y.shape)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 14)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    return Question(model, [(feeds, {"Y": y})])


def is_dynamic(asker: Asker) -> bool:
    """Whether sizes may be symbols: one loaded model runs at two of them."""
    return asker.right("open sizes", _open, ("batch", "time"), "unroll-free")


def control_flow(asker: Asker, dynamic: bool) -> dict[str, Any]:
    """The table ``control_flow``, without its source."""
    ops = ["If"] if asker.right("If", _if) else []
    plain, both = Node("LSTM"), Node("LSTM", "bidirectional")
    right = {
        (form, node.direction): asker.right(f"{form}: {node}", _lowered, node, form)
        for form in ("loop", "scan")
        for node in (plain, both)
    }
    ops += [form.capitalize() for form in ("loop", "scan") if right[form, "forward"]]
    table: dict[str, Any] = {"ops": ops}
    if any(right[form, "forward"] and not right[form, "bidirectional"] for form in ("loop", "scan")):
        table["apart"] = True
    if dynamic and {"Loop", "Scan"} <= {*ops} and not asker.right("open Scan", _open, ("time",), "scan"):
        table["dynamic"] = "Loop"
    return table


def _lowered(node: Node, form: str) -> Question:
    asked = node_question(node)
    model = ir.from_proto(asked.model)
    lower_model(model, LoweringOptions(form))
    return Question(ir.to_proto(model), asked.trials)


def _open(names: Sequence[str], form: str) -> Question:
    if form == "scan":
        return _lowered(Node("LSTM", open=frozenset(names)), form)
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13]>
        question (float[time, batch, 4] X) => (float[time, batch, 4] Y)
        <float[4, 4] W = {1, 2, 3, 4, 4, 3, 2, 1, 0, 1, 0, 1, -1, 2, -2, 1}, float[4] b = {1, 2, 3, 4}>
        { A = MatMul (X, W) C = Add (A, b) D = Sigmoid (C) Y = Mul (D, X) }
    """)
    rng = np.random.default_rng(0)
    fed = [{"X": rng.standard_normal(shape).astype(np.float32)} for shape in ((3, 2, 4), (5, 1, 4))]
    return Question(model, [(feeds, evaluate(model, feeds)) for feeds in fed])


def _if() -> Question:
    model = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["" : 13]>
        question (float[1] C, float[2, 4] X) => (float[2, 4] Y)
        <float[1] zero = {0}>
        {
            c = Greater (C, zero)
            Y = If (c) <then_branch = plus () => (float[2, 4] p) { p = Add (X, X) },
                        else_branch = minus () => (float[2, 4] m) { m = Neg (X) }>
        }
    """)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    fed = [{"C": np.array([sign], np.float32), "X": x} for sign in (1, -1)]
    return Question(model, [(feeds, evaluate(model, feeds)) for feeds in fed])
