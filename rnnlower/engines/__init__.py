"""What runs a model: onnxruntime and the NumPy reference. They import no lowering code."""
