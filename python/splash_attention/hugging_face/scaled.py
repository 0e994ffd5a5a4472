"""Queries times a factor of each head, in one kernel, and their gradients in three."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def scaled_queries(query: Tensor, factors: Tensor) -> Tensor:
    """query [batch, heads, q_len, head_dim] times factors [heads] or [1], float32, each product rounded once to query's dtype. Contiguous,
    as the kernels take it."""
    if torch.compiler.is_compiling() or factors.dtype != torch.float32 or query.dtype not in (torch.bfloat16, torch.float16):
        return (query * factors[:, None, None]).to(query.dtype)
    return _Scaled.apply(query, factors)


class _Scaled(torch.autograd.Function):
    """PyTorch's own operations would write products and gradients in float32 first, twice as many bytes as they need."""

    @staticmethod
    def forward(query: Tensor, factors: Tensor) -> Tensor:
        return _product(query, factors)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, Tensor | None]:
        query, factors = ctx.saved_tensors
        d_query = _product(d_out, factors) if ctx.needs_input_grad[0] else None
        if not ctx.needs_input_grad[1]:
            return d_query, None
        products = torch.addcmul(factors.new_zeros(1), d_out, query)  # in float32, in one kernel
        return d_query, products.sum((0, 2, 3)) if len(factors) > 1 else products.sum().reshape(1)


def _product(of_heads: Tensor, factors: Tensor) -> Tensor:
    out = torch.empty(of_heads.shape, dtype=of_heads.dtype, device=of_heads.device)
    return torch.mul(of_heads, factors[:, None, None], out=out)
