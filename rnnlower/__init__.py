"""Rewrites LSTM, GRU and RNN nodes of ONNX models into primitive operators."""
