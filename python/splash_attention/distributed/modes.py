"""Which mode, and how many heads at a time: the model of time, in one place.

Bytes that a rank receives, of W ranks, n tokens a rank, H and h query and key heads, e bytes a number, [batch, head_dim] = B, D:

  gather   forward (W - 1) · n · 2h · D · B · e              keys and values; backward twice that: the same again, and their gradients
  heads    forward (W - 1) / W · n · (2H + 2h) · D · B · e    q, k, v and out; backward as much: d_out and the gradients

Where heads travel in several rounds, some are computed while others travel: the first ones' tokens are waited for, then each round takes the
longer of the two. A round more takes the host HOST seconds. In mode "heads", whose rounds share the multiprocessors (passes.Groups), the
model says how many there are; in mode "gather" as few as memory allows were fastest. Computing takes forward 1, backward 0.4. Rates are those
measured on H100s and H200s: 313 GB/s a direction between two H100s, 1.7e12 pairs a second at head_dim 128. Copies are not in the model.
"""

from __future__ import annotations

import functools
import math

import torch

from splash_attention import checks
from splash_attention.backends.torch.operators import Problem
from splash_attention.distributed import passes
from splash_attention.distributed.shards import Shards

LINK = 3.0e11  # bytes a second that a rank receives
PRODUCTS = 1.7e12 * 128  # pairs of query and key a second, times head_dim
BACKWARD = 0.4  # its time, in forward's
HOST = 5e-5  # seconds, of a round in one pass
MOST = 2 << 30  # bytes of keys and values of all ranks that travel at once; several times as much is held


def choose(
    mode: str, heads_at_once: int | None, shards: Shards, q_shape: torch.Size, k_shape: torch.Size, width: int, problem: Problem,
    lengths: tuple[int, ...] | None,
) -> tuple[str, int]:  # fmt: skip
    """(mode, key heads at a time). width: bytes a number. Raises ValueError or NotImplementedError for what no mode, or not this one, serves."""
    if heads_at_once is not None:
        heads_at_once = checks.check_count("heads_at_once", heads_at_once, " or None, which chooses")
    return _choose(mode, heads_at_once, shards, q_shape, k_shape, width, problem.causal, _not_gathered(shards, problem, lengths))


@functools.lru_cache(maxsize=1024)
def _choose(
    mode: str, heads_at_once: int | None, shards: Shards, q_shape: torch.Size, k_shape: torch.Size, width: int, causal: bool, gathered: str
) -> tuple[str, int]:
    """gathered: what mode "gather" does not take."""
    heads, kv_heads, length = q_shape[1], k_shape[1], q_shape[2]
    if length % len(shards.chunks_of(0)):
        raise ValueError(f"q has {length} tokens; a rank's shard of a zigzag is two chunks, so it must be even: pad the sequence")
    if 0 in (*q_shape, *k_shape):
        raise ValueError(f"q has shape {list(q_shape)} and k {list(k_shape)}; a shard must not be empty")
    if heads % kv_heads:
        raise ValueError(f"q has {heads} heads and k {kv_heads}; q's must be a multiple")
    in_mode = {name: group_of_heads(heads_at_once, name, shards, q_shape, kv_heads, width, causal) for name in ("gather", "heads")}
    by_heads = None if kv_heads % shards.ranks == 0 else f"kv_heads, which is {kv_heads}, is no multiple of the {shards.ranks} ranks"
    if mode == "heads" and by_heads:
        raise ValueError(f"mode is 'heads', but {by_heads}; pass mode='gather'")
    if mode == "gather" and gathered:
        raise NotImplementedError(f"mode 'gather' does not take {gathered}")
    if by_heads and gathered:
        raise NotImplementedError(f"mode 'gather' does not take {gathered}, and mode 'heads' is not for this, because {by_heads}")
    if mode == "auto":
        if by_heads or gathered:
            mode = "gather" if by_heads else "heads"
        elif shards.ranks > 1 and shards.kind == "striped" and causal:
            mode = "heads"  # gathered, positions would keep it off the fast path
        else:
            times = {name: _time(name, shards, q_shape, kv_heads, width, causal, at_once) for name, at_once in in_mode.items()}
            mode = min(times, key=lambda name: times[name])
    return mode, in_mode[mode]


def _not_gathered(shards: Shards, problem: Problem, lengths: tuple[int, ...] | None) -> str:
    """What pieces of queries cannot say."""
    runs = problem.causal and shards.kind != "striped"
    if problem.window and not runs:
        return "a window without causal=True, or with striped shards"
    if problem.bias is not None and not runs:
        return "a bias without causal=True, or with striped shards"
    if problem.bias is not None and lengths is not None:
        return "a bias beside cu_seqlens"
    return "packed sequences in striped shards" if lengths is not None and shards.kind == "striped" else ""


def group_of_heads(given: int | None, mode: str, shards: Shards, q_shape: torch.Size, kv_heads: int, width: int, causal: bool) -> int:
    """All of a rank's, or as many as MOST bytes hold; in mode "heads" what takes least of these, their half, a third and a quarter."""
    batch, _, length, head_dim = q_shape
    of_rank = kv_heads if mode == "gather" else max(1, kv_heads // shards.ranks)
    if given is not None:
        return min(given, of_rank)
    most = min(of_rank, max(1, MOST // max(1, 2 * batch * length * shards.ranks * head_dim * width)))
    if mode == "gather" or shards.ranks == 1:
        return most
    halved = [-(-most // parts) for parts in range(1, passes.LANES + 1)]
    return min(halved, key=lambda at_once: _time(mode, shards, q_shape, kv_heads, width, causal, at_once))


def _time(mode: str, shards: Shards, q_shape: torch.Size, kv_heads: int, width: int, causal: bool, at_once: int) -> float:
    (batch, heads, length, head_dim), ranks = q_shape, shards.ranks
    pairs = batch * heads * length * length * ranks / (2 if causal else 1)  # of each rank, where they are balanced
    a_head = length * batch * head_dim * width / LINK
    if mode == "gather":
        late = (2 * ranks - 1) / ranks if causal and shards.kind == "contiguous" else 1.0  # the last rank's share of the work
        rounds, sent = math.ceil(kv_heads / at_once), [(ranks - 1) * 2 * kv_heads * a_head * times for times in (1, 2)]
    else:
        late, rounds = 1.0, math.ceil(kv_heads / ranks / at_once)
        sent = [(ranks - 1) / ranks * (2 * heads + 2 * kv_heads) * a_head] * 2
    computed = [late * pairs * head_dim / PRODUCTS * share for share in (1, BACKWARD)]
    return sum((a + (rounds - 1) * max(a, b) + b) / rounds + rounds * HOST for a, b in zip(sent, computed))
