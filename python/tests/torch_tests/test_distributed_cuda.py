"""Attention over two GPUs, and over four where there are as many, by NCCL, against one of them. Skipped, with the reason, where there are fewer."""

from __future__ import annotations

import itertools
import os

import pytest

from gpu_inputs import BOUND, close, torch
from ranks import dist, error_of, run

from splash_attention import splash_attention
from splash_attention.distributed import decode, exchange, ring_splash_attention, shard, sum_gradients, unshard

if torch.cuda.device_count() < 2:
    pytest.skip(f"it takes 2 GPUs, and PyTorch finds {torch.cuda.device_count()}", allow_module_level=True)


def passes(leaves, d_out, call, **options):
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    alpha = torch.linspace(1.3, 2.0, leaves[0].shape[1], device="cuda").requires_grad_()
    out, aux = call(*leaves, alpha=alpha, return_aux=True, **options)
    out.backward(d_out)
    return [out.detach(), *(x.grad for x in leaves)], alpha, aux


def as_one_gpu(dtype, dim, causal, packed):
    torch.manual_seed(0)
    shapes = ((1, 8, 2048, dim), (1, 4, 2048, dim), (1, 4, 2048, dim), (1, 8, 2048, dim))
    q, k, v, d_out = ((factor * torch.randn(shape)).to("cuda", dtype) for shape, factor in zip(shapes, (2, 1, 1, 1)))
    lengths = [0, 700, 1900, 2048] if packed else None
    both = {} if lengths is None else {"cu_seqlens_q": lengths, "cu_seqlens_k": lengths}
    one, alpha, aux = passes((q, k, v), d_out, splash_attention, causal=causal, **both)
    wrong = []
    for kind in ("zigzag", "contiguous", "striped"):
        for mode in ("gather", "heads"):
            if kind == "striped" and mode == "gather" and packed:
                continue
            parts = [shard(x, dim=2, shard=kind) for x in (q, k, v, d_out)]
            options = {"causal": causal, "shard": kind, "mode": mode, "cu_seqlens": lengths}
            mine, mine_alpha, mine_aux = passes(parts[:3], parts[3], ring_splash_attention, **options)
            again = passes(parts[:3], parts[3], ring_splash_attention, **options)
            assert all(torch.equal(a, b) for a, b in zip(mine, again[0])) and torch.equal(mine_alpha.grad, again[1].grad)
            for name, got, expected in zip(("out", "dq", "dk", "dv"), mine, one):
                close(got, shard(expected, dim=2, shard=kind).cpu(), dtype)
            sum_gradients([mine_alpha])
            close(mine_alpha.grad, alpha.grad.cpu(), torch.float16)
            wrong.append(int((unshard(mine_aux.support, dim=2, shard=kind) != aux.support).sum()))
    return wrong


def told():
    q, k, v = (torch.randn(1, 4, 256, 64, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    ours = dist.get_rank() == 1
    found = [
        error_of(ring_splash_attention, q[:, :, :250] if ours else q, k[:, :, :250] if ours else k, v[:, :, :250] if ours else v),
        error_of(ring_splash_attention, *(x.half() if ours else x for x in (q, k, v))),
        error_of(ring_splash_attention, q, k.fill_(torch.nan) if ours else k, v),
    ]
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, length, 64, device="cuda", dtype=torch.bfloat16) for heads, length in ((8, 1), (2, 500), (2, 500)))
    bounds = [0, 100, *torch.linspace(100, 500, dist.get_world_size()).long().tolist()[1:]]
    mine = slice(*bounds[dist.get_rank() :][:2])
    close(decode(q, k[:, :, mine], v[:, :, mine]), splash_attention(q.double().cpu(), k.double().cpu(), v.double().cpu()), torch.bfloat16)
    return found


def large():
    """Heads in several groups, of more rows than fill a GPU once; by peers' memory, and the same bits by collectives."""
    torch.manual_seed(0)
    q, k, v, d_out = (factor * torch.randn(1, 8, 16384, 128, device="cuda", dtype=torch.bfloat16) for factor in (2.449, 1, 1, 1))
    one = passes((q, k, v), d_out, splash_attention, causal=True)[0]
    errors = []
    for at_once in (1, 2, 3):
        parts = [shard(x, dim=2) for x in (q, k, v, d_out)]
        mine = passes(parts[:3], parts[3], ring_splash_attention, causal=True, mode="gather", heads_at_once=at_once)[0]
        errors += [float((a - shard(b, dim=2)).double().norm() / b.double().norm()) for a, b in zip(mine, one)]
    os.environ["SPLASH_PEER_MEMORY"] = "off"
    group = dist.new_group()
    for mode, at_once in itertools.product(("gather", "heads"), (2, 8)):
        options = {"causal": True, "mode": mode, "heads_at_once": at_once}
        results = [passes(parts[:3], parts[3], ring_splash_attention, group=some, **options)[0] for some in (None, group)]
        assert all(torch.equal(a, b) for a, b in zip(*results)), (mode, at_once)
    del os.environ["SPLASH_PEER_MEMORY"]
    assert exchange._peers[group] is None and exchange._peers[dist.group.WORLD] is not None, "this machine's GPUs share no memory"
    return errors


DTYPES = [(torch.bfloat16, 128), (torch.float16, 64), (torch.float32, 64)]
MASKS = [(True, False), (False, False), (True, True)]  # causal, packed


def everything():
    """In one start of the ranks, which takes longer than all of it."""
    return [as_one_gpu(*dtype, *mask) for dtype, mask in itertools.product(DTYPES, MASKS)], told(), large()


@pytest.fixture(scope="module", params=[2, 4])
def ranks(request):
    if torch.cuda.device_count() < request.param:
        pytest.skip(f"it takes {request.param} GPUs, and PyTorch finds {torch.cuda.device_count()}")
    return run(request.param, everything, backend="nccl", timeout=60)


def test_as_one_gpu(ranks):
    """Rows whose support has another size. Where a score is within rounding of a row's threshold, kernels that were given other keys may differ."""
    for wrong, *_ in ranks:
        assert len(wrong) == 9 and max(map(max, wrong)) <= 8 * 2048 // 1000, wrong


def test_what_is_wrong_is_told_on_all(ranks):
    for _, found, _ in ranks:
        assert [kind for kind, _ in found] == ["ValueError"] * 3
        for (_, said), sentence in zip(found, ("q's shape differs", "dtype differs", "k has NaN or infinity on rank 1")):
            assert said.startswith(sentence), said


def test_large(ranks):
    assert max(max(errors) for *_, errors in ranks) < BOUND[torch.bfloat16]
