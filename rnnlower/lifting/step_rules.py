"""The rules of operators that compute with forms."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir

from rnnlower.graph.einsum import einsum_terms
from rnnlower.graph.walk import producer_of
from rnnlower.lifting.affine_forms import (
    AffineForm,
    Floats,
    NotLiftableError,
    add_forms,
    broadcast_tags,
    constant_form,
    multiply_matrix,
)
from rnnlower.lifting.equations import LOG_OF_EXP, are_equivalent
from rnnlower.recurrent.node import Activation
from rnnlower.recurrent.operators import FLOAT_TYPES, SPEC_PARAMETERS

if TYPE_CHECKING:
    from rnnlower.lifting.symbolic_evaluation import Evaluator, Rule


def _cast(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    dtype, given = e.facts.dtype(node.outputs[0]), e.facts.dtype(node.inputs[0])
    if dtype not in FLOAT_TYPES or given not in (dtype, ir.DataType.BOOL):
        raise NotLiftableError("a step casts to another type")
    return [e.form(node.inputs[0])]


def _fill(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    """Evaluate a tensor of one constant number."""
    if node.op_type == "ConstantOfShape":
        given = node.attributes.get("value")
        number = np.zeros(1) if given is None else given.as_tensor().numpy()
    else:
        form = e.form(node.inputs[0])
        if not form.is_constant or np.unique(form.constant).size != 1:
            raise NotLiftableError(f"{node.op_type} is not part of a cell")
        number = form.constant
    return [e.expand(constant_form(number.reshape(-1)[0]), (), node.outputs[0])]


def _expand(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    form, dims = e.form(node.inputs[0]), e.dims(node.inputs[0])  # type: ignore[arg-type]
    return [e.expand(form, dims, node.outputs[0])]


def _add(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    total, *rest = (e.form(value) for value in node.inputs)
    for each in rest:
        each = each.scale(-1.0) if node.op_type == "Sub" else each
        total = add_forms(total, each)
    return [total]


def _mul(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    first, second = (e.form(value) for value in node.inputs)
    product = e.atoms.multiply(first, second)
    dtype = e.facts.dtype(node.outputs[0])
    if dtype is None or not (first.is_constant or second.is_constant):
        return [product]
    # 6 times the type's 1/6 is 1.
    rounded = product.coefs.astype(dtype.numpy()).astype(np.float64)
    return [dataclasses.replace(product, coefs=np.where(rounded == 1, rounded, product.coefs))]


def _div(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    first, second = (e.form(value) for value in node.inputs)
    if not second.is_constant or not second.constant.all():
        raise NotLiftableError("a step divides by a value that is not constant")
    return [first.scale(1 / second.constant, broadcast_tags(first, second))]


def _constant_weights(e: Evaluator, value: ir.Value | None) -> Floats | None:
    """Return constant weights, which may be a part of a state that never changes."""
    constant = e.constant(value)
    if constant is not None:
        return constant.astype(np.float64)
    try:
        form = e.form(value)
    except NotLiftableError as error:
        raise NotLiftableError("the weights of a step are not constant") from error
    return form.constant if form.is_constant and not any(form.tags) else None


def _matmul(e: Evaluator, node: ir.Node, transposed: Sequence[bool] = (False, False)) -> AffineForm:
    """Multiply rows by constant weights, or weights by columns; each operand may be transposed."""
    left, right = e.constant(node.inputs[0]), _constant_weights(e, node.inputs[1])
    if right is not None and right.ndim >= 2 and math.prod(right.shape[:-2]) == 1 and not transposed[0]:
        form = e.form(node.inputs[0])
        front = max(right.ndim - max(len(form.shape), 2), 0)
        matrix = right.reshape(right.shape[-2:])
        made = multiply_matrix(form, matrix.T if transposed[1] else matrix)
        return made.broadcast_to((*(1 for _ in range(front)), *made.shape))
    if left is not None and left.ndim == 2:
        form = e.form(node.inputs[1])
        if len(form.shape) == 2 and form.shape[0 if transposed[1] else 1] == 1:
            rows = form if transposed[1] else form.transpose((1, 0))
            matrix = (left if transposed[0] else left.T).astype(np.float64)
            return multiply_matrix(rows, matrix).transpose((1, 0))
    raise NotLiftableError("the weights of a step are not constant")


def _gemm(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    made = _matmul(e, node, [node.attributes.get_int(name, 0) == 1 for name in ("transA", "transB")])
    made = made.scale(node.attributes.get_float("alpha", 1.0))
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        made = add_forms(made, e.form(node.inputs[2]).scale(node.attributes.get_float("beta", 1.0)))
    return [made]


def _einsum(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    """Evaluate a product with a constant matrix, with axes in any order."""
    operands, result = einsum_terms(node.attributes.get_string("equation", ""))
    letters = "".join(operands)
    shared = {*letters}.intersection(*operands)
    is_product = len(operands) == 2 and len(letters) == len({*letters}) + 1
    if not is_product or len(shared) != 1 or sorted({*letters} - shared) != sorted(result):
        raise NotLiftableError("Einsum is not part of a cell")
    (summed,) = shared
    forms = [*zip(map(e.form, node.inputs), operands, strict=True)]
    for (form, names), (weights, weight_names) in (forms, forms[::-1]):
        if len(weight_names) == 2 and weights.is_constant and not any(weights.tags):
            first, last = (each.replace(summed, "") for each in (names, weight_names))
            rows = _permute(form, names, first + summed)
            matrix = _permute(weights, weight_names, summed + last).constant
            return [_permute(multiply_matrix(rows, matrix), first + last, result)]
    raise NotLiftableError("the weights of a step are not constant")


def _permute(form: AffineForm, names: str, wanted: str) -> AffineForm:
    """Permute the axes of a form."""
    return form.transpose([names.index(name) for name in wanted])


def _function(name: str, e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    known = SPEC_PARAMETERS.get(name)
    alpha, beta = (None, None) if known is None else (known.alpha, known.beta)
    alpha = alpha if alpha is None else node.attributes.get_float("alpha", alpha)
    beta = beta if beta is None else node.attributes.get_float("beta", beta)
    return [e.atoms.apply(Activation(name, alpha, beta), e.form(node.inputs[0]))]


def _clip(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    bounds = [node.attributes.get_float(name, None) for name in ("min", "max")]
    for index, value in enumerate(node.inputs[1:3]):
        if value is not None:
            constant = e.constant(value)
            if constant is None:
                raise NotLiftableError("a step clips to bounds that are not constant")
            bounds[index] = float(constant.reshape(-1)[0])
    limits = zip(bounds, (-math.inf, math.inf), strict=True)
    low, high = (limit if bound is None else bound for bound, limit in limits)
    return [_clip_form(e, e.form(node.inputs[0]), low, high)]


def _clip_form(e: Evaluator, form: AffineForm, low: float, high: float) -> AffineForm:
    """Clip a form to bounds, of which the upper one comes last; a clip of a clip becomes one."""
    low = min(low, high)
    atoms, factor = e.atoms.as_activations(form) or ([], 0.0)
    functions = {e.atoms.block(atom).function for atom in atoms}
    inner = functions.pop() if factor == 1 and len(functions) == 1 else None
    if inner == Activation("Relu"):
        inner = Activation("Clip", 0.0, math.inf)
    if inner is not None and inner.name == "Clip":
        assert inner.alpha is not None and inner.beta is not None  # noqa: PT018
        low, high = max(low, min(inner.alpha, high)), min(high, max(inner.beta, low))
        form = e.atoms.arguments(atoms).reshape(form.shape, form.tags)
    if low == 0 and high not in (1, math.inf) and high > 0:
        unit = e.atoms.apply(Activation("Clip", 0.0, 1.0), form.scale(1 / high))
        return unit.scale(high)
    return e.atoms.apply(Activation("Clip", low, high), form)


def _min_max(is_low: bool, e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    forms = sorted((e.form(value) for value in node.inputs), key=lambda form: form.is_constant)
    if len(forms) != 2 or not forms[1].is_constant or np.unique(forms[1].constant).size != 1:
        raise NotLiftableError(f"{node.op_type} of two values that change is not part of a cell")
    bound = float(forms[1].constant.flat[0])
    return [_clip_form(e, forms[0], bound, math.inf) if is_low else _clip_form(e, forms[0], -math.inf, bound)]


def _log(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    """Evaluate ``log(1 + exp(x))``, which is Softplus of onnxruntime's operators."""
    form = e.form(node.inputs[0])
    minus_one = dataclasses.replace(form, constant=form.constant - 1)
    atoms, factor = e.atoms.as_activations(minus_one) or ([], 0.0)
    if factor == 1 and all(e.atoms.block(atom).function == Activation("Exp") for atom in atoms):
        argument = e.atoms.arguments(atoms).reshape(form.shape, form.tags)
        return [e.atoms.apply(LOG_OF_EXP, argument)]
    raise NotLiftableError("Log is not part of a cell")


