"""Overlap-add in the forms of exporters, normalized by the windows, and frames cut by slices."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx import numpy_helper
from support.streamed import model, stream

import rnnlower
from rnnlower.graph.facts import Facts
from rnnlower.passes.streaming import gather_slices

FRAME, HOP, STEPS = 16, 8, 168
COUNT = (STEPS - FRAME) // HOP + 1
FRAMES = """
    channel = Unsqueeze (X, one)
    columns = Conv <strides = [8]> (channel, filters)
    frames = Transpose <perm = [0, 2, 1]> (columns)
"""
ONE = "one = Constant <value_ints = [1]> ()"
PLACES = HOP * np.arange(COUNT)[:, None] + np.arange(FRAME)
STATIC = f"(float[1, {STEPS}] X) => (float[1, {STEPS}] Y)"
DYNAMIC = "(float[1, n] X) => (float[1, m] Y)"
COUNTED = """
    count = Shape <start = 1, end = 2> (frames)
    scalar = Squeeze (count)
    hop = Constant <value_int = 8> ()
    zero = Constant <value_int = 0> ()
    step = Constant <value_int = 1> ()
    numbers = Range (zero, scalar, step)
    firsts = Mul (numbers, hop)
    column = Unsqueeze (firsts, one)
    places = Add (column, offsets)
    flat = Reshape (places, all)
    less = Sub (scalar, step)
    before = Mul (less, hop)
    sixteen = Constant <value_int = 16> ()
    length = Add (before, sixteen)
    lengths = Reshape (length, all)
