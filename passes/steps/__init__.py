"""The steps of `PIPELINE`: functions that change a model on its way to the result.

`preparing` brings the whole model to where its recurrent nodes can be judged, `choosing` settles what becomes
of each of them, `emitting` replaces them and judges what is left. `work` is what the steps hand on.
"""
