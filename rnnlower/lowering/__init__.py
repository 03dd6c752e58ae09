"""The lowering of recurrent nodes to primitive operators: cells, weights, directions, masks, strategies."""
