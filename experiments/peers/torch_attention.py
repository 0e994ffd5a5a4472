"""One PyTorch peer of the CPU speed comparison, timed in a process of its own.

Reads one line of JSON from stdin: implementation, backward, q_shape ([1, heads, q_len, head_dim]), k_shape ([1, kv_heads, kv_len,
head_dim]), scale, causal, threads, samples, folder. The folder holds q and d_out (q_shape), k and v (k_shape) as raw little-endian
float32; the output is left there as out.f32. Prints one JSON object: seconds (one a sample), peak_memory_bytes, version.
"""

import ctypes
import json
import os
import sys
import time

import numpy as np
import torch

torch.set_grad_enabled(False)


def resident_bytes(field):
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return 1024 * int(line.split()[1])
    raise RuntimeError(f"/proc/self/status has no {field}")


def peak_memory(call):
    """Largest resident set during the call, less the resident set before it."""
    ctypes.CDLL(None).malloc_trim(0)  # memory that earlier calls left on the heap would hide this call's
    with open("/proc/self/clear_refs", "w") as reset:
        reset.write("5")
    before = resident_bytes("VmRSS")
    call()
    return max(0, resident_bytes("VmHWM") - before)


def attention(implementation, causal, scale, q_len, kv_len, grouped):
    """The peer as a function of q, k, v; each at its best setting. A query sees the keys up to its own place, counted from the end."""
    hidden = torch.ones(q_len, kv_len, dtype=torch.bool).triu(1 + kv_len - q_len) if causal else None
    if implementation == "torch-softmax":
        square = q_len == kv_len
        options = {"is_causal": causal and square, "attn_mask": None if square or not causal else ~hidden, "scale": scale}
        return lambda q, k, v: torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=grouped, **options)
    if implementation == "torch-softmax-unfused":
        normalize = lambda s: torch.softmax(s, dim=-1)
    else:
        import entmax

        normalize = {
            "torch-entmax15": lambda s: entmax.entmax15(s, dim=-1),
            "torch-entmax15-k100": lambda s: entmax.entmax15(s, dim=-1, k=100),
            "torch-entmax-bisect": lambda s: entmax.entmax_bisect(s, alpha=1.5, dim=-1),
        }[implementation]

    def run(q, k, v):
        if grouped:
            k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
        scores = q @ k.transpose(-1, -2) * scale
        if causal:
            scores = scores.masked_fill(hidden, -1e30)  # entmax's solvers do not take -inf
        return normalize(scores) @ v

    return run


def main():
    job = json.loads(sys.stdin.readline())
    torch.set_num_threads(job["threads"])
    (_, heads, q_len, _), (_, kv_heads, kv_len, _) = shapes = job["q_shape"], job["k_shape"]
    load = lambda name, shape: torch.from_numpy(np.fromfile(os.path.join(job["folder"], name), "<f4").reshape(shape))
    q, k, v, d_out = (load(name + ".f32", shapes[name in "kv"]) for name in ("q", "k", "v", "d_out"))
    forward = attention(job["implementation"], job["causal"], job["scale"], q_len, kv_len, heads != kv_heads)

    def call():
        if not job["backward"]:
            return forward(q, k, v)
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_() for x in (q, k, v)]
            out = forward(*inputs)
            out.backward(d_out)
        return out.detach()

    call().numpy().astype("<f4").tofile(os.path.join(job["folder"], "out.f32"))  # also the warm-up
    peak = peak_memory(call)
    seconds = []
    for _ in range(job["samples"]):
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    version = "torch " + torch.__version__
    if "entmax" in job["implementation"]:
        from importlib.metadata import version as version_of

        version += ", entmax " + version_of("entmax")
    print(json.dumps({"seconds": seconds, "peak_memory_bytes": peak, "version": version}))


if __name__ == "__main__":
    main()
