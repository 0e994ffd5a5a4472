"""Exchanges through peers' memory, where threads stand for ranks and for their streams, and host memory for that of GPUs: who reads what from
where, that all waits are there, and that no rank writes into a buffer that another still reads. On two GPUs: test_distributed_cuda.py."""

from __future__ import annotations

import ctypes
import functools
import queue
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")

from splash_attention.distributed import exchange  # noqa: E402


PATIENCE = 20  # seconds
here = threading.local()  # of a rank: its current stream


class Stream:
    """A thread does the work in the order in which it is enqueued, some time later."""

    def __init__(self):
        self.work, self.error = queue.SimpleQueue(), None
        threading.Thread(target=self.run, daemon=True).start()

    def run(self):
        while work := self.work.get():
            time.sleep(random.choice((0, 0, 4e-3)) * random.random())
            try:
                work()
            except Exception as error:  # noqa: BLE001 synchronize raises it
                self.error = error

    def wait_event(self, event):
        def wait():
            assert event.wait(PATIENCE)

        self.work.put(wait)

    def record_event(self):
        event = threading.Event()
        self.work.put(event.set)
        return event

    def synchronize(self):
        assert self.record_event().wait(PATIENCE) and self.error is None, self.error


class Peers:
    """As gpu/engine/exchange.cpp takes the steps of an exchange."""

    def __init__(self, barrier):
        self.barrier, self.streams, self.mark = barrier, [Stream() for _ in range(2)], None

    def start(self, steps, addresses, stream, there):
        streams, ends = [stream, *self.streams], []
        for kind, at, other, copies in steps:
            on = streams[at]
            if kind in ("copy", "copy_together"):
                on.work.put(functools.partial(self.copy, copies, addresses))
            elif kind == "wait":
                on.wait_event(there if there and other == 0 else streams[other].record_event())
            elif kind == "meet":
                on.work.put(self.meet)
            elif kind == "mark":
                self.mark = on.record_event()
            elif kind == "wait_for_mark":
                self.mark and on.wait_event(self.mark)
            else:
                assert kind == "end"
                ends.append(on.record_event())
        return SimpleNamespace(finish=lambda stream: [stream.wait_event(end) for end in ends])

    def meet(self):
        time.sleep(random.random() * 2e-3)  # ranks come at different times
        self.barrier.wait(PATIENCE)

    @staticmethod
    def copy(copies, addresses):
        for *places, size, count in copies:
            (to, to_apart), (given, given_apart) = ((addresses[side][index] + offset, apart) for side, index, offset, apart in places)
            time.sleep(random.random() * 2e-4)
            for run in range(count):
                ctypes.memmove(to + run * to_apart, given + run * given_apart, size)


def copied(x):
    """By the rank's current stream, when it comes to it: what computes the given tensors, and what uses the filled ones."""
    copy = torch.full_like(x, torch.nan)
    here.stream.work.put(lambda: copy.copy_(x))
    return copy


def peers_of(ranks, half):
    barrier, staging = threading.Barrier(ranks), [torch.full((2 * half,), 0xA5, dtype=torch.uint8) for _ in range(ranks)]
    made = []
    for rank in range(ranks):
        peers = object.__new__(exchange._Peers)
        peers.device, peers.rank, peers.half, peers.turn = torch.device("cpu"), rank, half, 0
        peers.staging, peers.places, peers.peers = staging, [x.data_ptr() for x in staging], Peers(barrier)
        made.append(peers)
    return made


@pytest.fixture
def host(monkeypatch):
    monkeypatch.setattr(exchange._core, "Exchange", lambda steps: steps, raising=False)
    monkeypatch.setattr(exchange, "current_stream", lambda tensor: here.stream)
    held = []  # a GPU's memory that is freed is used again in the stream's order; the host's at once
    make = exchange._Fetched.__init__
    monkeypatch.setattr(exchange._Fetched, "__init__", lambda self, *given: held.append(given) or make(self, *given))


def on_all(ranks, work):
    peers = peers_of(ranks, 1 << 16)

    def of_rank(rank):
        here.stream = Stream()
        found = work(rank, peers[rank])
        for stream in (here.stream, *peers[rank].peers.streams):
            stream.synchronize()
            stream.work.put(None)
        return found

    with ThreadPoolExecutor(ranks) as threads:
        return list(threads.map(of_rank, range(ranks)))