"""


def _add_initializers(source: object, **arrays: np.ndarray) -> None:
    for name, array in arrays.items():
        source.graph.initializer.append(numpy_helper.from_array(array, name))  # type: ignore[attr-defined]


@pytest.mark.parametrize("chunk", [8, 24])
def test_frames_are_added_by_scatter_nd_with_constant_indices(chunk: int) -> None:
    body = f"""{ONE} {FRAMES}
        row = Reshape (frames, all)
        wave = ScatterND <reduction = "add"> (zeros, indices, row)
        Y = Unsqueeze (wave, first)
    """
    source = model(f"{STATIC} {{ {body} }}", filters=(FRAME, 1, FRAME))
    _add_initializers(source, all=np.array([-1]), first=np.array([0]), zeros=np.zeros(STEPS, np.float32))
    _add_initializers(source, indices=PLACES.reshape(-1, 1))
    assert stream(source, {"X": 1}, chunk=chunk, allow_delay=True)["delay"] <= chunk


@pytest.mark.parametrize("chunk", [8, 24])
def test_frames_are_added_by_scatter_nd_with_computed_indices(chunk: int) -> None:
    body = f"""{ONE} {FRAMES} {COUNTED}
        row = Reshape (frames, all)
        last = Constant <value_ints = [-1]> ()
        indices = Unsqueeze (flat, last)
        zeros = ConstantOfShape (lengths)
        wave = ScatterND <reduction = "add"> (zeros, indices, row)
        first = Constant <value_ints = [0]> ()
        Y = Unsqueeze (wave, first)
    """
    source = model(f"{DYNAMIC} {{ {body} }}", filters=(FRAME, 1, FRAME))
    _add_initializers(source, all=np.array([-1]), offsets=np.arange(FRAME)[None])
    assert stream(source, {"X": 1}, chunk=chunk, allow_delay=True)["delay"] <= chunk


@pytest.mark.parametrize("width", [FRAME, 12, 6])
def test_frames_are_added_by_scatter_elements(width: int) -> None:
    places = (HOP * np.arange(COUNT)[:, None] + np.arange(width)).reshape(1, -1)
    body = f"""{ONE} {FRAMES}
        row = Reshape (frames, all)
        Y = ScatterElements <axis = 1, reduction = "add"> (zeros, indices, row)
    """
    source = model(f"{STATIC} {{ {body} }}", opset=18, filters=(width, 1, FRAME))
    _add_initializers(source, all=np.array([1, -1]), zeros=np.zeros((1, STEPS), np.float32), indices=places)
    stream(source, {"X": 1}, chunk=16, allow_delay=True)


def test_indices_that_do_not_step_are_refused() -> None:
    places = np.random.default_rng(0).permutation(COUNT * FRAME).reshape(1, -1) % STEPS
    body = f"""{ONE} {FRAMES}
        row = Reshape (frames, all)
        Y = ScatterElements <axis = 1, reduction = "add"> (zeros, indices, row)
    """
    source = model(f"{STATIC} {{ {body} }}", opset=18, filters=(FRAME, 1, FRAME))
    _add_initializers(source, all=np.array([1, -1]), zeros=np.zeros((1, STEPS), np.float32), indices=places)
    with pytest.raises(rnnlower.UnsupportedModelError, match="equal distances"):
        rnnlower.stream(source, chunk=8, time_axes={"X": 1}, allow_delay=True)


@pytest.mark.parametrize("chunk", [8, 24])
@pytest.mark.parametrize("pads", [0, 8])
@pytest.mark.parametrize("is_static", [False, True])
def test_frames_are_added_by_col2im(is_static: bool, pads: int, chunk: int) -> None:
    size = "sizes = Identity (static)" if is_static else f"{COUNTED} sizes = Concat <axis = 0> (one, lengths)"
    size = size.replace(
        "sixteen = Constant <value_int = 16>", f"sixteen = Constant <value_int = {16 - 2 * pads}>"
    )
    body = f"""{ONE} {FRAMES} {size}
        image = Col2Im <strides = [1, 8], pads = [0, {pads}, 0, {pads}]> (columns, sizes, block)
        Y = Reshape (image, rows)
    """
    signature = f"(float[1, {STEPS if is_static else 'n'}] X) => (float[1, m] Y)"
    source = model(f"{signature} {{ {body} }}", opset=18, filters=(FRAME, 1, FRAME))
    _add_initializers(source, all=np.array([-1]), offsets=np.arange(FRAME)[None], block=np.array([1, FRAME]))
    _add_initializers(source, static=np.array([1, STEPS - 2 * pads]), rows=np.array([1, -1]))
    stream(source, {"X": 1}, chunk=chunk, allow_delay=True)


@pytest.mark.parametrize("chunk", [8, 24])
def test_frames_are_added_by_a_sum_of_shifted_pads(chunk: int) -> None:
    body = f"""{ONE} {FRAMES}
        early, late = Split <axis = 2> (frames, halves)
        a = Reshape (early, rows)
        b = Reshape (late, rows)
        behind = Constant <value_ints = [0, 0, 0, 8]> ()
        ahead = Constant <value_ints = [0, 8, 0, 0]> ()
        padded = Pad (a, behind)
        shifted = Pad (b, ahead)
        Y = Add (padded, shifted)
    """
    source = model(f"{DYNAMIC} {{ {body} }}", filters=(FRAME, 1, FRAME))
    _add_initializers(source, rows=np.array([1, -1]), halves=np.array([8, 8]))
    stream(source, {"X": 1}, chunk=chunk, allow_delay=True)


@pytest.mark.parametrize("chunk", [8, 24])
def test_added_frames_are_normalized_by_the_sum_of_windows(chunk: int) -> None:
    """The sum of the windows is smaller where the first frames have no neighbors."""
    window = np.hanning(FRAME + 2)[1:-1].astype(np.float32)
    envelope = np.zeros(STEPS, np.float32)
    for first in PLACES[:, 0]:
        envelope[first : first + FRAME] += window**2
    body = f"""{ONE} {FRAMES}
        shaped = Mul (frames, window)
        columns2 = Transpose <perm = [0, 2, 1]> (shaped)
        wave = ConvTranspose <strides = [8]> (columns2, back)
        flat = Squeeze (wave, one)
        Y = Div (flat, envelope)
    """
    source = model(f"{STATIC} {{ {body} }}", filters=(FRAME, 1, FRAME))
    _add_initializers(
        source, window=window, envelope=envelope[None], back=np.eye(FRAME, dtype=np.float32)[:, None]
    )
    assert "limit" not in stream(source, {"X": 1}, chunk=chunk, allow_delay=True)


@pytest.mark.parametrize("chunk", [8, 24])
def test_frames_are_cut_as_halves_by_slices(chunk: int) -> None:
    body = f"""{ONE}
        zero = Constant <value_ints = [0]> ()
        hop = Constant <value_ints = [8]> ()
        back = Constant <value_ints = [-8]> ()
        end = Constant <value_ints = [100000]> ()
        early = Slice (X, zero, back, one)
        late = Slice (X, hop, end, one)
        a = Reshape (early, blocks)
        b = Reshape (late, blocks)
        frames = Concat <axis = 2> (a, b)
        Y = MatMul (frames, projection)
    """
    source = model(f"(float[1, n] X) => (float[1, m, 6] Y) {{ {body} }}", projection=(FRAME, 6))
    _add_initializers(source, blocks=np.array([1, -1, 8]))
    assert stream(source, {"X": 1}, chunk=chunk, allow_delay=True)["delay"] == HOP


@pytest.mark.parametrize("chunk", [8, 24])
def test_frames_are_cut_by_one_slice_each(chunk: int) -> None:
    """An exporter makes this of unfold."""
    slices, names = "", []
    for number in range(COUNT):
        first = number * HOP
        slices += f"""
            s{number} = Constant <value_ints = [{first}]> ()
            e{number} = Constant <value_ints = [{first + FRAME}]> ()
            f{number} = Slice (X, s{number}, e{number}, one)
            u{number} = Unsqueeze (f{number}, one)
        """
        names.append(f"u{number}")
    body = f"{ONE} {slices} frames = Concat <axis = 1> ({', '.join(names)}) Y = MatMul (frames, projection)"
    source = model(f"(float[1, {STEPS}] X) => (float[1, {COUNT}, 6] Y) {{ {body} }}", projection=(FRAME, 6))
    metadata = stream(source, {"X": 1}, chunk=chunk, allow_delay=True)
    assert metadata["delay"] == HOP
    assert metadata["outputs"] == {"Y": 1}


@pytest.mark.parametrize("inputs", ["axis, one", "zero, axis"])
def test_slices_of_unknown_axes_or_strides_are_not_gathered(inputs: str) -> None:
    source = ir.from_onnx_text(f"""<ir_version: 8, opset_import: ["" : 17]>
        main (float[4, 4] X, int64[1] axis) => (float[a, b, c] Y)
        <int64[1] zero = {{0}}, int64[1] one = {{1}}, int64[1] two = {{2}}, int64[1] four = {{4}}> {{
            p = Slice (X, zero, two, {inputs})  q = Slice (X, two, four, {inputs})
            u = Unsqueeze (p, zero)  v = Unsqueeze (q, zero)
            Y = Concat <axis = 0> (u, v)
        }}""")
    gather_slices(source, Facts(source))
    assert "Gather" not in {node.op_type for node in source.graph}
