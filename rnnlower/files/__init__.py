"""ONNX files in and out: reading, what a file must be, and publishing a result whole or not at all."""
