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

import itertools
from typing import Any, Iterator, Sequence

import torch
from torch import Tensor

from splash_attention.backends.torch.operators import Problem
from splash_attention.distributed import exchange, passes
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
                out[place], *of_rows, store = passes.forward(call, q[place], *_seen(call, keys, piece), _problem(call, heads, piece, q))
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
                d_q[place], *d_seen, d_alpha, d_sinks, d_bias = passes.backward(d_out[place], q[place], *_seen(call, keys, piece), problem, *next(stores))
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
    (batch, heads, length, dim), seen = keys[0].shape, keys[0].shape[2] // call.shards.count * piece.chunks
    if seen == length or batch * heads == 1:
        return [whole[:, :, :seen] for whole in keys]
    parts = [whole.new_empty(batch, heads, seen, dim) for whole in keys]
    given = [exchange.Runs(whole, 0, length * dim, seen * dim, batch * heads) for whole in keys]
    exchange.copy([exchange.Runs(part, 0, seen * dim, seen * dim, batch * heads) for part in parts], given)
    return parts


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


def _gathered(q: Tensor, k: Tensor, v: Tensor, call: Any) -> Iterator[tuple[Heads, list[Tensor]]]:
    """Keys and values of the whole sequence, some heads after others, the next ones on their way."""
    cuts, shards = passes.cuts(q.shape[1], k.shape[1], call.heads_at_once), call.shards
    held, striped = len(shards.chunks_of(call.rank)), shards.kind == "striped"
    given = [x.contiguous() for x in (k, v)]

    def start(heads: Heads) -> tuple[Any, list[Tensor]]:
        some = heads.keys.stop - heads.keys.start
        wholes = [x.new_empty(x.shape[0], some, shards.ranks * x.shape[2], x.shape[3]) for x in given]
        mine = [exchange.Runs(x, *cut) for x in given for at in range(held) for cut in exchange.cut(x.shape, heads.keys, at, held, striped)]
        chunks = [exchange.cut(wholes[0].shape, slice(0, some), chunk, shards.count, striped) for chunk in range(shards.count)]
        into = [
            [exchange.Runs(x, *cut) for x in wholes for chunk in shards.chunks_of(rank) for cut in chunks[chunk]] for rank in range(shards.ranks)
        ]
        return exchange.start(call.group, [mine] * shards.ranks, into), wholes

    return passes.arriving(cuts, start)


class _Exchange:
    """Gradients by keys and values of some heads, on their way to the ranks that own the keys."""

    def __init__(self, call: Any, heads: Heads, of_pieces: Sequence[Sequence[Tensor]], q: Tensor) -> None:
        """of_pieces: of the keys and of the values that each piece sees."""
        shards, ranks, striped = call.shards, range(call.shards.ranks), call.shards.kind == "striped"
        held, items = shards.chunks_of(call.rank), [[shards.sent(_pieces(call, rank, q), to) for to in ranks] for rank in ranks]
        chunk, some, pieces = q.shape[2] // len(held), slice(0, heads.keys.stop - heads.keys.start), _pieces(call, call.rank, q)

        def parts_of(piece: int, chunk: int) -> list[exchange.Runs]:
            cuts = exchange.cut(of_pieces[piece][0].shape, some, chunk, pieces[piece].chunks, striped)
            return [exchange.Runs(d, *cut) for d in of_pieces[piece] for cut in cuts]

        sent = [[runs for item in items[call.rank][to] for runs in parts_of(*item)] for to in ranks]
        self.places = [held.index(at) for rank in ranks for _, at in items[rank][call.rank]]
        of_keys = of_pieces[0][0]
        self.parts = of_keys.new_empty((len(self.places), 2, of_keys.shape[0], some.stop, chunk, of_keys.shape[3]))
        arriving, into = iter(self.parts), []
        for rank in ranks:
            parts = [x for _ in items[rank][call.rank] for x in next(arriving)]
            into.append([exchange.Runs(x, *cut) for x in parts for cut in exchange.cut(x.shape, some, 0, 1, striped)])
        most = max(len(chunks) for of_rank in items for chunks in of_rank) * self.parts[0].numel()
        self.keys, self.count, self.chunk = heads.keys, len(held), chunk
        self.coming = exchange.start(call.group, sent, into, most)

    def add_up(self, *gradients: Tensor) -> None:
        """Into the gradients by this rank's keys and values, rank after rank."""
        self.coming.finish()
        for kind, gradient in enumerate(gradients):
            for place in range(self.count):
                parts = [part[kind] for at, part in zip(self.places, self.parts) if at == place]
                _add_in_order(parts, gradient[:, self.keys, place * self.chunk : (place + 1) * self.chunk])


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
