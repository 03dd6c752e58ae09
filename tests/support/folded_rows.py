"""The nodes by which Keras's exports fold rows for a dense layer, and compute the shape to unfold them."""

FOLDED_ROWS = """
            sizes = Shape (x)
            narrow = Cast <to = 6> (sizes)
            outer = Slice (narrow, zero, two)
            joined = Concat <axis = 0> (outer, last)
            shape = Cast <to = 7> (joined)
            f = Reshape (x, rows)
"""
