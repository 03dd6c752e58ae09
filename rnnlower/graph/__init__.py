"""Operations on `onnx_ir` graphs: walking, names, initializers, inlining, cleanup, inference."""
