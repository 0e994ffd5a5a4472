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

ENTRIES_A_ROW = 16  # of the first store
_needed: dict[tuple[Any, ...], int] = {}  # entries of stores that were too small, with some room, by problem
_names = {torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def _problem_key(q: Tensor, k: Tensor) -> tuple[Any, ...]:
    return (q.device, q.dtype, tuple(q.shape), tuple(k.shape))


def capacity_for(q: Tensor, k: Tensor) -> int:
    """Entries to make room for: what such a problem needed before, else a guess."""
    rows = q.shape[0] * q.shape[1] * q.shape[2]
    return max(_needed.get(_problem_key(q, k), 0), min(ENTRIES_A_ROW, k.shape[2]) * rows)


@functools.cache
def _checked(device: int) -> int:
    """The stream's device, once it was found to run the library's kernels."""
    _core.require_device(device)
    return device


def _place(tensor: Tensor) -> tuple[int, int]:
    """(device, stream)."""
    device = _checked(tensor.get_device())
    return device, torch._C._cuda_getCurrentRawStream(device)  # without a Python object, which costs microseconds


@functools.cache
def _nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    """In the place of what is not kept."""
    with torch.inference_mode(False):  # what is made in inference mode autograd would refuse later
        return torch.empty(0, dtype=dtype, device=device)


@functools.cache
def _constant(value: float, dtype: torch.dtype, device: int) -> Tensor:
    return torch.tensor([value], dtype=dtype, device=torch.device("cuda", device))


def _alphas(alpha: Tensor | None, alpha_value: float, dtype: torch.dtype, device: int) -> Tensor:
    return _constant(alpha_value, dtype, device) if alpha is None else alpha.detach().to(dtype).contiguous()


def _dense(tensor: Tensor) -> Tensor:
    """Contiguous, and aligned as the kernels need it."""
    fits = tensor.is_contiguous() and tensor.data_ptr() % 16 == 0
    return tensor if fits else tensor.detach().clone(memory_format=torch.contiguous_format)


# --- entmax of rows ---


def entmax(scores: Tensor, alpha: Tensor | None, alpha_value: float) -> Tensor:
    device, stream = _place(scores)
    scores, alphas = scores.detach().contiguous(), _alphas(alpha, alpha_value, torch.float64, scores.get_device())
    p = torch.empty_like(scores)
    rows, n = scores.shape
    _core.cuda_entmax(
        _names[scores.dtype], device, scores.data_ptr(), alphas.data_ptr(), alphas.numel(), rows, n, p.data_ptr(), stream
    )
    return p


def entmax_backward(p: Tensor, d_p: Tensor, alpha: Tensor | None, alpha_value: float) -> tuple[Tensor, Tensor]:
    device, stream = _place(p)
    p, d_p, alphas = p.detach().contiguous(), d_p.detach().contiguous(), _alphas(alpha, alpha_value, torch.float64, device)
    d_scores, d_alpha = torch.empty_like(p), p.new_empty((p.shape[0],), dtype=torch.float64)
    rows, n = p.shape
    _core.cuda_entmax_gradient(
        _names[p.dtype], device, p.data_ptr(), d_p.data_ptr(), alphas.data_ptr(), alphas.numel(), rows, n,
        d_scores.data_ptr(), d_alpha.data_ptr(), stream,
    )  # fmt: skip
    return d_scores, d_alpha


# --- attention ---


class _Problem:
    """A spec with what the kernels read of it in the GPU's memory: alpha, and the mask's tables."""

    def __init__(
        self, q_shape: torch.Size, k_shape: torch.Size, dtype: torch.dtype, device: torch.device, *problem: Any
    ) -> None:
        alpha, alpha_value, causal, _, _, q_positions, k_positions, cu_seqlens_q, cu_seqlens_k = problem
        self.rows, self.dtype, self.shapes = tuple(q_shape[:3]), _names[dtype], (q_shape, k_shape)
        self._store_bytes: dict[int, int] = {}  # by capacity
        q_len, kv_len = q_shape[2], k_shape[2]
        # Of positions the library looks at how many there are; the kernels look at their values.
        there = [None if table is None else np.zeros(table.numel(), np.int64) for table in (q_positions, k_positions)]
        packed = [None if table is None else table.cpu().numpy() for table in (cu_seqlens_q, cu_seqlens_k)]
        self.spec = torch_ops.make_spec_of(q_shape, k_shape, problem, [*there, *packed])
        self.alphas = _alphas(alpha, alpha_value, torch.float32, device.index)
        self.refused: Tensor | None = None  # which alphas the kernels do not take: known to the GPU alone
        if alpha is not None:
            self.refused = self.alphas.clamp(1 + 2**-23, 2) != self.alphas  # outside (1, 2], or NaN
            self.alphas = self.alphas.masked_fill(self.refused, 1.5)
        self.tables: list[Tensor | None] = [None, _int32(q_positions), _int32(k_positions)]
        if packed[0] is not None:
            self.tables[0] = torch.from_numpy(_ranges(packed[0], packed[1], q_len, causal)).to(device)
        sizes = ((q_positions, q_len), (k_positions, kv_len))
        counts = [1 if table is None else table.numel() // length for table, length in sizes]
        self.mask = (*(0 if table is None else table.data_ptr() for table in self.tables), *counts)

    def refuse(self, *results: Tensor) -> None:
        """NaN for heads whose alpha is not taken, in results [batch, heads, …]; the keys' heads have those of their group."""
        if self.refused is None:
            return
        for result in results:
            heads, refused = result.shape[1], self.refused
            if refused.numel() > heads:
                refused = refused.view(heads, -1).any(1)
            result.masked_fill_(refused.view(-1, *[1] * (result.dim() - 2)), torch.nan)

    def store_bytes(self, capacity: int) -> int:
        """As many as the compiler was told, which are no fewer than the kernels need."""
        size = self._store_bytes.get(capacity)
        if size is None:
            size = torch_ops.store_bytes(*self.shapes, max(capacity, 0))
            needed = _core.cuda_store_bytes(self.spec, self.dtype, capacity)
            if size < needed:
                raise RuntimeError(f"the store has {size} bytes; the kernels need {needed}")
            self._store_bytes[capacity] = size
        return size


_number_problem = functools.lru_cache(maxsize=1024)(_Problem)


def _problem_of(q: Tensor, k: Tensor, *problem: Any) -> _Problem:
    """Of numbers alone it is made once."""
    numbers = problem[0] is None and all(table is None for table in problem[5:])
    return (_number_problem if numbers else _Problem)(q.shape, k.shape, q.dtype, q.device, *problem)


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


def _call(
    problem: _Problem, q: Tensor, k: Tensor, v: Tensor, tau: Tensor, support: Tensor, store: Tensor, capacity: int,
    all_rows: bool,
) -> _core.CudaCall:  # fmt: skip
    device, stream = _place(q)
    tensors = (q, k, v, problem.alphas, tau, support, store)
    addresses = (*map(Tensor.data_ptr, tensors), stream)
    return _core.CudaCall(device, problem.dtype, capacity, all_rows, addresses, problem.mask)


def _run(
    problem: _Problem, q: Tensor, k: Tensor, v: Tensor, out: Tensor, tau: Tensor, support: Tensor, capacity: int,
    all_rows: bool,
) -> Tensor:  # fmt: skip
    """Forward into out, tau and support; returns the store."""
    store = q.new_empty((problem.store_bytes(capacity),), dtype=torch.uint8)
    call = _call(problem, q, k, v, tau, support, store, capacity, all_rows)
    _core.cuda_forward(problem.spec, call, out.data_ptr())
    problem.refuse(out, tau)
    return store


def _used(store: Tensor) -> int:
    """Entries that the support has; waits for forward."""
    return int(store[:8].view(torch.int64).item())


def _run_until_it_fits(
    problem: _Problem, q: Tensor, k: Tensor, v: Tensor, out: Tensor, tau: Tensor, support: Tensor, capacity: int,
    all_rows: bool, store: Tensor | None = None,
) -> tuple[Tensor, int]:  # fmt: skip
    """(store, capacity), beginning with a store that may be too small."""
    if store is None:
        store = _run(problem, q, k, v, out, tau, support, capacity, all_rows)
    if torch.cuda.is_current_stream_capturing():
        return store, capacity  # a graph's inputs are to need no more room than those before it
    while (used := _used(store)) > capacity:
        capacity = _needed[_problem_key(q, k)] = used + used // 8
        store = _run(problem, q, k, v, out, tau, support, capacity, all_rows)
    return store, capacity


def attention(q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    with_peak, capacity, all_rows = inputs[-torch_ops.KEPT :]
    problem = _problem_of(q, k, *inputs[: -torch_ops.KEPT])
    q, k, v = _dense(q), _dense(k), _dense(v)
    out, device = torch.empty_like(q), q.device
    tau = q.new_empty(problem.rows, dtype=torch.float32)
    support = q.new_empty(problem.rows, dtype=torch.int32) if capacity >= 0 else _nothing(torch.int32, device)
    if not with_peak:
        store = _run(problem, q, k, v, out, tau, support, capacity, all_rows)
        return out, tau, support, _nothing(torch.float32, device), store if capacity >= 0 else _nothing(torch.uint8, device)
    store, room = _run_until_it_fits(problem, q, k, v, out, tau, support, capacity, all_rows)
    row, _, excess = _entries(problem.spec, q, support, store, room)
    peak = torch.zeros_like(tau)
    peak.view(-1).scatter_reduce_(0, row, excess, "amax")
    peak = torch.where(tau.isnan(), tau, peak)
    if room != capacity:  # backward looks into a store of the capacity that it is told, and finds it too small
        store = _run(problem, q, k, v, out, tau, support, capacity, all_rows)
    return out, tau, support, peak, store


def attention_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *problem_inputs, capacity, all_rows, tau, support, store = inputs
    problem = _problem_of(q, k, *problem_inputs)
    q, k, v, d_out = _dense(q), _dense(k), _dense(v), _dense(d_out)
    d_q, d_k, d_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    # A second forward writes its output into d_q, which backward then overwrites.
    store, capacity = _run_until_it_fits(
        problem, q, k, v, d_q, tau, support, capacity, all_rows, store if store.numel() else None
    )
    learned = problem_inputs[0] is not None
    d_alpha = q.new_zeros((1, q.shape[1]), dtype=torch.float32 if learned else torch.float64)
    call = _call(problem, q, k, v, tau, support, store, capacity, all_rows)
    workspace = q.new_empty((_core.cuda_backward_bytes(problem.spec, call),), dtype=torch.uint8)
    _core.cuda_backward(
        problem.spec, call, d_out.data_ptr(), d_q.data_ptr(), d_k.data_ptr(), d_v.data_ptr(),
        d_alpha.data_ptr() if learned else 0, workspace.data_ptr(),
    )  # fmt: skip
    problem.refuse(d_q, d_k, d_v, d_alpha)
    return d_q, d_k, d_v, d_alpha[0].double()


def _entries(
    spec: _core.Spec, q: Tensor, support: Tensor, store: Tensor, capacity: int
) -> tuple[Tensor, Tensor, Tensor]:
    """(row, key, z - tau) of each entry of a support that is stored whole, row after row."""
    _, offsets_at, columns_at, excess_at = _core.cuda_store_places(spec, _names[q.dtype], capacity)
    counts = support.reshape(-1).to(torch.int64)
    starts = store[offsets_at : offsets_at + 8 * counts.numel()].view(torch.int64)
    row = torch.repeat_interleave(counts)
    first = counts.cumsum(0) - counts
    at = starts[row] + torch.arange(row.numel(), device=row.device) - first[row]
    columns = store[columns_at : columns_at + 4 * capacity].view(torch.int32)[at]
    return row, columns, store[excess_at : excess_at + 4 * capacity].view(torch.float32)[at]


def probabilities(q: Tensor, k: Tensor, *problem_inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    problem = _problem_of(q, k, *problem_inputs)
    q, k = _dense(q), _dense(k)
    tau = q.new_empty(q.shape[:3], dtype=torch.float32)
    support = q.new_empty(q.shape[:3], dtype=torch.int32)
    store, capacity = _run_until_it_fits(
        problem, q, k, k, torch.empty_like(q), tau, support, capacity_for(q, k), True
    )
    row, column, excess = _entries(problem.spec, q, support, store, capacity)
    order = torch.argsort(row * k.shape[2] + column)
    row, column, excess = row[order], column[order], excess[order]
    head = row // q.shape[2] % q.shape[1]
    weights = excess ** (1 / (problem.alphas.expand(q.shape[1])[head] - 1))
    sums = torch.zeros(support.numel(), device=q.device).index_add_(0, row, weights)
    offsets = torch.nn.functional.pad(support.reshape(-1).cumsum(0, dtype=torch.int64), (1, 0))
    values = (weights / sums[row]).to(q.dtype)
    if problem.refused is not None:
        values.masked_fill_(problem.refused.expand(q.shape[1])[head], torch.nan)
    return offsets, column, values


if _core.has_cuda:
    for _name, _function in (
        ("entmax", entmax),
        ("entmax_backward", entmax_backward),
        ("attention", attention),
        ("attention_backward", attention_backward),
        ("probabilities", probabilities),
    ):
        torch_ops.library.impl(_name, _function, "CUDA")
