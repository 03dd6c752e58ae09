"""The lowering of recurrent nodes to primitive operators: cells, weights, directions, masks, strategies."""

FIRST_OPSET = 7
"""The first opset of a lowered model: recurrent operators have their present form from it on."""
LAST_OPSET = 28
"""The last opset of a lowered model."""
