"""The keys that tiles of queries share, and attention to them: what a plan's anchors and the layers behind them compute.

Where they take a call (kernels.are_for), kernels compute it. Elsewhere plain PyTorch does, on any device: an anchor computes all scores,
some tiles at a time, and the layers behind it gather a tile's keys, and attend to them by PyTorch's fused softmax, or by this library's
entmax. A tile is `tile` queries that follow one another in a call, so that a step of decoding is a tile of its own.

Where a batch is padded on the left, each sequence gets, but for rounding, what it would get alone: its tiles begin at its own first token, and it keeps a share of
its own keys. More queries than a step's are computed one sequence after another; a step is computed as a whole. Under other padding tiles
begin at the call's first query. Packed sequences, several in an entry of the batch, get the same, in a call of the whole text.

Shapes: q [batch, heads, q_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads, kv_len, value_dim]. mask: None is
causal; else as hugging_face.key_positions makes it for causal attention with padding, int32 [batch, 1, 1, kv_len], or for packed sequences,
[batch, 1, 4, kv_len]. Lists of keys are [batch, kv_heads, tiles, keys]; the tiles of packed sequences stand behind one another, those of
each begun at its first token.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from splash_attention._core import KascadePlan, kascade_keys
from splash_attention.decoding import PagedCache
from splash_attention.functional import splash_attention
from splash_attention.hugging_face.attention import attention_of_heads
from splash_attention.hugging_face.masks import left_padding, packed_lengths
from splash_attention.hugging_face.plain import softmax_attention, visible_keys
from splash_attention.kascade import kernels, pages
from splash_attention.kascade.keys_in_8_bits import CopiesOfCache, KeysIn8Bits, rounded
from splash_attention.kascade.turns import alone, lists_alone, lists_together, packed_turns, together, turns_of

_SCORES = 1 << 27  # of an anchor at once: 512 MiB of float32, and a few times that while they are chosen from
_GATHERED = 1 << 27  # numbers of keys and values at once


class Budget(NamedTuple):
    """How many keys a tile shares: a share of those that its last query sees, rounded up, but at least least_keys, its own and all others'
    where it sees no more."""

    share: float
    tile: int
    least_keys: int

    def keys(self, visible: Tensor, own: Tensor, most: int) -> Tensor:
        """Of tiles whose last query sees `visible` keys, at most `most`, `own` of them in the tile."""
        return torch.maximum(_keys_by_visible(self, 1 << most.bit_length(), visible.device)[visible], own)


@functools.lru_cache(maxsize=32)
def _keys_by_visible(budget: Budget, end: int, device: torch.device) -> Tensor:
    return torch.tensor([kascade_keys(budget.share, budget.tile, budget.least_keys, n, 0) for n in range(end)], device=device)


class Reuse:
    """A plan in use in one model. Of the last anchor's keys it holds the places: 4 bytes a key, tile and key head; of each anchor's own, where
    asked for, a copy in 8 bits, from which steps of decoding choose (layer 0 does without: it reads all keys). exact: of entmax, every layer attends to all keys, and a plan changes
    nothing. rounds_keys: every call chooses by keys that are rounded as these
    copies are, which tells what the choice costs in perplexity; slow."""

    def __init__(
        self, plan: KascadePlan, budget: float | None = None, keys_in_8_bits: bool = False, rounds_keys: bool = False, exact: bool = False
    ) -> None:  # fmt: skip
        self.anchor_of, self.heads, self.q_heads = plan.anchor_of, plan.heads, plan.q_heads
        self.budget = Budget(plan.budget if budget is None else budget, plan.tile, plan.least_keys)
        self.alpha = plan.alpha if plan.normalizer == "entmax" else None
        self.anchor, self.keys, self.of = -1, torch.empty(0), ()
        self.packed: tuple[int, ...] = ()
        self.copies = CopiesOfCache() if keys_in_8_bits else None
        self.rounds_keys, self.exact = rounds_keys, exact

    def check(self, layers: Sequence[int], heads: int) -> None:
        """Raises ValueError where the model has other layers or query heads than the plan."""
        if list(layers) != list(range(len(self.anchor_of))) or heads != self.q_heads:
            raise ValueError(
                f"the plan is of {len(self.anchor_of)} layers of {self.q_heads} query heads; the model has {len(layers)} of {heads}"
            )

    def attend(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float, mask: Tensor | None = None, return_support: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """(out [batch, heads, q_len, value_dim], support [batch, heads, q_len]: keys with weight of each row, None if not asked for).

        Raises ValueError where the layer's anchor did not attend before it in this call of the model, NotImplementedError where it attended
        to other packed sequences.
        """
        if self.exact:
            return attend_to_all(q, k, v, scaling, mask, self.alpha, return_support)
        return self._attend_to_sets(layer, q, k, v, scaling, mask, return_support)

    @torch.compiler.disable  # a compiled graph breaks here: kernels take addresses, and lists stay from layer to layer
    def _attend_to_sets(
        self, layer: int, q: Tensor, k: Tensor, v: Tensor, scaling: float, mask: Tensor | None, return_support: bool
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        packed = packed_lengths(mask)
        if self.anchor_of[layer] == layer:
            self.anchor, self.of, self.packed = layer, _size_of(q, k), packed
            if layer == 0 and not self.rounds_keys:
                out, support, self.keys = attend_to_all_and_find(q, k, v, self.budget, scaling, mask, self.alpha, return_support)
                return out, support
            self.keys = self._find(layer, q, k, scaling, mask)
        if layer == 0:
            return attend_to_all(q, k, v, scaling, mask, self.alpha, return_support)
        self._require_anchor(layer, _size_of(q, k))
        if self.packed != packed:  # its lists have other tiles
            raise NotImplementedError(f"layer {layer} sees other packed sequences, or chunks, than layer {self.anchor}, whose keys it reuses")
        return attend_to(self.keys, q, k, v, self.budget, scaling, mask, self.alpha, return_support, self.heads[layer])

    @torch.compiler.disable
    def takes_pages(self, q: Tensor, cache: PagedCache, scaling: float) -> bool:
        """Whether attend_in_pages takes such a step; else attend does, of keys and values that were gathered."""
        return pages.are_for(q, cache, scaling, self.budget.tile, self.alpha)

    @torch.compiler.disable
    def attend_in_pages(self, layer: int, q: Tensor, cache: PagedCache, scaling: float) -> Tensor:
        """What attend gives, of the last queries of each sequence of a cache that holds their keys. Raises as attend does."""
        of = (q.shape[0], q.shape[2], -1)
        if layer == 0:
            out, self.in_pages = pages.attend_to_all_and_find(q, cache, scaling, self.budget)
            self.anchor, self.of = layer, of
            return out
        if self.anchor_of[layer] == layer:
            self.anchor, self.of, self.in_pages = layer, of, pages.find(q, cache, scaling, self.budget)
        self._require_anchor(layer, of)
        return pages.attend(self.in_pages, self.heads[layer], q, cache, scaling)

    def _require_anchor(self, layer: int, of: tuple[int, int, int]) -> None:
        if self.anchor != self.anchor_of[layer] or self.of != of:
            raise ValueError(f"layer {layer} reuses the keys of layer {self.anchor_of[layer]}, which did not attend before it in this call")

    def _find(self, layer: int, q: Tensor, k: Tensor, scaling: float, mask: Tensor | None) -> Tensor:
        if self.rounds_keys:
            return tile_keys(q.float(), rounded(k), scaling, self.budget, mask, self.alpha)
        return tile_keys(q, k, scaling, self.budget, mask, self.alpha, self._in_8_bits(layer, q, k, scaling, mask))

    def see_cache(self, layer: int, keys: Tensor | None) -> None:
        """Tells what a cache holds of a layer before a call. A copy in 8 bits of a layer that was not told is made anew in each step."""
        if self.copies is not None:
            self.copies.see(layer, keys)

    def forget_copies(self) -> None:
        """Gives the memory of the copies in 8 bits back."""
        if self.copies is not None:
            self.copies = CopiesOfCache()

    def _in_8_bits(self, layer: int, q: Tensor, k: Tensor, scaling: float, mask: Tensor | None) -> KeysIn8Bits | None:
        if self.copies is None:
            return None
        if q.shape[2] == k.shape[2]:
            self.copies.forget(layer)  # another text begins
        starts = _starts(q, k, mask)
        if not kernels.is_step(q, k, self.budget.tile) or starts is None or self.alpha is not None:
            return None
        if q.is_cuda and not kernels.are_for(q, k, None, scaling, self.budget.tile, starts, self.alpha):
            return None
        return self.copies.of(layer, k, q.shape[2])


def _size_of(q: Tensor, k: Tensor) -> tuple[int, int, int]:
    return q.shape[0], q.shape[2], k.shape[2]


def _starts(q: Tensor, k: Tensor, mask: Tensor | None) -> tuple[int, ...] | None:
    """The first key that each sequence of the batch sees; None where the mask hides other keys."""
    if mask is None:
        return (0,) * q.shape[0]
    return left_padding(mask, q.shape[2]) if mask.shape[0] == q.shape[0] and mask.shape[3] == k.shape[2] else None


@torch.no_grad()
def tile_keys(
    q: Tensor, k: Tensor, scaling: float, budget: Budget, mask: Tensor | None = None, alpha: float | None = None,
    k8: KeysIn8Bits | None = None,
) -> Tensor:  # fmt: skip
    """The keys of each tile and key head, int32 [batch, kv_heads, tiles, keys], rising; kv_len where a tile has fewer.

    They are the tile's own and then those with the largest sums of probabilities over the tile's queries and the key head's query heads;
    of equal sums the lower key wins. Probabilities are softmax, or entmax of alpha.

    k8: the same keys in 8 bits, for a step of decoding (query heads of a key head x q_len at most 32): it chooses by these, which takes half
    the time. Raises ValueError where it holds another number of keys than k.
    """
    if k8 is not None and k8.length != k.shape[2]:
        raise ValueError(f"there are {k8.length} keys in 8 bits of {k.shape[2]} keys")
    starts = _starts(q, k, mask)
    if kernels.are_for(q, k, None, scaling, budget.tile, starts, alpha):
        return kernels.find(q, k, scaling, budget, starts, k8=k8)
    if k8 is not None:
        k = k8.values()
    if turns := turns_of(q, k, mask, starts, budget.tile):
        return lists_together(turns, [tile_keys(*one, scaling, budget, None, alpha) for one in alone(turns, q, k)], k.shape[2])
    q_len, (batch, kv_heads, kv_len, _) = q.shape[2], k.shape
    first, tile = _first_queries(q_len, kv_len, mask, q.device), budget.tile
    most = kascade_keys(*budget, kv_len, min(tile, q_len))
    pooled = _by_softmax(q, k, scaling, first, tile) if alpha is None else _by_entmax(q, k, scaling, alpha, None if mask is None else first, tile)
    rows = max(1, _SCORES // (batch * q.shape[1] * kv_len * tile)) * tile
    parts = []
    for begin in range(0, q_len, rows):
        behind = min(begin + rows, q_len)
        end = kv_len if mask is not None else kv_len - q_len + behind  # later keys are hidden from all
        sums = pooled(begin, behind, end)
        tiles = torch.arange(begin, behind, tile, device=q.device)[:, None]  # first query of each
        seen = first[:, None, :end] <= (tiles + (tile - 1)).clamp(max=q_len - 1)  # by a tile's last query
        own = seen & (first[:, None, :end] >= tiles)
        count = budget.keys(seen.sum(-1), own.sum(-1), kv_len)
        parts.append(F.pad(_largest(sums, seen, own, count, min(most, end), kv_len), (0, most - min(most, end)), value=kv_len))
    return torch.cat(parts, 2)


def _by_softmax(q: Tensor, k: Tensor, scaling: float, first: Tensor, tile: int) -> Callable[[int, int, int], Tensor]:
    """Of the queries [begin, behind) and the keys before end: probabilities summed over each tile's queries and the key head's query heads,
    float32 [batch, kv_heads, tiles, end]. A row without keys, or with NaN, has none."""
    queries = (q.float() * scaling).unflatten(1, (k.shape[1], -1))  # [batch, kv_heads, group, q_len, head_dim]
    transposed = k.float().transpose(-1, -2)[:, :, None]

    def pooled(begin: int, behind: int, end: int) -> Tensor:
        seen = first[:, None, :end] <= torch.arange(begin, behind, device=q.device)[:, None]  # [batch or 1, rows, end]
        scores = (queries[:, :, :, begin:behind] @ transposed[..., :end]).masked_fill(~seen[:, None, None], -torch.inf)
        p = F.pad(torch.softmax(scores, -1).nan_to_num(0.0), (0, 0, 0, (begin - behind) % tile))
        return p.unflatten(3, (-1, tile)).sum((2, 4))

    return pooled


def _by_entmax(q: Tensor, k: Tensor, scaling: float, alpha: float, first: Tensor | None, tile: int) -> Callable[[int, int, int], Tensor]:
    """As _by_softmax, int32, in units of 2^-24. One exact attention tells the support of each row; a tile's keys are the union of these."""
    p = splash_attention(q, k, k, alpha=alpha, scale=scaling, return_aux=True, **_seen_from(first, q))[1].probabilities()
    (batch, heads, q_len, _), kv_heads = q.shape, k.shape[1]
    places = torch.arange(batch * heads * q_len, device=q.device).repeat_interleave(p.crow_indices().diff())  # of each entry its row
    of_head, query = places // (q_len * (heads // kv_heads)), places % q_len  # key head over all batches
    keys, units = p.col_indices(), (p.values().nan_to_num(0.0) * 2**24).round().to(torch.int32)

    def pooled(begin: int, behind: int, end: int) -> Tensor:
        tiles, some = -(-(behind - begin) // tile), (query >= begin) & (query < behind)
        lists = of_head[some] * tiles + (query[some] - begin) // tile
        sums = torch.zeros(batch * kv_heads * tiles * end, dtype=torch.int32, device=q.device)
        return sums.index_add_(0, lists * end + keys[some], units[some]).view(batch, kv_heads, tiles, end)

    return pooled


def _largest(sums: Tensor, seen: Tensor, own: Tensor, count: Tensor, most: int, none: int) -> Tensor:
    """The own keys and those with the largest sums, the lower one of equals, `count` together: int32 [batch, kv_heads, tiles, most], rising.

    Float32 that is not negative is ordered as its bits are, so that sum and key make one integer, and topk has no ties to break."""
    keys = torch.arange(sums.shape[-1], device=sums.device)
    order = (sums.contiguous().view(torch.int32).long() << 32) + (sums.shape[-1] - keys)
    order = order.masked_fill(own[:, None], torch.iinfo(torch.int64).max).masked_fill(~seen[:, None], -1)
    best = order.topk(most, -1).indices
    taken = torch.arange(most, device=sums.device) < count[:, None, :, None]  # by rank
    return torch.where(taken, best, none).to(torch.int32).sort(-1).values


def attend_to(
    keys: Tensor, q: Tensor, k: Tensor, v: Tensor, budget: Budget, scaling: float, mask: Tensor | None = None, alpha: float | None = None,
    return_support: bool = False, heads: Sequence[int] | None = None,
) -> tuple[Tensor, Tensor | None]:  # fmt: skip
    """(out, support, None if not asked for): softmax, or entmax of alpha, over those of a tile's keys that each query sees. keys: of tile_keys
    with this budget, [batch, kv_heads, tiles, keys]. heads: whose keys each key head takes; None: its own. Differentiable by q, k and v."""
    heads, starts = range(k.shape[1]) if heads is None else heads, _starts(q, k, mask)
    if turns := turns_of(q, k, mask, starts, budget.tile):
        given = list(alone(turns, q, k, v))
        lists = lists_alone(turns, keys, [one[0].shape[2] for one in given], budget)
        found = [attend_to(some, *one, budget, scaling, None, alpha, return_support, heads) for some, one in zip(lists, given)]
        return together(turns, found, q.shape[2])
    if kernels.are_for(q, k, v, scaling, budget.tile, starts, alpha):
        out = kernels.attend(keys, heads, q, k, v, budget, scaling, starts)
        return out, _listed(keys[:, list(heads)], q, k, budget.tile) if return_support else None
    keys, tile = keys[:, list(heads)], budget.tile
    q_len, (batch, kv_heads, kv_len, head_dim) = q.shape[2], k.shape
    first = F.pad(_first_queries(q_len, kv_len, mask, q.device).expand(batch, -1), (0, 1), value=q_len)  # of no key: never
    at = torch.arange(batch, device=q.device)[:, None, None, None]
    head = torch.arange(kv_heads, device=q.device)[:, None, None]
    rows = torch.arange(keys.shape[2] * tile, device=q.device).view(-1, tile)  # [tiles, tile]
    queries = F.pad(q, (0, 0, 0, rows.numel() - q_len)).unflatten(2, (-1, tile)).unflatten(1, (kv_heads, -1))
    at_once = max(1, _GATHERED // (batch * kv_heads * keys.shape[3] * (head_dim + v.shape[3])))
    outs, supports = [], []
    for begin in range(0, keys.shape[2], at_once):
        some = slice(begin, begin + at_once)
        taken = keys[:, :, some].long()  # [batch, kv_heads, tiles, keys]
        part = queries[:, :, :, some].transpose(2, 3).flatten(0, 2)  # [batch·kv_heads·tiles, group, tile, head_dim]
        there = taken.clamp(max=kv_len - 1)
        some_k, some_v = (one[at, head, there].flatten(0, 2)[:, None] for one in (k, v))  # [batch·kv_heads·tiles, 1, keys, …]
        seen_from = first[at, taken]
        of_rows = rows[some].expand(batch, kv_heads, -1, -1)
        done, support = _attend_within(
            part, some_k, some_v, seen_from.flatten(0, 2), of_rows.flatten(0, 2), scaling, alpha, return_support
        )
        outs.append(_in_order(done, taken.shape[:3]))
        if support is not None:
            supports.append(_in_order(support[..., None], taken.shape[:3])[..., 0])
    return torch.cat(outs, 2)[:, :, :q_len], torch.cat(supports, 2)[:, :, :q_len] if return_support else None


def _listed(keys: Tensor, q: Tensor, k: Tensor, tile: int) -> Tensor:
    """How many of its tile's keys each query sees under a causal mask: [batch, heads, q_len]."""
    (batch, heads, q_len, _), (_, kv_heads, kv_len, _) = q.shape, k.shape
    places = torch.arange(keys.shape[2] * tile, device=q.device, dtype=torch.int32).view(-1, tile) + (kv_len - q_len)
    seen = torch.searchsorted(keys, places.expand(batch, kv_heads, -1, -1).contiguous(), right=True)
    return seen.flatten(2)[:, :, :q_len].repeat_interleave(heads // kv_heads, 1)


def _attend_within(
    q: Tensor, k: Tensor, v: Tensor, first: Tensor, rows: Tensor, scaling: float, alpha: float | None, return_support: bool
) -> tuple[Tensor, Tensor | None]:
    """Of tiles as the batch, with one key head. first [tiles, keys]: the first query that sees a key; rows [tiles, tile]: the queries."""
    if alpha is not None:
        positions = {"q_positions": rows.to(torch.int32), "k_positions": first.to(torch.int32)}
        done = attention_of_heads(q, k, v, alpha=alpha, scaling=scaling, return_support=return_support, **positions)
        return done if return_support else (done, None)
    seen = (first[:, None, :] <= rows[:, :, None])[:, None]  # [tiles, 1, tile, keys]
    k, v = (one.expand(-1, q.shape[1], -1, -1) for one in (k, v))  # with a mask, PyTorch fuses no grouped heads
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scaling).masked_fill(~seen.any(-1, keepdim=True), 0.0)
    return out, seen.sum(-1).expand(out.shape[:3]) if return_support else None


def _in_order(of_tiles: Tensor, shape: torch.Size) -> Tensor:
    """[batch·kv_heads·tiles, group, tile, width] as [batch, heads, queries, width]. shape: batch, kv_heads, tiles."""
    return of_tiles.unflatten(0, shape).transpose(2, 3).flatten(3, 4).flatten(1, 2)


def attend_to_all(
    q: Tensor, k: Tensor, v: Tensor, scaling: float, mask: Tensor | None, alpha: float | None, return_support: bool
) -> tuple[Tensor, Tensor | None]:
    """(out, support, None if not asked for) of dense attention, softmax or entmax of alpha."""
    if turns := packed_turns(q, k, mask):
        return together(turns, [attend_to_all(*one, scaling, None, alpha, return_support) for one in alone(turns, q, k, v)], q.shape[2])
    if alpha is None:
        out = softmax_attention(q, k, v, scaling, mask)
        return out, visible_keys(q, k, mask) if return_support else None
    first = None if mask is None else _first_queries(q.shape[2], k.shape[2], mask, q.device)
    done = attention_of_heads(q, k, v, alpha=alpha, scaling=scaling, return_support=return_support, **_seen_from(first, q))
    return done if return_support else (done, None)


def attend_to_all_and_find(
    q: Tensor, k: Tensor, v: Tensor, budget: Budget, scaling: float, mask: Tensor | None = None, alpha: float | None = None,
    return_support: bool = False,
) -> tuple[Tensor, Tensor | None, Tensor]:  # fmt: skip
    """What attend_to_all and tile_keys give: (out, support, keys). A dense kernel that tells its rows' sums spares the search a pass; a step
    reads keys and values once for both."""
    starts = _starts(q, k, mask)
    if turns := turns_of(q, k, mask, starts, budget.tile):
        found = [attend_to_all_and_find(*one, budget, scaling, None, alpha, return_support) for one in alone(turns, q, k, v)]
        return *together(turns, [one[:2] for one in found], q.shape[2]), lists_together(turns, [one[2] for one in found], k.shape[2])
    if kernels.are_for(q, k, v, scaling, budget.tile, starts, alpha):
        support = visible_keys(q, k, mask) if return_support else None
        if kernels.is_step(q, k, budget.tile):
            out, keys = kernels.attend_to_all_and_find(q, k, v, scaling, budget, starts)
            return out, support, keys
        if kernels.tell_normalizers(q, k, v):
            out, normalizers = kernels.dense(q, k, v, scaling)
            return out, support, kernels.find(q, k, scaling, budget, starts, normalizers)
    return *attend_to_all(q, k, v, scaling, mask, alpha, return_support), tile_keys(q, k, scaling, budget, mask, alpha)


def _seen_from(first: Tensor | None, q: Tensor) -> dict[str, Any]:
    """As splash_attention takes it. first: of _first_queries for a mask; None is causal."""
    return {"causal": True} if first is None else {"q_positions": torch.arange(q.shape[2], device=q.device), "k_positions": first}


def _first_queries(q_len: int, kv_len: int, mask: Tensor | None, device: torch.device) -> Tensor:
    """[batch or 1, kv_len]: the first query that sees each key; below 0 of a key before the first query's own, by their distance."""
    keys = torch.arange(kv_len, device=device)
    if mask is None:
        return (keys - (kv_len - q_len))[None]
    first = mask[:, 0, 0, :kv_len].long()
    before = first == 0  # query 0 sees these; the last of them is its own
    own = torch.where(before, keys, -1).amax(-1, keepdim=True)
    return torch.where(before, keys - own, first)
