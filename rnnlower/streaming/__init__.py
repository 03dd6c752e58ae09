"""Where the axis of time goes in a graph, what has to be carried from chunk to chunk, and what cannot be."""
