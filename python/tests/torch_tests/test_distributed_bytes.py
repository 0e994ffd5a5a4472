"""What ranks send each other, counted as they send it, against the formula of splash_laboratory.distributed_model."""

from __future__ import annotations

import pytest

from ranks import dist, run, torch

from splash_attention.distributed import ring_splash_attention
from splash_laboratory.distributed_model import Problem, received_bytes

LENGTH, HEADS, KV_HEADS, HEAD_DIM = 48, 8, 4, 8


def counted() -> dict[tuple[str, str], int]:
    """{(mode, pass): bytes that this rank receives of the others}."""
    rank, count, found = dist.get_rank(), dist.get_world_size(), 0
    gather, exchange = dist.all_gather_into_tensor, dist.all_to_all_single

    def counting_gather(whole, part, **options):
        nonlocal found
        found += (whole.numel() - part.numel()) * whole.element_size()
        return gather(whole, part, **options)

    def counting_exchange(received, sent, received_counts=None, sent_counts=None, **options):
        nonlocal found
        own = received_counts[rank] if received_counts else received.shape[0] // count
        found += (received.shape[0] - own) * received[0].numel() * received.element_size()
        return exchange(received, sent, received_counts, sent_counts, **options)

    dist.all_gather_into_tensor, dist.all_to_all_single = counting_gather, counting_exchange
    bytes_of = {}
    for mode in ("gather", "heads"):
        torch.manual_seed(rank)
        shapes = [(1, heads, LENGTH // count, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS)]
        leaves = [torch.randn(shape, requires_grad=True) for shape in shapes]
        found = 0
        out = ring_splash_attention(*leaves, causal=True, mode=mode, check=False)
        bytes_of[mode, "forward"] = found
        out.sum().backward()
        bytes_of[mode, "forward_backward"] = found
    return bytes_of


@pytest.mark.parametrize("count", [2, 4])
def test_ranks_receive_the_bytes_of_the_formula(count: int) -> None:
    ranks = run(count, counted)
    problem = Problem(LENGTH, HEADS, KV_HEADS, HEAD_DIM, width=4)
    for mode, direction in ranks[0]:
        most = max(of_rank[mode, direction] for of_rank in ranks)
        assert most == received_bytes(problem, mode, direction, count), (mode, direction)
