"""PyTorch's dense attention, AdaSplash, and our own package on the GPU, timed as our own kernels are; one process for many jobs.

Reads one JSON object a line: backend, dtype, causal, window (0: none), cu_seqlens (of packed documents, both of queries and of keys;
empty: none), alpha (of entmax: a number, or a list with one a query head; null: softmax), k_keep (of splash: the largest scores of
each row; 0: all), scale (null: 1/sqrt(head_dim)), backward, method, cache, samples, budget, warm_up, key, folder, shape (batch, q_heads,
kv_heads, q_len, kv_len, head_dim). The folder holds q, k, v and, with backward, d_out as raw float32; they are read again where `key`
differs from the job before. Leaves the output there as
out.f32, with backward the gradient of q as d_q.f32, and answers one JSON object a line: seconds, peak_memory_bytes,
version, or {"unavailable": why}.
"""

import json
import math
import os
import sys

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

DENSE = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
    "math-tf32": SDPBackend.MATH,
}
GRAPH_SECONDS = 2e-4  # a replay takes at least this long
SPIN_CYCLES = 100_000  # meanwhile the host fills the queue


class Unavailable(Exception):
    """The backend does not take the problem."""


def load(job):
    batch, q_heads, kv_heads, q_len, kv_len, head_dim = job["shape"]
    dtype = getattr(torch, job["dtype"])

    def tensor(name, heads, length):
        raw = np.fromfile(os.path.join(job["folder"], name + ".f32"), "<f4")
        return torch.from_numpy(raw).view(batch, heads, length, head_dim).cuda().to(dtype)

    inputs = tensor("q", q_heads, q_len), tensor("k", kv_heads, kv_len), tensor("v", kv_heads, kv_len)
    for each in inputs:
        each.requires_grad_(job["backward"])
    return *inputs, tensor("d_out", q_heads, q_len) if job["backward"] else None


def save(job, name, tensor):
    tensor.float().cpu().contiguous().numpy().tofile(os.path.join(job["folder"], name + ".f32"))


def seconds_between_events(before, work):
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before()
    begin.record()
    work()
    end.record()
    end.synchronize()
    return 1e-3 * begin.elapsed_time(end)


def captured(call, calls):
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        call()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(calls):
            call()
    return graph


def time_call(call, job):
    spin = lambda: torch.cuda._sleep(SPIN_CYCLES)
    spent, estimate = 0.0, 0.0
    while spent < job["warm_up"]:
        estimate = max(seconds_between_events(spin, call), 1e-7)
        spent += estimate
    calls, before, work = 1, spin, call
    if job["method"] == "graph":
        calls = min(max(int(GRAPH_SECONDS / estimate), 4), 100)
        work = captured(call, calls).replay
    elif job["cache"] == "cold":
        flush = torch.empty(2 * torch.cuda.get_device_properties(0).L2_cache_size, dtype=torch.uint8, device="cuda")

        def before():
            flush.zero_()
            spin()

    samples = min(max(int(job["budget"] / (estimate * calls)), min(10, job["samples"])), job["samples"])
    return [seconds_between_events(before, work) / calls for _ in range(samples)]


def cu_seqlens(job, q):
    """Of packed documents, as kernels and operators take them; else None."""
    return torch.tensor(job["cu_seqlens"], dtype=torch.int32, device=q.device) if job["cu_seqlens"] else None


def flash(job, q, k, v):
    """PyTorch's FlashAttention-2 with a window or packed documents, by the operator below scaled_dot_product_attention and varlen_attn,
    which takes both and needs no copy. Bottom-right causal, as ours."""
    forward = torch.ops.aten._flash_attention_forward.default
    if all(argument.name != "window_size_left" for argument in forward._schema.arguments):
        raise Unavailable(f"flash attention of torch {torch.__version__} has no window")
    packed = cu_seqlens(job, q)
    if packed is not None and q.shape[0] != 1:
        raise Unavailable(f"flash attention takes packed documents of a batch of one, not of {q.shape[0]}")
    ends = job["cu_seqlens"]
    longest_q, longest_k = (max(b - a for a, b in zip(ends, ends[1:])),) * 2 if ends else (q.shape[2], k.shape[2])
    window = {"window_size_left": job["window"] - 1, "window_size_right": 0}  # -1: to the first key

    def call():
        inputs = [each.transpose(1, 2) for each in (q, k, v)]  # [batch, length, heads, head_dim], packed without batch
        if packed is not None:
            inputs = [each.squeeze(0) for each in inputs]
        out = forward(*inputs, packed, packed, longest_q, longest_k, 0.0, True, False, scale=job["scale"], **window)[0]
        return (out if packed is None else out.unsqueeze(0)).transpose(1, 2)

    return call


def as_flash_has_it(tensor):
    """The same numbers, [batch, heads, length, head_dim], in memory as FlashAttention has them, [batch, length, heads, head_dim]: its
    backward would copy others."""
    return None if tensor is None else tensor.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(tensor.requires_grad)


