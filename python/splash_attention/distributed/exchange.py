"""Every rank gives each other rank parts of its tensors, and says where what it gets lies in the end.

Two ways, which move the same bytes. Where all ranks are GPUs of one host that can read one another's memory (PyTorch's symmetric memory), a
rank puts what others want into a staging buffer, and their copy engines fetch it from there to its place, beside kernels. Elsewhere
(gloo, several hosts, SPLASH_PEER_MEMORY=off) a collective moves one flat tensor.

The staging buffer has two halves, which exchanges take in turn. An exchange

    puts into the half, on one stream; on another it waits until all ranks have put, and fetches

so that a rank that is past the wait of exchange i + 1 knows that all have fetched what was in the half of exchange i, before i + 2 puts there.
What stays with the rank is copied behind all that others wait for.
"""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import weakref
from typing import Any, Iterable, NamedTuple, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from splash_attention import _core
from splash_attention.backends.torch.cuda import current_stream
from splash_attention.distributed import groups


class Cut(NamedTuple):
    """Part of a contiguous tensor, in elements: runs that lie equally far apart."""

    of: int
    """Which of the tensors that are given."""
    first: int
    apart: int
    """From one run to the next."""
    run: int
    count: int

    def view(self, tensors: Sequence[Tensor]) -> Tensor:
        whole = tensors[self.of]
        return whole.view(-1).as_strided((self.count, self.run), (self.apart, 1), whole.storage_offset() + self.first)


class Arriving(NamedTuple):
    """Where a cut lies in what a rank sends, the cuts of which follow one another: elements to its first run, and from one to the next."""

    cut: Cut
    at: int
    apart: int


# gpu/engine/exchange.h has these: where a copy goes and comes from, (side, index, offset, from one run to the next), in bytes; the bytes of a
# run; and how many runs.
FILLED, GIVEN, STAGED = range(3)  # sides: tensors of the call, and the ranks' staging buffers
CALLER, PUTS, FETCHES = range(3)  # streams
_Copy = tuple[tuple[int, int, int, int], tuple[int, int, int, int], int, int]
_Step = tuple[str, int, int, list[_Copy]]  # what, on which stream, behind which other, copies
_FLAGS = 4096  # bytes behind the halves, by which ranks meet


