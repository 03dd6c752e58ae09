"""Lifting: a recurrence written as a Loop, a Scan or a straight line becomes an LSTM, GRU or RNN.

The step is read as equations, not as a pattern of nodes (`affine_forms.py`, `symbolic_evaluation.py`), and
compared with those of the cells (`cell_search.py`). A step that updates a matrix is read as sums of
products of tensors (`product_sums.py`, `products.py`) and compared with LinearAttention (`attention.py`); a
depthwise Conv over a past and an input is a CausalConvWithState (`causal_convolutions.py`). Steps that do not
match exactly stay.
"""
