"""Sequences of a batch that are computed one after another, each as if it were alone: padded on the left, or packed.

Shapes and mask as in attention."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from splash_attention._core import kascade_keys
from splash_attention.hugging_face.masks import packed_lengths
from splash_attention.kascade import kernels

if TYPE_CHECKING:
    from splash_attention.kascade.attention import Budget


class Turn(NamedTuple):
    """A sequence that is computed alone: its entry of the batch, and where its keys begin and end."""

    entry: int
    begin: int
    end: int


def turns_of(q: Tensor, k: Tensor, mask: Tensor | None, starts: Sequence[int] | None, tile: int) -> Sequence[Turn]:
    """The sequences that are computed one after another; none where the batch is computed as a whole."""
    if packed := packed_turns(q, k, mask):
        return packed
    if starts is None or not any(starts) or kernels.is_step(q, k, tile):
        return ()
    return [Turn(entry, start, k.shape[2]) for entry, start in enumerate(starts)]


def packed_turns(q: Tensor, k: Tensor, mask: Tensor | None) -> Sequence[Turn]:
    """Packed sequences, in the order of the batch; none of another mask. Raises NotImplementedError for a part of them."""
    lengths, (batch, kv_len) = packed_lengths(mask), (k.shape[0], k.shape[2])
    if lengths and (q.shape[2] != kv_len or lengths[-1] != batch * kv_len):
        raise NotImplementedError(f"packed sequences are taken in a call of the whole text; this one has {q.shape[2]} queries of {kv_len} keys")
    first = [divmod(begin, kv_len) for begin in lengths[:-1]]
    return [Turn(entry, at, at + end - begin) for (entry, at), (begin, end) in zip(first, itertools.pairwise(lengths))]


def alone(turns: Sequence[Turn], q: Tensor, *of_keys: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Of each sequence its queries and keys."""
    before = of_keys[0].shape[2] - q.shape[2]
    for at, begin, end in turns:
        yield q[at : at + 1, :, max(0, begin - before) : end - before], *(one[at : at + 1, :, begin:end] for one in of_keys)


def _by_entry(turns: Sequence[Turn], found: Sequence[Tensor]) -> list[Tensor]:
    """Of each entry of the batch what was found of its sequences, behind one another in dimension 2."""
    together: dict[int, list[Tensor]] = {}
    for turn, one in zip(turns, found):
        together.setdefault(turn.entry, []).append(one)
    return [torch.cat(some, 2) if len(some) > 1 else some[0] for some in together.values()]


def together(turns: Sequence[Turn], found: Sequence[tuple[Tensor, Tensor | None]], q_len: int) -> tuple[Tensor, Tensor | None]:
    """(out, support) of a batch from those of its sequences; 0 of padding."""
    outs = [F.pad(out, (0, 0, q_len - out.shape[2], 0)) for out in _by_entry(turns, [out for out, _ in found])]
    counted = [support for _, support in found if support is not None]
    supports = [F.pad(support, (q_len - support.shape[2], 0)) for support in _by_entry(turns, counted)]
    return torch.cat(outs), torch.cat(supports) if supports else None


def lists_together(turns: Sequence[Turn], lists: Sequence[Tensor], none: int) -> Tensor:
    """Keys of tiles of a batch from those of its sequences, each counted from its first. none: of all tiles and places that are not there."""
    most = max(keys.shape[3] for keys in lists)
    in_entry = [torch.where(keys < end - begin, keys + begin, none) for keys, (_, begin, end) in zip(lists, turns)]
    of_entries = _by_entry(turns, [F.pad(keys, (0, most - keys.shape[3]), value=none) for keys in in_entry])
    tiles = max(keys.shape[2] for keys in of_entries)
    return torch.cat([F.pad(keys, (0, 0, 0, tiles - keys.shape[2]), value=none) for keys in of_entries])


def lists_alone(turns: Sequence[Turn], keys: Tensor, q_lens: Sequence[int], budget: Budget) -> Iterator[Tensor]:
    """Of each sequence its tiles' keys, counted from its first; no wider than it needs, though a longer one may stand beside it."""
    tiles: Counter[int] = Counter()  # of each entry, before the sequence's own
    for (at, begin, end), q_len in zip(turns, q_lens):
        own = slice(tiles[at], tiles[at] + -(-q_len // budget.tile))
        tiles[at] = own.stop
        most = kascade_keys(*budget, end - begin, min(budget.tile, q_len))
        yield (keys[at : at + 1, :, own, :most] - begin).clamp(max=end - begin)
