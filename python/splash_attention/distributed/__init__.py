"""One sequence over several GPUs, or processes: exact entmax attention under torch.distributed.

    from splash_attention.distributed import ring_splash_attention, shard

    q, k, v = (shard(x, group, dim=2) for x in (q, k, v))       # each rank holds its tokens of every head
    out = ring_splash_attention(q, k, v, group=group, causal=True)

Docs: how-do-i-use-several-gpus.md. Why keys come to queries: decision 0059.
"""

from __future__ import annotations

from splash_attention.extras import needed_by

with needed_by(__name__):
    from splash_attention.distributed.attention import ring_splash_attention
    from splash_attention.distributed.context import context_parallel
    from splash_attention.distributed.decoding import decode
    from splash_attention.distributed.gradients import sum_gradients
    from splash_attention.distributed.sequences import position_ids, shard, unshard

__all__ = ["context_parallel", "decode", "position_ids", "ring_splash_attention", "shard", "sum_gradients", "unshard"]
