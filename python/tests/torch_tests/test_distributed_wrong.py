"""What is wrong on one rank is told on every rank, in one sentence, and nobody hangs: gloo on the CPU."""

from __future__ import annotations

import os
import re

import pytest

from ranks import dist, error_of, run, torch

from splash_attention.distributed import context_parallel, position_ids, ring_splash_attention, shard

GIVEN = {"causal": True, "timeout": 20.0}


def call(changed=(), values=None, shape=(1, 4, 8, 8), dtype=torch.float32, **options):
    """Of ring_splash_attention, on the ranks in `changed` with other options. values: of what is put into k there."""
    ours = dist.get_rank() in changed
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, heads, 12, 8) for heads in (4, 2, 2))
    if ours:
        q, k, v = (torch.randn(shape[0], shape[1] // at, *shape[2:]).to(dtype) for at in (1, 2, 2))
        if values is not None:
            k[0, 1, 2, 3] = values
    return error_of(ring_splash_attention, q, k, v, **GIVEN, **(options if ours else {}))


LIKE = {"shape": (2, 4, 12, 8)}
DIFFERS = [  # what rank 1 of 3 does otherwise, and what all are told
    ({"shape": (2, 4, 14, 8)}, "q's shape differs between ranks: [2, 4, 12, 8] on ranks 0, 2; [2, 4, 14, 8] on rank 1; it must be the same on all"),
    ({"shape": (2, 4, 12, 16)}, "q's shape differs"),
    ({**LIKE, "dtype": torch.bfloat16}, "dtype differs between ranks: float32 on ranks 0, 2; bfloat16 on rank 1"),
    ({**LIKE, "alpha": 1.6}, "alpha differs between ranks: 1.5 on ranks 0, 2; 1.6 on rank 1"),
    ({**LIKE, "alpha": torch.full((4,), 1.5)}, "alpha differs"),
    ({**LIKE, "scale": 0.5}, "scale differs"),
    ({**LIKE, "shard": "contiguous"}, "shard differs between ranks: zigzag on ranks 0, 2; contiguous on rank 1"),
    ({**LIKE, "window": 5}, "window differs"),
    ({**LIKE, "k_keep": [1, 2, 3, 4]}, "k_keep differs"),
    ({**LIKE, "k_keep": 3}, "k_keep differs between ranks: None on ranks 0, 2; 3 on rank 1"),
    ({**LIKE, "heads_at_once": 1}, "heads_at_once differs between ranks: 2 on ranks 0, 2; 1 on rank 1"),
    ({**LIKE, "softcap": 2.0}, "softcap differs"),
    ({**LIKE, "bias": torch.zeros(4, 3)}, "bias_first differs"),
    ({**LIKE, "sinks": torch.zeros(4)}, "sinks differs"),
    ({**LIKE, "cu_seqlens": [0, 30, 36]}, "cu_seqlens differs between ranks: None on ranks 0, 2; (0, 30, 36) on rank 1"),
    ({**LIKE, "return_aux": True}, "return_aux differs"),
    ({**LIKE, "values": torch.nan}, "k has NaN or infinity on rank 1; its numbers must be finite"),
    ({**LIKE, "values": torch.inf}, "k has NaN or infinity on rank 1"),
]
REFUSED = [  # what rank 1 is told, and the others behind "rank 1 refused its arguments: "
    ({**LIKE, "dtype": torch.int64}, "TypeError", "q is of int64; allowed are float16, bfloat16, float32, float64"),
    ({**LIKE, "alpha": 0.5}, "ValueError", "alpha"),
    ({**LIKE, "alpha": [1.5, 1.5, 0.5, 1.5]}, "ValueError", "alpha"),  # of one head, which not every rank computes
    ({**LIKE, "cu_seqlens": [0, 30, 36], "bias": torch.zeros(4, 3)}, "NotImplementedError", "mode 'gather' does not take a bias beside cu_seqlens"),
    ({**LIKE, "dropout": 0.1}, "NotImplementedError", "attention over several ranks takes no dropout; pass 0"),
    ({**LIKE, "mask": torch.ones(1, dtype=torch.bool)}, "NotImplementedError", "takes no mask; pass causal, window or cu_seqlens"),
    ({**LIKE, "q_positions": [1]}, "NotImplementedError", "takes no q_positions; places follow from shard"),
    ({**LIKE, "cu_seqlens": [0, 30]}, "ValueError", "cu_seqlens must rise from 0 to 36, the length of the whole sequence"),
    ({**LIKE, "cu_seqlens": [0.5]}, "TypeError", "cu_seqlens is of float64"),
    ({**LIKE, "colour": 3}, "TypeError", "ring_splash_attention has no argument 'colour'"),
    ({**LIKE, "shard": "zig"}, "ValueError", "shard is 'zig'; allowed are zigzag, striped, contiguous"),
    ({**LIKE, "mode": "ring"}, "ValueError", "mode is 'ring'; allowed are auto, gather, heads"),
    ({**LIKE, "mode": "heads"}, "ValueError", "mode is 'heads', but kv_heads, which is 2, is no multiple of the 3 ranks"),
    ({**LIKE, "heads_at_once": 0}, "ValueError", "heads_at_once is 0"),
    ({**LIKE, "shard": "striped", "window": 3}, "NotImplementedError", "mode 'gather' does not take a window without causal=True, or with striped"),
    ({**LIKE, "alpha": torch.full((2, 4), 1.5)}, "NotImplementedError", "takes one alpha, or one a query head, not one a batch entry"),
    ({"shape": (2, 4, 13, 8)}, "ValueError", "q has 13 tokens; a rank's shard of a zigzag is two chunks, so it must be even"),
    ({"shape": (2, 4, 0, 8)}, "ValueError", "a shard must not be empty"),
]


def all_wrong():
    q = torch.randn(1, 2, 12, 8)
    told = [call([1], **changed) for changed, *_ in (*DIFFERS, *REFUSED)]
    with torch.set_grad_enabled(dist.get_rank() != 1):
        told.append(error_of(ring_splash_attention, q.clone().requires_grad_(), q, q, **GIVEN))
    told.append(error_of(ring_splash_attention, q, q[:, :, :6], q[:, :, :6], **GIVEN))
    told.append(error_of(ring_splash_attention, q, q, q.double(), **GIVEN))
    told.append(error_of(ring_splash_attention, torch.randn(1, 5, 12, 8), q, q, **GIVEN))
    told.append(error_of(ring_splash_attention, q.numpy() if dist.get_rank() == 1 else q, q, q, **GIVEN))
    assert call() == ("", "nothing was raised")  # they go on
    told += [error_of(shard, torch.zeros(2, 7)), error_of(position_ids, 7), error_of(shard, torch.zeros(2, 6), "cuda")]
    told += [error_of(context_parallel(shard="odd").__enter__), error_of(context_parallel(mode="odd").__enter__)]
    return told


def test_what_differs_is_told_on_every_rank():
    ranks = run(3, all_wrong)
    for rank, told in enumerate(ranks):
        assert len(told) == len(DIFFERS) + len(REFUSED) + 10
        for (_, sentence), (kind, said) in zip(DIFFERS, told):
            assert kind == "ValueError" and said.startswith(sentence) and "\n" not in said, said
        for (_, kind, sentence), (raised, said) in zip(REFUSED, told[len(DIFFERS) :]):
            assert sentence in said and "\n" not in said, said
            assert raised == (kind if rank == 1 else "ValueError")
            assert said.startswith(f"rank 1 refused its arguments: {kind}: ") == (rank != 1)
        kinds, sentences = zip(*told[-10:])
        assert sentences[0].startswith("whether a gradient is wanted differs between ranks: True on ranks 0, 2; False on rank 1")
        assert sentences[1] == "q has 12 tokens and k 6; a rank's shard has the same tokens of both"
        assert sentences[2] == "q is of float32 and v of float64; they must be of one dtype"
        assert sentences[3] == "q has 5 heads and k 2; q's must be a multiple"
        assert sentences[4].endswith("q is a NumPy array; it must be a torch tensor")
        assert sentences[5] == sentences[6] == "the sequence has 7 tokens; a zigzag over 3 ranks takes a multiple of 6: pad it"
        assert sentences[7] == "group is a str; it must be a ProcessGroup, a DeviceMesh or None"
        assert sentences[8] == "shard is 'odd'; allowed are zigzag, striped, contiguous" and kinds[8] == "ValueError"
        assert sentences[9] == "mode is 'odd'; allowed are auto, gather, heads"


def other_groups():
    """Rank 0 calls with ranks 0 and 1, the others with all."""
    some = dist.new_group([0, 1])
    q = torch.randn(1, 2, 12, 8)
    return error_of(ring_splash_attention, q, q, q, group=some if dist.get_rank() == 0 else None, **GIVEN)


def test_groups_that_differ():
    pattern = r"groups differ between ranks: rank (0|1) calls with ranks \[(0, 1|0, 1, 2)\], rank (0|1) with ranks \[(0, 1|0, 1, 2)\]"
    for kind, said in run(3, other_groups):
        assert kind == "ValueError" and re.fullmatch(pattern, said), said


def one_does_not_come():
    q = torch.randn(1, 2, 12, 8)
    if dist.get_rank() == 0:
        first = error_of(ring_splash_attention, q, q, q, timeout=0.5)
        second = error_of(ring_splash_attention, q, q, q, timeout=20.0)  # by then the other does
        third = error_of(ring_splash_attention, q, q, q, timeout=0.5)
        return first, second, third
    import time

    time.sleep(1)
    return error_of(ring_splash_attention, q, q, q, timeout=20.0)


def test_a_rank_that_does_not_come():
    (first, second, third), other = run(2, one_does_not_come)
    assert first == ("TimeoutError", "ranks [1] of the group [0, 1] did not come within 0.5 s; all of a group must call together")
    assert second[0] == other[0] == ""
    assert third[0] in ("TimeoutError", "RuntimeError") and "to compare what the ranks call with: a rank of the group" in third[1]


def one_dies(when):
    """Returns what the others are told."""
    q, k, v = (torch.randn(1, 4, 12, 8, requires_grad=True) for _ in range(3))
    out = ring_splash_attention(q, k, v, timeout=20.0)
    if dist.get_rank() == 1:
        if when == "backward":
            torch.distributed.barrier()
        os._exit(0)
    if when == "backward":
        torch.distributed.barrier()
        return error_of(out.sum().backward)
    return error_of(ring_splash_attention, q, k, v, timeout=20.0)


@pytest.mark.parametrize("when", ["forward", "backward"])
def test_a_rank_that_dies(when):
    with pytest.raises(AssertionError, match=r"^no result of ranks \[1\]"):
        run(3, checked_death, when, seconds=30, timeout=5)


def checked_death(when):
    kind, said = one_dies(when)
    assert kind in ("RuntimeError", "TimeoutError") and "a rank of the group" in said and "\n" not in said, (kind, said)