@pytest.mark.parametrize("striped", [False, True])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_tokens_become_heads(ranks, striped, host):
    """Rank r holds chunk r of all heads, and ends with all chunks of its heads; a dozen exchanges of three tensors, one behind the other, of
    random sizes."""
    batch, heads, dim, rounds = 2, 2, 3, 12
    lengths = [ranks * random.randint(1, 9) for _ in range(rounds)]
    whole = [torch.randn(batch, ranks * heads, length, dim) for length in lengths]

    def work(rank, peers):
        started = []
        for x in whole:
            chunk = x[:, :, rank::ranks] if striped else x.chunk(ranks, 2)[rank]
            mine = [copied(times * chunk) for times in (1, 2, 3)]
            into = [torch.full((batch, heads, x.shape[2], dim), torch.nan) for _ in mine]
            own = [slice(to * heads, (to + 1) * heads) for to in range(ranks)]
            sent = [[one for of in range(3) for one in exchange.cut(of, chunk.shape, own[to], 0, 1, striped)] for to in range(ranks)]
            places = [[one for of in range(3) for one in exchange.cut(of, into[0].shape, slice(0, heads), at, ranks, striped)] for at in range(ranks)]
            plan = exchange.Plan(rank, sent, [exchange.in_turn(some) for some in places], 4)
            started.append((peers.start(None, plan, mine, into, idle=random.random() < 0.5), into))
        found = []
        for one, into in started:
            one.finish()
            found.append([copied(x) for x in into])
        return found

    for rank, found in enumerate(on_all(ranks, work)):
        for into, x in zip(found, whole):
            assert all(torch.equal(one, times * x[:, rank * heads : (rank + 1) * heads]) for times, one in zip((1, 2, 3), into))


def test_what_is_there_early_does_not_wait_for_the_stream(host):
    """But it waits for the point at which it is there."""
    whole, ranks = torch.randn(2, 7), 2

    def work(rank, peers):
        mine, into = copied(whole[rank].clone()), [torch.full((7,), torch.nan) for _ in range(ranks)]
        there, late, elsewhere = here.stream.record_event(), threading.Event(), Stream()
        here.stream.wait_event(late)
        places = [exchange.in_turn([exchange.Cut(of, 0, 7, 7, 1)]) for of in range(ranks)]
        plan = exchange.Plan(rank, [[exchange.Cut(0, 0, 7, 7, 1)]] * ranks, places, 4, same=True)
        peers.start(None, plan, [mine], into, there).started.finish(elsewhere)
        elsewhere.synchronize()
        assert not late.is_set()
        late.set()
        return into

    for into in on_all(ranks, work):
        assert torch.equal(torch.stack(into), whole)


@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_one_part_for_all_and_parts_of_other_sizes(ranks, host):
    parts = [torch.randn(rank + 1, 5) for rank in range(ranks)]  # rank r sends r + 1 rows to each, then the first t + 1 of them to rank t

    def rows(of, count):
        return [exchange.Cut(of, 0, 5, 5, count)] if count else []

    def work(rank, peers):
        same = [torch.full_like(x, torch.nan) for x in parts]
        into = [exchange.in_turn(rows(of, of + 1)) for of in range(ranks)]
        plan = exchange.Plan(rank, [rows(0, rank + 1)] * ranks, into, 4, same=True, most=5 * ranks)
        peers.start(None, plan, [copied(parts[rank])], same).finish()
        some = [torch.full((min(of, rank) + 1, 5), torch.nan) for of in range(ranks)]
        sent = [rows(0, min(rank, to) + 1) for to in range(ranks)]
        plan = exchange.Plan(rank, sent, [exchange.in_turn(rows(of, min(of, rank) + 1)) for of in range(ranks)], 4, most=5 * ranks)
        peers.start(None, plan, [copied(parts[rank])], some).finish()
        return [copied(x) for x in same], [copied(x) for x in some]

    for rank, (same, some) in enumerate(on_all(ranks, work)):
        assert all(torch.equal(a, b) for a, b in zip(same, parts))
        assert all(torch.equal(x, parts[of][: min(of, rank) + 1]) for of, x in enumerate(some))


