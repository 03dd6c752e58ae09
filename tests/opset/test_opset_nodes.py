"""A part of onnx's node tests through every version step; `opset_sweep.py` runs all of them."""

from __future__ import annotations

import itertools

import pytest
from opset_sweep import Sweep
from support.opset_cases import node_cases

FAMILIES = {
    "broadcasting": ["prelu", "gemm"],
    "casting": ["constant", "castlike"],
    "control": ["if_", "loop", "scan"],
    "elementwise": ["clip", "pow", "mod"],
    "indexing": ["onehot", "gathernd", "compress"],
    "composed": ["layernormalization", "dft", "trilu", "einsum"],
    "normalization": ["batch_normalization", "groupnormalization"],
    "pooling": ["maxunpool", "maxpool"],
    "quantization": ["quantizelinear", "dequantizelinear"],
    "recurrent": ["lstm", "gru", "rnn"],
    "reductions": ["reducesum", "argmax"],
    "resizing": ["upsample"],
    "shaping": ["squeeze", "split", "slice", "tile", "pad", "topk"],
    "softmax": ["softmax", "hardmax"],
}
# A few of each module tell what the others of it would.
PER_MODULE = 4


@pytest.mark.parametrize("family", FAMILIES)
def test_node_tests_survive_every_step(family: str) -> None:
    sweep = Sweep()
    for module in FAMILIES[family]:
        # The tests of batch_normalization are called test_batchnorm_ and so on.
        prefix = "test" + module.replace("_", "")[:9]
        found = (case for case in node_cases([module]) if case.name.replace("_", "").startswith(prefix))
        sweep.run(itertools.islice(found, PER_MODULE))
    assert sweep.counts["right"] > 10
    assert sweep.problems == []
    assert sweep.upward_refusals == []
