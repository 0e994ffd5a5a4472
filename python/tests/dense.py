"""entmax and its attention in plain NumPy, double, every score at once: what the library's answers are compared with."""

from __future__ import annotations

import numpy as np


def entmax(scores: np.ndarray, alpha: np.ndarray | float) -> np.ndarray:
    """Of the last dimension; alpha broadcasts to the others. 100 halvings of tau's bracket, then normalised."""
    alpha = np.broadcast_to(np.asarray(alpha, np.float64), scores.shape[:-1])[..., None]
    with np.errstate(invalid="ignore"):
        z = (alpha - 1) * scores.astype(np.float64)
        z = z - z.max(-1, keepdims=True)
    low, high = -np.ones_like(alpha), np.zeros_like(alpha)
    for _ in range(100):
        tau = (low + high) / 2
        mass = (np.clip(np.nan_to_num(z, nan=-np.inf) - tau, 0, None) ** (1 / (alpha - 1))).sum(-1, keepdims=True)
        low, high = np.where(mass >= 1, tau, low), np.where(mass >= 1, high, tau)
    p = np.clip(np.nan_to_num(z, nan=-np.inf) - low, 0, None) ** (1 / (alpha - 1))
    total = p.sum(-1, keepdims=True)
    return np.divide(p, total, out=np.zeros_like(p), where=total > 0)


def attention(
    q: np.ndarray, k: np.ndarray, v: np.ndarray, alpha: np.ndarray | float = 1.5, visible: np.ndarray | None = None,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """(out, p [batch, q_heads, q_len, kv_len]); visible broadcasts to p."""
    group = q.shape[1] // k.shape[1]
    keys, values = (np.repeat(t.astype(np.float64), group, 1) for t in (k, v))
    scores = q.astype(np.float64) @ keys.swapaxes(-1, -2) * (scale or q.shape[-1] ** -0.5)
    if visible is not None:
        scores = np.where(visible, scores, -np.inf)
    p = entmax(scores, np.asarray(alpha, np.float64).reshape(1, -1, 1))
    return p @ values, p


def causal(q_len: int, kv_len: int, window: int | None = None) -> np.ndarray:
    """Query i sees key j iff p - window < j <= p, p = i + kv_len - q_len."""
    visible = np.tril(np.ones((q_len, kv_len), bool), kv_len - q_len)
    return visible if window is None else np.triu(visible, kv_len - q_len - window + 1)


def near(q_len: int, kv_len: int, window: int) -> np.ndarray:
    """Query i sees key j iff |j - p| < window, p = i + kv_len - q_len."""
    places = np.arange(q_len)[:, None] + (kv_len - q_len)
    return np.abs(np.arange(kv_len) - places) < window
