"""PyTorch's custom operators ``torch.ops.splash_attention.*``: shapes for the compiler, gradients, vmap.

  entmax(scores [rows, n], alpha [1 or rows] or None, alpha_value) -> p [rows, n]
  attention(q, k, v, alpha [1 or q_heads] or None, alpha_value, …, counted, with_peak, capacity)
      -> out, tau, support, peak, store
  probabilities(q, k, …) -> row_offsets, columns, values, before dropout

Arguments between the tensors and `counted` are a Problem.

alpha_value stands where alpha is None. scale 0 stands for 1/sqrt(head_dim), k_keep 0 for all keys, window 0 for no window;
head_k_keep (int32 [q_heads], below 1 all keys) stands in k_keep's place. tau_offsets [batch, q_heads, q_len] gives thresholds in place of
solving for them: tau = m + offset, held in tau's bracket [-1, -kv_len^(1-alpha)]; NaN gives a NaN row. They are constants
in the gradient (cpu_ref/attention/given_threshold.h). softcap 0 caps no score; sinks, of numbers, has one a query head;
dropout drops as dropout_seed, int64 [1], has it (core/dropout.h): forward and backward of one seed drop the same; bias, of numbers [q_heads,
distances], begins at the distance bias_first (core/distance_bias.h); pairs, int64 [1, batch or batch * q_heads, q_len, words], is a mask of a bit
a pair (core/pair_words.h). tau and support are
empty unless `counted` is set, peak unless `with_peak` is: it is m - tau, m the row's largest z. store is what a GPU's
forward leaves for backward (gpu/entmax/support/store.h): room for `capacity` entries of the support; rows with broad supports
are in it only with counted or with_peak, else backward computes these again. It is empty where capacity is below 0, and in
host memory: backward then computes forward again, as it does where the store is too small.
Each operator has its backward operator; a second derivative raises.
"""

from __future__ import annotations

import functools
import os
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from splash_attention import _core
from splash_attention.backends.host_arrays import make_spec

NAMESPACE = "splash_attention"
KEPT = 3  # arguments of attention behind the problem: counted, with_peak, capacity
TABLES = ("q_positions", "k_positions", "cu_seqlens_q", "cu_seqlens_k")



class Problem(NamedTuple):
    """What operators of attention take beside q, k and v, as said above."""

    alpha: Tensor | None
    alpha_value: float
    causal: bool
    scale: float
    k_keep: int
    window: int
    softcap: float = 0.0
    dropout: float = 0.0
    bias_first: int = 0
    q_positions: Tensor | None = None
    k_positions: Tensor | None = None
    cu_seqlens_q: Tensor | None = None
    cu_seqlens_k: Tensor | None = None
    tau_offsets: Tensor | None = None
    head_k_keep: Tensor | None = None
    sinks: Tensor | None = None
    dropout_seed: Tensor | None = None
    bias: Tensor | None = None
    pairs: Tensor | None = None

    @property
    def tables(self) -> tuple[Tensor | None, ...]:
        """Of the mask."""
        return self[9:13]

    @property
    def lengths(self) -> tuple[Tensor, Tensor] | None:
        """cu_seqlens."""
        return None if self.cu_seqlens_q is None or self.cu_seqlens_k is None else (self.cu_seqlens_q, self.cu_seqlens_k)

    @property
    def is_plain(self) -> bool:
        """Made of numbers, but for alpha and cu_seqlens."""
        return self.q_positions is None and all(part is None for part in self[13:])

    @property
    def is_modified(self) -> bool:
        """Has what the kernels alone compute, and neither dense.py nor given thresholds take."""
        return self.softcap > 0 or self.dropout > 0 or self.sinks is not None or self.bias is not None

    @property
    def learned(self) -> tuple[Tensor | None, ...]:
        """What has a gradient beside q, k and v."""
        return self.alpha, self.sinks, self.bias


