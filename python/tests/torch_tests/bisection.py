"""Entmax attention in float64 that shares nothing with the library: thresholds by bisection, gradients by one Newton step."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def entmax(scores, alpha):
    """p of the last dimension's rows; alpha: float64, broadcasts to scores with 1 there. Rows of -inf give zeros."""
    less_one = alpha - 1
    seen = scores > -torch.inf
    largest = scores.detach().amax(-1, keepdim=True).clamp(min=-1e300)
    z = torch.where(seen, less_one * torch.where(seen, scores - largest, 0.0), -torch.inf)
    low, high = torch.full_like(z[..., :1], -1.0), torch.zeros_like(z[..., :1])

    def powers(tau):
        return torch.where(z > tau, (z - tau).clamp(min=1e-300) ** (1 / less_one), 0.0)

    with torch.no_grad():
        for _ in range(56):
            middle = (low + high) / 2
            above = powers(middle).sum(-1, keepdim=True) > 1
            low, high = torch.where(above, middle, low), torch.where(above, high, middle)
        p = powers(low)
        slope = (torch.where(p > 0, p ** (2 - alpha), 0.0) / less_one).sum(-1, keepdim=True).clamp(min=1e-300)
    total = powers(low).sum(-1, keepdim=True)
    tau = low + torch.where(p.sum(-1, keepdim=True) > 0, (total - total.detach()) / slope, 0.0)  # its value is low, its gradient tau's
    return powers(tau)


def attention(
    q, k, v, *, alpha=1.5, scale=None, mask=None, bias=None, softcap=None, sinks=None, k_keep=None, factors=None
):  # fmt: skip
    """(out, p) in float64. mask: bool, broadcasts to the scores; alpha, factors: numbers, or [q_heads]; k_keep: a list of q_heads."""
    q, k, v = q.double(), k.double(), v.double()
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if factors is not None:
        scores = scores * torch.as_tensor(factors, dtype=torch.float64).reshape(-1, 1, 1)
    if softcap is not None:
        scores = softcap * torch.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias.double()
    seen = torch.ones_like(scores, dtype=torch.bool) if mask is None else mask.expand_as(scores)
    scores = torch.where(seen, scores, -torch.inf)
    for head, keep in enumerate(k_keep or ()):
        if 0 < keep < scores.shape[-1]:
            least = scores[:, head].topk(keep, -1)[0][..., -1:]
            scores[:, head] = torch.where(scores[:, head] >= least, scores[:, head], -torch.inf)
    if sinks is not None:
        scores = torch.cat([scores, sinks.double().view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
    p = entmax(scores, torch.as_tensor(alpha, dtype=torch.float64).reshape(-1, 1, 1))
    p = F.pad(p, (0, -1)) if sinks is not None else p
    return p @ v, p
