"""The small models between opsets, and onnx's own converter as a second opinion where it has one."""

from __future__ import annotations

import pathlib
import re

import onnx
import onnx_ir as ir
import pytest
from support.installed import rnn_is_sound

import rnnlower
from rnnlower.errors import OpsetError
from rnnlower.opset import convert_opset

FOLDER = pathlib.Path(__file__).parents[2] / "models"
# No inputs can be made up for a model that reads its input's shape from another input.
MODELS = [path for path in sorted(FOLDER.glob("*.onnx")) if path.stem != "lstm14_unknown_rank"]
# onnxruntime does not load the first; Python 3.10's has a faulty kernel for the second.
ENGINES = {"lstm14_no_hidden_size": "rnnlower-reference"}
if not rnn_is_sound("bidirectional", None, has_lengths=True):
    ENGINES["rnn14_clip_sequence_lens_states"] = "rnnlower-reference"
# What has no older form in the models on their way to 9.
REFUSED = re.compile(r"bfloat16|GRU-1 has no linear_before_reset|float16.* for 'x_scale'")


@pytest.mark.parametrize("target", [26, 9])
@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_small_model_computes_the_same(path: pathlib.Path, target: int) -> None:
    model = onnx.load(path)
    result, reason = attempt(model, target)
    if result is None:
        assert target == 9
        assert REFUSED.search(reason), reason
        return
    verification = rnnlower.verify(model, result, trials=2, engine=ENGINES.get(path.stem))
    assert verification, verification.outputs


def attempt(model: onnx.ModelProto, target: int) -> tuple[onnx.ModelProto | None, str]:
    """Return the converted model, or why there is none."""
    try:
        return rnnlower.convert(model, opset=target), ""
    except OpsetError as error:
        return None, str(error)


CHAINS = {
    # opset: text of a model that onnx's own converter takes to 21 correctly
    9: """<ir_version: 4, opset_import: ["" : 9]> g (float[2,3,4] x) => (float[n] y) {
        a = ReduceSum <axes = [1], keepdims = 0> (x)
        b = Unsqueeze <axes = [0]> (a)
        c = Clip <min = -0.5, max = 0.75> (b)
        d, e = Split <axis = 2, split = [1, 3]> (c)
        f = Slice <axes = [2], starts = [1], ends = [3]> (e)
        h = Softmax <axis = 2> (f)
        i = Pad <pads = [0, 0, 1, 0, 0, 0], value = 2.0> (h)
        j = Squeeze <axes = [0]> (i)
        k = Dropout <ratio = 0.25> (j)
        v, w = TopK <k = 2> (k)
        y = Flatten <axis = 0> (v)
    }""",
    11: """<ir_version: 6, opset_import: ["" : 11]> g (float[2,3,4] x) => (float[n] y) {
        a = ReduceMean <axes = [-1]> (x)
        b = Sub (x, a)
        c = LogSoftmax <axis = -1> (b)
        d = Unsqueeze <axes = [0, 2]> (c)
        e = Squeeze <axes = [0]> (d)
        f, h = Split <axis = 0> (e)
        i = ReduceSum <keepdims = 0> (f)
        y = Mul (h, i)
    }""",
}


@pytest.mark.parametrize("opset", CHAINS)
@pytest.mark.parametrize("target", [13, 18, 21])
def test_onnxs_own_converter_agrees(opset: int, target: int) -> None:
    model = onnx.parser.parse_model(CHAINS[opset])
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    model.graph.output[0].type.tensor_type.ClearField("shape")
    work = ir.from_proto(model)
    convert_opset(work, target)
    theirs = onnx.version_converter.convert_version(onnx.shape_inference.infer_shapes(model), target)
    theirs.ir_version = work.ir_version
    assert rnnlower.verify(theirs, ir.to_proto(work), trials=3, atol=0, rtol=0)
    ours = sorted(node.op_type for node in ir.to_proto(work).graph.node if node.op_type != "Constant")
    assert ours == sorted(node.op_type for node in theirs.graph.node if node.op_type != "Constant")