_SINKS, _BIAS = Problem._fields.index("sinks"), Problem._fields.index("bias")
_problem = (
    "Tensor? alpha, float alpha_value, bool causal, float scale, int k_keep, int window, float softcap, float dropout, SymInt bias_first, "
    "Tensor? q_positions, Tensor? k_positions, Tensor? cu_seqlens_q, Tensor? cu_seqlens_k, Tensor? tau_offsets, "
    "Tensor? head_k_keep, Tensor? sinks, Tensor? dropout_seed, Tensor? bias, Tensor? pairs"
)
library = torch.library.Library(NAMESPACE, "DEF")
library.define("entmax(Tensor scores, Tensor? alpha, float alpha_value) -> Tensor")
library.define("entmax_backward(Tensor p, Tensor d_p, Tensor? alpha, float alpha_value) -> (Tensor, Tensor)")
library.define(
    f"attention(Tensor q, Tensor k, Tensor v, {_problem}, bool counted, bool with_peak, int capacity)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)"
)
library.define(
    f"attention_backward(Tensor d_out, Tensor q, Tensor k, Tensor v, {_problem}, Tensor store)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)"
)
library.define(f"probabilities(Tensor q, Tensor k, {_problem}) -> (Tensor, Tensor, Tensor)")
_ops = torch.ops.splash_attention


@functools.cache
def nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    """In the place of what is not kept."""
    with torch.inference_mode(False):  # what is made in inference mode autograd would refuse later
        return torch.empty(0, dtype=dtype, device=device)


