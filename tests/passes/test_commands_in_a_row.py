"""Commands on the results of others: what the metadata says stays true, or the second one refuses."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from support.streamed import model

import rnnlower
from rnnlower.files.metadata import PadMetadata, StreamMetadata

_WEIGHTS = {"W": (1, 12, 3), "R": (1, 12, 4)}
_OPEN = "(float[T, 1, 3] X) => (float[T, 1, 1, 4] Y) { Y = GRU <hidden_size = 4> (X, W, R) }"
_WITH_DEFAULT = """(float[T, 1, 3] X, float[1, 1, 4] h) => (float[T, 1, 1, 4] Y, float[1, 1, 4] last)
    { Y, last = GRU <hidden_size = 4> (X, W, R, , , h) }"""


def _convention(proto: onnx.ModelProto) -> StreamMetadata:
    found = StreamMetadata.read({entry.key: entry.value for entry in proto.metadata_props})
    assert found is not None
    return found


@pytest.mark.parametrize("sizes", [{"dims": {"T": 4}}, {"input_shapes": {"X": [4, 1, 3]}}])
@pytest.mark.parametrize("lower", [rnnlower.unroll, rnnlower.scan])
def test_chunks_of_any_size_get_one(lower: Any, sizes: dict[str, Any]) -> None:
    source = model(_OPEN, **_WEIGHTS)
    fixed = lower(rnnlower.stream(source, chunk="any"), **sizes)
    assert _convention(fixed).chunk == 4
    assert rnnlower.verify(source, fixed)


def test_a_padded_stream_takes_chunks_of_any_size_still() -> None:
    padded = rnnlower.pad(
        rnnlower.stream(model(_OPEN.replace("T, 1", "T, N"), **_WEIGHTS), chunk="any"), max={"T": 8}
    )
    assert _convention(rnnlower.scan(padded, dims={"N": 2})).chunk is None


def test_a_state_that_is_set_is_none() -> None:
    step = rnnlower.stream(model(_OPEN, **_WEIGHTS), chunk=2)
    (state,) = _convention(step).states.values()
    fixed = _convention(rnnlower.unroll(step, sets={state: 0}))
    assert (fixed.states, fixed.start) == ({}, {})


def test_a_state_with_a_default_is_no_constant() -> None:
    source = model(_WITH_DEFAULT, h=(1, 1, 4), **_WEIGHTS)
    frozen = rnnlower.unroll(rnnlower.stream(source, chunk=2), freeze=True)
    assert [value.name for value in frozen.graph.input] == ["X", "h"]
    assert rnnlower.verify(source, frozen)


def test_a_state_with_a_default_is_carried_through_recordings() -> None:
    step = rnnlower.stream(model(_WITH_DEFAULT, h=(1, 1, 4), **_WEIGHTS), chunk=2)
    recordings = {"X": np.random.default_rng(0).standard_normal((4, 20, 1, 3)).astype(np.float32)}
    calls = rnnlower.calibrate(step, recordings).calls
    assert len(calls) == 40
    assert len(np.unique([call["h"] for call in calls], axis=0)) > 30
    quantized = rnnlower.quantize(step, calibration=recordings)
    assert "h" in [value.name for value in quantized.graph.input]


@pytest.mark.parametrize("chunk", [4, "any"])
def test_a_stream_is_not_streamed_again(chunk: int | str) -> None:
    """Its delay, positions and sums are those of the first chunks."""
    with pytest.raises(rnnlower.OptionError, match="is streamed already"):
        rnnlower.stream(rnnlower.stream(model(_OPEN, **_WEIGHTS), chunk=chunk), chunk=2)


def test_a_chunk_of_one_size_is_not_padded() -> None:
    step = rnnlower.stream(model(_OPEN, **_WEIGHTS), chunk=4)
    with pytest.raises(rnnlower.OptionError, match="each call takes 4 time steps"):
        rnnlower.pad(step, max={"T": 8}, time_axes={"X": 0})


def test_a_padded_model_keeps_its_lengths() -> None:
    padded = rnnlower.pad(model(_OPEN, **_WEIGHTS), max={"T": 8})
    assert PadMetadata.read({entry.key: entry.value for entry in padded.metadata_props}) is not None
    with pytest.raises(rnnlower.OptionError, match="padded already"):
        rnnlower.pad(padded, max={"S": 9}, time_axes={"X": 0})
    with pytest.raises(rnnlower.OptionError, match="padded, and a stream has no length"):
        rnnlower.stream(padded)
    with pytest.raises(rnnlower.OptionError, match="'length' cannot be set"):
        rnnlower.scan(padded, sets={"length": [5]})


def test_a_mask_of_a_padded_model_is_verified_as_a_mask() -> None:
    """The sum of numbers drawn at random is no length of a lifted node."""
    source = model(_OPEN.replace("hidden_size", 'direction = "reverse", hidden_size'), **_WEIGHTS)
    scan = rnnlower.scan(rnnlower.pad(source, max={"T": 8}, mask=True))
    lifted = rnnlower.lift(scan)
    assert "GRU" in {node.op_type for node in lifted.graph.node}
    assert rnnlower.verify(scan, lifted)
