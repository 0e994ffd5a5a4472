"""Mode "gather": keys and values of all ranks come to each rank's queries, some heads at a time, the next ones while these are computed.

Forward, for each group of key heads: fetch K and V of all ranks to their places in the sequence (the next group's are on their way), and call
the kernels for each run of the rank's queries, over the keys up to the run's end. tau of each row is its owner's, so nothing is merged.

Backward gathers the same keys again, which keeps memory at what is given here. Partial gradients of K and V go to the ranks that own the
keys while the next group is computed; the owner adds them in float32, rank after rank, run after run, so that the bits are those of every run.

Memory beside inputs, outputs and what exchange.py keeps, in S, the bytes of keys and values of all ranks of one group: forward at most 4 (two
groups in the sequence's order, one of them as it arrives too, a run's own), backward at most 10 (the same; gradients of a group; what is sent
and received of it and of the one before).
"""

from __future__ import annotations

import functools
import itertools
from typing import Any, Iterator, Sequence

import torch
from torch import Tensor

from splash_attention.backends.torch.operators import Problem
from splash_attention.distributed import exchange, passes
from splash_attention.distributed.packing import tables_of
from splash_attention.distributed.passes import Heads
from splash_attention.distributed.shards import Piece, Shards


def attend(call: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """out, tau and support of this rank's tokens; the last two None unless they are counted. call: attention.Call."""
    return Gathered.apply(q, k, v, *call.problem.learned, call)


class Gathered(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, sinks: Tensor | None, bias: Tensor | None, call: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        rows, stores = [], []  # tau and support
        if call.counted:
            rows = [q.new_empty(q.shape[:3], dtype=kind) for kind in (torch.promote_types(q.dtype, torch.float32), torch.int32)]
        for heads, keys in _gathered(q, k, v, call):
            for piece in _pieces(call, call.rank, q):
                place = slice(None), heads.queries, piece.queries
                out[place], store, *of_rows = passes.forward(call, q[place], *_seen(call, keys, piece), _problem(call, heads, piece, q))
                for whole, part in zip(rows, of_rows):
                    whole[place] = part
                stores.append(store)
            del keys  # before more come
        ctx.call = call
        ctx.save_for_backward(q, k, v, alpha, sinks, bias, *stores)
        ctx.mark_non_differentiable(*rows)
        ctx.set_materialize_grads(False)
        return out, *(rows or (None, None))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, *_: Any) -> Any:
        call, (q, k, v, *saved) = ctx.call, ctx.saved_tensors
        learned, stores = passes.Learned(saved[:3], q.shape[1]), iter(saved[3:])
        d_out = torch.zeros_like(q) if d_out is None else d_out  # other ranks wait for their gradients
        d_q, d_k, d_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        last = None
        for heads, keys in _gathered(q, k, v, call):
            of_keys = []
            for piece in _pieces(call, call.rank, q):
                place = slice(None), heads.queries, piece.queries
                problem = _problem(call, heads, piece, q)
                d_q[place], *d_seen, d_alpha, d_sinks, d_bias = passes.backward(d_out[place], q[place], *_seen(call, keys, piece), problem, next(stores))
                of_keys.append([d.contiguous() for d in d_seen])
                learned.add(heads.queries, d_alpha, d_sinks, d_bias)
            sent = _Exchange(call, heads, of_keys, q)
            del keys, of_keys, d_seen  # before more come
            if last:
                last.add_up(d_k, d_v)
            last = sent
        last.add_up(d_k, d_v)
        return d_q, d_k, d_v, *learned.results(), None


def _seen(call: Any, keys: list[Tensor], piece: Piece) -> list[Tensor]:
    """Keys and values that the piece sees, contiguous: of several heads a copy."""
    (batch, heads, length, _), seen = keys[0].shape, keys[0].shape[2] // call.shards.count * piece.chunks
    if seen == length or batch * heads == 1:
        return [whole[:, :, :seen] for whole in keys]
    return exchange.starts(keys, seen)


def asked(call: Any, q: Tensor, k: Tensor) -> Iterator[tuple[Any, ...]]:
    """q, k and the problem of each call of the kernels, in their order: keys have their shape, and no memory."""
    chunk = q.shape[2] // len(call.shards.chunks_of(call.rank))
    for heads, piece in itertools.product(passes.cuts(q.shape[1], k.shape[1], call.heads_at_once), _pieces(call, call.rank, q)):
        keys = k[:, heads.keys, :1].expand(-1, -1, piece.chunks * chunk, -1)
        yield q[:, heads.queries, piece.queries], keys, _problem(call, heads, piece, q)


def _pieces(call: Any, rank: int, q: Tensor) -> Sequence[Piece]:
    return _pieces_of(call.shards, rank, q.shape[2], call.problem.causal, call.lengths is not None)


@functools.lru_cache(maxsize=1024)
def _pieces_of(shards: Shards, rank: int, length: int, causal: bool, packed: bool) -> Sequence[Piece]:
    pieces = shards.pieces(rank, length, causal or packed)
    return pieces if causal else [piece._replace(chunks=shards.count) for piece in pieces]


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


def _gathered(q: Tensor, k: Tensor, v: Tensor, call: Any) -> Iterator[tuple[Heads, list[Tensor]]]:
    """Keys and values of the whole sequence, some heads after others, the next ones on their way."""
    shards, given = call.shards, [x.contiguous() for x in (k, v)]
    (batch, _, length, dim), width = k.shape, k.element_size()

    def start(heads: Heads) -> tuple[Any, list[Tensor]]:
        wholes = [x.new_empty(batch, heads.keys.stop - heads.keys.start, shards.ranks * length, dim) for x in given]
        plan = _keys_plan(shards, call.rank, k.shape, heads.keys.start, heads.keys.stop, width)
        return exchange.start(call.group, plan, given, wholes), wholes

    return passes.arriving(passes.cuts(q.shape[1], k.shape[1], call.heads_at_once), start)


@functools.lru_cache(maxsize=1024)
def _keys_plan(shards: Shards, rank: int, shape: torch.Size, first: int, last: int, width: int) -> exchange.Plan:
    """Keys and values of heads from first to last, of all ranks to their places in the sequence. shape: of this rank's keys."""
    (batch, _, length, dim), heads, striped = shape, slice(first, last), shards.kind == "striped"
    some, whole = slice(0, last - first), (batch, last - first, shards.ranks * length, dim)
    a_head, chunk = length * dim, length // len(shards.chunks_of(rank)) * dim
    mine = [one for of in (0, 1) for one in exchange.cut(of, shape, heads, 0, 1, False)]  # whole heads
    into: list[list[exchange.Arriving]] = [[] for _ in range(shards.ranks)]
    own: list[tuple[exchange.Cut, exchange.Cut]] = []
    for other, arriving in enumerate(into):
        held = shards.chunks_of(other)
        for of, (at, place) in itertools.product((0, 1), enumerate(held)):
            places = exchange.cut(of, whole, some, place, shards.count, striped)
            sent = at * chunk + of * batch * some.stop * a_head
            arriving += [exchange.Arriving(one, sent + entry * some.stop * a_head, dim if striped else a_head) for entry, one in enumerate(places)]
            if other == rank:
                own += zip(places, exchange.cut(of, shape, heads, at, len(held), striped))
    return exchange.Plan(rank, [mine] * shards.ranks, into, width, same=True, own=own)


class _Exchange:
    """Gradients by keys and values of some heads, on their way to the ranks that own the keys."""

    def __init__(self, call: Any, heads: Heads, of_pieces: Sequence[Sequence[Tensor]], q: Tensor) -> None:
        """of_pieces: of the keys and of the values that each piece sees."""
        like = of_pieces[0][0]
        (batch, some, _, dim), packed = like.shape, call.lengths is not None
        size = batch, some, q.shape[2], dim
        plan, self.places = _gradients_plan(call.shards, call.rank, size, call.problem.causal, packed, like.element_size())
        self.keys, self.count = heads.keys, len(call.shards.chunks_of(call.rank))
        self.chunk = q.shape[2] // self.count
        self.parts = like.new_empty((len(self.places), 2, batch, some, self.chunk, dim))
        self.coming = exchange.start(call.group, plan, [d for piece in of_pieces for d in piece], [self.parts])

    def add_up(self, *gradients: Tensor) -> None:
        """Into the gradients by this rank's keys and values, rank after rank."""
        self.coming.finish()
        for kind, gradient in enumerate(gradients):
            for place in range(self.count):
                parts = [part[kind] for at, part in zip(self.places, self.parts) if at == place]
                _add_in_order(parts, gradient[:, self.keys, place * self.chunk : (place + 1) * self.chunk])


@functools.lru_cache(maxsize=1024)
def _gradients_plan(
    shards: Shards, rank: int, size: tuple[int, int, int, int], causal: bool, packed: bool, width: int
) -> tuple[exchange.Plan, list[int]]:
    """Gradients by keys and values, of each piece, to the ranks that own the keys; and of each part that comes, which of the rank's chunks it is
    of. size: batch, heads, tokens of a rank, dim."""
    (batch, heads, length, dim), ranks, striped = size, range(shards.ranks), shards.kind == "striped"
    of_ranks = [_pieces_of(shards, one, length, causal, packed) for one in ranks]
    items = [[shards.sent(pieces, to) for to in ranks] for pieces in of_ranks]
    held, pieces, some = shards.chunks_of(rank), of_ranks[rank], slice(0, heads)
    chunk = length // len(held)

    def parts_of(piece: int, at: int) -> list[exchange.Cut]:
        seen, chunks = (batch, heads, pieces[piece].chunks * chunk, dim), pieces[piece].chunks
        return [one for kind in (0, 1) for one in exchange.cut(2 * piece + kind, seen, some, at, chunks, striped)]

    sent = [[one for item in items[rank][to] for one in parts_of(*item)] for to in ranks]
    into, part = [], 0
    for other in ranks:
        coming: list[exchange.Cut] = []
        for _ in items[other][rank]:
            cuts = exchange.cut(0, (2 * batch, heads, chunk, dim), some, 0, 1, striped)
            coming += [one._replace(first=one.first + part * 2 * batch * heads * chunk * dim) for one in cuts]
            part += 1
        into.append(exchange.in_turn(coming))
    most = max(len(chunks) for of_rank in items for chunks in of_rank) * 2 * batch * heads * chunk * dim
    return exchange.Plan(rank, sent, into, width, most=most), [held.index(at) for other in ranks for _, at in items[other][rank]]


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
