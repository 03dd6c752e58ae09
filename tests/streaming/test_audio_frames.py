"""Streams of audio: frames of samples by STFT, a convolution or indices, and overlapping frames as a wave."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import rnnlower

HEADER = '<ir_version: 8, opset_import: ["" : 17]>\n'
FRAME, HOP = 16, 8
GRU = """
    steps = Transpose <perm = [1, 0, 2]> (features)
    states = GRU <hidden_size = 6> (steps, W, R)
    one = Constant <value_ints = [1]> ()
    squeezed = Squeeze (states, one)
    Y = Transpose <perm = [1, 0, 2]> (squeezed)
"""
FRAMES_TO_FEATURES = "shaped = Mul (frames, window) features = MatMul (shaped, projection)"


def model(signature: str, body: str, **constants: np.ndarray) -> onnx.ModelProto:
    """Return a model with random weights of a window, of a GRU, and of what comes before it."""
    rng = np.random.default_rng(0)
    parsed = onnx.parser.parse_model(f"{HEADER} main {signature} {{ {body} }}")
    sizes = {"W": (1, 18, 6), "R": (1, 18, 6), "projection": (FRAME, 6), "bins": (FRAME // 2 + 1, 6)}
    weights = {name: 0.3 * rng.standard_normal(size) for name, size in sizes.items()}
    weights |= {"window": np.hanning(FRAME), "filters": 0.3 * rng.standard_normal((6, 1, FRAME))}
    arrays = {name: array.astype(np.float32) for name, array in weights.items()} | constants
    for name, array in arrays.items():
        if name in body:
            parsed.graph.initializer.append(numpy_helper.from_array(array, name))
    return parsed


def stream(source: onnx.ModelProto, **options: Any) -> dict[str, Any]:
    """Return the metadata of the streamed model, which equals the source."""
    streamed = rnnlower.stream(source, time_axes={"X": 1}, **options)
    result = rnnlower.verify(source, streamed)
    assert result, result
    (metadata,) = (each.value for each in streamed.metadata_props if each.key == "rnnlower.stream")
    return json.loads(metadata)


STFT = f"""
    hop = Constant <value_int = {HOP}> ()
    spectrum = STFT (X, hop, window)
    real = Constant <value_int = 0> ()
    parts = Gather <axis = 3> (spectrum, real)
    features = MatMul (parts, bins)
