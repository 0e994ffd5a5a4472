"""How the functions reach the operators of operators.py.

An operator called through PyTorch's dispatcher and its registered gradient costs 20 us of Python, more than a small
problem takes. So where nobody but eager autograd looks on, the implementation is called at once; a compiler, a dispatch
mode or a tensor subclass gets the operator; torch.func's transforms get an autograd.Function that they can transform,
which registered gradients are not.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor
from torch._C import _are_functorch_transforms_active, _len_torch_dispatch_stack

from splash_attention.backends.torch import cuda, flops, operators
from splash_attention.backends.torch.operators import Problem

_ops = torch.ops.splash_attention
_Tensors = (Tensor, torch.nn.Parameter)
_CU_SEQLENS = slice(Problem._fields.index("cu_seqlens_q") - 1, Problem._fields.index("cu_seqlens_k"))  # of a Problem without its alpha
NO_FORWARD_MODE = "forward-mode differentiation of entmax and of entmax attention is not implemented; use backward"


_entmax = {"cpu": operators.entmax_cpu, "cuda": cuda.entmax}
_entmax_backward = {"cpu": operators.entmax_backward_cpu, "cuda": cuda.entmax_backward}
_attention = {"cpu": operators.attention_cpu, "cuda": cuda.attention}
_output = {"cpu": operators.output_cpu, "cuda": cuda.output}
_kept_output = {"cpu": operators.kept_output_cpu, "cuda": cuda.kept_output}
_attention_backward = {"cpu": operators.attention_backward_cpu, "cuda": cuda.attention_backward}
_output_backward = {"cpu": operators.attention_backward_cpu, "cuda": cuda.output_backward}


def _looked_on() -> bool:
    """Whether a dispatch mode looks on, which sees the operators; one that counts FLOPs is told their formulas."""
    if not _len_torch_dispatch_stack():
        return False
    flops.tell_counters()
    return True


def _direct() -> bool:
    """Whether a backward operator's implementation may be called: not with create_graph, which the operator refuses, nor where a
    mode looks on."""
    return not torch.is_grad_enabled() and not _looked_on()


class _Function(torch.autograd.Function):
    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> None:
        raise NotImplementedError(NO_FORWARD_MODE)


class _Entmax(_Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        p = _entmax[inputs[0].device.type](*inputs)
        operators.entmax_setup(ctx, inputs, p)
        return p

    @staticmethod
    def backward(ctx: Any, d_p: Tensor) -> Any:
        call = _entmax_backward[d_p.device.type] if _direct() else _ops.entmax_backward
        return operators.entmax_gradient(ctx, d_p, call=call)


class _Attention(_Function):
    """As attention's operator, but each argument and each result costs a microsecond: so of the results it has out
    alone and adds the others to a list, and what has no gradient comes as one tuple."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, sinks: Tensor | None, bias: Tensor | None,
        others: tuple[Any, ...], results: list[Tensor],
    ) -> Tensor:  # fmt: skip
        """others: of the operator's arguments those behind alpha, with sinks and bias among them."""
        inputs = (q, k, v, alpha, *others)
        out, *rest = output = _attention[q.device.type](*inputs)
        operators.attention_setup(ctx, inputs, output)
        results += rest
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor | None) -> Any:
        direct = d_out is not None and _direct()
        call = _attention_backward[d_out.device.type] if direct else _ops.attention_backward
        gradients = operators.attention_gradient(ctx, d_out, call=call)
        return *gradients[:4], gradients[3 + operators._SINKS], gradients[3 + operators._BIAS], None, None


