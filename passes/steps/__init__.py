"""The steps of `PIPELINE`: functions that change a model on its way to the result.

`preparing` transforms the whole model until its recurrent nodes can be assessed, `planning` decides what
becomes of each of them, `emitting` replaces them and checks the rest. `work` is the data that the steps
share.
"""
