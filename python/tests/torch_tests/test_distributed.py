"""Attention over several ranks against the single call: gloo on the CPU."""

from __future__ import annotations

import itertools
import random

import pytest

from ranks import dist, error_of, run, torch

from splash_attention import splash_attention
from splash_attention.distributed import decode, modes, position_ids, ring_splash_attention, shard, sum_gradients, unshard
from splash_attention.distributed.shards import KINDS, Shards

LENGTH = 48  # a multiple of 2, 4, 6 and 8


def inputs(dtype=torch.float64, heads=8, kv_heads=4, batch=2):
    torch.manual_seed(0)
    shapes = ((batch, heads, LENGTH, 8), (batch, kv_heads, LENGTH, 8), (batch, kv_heads, LENGTH, 8), (batch, heads, LENGTH, 8))
    return [(factor * torch.randn(shape, dtype=torch.float64)).to(dtype) for shape, factor in zip(shapes, (2, 1, 1, 1))]


def learned(**options):
    """Copies that ask for a gradient, of the options that are tensors of real numbers."""
    return {
        name: value.clone().requires_grad_() if torch.is_tensor(value) and value.is_floating_point() else value
        for name, value in options.items()
    }


def both(kind, mode, dtype=torch.float64, lengths=None, **options):
    return both_of(inputs(dtype), lengths, {"shard": kind, "mode": mode}, options)


def both_of(given, lengths, where, options):
    """(of the single call, of this rank): out, support, tau, gradients by q, k, v and by what is learned. Of the single call this rank's
    part."""
    packed = {} if lengths is None else {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths}
    results = []
    for distributed in (False, True):
        own = learned(**options)
        *leaves, d_out = ((shard(x, dim=2, shard=where["shard"]) if distributed else x).clone().requires_grad_() for x in given)
        if distributed:
            out, aux = ring_splash_attention(*leaves, **where, cu_seqlens=lengths, return_aux=True, **own)
        else:
            out, aux = splash_attention(*leaves, return_aux=True, **packed, **own)
        assert not aux.tau.requires_grad
        out.backward(d_out.detach())
        parameters = [x for x in own.values() if torch.is_tensor(x) and x.requires_grad]
        if distributed:
            sum_gradients(parameters)
        rows = [out.detach(), aux.support, aux.tau, *(x.grad for x in leaves)]
        rows = rows if distributed else [shard(x, dim=2, shard=where["shard"]) for x in rows]
        results.append([*rows, *(x.grad for x in parameters)])
    return results


def served(mode, count, kv_heads=4):
    return mode == "gather" or kv_heads % count == 0


def compare(one, mine):
    assert torch.equal(one[1], mine[1])  # the support
    for expected, got in zip(one, mine):
        torch.testing.assert_close(got, expected, atol=1e-11, rtol=1e-11)


def as_one_call():
    count = dist.get_world_size()
    for kind, mode, causal in itertools.product(KINDS, ("gather", "heads"), (True, False)):
        if not served(mode, count):
            continue
        call = {"alpha": torch.linspace(1.3, 2.0, 8, dtype=torch.float64), "causal": causal, "scale": 0.5}
        one, mine = both(kind, mode, **call)
        compare(one, mine)
        again = both(kind, mode, **call)[1]
        assert all(torch.equal(a, b) for a, b in zip(mine, again))
    for batch, at_once in ((1, 1), (1, 3), (2, 9)):  # keys of one head alone are not copied; unequal groups; all at once
        where = {"shard": "zigzag", "mode": "gather", "heads_at_once": at_once}
        compare(*both_of(inputs(batch=batch), None, where, {"causal": True}))
    if served("heads", count):
        for at_once in (1, 3):
            where = {"shard": "zigzag", "mode": "heads", "heads_at_once": at_once}
            compare(*both_of(inputs(kv_heads=8), None, where, {"causal": True}))


@pytest.mark.parametrize("count", [1, 2, 3, 4])
def test_as_one_call(count):
    run(count, as_one_call)


