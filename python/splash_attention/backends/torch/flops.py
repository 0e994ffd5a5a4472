"""What PyTorch's counter of FLOPs (torch.utils.flop_counter.FlopCounterMode) counts for the operators of attention: the matrix products
of a dense computation over every pair of query and key, visible or not, as for scaled_dot_product_attention, so that shares of a peak
can be compared. What the kernels compute is less: two products a pair of the support beside the screened scores. entmax counts none, as
softmax.
"""

from __future__ import annotations

import sys
from typing import Any, Sequence

import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

_ops = torch.ops.splash_attention
_Shape = Sequence[int]


def _product(q_shape: _Shape, k_shape: _Shape) -> int:
    """Of one product of each query, or gradient of its output, with each key or value: 2 FLOPs a pair and component."""
    batch, q_heads, q_len, head_dim = q_shape
    return 2 * batch * q_heads * q_len * k_shape[2] * head_dim


def _attention(q_shape: _Shape, k_shape: _Shape, *others: Any, **named: Any) -> int:
    return 2 * _product(q_shape, k_shape)  # scores and output


def _attention_backward(d_out_shape: _Shape, q_shape: _Shape, k_shape: _Shape, *others: Any, **named: Any) -> int:
    return 5 * _product(q_shape, k_shape)  # scores again, dP, and the gradients of q, k and v


def _probabilities(q_shape: _Shape, k_shape: _Shape, *others: Any, **named: Any) -> int:
    return _product(q_shape, k_shape)


_FORMULAS = {
    _ops.attention: _attention,
    _ops.attention_backward: _attention_backward,
    _ops.probabilities: _probabilities,
}


def tell_counters() -> None:
    """Registers the formulas, also with counters that count already. Not at import: the counter's module brings Triton, a quarter of a
    second, and whoever counts has imported it."""
    module = sys.modules.get("torch.utils.flop_counter")
    if module is None:
        return
    for operator, formula in _FORMULAS.items():
        if operator not in module.flop_registry:
            module.register_flop_formula(operator)(formula)
        for mode in _get_current_dispatch_mode_stack():
            registry = getattr(getattr(mode, "counter", mode), "flop_registry", None)  # a copy of the module's, made with the mode
            if isinstance(registry, dict):
                registry.setdefault(operator, module.flop_registry[operator])
