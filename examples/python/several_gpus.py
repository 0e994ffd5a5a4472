"""One sequence over several GPUs: each rank holds its tokens, and attends to all.

torchrun --nproc-per-node 2 examples/python/several_gpus.py
PYTHONPATH=python python examples/python/several_gpus.py     (one rank)
"""

import os

import torch
import torch.distributed as dist

from splash_attention.distributed import ring_splash_attention, shard, unshard

on_gpus = torch.cuda.is_available()
alone = {} if "RANK" in os.environ else {"store": dist.HashStore(), "rank": 0, "world_size": 1}
if on_gpus:
    torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", 0)))
dist.init_process_group("nccl" if on_gpus else "gloo", **alone)

torch.manual_seed(0)
device, dtype = ("cuda", torch.bfloat16) if on_gpus else ("cpu", torch.float32)
whole = (torch.randn(1, heads, 1024, 64, device=device, dtype=dtype) for heads in (8, 4, 4))  # the same on all ranks
q, k, v = (shard(x, dim=2).requires_grad_() for x in whole)  # [1, heads, 1024 / ranks, 64]: this rank's tokens

out = ring_splash_attention(q, k, v, causal=True)  # as q
out.float().square().mean().backward()  # gradients of this rank's q, k and v, by the losses of all ranks

if dist.get_rank() == 0:
    print(f"{q.shape[2]} tokens on each of {dist.get_world_size()} ranks")
print(f"rank {dist.get_rank()}: {unshard(out, dim=2).shape[2]} rows in all, the largest gradient of k {k.grad.abs().max():.4f}")
del out  # its graph holds the group
dist.destroy_process_group()