def _where(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    """Evaluate ``x > alpha ? x : 0``, which is ThresholdedRelu, or a choice of equals (PyTorch's lerp)."""
    condition, kept, other = node.inputs
    test = producer_of(condition, "Greater")
    if test is not None and test.inputs[0] is kept:
        threshold, rest = e.constant(test.inputs[1]), e.constant(other)
        if threshold is not None and threshold.size == 1 and rest is not None and not rest.any():
            function = Activation("ThresholdedRelu", float(threshold.reshape(-1)[0]))
            return [e.atoms.apply(function, e.form(kept))]
    if e.facts.dims(kept) == e.facts.dims(other) == e.facts.dims(node.outputs[0]) is not None:
        first, second = e.form(kept), e.form(other)
        if first.tags == second.tags and are_equivalent(e.atoms, [(first, second)]):
            return [first]
    raise NotLiftableError(
        'a step chooses between values, but not "the new one if step < length, else the old"'
    )


def _lstm(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    """Evaluate an LSTM of one step, which PyTorch's script exporter writes for an LSTMCell."""
    inputs: list[ir.Value | None] = list(node.inputs)
    X, W, R, B, lengths, h, c, P = inputs + [None] * (8 - len(inputs))
    dims, weights = None if X is None else e.dims(X), [e.constant(value) for value in (W, R, B)]
    # onnxruntime's optimizer writes every default.
    defaults = {"hidden_size": None, "direction": "forward", "input_forget": 0, "layout": 0}
    given = {name: attribute.value for name, attribute in node.attributes.items()} | {"hidden_size": None}
    if (
        not given.items() <= defaults.items()
        or lengths is not None
        or P is not None
        or h is None
        or c is None
    ):
        raise NotLiftableError("an LSTM in a step is more than a cell")
    if dims is None or dims[0] != 1 or any(array is None for array in weights):
        raise NotLiftableError("an LSTM in a step has several steps, or weights that are not constant")
    w, r, b = (array[0].astype(np.float64) for array in weights if array is not None)
    total = add_forms(multiply_matrix(e.form(X), w.T), multiply_matrix(e.form(h), r.T))
    total = dataclasses.replace(total, constant=total.constant + b.reshape(2, -1).sum(axis=0))
    gates = []
    for number, name in enumerate(("Sigmoid", "Sigmoid", "Sigmoid", "Tanh")):
        part = total.rearrange(lambda array, at=number: np.split(array, 4, -1)[at], total.tags)  # type: ignore[misc]
        gates.append(e.atoms.apply(Activation(name), part))
    i, o, f, g = gates
    cell = add_forms(e.atoms.multiply(f, e.form(c)), e.atoms.multiply(i, g))
    hidden = e.atoms.multiply(o, e.atoms.apply(Activation("Tanh"), cell))
    Y = hidden.rearrange(lambda array: np.expand_dims(array, 0), ("", *hidden.tags))
    return [Y, hidden, cell]


_FUNCTIONS = ("Elu", "Exp", "HardSigmoid", "LeakyRelu", "Relu", "Sigmoid", "Softplus", "Softsign", "Tanh")

RULES: Mapping[str, Rule] = {
    "Add": _add,
    "Cast": _cast,
    "CastLike": _cast,
    "Clip": _clip,
    "ConstantOfShape": _fill,
    "Div": _div,
    "Einsum": _einsum,
    "Expand": _expand,
    "Tile": _fill,
    "Gemm": _gemm,
    "Identity": lambda e, node: [e.form(node.inputs[0])],
    "LSTM": _lstm,
    "Log": _log,
    "MatMul": lambda e, node: [_matmul(e, node)],
    "Max": partial(_min_max, True),
    "Min": partial(_min_max, False),
    "Mul": _mul,
    "Neg": lambda e, node: [e.form(node.inputs[0]).scale(-1.0)],
    "Sub": _add,
    "Sum": _add,
    "ThresholdedRelu": partial(_function, "ThresholdedRelu"),
    "Where": _where,
    **{name: partial(_function, name) for name in _FUNCTIONS},
}
"""The rule for each operator that computes."""
