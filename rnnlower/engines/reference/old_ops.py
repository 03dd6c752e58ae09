"""Older operator versions that onnx's reference evaluator lacks or computes wrong.

Covered: for opset 1 to 6 the arithmetic and logic with ``broadcast`` and ``axis``, Gemm, PRelu, Cast,
Clip, Concat, Reshape, Split, Tile, Dropout and Selu; up to opset 8 Upsample (nearest, whole factors); up to
opset 12 Softmax, LogSoftmax and Hardmax (which flatten to two dimensions); up to opset 13 BatchNormalization
(which trains unless is_test is set, and from 7 on if it has more outputs than Y); DequantizeLinear up to
opset 18; AveragePool up to 6 and RoiAlign up to 15; at every opset Conv, ConvTranspose and MaxPool.

Not covered, and refused by the evaluator: LpPool-1 and GlobalLpPool-1, MaxRoiPool, Upsample with other modes
or fractions, Resize-10, Multinomial, and the experimental operators (ATen, Crop, ImageScaler ...).

Add an operator as a function with `_register`, or as a row of :data:`OLD_OPS`: first and last opset, class.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from onnx import TensorProto
from onnx.defs import get_schema
from onnx.helper import tensor_dtype_to_np_dtype
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_average_pool import AveragePool_7
from onnx.reference.ops.op_hardmax import Hardmax
from onnx.reference.ops.op_max_pool import MaxPool
from onnx.reference.ops.op_roi_align import RoiAlign
from onnx.reference.ops.op_softmax import Softmax

from rnnlower.engines.reference.activation_functions import Array
from rnnlower.errors import UnsupportedModelError


class ConvTranspose(OpRun):  # type: ignore[misc,unused-ignore]
    """ConvTranspose of every version: onnx's own visits each element in Python, and computes groups wrong.

    Copies of the image, one for each place of the kernel, meet the weights in one product; so in Conv.
    """

    op_schema = get_schema("ConvTranspose", 11, "")

    def _run(self, X: Array, W: Array, B: Array | None = None, **attributes: Any) -> tuple[Array]:
        sizes, kernel, ones = X.shape[2:], W.shape[2:], [1] * (X.ndim - 2)
        strides, dilations = attributes["strides"] or ones, attributes["dilations"] or ones
        extra = attributes["output_padding"] or [0] * len(ones)
        grown = [(n - 1) * s + (k - 1) * d + 1 for n, s, k, d in _zip(sizes, strides, kernel, dilations)]
        full = [n + e for n, e in _zip(grown, extra)]
        begins, shape = _output_crop(full, [n * s for n, s in _zip(sizes, strides)], attributes)

        batch, group = len(X), attributes["group"]
        columns = W.reshape(group, len(W) // group, -1).swapaxes(1, 2) @ X.reshape(
            batch, group, len(W) // group, math.prod(sizes)
        )
        columns = columns.reshape(batch, group * W.shape[1], *kernel, *sizes)
        room = [max(f, b + n) for f, b, n in _zip(full, begins, shape)]
        Y = np.zeros((*columns.shape[:2], *room), X.dtype)
        for place, target in _kernel_positions(kernel, dilations, strides, sizes):
            Y[_spatial_index(*target)] += columns[_spatial_index(*place)]
        Y = Y[_spatial_index(*(slice(b, b + n) for b, n in _zip(begins, shape)))]
        return (Y if B is None else Y + B.reshape(-1, *ones),)


def _zip(*lists: Any) -> Any:
    return zip(*lists, strict=True)


def _spatial_index(*indices: Any) -> tuple[Any, ...]:
    """Return the index of these places in the dimensions after batch and channel."""
    return (slice(None), slice(None), *indices)


def _kernel_positions(kernel: tuple[int, ...], dilations: list[int], strides: list[int], sizes: Any) -> Any:
    """Yield each place of the kernel, and the slices of a padded image that it meets."""
    for place in np.ndindex(*kernel):
        first = [p * d for p, d in _zip(place, dilations)]
        yield place, [slice(f, f + (n - 1) * s + 1, s) for f, n, s in _zip(first, sizes, strides)]


class Conv(OpRun):  # type: ignore[misc,unused-ignore]
    """Conv of every version: onnx's own gathers the windows element by element."""

    op_schema = get_schema("Conv", 11, "")

    def _run(self, X: Array, W: Array, B: Array | None = None, **attributes: Any) -> tuple[Array]:
        kernel, ones, group = W.shape[2:], [1] * (X.ndim - 2), attributes["group"]
        strides, dilations = attributes["strides"] or ones, attributes["dilations"] or ones
        pads, auto_pad = attributes["pads"] or [0] * (2 * len(ones)), attributes["auto_pad"]
        reach = [(k - 1) * d + 1 for k, d in _zip(kernel, dilations)]
        begins, ends = pads[: len(ones)], pads[len(ones) :]
        if auto_pad.startswith("SAME"):
            total = [max(0, (-(-n // s) - 1) * s + r - n) for n, s, r in _zip(X.shape[2:], strides, reach)]
            begins = [t // 2 if auto_pad == "SAME_UPPER" else (t + 1) // 2 for t in total]
            ends = [t - b for t, b in _zip(total, begins)]
        padded = np.pad(X, [(0, 0), (0, 0), *_zip(begins, ends)])
        shape = [(n - r) // s + 1 for n, r, s in _zip(padded.shape[2:], reach, strides)]
        columns = np.empty((*X.shape[:2], *kernel, *shape), X.dtype)
        for place, met in _kernel_positions(kernel, dilations, strides, shape):
            columns[_spatial_index(*place)] = padded[_spatial_index(*met)]
        rows = W.reshape(group, len(W) // group, -1)
        Y = rows @ columns.reshape(len(X), group, rows.shape[2], math.prod(shape))
        Y = Y.reshape(len(X), len(W), *shape)
        return (Y if B is None else Y + B.reshape(-1, *ones),)


def _output_crop(full: list[int], same: list[int], attributes: dict[str, Any]) -> tuple[list[int], list[int]]:
    """Return where a transposed convolution's result begins within the full one, and its shape."""
    auto_pad, shape = attributes["auto_pad"], attributes["output_shape"]
    pads = attributes["pads"] or [0] * (2 * len(full))
    if shape is None and not auto_pad.startswith("SAME"):
        begins, ends = pads[: len(full)], pads[len(full) :]
        return begins, [n - b - e for n, b, e in _zip(full, begins, ends)]
    shape = shape or same
    total = [max(0, n - wanted) for n, wanted in _zip(full, shape)]
    return [t // 2 if auto_pad == "SAME_UPPER" else (t + 1) // 2 for t in total], list(shape)


Compute = Callable[..., tuple[Any, ...]]

OLD_OPS: dict[str, tuple[int, int, type[OpRun]]] = {}


def find_old_op(op_type: str, version: int) -> type[OpRun] | None:
    """Return the class for ``op_type`` at opset ``version``, or ``None`` if onnx's own is correct."""
    row = OLD_OPS.get(op_type)
    return row[2] if row and row[0] <= version <= row[1] else None


def _register(op_type: str, first: int, last: int, schema: int | None = None) -> Callable[[Compute], Compute]:
    """Make a function compute an operator from one opset to another.

    The defaults of its attributes are those of the version ``schema``.
    """

    def decorate(run: Compute) -> Compute:
        op_schema = None if schema is None else get_schema(op_type, schema, "")
        OLD_OPS[op_type] = first, last, type(op_type, (OpRun,), {"op_schema": op_schema, "_run": run})
        return run

    return decorate


def _align(a: Array, b: Array, axis: int | None) -> Array:
    """Reshape ``b`` for NumPy broadcasting: its dimensions start at ``axis`` of ``a`` (default: suffix)."""
    if axis is None or b.size == 1:
        return b.reshape(()) if b.size == 1 else b
    axis += a.ndim if axis < 0 else 0
    return b.reshape(b.shape + (1,) * (a.ndim - axis - b.ndim))


def _binary(function: Callable[[Array, Array], Array]) -> Compute:
    def run(op: OpRun, a: Array, b: Array, **attributes: Any) -> tuple[Array]:
        aligned = _align(a, b, attributes.get("axis")) if attributes.get("broadcast") else b
        return (function(a, aligned),)

    return run


def _divide(a: Array, b: Array) -> Array:
    if np.issubdtype(a.dtype, np.integer):
        return np.asarray((a - np.fmod(a, b)) // b)
    return (a / b).astype(a.dtype, copy=False)


_BINARY: dict[str, Callable[[Array, Array], Array]] = {
    "Add": np.add,
    "Sub": np.subtract,
    "Mul": np.multiply,
    "Div": _divide,
    "Pow": lambda a, b: np.power(a, b).astype(a.dtype, copy=False),
    "And": np.logical_and,
    "Or": np.logical_or,
    "Xor": np.logical_xor,
    "Equal": np.equal,
    "Greater": np.greater,
    "Less": np.less,
}
for _name, _function in _BINARY.items():
    _register(_name, 1, 6)(_binary(_function))


@_register("Gemm", 1, 6, schema=6)
def _gemm(op: OpRun, A: Array, B: Array, C: Array, **attributes: Any) -> tuple[Array]:
    A = A.T if attributes["transA"] else A
    B = B.T if attributes["transB"] else B
    return ((attributes["alpha"] * (A @ B) + attributes["beta"] * C).astype(A.dtype),)


@_register("PRelu", 1, 6, schema=6)
def _prelu(op: OpRun, x: Array, slope: Array, **attributes: Any) -> tuple[Array]:
    # One slope for all channels, or one per channel (axis 1).
    if slope.size != 1 and x.ndim > 1:
        slope = slope.reshape((-1,) + (1,) * (x.ndim - 2))
    return (np.where(x > 0, x, x * slope).astype(x.dtype),)


@_register("Cast", 1, 5, schema=1)
def _cast(op: OpRun, x: Array, to: str | int, **attributes: Any) -> tuple[Array]:
    # Some exporters write version 6's number instead of version 1's name.
    name = to.upper() if isinstance(to, str) else TensorProto.DataType.Name(to)
    return (x.astype(tensor_dtype_to_np_dtype(TensorProto.DataType.Value(name))),)


@_register("Clip", 1, 5, schema=1)
def _clip(op: OpRun, x: Array, **attributes: Any) -> tuple[Array]:
    low, high = attributes.get("min"), attributes.get("max")
    return (x if low is high is None else np.clip(x, low, high).astype(x.dtype),)


@_register("Concat", 1, 3, schema=1)
def _concat(op: OpRun, *inputs: Array, axis: int | None = None) -> tuple[Array]:
    return (np.concatenate(inputs, axis=1 if axis is None else axis),)


@_register("Reshape", 1, 4, schema=1)
def _reshape(op: OpRun, x: Array, **attributes: Any) -> tuple[Array]:
    shape = attributes.get("shape") or []
    return (x.reshape([x.shape[i] if size == 0 else size for i, size in enumerate(shape)]),)


@_register("Tile", 1, 5, schema=1)
def _tile(op: OpRun, x: Array, tiles: Array, axis: Array | None = None) -> tuple[Array]:
    if axis is None:
        # Version 6's form, which some exporters write at older opsets.
        return (np.tile(x, tiles),)
    repeats = [1] * x.ndim
    repeats[int(axis.item())] = int(tiles.item())
    return (np.tile(x, repeats),)


@_register("Dropout", 1, 6, schema=1)
def _dropout(op: OpRun, x: Array, **attributes: Any) -> tuple[Array, Array]:
    if attributes.get("is_test"):
        return x, np.ones_like(x)
    ratio = float(attributes["ratio"])
    mask = np.random.default_rng(0).random(x.shape) >= ratio
    return (x * mask / (1 - ratio)).astype(x.dtype), mask.astype(x.dtype)


@_register("Selu", 1, 5, schema=1)
def _selu(op: OpRun, x: Array, **attributes: Any) -> tuple[Array]:
    negative = attributes["alpha"] * np.expm1(np.minimum(x, 0))
    return ((np.where(x > 0, x, negative) * attributes["gamma"]).astype(x.dtype),)


@_register("Upsample", 1, 8)
def _upsample(op: OpRun, x: Array, **attributes: Any) -> tuple[Array]:
    height, width = attributes.get("height_scale"), attributes.get("width_scale")
    scales = attributes.get("scales") or [1.0] * (x.ndim - 2) + [height, width]
    if attributes.get("mode", "nearest") != "nearest" or any(s != int(s) for s in scales):
        raise UnsupportedModelError(
            f"Upsample node {op.onnx_node.name!r}: only nearest with whole factors is evaluated"
        )
    for axis, scale in enumerate(scales):
        x = np.repeat(x, int(scale), axis=axis)
    return (x,)


def _flattened(compute: Compute) -> Compute:
    """Return an operator that flattens its input to two dimensions at an axis."""

    def run(op: OpRun, x: Array, axis: int = 1) -> tuple[Array]:
        rows = int(np.prod(x.shape[: axis + x.ndim if axis < 0 else axis], dtype=int))
        return (x if x.size == 0 else compute(op, x.reshape(rows, -1), axis=1)[0].reshape(x.shape),)

    return run


def _log_softmax(op: OpRun, x: Array, axis: int) -> tuple[Array]:
    # onnx's own is the logarithm of a Softmax: minus infinity where that is 0.
    shifted = x - x.max(axis=axis, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=axis, keepdims=True))
    return (np.asarray(shifted),)


for _name, _compute in (("Softmax", Softmax._run), ("LogSoftmax", _log_softmax), ("Hardmax", Hardmax._run)):
    _register(_name, 1, 12, schema=1)(_flattened(_compute))


@_register("BatchNormalization", 1, 13)
def _batch_normalization(
    op: OpRun, x: Array, scale: Array, bias: Array, mean: Array, var: Array, **attributes: Any
) -> tuple[Array, ...]:
    epsilon = attributes.get("epsilon", np.float32(1e-5))
    momentum = attributes.get("momentum", np.float32(0.9))
    spatial = attributes.get("spatial", 1)
    # Up to opset 6 is_test decides, with default 0; from 7 to 13 the number of outputs.
    by_attribute = op.run_params["opsets"].get("", 1) < 7
    training = not attributes.get("is_test", 0) if by_attribute else len(op.onnx_node.output) > 1
    axes = tuple(a for a in range(x.ndim) if a == 0 or (spatial and a != 1))
    used_mean, used_var = (x.mean(axis=axes), x.var(axis=axes)) if training else (mean, var)

    def spread(values: Array) -> Array:
        return values.reshape(values.shape + (1,) * (x.ndim - 2)) if spatial else values

    normal = (x - spread(used_mean)) / np.sqrt(spread(used_var) + epsilon)
    y = (spread(scale) * normal + spread(bias)).astype(x.dtype)
    running = [
        (old * momentum + new * (1 - momentum)).astype(x.dtype)
        for old, new in ((mean, used_mean), (var, used_var))
    ]
    return (y, *running, used_mean.astype(x.dtype), used_var.astype(x.dtype))


@_register("DequantizeLinear", 10, 18, schema=13)
def _dequantize_linear(
    op: OpRun, x: Array, scale: Array, zero_point: Array | None = None, axis: int = 1, **attributes: Any
) -> tuple[Array]:
    def spread(values: Array) -> Array:
        # One value for the whole tensor, or one per slice along the axis.
        shape = [-1 if a == axis % x.ndim else 1 for a in range(x.ndim)]
        return values.reshape(shape if values.size > 1 else ())

    shifted = x.astype(np.float32)
    if zero_point is not None:
        shifted = shifted - spread(zero_point.astype(np.float32))
    return (np.asarray(shifted * spread(scale)).astype(scale.dtype),)


class _Split(OpRun):  # type: ignore[misc,unused-ignore]
    op_schema = get_schema("Split", 1, "")

    def _run(self, x: Array, split: Any = None, axis: int | None = None) -> tuple[Array, ...]:
        axis = axis or 0
        if split is None:
            return tuple(np.split(x, len(self.onnx_node.output), axis=axis))
        return tuple(np.split(x, np.cumsum(split)[:-1], axis=axis))

    def run(self, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        # The sizes are an attribute or a second input; only one of them may reach _run.
        if len(args) > 1:
            self.attributes_names_ = self.attributes_names_ - {"split"}
        outputs: tuple[Any, ...] = super().run(*args, **kwargs)  # type: ignore[no-untyped-call]
        return outputs


class _AveragePool(AveragePool_7):
    """onnx's own AveragePool, corrected: it counts pads even in versions that exclude them."""

    op_schema = get_schema("AveragePool", 7, "")


class _MaxPool(MaxPool):
    """onnx's own MaxPool, corrected: with strides of 1, pads and indices are wrong, or it fails."""

    op_schema = get_schema("MaxPool", 12, "")

    def _run(self, x: Array, **attributes: Any) -> Any:  # type: ignore[override]
        wrong = x.ndim == 3 or any(attributes.get("pads") or ()) or len(self.onnx_node.output) > 1
        run: Any = self._max_pool if wrong and x.ndim <= 5 else super()._run
        return run(x, **attributes)


class _RoiAlign(RoiAlign):
    """onnx's own RoiAlign, corrected: it shifts by half a pixel even in versions that do not."""

    op_schema = get_schema("RoiAlign", 16, "")

    def _run(self, X: Array, rois: Array, batch_indices: Array, **attributes: Any) -> tuple[Array]:  # type: ignore[override]
        attributes["coordinate_transformation_mode"] = "output_half_pixel"
        shifted: Any = super()._run
        result: tuple[Array] = shifted(X, rois, batch_indices, **attributes)
        return result


OLD_OPS |= {
    "Split": (1, 1, _Split),
    "AveragePool": (1, 6, _AveragePool),
    "MaxPool": (1, 10**6, _MaxPool),
    "RoiAlign": (10, 15, _RoiAlign),
    "Conv": (1, 10**6, Conv),
    "ConvTranspose": (1, 10**6, ConvTranspose),
}
