"""Exchanges through peers' memory, where threads stand for ranks and host memory for that of GPUs: who reads what from where, and that no rank
writes into a buffer that another still reads. On two GPUs: test_distributed_cuda.py."""

from __future__ import annotations

import contextlib
import ctypes
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")

from splash_attention.distributed import exchange  # noqa: E402


class Stream:
    """Work is done when it is enqueued: a stream is its thread."""

    cuda_stream = 0

    def wait_event(self, event):
        pass

    def record_event(self):
        pass


class Handle:
    def __init__(self, barrier):
        self.meet = barrier

    def barrier(self, channel, patience):
        time.sleep(random.random() * 2e-3)  # ranks come at different times
        self.meet.wait(20)


def copy_runs(all, stream):
    for to, to_apart, given, given_apart, size, count in all:
        time.sleep(random.random() * 2e-4)
        for run in range(count):
            ctypes.memmove(to + run * to_apart, given + run * given_apart, size)


def peers_of(ranks, half):
    barrier, staging = threading.Barrier(ranks), [torch.full((2 * half,), 0xA5, dtype=torch.uint8) for _ in range(ranks)]
    made = []
    for rank in range(ranks):
        peers = object.__new__(exchange._Peers)
        peers.device, peers.rank, peers.ranks, peers.half, peers.turn = torch.device("cpu"), rank, ranks, half, 0
        peers.stream, peers.own, peers.handle, peers.staging = Stream(), Stream(), Handle(barrier), staging
        peers.places = [x.data_ptr() for x in staging]
        made.append(peers)
    return made


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(exchange._core, "copy_runs", copy_runs, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device=None: Stream())
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: contextlib.nullcontext())


def on_all(ranks, work):
    peers = peers_of(ranks, 1 << 16)
    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(lambda rank: work(rank, peers[rank]), range(ranks)))


@pytest.mark.parametrize("striped", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_tokens_become_heads(ranks, striped, host):
    """Rank r holds chunk r of all heads, and ends with all chunks of its heads; a dozen exchanges, one behind the other, of random sizes."""
    batch, heads, dim, rounds = 2, 2, 3, 12
    lengths = [ranks * random.randint(1, 9) for _ in range(rounds)]
    whole = [torch.randn(batch, ranks * heads, length, dim) for length in lengths]

    def work(rank, peers):
        started = []
        for x in whole:
            chunk = x[:, :, rank::ranks] if striped else x.chunk(ranks, 2)[rank]
            mine, into = chunk.contiguous(), torch.full((batch, heads, x.shape[2], dim), torch.nan)
            own = [slice(to * heads, (to + 1) * heads) for to in range(ranks)]
            sent = [[exchange.Runs(mine, *cut) for cut in exchange.cut(mine.shape, own[to], 0, 1, striped)] for to in range(ranks)]
            places = [
                [exchange.Runs(into, *cut) for cut in exchange.cut(into.shape, slice(0, heads), at, ranks, striped)] for at in range(ranks)
            ]
            started.append((peers.start(None, sent, places, 4, None), into))
        for one, _ in started:
            one.finish()
        return [into for _, into in started]

    for rank, found in enumerate(on_all(ranks, work)):
        assert all(torch.equal(into, x[:, rank * heads : (rank + 1) * heads]) for into, x in zip(found, whole))


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_one_part_for_all_and_parts_of_other_sizes(ranks, host):
    parts = [torch.randn(rank + 1, 5) for rank in range(ranks)]  # rank r sends r + 1 rows to each, then the first t + 1 of them to rank t

    def runs(x, rows, first=0):
        return [exchange.Runs(x, 5 * first, 5, 5, rows)] if rows else []

    def work(rank, peers):
        same = [torch.full_like(x, torch.nan) for x in parts]
        mine = runs(parts[rank], rank + 1)
        peers.start(None, [mine] * ranks, [runs(x, len(x)) for x in same], 4, 5 * ranks).finish()
        some = [torch.full((min(of, rank) + 1, 5), torch.nan) for of in range(ranks)]
        sent = [runs(parts[rank], min(rank, to) + 1) for to in range(ranks)]
        peers.start(None, sent, [runs(x, len(x)) for x in some], 4, 5 * ranks).finish()
        return same, some

    for rank, (same, some) in enumerate(on_all(ranks, work)):
        assert all(torch.equal(a, b) for a, b in zip(same, parts))
        assert all(torch.equal(x, parts[of][: min(of, rank) + 1]) for of, x in enumerate(some))
