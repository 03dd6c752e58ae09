"""Compiler passes over `onnx_ir` models."""