def dense(job, q, k, v):
    if job["window"] or job["cu_seqlens"]:
        if job["backend"] != "flash":
            raise Unavailable("PyTorch's scaled_dot_product_attention has neither a window nor packed documents")
        return flash(job, q, k, v)
    causal = job["causal"] and q.shape[2] > 1  # one query, the last, sees all keys
    if causal and q.shape[2] != k.shape[2]:
        raise Unavailable(f"PyTorch's causal mask meets the keys at their start, another mask with {q.shape[2]} queries and {k.shape[2]} keys")
    options = {"is_causal": causal, "scale": job["scale"], "enable_gqa": q.shape[1] != k.shape[1]}
    return lambda: torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)


def adasplash(job, q, k, v):
    """Exact entmax in Triton, of PyPI's adasplash: version 2 for causal alpha 1.5, version 1 for the rest."""
    from adasplash import adasplash_v1, adasplash_v2

    if job["window"] or job["cu_seqlens"]:
        raise Unavailable(f"{job['backend']} has neither a window nor packed documents")
    if isinstance(job["alpha"], list):
        raise Unavailable(f"{job['backend']} has one alpha for all heads")
    if q.shape[2] != k.shape[2]:
        raise Unavailable(f"{job['backend']} takes as many queries as keys, not {q.shape[2]} and {k.shape[2]}")
    if job["scale"] is not None and not math.isclose(job["scale"], q.shape[3] ** -0.5):
        raise Unavailable(f"{job['backend']} has the scale 1/sqrt(head_dim), not {job['scale']}")
    if job["backend"] == "adasplash2":
        if not job["causal"] or job["alpha"] != 1.5:
            raise Unavailable("adasplash2 takes a causal mask and alpha 1.5 only")
        return lambda: adasplash_v2(q, k, v)
    if q.shape[1] != k.shape[1]:
        raise Unavailable("adasplash takes no grouped heads")
    return lambda: adasplash_v1(q, k, v, alpha=job["alpha"], is_causal=job["causal"])


def splash(job, q, k, v):
    """Our own attention as a user of the Python package calls it. Alphas of heads lie on the GPU, as a converted model has them: a list
    would be copied there by each call."""
    from splash_attention import splash_attention

    packed, alpha = cu_seqlens(job, q), job["alpha"]
    if isinstance(alpha, list):
        alpha = torch.tensor(alpha, dtype=torch.float32, device=q.device)
    options = {"alpha": alpha, "causal": job["causal"], "window": job["window"] or None, "scale": job["scale"]}
    options["k_keep"] = job["k_keep"] or None
    return lambda: splash_attention(q, k, v, cu_seqlens_q=packed, cu_seqlens_k=packed, **options)


ENTMAX = {"adasplash": adasplash, "adasplash2": adasplash, "splash": splash}


def versions(*packages):
    named = [f"{package.__name__} {package.__version__}" for package in packages]
    return ", ".join([*named, f"torch {torch.__version__}", f"cuDNN {torch.backends.cudnn.version()}"])


def version_of(job):
    if job["backend"] in DENSE:
        return versions()
    if job["backend"] == "splash":
        return f"splash_attention, {versions()}"
    import adasplash
    import triton

    return versions(adasplash, triton)


def measured(call, job):
    """Time of a call that was made before, and the memory that it takes at its peak."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    call()
    peak = torch.cuda.max_memory_allocated() - before
    return {"seconds": time_call(call, job), "peak_memory_bytes": peak}


def run(job, q, k, v, d_out):
    is_dense = job["backend"] in DENSE
    torch.backends.cuda.matmul.allow_tf32 = job["backend"].endswith("tf32")
    if is_dense and (job["window"] or job["cu_seqlens"]):
        q, k, v, d_out = map(as_flash_has_it, (q, k, v, d_out))
    attention = (dense if is_dense else ENTMAX[job["backend"]])(job, q, k, v)

    def call():
        out = attention()
        return out, torch.autograd.grad(out, (q, k, v), d_out) if job["backward"] else None

    with torch.set_grad_enabled(job["backward"]), sdpa_kernel(DENSE.get(job["backend"], SDPBackend.MATH)):
        out, gradients = call()  # triggers compilation and tuning, if there is any
        save(job, "out", out.detach())
        if job["backward"]:
            save(job, "d_q", gradients[0])
        del out, gradients
        return {**measured(call, job), "version": version_of(job)}


def refusals():
    """What a backend raises that lacks a package, does not take a problem or does not compile."""
    errors = (RuntimeError, AssertionError, ImportError, Unavailable, torch.cuda.OutOfMemoryError)
    try:
        from triton.errors import TritonError
    except ImportError:
        return errors
    return (*errors, TritonError)


def answer_jobs(load, run, key_of=lambda job: job["key"]):
    """The jobs of stdin, one after the other; load's tensors, which run takes, stay for jobs of the same key."""
    answers, sys.stdout = sys.stdout, sys.stderr  # packages may print; only answers go to stdout
    key, tensors = None, None
    for line in sys.stdin:
        job = json.loads(line)
        try:
            if key != key_of(job):
                key, tensors = None, None  # frees the previous ones before the next are loaded
                tensors, key = load(job), key_of(job)
            answer = run(job, *tensors)
        except refusals() as error:
            why = str(error).strip() or type(error).__name__
            answer = {"unavailable": why.splitlines()[0]}
            torch.cuda.empty_cache()
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    answer_jobs(load, run)
