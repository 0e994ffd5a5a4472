"""A step of dense decoding in PyTorch on the GPU: softmax attention of a few queries over all keys, timed as our own step is; one process
for many jobs.

Reads one JSON object a line: backend (cudnn, flash), dtype, shape (batch, q_heads, kv_heads, q_len, kv_len, head_dim), scale,
query_variance, seed, method, samples, budget, warm_up, key. Draws q ~ N(0, query_variance), k and v ~ N(0, 1) itself, as many caches as
L2 cannot hold together, anew where `key` differs from the job before. The queries see every key: a mask among a few last ones would
cost a backend more than it spares. Answers one JSON object a line: seconds (a step), peak_memory_bytes, version, caches, nmse and
max_error (of one sequence's last key head against float64), or {"unavailable": why}.
"""

import math

import torch
from torch.nn.attention import sdpa_kernel
from torch_gpu_attention import DENSE, answer_jobs, measured, versions

TIMES_L2, MOST_CACHES = 3, 64  # as gpu/decode/benchmark/steps.h


def caches_of(bytes_of_step, l2_bytes):
    return min(max(math.ceil(TIMES_L2 * l2_bytes / bytes_of_step), 1), MOST_CACHES)


def load(job, device="cuda", l2_bytes=None):
    """q, and a list of pairs k, v."""
    batch, q_heads, kv_heads, q_len, kv_len, head_dim = job["shape"]
    generator = torch.Generator(device).manual_seed(job["seed"])

    def normal(heads, length):
        return torch.randn(batch, heads, length, head_dim, generator=generator, device=device, dtype=getattr(torch, job["dtype"]))

    q = math.sqrt(job["query_variance"]) * normal(q_heads, q_len)
    pairs = [(normal(kv_heads, kv_len), normal(kv_heads, kv_len))]
    if l2_bytes is None:
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    for _ in range(caches_of(2 * pairs[0][0].nbytes, l2_bytes) - 1):
        pairs.append((normal(kv_heads, kv_len), normal(kv_heads, kv_len)))
    return q, pairs


def attend(job, q, k, v):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=job["scale"], enable_gqa=q.shape[1] != k.shape[1])


def errors(job, out, q, k, v):
    """Of the last sequence's last key head."""
    group = q.shape[1] // k.shape[1]
    q, k, v, out = (each.double() for each in (q[-1, -group:], k[-1, -1], v[-1, -1], out[-1, -group:]))
    expected = torch.softmax(job["scale"] * q @ k.mT, -1) @ v
    difference = out - expected
    return {"nmse": (difference.square().sum() / expected.square().sum()).item(), "max_error": difference.abs().max().item()}


def run(job, q, pairs):
    def step_over_each():
        for k, v in pairs:
            out = attend(job, q, k, v)
        return out

    with torch.no_grad(), sdpa_kernel(DENSE[job["backend"]]):
        found = errors(job, attend(job, q, *pairs[0]), q, *pairs[0])
        timed = measured(step_over_each, job)
    timed["seconds"] = [seconds / len(pairs) for seconds in timed["seconds"]]
    return {**timed, **found, "caches": len(pairs), "version": versions()}


if __name__ == "__main__":
    answer_jobs(load, run)
