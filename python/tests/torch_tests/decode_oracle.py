"""What tests of decoding share: the devices that are there, and attention over the same keys in float64."""

from __future__ import annotations

import torch
from splash_attention import entmax

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


def expected(q, keys, values, lengths, alpha, scale=None):
    """keys, values: [batch, kv_heads, n, head_dim]. Dense, in float64."""
    q, keys, values = (x.double().cpu() for x in (q, keys, values))
    batch, q_heads, q_len, dim = q.shape
    group = q_heads // keys.shape[1]
    out = torch.zeros_like(q)
    for b in range(batch):
        for h in range(q_heads):
            for i in range(q_len):
                end = int(lengths[b]) - (q_len - 1 - i)
                if end <= 0:
                    continue
                scores = (dim**-0.5 if scale is None else scale) * keys[b, h // group, :end] @ q[b, h, i]
                p = entmax(scores, alpha=alpha[h] if isinstance(alpha, list) else alpha)
                out[b, h, i] = p @ values[b, h // group, :end]
    return out
