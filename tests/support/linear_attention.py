"""LinearAttention-27 and CausalConvWithState-27 as the ONNX spec defines them, in float64.

One row, one head and one step at a time.
"""

from __future__ import annotations

import numpy as np

RULES = ("linear", "gated", "delta", "gated_delta")


def linear_attention(
    query: np.ndarray,
    key: np.ndarray,
    value: np.ndarray,
    past_state: np.ndarray | None = None,
    decay: np.ndarray | None = None,
    beta: np.ndarray | None = None,
    *,
    q_num_heads: int,
    kv_num_heads: int,
    update_rule: str = "gated_delta",
    scale: float = 0.0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output ``[B, T, H_q * d_v]`` and the state ``[B, H_kv, d_k, d_v]``, both float64."""
    batch, steps, _ = query.shape
    d_k, d_v = key.shape[2] // kv_num_heads, value.shape[2] // kv_num_heads
    scale = scale or 1 / np.sqrt(query.shape[2] // q_num_heads)
    state = np.zeros((batch, kv_num_heads, d_k, d_v)) if past_state is None else past_state.astype(np.float64)
    output = np.zeros((batch, steps, q_num_heads * d_v))
    for row in range(batch):
        for head in range(kv_num_heads):
            s = state[row, head].copy()
            for t in range(steps):
                k = key[row, t, head * d_k : (head + 1) * d_k].astype(np.float64)
                v = value[row, t, head * d_v : (head + 1) * d_v].astype(np.float64)
                if update_rule in ("gated", "gated_delta"):
                    assert decay is not None
                    per_head = decay[row, t].astype(np.float64).reshape(kv_num_heads, -1)[head]
                    s = np.exp(per_head)[:, None] * s
                if update_rule in ("delta", "gated_delta"):
                    assert beta is not None
                    rate = float(beta[row, t, head if beta.shape[2] > 1 else 0])
                    s = s + rate * np.outer(k, v - s.T @ k)
                else:
                    s = s + np.outer(k, v)
                group = q_num_heads // kv_num_heads
                for query_head in range(head * group, (head + 1) * group):
                    q = query[row, t, query_head * d_k : (query_head + 1) * d_k].astype(np.float64)
                    output[row, t, query_head * d_v : (query_head + 1) * d_v] = scale * (q @ s)
            state[row, head] = s
    return output, state


def causal_conv(
    signal: np.ndarray,
    weight: np.ndarray,
    bias: np.ndarray | None = None,
    past_state: np.ndarray | None = None,
    *,
    activation: str = "none",
) -> tuple[np.ndarray, np.ndarray]:
    """Return the output ``[B, C, L]`` and the state ``[B, C, k - 1]``, both float64."""
    batch, channels, length = signal.shape
    width = weight.shape[2]
    past = np.zeros((batch, channels, width - 1)) if past_state is None else past_state.astype(np.float64)
    output = np.zeros((batch, channels, length))
    state = np.zeros((batch, channels, width - 1))
    for row in range(batch):
        for channel in range(channels):
            whole = [*past[row, channel], *signal[row, channel].astype(np.float64)]
            for t in range(length):
                total = 0.0 if bias is None else float(bias[channel])
                for tap in range(width):
                    total += float(weight[channel, 0, tap]) * whole[t + tap]
                output[row, channel, t] = (
                    total / (1 + np.exp(-total)) if activation in ("silu", "swish") else total
                )
            state[row, channel] = whole[len(whole) - (width - 1) :]
    return output, state