def cut(of: int, shape: Sequence[int], heads: slice, chunk: int, chunks: int, striped: bool) -> list[Cut]:
    """Of [batch, heads, length, dim] one of so many chunks of the length, of some heads; striped: every so many tokens."""
    (batch, all_heads, length, dim), some = shape, heads.stop - heads.start
    run = dim if striped else length // chunks * dim
    apart, count = (chunks * dim, some * (length // chunks)) if striped else (length * dim, some)
    return [Cut(of, (entry * all_heads + heads.start) * length * dim + chunk * run, apart, run, count) for entry in range(batch)]


def in_turn(cuts: Iterable[Cut]) -> list[Arriving]:
    """Of cuts that are sent as they are to be."""
    at, found = 0, []
    for one in cuts:
        found.append(Arriving(one, at, one.run))
        at += one.run * one.count
    return found


def starts(wholes: Sequence[Tensor], length: int) -> list[Tensor]:
    """The first tokens of [batch, heads, tokens, dim], contiguous: copies."""
    if not (_core.has_cuda and wholes[0].is_cuda):
        return [whole[:, :, :length].contiguous() for whole in wholes]
    batch, heads, tokens, dim = wholes[0].shape
    parts = [whole.new_empty(batch, heads, length, dim) for whole in wholes]
    run, apart = length * dim * wholes[0].element_size(), tokens * dim * wholes[0].element_size()
    copies = [(part.data_ptr(), run, whole.data_ptr(), apart, run, batch * heads) for part, whole in zip(parts, wholes)]
    _core.copy_runs(copies, current_stream(wholes[0]))
    return parts


class Plan:
    """Which parts of a rank's tensors go to each rank, and where what it gets from each lies. It depends on shapes alone: make it once."""

    def __init__(
        self, rank: int, sent: Sequence[Sequence[Cut]], into: Sequence[Sequence[Arriving]], width: int, *, same: bool = False,
        own: Sequence[tuple[Cut, Cut]] | None = None, most: int | None = None,
    ) -> None:  # fmt: skip
        """sent: of the given tensors, to each rank; same: that is the same for all. into: of the filled tensors, from each rank. width: bytes of
        an element. own: (of the filled, of the given tensors) what stays with the rank; None: as it is sent. most: elements that any rank sends
        to any other, at most; None: all send as many."""
        self.sent, self.into, self.same = sent, into, same
        self.counts = [[sum(one.run * one.count for one in some) for some in sent], [sum(x.cut.run * x.cut.count for x in some) for some in into]]
        ranks = len(sent)
        others = [(rank + step) % ranks for step in range(1, ranks)]  # no two ranks have the same next one
        # In a half of the staging buffer: one part for all ranks where all get the same, else one for each other.
        parts = 1 if same else ranks - 1
        size = self.counts[0][0] if most is None else most
        self.size = size * parts * width  # bytes

        def part(sender: int, receiver: int) -> int:
            return min(parts - 1, receiver - (receiver > sender)) * size

        def copied(to: tuple[int, int, int, int], of: tuple[int, int, int, int], one: Cut) -> list[_Copy]:
            (to_side, to_index, to_at, to_apart), (side, index, at, apart) = to, of
            place, source = (to_side, to_index, to_at * width, to_apart * width), (side, index, at * width, apart * width)
            return [(place, source, one.run * width, one.count)] if one.run * one.count else []

        places = [(part(rank, to) + at, apart, one) for to in others[:parts] for one, at, apart in in_turn(sent[to])]
        puts = [x for at, apart, one in places for x in copied((STAGED, rank, at, apart), (GIVEN, one.of, one.first, one.apart), one)]
        arriving = [(other, part(other, rank) + at, apart, one) for other in others for one, at, apart in into[other]]
        fetches = [x for o, at, apart, one in arriving for x in copied((FILLED, one.of, one.first, one.apart), (STAGED, o, at, apart), one)]
        kept = zip((one.cut for one in into[rank]), sent[rank], strict=True) if own is None else own
        mine = [x for to, of in kept for x in copied((FILLED, to.of, to.first, to.apart), (GIVEN, of.of, of.first, of.apart), of)]
        self.steps: list[_Step] = [
            ("wait", PUTS, CALLER, []), ("wait_for_mark", PUTS, 0, []), ("copy_together", PUTS, 0, puts),
            ("wait", FETCHES, PUTS, []), ("meet", FETCHES, 0, []), ("mark", FETCHES, 0, []), ("copy", FETCHES, 0, fetches),
            ("copy_together", PUTS, 0, mine), ("end", PUTS, 0, []), ("end", FETCHES, 0, []),
        ]  # fmt: skip

    @functools.cached_property
    def by_copy_engines(self) -> Any:
        return _core.Exchange(self.steps)

    @functools.cached_property
    def by_multiprocessors(self) -> Any:
        return _core.Exchange([("copy_together" if what == "copy" else what, *others) for what, *others in self.steps])


def start(group: Any, plan: Plan, given: Sequence[Tensor], filled: Sequence[Tensor], there: Any = None, idle: bool = False) -> Any:
    """Starts an exchange; its finish() lets the current stream wait for what arrives in the filled tensors. All are contiguous, of one dtype,
    on one device. The given ones may change once it is finished. there: a StreamPoint of the current stream, where they are, and where the
    filled ones are free already; None: with all that the stream has. idle: no kernel computes meanwhile, so multiprocessors fetch, which pause
    between no two copies."""
    peers = _peers_of(group, given[0].device)
    return _Collective(group, plan, given, filled) if peers is None else peers.start(group, plan, given, filled, there, idle)


class _Collective:
    def __init__(self, group: Any, plan: Plan, given: Sequence[Tensor], filled: Sequence[Tensor]) -> None:
        self.plan, self.filled, none = plan, filled, given[0].new_empty(0)
        parts = [one for some in (plan.sent[:1] if plan.same else plan.sent) for one in some]
        self.sent = torch.cat([none, *(one.view(given).reshape(-1) for one in parts)])  # lives until finish
        self.received = none.new_empty(sum(plan.counts[1]))
        if plan.same:
            self.work = dist.all_gather_into_tensor(self.received, self.sent, group=group, async_op=True)
        else:
            self.work = dist.all_to_all_single(self.received, self.sent, plan.counts[1], plan.counts[0], group=group, async_op=True)

    def finish(self) -> None:
        groups.finish(self.work, "to exchange parts of tensors")
        for part, arriving in zip(self.received.split(self.plan.counts[1]), self.plan.into):
            for one, at, apart in arriving:
                one.view(self.filled).copy_(part.as_strided((one.count, one.run), (apart, 1), part.storage_offset() + at))
        del self.sent, self.received


class _Peers:
    """The staging buffers of a group's ranks, in one another's memory."""

    def __init__(self, group: Any, device: torch.device) -> None:
        self.device, self.rank, self.half, self.turn = device, dist.get_rank(group), 0, 0
        self.room(group, 1 << 20)

    def room(self, group: Any, size: int) -> None:
        """Bytes of a half, at least. By all ranks."""
        import torch.distributed._symmetric_memory as symmetric

        if size <= self.half:
            return
        torch.cuda.synchronize(self.device)
        dist.barrier(group, device_ids=[self.device.index])  # nobody reads from the one before
        self.half = -(-size // (1 << 20)) << 20
        self.staging = symmetric.empty(2 * self.half + _FLAGS, dtype=torch.uint8, device=self.device)
        self.staging[2 * self.half :].zero_()
        self.places = symmetric.rendezvous(self.staging, group.group_name).buffer_ptrs
        flags = [place + 2 * self.half for place in self.places]
        self.peers = _core.Peers(self.device.index, self.rank, flags)
        torch.cuda.synchronize(self.device)
        dist.barrier(group, device_ids=[self.device.index])  # all flags are 0

    def start(
        self, group: Any, plan: Plan, given: Sequence[Tensor], filled: Sequence[Tensor], there: Any = None, idle: bool = False
    ) -> _Fetched:
        self.room(group, plan.size)
        halves = [place + self.turn * self.half for place in self.places]  # of each rank
        self.turn = 1 - self.turn
        addresses = [x.data_ptr() for x in filled], [x.data_ptr() for x in given], halves
        steps = plan.by_multiprocessors if idle else plan.by_copy_engines
        return _Fetched(self.peers.start(steps, addresses, current_stream(given[0]), there), given, filled)


class _Fetched:
    def __init__(self, started: Any, given: Sequence[Tensor], filled: Sequence[Tensor]) -> None:
        self.started, self.held = started, (given, filled)  # memory that the group's streams use

    def finish(self) -> None:
        self.started.finish(current_stream(self.held[0][0]))
        self.held = ()


_peers: weakref.WeakKeyDictionary[Any, _Peers | None] = weakref.WeakKeyDictionary()


def _peers_of(group: Any, device: torch.device) -> _Peers | None:
    """None where memory of peers cannot be read. Asked for once for a group, by all its ranks."""
    if device.type != "cuda" or group.size() == 1:
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
    with contextlib.suppress(RuntimeError, ImportError, ValueError):  # of a driver or container that does not share memory; too many ranks
        made = _Peers(group, device)
    return made if all(_everyone(group, made is not None)) else None


def _everyone(group: Any, mine: Any) -> list[Any]:
    told: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(told, mine, group=group)
    return told
