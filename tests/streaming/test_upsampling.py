"""Streams of models that give several frames for each step, as transposed convolutions do."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import rnnlower

RNG = np.random.default_rng(0)


def model(*nodes: onnx.NodeProto, **constants: np.ndarray) -> onnx.ModelProto:
    """Return a model of ``x [1, 4, T]``."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, "T"])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "up", [x], [y], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def weights(*shape: int) -> np.ndarray:
    """Return random weights."""
    return RNG.standard_normal(shape).astype(np.float32)


def transposed(kernel: int, stride: int, pads: tuple[int, int], padding: int = 0) -> onnx.ModelProto:
    """Return a model of one ConvTranspose."""
    node = helper.make_node(
        "ConvTranspose", ["x", "w", "b"], ["y"], strides=[stride], pads=pads, output_padding=[padding]
    )
    return model(node, w=weights(4, 3, kernel), b=weights(3))


def stream(source: onnx.ModelProto, **options: Any) -> dict[str, Any]:
    """Return the metadata of the streamed model, which equals the source."""
    streamed = rnnlower.stream(source, time_axes={"x": 2}, **options)
    result = rnnlower.verify(source, streamed)
    assert result, result
    (metadata,) = (each.value for each in streamed.metadata_props if each.key == "rnnlower.stream")
    return json.loads(metadata)


@pytest.mark.parametrize("chunk", [1, 2, 5, None])
@pytest.mark.parametrize(
    ("kernel", "stride", "pads", "padding"),
    [
        (4, 2, (0, 2), 0),
        (2, 2, (0, 0), 0),
        (1, 3, (0, 0), 2),
        (5, 3, (0, 2), 0),
        (7, 2, (0, 5), 0),
        (3, 1, (0, 2), 0),
    ],
)
def test_a_transposed_convolution_gives_several_frames_a_step(
    kernel: int, stride: int, pads: tuple[int, int], padding: int, chunk: int | None
) -> None:
    metadata = stream(transposed(kernel, stride, pads, padding), chunk=chunk)
    assert metadata["delay"] == 0
    assert metadata.get("rates", {}) == ({"y": float(stride)} if stride > 1 else {})
    assert "unreached" not in metadata


@pytest.mark.parametrize(("kernel", "pad", "delay"), [(4, 1, 1), (8, 3, 2), (4, 0, 0)])
def test_overlaps_at_the_ends_are_a_delay(kernel: int, pad: int, delay: int) -> None:
    source = transposed(kernel, 2, (pad, pad))
    with pytest.raises(rnnlower.UnsupportedModelError, match=r"frames? late|frames? more than the input"):
        rnnlower.stream(source, time_axes={"x": 2}, chunk=2)
    metadata = stream(source, chunk=2, allow_delay=True)
    assert metadata["delay"] == delay
    assert metadata["unreached"]["y"] == kernel - 2 - pad


def test_a_chunk_must_fit_the_window_in_front() -> None:
    down = helper.make_node("Conv", ["x", "v"], ["h"], strides=[2], pads=[2, 0], kernel_shape=[3])
    up = helper.make_node("ConvTranspose", ["h", "w"], ["y"], strides=[2], pads=[0, 1])
    source = model(down, up, v=weights(5, 4, 3), w=weights(5, 3, 3))
    with pytest.raises(rnnlower.UnsupportedModelError, match="multiple of 2 steps"):
        rnnlower.stream(source, time_axes={"x": 2}, chunk=3)
    assert "rates" not in stream(source, chunk=4)


def test_a_window_behind_takes_several_of_a_step() -> None:
    up = helper.make_node("ConvTranspose", ["x", "w"], ["h"], strides=[4], pads=[0, 4])
    down = helper.make_node("Conv", ["h", "v"], ["y"], strides=[2], pads=[2, 0], kernel_shape=[3])
    assert stream(model(up, down, w=weights(4, 6, 8), v=weights(3, 6, 3)), chunk=1)["rates"] == {"y": 2.0}


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("by", ["scales", "sizes", "axes"])
def test_a_resize_repeats_frames(by: str, chunk: int) -> None:
    given = ["", "s"] if by == "scales" else ["", "", "s"]
    node = helper.make_node("Resize", ["x", *given], ["y"], mode="nearest")
    if by == "scales":
        source = model(node, s=np.array([1, 1, 3], np.float32))
        assert stream(source, chunk=chunk)["rates"] == {"y": 3.0}
        return
    source = model(node, s=np.array([1, 4, 24], np.int64))
    if by == "axes":
        # From opset 18 on, and counted from the end.
        node.attribute.append(helper.make_attribute("axes", [-1]))
        source = model(node, s=np.array([24], np.int64))
        source.opset_import[0].version = 18
    source.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 8
    assert stream(source, chunk=chunk)["rates"] == {"y": 3.0}