"""


@pytest.mark.parametrize("chunk", [8, 16, 40])
def test_an_stft_gives_a_frame_for_each_hop(chunk: int) -> None:
    source = model("(float[1, n, 1] X) => (float[1, m, 6] Y)", STFT + GRU)
    metadata = stream(source, chunk=chunk, allow_delay=True)
    # The state of a GRU begins with a chunk.
    assert metadata["delay"] == chunk
    assert metadata["rates"] == {"Y": 1 / HOP}


def test_a_chunk_of_samples_is_a_multiple_of_the_hop() -> None:
    source = model("(float[1, n, 1] X) => (float[1, m, 6] Y)", STFT + GRU)
    with pytest.raises(
        rnnlower.UnsupportedModelError, match=r"STFT.* moves by 8 frames.*multiple of 8 steps"
    ):
        rnnlower.stream(source, time_axes={"X": 1}, chunk=12, allow_delay=True)


def two_axes_of_spectra(hop: int, fill: int = 0) -> onnx.ModelProto:
    """Return a model with a GRU over bands, whose batch is the frames, and one over the frames."""
    body = f"""
        one = Constant <value_ints = [1]> ()
        row = Unsqueeze (X, one)
        pads = Constant <value_ints = [0, 0, {512 - hop}, 0, 0, 0]> ()
        padded = Pad (row, pads)
        spectra = Conv <strides = [{hop}]> (padded, kernels)
        last = Transpose <perm = [0, 2, 1]> (spectra)
        sizes = Constant <value_ints = [-1, 2, 3]> ()
        bands = Reshape (last, sizes)
        over_bands = Transpose <perm = [1, 0, 2]> (bands)
        shape = Shape (over_bands)
        frames = Gather (shape, one)
        width = Constant <value_ints = [6]> ()
        state_shape = Concat <axis = 0> (one, frames, width)
        start = ConstantOfShape <value = float[1] {{{fill}}}> (state_shape)
        inner, final = GRU <hidden_size = 6> (over_bands, small, R, , , start)
        whole = Shape (last)
        features = Reshape (final, whole)
        {GRU.replace("one = Constant <value_ints = [1]> ()", "")}
    """
    kernels = np.random.default_rng(1).standard_normal((6, 1, 512)).astype(np.float32) / 16
    small = np.full((1, 18, 3), 0.1, np.float32)
    return model("(float[b, n] X) => (float[b, m, 6] Y)", body, kernels=kernels, small=small)


@pytest.mark.parametrize("hop", [254, 256])
def test_frames_of_a_long_hop_show_the_time_axis(hop: int) -> None:
    source = two_axes_of_spectra(hop)
    streamed = rnnlower.stream(source, chunk=hop)
    assert rnnlower.verify(source, streamed)


def test_short_examples_of_samples_are_no_single_step() -> None:
    source = two_axes_of_spectra(254, fill=1)
    with pytest.raises(rnnlower.UnsupportedModelError, match="if time is another axis, name it") as caught:
        rnnlower.stream(source, chunk=254)
    assert "one step per call already" not in str(caught.value)
    assert rnnlower.verify(source, rnnlower.stream(source, chunk=254, time_axes={"X": 1}))


def test_an_stft_whose_window_is_given_by_its_length() -> None:
    body = STFT.replace("hop, window", "hop, , length") + GRU
    length = f"length = Constant <value_int = {FRAME}> ()"
    source = model("(float[1, n, 1] X) => (float[1, m, 6] Y)", length + body)
    assert stream(source, chunk=FRAME - HOP, allow_delay=True)["delay"] == FRAME - HOP


@pytest.mark.parametrize("is_transposed", [False, True])
@pytest.mark.parametrize(("count", "chunk"), [(20, 8), (20, 24), (18, 16)])
def test_frames_gathered_by_indices_are_streamed(count: int, chunk: int, is_transposed: bool) -> None:
    places = HOP * np.arange(count)[:, None] + np.arange(FRAME)
    gather = "frames = Gather <axis = 1> (X, places)"
    if is_transposed:
        places = np.ascontiguousarray(places.T)
        gather = "columns = Gather <axis = 1> (X, places) frames = Transpose <perm = [0, 2, 1]> (columns)"
    source = model(
        f"(float[1, 168] X) => (float[1, {count}, 6] Y)",
        gather + FRAMES_TO_FEATURES + GRU,
        places=places,
    )
    assert stream(source, chunk=chunk, allow_delay=True)["delay"] == chunk


def test_indices_that_are_no_frames_are_refused() -> None:
    places = np.random.default_rng(0).integers(0, 160, (20, FRAME))
    body = "frames = Gather <axis = 1> (X, places)" + FRAMES_TO_FEATURES + GRU
    source = model("(float[1, 168] X) => (float[1, 20, 6] Y)", body, places=places)
    with pytest.raises(rnnlower.UnsupportedModelError, match="picks steps of the sequence"):
        rnnlower.stream(source, time_axes={"X": 1}, chunk=8, allow_delay=True)


def test_a_dft_of_each_frame_is_streamed() -> None:
    body = f"""
        length = Constant <value_ints = [0, -1, {HOP}, 1]> ()
        blocks = Reshape (X, length)
        turned = DFT <axis = 2, onesided = 1> (blocks)
        index = Constant <value_int = 0> ()
        parts = Gather <axis = 3> (turned, index)
        features = MatMul (parts, few)
    """
    few = np.random.default_rng(0).standard_normal((HOP // 2 + 1, 6)).astype(np.float32)
    source = model("(float[1, n] X) => (float[1, m, 6] Y)", body + GRU, few=few)
    assert stream(source, chunk=16)["delay"] == 0


def test_a_dft_over_time_is_refused() -> None:
    body = "Y = DFT <axis = 1> (X)"
    source = model("(float[1, n, 1] X) => (float[1, n, 2] Y)", body)
    with pytest.raises(rnnlower.UnsupportedModelError, match="transforms over time"):
        rnnlower.stream(source, time_axes={"X": 1}, chunk=8)


CENTERED = f"""
    pads = Constant <value_ints = [0, {FRAME // 2}, 0, 0, {FRAME // 2}, 0]> ()
    around = Pad <mode = "reflect"> (X, pads)
"""


@pytest.mark.parametrize("chunk", [1, 3, None])
def test_pads_in_front_of_an_output_are_its_first_frames(chunk: int | None) -> None:
    body = "pads = Constant <value_ints = [0, 2, 0, 0]> () Y = Pad (X, pads)"
    source = model("(float[1, n] X) => (float[1, m] Y)", body)
    with pytest.raises(rnnlower.UnsupportedModelError, match="2 frames more than the input"):
        rnnlower.stream(source, time_axes={"X": 1}, chunk=chunk)
    metadata = stream(source, chunk=chunk, allow_delay=True)
    assert (metadata["delay"], metadata["unreached"]) == (0, {"Y": 2})


@pytest.mark.parametrize("chunk", [16, 24])
def test_centered_frames_with_a_reflected_start(chunk: int) -> None:
    source = model("(float[1, n, 1] X) => (float[1, m, 6] Y)", CENTERED + STFT.replace("X,", "around,") + GRU)
    metadata = stream(source, chunk=chunk, allow_delay=True)
    assert metadata["delay"] == 0
    assert metadata["unreached"] == {"Y": 1}


def test_a_reflected_start_behind_a_delay() -> None:
    ahead = f"""
        swap = Transpose <perm = [0, 2, 1]> (X)
        smooth = Conv <pads = [1, 1]> (swap, around3)
        back = Transpose <perm = [0, 2, 1]> (smooth)
        pads = Constant <value_ints = [0, {FRAME // 2}, 0, 0, {FRAME // 2}, 0]> ()
        around = Pad <mode = "reflect"> (back, pads)
    """
    source = model(
        "(float[1, n, 1] X) => (float[1, m, 6] Y)",
        ahead + STFT.replace("X,", "around,") + GRU,
        around3=np.ones((1, 1, 3), np.float32) / 3,
    )
    assert stream(source, chunk=16, allow_delay=True)["delay"] > 0


def test_a_reflected_start_needs_its_frames_in_the_first_chunk() -> None:
    source = model("(float[1, n, 1] X) => (float[1, m, 6] Y)", CENTERED + STFT.replace("X,", "around,") + GRU)
    with pytest.raises(
        rnnlower.UnsupportedModelError, match=r"reflects 8 frames.*multiple of 8 steps, at least 16"
    ):
        rnnlower.stream(source, time_axes={"X": 1}, chunk=8, allow_delay=True)


def test_a_reflected_start_needs_a_chunk_of_known_length() -> None:
    pads = 'pads = Constant <value_ints = [0, 2, 0, 0]> () Y = Pad <mode = "reflect"> (X, pads)'
    source = model("(float[1, n] X) => (float[1, m] Y)", pads)
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"'Pad_1'.*the first chunk may not have"):
        rnnlower.stream(source, time_axes={"X": 1}, chunk=None, allow_delay=True)
    with pytest.raises(
        rnnlower.UnsupportedModelError, match=r"the chunk must have at least 3 steps.*chunk=3"
    ):
        rnnlower.stream(source, time_axes={"X": 1}, chunk=1, allow_delay=True)
    assert stream(source, chunk=3, allow_delay=True)["unreached"] == {"Y": 2}


def test_frames_are_overlapped_and_added_to_a_wave() -> None:
    """The spectrum is a convolution, and its frames are overlapped and added to a wave."""
    body = f"""
        channel = Unsqueeze (X, axis)
        frames = Conv <strides = [{HOP}]> (channel, filters)
        steps = Transpose <perm = [2, 0, 1]> (frames)
        states = GRU <hidden_size = 6> (steps, W, R)
        squeezed = Squeeze (states, axis)
        mask = Transpose <perm = [1, 2, 0]> (squeezed)
        kept = Mul (frames, mask)
        wave = ConvTranspose <strides = [{HOP}]> (kept, filters)
        Y = Squeeze (wave, axis)
    """
    source = model("(float[1, n] X) => (float[1, m] Y)", body, axis=np.array([1]))
    metadata = stream(source, chunk=16, allow_delay=True)
    assert metadata["delay"] >= FRAME - HOP
    assert "rates" not in metadata