def options_as_one_call():
    count, number = dist.get_world_size(), torch.randn
    torch.manual_seed(1)
    runs = [
        {"window": 7},
        {"bias": number(8, 20, dtype=torch.float64)},
        {"lengths": [0, 5, 5, 20, 40, LENGTH]},
        {"lengths": [0, 30, LENGTH], "window": 9, "alpha": 2.0},
    ]
    anywhere = [
        {"k_keep": 3},
        {"k_keep": [1, 2, 3, 0, 5, 6, 0, 8], "alpha": torch.tensor([1.7], dtype=torch.float64)},
        {"softcap": 3.0, "sinks": number(8, dtype=torch.float64), "alpha": [1.2, 1.5, 2.0, 1.5, 1.9, 1.1, 1.5, 1.4]},
    ]
    for kind, mode in itertools.product(("zigzag", "contiguous"), ("gather", "heads")):
        for options in (*runs, *anywhere) if served(mode, count) else ():
            compare(*both(kind, mode, causal=True, **options))
    for options in anywhere:
        compare(*both("striped", "auto", causal=True, **options))
    for mode in ("gather", "heads") if served("heads", count) else ("gather",):
        compare(*both("zigzag", mode, lengths=[0, 5, 5, 20, 40, LENGTH]))
    if served("heads", count):
        for options in runs:
            compare(*both("striped", "heads", causal=True, **options))
            compare(*both("zigzag", "heads", **options))


@pytest.mark.parametrize("count", [2, 3])
def test_options_as_one_call(count):
    run(count, options_as_one_call)


def random_problems(count=60):
    """Of shapes, shards and options drawn at random; how many were computed, and not refused."""
    ranks, done = dist.get_world_size(), 0
    for seed in range(count):
        draw = random.Random(seed)
        torch.manual_seed(seed)
        kv_heads = draw.choice([1, 2, 3, ranks, 2 * ranks])
        heads, length = kv_heads * draw.choice([1, 2, 3]), draw.choice([1, 2, 3, 5]) * 2 * ranks
        q, k, v, d_out = (torch.randn(2, of, length, 8, dtype=torch.float64) for of in (heads, kv_heads, kv_heads, heads))
        cuts = sorted(draw.randrange(length + 1) for _ in range(draw.choice([0, 1, 3])))
        packed = [0, *cuts, length] if draw.random() < 0.3 else None
        some = {
            "alpha": draw.choice([1.1, 2.0, 1.05 + 0.9 * torch.rand(heads, dtype=torch.float64)]),
            "k_keep": draw.choice([1, 2, [draw.randrange(4) for _ in range(heads)]]),
            "softcap": 1.5, "sinks": torch.randn(heads, dtype=torch.float64), "window": draw.choice([1, 3, 100]),
            "bias": torch.randn(heads, draw.choice([1, 4, 40]), dtype=torch.float64), "scale": -0.7,
        }  # fmt: skip
        options = {name: value for name, value in some.items() if draw.random() < 0.3} | {"causal": draw.random() < 0.7}
        where = {"shard": draw.choice(KINDS), "mode": draw.choice(["auto", "gather", "heads"]), "heads_at_once": draw.choice([None, 1, 2])}
        try:
            compare(*both_of((q, k, v, d_out), packed, where, options))
        except (NotImplementedError, ValueError) as error:
            assert "mode" in str(error), error
        else:
            done += 1
    return done


@pytest.mark.slow
@pytest.mark.parametrize("count", [2, 3])
def test_random_problems(count):
    assert min(run(count, random_problems)) > 30


def in_16_bits():
    """Partial gradients travel in the inputs' dtype, and are added in float32."""
    errors = []
    for mode in ("gather", "heads"):
        one, mine = both("zigzag", mode, torch.bfloat16, causal=True)
        assert torch.equal(one[0], mine[0]) and torch.equal(one[1], mine[1])
        errors += [float((a.double() - b.double()).norm() / a.double().norm()) for a, b in zip(one[3:], mine[3:])]
    with torch.autocast("cpu", torch.bfloat16):
        assert ring_splash_attention(*(shard(x, dim=2) for x in inputs(torch.float32)[:3])).dtype == torch.bfloat16
    return errors


def test_gradients_in_16_bits_are_rounded_once_more():
    assert max(map(max, run(2, in_16_bits))) < 2**-8


def ends():
    """What is empty of keys to compute, and what asks for nothing."""
    q, k, v, _ = (shard(x, dim=2) for x in inputs())
    with torch.no_grad():
        out = ring_splash_attention(q, k, v, causal=True)
    assert not out.requires_grad
    q, k, v = (x.clone().requires_grad_() for x in (q, k, v))
    again = ring_splash_attention(q, k, v, causal=True, check=False)
    assert torch.equal(out, again)
    again.backward(torch.zeros_like(again))
    assert not k.grad.any()
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("context",))
    assert torch.equal(out, ring_splash_attention(q, k, v, causal=True, group=mesh["context"]))
    whole = torch.arange(2 * LENGTH).view(2, LENGTH)
    for kind in KINDS:
        mine = shard(whole, shard=kind)
        assert torch.equal(unshard(mine, shard=kind), whole) and torch.equal(mine[0], position_ids(LENGTH, shard=kind))
    assert torch.equal(unshard(shard(whole.T, dim=0), dim=-2), whole.T)


