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
    return [_find_sigmoid(e, total)]


def _find_sigmoid(e: Evaluator, form: AffineForm) -> AffineForm:
    """Return ``tanh(x) / 2 + 1 / 2`` as the Sigmoid of ``2 x``, any other form as it is."""
    if not (form.constant == 0.5).all():
        return form
    scaled = dataclasses.replace(form, coefs=form.coefs * 2, constant=form.constant * 2)
    argument = _argument_after_one(e, "Tanh", scaled)
    return form if argument is None else e.atoms.apply(Activation("Sigmoid"), argument.scale(2.0))


def _mul(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    first, second = (e.form(value) for value in node.inputs)
    product = e.atoms.multiply(first, second)
    dtype = e.facts.dtype(node.outputs[0])
    if dtype is None or not (first.is_constant or second.is_constant):
        return [product]
    # 6 times the type's 1/6 is 1.
    with np.errstate(over="ignore"):
        rounded = product.coefs.astype(dtype.numpy()).astype(np.float64)
    product = dataclasses.replace(product, coefs=np.where(rounded == 1, rounded, product.coefs))
    return [_find_sigmoid(e, product)]


def _div(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    """Divide by a constant, or by ``1 + |x|``, which makes ``x`` Softsign of PyTorch's exporters."""
    first, second = (e.form(value) for value in node.inputs)
    if second.is_constant and second.constant.all():
        return [first.scale(1 / second.constant, broadcast_tags(first, second))]
    argument = _argument_after_one(e, "Abs", second)
    if (
        argument is not None
        and (argument.tags, argument.shape) == (first.tags, first.shape)
        and are_equivalent(e.atoms, [(first, argument)])
    ):
        return [e.atoms.apply(Activation("Softsign"), first)]
    raise NotLiftableError("a step divides by a value that is not constant")


def _argument_after_one(e: Evaluator, function: str, form: AffineForm) -> AffineForm | None:
    """Return ``x`` of a form ``1 + function(x)``."""
    minus_one = dataclasses.replace(form, constant=form.constant - 1)
    atoms, factor = e.atoms.as_activations(minus_one) or ([], 0.0)
    if factor != 1 or any(e.atoms.block(atom).function != Activation(function) for atom in atoms):
        return None
    return e.atoms.arguments(atoms).reshape(form.shape, form.tags)


def _batch_normalization(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    """Evaluate a normalization by known statistics: a factor and a constant for each channel."""
    form, arrays = e.form(node.inputs[0]), [e.constant(value) for value in node.inputs[1:5]]
    is_trained = node.attributes.get_int("training_mode", 0) == 1 or len(node.outputs) > 1
    if is_trained or any(array is None or array.ndim != 1 for array in arrays):
        raise NotLiftableError("the statistics of a BatchNormalization are not constant")
    if len(form.tags) < 2 or form.tags[1]:
        raise NotLiftableError("a BatchNormalization has no channels, or rows in their place")
    scale, bias, mean, variance = (array.astype(np.float64) for array in arrays if array is not None)
    factor = scale / np.sqrt(variance + node.attributes.get_float("epsilon", 1e-5))
    shape = (-1, *(1 for _ in form.shape[2:]))
    shift = constant_form((bias - mean * factor).reshape(shape))
    return [add_forms(form.scale(factor.reshape(shape)), shift)]


def _conv(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    """Evaluate a Conv whose kernel is one element wide: a product with weights."""
    form, weights = e.form(node.inputs[0]), e.constant(node.inputs[1])
    moves = {*node.attributes.get_ints("strides", ()), 1} != {1} or any(node.attributes.get_ints("pads", ()))
    if weights is None or math.prod(weights.shape[2:]) != 1 or moves:
        raise NotLiftableError("Conv is not part of a cell")
    groups, rank = node.attributes.get_int("group", 1), weights.ndim
    blocks = weights.reshape(groups, -1, weights.shape[1]).transpose(0, 2, 1)
    last = (0, *range(2, rank), 1)
    made = multiply_matrix(form.transpose(last), _block_diagonal(blocks))
    made = made.transpose([last.index(axis) for axis in range(rank)])
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        bias = e.form(node.inputs[2])
        made = add_forms(made, bias.reshape((-1, *(1 for _ in range(rank - 2))), ("",) * (rank - 1)))
    return [made]


def _block_diagonal(blocks: Floats) -> Floats:
    """Return the matrix with matrices ``[groups, rows, columns]`` on its diagonal."""
    groups, rows, columns = blocks.shape
    matrix = np.zeros((groups, rows, groups, columns))
    matrix[np.arange(groups), :, np.arange(groups)] = blocks
    return matrix.reshape(groups * rows, groups * columns)


def _tile(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    repeats = e.constant(node.inputs[1])
    if repeats is None:
        return _fill(e, node)
    form = e.form(node.inputs[0])
    if any(tag and count != 1 for tag, count in zip(form.tags, repeats, strict=True)):
        return _fill(e, node)
    return [form.rearrange(lambda array: np.tile(array, repeats), form.tags)]


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
    if right is not None and right.ndim == 3 and not any(transposed):
        form = e.form(node.inputs[0])
        rank = len(form.shape)
        if rank > 2 and form.shape[-3] == len(right):
            # The axis of groups comes after that of rows.
            perm = (*range(rank - 3), rank - 2, rank - 3, rank - 1)
            return _multiply_groups(form.transpose(perm), right).transpose(perm)
    if left is not None and left.ndim == 2:
        form = e.form(node.inputs[1])
        if len(form.shape) == 2 and form.shape[0 if transposed[1] else 1] == 1:
            rows = form if transposed[1] else form.transpose((1, 0))
            matrix = (left if transposed[0] else left.T).astype(np.float64)
            return multiply_matrix(rows, matrix).transpose((1, 0))
    raise NotLiftableError("the weights of a step are not constant")


def _gemm(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    made = _matmul(e, node, [node.attributes.get_int(name, 0) != 0 for name in ("transA", "transB")])
    made = made.scale(node.attributes.get_float("alpha", 1.0))
    if len(node.inputs) > 2 and node.inputs[2] is not None:
        made = add_forms(made, e.form(node.inputs[2]).scale(node.attributes.get_float("beta", 1.0)))
    return [made]


def _einsum(e: Evaluator, node: ir.Node) -> Sequence[AffineForm]:
    """Evaluate a product with a constant matrix, or one matrix for each group, with axes in any order."""
    forms = [e.form(each) for each in node.inputs]
    ranks = [len(form.shape) for form in forms]
    operands, result = einsum_terms(node.attributes.get_string("equation", ""), ranks)
    letters = "".join(operands)
    shared = {*letters}.intersection(*operands)
    summed, groups = "".join(shared - {*result}), "".join(shared & {*result})
    is_product = len(operands) == 2 and len(letters) == len({*letters}) + len(shared)
    is_product &= len(summed) == 1 and len(groups) <= 1
    if not is_product or sorted({*letters} - {summed}) != sorted(result):
        raise NotLiftableError("Einsum is not part of a cell")
    pairs = [*zip(forms, operands, strict=True)]
    for (form, names), (weights, weight_names) in (pairs, pairs[::-1]):
        if len(weight_names) == 2 + len(groups) and weights.is_constant and not any(weights.tags):
            first, last = ("".join(c for c in each if c not in shared) for each in (names, weight_names))
            rows = _permute(form, names, first + groups + summed)
            blocks = _permute(weights, weight_names, groups + summed + last).constant
            made = _multiply_groups(rows, blocks.reshape(-1, *blocks.shape[-2:]))
            return [_permute(made, first + groups + last, result)]
    raise NotLiftableError("the weights of a step are not constant")


def _multiply_groups(form: AffineForm, blocks: Floats) -> AffineForm:
    """Multiply a form ``[..., groups, size]`` by a matrix for each group; one group needs no axis."""
    groups = len(blocks)
    if groups == 1:
        return multiply_matrix(form, blocks[0])
    if form.shape[-2] != groups:
        raise NotLiftableError("the shapes in a step do not match")
    *lead, last = form.tags[:-1]
    flat = form.reshape((*form.shape[:-2], -1), (*lead, last))
    made = multiply_matrix(flat, _block_diagonal(blocks))
    return made.reshape((*form.shape[:-1], blocks.shape[-1]), form.tags)


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
    argument = _argument_after_one(e, "Exp", e.form(node.inputs[0]))
    if argument is not None:
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
    reason = 'a step chooses between values, but not "the new one if step < length, else the old"'
    if e.facts.is_zero(kept) or e.facts.is_zero(other):
        reason += ", and no operator sets a state to zero between its steps, as flags that restart rows do"
    raise NotLiftableError(reason)


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


_FUNCTIONS = (
    *("Abs", "Elu", "Exp", "HardSigmoid", "LeakyRelu", "Relu"),
    *("Sigmoid", "Softplus", "Softsign", "Tanh"),
)

RULES: Mapping[str, Rule] = {
    **dict.fromkeys(("Add", "Sub", "Sum"), _add),
    "BatchNormalization": _batch_normalization,
    **dict.fromkeys(("Cast", "CastLike"), _cast),
    "Clip": _clip,
    "ConstantOfShape": _fill,
    "Conv": _conv,
    "Div": _div,
    "Einsum": _einsum,
    "Expand": _expand,
    "Tile": _tile,
    "Gemm": _gemm,
    "Identity": lambda e, node: [e.form(node.inputs[0])],
    "LSTM": _lstm,
    "Log": _log,
    "MatMul": lambda e, node: [_matmul(e, node)],
    "Max": partial(_min_max, True),
    "Min": partial(_min_max, False),
    "Mul": _mul,
    "Neg": lambda e, node: [e.form(node.inputs[0]).scale(-1.0)],
    "ThresholdedRelu": partial(_function, "ThresholdedRelu"),
    "Where": _where,
    **{name: partial(_function, name) for name in _FUNCTIONS},
}
"""The rule for each operator that computes."""
