"""What PyTorch's counter of FLOPs (torch.utils.flop_counter.FlopCounterMode) counts for the operators of attention: the matrix products
of a dense computation over every pair of query and key, visible or not, as for scaled_dot_product_attention, so that shares of a peak
can be compared. What the kernels compute is less: two products a pair of the support beside the screened scores. entmax counts none, as
softmax.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch
from torch.utils.flop_counter import register_flop_formula

_ops = torch.ops.splash_attention
_Shape = Sequence[int]


def _product(q_shape: _Shape, k_shape: _Shape) -> int:
    """Of one product of a query or a row's gradient with each key or value: 2 FLOPs a pair and component."""
    batch, q_heads, q_len, head_dim = q_shape
    return 2 * batch * q_heads * q_len * k_shape[2] * head_dim


@register_flop_formula(_ops.attention)
def _(q_shape: _Shape, k_shape: _Shape, *others: Any, **named: Any) -> int:
    return 2 * _product(q_shape, k_shape)  # scores and output


@register_flop_formula(_ops.attention_backward)
def _(d_out_shape: _Shape, q_shape: _Shape, k_shape: _Shape, *others: Any, **named: Any) -> int:
    return 5 * _product(q_shape, k_shape)  # scores again, dP, and the gradients of q, k and v


@register_flop_formula(_ops.probabilities)
def _(q_shape: _Shape, k_shape: _Shape, *others: Any, **named: Any) -> int:
    return _product(q_shape, k_shape)