def test_helpers():
    run(2, ends)


def asked():
    """What the check refuses is what the kernels are called with, in mode gather."""
    from splash_attention.distributed import by_gathering, passes

    questions, answered = [], []
    ask, forward = by_gathering.asked, passes.forward

    def described(q, k, problem):
        return q.shape, k.shape, [x.tolist() if torch.is_tensor(x) else x for x in problem]

    def asking(*call):
        found = list(ask(*call))
        questions.extend(described(*one) for one in found)
        return found

    def answer(call, q, k, v, problem):
        answered.append(described(q, k, problem))
        return forward(call, q, k, v, problem)

    by_gathering.asked, passes.forward = asking, answer
    for kind, causal, lengths in itertools.product(KINDS, (True, False), (None, [0, 5, LENGTH])):
        if kind == "striped" and lengths:
            continue
        given = (shard(x, dim=2, shard=kind).requires_grad_() for x in inputs(heads=16, kv_heads=8)[:3])
        alpha = torch.linspace(1.3, 2.0, 16)
        ring_splash_attention(*given, shard=kind, mode="gather", causal=causal, cu_seqlens=lengths, heads_at_once=3, alpha=alpha).sum().backward()
        assert questions == answered
    return len(answered)


def test_what_the_check_asks():
    assert run(2, asked)[0] > 30


def remembered():
    """A call like one before is not checked anew; one that differs in anything is."""
    from splash_attention.distributed import attention

    q, k, v, _ = inputs()
    q, k, v = (x[:, :, :8] for x in (q, k, v))
    options = {"causal": True, "check": False}
    checked, check = [], attention.check_tensors
    attention.check_tensors = lambda *tensors: checked.append(tensors) or check(*tensors)

    def asks(*tensors, **others):
        checked.clear()
        out = ring_splash_attention(*tensors, **{**options, **others})
        return bool(checked), out

    first, expected = asks(q, k, v)
    again, out = asks(q.clone(), k, v)
    assert (first, again) == (True, False) and torch.equal(out, expected)
    others = [
        ((q, k, v), {"causal": False}), ((q, k, v), {"alpha": 2.0}), ((q, k, v), {"alpha": 2}), ((q, k, v), {"scale": 0.5}), ((q, k, v), {"window": 3}),
        ((q, k, v), {"k_keep": 2}), ((q, k, v), {"softcap": 2.0}), ((q, k, v), {"shard": "contiguous"}), ((q, k, v), {"mode": "gather"}),
        ((q, k, v), {"heads_at_once": 1}), ((q.float(), k.float(), v.float()), {}), ((q[:, :, :6], k[:, :, :6], v[:, :, :6]), {}),
        ((q.clone().requires_grad_(), k, v), {}),
    ]  # fmt: skip
    assert [asks(*tensors, **changed)[0] for tensors, changed in others] == [True] * len(others)
    for changed in ({"alpha": torch.tensor(1.5)}, {"sinks": [0.0] * q.shape[1]}, {"cu_seqlens": [0, 8]}):  # values, which may change
        assert asks(q, k, v, **changed)[0] and asks(q, k, v, **changed)[0]
    for tensors, changed in (((q, k, v), {"causal": 1}), ((q, k, v), {"alpha": True}), ((q, k.float(), v), {}), ((q, k, v), {"colour": 1})):
        with pytest.raises((TypeError, ValueError)):
            asks(*tensors, **changed)
    with torch.autocast("cpu", torch.bfloat16):
        assert asks(q.float(), k.float(), v.float())[1].dtype == torch.bfloat16
    assert not asks(q, k, v)[0]


def test_a_call_like_one_before_is_not_checked_anew():
    run(1, remembered)


