"""The operators on tensors in a GPU's memory: addresses and the current stream go to the library, PyTorch's allocator owns
the memory. Nothing waits, but for: backward, which reads how large the support was; a store that was too small, which
grows; and `probabilities`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splash_attention import _core, torch_ops
from splash_attention.arrays import make_spec
from splash_attention.torch_ops import nothing

ENTRIES_A_ROW = 16  # of the first store
_needed: dict[tuple[Any, ...], int] = {}  # entries of stores that were too small, with some room, by problem
_names = {torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def _problem_key(q: Tensor, k: Tensor) -> tuple[Any, ...]:
    return (q.device, q.dtype, q.shape, k.shape)


def capacity_for(q: Tensor, k: Tensor) -> int:
    """Entries to make room for: what such a problem needed before, else a guess."""
    batch, heads, q_len, _ = q.shape
    return max(_needed.get(_problem_key(q, k), 0), min(ENTRIES_A_ROW, k.shape[2]) * batch * heads * q_len)


@functools.cache
def _checked(device: int) -> int:
    """The stream's device, once it was found to run the library's kernels."""
    _core.require_device(device)
    return device


def _stream(tensor: Tensor) -> int:
    """The current one of the tensor's device, without a Python object, which costs microseconds."""
    return torch._C._cuda_getCurrentRawStream(_checked(tensor.get_device()))


@functools.cache
def _constant(value: float, dtype: torch.dtype, device: int) -> Tensor:
    return torch.tensor([value], dtype=dtype, device=torch.device("cuda", device))


def _alphas(alpha: Tensor | None, alpha_value: float, dtype: torch.dtype, device: int) -> Tensor:
    return _constant(alpha_value, dtype, device) if alpha is None else alpha.detach().to(dtype).contiguous()


def _dense(tensor: Tensor) -> Tensor:
    """Contiguous, and aligned as the kernels need it."""
    if tensor.is_contiguous() and tensor.data_ptr() % 16 == 0:
        return tensor
    return tensor.detach().clone(memory_format=torch.contiguous_format)


# --- entmax of rows ---


def entmax(scores: Tensor, alpha: Tensor | None, alpha_value: float) -> Tensor:
    device, stream = scores.get_device(), _stream(scores)
    scores, alphas = scores.detach().contiguous(), _alphas(alpha, alpha_value, torch.float64, scores.get_device())
    p = torch.empty_like(scores)
    rows, n = scores.shape
    _core.cuda_entmax(
        _names[scores.dtype], device, scores.data_ptr(), alphas.data_ptr(), alphas.numel(), rows, n, p.data_ptr(), stream
    )
    return p


def entmax_backward(p: Tensor, d_p: Tensor, alpha: Tensor | None, alpha_value: float) -> tuple[Tensor, Tensor]:
    device, stream = p.get_device(), _stream(p)
    p, d_p, alphas = p.detach().contiguous(), d_p.detach().contiguous(), _alphas(alpha, alpha_value, torch.float64, device)
    d_scores, d_alpha = torch.empty_like(p), p.new_empty((p.shape[0],), dtype=torch.float64)
    rows, n = p.shape
    _core.cuda_entmax_gradient(
        _names[p.dtype], device, p.data_ptr(), d_p.data_ptr(), alphas.data_ptr(), alphas.numel(), rows, n,
        d_scores.data_ptr(), d_alpha.data_ptr(), stream,
    )  # fmt: skip
    return d_scores, d_alpha


# --- attention ---


def _repeated_calls() -> Any:
    """Of the library, where PyTorch shows its tensors to it (2.10 and newer)."""
    try:
        return _core.RepeatedCalls(Tensor) if _core.has_cuda else None
    except (AttributeError, RuntimeError):
        return None


_repeated = _repeated_calls()


