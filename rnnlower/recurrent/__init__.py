"""LSTM, GRU and RNN of every version: signatures and defaults, parsing, inspection, the SONNX profile."""