def test_a_resize_that_interpolates_is_refused() -> None:
    node = helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear")
    with pytest.raises(rnnlower.UnsupportedModelError, match="interpolates between frames"):
        rnnlower.stream(model(node, s=np.array([1, 1, 2], np.float32)), time_axes={"x": 2})


@pytest.mark.parametrize("chunk", [1, 3, 8])
def test_the_delay_is_the_sum_of_what_is_looked_ahead(chunk: int) -> None:
    """A convolution in the middle of a chunk sees its pads before the first frame."""
    nodes = [
        helper.make_node("Conv", [first, f"w{last}"], [last], pads=pads)
        for first, last, pads in (
            ("x", "a", [1, 1]),
            ("a", "b", [2, 2]),
            ("b", "c", [1, 1]),
            ("c", "y", [2, 0]),
        )
    ]
    kernels = {"wa": 3, "wb": 5, "wc": 3, "wy": 3}
    source = model(*nodes, **{name: weights(4, 4, kernel) for name, kernel in kernels.items()})
    assert stream(source, chunk=chunk, allow_delay=True)["delay"] == 4


@pytest.mark.parametrize("chunk", [1, 3, 8])
@pytest.mark.parametrize("fill", [0.0, 0.5])
def test_causal_layers_after_a_look_ahead_add_no_delay(chunk: int, fill: float) -> None:
    """Pads in front, and a ConvTranspose that cuts off what they make, as in mirrored decoders."""
    nodes = [
        helper.make_node("Conv", ["x", "wa"], ["a"], pads=[1, 1]),
        helper.make_node("Pad", ["a", "pads", "fill"], ["p"]),
        helper.make_node("Conv", ["p", "wb"], ["b"], dilations=[2]),
        helper.make_node("Pad", ["b", "pads", "fill"], ["q"]),
        helper.make_node("ConvTranspose", ["q", "wc"], ["y"], dilations=[2], pads=[4, 4]),
    ]
    constants = {"pads": np.array([0, 0, 4, 0, 0, 0]), "fill": np.float32(fill)}
    kernels = {name: weights(4, 4, 3) for name in ("wa", "wb", "wc")}
    delay = stream(model(*nodes, **kernels, **constants), chunk=chunk, allow_delay=True)["delay"]
    assert delay == (1 if fill == 0 else 4)


def test_transposed_convolution_without_pads_by_name() -> None:
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], strides=[2], auto_pad="VALID")
    assert stream(model(node, w=weights(4, 3, 5)), chunk=2, allow_delay=True)["unreached"] == {"y": 3}


def test_a_region_of_the_sequence_is_not_resized() -> None:
    node = helper.make_node(
        "Resize",
        ["x", "region", "", "s"],
        ["y"],
        mode="linear",
        coordinate_transformation_mode="tf_crop_and_resize",
    )
    region = np.array([0, 0, 0, 1, 1, 0.5], np.float32)
    source = model(node, region=region, s=np.array([1, 4, 12]))
    source.graph.input[0].type.tensor_type.shape.dim[2].dim_value = 12
    with pytest.raises(rnnlower.UnsupportedModelError, match="resizes a region"):
        rnnlower.stream(source, time_axes={"x": 2})


@pytest.mark.parametrize(("ahead", "stride", "delay"), [(1, 2, 2), (2, 3, 3), (3, 2, 4)])
def test_outputs_of_two_rates_are_late_by_whole_frames_of_both(ahead: int, stride: int, delay: int) -> None:
    nodes = [
        helper.make_node("Conv", ["x", "v"], ["y"], pads=[0, ahead]),
        helper.make_node("Conv", ["x", "w"], ["z"], strides=[stride]),
    ]
    source = model(*nodes, v=weights(3, 4, ahead + 1), w=weights(3, 4, stride))
    source.graph.output.add(name="z").type.tensor_type.elem_type = TensorProto.FLOAT
    assert stream(source, chunk=2 * stride, allow_delay=True)["delay"] == delay


def test_frames_that_a_stream_never_reaches_are_those_of_the_output() -> None:
    source = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["" : 17]>
        main (float[T, 1, 2] x) => (float[U, 1, 2] y)
        <float[1, 2, 2] W = {0.5, -0.4, 0.3, 0.2}, float[1, 2, 2] R = {0.5, -0.4, 0.3, 0.2},
         int64[1] one = {1}, int64[6] pads = {3, 0, 0, 0, 0, 0}, int64[3] shape = {-1, 1, 2}> {
            h = Pad (x, pads) Y = RNN <hidden_size = 2> (h, W, R) z = Squeeze (Y, one)
            twice = Concat <axis = 2> (z, z) y = Reshape (twice, shape) }""")
    streaming = rnnlower.stream(source, allow_delay=True)
    told = json.loads({each.key: each.value for each in streaming.metadata_props}["rnnlower.stream"])
    assert told["unreached"] == {"y": 6}
    assert rnnlower.verify(source, streaming, trials=3)
