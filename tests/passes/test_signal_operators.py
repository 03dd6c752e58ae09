"""STFT, DFT and Col2Im expressed by other operators, against NumPy and onnxruntime's kernels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from support.judge import run

from rnnlower.graph.walk import walk
from rnnlower.passes import AdaptNodesPass

Array = np.ndarray
TOLERANCES = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 3e-6, "float64": 1e-13, "int32": 0.0}
"""Relative to the largest magnitude of the result; that of a half is its rounding."""
KERNEL = {"float32": 1e-4, "float64": 1e-7}
"""The same for onnxruntime's kernels, which are less exact where the length is not a power of two."""


def complex_of(x: Array) -> Array:
    wide = x.astype(np.float64)
    return wide[..., 0] + 1j * wide[..., 1] if x.shape[-1] == 2 else wide[..., 0] + 0j


def parts_of(z: Array) -> Array:
    return np.stack([z.real, z.imag], -1)


def dft(x: Array, length: int | None, axis: int, inverse: int, onesided: int) -> Array:
    """Return the DFT as the text of the operator has it."""
    z = np.moveaxis(complex_of(x), axis if axis >= 0 else axis + 1, -1)
    halves = bool(inverse and onesided)
    count = length if length is not None else 2 * (z.shape[-1] - 1) if halves else z.shape[-1]
    place = axis if axis >= 0 else axis + 1
    if halves:
        return np.moveaxis(np.fft.irfft(z, count), -1, place)[..., None]
    made = np.fft.ifft(z, count) if inverse else np.fft.fft(z, count)
    return parts_of(np.moveaxis(made[..., : count // 2 + 1] if onesided else made, -1, place))


def stft(x: Array, hop: int, window: Array | None, length: int, onesided: int) -> Array:
    z = complex_of(x)
    frames = (z.shape[1] - length) // hop + 1
    form = np.ones(length) if window is None else window.astype(np.float64)
    made = np.fft.fft(np.stack([z[:, k * hop : k * hop + length] * form for k in range(frames)], 1))
    return parts_of(made[..., : length // 2 + 1] if onesided else made)


def fold(x: Array, image: list[int], block: list[int], strides: Any, pads: Any, dilations: Any) -> Array:
    """Return Col2Im: each element of a block is added at its place in the padded image."""
    rank, elements = len(image), int(np.prod(block))
    padded = [image[axis] + pads[axis] + pads[axis + rank] for axis in range(rank)]
    grid = [(padded[k] - dilations[k] * (block[k] - 1) - 1) // strides[k] + 1 for k in range(rank)]
    columns = x.reshape(x.shape[0], -1, elements, *grid)
    made = np.zeros((*columns.shape[:2], *padded), np.float64)
    for number, inside in enumerate(itertools.product(*map(range, block))):
        first = [i * d for i, d in zip(inside, dilations, strict=True)]
        where = (slice(f, f + g * s, s) for f, g, s in zip(first, grid, strides, strict=True))
        made[(slice(None), slice(None), *where)] += columns[:, :, number]
    cut = (slice(pads[k], pads[k] + image[k]) for k in range(rank))
    return made[(slice(None), slice(None), *cut)]


def model_of(
    op_type: str,
    x: Array,
    others: list[Array | None],
    opset: int,
    *,
    open_axes: tuple[int, ...] = (),
    **attributes: Any,
) -> onnx.ModelProto:
    kind = onnx.helper.np_dtype_to_tensor_dtype(x.dtype)
    names = [f"k{number}" if each is not None else "" for number, each in enumerate(others)]
    initializers = [
        onnx.numpy_helper.from_array(each, name)
        for each, name in zip(others, names, strict=True)
        if each is not None
    ]
    shape = [f"d{axis}" if axis in open_axes else size for axis, size in enumerate(x.shape)]
    node = onnx.helper.make_node(op_type, ["x", *names], ["y"], "signal", **attributes)
    graph = onnx.helper.make_graph(
        [node],
        "signals",
        [onnx.helper.make_tensor_value_info("x", kind, shape)],
        [onnx.helper.make_tensor_value_info("y", kind, None)],
        initializers,
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=10)


def expressed(model: onnx.ModelProto, absent: tuple[str, ...] = ()) -> onnx.ModelProto | None:
    """Return the model without the signal operators and others that are absent, if that is possible."""
    own = ir.from_proto(model)
    gone = ("Col2Im", "DFT", "STFT", *absent)
    AdaptNodesPass(lambda node: node.op_type in gone)(own)
    ops = {node.op_type for node, _ in walk(own.graph)}
    return None if ops & {"Col2Im", "DFT", "STFT"} else ir.to_proto(own)


def check(
    model: onnx.ModelProto, x: Array, want: Array, *, has_kernel: bool, absent: tuple[str, ...] = ()
) -> None:
    made = expressed(model, absent)
    assert made is not None
    kind = made.graph.output[0].type.tensor_type.elem_type
    made.graph.output[0].CopyFrom(onnx.helper.make_tensor_value_info("y", kind, want.shape))
    onnx.checker.check_model(made, full_check=True)
    found = run(made, {"x": x})["y"]
    assert found.shape == want.shape
    assert found.dtype == x.dtype
    bound = TOLERANCES[x.dtype.name] * np.abs(want).max()
    assert np.abs(found.astype(np.float64) - want).max() <= bound
    if has_kernel:
        kernel = run(model, {"x": x})["y"].astype(np.float64)
        assert kernel.shape == want.shape
        assert np.abs(kernel - want).max() <= KERNEL[x.dtype.name] * np.abs(want).max()


def drawn(shape: tuple[int, ...], dtype: Any) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(dtype)


def transforms() -> Iterator[tuple[str, int, int, int, int, int, int | None]]:
    """Yield dtype, opset, elements, parts, inverse, onesided and dft_length."""
    for number, (dtype, opset, size) in enumerate(
        itertools.product(("float32", "float64"), (17, 20), (8, 9, 320, 512, 1024))
    ):
        kinds = (
            (size, 1, 0, 1, None),
            (size, 2, 0, 0, None),
            (size, 2, 1, 0, None),
            (size // 2 + 1, 2, 1, 1, size),
        )
        # Of large matrices, half of the kinds: each occurs with both dtypes and both opsets.
        for kind in kinds if size < 10 else kinds[(number // 5 in (1, 2)) :: 2]:
            yield dtype, opset, *kind
    for dtype in ("float32", "float64"):
        for parts, inverse in itertools.product((1, 2), (0, 1)):
            yield dtype, 20, 12, parts, inverse, 0, 7
            yield dtype, 20, 12, parts, inverse, 0, 20
        yield dtype, 20, 12, 1, 0, 1, 7
        yield dtype, 20, 12, 1, 0, 1, 20
        yield dtype, 20, 9, 2, 1, 1, None
        yield dtype, 20, 9, 2, 1, 1, 17
        yield dtype, 20, 1, 2, 0, 0, None


@pytest.mark.parametrize("case", [*transforms()], ids=str)
def test_a_transform_is_a_product(case: tuple[Any, ...]) -> None:
    dtype, opset, size, parts, inverse, onesided, length = case
    every = ((2, size, parts), 1), ((1, size, 3, parts), 1), ((16, 2, size, parts), 2)
    # Of large matrices, two of the shapes, which differ with the kind.
    for shape, axis in every if size < 100 else (every[parts + inverse - 1], every[parts - 2]):
        x = drawn(shape, dtype)
        lengths = None if length is None else np.array(length)
        attributes: dict[str, Any] = {"inverse": inverse, "onesided": onesided}
        others: list[Array | None] = [lengths] if lengths is not None else []
        if opset < 20:
            attributes["axis"] = axis - len(shape) * (axis == 2)
        else:
            others = [lengths, np.array(axis - len(shape))]
        want = dft(x, length, axis, inverse, onesided)
        check(model_of("DFT", x, others, opset, **attributes), x, want, has_kernel=True)


@pytest.mark.parametrize("dtype", [np.float16, ml_dtypes.bfloat16])
def test_a_transform_of_halves_is_computed_in_floats(dtype: Any) -> None:
    x = drawn((2, 320, 1), dtype)
    model = model_of("DFT", x, [None, np.array(1)], 20, onesided=1)
    check(model, x, dft(x, None, 1, 0, 1), has_kernel=False)


def test_the_axis_of_a_dft_20_is_the_last_signal_axis() -> None:
    x = drawn((2, 3, 8, 1), np.float32)
    check(model_of("DFT", x, [], 20), x, dft(x, None, 2, 0, 0), has_kernel=True)
    check(model_of("DFT", x, [], 17), x, dft(x, None, 1, 0, 0), has_kernel=True)


def test_other_axes_of_a_transform_may_be_dynamic() -> None:
    x = drawn((2, 5, 16, 1), np.float32)
    for axis, open_axes in ((2, (0, 1)), (1, (0, 2))):
        model = model_of("DFT", x, [None, np.array(axis)], 20, open_axes=open_axes, onesided=1)
        check(model, x, dft(x, None, axis, 0, 1), has_kernel=True)


@pytest.mark.parametrize("hop", [2, 4, 1])
@pytest.mark.parametrize("length", [320, 512, 1024])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_frames_are_transformed(dtype: str, length: int, hop: int) -> None:
    for number, (batch, frames, more) in enumerate(((1, 1, 0), (2, 5, 3), (16, 2, 0))):
        step = length // hop
        x = drawn((batch, (frames - 1) * step + length + more, 1), dtype)
        window = np.hanning(length + 1)[:-1].astype(dtype) if (number + hop) % 2 else None
        model = model_of("STFT", x, [np.array(step), window, np.array(length)], 17, onesided=1)
        check(model, x, stft(x, step, window, length, 1), has_kernel=True)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_stft_of_every_kind_is_expressed(dtype: Any) -> None:
    has_kernel = np.dtype(dtype).itemsize > 2
    window = np.hamming(20).astype(dtype)
    for parts, onesided, open_axes in (
        (1, 1, ()),
        (1, 0, ()),
        (2, 0, ()),
        (1, 1, (0,)),
        (1, 1, (1,)),
        (1, 1, (0, 1)),
    ):
        if dtype is np.float64 and 1 in open_axes:
            continue
        x = drawn((3, 57, parts), dtype)
        model = model_of("STFT", x, [np.array(7), window], 17, onesided=onesided, open_axes=open_axes)
        check(model, x, stft(x, 7, window, 20, onesided), has_kernel=has_kernel)
    x = drawn((2, 24, 1), dtype)
    check(model_of("STFT", x, [np.array(3)], 17), x, stft(x, 3, None, 24, 1), has_kernel=False)


FOLDS: list[tuple[list[int], list[int], list[int], list[int], list[int]]] = [
    *(
        ([1, 3 * hop + size - sum(cut) + more], [1, size], [1, hop], [0, cut[0], 0, cut[1]], [1, 1])
        for size, hop in ((320, 160), (512, 128), (1024, 512), (7, 3), (3, 5))
        for cut in ((0, 0), (size - hop, size - hop) if size > hop else (1, 0), (2, 1))
        for more in (0, 1)
    ),
    ([12, 1], [4, 1], [2, 1], [0] * 4, [1, 1]),
    ([1, 1], [1, 1], [1, 1], [0] * 4, [1, 1]),
    ([2, 9], [1, 3], [1, 3], [0] * 4, [1, 1]),
    ([5, 6], [2, 3], [2, 1], [0] * 4, [1, 1]),
    ([6, 5], [3, 3], [2, 2], [1, 0, 2, 1], [1, 1]),
    ([8, 9], [2, 3], [1, 2], [1, 1, 1, 1], [3, 2]),
    ([1, 11], [1, 3], [1, 2], [0] * 4, [1, 2]),
    ([4, 3, 5], [2, 1, 2], [2, 1, 1], [0] * 6, [1, 1, 1]),
]
"""Image, block, strides, pads and dilations."""
FOLD_TYPES = ["float32", "float64", "float16", "int32"]


@pytest.mark.parametrize("case", FOLDS, ids=str)
@pytest.mark.parametrize("dtype", FOLD_TYPES)
def test_col2im_adds_its_blocks(case: tuple[list[int], ...], dtype: str) -> None:
    image, block, strides, pads, dilations = case
    is_row = len(image) == 2 and 1 in (image[0], image[1]) and dilations == [1, 1]
    attributes: dict[str, Any] = {"strides": strides, "pads": pads, "dilations": dilations}
    rank = len(image)
    padded = [image[k] + pads[k] + pads[k + rank] - dilations[k] * (block[k] - 1) - 1 for k in range(rank)]
    count = int(np.prod([size // stride + 1 for size, stride in zip(padded, strides, strict=True)]))
    shapes = np.array(image), np.array(block)
    every = (1, 1, ()), (2, 3, ()), (2, 3, (0,)), (16, 1, (0,))
    # Each fold occurs at each of these sizes, each dtype at all of them.
    first = (FOLDS.index(case) + FOLD_TYPES.index(dtype)) % 2
    for batch, channels, open_axes in every[first::2]:
        size = (batch, channels * int(np.prod(block)), count)
        x = (drawn(size, np.float32) * (9 if dtype == "int32" else 1)).astype(dtype)
        model = model_of("Col2Im", x, [*shapes], 18, open_axes=open_axes, **attributes)
        if not is_row and dtype == "int32":
            assert expressed(model) is None
            continue
        if not is_row and dtype != "float32":
            assert expressed(model) is not None  # onnxruntime has no such ConvTranspose.
            continue
        want = fold(x, image, block, strides, pads, dilations)
        check(model, x, want, has_kernel=dtype in ("float32",))


def test_a_row_is_added_without_a_convolution() -> None:
    x = drawn((1, 512, 4), np.float32)
    model = model_of(
        "Col2Im", x, [np.array([1, 128]), np.array([1, 512])], 18, strides=[1, 128], pads=[0, 384, 0, 384]
    )
    want = fold(x, [1, 128], [1, 512], [1, 128], [0, 384, 0, 384], [1, 1])
    check(model, x, want, has_kernel=True, absent=("ConvTranspose", "Pad"))


def refused() -> Iterator[tuple[str, onnx.ModelProto]]:
    x, window = drawn((2, 24, 1), np.float32), np.ones(8, np.float32)
    frame, axis = np.array(8), np.array(1)
    yield "a length that is not known", model_of("DFT", x, [None, axis], 20, open_axes=(1,))
    yield "parts that are not known", model_of("DFT", x, [None, axis], 20, open_axes=(2,))
    long = np.zeros((1, 6000, 1), np.float32)
    yield "a matrix out of proportion", model_of("DFT", long, [None, axis], 20)
    yield (
        "half a spectrum of complex numbers",
        model_of("DFT", drawn((2, 8, 2), np.float32), [None, axis], 20, onesided=1),
    )
    yield (
        "more of a spectrum than the length has",
        model_of("DFT", drawn((2, 9, 2), np.float32), [np.array(11), axis], 20, onesided=1, inverse=1),
    )
    yield (
        "frames of complex numbers, onesided",
        model_of("STFT", drawn((2, 24, 2), np.float32), [np.array(4), window], 17),
    )
    yield "a window of another length", model_of("STFT", x, [np.array(4), window, np.array(9)], 17)
    yield "no frame", model_of("STFT", x, [np.array(4), None, np.array(25)], 17)
    for number, (op_type, given, opset) in enumerate(
        (
            ("DFT", [frame, axis], 20),
            ("DFT", [frame, axis], 20),
            ("STFT", [np.array(4), window, frame], 17),
            ("STFT", [np.array(4), window, frame], 17),
            ("STFT", [np.array(4), window, frame], 17),
        )
    ):
        model = model_of(op_type, x, given, opset)
        moved = model.graph.initializer.pop([0, 1, 0, 1, 2][number])
        model.graph.input.append(onnx.helper.make_tensor_value_info(moved.name, moved.data_type, moved.dims))
        yield f"a {moved.name} of {op_type} at run time", model


@pytest.mark.parametrize(
    ("why", "model"), [*refused()], ids=lambda each: each if isinstance(each, str) else ""
)
def test_a_node_that_cannot_be_expressed_stays(why: str, model: onnx.ModelProto) -> None:
    assert expressed(model) is None, why
