"""ONNX files: reading, checks of the protobuf, and publication of a result, whole or not at all."""
