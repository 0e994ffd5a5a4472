"""Every rank gives each other rank parts of its tensors, and says where what it gets lies in the end.

Two ways, which move the same bytes. Where all ranks are GPUs of one host that can read one another's memory (PyTorch's symmetric memory), a
rank puts what others want into a staging buffer, and their copy engines fetch it from there to its place, beside kernels. Elsewhere
(gloo, several hosts, SPLASH_PEER_MEMORY=off) a collective moves one flat tensor.

The staging buffer has two halves, which exchanges take in turn. An exchange does on the group's stream

    put into the half; wait for all ranks to be here; fetch

so that a rank that is past the wait of exchange i + 1 knows that all have fetched what was in the half of exchange i, before i + 2 puts there.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from typing import Any, Iterator, NamedTuple, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from splash_attention import _core
from splash_attention.distributed import groups


class Runs(NamedTuple):
    """Part of a contiguous tensor, in elements: runs that lie equally far apart."""

    of: Tensor
    first: int
    apart: int
    """From one run to the next."""
    run: int
    count: int

    def view(self) -> Tensor:
        return self.of.view(-1).as_strided((self.count, self.run), (self.apart, 1), self.of.storage_offset() + self.first)


Parts = Sequence[Sequence[Runs]]
"""Of each rank, in their order: parts of tensors of one dtype."""

_PATIENCE_MS = 600_000  # of a rank that waits for others in the middle of an exchange


def cut(shape: Sequence[int], heads: slice, chunk: int, chunks: int, striped: bool) -> list[tuple[int, int, int, int]]:
    """first, apart, run and count of Runs: of [batch, heads, length, dim] one of so many chunks of the length, of some heads; striped: every so
    many tokens."""
    (batch, all_heads, length, dim), some = shape, heads.stop - heads.start
    run = dim if striped else length // chunks * dim
    apart, count = (chunks * dim, some * (length // chunks)) if striped else (length * dim, some)
    return [((entry * all_heads + heads.start) * length * dim + chunk * run, apart, run, count) for entry in range(batch)]


def copy(to: Sequence[Runs], given: Sequence[Runs]) -> None:
    """Of the same sizes, on one device."""
    if _core.has_cuda and given[0].of.is_cuda:
        _copy(_pairs(to, given, given[0].of.element_size()), torch.cuda.current_stream(given[0].of.device))
        return
    for place, part in zip(to, given):
        place.view().copy_(part.view())


def start(group: Any, sent: Parts, into: Parts, most: int | None = None) -> Any:
    """Starts an exchange; its finish() lets the current stream wait for what arrives. sent: for each rank, the same list where all get the
    same; into: from each rank. What is sent may change once it is finished. most: elements that any rank sends to any other, at most; None:
    all send as many."""
    like = next(part.of for some in (*into, *sent) for part in some)
    peers = _peers_of(group, like.device)
    return _Collective(group, sent, into, like) if peers is None else peers.start(group, sent, into, like.element_size(), most)


class _Collective:
    def __init__(self, group: Any, sent: Parts, into: Parts, like: Tensor) -> None:
        same = all(some is sent[0] for some in sent)
        given = [part for some in (sent[:1] if same else sent) for part in some]
        self.into = [place for some in into for place in some]
        self.sent = torch.cat([like.new_empty(0), *(part.view().reshape(-1) for part in given)])  # lives until finish
        self.received = like.new_empty(sum(_size(some) for some in into))
        if same:
            self.work = dist.all_gather_into_tensor(self.received, self.sent, group=group, async_op=True)
        else:
            counts = ([_size(some) for some in parts] for parts in (into, sent))
            self.work = dist.all_to_all_single(self.received, self.sent, *counts, group=group, async_op=True)

    def finish(self) -> None:
        groups.finish(self.work, "to exchange parts of tensors")
        for place, part in zip(self.into, self.received.split([place.run * place.count for place in self.into])):
            place.view().copy_(part.view(place.count, place.run))
        del self.sent, self.received


def _size(parts: Sequence[Runs]) -> int:
    return sum(part.run * part.count for part in parts)


class _Peers:
    """The staging buffers of a group's ranks, in one another's memory."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self.device, self.rank, self.ranks, self.half, self.turn = device, dist.get_rank(group), dist.get_world_size(group), 0, 0
        self.stream, self.own = (torch.cuda.Stream(device) for _ in range(2))  # own: of what stays with the rank
        self.room(group, 1 << 20)

    def room(self, group: Any, size: int) -> None:
        """Bytes of a half, at least. By all ranks."""
        import torch.distributed._symmetric_memory as symmetric

        if size <= self.half:
            return
        torch.cuda.synchronize(self.device)
        dist.barrier(group, device_ids=[self.device.index])  # nobody reads from the one before
        self.half = -(-size // (1 << 20)) << 20
        self.staging = symmetric.empty(2 * self.half, dtype=torch.uint8, device=self.device)
        self.handle = symmetric.rendezvous(self.staging, group.group_name)
        self.places = self.handle.buffer_ptrs

    def start(self, group: Any, sent: Parts, into: Parts, width: int, most: int | None) -> _Fetched:
        # One part for all ranks where all get the same.
        parts = 1 if all(some is sent[0] for some in sent) else self.ranks - 1
        size = (_size(sent[0]) if most is None else most) * width
        self.room(group, size * parts)
        half, self.turn = self.turn, 1 - self.turn

        def staged(rank: int, to: int) -> int:
            return self.places[rank] + half * self.half + min(parts - 1, to - (to > rank)) * size

        others = [(self.rank + step) % self.ranks for step in range(1, self.ranks)]  # no two ranks have the same next one
        ready = torch.cuda.current_stream(self.device).record_event()
        for stream in (self.stream, self.own):
            stream.wait_event(ready)
        puts = (one for to in others[:parts] for one in _beside(staged(self.rank, to), sent[to], width))
        _copy(((place, part, lengths) for part, place, lengths in puts), self.stream)
        with torch.cuda.stream(self.stream):
            self.handle.barrier(0, _PATIENCE_MS)
        _copy((one for rank in others for one in _beside(staged(rank, self.rank), into[rank], width)), self.stream)
        _copy(_pairs(into[self.rank], sent[self.rank], width), self.own)
        return _Fetched(self.device, [self.stream.record_event(), self.own.record_event()], (sent, into))


class _Fetched:
    def __init__(self, device: torch.device, done: Sequence[Any], held: Any) -> None:
        self.device, self.done, self.held = device, done, held  # memory that the group's streams use

    def finish(self) -> None:
        for event in self.done:
            torch.cuda.current_stream(self.device).wait_event(event)
        self.held = None


_Place = tuple[int, int]  # address, bytes from one run to the next


def _copy(all: Iterator[tuple[_Place, _Place, tuple[int, int]]], stream: Any) -> None:
    """Of each: to, from, (bytes of a run, runs)."""
    _core.copy_runs([(*to, *given, *lengths) for to, given, lengths in all], stream.cuda_stream)


def _place(part: Runs, width: int) -> _Place:
    return part.of.data_ptr() + part.first * width, part.apart * width


def _pairs(to: Sequence[Runs], given: Sequence[Runs], width: int) -> Iterator[tuple[_Place, _Place, tuple[int, int]]]:
    for place, part in zip(to, given):
        yield _place(place, width), _place(part, width), (part.run * width, part.count)


def _beside(address: int, parts: Sequence[Runs], width: int) -> Iterator[tuple[_Place, _Place, tuple[int, int]]]:
    """Of each part: its place, that in a buffer where all follow one another, and lengths."""
    for part in parts:
        run = part.run * width
        yield _place(part, width), (address, run), (run, part.count)
        address += run * part.count


_peers: weakref.WeakKeyDictionary[Any, _Peers | None] = weakref.WeakKeyDictionary()


def _peers_of(group: Any, device: torch.device) -> _Peers | None:
    """None where memory of peers cannot be read. Asked for once for a group, by all its ranks."""
    if device.type != "cuda" or dist.get_world_size(group) == 1:
        return None
    if group not in _peers:
        _peers[group] = _met(group, device)
    return _peers[group]


def _met(group: Any, device: torch.device) -> _Peers | None:
    able = _core.has_cuda and os.environ.get("SPLASH_PEER_MEMORY") != "off" and "cuda:nccl" in dist.get_backend_config(group)
    hosts, ables, devices = zip(*_everyone(group, (socket.gethostname(), able, device.index)))
    others = [other for other in devices if other != device.index]
    reads = len(set(hosts)) == 1 and len(others) == len(devices) - 1 and all(torch.cuda.can_device_access_peer(device.index, x) for x in others)
    if not all(_everyone(group, reads and all(ables))):
        return None
    made = None
    with contextlib.suppress(RuntimeError, ImportError):  # of a driver or container that does not share memory
        made = _Peers(group, device)
    return made if all(_everyone(group, made is not None)) else None


def _everyone(group: Any, mine: Any) -> list[Any]:
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, mine, group=group)
    return told