@pytest.mark.parametrize("shard", ["zigzag", "contiguous", "striped"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_keys_come_to_all_and_gradients_go_back(ranks, shard, host):
    """The plans of mode "gather", of some of the heads: each rank gets the whole, and the owner each part of its gradients."""
    from splash_attention.distributed import by_gathering
    from splash_attention.distributed.shards import Shards

    shards, batch, heads, dim = Shards(shard, ranks), 2, 5, 3
    length = 6 * ranks if shard == "zigzag" else 4 * ranks
    whole = [torch.randn(batch, heads, length, dim) for _ in range(2)]
    first, last, own_length = 1, 4, length // ranks
    of_pieces = [
        [[torch.randn(batch, 3, piece.chunks * (length // shards.count), dim) for _ in range(2)] for piece in pieces]
        for pieces in (by_gathering._pieces_of(shards, rank, own_length, True, False) for rank in range(ranks))
    ]

    def work(rank, peers):
        given = [copied(shards.part(x, rank, 2).contiguous()) for x in whole]
        filled = [torch.full((batch, 3, length, dim), torch.nan) for _ in given]
        peers.start(None, by_gathering._keys_plan(shards, rank, given[0].shape, first, last, 4), given, filled).finish()
        plan, places = by_gathering._gradients_plan(shards, rank, (batch, 3, own_length, dim), True, False, 4)
        parts = torch.full((len(places), 2, batch, 3, length // shards.count, dim), torch.nan)
        peers.start(None, plan, [copied(d) for piece in of_pieces[rank] for d in piece], [parts]).finish()
        return [copied(x) for x in filled], places, copied(parts)

    for rank, (filled, places, parts) in enumerate(on_all(ranks, work)):
        assert all(torch.equal(a, b[:, first:last]) for a, b in zip(filled, whole))
        wanted = [
            (shards.chunks_of(rank).index(chunk), [shards.split(d, 2, pieces[at].chunks)[chunk] for d in of_pieces[other][at]])
            for other, pieces in enumerate(by_gathering._pieces_of(shards, one, own_length, True, False) for one in range(ranks))
            for at, chunk in shards.sent(pieces, rank)
        ]
        assert places == [place for place, _ in wanted]
        assert all(torch.equal(part, torch.stack(list(one))) for part, (_, one) in zip(parts, wanted))


@pytest.mark.parametrize("groups", [1, 2, 5, 9])
def test_groups_take_streams_in_turn(groups, monkeypatch):
    """The first group's tokens set out at once. A group's are asked for before the results of the group before go home, which wait for its
    kernels; each in its group's stream."""
    from splash_attention.distributed import passes

    done, count = [], min(groups, passes.LANES)
    current = [count - 1]
    monkeypatch.setattr(passes, "_lanes", lambda device, lanes: range(lanes))
    monkeypatch.setattr(passes, "_point", lambda lane: f"point {lane}")
    monkeypatch.setattr(passes, "_let_wait", lambda *lanes: done.append(("joined", *lanes)))
    monkeypatch.setattr(torch.cuda, "set_stream", lambda lane: current.__setitem__(0, lane))

    def note(what, group):
        assert current[0] == group % count
        done.append((what, group))

    def exchange(group, kind):
        note(kind, group)
        return SimpleNamespace(finish=lambda: note(f"{kind} there", group))

    def compute(group, arrived):
        assert arrived == [group]
        note("compute", group)
        return f"results of {group}"

    def send(group, results, idle):
        assert idle == (group + 1 == groups) and results == f"results of {group}"
        return [exchange(group, "home")]

    def room(group):
        note("room", group)
        return [group]

    def start(group, filled, free, idle):
        assert filled == [group] and idle == (group == 0)
        assert free == (None if group < count else f"point {group % count}")
        return exchange(group, "come")

    made = passes.Groups(range(groups), torch.device("cpu"), room, start)
    assert done == [("room", 0), ("come", 0)] and current == [count - 1]
    made.run(compute, send)
    assert current == [count - 1]
    at = {one: place for place, one in enumerate(done)}
    for group in range(groups):
        steps = [at[what, group] for what in ("room", "come", "come there", "compute", "home", "home there")]
        assert steps == sorted(steps)
        if group > 0:
            assert at["come", group] < at["home", group - 1] and at["compute", group] < at["home", group - 1]
        if group >= passes.LANES:
            assert at["home there", group - passes.LANES] < at["compute", group]  # as many groups' memory is enough
            assert at["room", group] < at["compute", group - passes.LANES]  # in whose stream it is
        if group > 0 and group % passes.LANES == 0:
            assert ("joined", 0, passes.LANES - 1) in done[at["compute", group - 1] : at["compute", group]]  # nobody is overtaken
    assert done[len(done) - count + 1 :] == [("joined", count - 1, lane) for lane in range(count - 1)]
