"""A resolved recurrent node becomes primitive operators: cells, weights, directions, masks, strategies."""
