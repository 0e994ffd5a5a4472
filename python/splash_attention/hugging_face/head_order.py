"""Between a model's order of heads and the kernels', and queries times a factor of each head.

A model's tensors lie as [batch, length, heads, head_dim] in memory and look like [batch, heads, length, head_dim]; the kernels take the latter
contiguous. On a GPU one kernel copies them, once for forward and backward, and gradients lie as the model's tensors. PyTorch's own copies move
an element at a time, for no two dimensions of the two orders can be joined.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _len_torch_dispatch_stack
from torch.autograd.function import once_differentiable

from splash_attention import _core
from splash_attention.backends.torch import cuda

_HALF = {torch.bfloat16: "bfloat16", torch.float16: "float16"}


def in_kernel_order(heads: Tensor) -> Tensor:
    """[batch, heads, length, head_dim], contiguous."""
    if heads.is_contiguous() or not _takes(heads):
        return heads.contiguous()
    return _ToKernels.apply(heads)


def in_model_order(heads: Tensor) -> Tensor:
    """Of [batch, heads, length, head_dim]: [batch, length, heads, head_dim], contiguous."""
    seen = heads.transpose(1, 2)
    return _ToModel.apply(heads) if not seen.is_contiguous() and _takes(heads) else seen.contiguous()


def scaled_queries(query: Tensor, factors: Tensor) -> Tensor:
    """query [batch, heads, q_len, head_dim] times factors [heads] or [1], float32, each product rounded once to query's dtype. On a GPU
    contiguous, and the sums of gradients by factors are float32."""
    if factors.dtype != torch.float32 or factors.device != query.device or not _takes(query):
        return (query * factors[:, None, None]).to(query.dtype)
    return _Scaled.apply(query, factors.contiguous())


class _ToKernels(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor) -> Tensor:
        return _to_kernels(heads)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Tensor:
        return _to_model(d_out)[0].transpose(1, 2)


class _ToModel(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor) -> Tensor:
        return _to_model(heads)[0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> Tensor:
        return _to_kernels(d_out.transpose(1, 2))


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, factors: Tensor) -> Tensor:
        ctx.save_for_backward(query, factors)
        return _to_kernels(query, factors)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, Tensor | None]:
        query, factors = ctx.saved_tensors
        d_query, sums = _to_model(d_out, factors, query if ctx.needs_input_grad[1] else None)
        return d_query.transpose(1, 2), None if sums is None else sums.sum(1) if len(factors) > 1 else sums.sum().reshape(1)


def _takes(heads: Tensor) -> bool:
    """Whether the kernel takes it, and nobody looks on who would have to see PyTorch's operators."""
    if torch.compiler.is_compiling() or not heads.is_cuda or heads.dtype not in _HALF:
        return False
    if type(heads) not in (Tensor, torch.nn.Parameter) or _are_functorch_transforms_active() or _len_torch_dispatch_stack():
        return False
    if not _core.has_cuda or heads.shape[0] * heads.shape[1] > _core.MOST_ORDERED_HEADS:
        return False
    return not heads.is_neg() and heads.numel() > 0 and heads.shape[3] % 8 == 0


def _lies_well(heads: Tensor) -> bool:
    return heads.stride(3) == 1 and heads.data_ptr() % 16 == 0 and all(apart % 8 == 0 for apart in heads.stride()[:3])


def _to_kernels(heads: Tensor, factors: Tensor | None = None) -> Tensor:
    out = torch.empty(heads.shape, dtype=heads.dtype, device=heads.device)
    _copy(heads, out, factors, None)
    return out


def _to_model(heads: Tensor, factors: Tensor | None = None, beside: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
    """(as [batch, length, heads, head_dim], sums of heads · beside [heads, …] where beside is given)."""
    batch, count, rows, head_dim = heads.shape
    out = torch.empty((batch, rows, count, head_dim), dtype=heads.dtype, device=heads.device)
    return out, _copy(heads, out.transpose(1, 2), factors, beside)


def _copy(heads: Tensor, to: Tensor, factors: Tensor | None, beside: Tensor | None) -> Tensor | None:
    batch, count, rows, head_dim = shape = heads.shape
    heads = heads if _lies_well(heads) else heads.contiguous()
    sums = None
    if beside is not None:
        beside = beside if _lies_well(beside) else beside.contiguous()
        sums = factors.new_empty((count, batch * _core.sums_per_head(rows, head_dim)))
    _core.reorder_heads(
        _HALF[heads.dtype], heads.get_device(), shape, _place(heads), _place(to), _pointer(factors), 0 if factors is None else len(factors),
        None if beside is None else _place(beside), _pointer(sums), cuda.current_stream(heads),
    )  # fmt: skip
    return sums


def _place(heads: Tensor) -> tuple[int, int, int, int]:
    return heads.data_ptr(), *heads.stride()[:3]


def _pointer(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