class _Output(_Function):
    """out alone, of a plain problem: what backward needs lies in a store, or on the CPU is computed again."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, call: tuple[Any, Any]) -> Tensor:
        """call: what computes out, and its other arguments."""
        compute, others = call
        out, store = compute(q, k, v, alpha, *others)
        ctx.save_for_backward(q, k, v, alpha, store, *others[_CU_SEQLENS])  # saved, so that who writes into them is told
        ctx.others = others
        return out

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> Any:
        q, k, v, alpha, store, *_ = ctx.saved_tensors
        call = _output_backward[q.device.type] if _direct() else _ops.attention_backward
        d_q, d_k, d_v, d_alpha, *_ = call(d_out, q, k, v, alpha, *ctx.others, store)
        return d_q, d_k, d_v, operators.alpha_gradient(alpha, d_alpha), None


def _once(operator: Any) -> type[torch.autograd.Function]:
    """A backward operator under transforms."""

    class Once(_Function):
        generate_vmap_rule = True
        forward = staticmethod(lambda *inputs: operator(*inputs))
        setup_context = staticmethod(lambda ctx, inputs, output: None)
        backward = staticmethod(operators.no_second_derivative)

    return Once


def _transformed(operator: Any, setup: Any, gradient: Any, backward_operator: Any) -> type[torch.autograd.Function]:
    """An operator under transforms."""
    backward_function = _once(backward_operator)

    class Transformed(_Function):
        generate_vmap_rule = True
        forward = staticmethod(lambda *inputs: operator(*inputs))
        setup_context = staticmethod(setup)
        backward = staticmethod(lambda ctx, *gradients: gradient(ctx, *gradients, call=backward_function.apply))

    return Transformed


_TransformedEntmax = _transformed(
    _ops.entmax, operators.entmax_setup, operators.entmax_gradient, _ops.entmax_backward
)
_TransformedAttention = _transformed(
    _ops.attention, operators.operator_setup, operators.attention_gradient, _ops.attention_backward
)


def _eager(tensor: Tensor, device: str) -> bool:
    return type(tensor) in _Tensors and device in _attention and not _looked_on()


def entmax(scores: Tensor, alpha: Tensor | None, alpha_value: float) -> Tensor:
    if torch.compiler.is_compiling():
        return _ops.entmax(scores, alpha, alpha_value)
    if _are_functorch_transforms_active():
        return _TransformedEntmax.apply(scores, alpha, alpha_value)
    device = scores.device.type
    if not _eager(scores, device):
        return _ops.entmax(scores, alpha, alpha_value)
    gradient = torch.is_grad_enabled() and (scores.requires_grad or alpha is not None and alpha.requires_grad)
    call = _Entmax.apply if gradient else _entmax[device]
    return call(scores, alpha, alpha_value)


def _needs_gradient(q: Tensor, k: Tensor, v: Tensor, *learned: Tensor | None) -> bool:
    if not torch.is_grad_enabled():
        return False
    return q.requires_grad or k.requires_grad or v.requires_grad or any(x is not None and x.requires_grad for x in learned)


def repeated_output(
    q: Any, k: Any, v: Any, alpha: Any, causal: Any, scale: Any, k_keep: Any, window: Any, cu_seqlens_q: Any, cu_seqlens_k: Any
) -> Tensor | None:
    """out of a call on a GPU that differs in nothing but values from one that was checked; else None."""
    if not (type(q) in _Tensors and q.is_cuda and type(k) in _Tensors and type(v) in _Tensors):
        return None
    if torch.compiler.is_compiling() or _are_functorch_transforms_active() or _len_torch_dispatch_stack():
        return None
    if q.is_neg() or k.is_neg() or v.is_neg():  # views whose memory holds the values negated
        return None
    learned = alpha if type(alpha) in _Tensors else None
    if type(causal) is not bool or (type(alpha) is not float if learned is None else learned.dtype != torch.float32):
        return None
    if scale is None:
        scale = 0.0
    elif type(scale) is not float or scale == 0:
        return None
    if k_keep is None:
        k_keep = 0
    elif type(k_keep) is not int or k_keep == 0:
        return None
    if window is None:
        window = 0
    elif type(window) is not int or window < 1:
        return None
    lengths = None
    if cu_seqlens_q is not None or cu_seqlens_k is not None:
        if type(cu_seqlens_q) is not Tensor or type(cu_seqlens_k) is not Tensor:
            return None
        lengths = cu_seqlens_q, cu_seqlens_k
    try:
        if not _needs_gradient(q, k, v, learned):
            return cuda.repeated(q, k, v, False, alpha, causal, scale, k_keep, window, lengths)[0]
        problem = Problem(None, alpha if learned is None else 0.0, causal, scale, k_keep, window)
        others = (problem if lengths is None else problem._replace(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k))[1:]
        return _Output.apply(q, k, v, learned, (cuda.repeated_output, others))
    except cuda.Unknown:
        return None


def output(q: Tensor, k: Tensor, v: Tensor, *problem: Any) -> Tensor:
    """attention's out alone, with less around it where only eager autograd looks on."""
    device = q.device.type
    if torch.compiler.is_compiling() or _are_functorch_transforms_active() or not _eager(q, device):
        return attention(q, k, v, *problem)[0]
    p = Problem(*problem)
    if not _needs_gradient(q, k, v, *p.learned):
        return _output[device](q, k, v, *problem)
    if p.is_plain:
        return _Output.apply(q, k, v, p.alpha, (_kept_output[device], problem[1:]))
    return attention(q, k, v, *problem)[0]


