"""Mode "heads": exchanges give each rank whole sequences of its heads, and the results back (Jacobs et al. 2023, arXiv 2309.14509), some
heads at a time: the next ones' tokens travel while these are computed, and so do the results of those before.

Forward exchanges q, k and v, then out; backward d_out, then the gradients by q, k and v. Kernels see the whole problem of a head, whatever
the shards and the mask, and no partial gradients are added up.

Memory beside inputs and outputs: q, k and v once more (with a gradient, kept for backward), and two groups' parts on their way.
"""

from __future__ import annotations

from typing import Any, Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from splash_attention.backends.torch.operators import Problem
from splash_attention.distributed import groups, passes
from splash_attention.distributed.packing import tables_of
from splash_attention.distributed.passes import Heads


class ByHeads(torch.autograd.Function):
    """(out, tau, support) of this rank's tokens; the last two empty unless they are counted. call: attention.Call."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, alpha: Tensor | None, sinks: Tensor | None, bias: Tensor | None, call: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        rows = (*q.shape[:3], 1) if call.counted else (0, 0, 0, 1)
        tau, support = (q.new_empty(rows, dtype=kind) for kind in (torch.promote_types(q.dtype, torch.float32), torch.int32))
        wholes, stores, returns = [], [], []
        for heads, given in _arriving(call, k.shape[1], (q, True), (k, False), (v, False)):
            part, *of_rows, store = passes.forward(call, *given, _problem(call, heads, q.shape[2]))
            returns.append([_Return(call, heads, part, out, True)])
            if call.counted:
                returns[-1] += [_Return(call, heads, x[..., None], y, True) for x, y in zip(of_rows, (tau, support))]
            wholes += given if call.differentiable else ()
            stores.append(store)
            _finish(returns[-2:-1])
        _finish(returns[-1:])
        passes.end_of_forward(stores)
        ctx.call, ctx.shapes = call, (q.shape, k.shape, v.shape)
        ctx.save_for_backward(alpha, sinks, bias, *wholes, *stores)
        tau, support = tau[..., 0], support[..., 0]
        ctx.mark_non_differentiable(tau, support)
        ctx.set_materialize_grads(False)
        return out, tau, support

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, d_out: Tensor | None, *_: Any) -> Any:
        call, saved, (of_q, of_k, _) = ctx.call, ctx.saved_tensors, ctx.shapes
        own = _own(call, of_q[1], of_k[1])
        wholes, stores = [saved[3 + 3 * at : 6 + 3 * at] for at in range(len(own))], saved[3 + 3 * len(own) :]
        problems = [_problem(call, heads, of_q[2]) for heads in own]
        asked = ((*whole[:2], problem) for whole, problem in zip(wholes, problems))
        learned, looked_at = passes.Learned(saved[:3], of_q[1]), passes.looked_at(stores, asked)
        d_out = wholes[0][0].new_zeros(of_q) if d_out is None else d_out  # other ranks wait for their gradients
        d_q, d_k, d_v = (d_out.new_empty(shape) for shape in ctx.shapes)
        returns: list[list[_Return]] = []
        for (heads, [given]), whole, problem, store in zip(_arriving(call, of_k[1], (d_out, True)), wholes, problems, looked_at):
            *parts, d_alpha, d_sinks, d_bias = passes.backward(given, *whole, problem, *store)
            learned.add(heads.queries, d_alpha, d_sinks, d_bias)
            returns.append([_Return(call, heads, x, y, queries) for x, y, queries in zip(parts, (d_q, d_k, d_v), (True, False, False))])
            _finish(returns[-2:-1])
        _finish(returns[-1:])
        return d_q, d_k, d_v, *learned.results(), None


def _own(call: Any, heads: int, kv_heads: int) -> list[Heads]:
    """The rank's heads, some at a time."""
    each = kv_heads // call.shards.ranks
    return passes.cuts(heads, kv_heads, call.heads_at_once, call.rank * each, (call.rank + 1) * each)


def _of_rank(call: Any, heads: Heads, of_queries: bool, total: int, rank: int) -> slice:
    """The heads of another rank that it computes while this rank computes these. total: query or key heads of all."""
    mine, moved = heads.queries if of_queries else heads.keys, (rank - call.rank) * (total // call.shards.ranks)
    return slice(mine.start + moved, mine.stop + moved)


def _problem(call: Any, heads: Heads, length: int) -> Problem:
    """Of whole sequences. length: of a rank's tokens."""
    problem = passes.problem_of(call.problem, heads.queries)
    if call.lengths is None:
        return problem
    lengths = tables_of(call.lengths, 0, call.shards.ranks * length, call.shards.ranks * length)
    return problem._replace(cu_seqlens_q=lengths[0], cu_seqlens_k=lengths[1])


def _arriving(call: Any, kv_heads: int, *given: tuple[Tensor, bool]) -> Iterator[tuple[Heads, list[Tensor]]]:
    """Whole sequences of the rank's heads, [batch, some heads, length of all, dim], some heads after others, the next ones on their way.
    given: tensors of the rank's tokens, and whether their heads are the queries'."""
    first, of_queries = given[0]
    ratio = first.shape[1] // kv_heads if of_queries else 1
    cuts = _own(call, ratio * kv_heads, kv_heads)

    def start(heads: Heads) -> list[tuple[Any, Tensor, Tensor]]:
        return [_exchange(call, [x[:, _of_rank(call, heads, of_q, x.shape[1], to)] for to in range(call.shards.ranks)]) for x, of_q in given]

    coming = start(cuts[0])
    for at, heads in enumerate(cuts):
        wholes = [_arrived(call, *one) for one in coming]
        coming = start(cuts[at + 1]) if at + 1 < len(cuts) else []
        yield heads, wholes


def _exchange(call: Any, parts: Sequence[Tensor]) -> tuple[Any, Tensor, Tensor]:
    """(what to wait for, what arrives, what must live until then): a part for each rank, and one of each."""
    sent = torch.stack(tuple(parts))
    received = torch.empty_like(sent)
    return dist.all_to_all_single(received, sent, group=call.group, async_op=True), received, sent


def _arrived(call: Any, work: Any, received: Tensor, sent: Tensor) -> Tensor:
    groups.finish(work, "to exchange heads")
    return call.shards.join(call.shards.in_order(received.unbind(0), 2), 2)


class _Return:
    """Whole sequences of the rank's heads, on their way to the ranks whose tokens they are."""

    def __init__(self, call: Any, heads: Heads, x: Tensor, into: Tensor, of_queries: bool) -> None:
        self.call, self.heads, self.into, self.of_queries = call, heads, into, of_queries
        self.coming = _exchange(call, [call.shards.part(x, rank, 2) for rank in range(call.shards.ranks)])

    def finish(self) -> None:
        work, received, _ = self.coming
        groups.finish(work, "to exchange heads")
        for rank, part in enumerate(received):
            self.into[:, _of_rank(self.call, self.heads, self.of_queries, self.into.shape[1], rank)] = part
        del self.coming


def _finish(returns: Sequence[Sequence[_Return]]) -> None:
    for group in returns:
        for one in group:
            one.finish()