class _Problem:
    """What does not change from call to call: the library's own, and the mask's tables in the GPU's memory."""

    def __init__(
        self, q_shape: torch.Size, k_shape: torch.Size, dtype: torch.dtype, device: torch.device, alphas: int,
        alpha_value: float, causal: bool, scale: float, k_keep: int, *tables: Tensor | None,
    ) -> None:  # fmt: skip
        """alphas: how many a tensor holds; 0 where alpha_value counts."""
        q_positions, k_positions, cu_seqlens_q, cu_seqlens_k = tables or (None,) * 4
        extents = torch_ops.extents_of(q_shape, k_shape)
        q_len, kv_len = q_shape[2], k_shape[2]
        # Of positions the library looks at how many there are; the kernels look at their values.
        there = [None if table is None else np.zeros(table.numel(), np.int64) for table in (q_positions, k_positions)]
        packed = [None if table is None else table.cpu().numpy() for table in (cu_seqlens_q, cu_seqlens_k)]
        alpha = [1.5] * alphas or [alpha_value]  # those in a tensor the kernels alone look at
        self.spec = make_spec(extents, alpha, causal, scale, k_keep, [*there, *packed])
        self.rows, self.shapes = q_shape[:3], (q_shape, k_shape)
        self.ranges = None if packed[0] is None else torch.from_numpy(_ranges(*packed, q_len, causal)).to(device)
        self.positions = (_int32(q_positions), _int32(k_positions))
        kept = (self.ranges, *self.positions)
        sizes = ((q_positions, q_len), (k_positions, kv_len))
        counts = [1 if table is None else table.numel() // length for table, length in sizes]
        mask = (*(0 if table is None else table.data_ptr() for table in kept), *counts)
        self.kernels = _core.DeviceProblem(self.spec, device.index, _names[dtype], not alphas, mask)
        self._store_bytes: dict[int, int] = {}  # by capacity

    def store_bytes(self, capacity: int) -> int:
        """As many as the compiler was told, which are no fewer than the kernels need."""
        size = self._store_bytes.get(capacity)
        if size is None:
            size = torch_ops.store_bytes(*self.shapes, max(capacity, 0))
            needed = self.kernels.store_bytes(capacity)
            if size < needed:
                raise RuntimeError(f"the store has {size} bytes; the kernels need {needed}")
            self._store_bytes[capacity] = size
        return size


_plain_problem = functools.lru_cache(maxsize=1024)(_Problem)


def _problem_of(
    q: Tensor, k: Tensor, alpha: Tensor | None, alpha_value: float, causal: bool, scale: float, k_keep: int,
    *tables: Tensor | None,
) -> tuple[_Problem, Tensor]:  # fmt: skip
    """The problem, made once where no tables belong to it, and its alphas."""
    q_positions, _, cu_seqlens_q, _ = tables
    alphas = 0 if alpha is None else alpha.numel()
    fixed = (q.shape, k.shape, q.dtype, q.device, alphas, alpha_value, causal, scale, k_keep)
    problem = _plain_problem(*fixed) if q_positions is None and cu_seqlens_q is None else _Problem(*fixed, *tables)
    return problem, _alphas(alpha, alpha_value, torch.float32, q.get_device())


def _int32(positions: Tensor | None) -> Tensor | None:
    """Positions as the kernels take them; those beyond 32 bits count as the outermost that these hold."""
    if positions is None:
        return None
    return positions.clamp(-(2**31) + 1, 2**31 - 1).to(torch.int32).contiguous()


def _ranges(cu_q: np.ndarray, cu_k: np.ndarray, q_len: int, causal: bool) -> np.ndarray:
    """First key, and the one after the last, that each query of packed sequences sees: int32 [q_len, 2]."""
    query = np.arange(q_len)
    sequence = np.searchsorted(cu_q, query, side="right") - 1
    begin, end = cu_k[sequence], cu_k[sequence + 1]
    if causal:
        end = np.maximum(begin, np.minimum(end, end - (cu_q[sequence + 1] - 1 - query)))
    return np.stack([begin, end], 1).astype(np.int32)


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _run(
    problem: _Problem, q: Tensor, k: Tensor, v: Tensor, alphas: Tensor, out: Tensor, tau: Tensor | None,
    support: Tensor | None, capacity: int, all_rows: bool,
) -> Tensor:  # fmt: skip
    """Forward into out, and tau and support, or the store's own; returns the store."""
    store = q.new_empty(problem.store_bytes(capacity), dtype=torch.uint8)
    problem.kernels.forward(
        capacity, all_rows, q.data_ptr(), k.data_ptr(), v.data_ptr(), alphas.data_ptr(), out.data_ptr(),
        _address(tau), _address(support), store.data_ptr(), _stream(q),
    )  # fmt: skip
    return store


def _run_until_it_fits(
    problem: _Problem, q: Tensor, k: Tensor, v: Tensor, alphas: Tensor, out: Tensor, tau: Tensor | None,
    support: Tensor | None, capacity: int, all_rows: bool, store: Tensor | None = None,
) -> tuple[Tensor, int]:  # fmt: skip
    """(store, capacity), beginning with a store that may be too small."""
    if store is None:
        store = _run(problem, q, k, v, alphas, out, tau, support, capacity, all_rows)
    if torch.cuda.is_current_stream_capturing():
        return store, capacity  # a graph's inputs are to need no more room than those before it
    while (used := problem.kernels.used(store.data_ptr(), _stream(q))) > capacity:
        capacity = _needed[_problem_key(q, k)] = used + used // 8
        if _repeated is not None:
            _repeated.clear()  # they know the former capacity
        store = _run(problem, q, k, v, alphas, out, tau, support, capacity, all_rows)
    return store, capacity


def output(q: Tensor, k: Tensor, v: Tensor, *problem_inputs: Any) -> Tensor:
    """attention's out alone."""
    return _output(q, k, v, -1, *problem_inputs)[0]


def kept_output(q: Tensor, k: Tensor, v: Tensor, *problem_inputs: Any) -> tuple[Tensor, tuple[Tensor, int]]:
    """out, and with its capacity a store in which tau and the support's counts lie too."""
    capacity = capacity_for(q, k)
    out, store = _output(q, k, v, capacity, *problem_inputs)
    return out, (store, capacity)


def _output(q: Tensor, k: Tensor, v: Tensor, capacity: int, *problem_inputs: Any) -> tuple[Tensor, Tensor]:
    problem, alphas = _problem_of(q, k, *problem_inputs)
    q, k, v = _dense(q), _dense(k), _dense(v)
    out = torch.empty_like(q)
    store = _run(problem, q, k, v, alphas, out, None, None, capacity, False)
    alpha, number, *fixed, q_positions, _, cu_seqlens_q, _ = problem_inputs
    if _repeated is not None and q_positions is None and cu_seqlens_q is None:
        alpha = number if alpha is None else alphas
        _repeated.add(q, k, alpha, *fixed, alphas.data_ptr(), problem.kernels, capacity_for(q, k))
    return out, store


class Unknown(Exception):
    """No such call was checked."""


def repeated(
    q: Tensor, k: Tensor, v: Tensor, keeps: bool, alpha: Tensor | float, causal: bool, scale: float, k_keep: int
) -> tuple[Tensor, Any]:  # fmt: skip
    """out, and True or, where a store is kept, (store, capacity), of a call that differs in nothing but values from one
    that was checked; else raises Unknown."""
    if _repeated is None:
        raise Unknown
    out = torch.empty_like(q)
    kept = _repeated.forward(q, k, v, out, keeps, alpha, causal, scale, k_keep)
    if kept is None:
        raise Unknown
    return out, kept


def repeated_output(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, number: float, causal: bool, scale: float, k_keep: int,
    *tables: None,
) -> tuple[Tensor, tuple[Tensor, int]]:  # fmt: skip
    """kept_output of such a call."""
    return repeated(q, k, v, True, number if alpha is None else alpha, causal, scale, k_keep)


def rows_of(q: Tensor, k: Tensor, store: Tensor, capacity: int, *problem_inputs: Any) -> tuple[Tensor, Tensor]:
    """tau and the support's counts of a store that kept_output left."""
    problem, _ = _problem_of(q, k, *problem_inputs)
    places = problem.kernels.store_places(capacity)
    size = 4 * problem.rows.numel()
    tau, counts = (store[at : at + size].view(kind) for at, kind in zip(places, (torch.float32, torch.int32)))
    return tau.view(problem.rows), counts.view(problem.rows)


def attention(q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    with_peak, capacity, all_rows = inputs[-torch_ops.KEPT :]
    problem, alphas = _problem_of(q, k, *inputs[: -torch_ops.KEPT])
    q, k, v = _dense(q), _dense(k), _dense(v)
    out, device = torch.empty_like(q), q.device
    tau = q.new_empty(problem.rows, dtype=torch.float32)
    support = q.new_empty(problem.rows, dtype=torch.int32) if capacity >= 0 else nothing(torch.int32, device)
    if not with_peak:
        store = _run(problem, q, k, v, alphas, out, tau, support, capacity, all_rows)
        return out, tau, support, nothing(torch.float32, device), store if capacity >= 0 else nothing(torch.uint8, device)
    store, room = _run_until_it_fits(problem, q, k, v, alphas, out, tau, support, capacity, all_rows)
    row, _, excess = _entries(problem, support, store, room)
    peak = torch.zeros_like(tau)
    peak.view(-1).scatter_reduce_(0, row, excess, "amax")
    peak = torch.where(tau.isnan(), tau, peak)
    if room != capacity:  # backward looks into a store of the capacity that it is told, and finds it too small
        store = _run(problem, q, k, v, alphas, out, tau, support, capacity, all_rows)
    return out, tau, support, peak, store


def attention_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    """tau and support None: they lie in the store. A capacity of -1, with which nothing was kept, is one for a second
    forward here."""
    *problem_inputs, capacity, all_rows, tau, support, store = inputs
    if capacity < 0:
        capacity, store = capacity_for(q, k), store.new_empty(0)
    problem, alphas = _problem_of(q, k, *problem_inputs)
    q, k, v, d_out = _dense(q), _dense(k), _dense(v), _dense(d_out)
    d_q, d_k, d_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    # A second forward writes its output into d_q, which backward then overwrites.
    store, capacity = _run_until_it_fits(
        problem, q, k, v, alphas, d_q, tau, support, capacity, all_rows, store if store.numel() else None
    )
    learned = problem_inputs[0] is not None
    d_alpha = q.new_zeros((q.shape[1],), dtype=torch.float32 if learned else torch.float64)
    workspace = q.new_empty(problem.kernels.backward_bytes(capacity, all_rows), dtype=torch.uint8)
    problem.kernels.backward(
        capacity, all_rows, q.data_ptr(), k.data_ptr(), v.data_ptr(), alphas.data_ptr(), _address(tau),
        _address(support), store.data_ptr(), d_out.data_ptr(), d_q.data_ptr(), d_k.data_ptr(), d_v.data_ptr(),
        d_alpha.data_ptr() if learned else 0, workspace.data_ptr(), _stream(q),
    )  # fmt: skip
    return d_q, d_k, d_v, d_alpha.double()


def _entries(
    problem: _Problem, support: Tensor, store: Tensor, capacity: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(row, key, z - tau) of each entry of a support that is stored whole, row after row."""
    *_, offsets_at, columns_at, excess_at = problem.kernels.store_places(capacity)
    counts = support.reshape(-1).to(torch.int64)
    starts = store[offsets_at : offsets_at + 8 * counts.numel()].view(torch.int64)
    row = torch.repeat_interleave(counts)
    first = counts.cumsum(0) - counts
    at = starts[row] + torch.arange(row.numel(), device=row.device) - first[row]
    columns = store[columns_at : columns_at + 4 * capacity].view(torch.int32)[at]
    return row, columns, store[excess_at : excess_at + 4 * capacity].view(torch.float32)[at]


def probabilities(q: Tensor, k: Tensor, *problem_inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    problem, alphas = _problem_of(q, k, *problem_inputs)
    q, k = _dense(q), _dense(k)
    tau = q.new_empty(q.shape[:3], dtype=torch.float32)
    support = q.new_empty(q.shape[:3], dtype=torch.int32)
    store, capacity = _run_until_it_fits(
        problem, q, k, k, alphas, torch.empty_like(q), tau, support, capacity_for(q, k), True
    )
    row, column, excess = _entries(problem, support, store, capacity)
    order = torch.argsort(row * k.shape[2] + column)
    row, column, excess = row[order], column[order], excess[order]
    alpha = alphas.expand(q.shape[1])[row // q.shape[2] % q.shape[1]]
    refused = ~((alpha > 1) & (alpha <= 2))  # the kernels computed these heads with another alpha
    weights = excess ** (1 / (alpha.masked_fill(refused, 1.5) - 1))
    sums = torch.zeros(support.numel(), device=q.device).index_add_(0, row, weights)
    offsets = torch.nn.functional.pad(support.reshape(-1).cumsum(0, dtype=torch.int64), (1, 0))
    return offsets, column, (weights / sums[row]).to(q.dtype).masked_fill_(refused, torch.nan)


if _core.has_cuda:
    for _name, _function in (
        ("entmax", entmax),
        ("entmax_backward", entmax_backward),
        ("attention", attention),
        ("attention_backward", attention_backward),
        ("probabilities", probabilities),
    ):
        torch_ops.library.impl(_name, _function, "CUDA")
