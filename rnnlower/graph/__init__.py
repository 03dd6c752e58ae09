"""What passes need of an `onnx_ir` graph: walking, names, initializers, inlining, cleanup, inference."""
