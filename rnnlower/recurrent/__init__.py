"""LSTM, GRU and RNN of every version: signatures and defaults, parsing, the SONNX profile."""