def _computed_dtype(tensor: Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _numpy(tensor: Tensor) -> Any:
    """As the library takes it: contiguous, float64 as it is, narrower types as float32."""
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.dtype != torch.float32 and tensor.dtype != torch.float64:
        tensor = tensor.float()
    return tensor.contiguous().numpy()


@functools.cache
def _outlive_forks() -> None:
    """PyTorch's threads on a CPU end in a forked child, and it waits for them forever: the child goes on with one."""
    os.register_at_fork(after_in_child=lambda: torch.set_num_threads(1))


def _tensor(array: Any, dtype: torch.dtype) -> Tensor:
    _outlive_forks()
    tensor = torch.from_numpy(array)
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def host_alphas(alpha: Tensor | None, alpha_value: float) -> list[float]:
    if alpha is None:
        return [alpha_value]
    # On a GPU the kernels read alpha; to look at it here would wait for them.
    return [1.5] * alpha.numel() if alpha.is_cuda else alpha.detach().reshape(-1).tolist()


def extents_of(q_shape: torch.Size, k_shape: torch.Size) -> tuple[int, ...]:
    """batch, q_heads, kv_heads, q_len, kv_len, head_dim."""
    (batch, q_heads, q_len, head_dim), (_, kv_heads, kv_len, _) = q_shape, k_shape
    return batch, q_heads, kv_heads, q_len, kv_len, head_dim


@functools.lru_cache(maxsize=1024)
def _plain_spec(q_shape: torch.Size, k_shape: torch.Size, alpha: float, *numbers: Any) -> _core.Spec:
    return make_spec(extents_of(q_shape, k_shape), [alpha], *numbers, [None] * len(TABLES))


def spec_of(q: Tensor, k: Tensor, problem: tuple[Any, ...]) -> _core.Spec:
    """Of numbers alone it is made once."""
    p = Problem(*problem)
    if p.alpha is None and p.is_plain and p.lengths is None and not p.is_modified:
        return _plain_spec(q.shape, k.shape, *p[1:6])
    rows = [None if table is None else table.cpu().numpy() for table in p.tables]
    heads = [] if p.head_k_keep is None else p.head_k_keep.clamp(min=0).tolist()
    sinks = [] if p.sinks is None else p.sinks.detach().tolist()
    seed = 0 if p.dropout_seed is None else int(p.dropout_seed)
    bias = None if p.bias is None else np.ascontiguousarray(p.bias.detach().to("cpu", torch.float64).numpy())
    pairs = None if p.pairs is None else p.pairs.cpu().numpy()
    modifications = (heads, p.softcap, sinks, p.dropout, seed, bias, p.bias_first, pairs)
    return make_spec(extents_of(q.shape, k.shape), host_alphas(p.alpha, p.alpha_value), *p[2:6], rows, *modifications)


# --- on the CPU ---


def _row_alphas(alpha: Tensor | None, alpha_value: float) -> Any:
    return np.array([alpha_value]) if alpha is None else _numpy(alpha.double())


def _offsets(q: Tensor, problem: tuple[Any, ...]) -> Any:
    offsets = Problem(*problem).tau_offsets
    return None if offsets is None else _numpy(offsets.to(_computed_dtype(q)))


def entmax_cpu(scores: Tensor, alpha: Tensor | None, alpha_value: float) -> Tensor:
    return _tensor(_core.entmax(_numpy(scores), _row_alphas(alpha, alpha_value)), scores.dtype)


def entmax_backward_cpu(p: Tensor, d_p: Tensor, alpha: Tensor | None, alpha_value: float) -> tuple[Tensor, Tensor]:
    d_scores, d_alpha = _core.entmax_gradient(_numpy(p), _numpy(d_p), _row_alphas(alpha, alpha_value))
    return _tensor(d_scores, p.dtype), torch.from_numpy(d_alpha)


def output_cpu(q: Tensor, k: Tensor, v: Tensor, *problem: Any) -> Tensor:
    """attention's out alone."""
    out = _core.attention_forward(spec_of(q, k, problem), _numpy(q), _numpy(k), _numpy(v), False, _offsets(q, problem))[0]
    return _tensor(out, q.dtype)


def kept_output_cpu(q: Tensor, k: Tensor, v: Tensor, *problem: Any) -> tuple[Tensor, Tensor]:
    """out, and in the place of a store nothing: backward computes the support again."""
    return output_cpu(q, k, v, *problem), nothing(torch.uint8, q.device)


def attention_cpu(q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    problem, (counted, with_peak, _) = inputs[:-KEPT], inputs[-KEPT:]
    out, tau, support, peak = _core.attention_forward(
        spec_of(q, k, problem), _numpy(q), _numpy(k), _numpy(v), with_peak, _offsets(q, problem)
    )
    rows = [torch.from_numpy(part) if counted else _empty(part) for part in (tau, support)]
    return _tensor(out, q.dtype), *rows, torch.from_numpy(peak), torch.empty(0, dtype=torch.uint8)


def _empty(array: Any) -> Tensor:
    return torch.from_numpy(array).new_empty(0)


def attention_backward_cpu(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    d_q, d_k, d_v, *of_heads = _core.attention_backward(
        spec_of(q, k, inputs[:-1]), _numpy(q), _numpy(k), _numpy(v), _numpy(d_out), _offsets(q, inputs[:-1])
    )
    return _tensor(d_q, q.dtype), _tensor(d_k, q.dtype), _tensor(d_v, q.dtype), *map(torch.from_numpy, of_heads)


def _probabilities_cpu(q: Tensor, k: Tensor, *problem: Any) -> tuple[Tensor, Tensor, Tensor]:
    keys = _numpy(k)
    spec, given = spec_of(q, k, problem), _offsets(q, problem)
    offsets, columns, values = _core.attention_probabilities(spec, _numpy(q), keys, keys, given)
    return torch.from_numpy(offsets), torch.from_numpy(columns), _tensor(values, q.dtype)


for _name, _function in (
    ("entmax", entmax_cpu),
    ("entmax_backward", entmax_backward_cpu),
    ("attention", attention_cpu),
    ("attention_backward", attention_backward_cpu),
    ("probabilities", _probabilities_cpu),
):
    library.impl(_name, _function, "CPU")


# --- shapes, for the compiler ---


@torch.library.register_fake(f"{NAMESPACE}::entmax")
def _(scores: Tensor, alpha: Tensor | None, alpha_value: float) -> Tensor:
    return torch.empty_like(scores, memory_format=torch.contiguous_format)


@torch.library.register_fake(f"{NAMESPACE}::entmax_backward")
def _(p: Tensor, d_p: Tensor, alpha: Tensor | None, alpha_value: float) -> tuple[Tensor, Tensor]:
    d_scores = torch.empty_like(p, memory_format=torch.contiguous_format)
    return d_scores, p.new_empty((p.shape[0],), dtype=torch.float64)


@torch.library.register_fake(f"{NAMESPACE}::attention")
def _(q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    counted, with_peak, capacity = inputs[-KEPT:]
    rows, dtype = q.shape[:3], _computed_dtype(q)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    tau = q.new_empty(rows if counted else (0,), dtype=dtype)
    support = q.new_empty(rows if counted else (0,), dtype=torch.int32)
    peak = q.new_empty(rows if with_peak else (0,), dtype=dtype)
    kept = q.device.type == "cuda" and capacity >= 0
    return out, tau, support, peak, q.new_empty((store_bytes(q.shape, capacity) if kept else 0,), dtype=torch.uint8)


def store_bytes(q_shape: torch.Size, capacity: int) -> int:
    """Of a GPU's store, as the library lays it out, in arithmetic that the compiler can trace."""
    batch, heads, q_len, _ = q_shape
    fixed, a_row, a_head, an_entry = _core.store_size
    return fixed + a_row * batch * heads * q_len + a_head * batch * heads + an_entry * capacity


@torch.library.register_fake(f"{NAMESPACE}::attention_backward")
def _(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    d_q, d_k, d_v = (torch.empty_like(t, memory_format=torch.contiguous_format) for t in (q, k, v))
    bias = Problem(*inputs[:-1]).bias
    shapes = ((q.shape[1],), (q.shape[1],), (q.shape[1], 0 if bias is None else bias.shape[1]))
    return d_q, d_k, d_v, *(q.new_empty(shape, dtype=torch.float64) for shape in shapes)


@torch.library.register_fake(f"{NAMESPACE}::probabilities")
def _(q: Tensor, k: Tensor, *problem: Any) -> tuple[Tensor, Tensor, Tensor]:
    entries = torch.library.get_ctx().new_dynamic_size()
    rows = q.shape[0] * q.shape[1] * q.shape[2]
    offsets = q.new_empty((rows + 1,), dtype=torch.int64)
    return offsets, q.new_empty((entries,), dtype=torch.int32), q.new_empty((entries,))


# --- gradients ---


def alpha_gradient(alpha: Tensor | None, d_alpha: Tensor) -> Tensor | None:
    """d_alpha has an entry a row or head; alpha may have one for all."""
    if alpha is None:
        return None
    total = d_alpha.sum() if alpha.numel() == 1 else d_alpha
    return total.to(alpha.dtype).reshape(alpha.shape)


def entmax_setup(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, alpha, ctx.alpha_value = inputs
    ctx.save_for_backward(output, alpha)


def entmax_gradient(ctx: Any, d_p: Tensor, *, call: Any = _ops.entmax_backward) -> tuple[Any, ...]:
    p, alpha = ctx.saved_tensors
    d_scores, d_alpha = call(p, d_p, alpha, ctx.alpha_value)
    return d_scores, alpha_gradient(alpha, d_alpha), None


def attention_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    q, k, v, alpha, *others = inputs
    ctx.constants = others[:8]  # alpha_value to bias_first
    ctx.save_for_backward(q, k, v, alpha, *others[8:-KEPT], output[-1])
    ctx.set_materialize_grads(False)


def operator_setup(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    attention_setup(ctx, inputs, output)
    ctx.mark_non_differentiable(*output[1:])


def attention_gradient(
    ctx: Any, d_out: Tensor | None, *_: Any, call: Any = _ops.attention_backward
) -> tuple[Any, ...]:
    q, k, v, alpha, *tables, store = ctx.saved_tensors
    if d_out is None:
        return (None,) * (3 + len(Problem._fields) + KEPT)
    d_q, d_k, d_v, d_alpha, d_sinks, d_bias = call(d_out, q, k, v, alpha, *ctx.constants, *tables, store)
    _, sinks, bias = Problem(alpha, *ctx.constants, *tables).learned
    of_problem = [None] * (len(Problem._fields) + KEPT)
    of_problem[0] = alpha_gradient(alpha, d_alpha)
    of_problem[_SINKS] = None if sinks is None else d_sinks.to(sinks.dtype)
    of_problem[_BIAS] = None if bias is None else d_bias.to(bias.dtype)
    return (d_q, d_k, d_v, *of_problem)


torch.library.register_autograd(f"{NAMESPACE}::entmax", entmax_gradient, setup_context=entmax_setup)
torch.library.register_autograd(f"{NAMESPACE}::attention", attention_gradient, setup_context=operator_setup)


def no_second_derivative(ctx: Any, *_: Any) -> None:
    raise NotImplementedError(
        "the second derivative of entmax and of entmax attention is not implemented; differentiate once, without "
        "create_graph"
    )


torch.library.register_autograd(f"{NAMESPACE}::entmax_backward", no_second_derivative)
torch.library.register_autograd(f"{NAMESPACE}::attention_backward", no_second_derivative)


# --- vmap ---


def _no_vmap(what: str) -> NotImplementedError:
    return NotImplementedError(f"torch.vmap over {what} is not implemented; call it in a loop")


def _front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    """With the mapped dimension first, one copy a place where it was not mapped."""
    return tensor.unsqueeze(0).expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


@torch.library.register_vmap(f"{NAMESPACE}::entmax")
def _(info: Any, in_dims: tuple[Any, ...], scores: Tensor, alpha: Tensor | None, alpha_value: float) -> Any:
    stacked = _front(scores, in_dims[0], info.batch_size)
    rows = stacked.shape[1]
    if alpha is not None:
        alpha = _front(alpha, in_dims[1], info.batch_size)
        alpha = alpha.expand(info.batch_size, rows).reshape(-1)
    p = _ops.entmax(stacked.reshape(-1, stacked.shape[-1]), alpha, alpha_value)
    return p.reshape(stacked.shape), 0


@torch.library.register_vmap(f"{NAMESPACE}::entmax_backward")
def _(info: Any, in_dims: tuple[Any, ...], p: Tensor, d_p: Tensor, alpha: Tensor | None, alpha_value: float) -> Any:
    p, d_p = (_front(t, dim, info.batch_size) for t, dim in zip((p, d_p), in_dims))
    rows = p.shape[1]
    if alpha is not None:
        alpha = _front(alpha, in_dims[2], info.batch_size).expand(info.batch_size, rows).reshape(-1)
    d_scores, d_alpha = _ops.entmax_backward(
        p.reshape(-1, p.shape[-1]), d_p.reshape(-1, p.shape[-1]), alpha, alpha_value
    )
    return (d_scores.reshape(p.shape), d_alpha.reshape(info.batch_size, rows)), (0, 0)


def _mapped_batches(info: Any, in_dims: tuple[Any, ...], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """The mapped dimension becomes a part of the batch."""
    return [_front(t, dim, info.batch_size).flatten(0, 1) for t, dim in zip(tensors, in_dims)]


def _check_mapped(in_dims: tuple[Any, ...], problem: tuple[Any, ...]) -> None:
    p = Problem(*problem)
    if any(dim is not None for dim in in_dims):
        raise _no_vmap("alpha, positions, cu_seqlens, k_keep, sinks or a bias of attention")
    if p.tau_offsets is not None:
        raise _no_vmap("attention with given thresholds")
    if p.dropout > 0:
        raise _no_vmap("attention with dropout")
    if any(table is not None and table.dim() > 1 for table in p.tables[:2]) or p.pairs is not None and p.pairs.shape[0] > 1:
        raise _no_vmap("attention with positions or a mask of each batch entry")


@torch.library.register_vmap(f"{NAMESPACE}::attention")
def _(info: Any, in_dims: tuple[Any, ...], q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> Any:
    _check_mapped(in_dims[3:], inputs[:-KEPT])
    *parts, store = _ops.attention(*_mapped_batches(info, in_dims, (q, k, v)), *inputs)
    full = [part.numel() > 0 for part in parts]
    split = (part.unflatten(0, (info.batch_size, -1)) if mapped else part for part, mapped in zip(parts, full))
    return (*split, store), (*(0 if mapped else None for mapped in full), None)


@torch.library.register_vmap(f"{NAMESPACE}::attention_backward")
def _(info: Any, in_dims: tuple[Any, ...], d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> Any:
    *problem, store = inputs
    _check_mapped(in_dims[4:-1], tuple(problem))
    if any(part is not None for part in Problem(*problem).learned):
        raise _no_vmap("the gradient of attention by alpha, sinks and a bias")
    if all(dim is None for dim in in_dims[1:4]):
        store = store.new_empty(0)  # it is that of one forward, and here are as many problems as mapped d_out
    parts = _ops.attention_backward(*_mapped_batches(info, in_dims, (d_out, q, k, v)), *problem, store)
    split = tuple(part.unflatten(0, (info.batch_size, -1)) for part in parts[:3])
    return (*split, *parts[3:]), (0, 0, 0, None, None, None)
