"""A step of decoding in PyTorch on the GPU, timed as our own step is; one process for many jobs: dense softmax attention of a few queries
over all keys (cudnn, flash), or our own package as its users call it, over a paged cache (splash).

Reads one JSON object a line: backend, dtype, shape (batch, q_heads, kv_heads, q_len, kv_len, head_dim), scale, query_variance, seed,
method, samples, budget, warm_up, key; of splash alpha, page_size, bits. Draws q ~ N(0, query_variance), k and v ~ N(0, 1) itself, as many
caches as L2 cannot hold together, anew where `key` differs from the job before, or paged caches follow others. Two steps take turns, of
q and of -q. Dense attention's queries see every key: a mask among a few last ones would cost a backend more than it spares. Answers one
JSON object a line: seconds (a step), peak_memory_bytes, version, caches, nmse and max_error (of one sequence's last key head against
float64), or {"unavailable": why}.
"""

import math

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch_gpu_attention import DENSE, answer_jobs, measured, version_of

TIMES_L2, MOST_CACHES = 3, 64  # as gpu/decode/benchmark/steps.h


def caches_of(bytes_of_step, l2_bytes):
    return min(max(math.ceil(TIMES_L2 * l2_bytes / bytes_of_step), 1), MOST_CACHES)


def load(job, device="cuda", l2_bytes=None):
    """q, and a list of caches: pairs k, v, or paged ones."""
    batch, q_heads, kv_heads, q_len, kv_len, head_dim = job["shape"]
    generator = torch.Generator(device).manual_seed(job["seed"])

    def normal(heads, length):
        return torch.randn(batch, heads, length, head_dim, generator=generator, device=device, dtype=getattr(torch, job["dtype"]))

    def cache():
        k, v = normal(kv_heads, kv_len), normal(kv_heads, kv_len)
        return paged(job, k, v) if job["backend"] == "splash" else (k, v)

    q = math.sqrt(job["query_variance"]) * normal(q_heads, q_len)
    caches = [cache()]
    if l2_bytes is None:
        l2_bytes = torch.cuda.get_device_properties(0).L2_cache_size
    while len(caches) < caches_of(bytes_of_step(caches[0]), l2_bytes):
        caches.append(cache())
    return q, caches


def paged(job, k, v):
    from splash_attention import PagedCache

    size = {"page_size": job["page_size"], "bits": job["bits"], "dtype": k.dtype, "device": k.device}
    cache = PagedCache.empty(k.shape[0], k.shape[2], k.shape[1], k.shape[3], **size)
    cache.append(k, v)
    return cache


def bytes_of_step(cache):
    """That every step reads."""
    if isinstance(cache, tuple):
        return sum(each.nbytes for each in cache)
    return cache.low_bit.nbytes or cache.keys.nbytes


def step(job, q, cache):
    if isinstance(cache, tuple):
        k, v = cache
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=job["scale"], enable_gqa=q.shape[1] != k.shape[1])
    from splash_attention import decode

    return decode(q, cache, alpha=job["alpha"], scale=job["scale"])


def last_head(cache):
    """k and v of the last sequence's last key head, [kv_len, head_dim]."""
    if isinstance(cache, tuple):
        return (each[-1, -1] for each in cache)
    pages, length = cache.block_table[-1].long(), cache.lengths[-1]
    return (pool[pages, :, -1].flatten(0, 1)[:length] for pool in (cache.keys, cache.values))


def errors(job, out, q, cache):
    """Of the last sequence's last key head."""
    group, q_len = q.shape[1] // job["shape"][2], q.shape[2]
    q, k, v, out = (each.double().cpu() for each in (q[-1, -group:], *last_head(cache), out[-1, -group:]))
    scores = job["scale"] * q @ k.mT
    if isinstance(cache, tuple):
        p = torch.softmax(scores, -1)
    else:
        from splash_attention import entmax

        later = torch.arange(k.shape[0]) > k.shape[0] - q_len + torch.arange(q_len)[:, None]
        p = entmax(scores.masked_fill(later, -math.inf), job["alpha"])
    difference, expected = out - p @ v, p @ v
    return {"nmse": (difference.square().sum() / expected.square().sum()).item(), "max_error": difference.abs().max().item()}


def key_of(job):
    """What the caches depend on."""
    return job["key"], (job["page_size"], job["bits"]) if job["backend"] == "splash" else None


def run(job, q, caches):
    turns = -q, q  # so that what a step remembers is not its own

    def step_over_each():
        for queries in turns:
            for cache in caches:
                out = step(job, queries, cache)
        return out

    with torch.no_grad(), sdpa_kernel(DENSE.get(job["backend"], SDPBackend.MATH)):
        found = errors(job, step(job, q, caches[0]), q, caches[0])
        timed = measured(step_over_each, job)
    timed["seconds"] = [seconds / (len(turns) * len(caches)) for seconds in timed["seconds"]]
    return {**timed, **found, "caches": len(caches), "version": version_of(job)}


if __name__ == "__main__":
    answer_jobs(load, run, key_of)
