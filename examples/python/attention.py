"""Exact alpha-entmax attention, where `scaled_dot_product_attention` was called before. NumPy, on a CPU.

PYTHONPATH=python python examples/python/attention.py     (in a checkout, after ./splash build)

With PyTorch's tensors the same call gives PyTorch's tensors, with gradients, on a CPU or a GPU.
"""

import numpy as np

from splash_attention import splash_attention

random = np.random.default_rng(0)
q = random.standard_normal((1, 8, 256, 64), dtype=np.float32) * 2  # [batch, heads, length, head_dim]
k = random.standard_normal((1, 2, 256, 64), dtype=np.float32)  # 2 key heads serve 8 query heads
v = random.standard_normal((1, 2, 256, 64), dtype=np.float32)

out, aux = splash_attention(q, k, v, alpha=1.5, causal=True, return_aux=True)
print("out", out.shape, "| keys per query with p > 0:", round(float(np.mean(aux.support)), 1))
assert out.shape == q.shape
