"""Kascade's attention through PyTorch, in one layer or in all layers of a plan, PyTorch's dense softmax and exact entmax beside it.

Reads one JSON object a line, the parameters of the kind gpu-kascade; answers each with seconds, numbers and texts, or {"unavailable": why}.
q ~ T · N(0, 1), k, v ~ N(0, 1), of one layer: all layers of a plan work on the same. Before a sample of one layer the L2 cache is
overwritten; the tensors of all layers together are larger than it. A step of exact entmax remembers no keys of the last one, which asked
the same. The first, the middle and the last tile of a sequence are held against float64 before anything is timed.
"""

import contextlib
import json
import statistics
import sys
import time

LEAST = 3  # samples, of what takes longer than the budget
SPIN_CYCLES = 100_000  # meanwhile the host fills the queue


class Unavailable(Exception):
    """The case cannot be run here."""


def main(answers):
    try:
        import splash_attention  # noqa: F401
        import torch  # noqa: F401
    except ImportError as missing:
        for _ in sys.stdin:
            why = f"{sys.executable} has no {missing.name}; SPLASH_PEER_PYTHON must name a Python that has torch and splash_attention"
            print(json.dumps({"unavailable": why}), file=answers, flush=True)
        return
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def answer(job):
    import torch

    try:
        found = measure(job)
    except (Unavailable, NotImplementedError, torch.OutOfMemoryError) as error:
        found = {"unavailable": str(error).splitlines()[0]}
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return found


def device_of(job):
    import torch

    if job["device"] == "cuda" and not torch.cuda.is_available():
        raise Unavailable("PyTorch finds no GPU")
    return torch.device("cuda" if job["device"] != "cpu" and torch.cuda.is_available() else "cpu")


def tensors(job, device):
    import torch

    dtype = getattr(torch, job["dtype"] if job["dtype"] != "auto" else "bfloat16" if device.type == "cuda" else "float32")
    given = []
    for at, (heads, length, factor) in enumerate((("heads", "q_len", job["temperature"]), ("kv_heads", "kv_len", 1), ("kv_heads", "kv_len", 1))):
        generator = torch.Generator(device).manual_seed(3 * job["seed"] + at)
        shape = job["batch"], job[heads], job[length], job["head_dim"]
        given.append(torch.empty(shape, device=device, dtype=dtype).normal_(generator=generator).mul_(factor))
    return given


def measure(job):
    import torch

    device = device_of(job)
    q, k, v = tensors(job, device)
    numbers, texts = {}, {"device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"}
    with torch.inference_mode(), contextlib.ExitStack() as stack:
        layers, kept = job["layers"] if "-layers" in job["implementation"] else 1, 0
        call = dense(job, stack, q, k, v, layers)
        if job["implementation"].endswith("-pages"):
            call = kascade_over_pages(job, q, k, v, numbers)
        elif job["implementation"].startswith("kascade-"):
            call, kept = kascade(job, q, k, v, numbers)
        elif job["implementation"].startswith("entmax"):
            call = exact_entmax(q, k, v, layers, numbers)
        if device.type == "cuda":
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            call()
            torch.cuda.synchronize()
            numbers["peak_memory_bytes"] = float(torch.cuda.max_memory_allocated() - before + kept)
        seconds = [one / layers for one in samples(call, job, device, cold=layers == 1)]
    texts["version"] = f"torch {torch.__version__}" + (f", cuDNN {torch.backends.cudnn.version()}" if device.type == "cuda" else "")
    return {"seconds": seconds, "numbers": numbers, "texts": texts}


