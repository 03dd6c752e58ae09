"""The fused operators of onnxruntime's optimizer, expressed by those of the standard.

The operators are those of `onnxruntime/core/graph/contrib_ops`, as the CPU kernels compute them.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from rnnlower.graph.evaluation import Array
from rnnlower.lowering.fallbacks.arithmetic import Fallback, emit_scaled, gelu
from rnnlower.recurrent.operators import SPEC_PARAMETERS

if TYPE_CHECKING:
    from rnnlower.lowering.emitter import Emitter

_ACTIVATIONS = {*SPEC_PARAMETERS} - {"Affine", "ScaledTanh", "ThresholdedRelu"}
"""The operators that may follow a product."""


def _emit_activation(
    e: Emitter, x: ir.Value, name: str, parameters: Sequence[float | None]
) -> ir.Value | None:
    if not name:
        return x
    if name == "Clip" and len(parameters) == 2:
        low, high = parameters
        return None if low is None or high is None else e.clip(x, low, high)
    if name not in _ACTIVATIONS:
        return None
    defaults = SPEC_PARAMETERS[name]
    numbers = itertools.zip_longest(("alpha", "beta"), (defaults.alpha, defaults.beta), parameters)
    given: dict[str, Any] = {
        key: default if own is None else own for key, default, own in numbers if default is not None
    }
    return e.op(name, x, **given)


def _fused_conv(
    e: Emitter,
    x: ir.Value,
    weights: ir.Value,
    bias: ir.Value | None = None,
    addend: ir.Value | None = None,
    *,
    activation: str = "",
    activation_params: Sequence[float] = (),
    **conv: Any,
) -> ir.Value | None:
    made = e.op("Conv", x, weights, *([] if bias is None else [bias]), **conv)
    made = made if addend is None else e.op("Add", made, addend)
    return _emit_activation(e, made, activation, activation_params)


def _fused_gemm(
    e: Emitter,
    a: ir.Value,
    b: ir.Value,
    c: ir.Value | None = None,
    *,
    activation: str = "",
    activation_alpha: float | None = None,
    activation_beta: float | None = None,
    activation_gamma: float | None = None,
    **gemm: Any,
) -> ir.Value | None:
    # No activation here reads activation_gamma.
    if c is None and e.opset < 11:
        c = e.scalar(0.0)
    made = e.op("Gemm", a, b, *([] if c is None else [c]), **gemm)
    return _emit_activation(e, made, activation, [activation_alpha, activation_beta])


def _fused_matmul(
    e: Emitter,
    a: ir.Value,
    b: ir.Value,
    *,
    alpha: float = 1.0,
    transA: int = 0,
    transB: int = 0,
    transBatchA: int = 0,
    transBatchB: int = 0,
) -> ir.Value | None:
    left, right = _transpose_operand(e, a, transA, transBatchA), _transpose_operand(e, b, transB, transBatchB)
    return None if left is None or right is None else emit_scaled(e, e.op("MatMul", left, right), alpha)


def _transpose_operand(e: Emitter, x: ir.Value, transposed: int, batch_last: int) -> ir.Value | None:
    if not transposed and not batch_last:
        return x
    shape = e.shape(x)
    if shape is None or len(shape) < 2:
        return None
    perm = list(range(len(shape)))
    if batch_last:
        perm = [*perm[1:-1], 0, perm[-1]]
    if transposed:
        perm = [*perm[:-2], perm[-1], perm[-2]]
    return e.transpose(x, perm)


def _rms_normalization(
    e: Emitter, x: ir.Value, scale: ir.Value, *, axis: int = -1, epsilon: float = 1e-5, stash_type: int = 1
) -> list[ir.Value] | None:
    made = _emit_normalized(e, x, scale, axis=axis, epsilon=epsilon, stash_type=stash_type, centered=False)
    return None if made is None else [made[0], made[2]]


def _emit_normalized(
    e: Emitter,
    x: ir.Value,
    scale: ir.Value,
    bias: ir.Value | None = None,
    *,
    axis: int = -1,
    epsilon: float = 1e-5,
    stash_type: int = 1,
    centered: bool = True,
) -> list[ir.Value] | None:
    """Return the normalized value, the mean, and the inverse of the standard deviation."""
    rank = e.shape(x)
    if axis >= 0 and rank is None:
        return None
    axes = list(range(axis if axis < 0 else axis - len(rank or ()), 0))
    outer = e.dtype
    if outer in (ir.DataType.FLOAT16, ir.DataType.BFLOAT16) and stash_type == ir.DataType.FLOAT:
        e = e.with_dtype(ir.DataType.FLOAT)
        x = e.cast(x, ir.DataType.FLOAT)
    mean = e.with_axes("ReduceMean", x, axes, since=18, keepdims=1)
    apart = e.op("Sub", x, mean) if centered else x
    variance = e.with_axes("ReduceMean", e.op("Mul", apart, apart), axes, since=18, keepdims=1)
    inverse = e.op("Reciprocal", e.op("Sqrt", e.op("Add", variance, e.scalar(epsilon))))
    made = e.op("Mul", apart, inverse)
    made = e.op("Mul", made if e.dtype == outer else e.cast(made, outer), scale)
    return [made if bias is None else e.op("Add", made, bias), mean, inverse]


def _skip_normalization(
    norm: str,
    e: Emitter,
    x: ir.Value,
    skip: ir.Value,
    gamma: ir.Value,
    *biases: ir.Value | None,
    epsilon: float = 1e-12,
) -> list[ir.Value] | None:
    beta = biases[0] if norm == "LayerNormalization" and biases else None
    bias = biases[-1] if len(biases) > (norm == "LayerNormalization") else None
    total = e.op("Add", x, skip)
    total = total if bias is None else e.op("Add", total, bias)
    if norm == "LayerNormalization" and e.opset >= 17 and e.has(norm):
        given = [total, gamma] if beta is None else [total, gamma, beta]
        made = [*e.ops(norm, *given, outputs=3, axis=-1, epsilon=epsilon)]
        return [*made, total]
    found = _emit_normalized(e, total, gamma, beta, epsilon=epsilon, centered=norm == "LayerNormalization")
    return None if found is None else [*found, total]


def _matmul_nbits(
    e: Emitter,
    a: ir.Value,
    packed: ir.Value,
    scales: ir.Value,
    zeros: ir.Value | None = None,
    groups: ir.Value | None = None,
    bias: ir.Value | None = None,
    *,
    K: int,
    N: int,
    block_size: int,
    bits: int = 4,
    accuracy_level: int = 0,
    weight_prepacked: int = 0,
) -> ir.Value | None:
    stored, scale, zero = e.content(packed), e.content(scales), e.content(zeros)
    if stored is None or scale is None or not stored.size or weight_prepacked or bits not in (2, 4, 8):
        return None
    if (zero is None) != (zeros is None) or groups is not None:
        return None
    weights = _unpack(stored, bits).reshape(N, -1, block_size).astype(np.float32)
    blocks = weights.shape[1]
    if zero is None:
        zero = np.full(1, 2 ** (bits - 1))
    elif zero.dtype == np.uint8:
        zero = _unpack(zero.reshape(N, -1), bits)[:, :blocks]
    weights -= zero.reshape(-1, 1 if zero.size == 1 else blocks, 1).astype(np.float32)
    weights *= scale.reshape(N, blocks, 1).astype(np.float32)
    matrix = weights.reshape(N, -1)[:, :K].T
    made = e.op("MatMul", a, e.constant(np.ascontiguousarray(matrix, scale.dtype)))
    return made if bias is None else e.op("Add", made, bias)


def _unpack(stored: Array, bits: int) -> Array:
    """Return numbers of some bits, the lowest bits of a byte first, along the last axis."""
    numbers: Array = (stored[..., None] >> np.arange(0, 8, bits, dtype=np.uint8)) & (2**bits - 1)
    return numbers.reshape(*stored.shape[:-1], -1)


def _attention(
    e: Emitter,
    x: ir.Value,
    weights: ir.Value,
    bias: ir.Value | None = None,
    mask: ir.Value | None = None,
    past: ir.Value | None = None,
    addend: ir.Value | None = None,
    *,
    num_heads: int,
    qkv_hidden_sizes: Sequence[int] = (),
    scale: float = 0.0,
    mask_filter_value: float = -10000.0,
    unidirectional: int = 0,
) -> ir.Value | None:
    form, width = e.shape(mask), (e.shape(weights) or (None,))[-1]
    if (
        width is None
        or past is not None
        or unidirectional
        or (mask is not None and (form is None or len(form) not in (2, 3)))
    ):
        return None
    sizes = list(qkv_hidden_sizes) or [width // 3] * 3
    projected = e.op("MatMul", x, weights)
    projected = projected if bias is None else e.op("Add", projected, bias)
    parts = [
        e.op("Reshape", part, e.integers(0, 0, num_heads, size // num_heads), since=5)
        for part, size in zip(e.split(projected, sizes, 2), sizes, strict=True)
    ]
    query, key, value = (
        e.transpose(part, perm)
        for part, perm in zip(parts, ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]), strict=True)
    )
    scores = emit_scaled(e, e.op("MatMul", query, key), scale or (sizes[0] // num_heads) ** -0.5)
    scores = scores if addend is None else e.op("Add", scores, addend)
    if mask is not None and form is not None:
        nothing = e.tensor_constant(ir.tensor(np.array(0, np.int32)))
        hidden = e.op("Sub", e.scalar(1.0), e.cast(e.op("Greater", mask, nothing), e.dtype))
        hidden = e.with_axes("Unsqueeze", hidden, [1, 2] if len(form) == 2 else [1])
        scores = e.op("Add", scores, emit_scaled(e, hidden, mask_filter_value))
    made = e.op("MatMul", e.op("Softmax", scores, axis=3), value)
    return e.op("Reshape", e.transpose(made, [0, 2, 1, 3]), e.integers(0, 0, sizes[2]), since=5)


FUSED: Mapping[str, Sequence[Fallback]] = {
    "LayerNormalization": [_emit_normalized],
    "SimplifiedLayerNormalization": [_rms_normalization],
    "com.microsoft.Attention": [_attention],
    "com.microsoft.BiasGelu": [lambda e, x, bias: gelu(e, e.op("Add", x, bias))],
    "com.microsoft.FastGelu": [
        lambda e, x, bias=None: gelu(e, x if bias is None else e.op("Add", x, bias), approximate="tanh")
    ],
    "com.microsoft.FusedConv": [_fused_conv],
    "com.microsoft.FusedGemm": [_fused_gemm],
    "com.microsoft.FusedMatMul": [_fused_matmul],
    "com.microsoft.Gelu": [lambda e, x: gelu(e, x)],
    "com.microsoft.MatMulNBits": [_matmul_nbits],
    "com.microsoft.QuickGelu": [
        lambda e, x, *, alpha=1.702: e.op("Mul", x, e.op("Sigmoid", emit_scaled(e, x, alpha)))
    ],
    "com.microsoft.SkipLayerNormalization": [partial(_skip_normalization, "LayerNormalization")],
    "com.microsoft.SkipSimplifiedLayerNormalization": [
        partial(_skip_normalization, "SimplifiedLayerNormalization")
    ],
    "com.microsoft.TransposeMatMul": [_fused_matmul],
}
