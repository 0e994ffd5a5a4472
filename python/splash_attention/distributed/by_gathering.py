"""Mode "gather": keys and values of all ranks come to each rank's queries, some heads at a time, the next ones while these are computed.

Forward, for each group of key heads: all-gather K and V (the next group's is on its way), put them into the sequence's order, and call the
kernels for each run of the rank's queries, over the keys up to the run's end. tau of each row is its owner's, so nothing is merged.

Backward gathers the same keys again, which keeps memory at what is given here. Partial gradients of K and V go to the ranks that own the
keys while the next group is computed; the owner adds them in float32, rank after rank, run after run, so that the bits are those of every run.

Memory beside inputs and outputs, in S, the bytes of keys and values of all ranks of one group: forward at most 3 (two groups as they arrive,
one in the sequence's order), backward at most 9 (the same; gradients of a group; what is sent and received of it and of the one before).
"""

from __future__ import annotations

import itertools
from typing import Any, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from splash_attention.backends.torch.operators import Problem
from splash_attention.distributed import groups, passes
from splash_attention.distributed.packing import tables_of
from splash_attention.distributed.passes import Heads
from splash_attention.distributed.shards import Piece


class Gathered(torch.autograd.Function):
    """(out, tau, support) of this rank's tokens; the last two empty unless they are counted. call: attention.Call."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, sinks: Tensor | None, bias: Tensor | None, call: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        rows = q.shape[:3] if call.counted else (0, 0, 0)
        tau = q.new_empty(rows, dtype=torch.promote_types(q.dtype, torch.float32))
        support = q.new_empty(rows, dtype=torch.int32)
        stores = []
        for heads, keys in _gathered(q, k, v, call):
            for piece in _pieces(call, call.rank, q):
                place = slice(None), heads.queries, piece.queries
                out[place], *of_rows, store = passes.forward(call, q[place], *_seen(keys, piece), _problem(call, heads, piece, q))
                if call.counted:
                    tau[place], support[place] = of_rows
                stores.append(store)
            del keys  # before more come
        passes.end_of_forward(stores)
        ctx.call = call
        ctx.save_for_backward(q, k, v, alpha, sinks, bias, *stores)
        ctx.mark_non_differentiable(tau, support)
        ctx.set_materialize_grads(False)
        return out, tau, support

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, *_: Any) -> Any:
        call, (q, k, v, *saved) = ctx.call, ctx.saved_tensors
        learned, stores = passes.Learned(saved[:3], q.shape[1]), passes.looked_at(saved[3:], asked(call, q, k))
        d_out = torch.zeros_like(q) if d_out is None else d_out  # other ranks wait for their gradients
        d_q, d_k, d_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        last = None
        for heads, keys in _gathered(q, k, v, call):
            of_keys = []
            for piece in _pieces(call, call.rank, q):
                place = slice(None), heads.queries, piece.queries
                problem = _problem(call, heads, piece, q)
                d_q[place], *d_seen, d_alpha, d_sinks, d_bias = passes.backward(d_out[place], q[place], *_seen(keys, piece), problem, *next(stores))
                of_keys.append([call.shards.split(d, 2, piece.chunks) for d in d_seen])
                learned.add(heads.queries, d_alpha, d_sinks, d_bias)
            sent = _Exchange(call, heads, of_keys, q)
            del keys, of_keys, d_seen  # before more come
            if last:
                last.add_up(d_k, d_v)
            last = sent
        last.add_up(d_k, d_v)
        return d_q, d_k, d_v, *learned.results(), None


def _seen(keys: list[_Keys], piece: Piece) -> list[Tensor]:
    """Keys and values, contiguous."""
    return [some.up_to(piece.chunks) for some in keys]


def asked(call: Any, q: Tensor, k: Tensor) -> Iterator[tuple[Any, ...]]:
    """q, k and the problem of each call of the kernels, in their order: keys have their shape, and no memory."""
    chunk = q.shape[2] // len(call.shards.chunks_of(call.rank))
    for heads, piece in itertools.product(passes.cuts(q.shape[1], k.shape[1], call.heads_at_once), _pieces(call, call.rank, q)):
        keys = k[:, heads.keys, :1].expand(-1, -1, piece.chunks * chunk, -1)
        yield q[:, heads.queries, piece.queries], keys, _problem(call, heads, piece, q)


def _pieces(call: Any, rank: int, q: Tensor) -> list[Piece]:
    causal, packed = call.problem.causal, call.lengths is not None
    pieces = call.shards.pieces(rank, q.shape[2], causal or packed)
    return pieces if causal else [piece._replace(chunks=call.shards.count) for piece in pieces]


def _problem(call: Any, heads: Heads, piece: Piece, q: Tensor) -> Problem:
    """Of one call of the kernels."""
    p, shards = passes.problem_of(call.problem, heads.queries), call.shards
    length = shards.ranks * q.shape[2]
    if call.lengths is not None:
        begin, end = piece.begin, piece.begin + piece.queries.stop - piece.queries.start
        lengths = tables_of(call.lengths, begin, end, end if p.causal else length)
        return p._replace(cu_seqlens_q=lengths[0], cu_seqlens_k=lengths[1])
    if p.causal and shards.kind == "striped":
        places = torch.arange(length, device=q.device)
        return p._replace(causal=False, q_positions=shards.part(places, call.rank, 0), k_positions=places)
    return p


class _Keys:
    """Keys, or values, of some heads of all ranks."""

    def __init__(self, call: Any, parts: Tensor) -> None:
        """parts: [ranks, batch, heads, length, dim]."""
        self.shards, self.chunks = call.shards, call.shards.in_order(parts.unbind(0), 2)
        self.whole = None if parts.shape[1] * parts.shape[2] > 1 else self.shards.join(self.chunks, 2)

    def up_to(self, chunks: int) -> Tensor:
        """[batch, heads, keys, dim] of the first so many chunks, contiguous: a copy, but of one head a view."""
        if self.whole is None:
            return self.shards.join(self.chunks[:chunks], 2)
        return self.whole if chunks == len(self.chunks) else self.whole[:, :, : chunks * self.chunks[0].shape[2]]


def _gathered(q: Tensor, k: Tensor, v: Tensor, call: Any) -> Iterator[tuple[Heads, list[_Keys]]]:
    """Keys and values of all ranks, some heads after others, the next ones on their way."""
    cuts = passes.cuts(q.shape[1], k.shape[1], call.heads_at_once)
    coming = _start(k, v, cuts[0].keys, call)
    for at, heads in enumerate(cuts):
        parts = [_arrived(*one) for one in coming]
        coming = _start(k, v, cuts[at + 1].keys, call) if at + 1 < len(cuts) else []
        yield heads, [_Keys(call, part) for part in parts]


def _start(k: Tensor, v: Tensor, cut: slice, call: Any) -> list[tuple[Any, Tensor, Tensor]]:
    started = []
    for x in (k, v):
        sent = x.detach()[:, cut].contiguous()
        started.append((*groups.all_gather(sent, call.group), sent))
    return started


def _arrived(work: Any, received: Tensor, sent: Tensor) -> Tensor:
    groups.finish(work, "to gather keys and values")
    return received


class _Exchange:
    """Gradients by keys and values of some heads, on their way to the ranks that own the keys."""

    def __init__(self, call: Any, heads: Heads, of_pieces: Sequence[Any], q: Tensor) -> None:
        """of_pieces: (of keys, of values) of each piece, by chunk."""
        shards, ranks = call.shards, range(call.shards.ranks)
        sent = [shards.sent(_pieces(call, call.rank, q), to) for to in ranks]
        received = [shards.sent(_pieces(call, rank, q), call.rank) for rank in ranks]
        held = shards.chunks_of(call.rank)
        self.keys, self.count, self.places = heads.keys, len(held), [held.index(chunk) for items in received for _, chunk in items]
        self.sent = torch.stack([of_pieces[piece][kind][chunk] for items in sent for piece, chunk in items for kind in (0, 1)])
        self.parts = self.sent.new_empty((2 * len(self.places), *self.sent.shape[1:]))  # [parts, batch, heads, chunk, dim]
        counts = ([2 * len(items) for items in some] for some in (received, sent))
        self.work = dist.all_to_all_single(self.parts, self.sent, *counts, group=call.group, async_op=True)

    def add_up(self, *gradients: Tensor) -> None:
        """Into the gradients by this rank's keys and values, rank after rank."""
        groups.finish(self.work, "to exchange gradients")
        chunk = self.parts.shape[3]
        for kind, gradient in enumerate(gradients):
            for place in range(self.count):
                parts = [part[kind] for at, part in zip(self.places, self.parts.unflatten(0, (-1, 2))) if at == place]
                _add_in_order(parts, gradient[:, self.keys, place * chunk : (place + 1) * chunk])


def _add_in_order(parts: list[Tensor], into: Tensor) -> None:
    """One after another, in float32 (float64 for such), rounded once. Two numbers of 16 bits are added so anyhow."""
    *before, last = parts
    if not before:
        into.copy_(last)
        return
    total = before[0] if len(before) == 1 else before[0].to(torch.promote_types(last.dtype, torch.float32))
    for part in before[1:]:
        total += part
    torch.add(total, last, out=into)
