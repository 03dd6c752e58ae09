"""Integer recurrence: ranges by role from recordings, and QuantizeLinear/DequantizeLinear by role.

The lowering names its values by role (`Emitter.announce`); an observer notes them, a quantizer replaces them.
There is no second lowering. The rest of the model is quantized by onnxruntime's own tool.
"""
