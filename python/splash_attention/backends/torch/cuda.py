"""The operators on tensors in a GPU's memory: addresses and the current stream go to the library, PyTorch's allocator owns
the memory. Nothing waits, but for: backward, which reads how large the support was, once its kernels are launched; a store that was too
small, which grows; the first call with given cu_seqlens, which the host reads; and `probabilities`. What the kernels do not take, dense.py
computes.
"""

from __future__ import annotations

import functools
import itertools
import warnings
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from splash_attention import _core
from splash_attention.backends.host_arrays import make_spec
from splash_attention.backends.torch import dense, operators, store_ends
from splash_attention.backends.torch.operators import nothing

ENTRIES_A_ROW = 16  # of the first store
# Of PyTorch: what takes the tensors that autograd saves, or None. Before PyTorch had it, nobody knows.
_hooks = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", lambda ignore_tracing: ())
_needed: dict[tuple[Any, ...], int] = {}  # entries of stores that were too small, with some room, by problem
_names = {torch.float64: "float64", torch.float32: "float32", torch.float16: "float16", torch.bfloat16: "bfloat16"}


def _problem_key(q: Tensor, k: Tensor) -> tuple[Any, ...]:
    return (q.device, q.dtype, q.shape, k.shape)


def first_capacity(q: Tensor, k: Tensor) -> int:
    """Entries that a store has room for, while nothing is known of such problems: of their shapes alone."""
    batch, heads, q_len, _ = q.shape
    return min(ENTRIES_A_ROW, k.shape[2]) * batch * heads * q_len


def capacity_for(q: Tensor, k: Tensor) -> int:
    """Entries to make room for: what such a problem needed before. But of shapes alone where a compiler looks on, which
    would compile anew for each number, and where hooks take what autograd saves: activation checkpoints compute forward
    twice, and expect tensors of the same shapes both times, whatever happened between."""
    if torch.compiler.is_compiling() or _hooks(True) is not None:
        return first_capacity(q, k)
    return max(_needed.get(_problem_key(q, k), 0), first_capacity(q, k))


@functools.cache
def _checked(device: int) -> int:
    """The stream's device, once it was found to run the library's kernels."""
    _core.require_device(device)
    return device


def current_stream(tensor: Tensor) -> int:
    """The current one of the tensor's device, without a Python object, which costs microseconds."""
    return torch._C._cuda_getCurrentRawStream(_checked(tensor.get_device()))


@functools.cache
def _constant(value: float, dtype: torch.dtype, device: int) -> Tensor:
    """Kept for good: a captured graph may read it at any time."""
    return torch.tensor([value], dtype=dtype, device=torch.device("cuda", device))


def _alphas(alpha: Tensor | None, alpha_value: float, dtype: torch.dtype, device: int) -> Tensor:
    return _constant(alpha_value, dtype, device) if alpha is None else alpha.detach().to(dtype).contiguous()


def contiguous_and_aligned(tensor: Tensor) -> Tensor:
    """Contiguous, and aligned as the kernels need it."""
    if tensor.is_contiguous() and tensor.data_ptr() % 16 == 0:
        return tensor
    return tensor.detach().clone(memory_format=torch.contiguous_format)


# --- entmax of rows ---


def entmax(scores: Tensor, alpha: Tensor | None, alpha_value: float) -> Tensor:
    device, stream = scores.get_device(), current_stream(scores)
    scores, alphas = scores.detach().contiguous(), _alphas(alpha, alpha_value, torch.float64, scores.get_device())
    p = torch.empty_like(scores)
    rows, n = scores.shape
    _core.cuda_entmax(
        _names[scores.dtype], device, scores.data_ptr(), alphas.data_ptr(), alphas.numel(), rows, n, p.data_ptr(), stream
    )
    return p


