"""How the functions reach the operators of torch_ops.

An operator called through PyTorch's dispatcher and its registered gradient costs 20 us of Python, more than a small
problem takes. So where nobody but eager autograd looks on, the implementation is called at once; a compiler, a dispatch
mode or a tensor subclass gets the operator; torch.func's transforms get an autograd.Function that they can transform,
which registered gradients are not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _len_torch_dispatch_stack

from splash_attention import torch_ops

_ops = torch.ops.splash_attention
_Tensors = (Tensor, torch.nn.Parameter)


class _Entmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        p = torch_ops.entmax_cpu(*inputs)
        torch_ops.entmax_setup(ctx, inputs, p)
        return p

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:  # with create_graph by the operator, which refuses
        call = _ops.entmax_backward if torch.is_grad_enabled() else torch_ops.entmax_backward_cpu
        return torch_ops.entmax_gradient(ctx, *gradients, call=call)


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        output = torch_ops.attention_cpu(*inputs)
        torch_ops.attention_setup(ctx, inputs, output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        call = _ops.attention_backward if torch.is_grad_enabled() else torch_ops.attention_backward_cpu
        return torch_ops.attention_gradient(ctx, *gradients, call=call)


def _once(operator: Any) -> type[torch.autograd.Function]:
    """A backward operator under transforms."""

    class Once(torch.autograd.Function):
        generate_vmap_rule = True
        forward = staticmethod(lambda *inputs: operator(*inputs))
        setup_context = staticmethod(lambda ctx, inputs, output: None)
        backward = staticmethod(torch_ops.no_second_derivative)

    return Once


def _transformed(operator: Any, setup: Any, gradient: Any, backward_operator: Any) -> type[torch.autograd.Function]:
    """An operator under transforms."""
    backward_function = _once(backward_operator)

    class Transformed(torch.autograd.Function):
        generate_vmap_rule = True
        forward = staticmethod(lambda *inputs: operator(*inputs))
        setup_context = staticmethod(setup)
        backward = staticmethod(lambda ctx, *gradients: gradient(ctx, *gradients, call=backward_function.apply))

    return Transformed


_TransformedEntmax = _transformed(
    _ops.entmax, torch_ops.entmax_setup, torch_ops.entmax_gradient, _ops.entmax_backward
)
_TransformedAttention = _transformed(
    _ops.attention, torch_ops.attention_setup, torch_ops.attention_gradient, _ops.attention_backward
)


def _eager(tensor: Tensor) -> bool:
    return type(tensor) in _Tensors and tensor.device.type == "cpu" and not _len_torch_dispatch_stack()


def _wants_gradient(*inputs: Any) -> bool:
    return torch.is_grad_enabled() and any(isinstance(t, Tensor) and t.requires_grad for t in inputs)


def entmax(scores: Tensor, alpha: Tensor | None, alpha_value: float) -> Tensor:
    if torch.compiler.is_compiling():
        return _ops.entmax(scores, alpha, alpha_value)
    if _are_functorch_transforms_active():
        return _TransformedEntmax.apply(scores, alpha, alpha_value)
    if not _eager(scores):
        return _ops.entmax(scores, alpha, alpha_value)
    call = _Entmax.apply if _wants_gradient(scores, alpha) else torch_ops.entmax_cpu
    return call(scores, alpha, alpha_value)


def attention(q: Tensor, k: Tensor, v: Tensor, *problem: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if torch.compiler.is_compiling():
        return _ops.attention(q, k, v, *problem)
    if _are_functorch_transforms_active():
        return _TransformedAttention.apply(q, k, v, *problem)
    if not _eager(q):
        return _ops.attention(q, k, v, *problem)
    call = _Attention.apply if _wants_gradient(q, k, v, problem[0]) else torch_ops.attention_cpu
    return call(q, k, v, *problem)