def a_group_of_some():
    """Groups of ranks 0, 1 and 2, 3, side by side, and then one across."""
    halves = [dist.new_group([0, 1]), dist.new_group([2, 3])]
    across = dist.new_group([1, 2])
    rank = dist.get_rank()
    q, k, v, _ = inputs()
    expected = splash_attention(q, k, v, causal=True)
    mine = halves[rank // 2]
    out = ring_splash_attention(*(shard(x, mine, 2) for x in (q, k, v)), group=mine, causal=True)
    assert torch.equal(out, shard(expected, mine, 2))
    if rank in (1, 2):
        out = ring_splash_attention(*(shard(x, across, 2) for x in (q, k, v)), group=across, causal=True)
        assert torch.equal(out, shard(expected, across, 2))


def test_groups_of_some_ranks():
    run(4, a_group_of_some)


def decoded():
    """Keys in unequal shards; on one rank none."""
    rank, count = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(3)
    q, k, v = (torch.randn(2, heads, length, 16, dtype=torch.float64) for heads, length in ((6, 2), (2, 50), (2, 50)))
    places = [0, *([7, 7, 30, 50][4 - count :] if count > 1 else [50])]
    mine = slice(places[rank], places[rank + 1])
    for alpha in (1.5, torch.linspace(1.1, 2.0, 6)):
        expected = splash_attention(3 * q, k, v, alpha=alpha, scale=0.4)
        out = decode(3 * q, k[:, :, mine], v[:, :, mine], alpha=alpha, scale=0.4)
        torch.testing.assert_close(out, expected, atol=1e-12, rtol=1e-12)
        assert torch.equal(out, decode(3 * q, k[:, :, mine], v[:, :, mine], alpha=alpha, scale=0.4))
    k[1, 0, 40] = torch.nan
    rows = decode(q, k[:, :, mine], v[:, :, mine]).isnan().all(-1).all(-1)
    assert rows.tolist() == [[False] * 6, [True] * 3 + [False] * 3]


@pytest.mark.parametrize("count", [1, 2, 4])
def test_decode(count):
    run(count, decoded)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("kind", KINDS)
def test_shards(kind, count):
    shards, length = Shards(kind, count), 28 * 6
    whole = torch.arange(length)
    parts = [shards.part(whole, rank, 0) for rank in range(count)]
    assert torch.equal(shards.join(shards.in_order(parts, 0), 0), whole) and len({part.numel() for part in parts} or {0}) == 1
    seen = []
    for rank, part in enumerate(parts):
        pieces = shards.pieces(rank, part.numel(), runs=True)
        assert [place for piece in pieces for place in range(*piece.queries.indices(part.numel()))] == list(range(part.numel()))
        for piece in pieces if kind != "striped" else []:
            run_ = part[piece.queries]
            assert run_[0] == piece.begin and run_[-1] - run_[0] == run_.numel() - 1
            assert run_[-1] + 1 == piece.chunks * length // shards.count
        seen.append(int((part + 1).sum()))
        sent = [item for to in range(count) for item in shards.sent(pieces, to)]
        assert sorted(sent) == [(at, chunk) for at, piece in enumerate(pieces) for chunk in range(piece.chunks)]
    if kind == "zigzag":
        assert len(set(seen)) == 1  # as many visible pairs


def test_the_mode_is_chosen_by_shape():
    def chosen(ranks, heads, kv_heads, length, kind="zigzag", causal=True, mode="auto"):
        q, k = torch.Size((1, heads, length // ranks, 128)), torch.Size((1, kv_heads, length // ranks, 128))
        from splash_attention.backends.torch.operators import Problem

        return modes.choose(mode, None, Shards(kind, ranks), q, k, 2, Problem(None, 1.5, causal, 0.0, 0, 0), None)

    assert chosen(2, 16, 16, 1 << 13) == ("heads", 8)  # fewer bytes in backward; all heads of a rank at once
    assert chosen(2, 16, 16, 1 << 14) == ("heads", 4)  # the second half travels beside the first
    assert chosen(2, 16, 16, 1 << 15) == ("heads", 3)
    assert chosen(2, 16, 16, 1 << 17) == ("heads", 2)
    assert chosen(2, 16, 16, 1 << 20, mode="gather") == ("gather", 4)  # as many as memory is meant for
    assert chosen(2, 32, 4, 1 << 17)[0] == "gather"  # keys are few
    assert chosen(8, 32, 4, 1 << 17)[0] == "gather"  # and not enough for all ranks
    assert chosen(8, 16, 16, 1 << 17)[0] == "heads"  # many ranks: every key to each of them is too much
    assert chosen(2, 32, 4, 1 << 17, "striped")[0] == "heads" and chosen(2, 32, 4, 1 << 17, "striped", False)[0] == "gather"
    assert chosen(2, 8, 4, 1 << 12, mode="gather") == ("gather", 4)


def test_without_a_group():
    assert error_of(ring_splash_attention, *inputs()[:3]) == (
        "RuntimeError",
        "torch.distributed has no process group: start with torchrun, and call torch.distributed.init_process_group first",
    )