def attention(
    q: Tensor, k: Tensor, v: Tensor, *problem: Any, with_peak: bool = False, counted: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(out, tau, support, peak): tau and support are empty unless they are to be counted, peak unless it is asked for."""
    compiling = torch.compiler.is_compiling()
    transformed = not compiling and _are_functorch_transforms_active()
    device = q.device.type
    p = Problem(*problem)
    gradient = _needs_gradient(q, k, v, *p.learned)
    kept = device == "cuda" and (gradient or transformed)
    capacity = cuda.capacity_for(q, k) if kept else -1
    others = (*problem, counted, with_peak, capacity)
    if compiling or (not transformed and not _eager(q, device)):
        return _ops.attention(q, k, v, *others)[:4]
    if transformed:
        _looked_on()
        return _TransformedAttention.apply(q, k, v, *others)[:4]
    if not gradient:
        return _attention[device](q, k, v, *others)[:4]
    results: list[Tensor] = []
    out = _Attention.apply(q, k, v, *p.learned, others[1:], results)
    return out, *results[:3]


def attention_alone(q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """The operator, for who has a gradient of its own."""
    return (_ops.attention if _looked_on() else _attention[q.device.type])(q, k, v, *inputs)


def output_alone(q: Tensor, k: Tensor, v: Tensor, *problem: Any, keeps: bool) -> tuple[Tensor, Tensor]:
    """out, and the store, empty unless it keeps one, of a plain problem; as repeated_output where it was checked before."""
    device, p = q.device.type, Problem(*problem)
    if _looked_on():
        out, *_, store = _ops.attention(q, k, v, *problem, False, False, cuda.capacity_for(q, k) if keeps and q.is_cuda else -1)
        return out, store
    if device == "cuda" and p.alpha is None and not p.is_modified:
        with contextlib.suppress(cuda.Unknown):
            out, store = cuda.repeated(q, k, v, keeps, p.alpha_value, p.causal, p.scale, p.k_keep, p.window, p.lengths)
            return out, store if keeps else operators.nothing(torch.uint8, q.device)
    if keeps:
        return _kept_output[device](q, k, v, *problem)
    return _output[device](q, k, v, *problem), operators.nothing(torch.uint8, q.device)


def attention_backward_alone(
    d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *inputs: Any, d_q_done: Any = None
) -> tuple[Tensor | None, ...]:
    """So; by alpha, sinks and bias None or zeros where there are none. d_q_done: as cuda.gradients has it."""
    if q.is_cuda and not _looked_on():
        return cuda.gradients(d_out, q, k, v, *inputs, d_q_done=d_q_done)
    found = _ops.attention_backward(d_out, q, k, v, *inputs)
    if d_q_done is not None:
        d_q_done.record(cuda.current_stream(q))
    return found


def probabilities(q: Tensor, k: Tensor, *problem: Any) -> tuple[Tensor, Tensor, Tensor]:
    """(row_offsets, columns, values)."""
    if not torch.compiler.is_compiling():
        _looked_on()
    return _ops.probabilities(q, k, *problem)
