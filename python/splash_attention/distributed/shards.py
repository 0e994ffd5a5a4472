"""How a sequence lies over ranks: which tokens each holds, and which keys a part of its queries sees.

A sequence of length N is cut into chunks of equal length. Of W ranks, rank r holds

  "zigzag"      chunks r and 2W-1-r of 2W: each rank has as many visible pairs under a causal mask
  "contiguous"  chunk r of W
  "striped"     chunk r of W, which is the tokens r, r + W, r + 2W, …

in this order. Nothing here communicates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Sequence

import torch
from torch import Tensor

KINDS = ("zigzag", "striped", "contiguous")


class Piece(NamedTuple):
    """Queries of a rank that one call of the kernels takes."""

    queries: slice
    """Of the rank's own tokens."""
    begin: int
    """Place of the first query in the sequence; 0 where the queries are no run."""
    chunks: int
    """The queries see keys of the first so many chunks; under a causal mask their ends meet."""


@dataclass(frozen=True)
class Shards:
    kind: str
    ranks: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"shard is {self.kind!r}; allowed are {', '.join(KINDS)}")

    @property
    def count(self) -> int:
        """Chunks of the sequence."""
        return 2 * self.ranks if self.kind == "zigzag" else self.ranks

    def chunks_of(self, rank: int) -> tuple[int, ...]:
        return (rank, 2 * self.ranks - 1 - rank) if self.kind == "zigzag" else (rank,)

    def split(self, x: Tensor, dim: int, chunks: int) -> Sequence[Tensor]:
        """The first so many chunks, of which x is made, as views."""
        if self.kind == "striped":
            return x.unflatten(dim, (-1, self.ranks)).unbind(dim + 1)
        return x.chunk(chunks, dim)

    def join(self, chunks: Sequence[Tensor], dim: int) -> Tensor:
        """What split undoes: a copy, contiguous."""
        if self.kind == "striped":
            return torch.stack(tuple(chunks), dim + 1).flatten(dim, dim + 1)
        return torch.cat(tuple(chunks), dim)

    def in_order(self, parts: Sequence[Tensor], dim: int) -> list[Tensor]:
        """The chunks of the sequence, as views. parts: what each rank holds."""
        found = {}
        for rank, part in enumerate(parts):
            held = self.chunks_of(rank)
            found.update(zip(held, part.chunk(len(held), dim)))
        return [found[chunk] for chunk in range(self.count)]

    def part(self, x: Tensor, rank: int, dim: int) -> Tensor:
        """What a rank holds of a sequence."""
        chunks = self.split(x, dim, self.count)
        return torch.cat([chunks[chunk] for chunk in self.chunks_of(rank)], dim)

    def pieces(self, rank: int, length: int, runs: bool) -> list[Piece]:
        """Of a rank that holds so many tokens. runs: whether a mask needs queries that are a run, and keys up to its end."""
        if not runs or self.kind == "striped":
            return [Piece(slice(0, length), 0, self.count)]
        chunks = self.chunks_of(rank)
        size = length // len(chunks)
        if len(chunks) == 2 and chunks[1] == chunks[0] + 1:  # of the last rank of a zigzag
            return [Piece(slice(0, length), chunks[0] * size, chunks[1] + 1)]
        return [Piece(slice(at * size, (at + 1) * size), chunk * size, chunk + 1) for at, chunk in enumerate(chunks)]

    def sent(self, pieces: Sequence[Piece], to: int) -> list[tuple[int, int]]:
        """(piece, chunk) of gradients by keys that a rank with these pieces has for another, in the order in which they are sent."""
        return [(at, chunk) for at, piece in enumerate(pieces) for chunk in self.chunks_of(to) if chunk < piece.chunks]