def entmax_backward(p: Tensor, d_p: Tensor, alpha: Tensor | None, alpha_value: float) -> tuple[Tensor, Tensor]:
    device, stream = p.get_device(), current_stream(p)
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
        alpha_value: float, causal: bool, scale: float, k_keep: int, window: int, softcap: float, dropout: float, bias_first: int,
        given: tuple[bool, bool, bool, int], *tables: Tensor | None,
    ) -> None:  # fmt: skip
        """alphas: how many a tensor holds; 0 where alpha_value counts. given: whether calls come with tau_offsets, with a k_keep for
        each head, and with sinks, and of how many distances a bias is. kernels is None where they do not take it."""
        q_positions, k_positions, cu_seqlens_q, cu_seqlens_k, pairs = (*tables, None)[:5] if tables else (None,) * 5
        extents = operators.extents_of(q_shape, k_shape)
        q_len, kv_len = q_shape[2], k_shape[2]
        # Of positions the library looks at how many there are; the kernels look at their values.
        there = [None if table is None else np.zeros(table.numel(), np.int64) for table in (q_positions, k_positions)]
        packed = [None if table is None else table.cpu().numpy() for table in (cu_seqlens_q, cu_seqlens_k)]
        alpha = [alpha_value or 1.5] * alphas or [alpha_value]  # those in a tensor the kernels alone look at
        # These too the kernels alone look at.
        heads, sinks = ([1] * q_shape[1] if there_are else [] for there_are in given[1:3])
        bias = np.zeros((q_shape[1], given[3])) if given[3] else None
        modifications = (heads, softcap, sinks, dropout, 0, bias, bias_first)
        self.spec = make_spec(extents, alpha, causal, scale, k_keep, window, [*there, *packed], *modifications)
        self.rows = q_shape[:3]
        self.ranges = None if packed[0] is None else torch.from_numpy(self.spec.key_ranges()).to(device)
        self.positions = (_int32(q_positions), _int32(k_positions))
        self.pairs = None if pairs is None else pairs.contiguous()
        kept = (self.ranges, *self.positions)
        sizes = ((q_positions, q_len), (k_positions, kv_len))
        counts = [1 if table is None else table.numel() // length for table, length in sizes]
        mask = (*(0 if table is None else table.data_ptr() for table in kept), *counts)
        mask += (0, 1) if self.pairs is None else (self.pairs.data_ptr(), self.pairs.shape[0])
        try:
            self.kernels = _core.DeviceProblem(self.spec, device.index, _names[dtype], not alphas, given[0], mask)
            self.workspace_bytes = self.kernels.workspace_bytes()
        except NotImplementedError:
            self.kernels = None
        if self.kernels is not None and self.kernels.portable_because:
            _say_portable(self.kernels.portable_because)


@functools.cache
def _say_portable(because: str) -> None:
    """Once for each reason."""
    warnings.warn(
        f"splash attention's path for this GPU does not take {because} yet: such calls run on its portable path, which is exact and "
        "deterministic too, but slower",
        stacklevel=3,
    )


_plain_problem = functools.lru_cache(maxsize=1024)(_Problem)
_KEPT_LENGTHS, _KEPT_PROBLEMS = 16, 1024  # pairs of tensors, and problems of each


class _Lengths:
    """Of packed sequences on a stream, a pair of tensors, and the problems made of them. The host reads lengths to make a problem, and
    so waits for the GPU; all layers of a model have the same tensors, forward and backward. So they are kept while the tensors live and
    PyTorch has written nothing into them; for each stream, as a problem's memory is free for others on the stream that took it."""

    _numbers = itertools.count(1)

    def __init__(self, queries: Tensor, keys: Tensor) -> None:
        self.tensors = weakref.ref(queries), weakref.ref(keys)
        self.written = queries._version, keys._version, queries.data_ptr(), keys.data_ptr()
        self.number = next(self._numbers)  # never of others
        self.problems: dict[tuple[Any, ...], _Problem] = {}

    def are(self, queries: Tensor, keys: Tensor) -> bool:
        if self.tensors[0]() is not queries or self.tensors[1]() is not keys:
            return False
        return self.written == (queries._version, keys._version, queries.data_ptr(), keys.data_ptr())


_lengths: dict[tuple[int, int, int], _Lengths] = {}  # the last that were made come last


def known_lengths(stream: int, queries: Tensor, keys: Tensor) -> _Lengths | None:
    """Those that were kept; none while a graph is captured, which would keep them longer."""
    known = _lengths.get((stream, id(queries), id(keys)))
    return known if known is not None and known.are(queries, keys) and not torch.cuda.is_current_stream_capturing() else None


def _packed_number(q: Tensor, lengths: tuple[Tensor, Tensor] | None) -> int | None:
    """That tells repeated calls of what lengths packed sequences are: 0 where none are packed, None where the lengths were not kept."""
    if lengths is None:
        return 0
    known = known_lengths(current_stream(q), *lengths)
    return None if known is None else known.number


def _packed_problem(stream: int, fixed: tuple[Any, ...], queries: Tensor, keys: Tensor) -> _Problem:
    known = known_lengths(stream, queries, keys)
    if known is not None and fixed in known.problems:
        return known.problems[fixed]
    # Of tensors made in inference mode nobody counts what is written.
    if queries.is_inference() or keys.is_inference() or torch.cuda.is_current_stream_capturing():
        return _Problem(*fixed, None, None, queries, keys)
    if known is None or len(known.problems) >= _KEPT_PROBLEMS:
        _lengths.pop((stream, id(queries), id(keys)), None)
        for key, other in list(_lengths.items()):
            if len(_lengths) >= _KEPT_LENGTHS or any(tensor() is None for tensor in other.tensors):
                _lengths.pop(key, None)
        known = _lengths[stream, id(queries), id(keys)] = _Lengths(queries, keys)
    problem = known.problems[fixed] = _Problem(*fixed, None, None, queries, keys)
    return problem


_Given = tuple[Tensor | None, ...]


def _problem_of(q: Tensor, k: Tensor, *inputs: Any) -> tuple[_Problem, Tensor, _Given]:
    """The problem, made once where no positions belong to it, its alphas, and the tables that belong to the call: tau_offsets, a k_keep
    for each head, sinks, dropout's seed and a bias."""
    p = operators.Problem(*inputs)
    alphas = 0 if p.alpha is None else p.alpha.numel()
    distances = 0 if p.bias is None else p.bias.shape[1]
    there = (p.tau_offsets is not None, p.head_k_keep is not None, p.sinks is not None, distances)
    fixed = (q.shape, k.shape, q.dtype, q.device, alphas, *p[1:9], there)
    if p.q_positions is not None or p.pairs is not None:
        problem = _Problem(*fixed, *p.tables, p.pairs)
    else:
        problem = _plain_problem(*fixed) if p.cu_seqlens_q is None else _packed_problem(current_stream(q), fixed, *p.lengths)
    dtypes = (torch.float32, torch.int32, torch.float32, torch.int64, torch.float32)
    given = tuple(_contiguous(table, dtype) for table, dtype in zip(p[13:], dtypes))
    return problem, _alphas(p.alpha, p.alpha_value, torch.float32, q.get_device()), given


def _contiguous(table: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    return None if table is None else table.detach().to(dtype).contiguous()


def takes_alpha(alpha: float) -> bool:
    """Whether the kernels do."""
    return _core.LEAST_ATTENTION_ALPHA <= alpha <= _core.MOST_ATTENTION_ALPHA


def takes_modified(dtype: torch.dtype, head_dim: int, alpha: Any) -> bool:
    """Whether the kernels take such queries with a soft cap, sinks, dropout and a bias. alpha: what is no float is not looked at."""
    fits = dtype != torch.float64 and head_dim % 8 == 0 and head_dim <= 256
    return fits and (type(alpha) is not float or takes_alpha(alpha))


def _dense_problem(problem: _Problem, q: Tensor, *inputs: Any) -> dense.Problem:
    p = operators.Problem(*inputs)
    if p.is_modified:
        raise NotImplementedError("softcap, sinks, dropout and bias take what the kernels take")
    scale = p.scale or q.shape[-1] ** -0.5
    return dense.Problem(*p[:3], scale, *p[4:6], problem.ranges, *problem.positions, p.tau_offsets, p.head_k_keep, p.pairs)


def _int32(positions: Tensor | None) -> Tensor | None:
    """Positions as the kernels take them; those beyond 32 bits count as the outermost that these hold."""
    if positions is None:
        return None
    return positions.clamp(-(2**31) + 1, 2**31 - 1).to(torch.int32).contiguous()


def _addresses(given: _Given) -> tuple[int, ...]:
    return tuple(0 if table is None else table.data_ptr() for table in given)


def _run(
    problem: _Problem, q: Tensor, k: Tensor, v: Tensor, alphas: Tensor, given: _Given, out: Tensor, capacity: int,
    all_rows: bool = False,
) -> Tensor:  # fmt: skip
    """Forward into out; returns the store, which is empty where the capacity is below 0."""
    bytes_ = operators.store_bytes(q.shape, capacity) if capacity >= 0 else 0
    store = q.new_empty(bytes_, dtype=torch.uint8) if bytes_ else nothing(torch.uint8, q.device)
    workspace = q.new_empty(problem.workspace_bytes, dtype=torch.uint8)
    notice = _core.Notice(problem.kernels.key) if bytes_ and not torch.cuda.is_current_stream_capturing() else None
    problem.kernels.forward(
        all_rows, q.data_ptr(), k.data_ptr(), v.data_ptr(), alphas.data_ptr(), out.data_ptr(),
        store.data_ptr() if bytes_ else 0, bytes_, workspace.data_ptr(), current_stream(q),
        _addresses(given), notice,
    )  # fmt: skip
    if bytes_:
        store_ends.note(store, notice)
    return store


def _is_whole(problem: _Problem, store: Tensor, notice: Any) -> bool:
    """Whether it holds all of its support. Waits for the end of forward alone."""
    entries = notice.entries(current_stream(store))
    return entries is not None and problem.kernels.holds(store.numel(), entries)


def _whole_store(
    problem: _Problem, q: Tensor, k: Tensor, v: Tensor, alphas: Tensor, given: _Given, out: Tensor, store: Tensor,
    all_rows: bool = False,
) -> Tensor:  # fmt: skip
    """The store where it holds all of its support, else that of another forward, into out, which has the room. Waits for
    forward. Not while a graph is captured: then the store is taken as it is."""
    while not torch.cuda.is_current_stream_capturing():
        entries = problem.kernels.entries(store.data_ptr(), store.numel(), current_stream(q))
        if problem.kernels.holds(store.numel(), entries):
            break
        _needed[_problem_key(q, k)] = max(_needed.get(_problem_key(q, k), 0), entries + entries // 8)
        store = _run(problem, q, k, v, alphas, given, out, _needed[_problem_key(q, k)], all_rows)
    return store


def output(q: Tensor, k: Tensor, v: Tensor, *problem_inputs: Any) -> Tensor:
    """attention's out alone."""
    return _output(q, k, v, -1, *problem_inputs)[0]


def kept_output(q: Tensor, k: Tensor, v: Tensor, *problem_inputs: Any) -> tuple[Tensor, Tensor]:
    """out and the store."""
    return _output(q, k, v, capacity_for(q, k), *problem_inputs)


def _output(q: Tensor, k: Tensor, v: Tensor, capacity: int, *problem_inputs: Any) -> tuple[Tensor, Tensor]:
    problem, alphas, given = _problem_of(q, k, *problem_inputs)
    if problem.kernels is None:
        return dense.forward(q, k, v, _dense_problem(problem, q, *problem_inputs))[0], nothing(torch.uint8, q.device)
    q, k, v = contiguous_and_aligned(q), contiguous_and_aligned(k), contiguous_and_aligned(v)
    out = torch.empty_like(q)
    store = _run(problem, q, k, v, alphas, given, out, capacity)
    alpha, number, *fixed = problem_inputs[:6]
    p = operators.Problem(*problem_inputs)
    if _repeated is not None and p.is_plain and not p.is_modified:
        packed = _packed_number(q, p.lengths)
        if packed is not None:
            _repeated.add(q, k, number if alpha is None else alphas, *fixed, packed, alphas.data_ptr(), problem.kernels)
    return out, store


class Unknown(Exception):
    """No such call was checked."""


def repeated(
    q: Tensor, k: Tensor, v: Tensor, keeps: bool, alpha: Tensor | float, causal: bool, scale: float, k_keep: int,
    window: int, lengths: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Any]:  # fmt: skip
    """out, and the store where one is kept, of a call that differs in nothing but values from one that was checked; else
    raises Unknown."""
    packed = _packed_number(q, lengths)
    if _repeated is None or packed is None:
        raise Unknown
    out = torch.empty_like(q)
    bytes_ = operators.store_bytes(q.shape, capacity_for(q, k)) if keeps else 0
    kept = _repeated.forward(q, k, v, out, bytes_, alpha, causal, scale, k_keep, window, packed)
    if kept is None:
        raise Unknown
    if not keeps:
        return out, None
    store, notice = kept
    store_ends.note(store, notice)
    return out, store


def repeated_output(
    q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, number: float, causal: bool, scale: float, k_keep: int,
    window: int, *others: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """kept_output of such a call, which is plain: of others only cu_seqlens may differ from a Problem's defaults."""
    lengths = operators.Problem(alpha, number, causal, scale, k_keep, window, *others).lengths
    return repeated(q, k, v, True, number if alpha is None else alpha, causal, scale, k_keep, window, lengths)


def _part(store: Tensor, at: int, count: int, dtype: torch.dtype) -> Tensor:
    return store[at : at + count * dtype.itemsize].view(dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    counted, with_peak, capacity = inputs[-operators.KEPT :]
    problem, alphas, given = _problem_of(q, k, *inputs[: -operators.KEPT])
    # An operator's results are tensors apart, also those that are empty.
    tau, support, peak = (q.new_empty(0, dtype=kind) for kind in (torch.float32, torch.int32, torch.float32))
    if problem.kernels is None:
        out, *rows = dense.forward(q, k, v, _dense_problem(problem, q, *inputs[: -operators.KEPT]))
        wanted = (row if kept else row.new_empty(0) for row, kept in zip(rows, (counted, counted, with_peak)))
        return out, *wanted, q.new_empty(operators.store_bytes(q.shape, capacity) if capacity >= 0 else 0, dtype=torch.uint8)
    room, all_rows = capacity, counted or with_peak
    if capacity < 0:
        room = capacity_for(q, k) if with_peak else 0 if counted else -1
    q, k, v = contiguous_and_aligned(q), contiguous_and_aligned(k), contiguous_and_aligned(v)
    out = torch.empty_like(q)
    store = _run(problem, q, k, v, alphas, given, out, room, all_rows)
    if all_rows:
        row_tau, row_counts = _rows(problem, store)
    if counted:
        tau, support = row_tau, row_counts
    if with_peak:
        whole = _whole_store(problem, q, k, v, alphas, given, out, store, True)
        row, _, excess = _entries(problem, row_counts, whole)
        peak = torch.zeros_like(row_tau)
        peak.view(-1).scatter_reduce_(0, row, excess, "amax")
        peak = torch.where(row_tau.isnan(), row_tau, peak)
    return out, tau, support, peak, store if capacity >= 0 else q.new_empty(0, dtype=torch.uint8)


def _rows(problem: _Problem, store: Tensor) -> tuple[Tensor, Tensor]:
    """tau and the support's counts, apart from the store."""
    tau_at, counts_at, *_ = problem.kernels.store_places(store.numel())
    count = problem.rows.numel()
    tau, counts = _part(store, tau_at, count, torch.float32), _part(store, counts_at, count, torch.int32)
    return tau.view(problem.rows).clone(), counts.view(problem.rows).clone()


def attention_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *known, d_alpha, d_sinks, d_bias = gradients(d_out, q, k, v, *inputs)
    heads, bias = q.shape[1], operators.Problem(*inputs[:-1]).bias
    missing = (heads,), (heads,), (heads, 0 if bias is None else bias.shape[1])
    found = zip((d_alpha, d_sinks, d_bias), missing)
    return *known, *(q.new_zeros(shape, dtype=torch.float64) if one is None else one.double() for one, shape in found)


def _repeated_gradients(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> tuple[Tensor, ...] | None:
    """By q, k and v, of a call that `repeated` would take, with a number for alpha; None of another one, or where the store turns out
    to be too small."""
    *problem_inputs, store = inputs
    p, notice = operators.Problem(*problem_inputs), store_ends.of(store)
    if _repeated is None or notice is None or p.alpha is not None or not p.is_plain or p.is_modified:
        return None
    packed = _packed_number(q, p.lengths)
    if packed is None:
        return None
    d_q, d_k, d_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    whole = _repeated.backward(d_out, q, k, v, d_q, d_k, d_v, store.data_ptr(), store.numel(), notice, *p[1:6], packed)
    return (d_q, d_k, d_v) if whole else None


def output_backward(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *inputs: Any) -> tuple[Tensor | None, ...]:
    """Gradients by q, k, v and alpha, None where alpha is a number: what a plain problem has, and no launch for what it has not."""
    found = _repeated_gradients(d_out, q, k, v, *inputs)
    if found is not None:
        return *found, None
    d_q, d_k, d_v, d_alpha, *_ = gradients(d_out, q, k, v, *inputs)
    return d_q, d_k, d_v, None if d_alpha is None else d_alpha.double()


def gradients(d_out: Tensor, q: Tensor, k: Tensor, v: Tensor, *inputs: Any, d_q_done: Any = None) -> tuple[Tensor | None, ...]:
    """By q, k, v, alpha, sinks and bias; None for what the problem does not have. d_q_done: a StreamPoint, recorded where d_q is there.

    Whether the store holds all of its support is known when forward has ended. The kernels are launched before: they mostly do, and where not,
    they are launched once more."""
    *problem_inputs, store = inputs
    problem, alphas, given = _problem_of(q, k, *problem_inputs)
    if problem.kernels is None:
        found = *dense.backward(d_out, q, k, v, _dense_problem(problem, q, *problem_inputs)), None, None
        if d_q_done is not None:
            d_q_done.record(current_stream(q))
        return found
    q, k, v, d_out = contiguous_and_aligned(q), contiguous_and_aligned(k), contiguous_and_aligned(v), contiguous_and_aligned(d_out)
    d_q, d_k, d_v = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    heads, learned = q.shape[1], problem_inputs[0] is not None
    d_alpha = q.new_zeros((heads,), dtype=torch.float32) if learned else None
    d_sinks = None if given[2] is None else q.new_zeros((heads,), dtype=torch.float32)
    d_bias = None if given[4] is None else q.new_zeros((heads, given[4].shape[1]), dtype=torch.float32)
    # A second forward writes its output into d_q, which backward then overwrites.
    if store.numel() == 0:
        store = _run(problem, q, k, v, alphas, given, d_q, capacity_for(q, k))

    def launch(store: Tensor, unseen: bool, for_good: bool = False) -> None:
        workspace = q.new_empty(problem.kernels.backward_bytes(store.numel()), dtype=torch.uint8)
        problem.kernels.backward(
            unseen, for_good, q.data_ptr(), k.data_ptr(), v.data_ptr(), alphas.data_ptr(),
            store.data_ptr(), store.numel(), d_out.data_ptr(), d_q.data_ptr(), d_k.data_ptr(), d_v.data_ptr(),
            *(0 if one is None else one.data_ptr() for one in (d_alpha, d_sinks, d_bias)), workspace.data_ptr(), current_stream(q),
            _addresses(given), d_q_done,
        )  # fmt: skip

    if torch.cuda.is_current_stream_capturing():
        store_ends.note(store, None)  # replays may empty it: another problem's
        launch(store, True, True)
        return d_q, d_k, d_v, d_alpha, d_sinks, d_bias
    notice = store_ends.of(store)
    if notice is not None and notice.problem == problem.kernels.key:
        launch(store, True)
        if _is_whole(problem, store, notice):
            return d_q, d_k, d_v, d_alpha, d_sinks, d_bias
        for one in (d_alpha, d_sinks, d_bias):
            if one is not None:
                one.zero_()
    launch(_whole_store(problem, q, k, v, alphas, given, d_q, store), False)
    return d_q, d_k, d_v, d_alpha, d_sinks, d_bias


def _entries(problem: _Problem, support: Tensor, store: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(row, key, z - tau) of each entry of a support that is stored whole, row after row."""
    *_, offsets_at, columns_at, excess_at, capacity = problem.kernels.store_places(store.numel())
    counts = support.reshape(-1).to(torch.int64)
    starts = _part(store, offsets_at, counts.numel(), torch.int64)
    row = torch.repeat_interleave(counts)
    first = counts.cumsum(0) - counts
    at = starts[row] + torch.arange(row.numel(), device=row.device) - first[row]
    columns = _part(store, columns_at, capacity, torch.int32)
    return row, columns[at], _part(store, excess_at, capacity, torch.float32)[at]


def probabilities(q: Tensor, k: Tensor, *problem_inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
    problem, alphas, given = _problem_of(q, k, *problem_inputs)
    if problem.kernels is None:
        return dense.probabilities(q, k, _dense_problem(problem, q, *problem_inputs))
    q, k = contiguous_and_aligned(q), contiguous_and_aligned(k)
    out = torch.empty_like(q)
    store = _run(problem, q, k, k, alphas, given, out, capacity_for(q, k), True)
    store = _whole_store(problem, q, k, k, alphas, given, out, store, True)
    support = _rows(problem, store)[1]
    row, column, excess = _entries(problem, support, store)
    order = torch.argsort(row * k.shape[2] + column)
    row, column, excess = row[order], column[order], excess[order]
    alpha = alphas.expand(q.shape[1])[row // q.shape[2] % q.shape[1]]
    # The kernels computed heads of other alphas with 1.5.
    refused = ~((alpha >= _core.LEAST_ATTENTION_ALPHA) & (alpha <= _core.MOST_ATTENTION_ALPHA))
    weights = excess.double() ** (1 / (alpha.masked_fill(refused, 1.5).double() - 1))
    sums = torch.zeros(support.numel(), dtype=torch.float64, device=q.device).index_add_(0, row, weights)
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
        operators.library.impl(_name, _function, "CUDA")
