"""PyTorch's dense attention on the GPU, timed as our own kernels are; one process for many jobs.

Reads one JSON object a line: backend, dtype, causal, method, cache, samples, budget, warm_up, key, folder, shape (batch,
q_heads, kv_heads, q_len, kv_len, head_dim). The folder holds q, k and v as raw float32; they are read again where `key`
differs from the job before. Leaves the output there as out.f32 and answers one JSON object a line: seconds,
peak_memory_bytes, version, or {"unavailable": why}.
"""

import json
import os
import statistics
import sys

import numpy as np
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

BACKENDS = {
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "flash": SDPBackend.FLASH_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
    "math": SDPBackend.MATH,
    "math-tf32": SDPBackend.MATH,
}
GRAPH_SECONDS = 2e-4  # a replay takes at least this long
SPIN_CYCLES = 100_000  # the host fills the queue meanwhile


def load(job):
    batch, q_heads, kv_heads, q_len, kv_len, head_dim = job["shape"]
    dtype = getattr(torch, job["dtype"])

    def tensor(name, heads, length):
        raw = np.fromfile(os.path.join(job["folder"], name + ".f32"), "<f4")
        return torch.from_numpy(raw).view(batch, heads, length, head_dim).cuda().to(dtype)

    return tensor("q", q_heads, q_len), tensor("k", kv_heads, kv_len), tensor("v", kv_heads, kv_len)


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


def run(job, q, k, v):
    torch.backends.cuda.matmul.allow_tf32 = job["backend"].endswith("tf32")
    options = {"is_causal": job["causal"], "enable_gqa": q.shape[1] != k.shape[1]}

    def call():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, **options)

    with torch.no_grad(), sdpa_kernel(BACKENDS[job["backend"]]):
        out = call()
        out.float().cpu().contiguous().numpy().tofile(os.path.join(job["folder"], "out.f32"))
        del out
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        peak = torch.cuda.max_memory_allocated() - before
        seconds = time_call(call, job)
    version = f"torch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    return {"seconds": seconds, "peak_memory_bytes": peak, "version": version, "median": statistics.median(seconds)}


def main():
    key, tensors = None, None
    for line in sys.stdin:
        job = json.loads(line)
        try:
            if key != job["key"]:
                key, tensors = None, None  # frees the last ones before the next are loaded
                tensors, key = load(job), job["key"]
            answer = run(job, *tensors)
        except (RuntimeError, torch.cuda.OutOfMemoryError) as error:
            answer = {"unavailable": str(error).strip().splitlines()[0]}
            torch.cuda.empty_cache()
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
