"""Mode "heads": exchanges give each rank whole sequences of its heads, and the results back (Jacobs et al. 2023, arXiv 2309.14509), some
heads at a time: the next ones' tokens travel while these are computed, and so do the results of those before.

Forward exchanges q, k and v, then out; backward d_out, then the gradients by q, k and v. Kernels see the whole problem of a head, whatever
the shards and the mask, and no partial gradients are added up.

Memory beside inputs and outputs: q, k and v once more (with a gradient, kept for backward), and the parts of passes.LANES groups.
"""

from __future__ import annotations

import functools
from typing import Any, Callable, Sequence

import torch
from torch import Tensor

from splash_attention.backends.torch.operators import Problem
from splash_attention.distributed import exchange, passes
from splash_attention.distributed.packing import tables_of
from splash_attention.distributed.passes import Heads
from splash_attention.distributed.shards import Shards


def attend(call: Any, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """out, tau and support of this rank's tokens; the last two None unless they are counted. call: attention.Call."""
    # First of all: what they bring is waited for.
    groups = passes.Groups(_own(call, q.shape[1], k.shape[1]), q.device, *_tokens(call, (q, True), (k, False), (v, False)))
    return ByHeads.apply(q, k, v, *call.problem.learned, call, groups)


class ByHeads(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, sinks: Tensor | None, bias: Tensor | None, call: Any,
        groups: passes.Groups,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
        """groups: of q's, k's and v's tokens."""
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        rows = []  # tau and support
        if call.counted:
            rows = [q.new_empty((*q.shape[:3], 1), dtype=kind) for kind in (torch.promote_types(q.dtype, torch.float32), torch.int32)]
        own, wholes, stores = groups.cuts, [], []

        def compute(at: int, given: list[Tensor]) -> tuple[Tensor, ...]:
            part, store, *of_rows = passes.forward(call, *given, _problem(call, own[at], q.shape[2]))
            wholes.extend(given if call.differentiable else ())
            stores.append(store)
            return part, *of_rows

        def send(heads: Heads, results: tuple[Tensor, ...], idle: bool) -> list[Any]:
            part, *of_rows = results
            first = _return(call, heads, [(part, out, True)], idle=idle)
            return [first, *(_return(call, heads, [(x[..., None], place, True)]) for x, place in zip(of_rows, rows))]

        groups.run(compute, send)
        ctx.call, ctx.shapes = call, (q.shape, k.shape, v.shape)
        ctx.save_for_backward(alpha, sinks, bias, *wholes, *stores)
        tau, support = (x[..., 0] for x in rows) if rows else (None, None)
        ctx.mark_non_differentiable(*(x for x in (tau, support) if x is not None))
        ctx.set_materialize_grads(False)
        return out, tau, support

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, *_: Any) -> Any:
        call, saved, (of_q, of_k, _) = ctx.call, ctx.saved_tensors, ctx.shapes
        own = _own(call, of_q[1], of_k[1])
        wholes, stores = [saved[3 + 3 * at : 6 + 3 * at] for at in range(len(own))], saved[3 + 3 * len(own) :]
        problems = [_problem(call, heads, of_q[2]) for heads in own]
        d_out = wholes[0][0].new_zeros(of_q) if d_out is None else d_out  # other ranks wait for their gradients
        gradients = [d_out.new_empty(shape) for shape in ctx.shapes]
        of_heads = []  # gradients of what is not sent

        def compute(at: int, given: list[Tensor]) -> tuple[list[Tensor], Any]:
            d_q_done = passes.point(d_out)
            *parts, d_alpha, d_sinks, d_bias = passes.backward(*given, *wholes[at], problems[at], stores[at], d_q_done)
            of_heads.append((own[at].queries, d_alpha, d_sinks, d_bias))
            return parts, d_q_done

        def send(heads: Heads, results: tuple[list[Tensor], Any], idle: bool) -> list[Any]:
            parts, d_q_done = results
            of_queries, *of_keys = zip(parts, gradients, (True, False, False))
            return [_return(call, heads, [of_queries], d_q_done), _return(call, heads, of_keys, idle=idle)]

        passes.Groups(own, d_out.device, *_tokens(call, (d_out, True))).run(compute, send)
        learned = passes.Learned(saved[:3], of_q[1])
        for of_group in of_heads:
            learned.add(*of_group)
        return *gradients, *learned.results(), None, None


def _own(call: Any, heads: int, kv_heads: int) -> Sequence[Heads]:
    """The rank's heads, some at a time."""
    return _own_of(call.shards.ranks, call.rank, call.heads_at_once, heads, kv_heads)


@functools.lru_cache(maxsize=1024)
def _own_of(ranks: int, rank: int, at_once: int, heads: int, kv_heads: int) -> Sequence[Heads]:
    each = kv_heads // ranks
    return passes.cuts(heads, kv_heads, at_once, rank * each, (rank + 1) * each)


def _problem(call: Any, heads: Heads, length: int) -> Problem:
    """Of whole sequences. length: of a rank's tokens."""
    problem = passes.problem_of(call.problem, heads.queries)
    if call.lengths is None:
        return problem
    lengths = tables_of(call.lengths, 0, call.shards.ranks * length, call.shards.ranks * length)
    return problem._replace(cu_seqlens_q=lengths[0], cu_seqlens_k=lengths[1])


def _tokens(call: Any, *given: tuple[Tensor, bool]) -> tuple[Callable[[Heads], list[Tensor]], Callable[[Heads, list[Tensor], Any, bool], Any]]:
    """Room for whole sequences of some of the rank's heads, [batch, some heads, length of all, dim], and what starts an exchange that brings them,
    as passes.Groups takes both. given: tensors of the rank's tokens, and whether their heads are the queries'."""
    given = tuple((x if x.is_contiguous() else x.detach().contiguous(), of_queries) for x, of_queries in given)
    tensors = [x for x, _ in given]

    def room(heads: Heads) -> list[Tensor]:
        return [x.new_empty(_whole_shape(call, x, heads.queries if of_queries else heads.keys)) for x, of_queries in given]

    def start(heads: Heads, wholes: list[Tensor], free: Any, idle: bool) -> Any:
        sizes = tuple((x.shape, whole.shape, of_queries) for (x, of_queries), whole in zip(given, wholes))
        plan = _plan(call.shards, call.rank, _first_heads(heads), sizes, tensors[0].element_size(), False)
        return exchange.start(call.group, plan, tensors, wholes, free, idle)

    return room, start


def _return(call: Any, heads: Heads, places: Sequence[tuple[Tensor, Tensor, bool]], there: Any = None, idle: bool = False) -> Any:
    """Starts whole sequences of the rank's heads on their way to the ranks whose tokens they are. places: such sequences, the rank's tokens,
    [batch, all heads, its length, dim], and whether they are the queries' heads. there, idle: as exchange.start has them."""
    sizes = tuple((tokens.shape, whole.shape, of_queries) for whole, tokens, of_queries in places)
    plan = _plan(call.shards, call.rank, _first_heads(heads), sizes, places[0][0].element_size(), True)
    return exchange.start(call.group, plan, [whole.contiguous() for whole, _, _ in places], [tokens for _, tokens, _ in places], there, idle)


def _whole_shape(call: Any, x: Tensor, heads: slice) -> tuple[int, ...]:
    return x.shape[0], heads.stop - heads.start, call.shards.ranks * x.shape[2], x.shape[3]


def _first_heads(heads: Heads) -> tuple[int, int]:
    return heads.keys.start, heads.queries.start


@functools.lru_cache(maxsize=1024)
def _plan(
    shards: Shards, rank: int, first_heads: tuple[int, int], sizes: tuple[tuple[torch.Size, torch.Size, bool], ...], width: int, back: bool
) -> exchange.Plan:
    """Tokens of all heads become whole sequences of the rank's heads, and `back`. first_heads: of keys and queries, the first that the rank
    computes. sizes: of each tensor, the rank's tokens, its whole sequences, and whether they are the queries' heads."""
    ranks, striped = range(shards.ranks), shards.kind == "striped"
    away: list[list[exchange.Cut]] = [[] for _ in ranks]  # what the rank's tokens have of the heads that each rank computes
    here: list[list[exchange.Cut]] = [[] for _ in ranks]  # where each rank's tokens lie in the whole sequences
    for of, (tokens, whole, of_queries) in enumerate(sizes):
        some = whole[1]
        for other in ranks:  # computes heads as far into its own
            first, chunks = first_heads[of_queries] + (other - rank) * (tokens[1] // shards.ranks), shards.chunks_of(other)
            theirs = slice(first, first + some)
            away[other] += [one for at in range(len(chunks)) for one in exchange.cut(of, tokens, theirs, at, len(chunks), striped)]
            here[other] += [one for chunk in chunks for one in exchange.cut(of, whole, slice(0, some), chunk, shards.count, striped)]
    sent, into = (here, away) if back else (away, here)
    return exchange.Plan(rank, sent, [exchange.in_turn(some) for some in into], width)
