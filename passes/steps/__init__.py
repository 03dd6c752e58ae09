"""The steps of the pipelines: functions that change a model on its way to the result.

`shared` has those of several pipelines, and `lifting_steps` those that lift. `preparing` transforms the whole
model until its recurrent nodes can be assessed, `planning` decides what becomes of each of them, `emitting`
replaces them and checks the rest; `stateful` does both for LinearAttention and CausalConvWithState.
`work` is the data that they share.
"""