def dense(job, stack, q, k, v, layers):
    """A call of PyTorch's fused softmax, as named, else cuDNN's or where that takes none flash's, in so many layers."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    causal, grouped = q.shape[2] > 1, q.shape[1] != k.shape[1]
    if causal and q.shape[2] != k.shape[2]:
        raise Unavailable("PyTorch's causal mask meets the keys at their start: q_len must be 1 or kv_len")
    backends = {"softmax-cudnn": [SDPBackend.CUDNN_ATTENTION], "softmax-flash": [SDPBackend.FLASH_ATTENTION]}
    both = [*backends["softmax-cudnn"], *backends["softmax-flash"]]
    if q.device.type == "cuda":
        stack.enter_context(sdpa_kernel(backends.get(job["implementation"], both), set_priority=True))

    def call():
        for _ in range(layers):
            torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=grouped)

    return call


def in_pages(k, v, bits):
    """As many sequences in a paged cache, each in pages of its own."""
    import torch

    from splash_attention.decoding import PagedCache

    (batch, heads, length, dim), size = k.shape, 64
    room = -(-length // size) * size
    whole = (torch.nn.functional.pad(x, (0, 0, 0, room - length)) for x in (k, v))
    pools = (x.transpose(1, 2).reshape(batch * room // size, size, heads, dim).contiguous() for x in whole)
    table = torch.arange(batch * room // size, dtype=torch.int32, device=k.device).view(batch, -1)
    cache = PagedCache(*pools, table, torch.full((batch,), length, dtype=torch.int32, device=k.device), bits=bits)
    cache.fill()
    return cache


def exact_entmax(q, k, v, layers, numbers):
    """Of all keys: a prefill, or a step over pages whose copies in 4 bits are there."""
    import torch

    from splash_attention import entmax, splash_attention
    from splash_attention.decoding import decode

    step = q.shape[2] <= 16 and q.shape[2] < k.shape[2]
    cache = in_pages(k, v, 4) if step else None
    if step:
        cache.recent = None  # every step asks the same: it would remember its own keys

    def call():
        for _ in range(layers):
            out = decode(q, cache) if step else splash_attention(q, k, v, causal=True)
        return out

    out = call()[0, 0, -4:].double()
    rows = torch.arange(q.shape[2], device=q.device)[-4:, None] + (k.shape[2] - q.shape[2])
    scores = q[0, 0, -4:].double() @ k[0, 0].double().T * q.shape[3] ** -0.5
    p = entmax(scores.masked_fill(torch.arange(k.shape[2], device=q.device) > rows, -torch.inf).cpu(), 1.5)
    expected = p.to(q.device) @ v[0, 0].double()
    numbers["relative_error"] = ((out - expected).norm() / expected.norm()).item()
    return call


def layers_of(job, first, anchor, reuse):
    """A call of all layers of a plan: the first gives lists, as anchors do, the others reuse them."""

    def layers():
        every = job["layers"] / job["anchors"]
        begins = {int(at * every) for at in range(job["anchors"])}
        for layer in range(job["layers"]):
            if layer == 0:
                found = first()
            else:
                found = anchor() if layer in begins else found
                reuse(found)

    return layers


def kascade_over_pages(job, q, k, v, numbers):
    from splash_attention.kascade import pages
    from splash_attention.kascade.attention import Budget

    budget, scaling, cache = Budget(job["share"], 32, job["least_keys"]), q.shape[3] ** -0.5, in_pages(k, v, 0)
    heads = [(head + 1) % k.shape[1] for head in range(k.shape[1])]
    if not pages.are_for(q, cache, scaling, 32, None):
        raise Unavailable("the kernels take steps of decoding of 16 bits on Hopper: a key head has at most 32 rows")
    lists = pages.find(q, cache, scaling, budget)
    out = pages.attend(lists, heads, q, cache, scaling)
    tell_lists(numbers, lists.keys, out, heads, q, k, v, budget, scaling)

    def anchor():
        return pages.find(q, cache, scaling, budget)

    def first():
        return pages.attend_to_all_and_find(q, cache, scaling, budget)[1]

    return layers_of(job, first, anchor, lambda found: pages.attend(found, heads, q, cache, scaling))


def tell_lists(numbers, keys, out, heads, q, k, v, budget, scaling):
    numbers["keys_kept"] = (keys < k.shape[2]).sum(-1, dtype=keys.dtype).double().mean().item()
    numbers["differing_keys"], numbers["relative_error"] = against_float64(keys, out, heads, q, k, v, budget, scaling)


def kascade(job, q, k, v, numbers):
    """A call, and the bytes of what it keeps from step to step. numbers gets what the lists are like."""
    from splash_attention.kascade.attention import Budget, attend_to, attend_to_all_and_find, tile_keys

    k8 = in_8_bits(job, q, k) if job["implementation"].endswith("-8-bits") else None
    budget, scaling = Budget(job["share"], 32, job["least_keys"]), q.shape[3] ** -0.5
    heads = [(head + 1) % k.shape[1] for head in range(k.shape[1])]  # of the anchor, whose lists they take
    keys = tile_keys(q, k, scaling, budget, k8=k8)
    out = attend_to(keys, q, k, v, budget, scaling, heads=heads)[0]
    tell_lists(numbers, keys, out, heads, q, k, v, budget, scaling)
    del out

    def add_new_keys():
        if k8 is not None:
            k8.length = k.shape[2] - q.shape[2]
            k8.append(k)

    def anchor():
        add_new_keys()
        return tile_keys(q, k, scaling, budget, k8=k8)

    def reuse(keys=keys):
        return attend_to(keys, q, k, v, budget, scaling, heads=heads)

    def first():
        return attend_to_all_and_find(q, k, v, budget, scaling)[2]

    calls = {"kascade-anchor": anchor, "kascade-reuse": reuse, "kascade-layers": layers_of(job, first, anchor, reuse)}
    return calls[job["implementation"].removesuffix("-8-bits")], 0 if k8 is None else k8.nbytes


def in_8_bits(job, q, k):
    """The keys, from which a step of decoding chooses."""
    from splash_attention.kascade import kernels
    from splash_attention.kascade.keys_in_8_bits import KeysIn8Bits

    if not kernels.is_step(q, k, 32):
        raise Unavailable("keys in 8 bits are for steps of decoding: a key head has at most 32 rows")
    made = KeysIn8Bits()
    made.append(k)
    return made


def against_float64(keys, out, heads, q, k, v, budget, scaling):
    """(differing keys of a list, relative error of the outputs) in some tiles of the first sequence."""
    import torch

    from splash_attention._core import kascade_keys

    q_len, kv_len, group, most, squares = q.shape[2], k.shape[2], q.shape[1] // k.shape[1], 0, [0.0, 0.0]
    for tile in sorted({0, keys.shape[2] // 2, keys.shape[2] - 1}):
        rows = torch.arange(tile * budget.tile, min((tile + 1) * budget.tile, q_len), device=q.device)
        places = rows + (kv_len - q_len)
        visible = int(places[-1]) + 1
        own = min(len(rows), visible)
        count = kascade_keys(*budget, visible, own)
        for head in range(k.shape[1]):
            queries, of_keys, values = (x.double() for x in (q[0, head * group : (head + 1) * group][:, rows], k[0, head, :visible], v[0, head, :visible]))
            scores = (queries @ of_keys.T * scaling).masked_fill(torch.arange(visible, device=q.device) > places[:, None], -torch.inf)
            sums = torch.softmax(scores, -1).sum((0, 1))
            sums[visible - own :] = torch.inf  # the tile's own keys
            wanted = set(sums.topk(count).indices.tolist())
            most = max(most, len(wanted.symmetric_difference(x for x in keys[0, head, tile].tolist() if x < kv_len)))
            listed = keys[0, heads[head], tile].long()
            listed = listed[listed < kv_len]
            kept = torch.full_like(scores, -torch.inf)
            kept[..., listed] = scores[..., listed]
            expected = torch.softmax(kept, -1) @ values
            found = out[0, head * group : (head + 1) * group][:, rows].double()
            squares = [squares[0] + (found - expected).square().sum().item(), squares[1] + expected.square().sum().item()]
    return most, (squares[0] / squares[1]) ** 0.5


def samples(call, job, device, cold):
    """Seconds of each. The first calls are not among them."""
    import torch

    flush = torch.empty(2 * torch.cuda.get_device_properties(device).L2_cache_size, dtype=torch.uint8, device=device) if device.type == "cuda" else None

    def once():
        if flush is None:
            begin = time.perf_counter()
            call()
            return time.perf_counter() - begin
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        if cold:
            flush.zero_()
        torch.cuda._sleep(SPIN_CYCLES)
        begin.record()
        call()
        end.record()
        end.synchronize()
        return 1e-3 * begin.elapsed_time(end)

    estimate = statistics.median([once() for _ in range(3)][1:])
    return [once() for _ in range(max(LEAST, min(job["samples"], int(job["budget"] / max(estimate, 1e-6)))))]


if __name__ == "__main__":
    answers, sys.stdout = sys.stdout, sys.stderr  # packages may print; only answers go to stdout
    main(answers)
