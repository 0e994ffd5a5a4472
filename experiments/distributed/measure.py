"""Times exact entmax attention over one GPU and over several, beside PyTorch's context_parallel with cuDNN's dense softmax, in one run:

    torchrun --standalone --nproc-per-node 2 experiments/distributed/measure.py --out report.json

Both passes of causal attention over one sequence, q ~ T · N(0, 1), k, v ~ N(0, 1), bfloat16. Each sample is a pass over all ranks from a
barrier to the last rank's end, by CUDA events: the time of the slowest rank. "one" is the whole problem on one GPU, measured on every
rank at once. Supports and outputs of all ranks are compared with one GPU's before anything is timed. Rank 0 writes the file in one
step, when all is measured; what did not fit or was left out says so. --quick tries it on a CPU with gloo, where times mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
from torch import Tensor

from splash_attention import splash_attention
from splash_attention.distributed import modes, ring_splash_attention, shard
from splash_attention.distributed.shards import Shards

NAMES = {"forward": "forward", "both": "forward and backward"}


class Run:
    def __init__(self, arguments: argparse.Namespace, device: torch.device) -> None:
        self.a, self.device, self.ends = arguments, device, time.monotonic() + arguments.seconds
        self.results: list[dict[str, Any]] = []

    def late(self) -> bool:
        """Whether the time is up, on any rank: all must agree."""
        told = torch.tensor([int(time.monotonic() > self.ends)], device=self.device)
        dist.all_reduce(told, dist.ReduceOp.MAX)
        return bool(told.item())

    def samples(self, call: Callable[[], Any], count: int, alone: bool, before: int) -> list[float]:
        """Milliseconds of each call, from a barrier on; the slowest rank's, unless each works alone. before: calls that are not timed."""
        for _ in range(before):
            call()
        found = []
        for _ in range(count):
            dist.barrier()
            if self.device.type == "cuda":
                begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                torch.cuda.synchronize()
                begin.record()
                call()
                end.record()
                end.synchronize()
                found.append(begin.elapsed_time(end))
            else:
                begin_s = time.perf_counter()
                call()
                found.append(1e3 * (time.perf_counter() - begin_s))
        if alone:
            return found
        slowest = torch.tensor(found, dtype=torch.float64, device=self.device)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return slowest.tolist()

    def measure(self, length: int, name: str, what: str, call: Callable[[], Any], alone: bool = False) -> None:
        row: dict[str, Any] = {"length": length, "implementation": name, "pass": NAMES[what], "ranks": 1 if alone else dist.get_world_size()}
        if self.late():
            self.results.append({**row, "left_out": f"the {self.a.seconds} s were over"})
            return
        failed = ""
        try:
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            once = self.samples(call, 1, alone, 2)[0]
        except Exception as error:  # one rank's lack of memory is all ranks' result
            failed, once = f"{type(error).__name__}: {str(error).splitlines()[0]}", 0.0
        told: list[str] = [""] * dist.get_world_size()
        dist.all_gather_object(told, failed)
        if any(told):
            self.results.append({**row, "left_out": next(filter(None, told))})
            return
        agreed = torch.tensor([once], device=self.device)
        dist.broadcast(agreed, 0)
        count = max(5, min(self.a.samples, int(self.a.share * 1e3 / max(agreed.item(), 1e-3))))
        times = self.samples(call, count, alone, 1)
        row |= {"median_ms": statistics.median(times), "samples_ms": times}
        if self.device.type == "cuda":
            row["peak_bytes"] = torch.cuda.max_memory_allocated()
        self.results.append(row)
        if dist.get_rank() == 0:
            print(f"{length:>7} {name:<34} {NAMES[what]:<21} {row['median_ms']:9.3f} ms of {count}", flush=True)


def passes(call: Callable[[], Tensor], d_out: Tensor, leaves: list[Tensor], what: str) -> Callable[[], None]:
    def run() -> None:
        if what == "forward":
            with torch.no_grad():
                call()
            return
        for x in leaves:
            x.grad = None
        call().backward(d_out)

    return run


def entmax(run: Run, length: int, given: list[Tensor]) -> None:
    a, parts = run.a, [shard(x, dim=2) for x in given]
    options = {"causal": True, "alpha": a.alpha}
    leaves, mine = ([x.detach().clone().requires_grad_() for x in some[:3]] for some in (given, parts))
    one = splash_attention(*leaves, **options)
    whole, aux = ring_splash_attention(*mine, **options, return_aux=True)
    expected = shard(one.detach(), dim=2)
    error = (whole.detach() - expected).double().norm() / expected.double().norm()
    told = torch.stack([error, aux.support.double().mean()])
    dist.all_reduce(told, dist.ReduceOp.MAX)
    run.results.append({"length": length, "compared": {"relative_error": told[0].item(), "keys_a_row": told[1].item()}})
    assert told[0] < 1e-2, f"outputs differ by {told[0].item():.1e}"
    del one, whole, expected
    for what in NAMES:
        run.measure(length, "entmax, one GPU", what, passes(lambda: splash_attention(*leaves, **options), given[3], leaves, what), alone=True)
    del leaves
    shards = Shards("zigzag", dist.get_world_size())
    for mode in ("gather", "heads"):
        most = modes.group_of_heads(None, mode, shards, mine[0].shape, a.kv_heads, mine[0].element_size())
        for at_once in sorted({max(1, most // 4), max(1, most // 2), most} if length < 200_000 else {most}):
            call = {**options, "mode": mode, "heads_at_once": at_once, "check": False}
            name = f"entmax, {mode}, {at_once} heads at once"
            for what in NAMES:
                run.measure(length, name, what, passes(lambda: ring_splash_attention(*mine, **call), parts[3], mine, what))
    for what in NAMES:
        run.measure(length, "entmax, auto, checked", what, passes(lambda: ring_splash_attention(*mine, **options), parts[3], mine, what))


def softmax(run: Run, length: int, given: list[Tensor]) -> None:
    """PyTorch's own, by cuDNN where there is a GPU: one GPU, and context_parallel over all."""
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    kernel = sdpa_kernel(SDPBackend.CUDNN_ATTENTION if run.device.type == "cuda" else SDPBackend.MATH)
    attend = lambda *leaves: F.scaled_dot_product_attention(*leaves, is_causal=True)  # noqa: E731
    leaves = [x.detach().clone().requires_grad_() for x in given[:3]]
    with kernel:
        for what in NAMES:
            run.measure(length, "softmax, one GPU", what, passes(lambda: attend(*leaves), given[3], leaves, what), alone=True)
    del leaves
    try:
        from torch.distributed.tensor.experimental import context_parallel
    except ImportError as error:
        run.results.append({"length": length, "implementation": "softmax, context_parallel", "left_out": str(error)})
        return
    mesh = dist.device_mesh.init_device_mesh(run.device.type, (dist.get_world_size(),))
    buffers = [x.detach().clone() for x in given]
    with context_parallel(mesh, buffers=buffers, buffer_seq_dims=[2] * 4):
        *mine, d_out = (buffer.detach().requires_grad_() for buffer in buffers)
        with sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if run.device.type == "cuda" else contextlib.nullcontext():
            for what in NAMES:
                run.measure(length, "softmax, context_parallel", what, passes(lambda: attend(*mine), d_out.detach(), mine, what))


def start(quick: bool) -> torch.device:
    """Joins the other ranks, and returns this one's device."""
    if "RANK" not in os.environ:
        sys.exit("start it with torchrun, which says how many ranks there are: torchrun --standalone --nproc-per-node 2 …")
    if quick:
        dist.init_process_group("gloo")
        return torch.device("cpu")
    if torch.cuda.device_count() < int(os.environ["LOCAL_WORLD_SIZE"]):
        sys.exit(f"it takes a GPU for each rank, and PyTorch finds {torch.cuda.device_count()}; --quick tries it on a CPU")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
    torch.cuda.set_device(device)
    dist.init_process_group("nccl")
    return device


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1 << 15, 1 << 17, 1 << 18])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--alpha", type=float, default=1.5)
    parser.add_argument("--temperature", type=float, default=2.449, help="T, the standard deviation of q")
    parser.add_argument("--samples", type=int, default=40, help="at most, of each time")
    parser.add_argument("--share", type=float, default=0.6, help="seconds for each time; 5 samples at least")
    parser.add_argument("--seconds", type=float, default=90, help="in all; what comes later is left out")
    parser.add_argument("--quick", action="store_true", help="on a CPU: short sequences, few samples")
    a = parser.parse_args()
    if a.quick:
        a.lengths, a.heads, a.kv_heads, a.head_dim, a.samples, a.share = [512], 4, 4, 32, 5, 0.1
    device = start(a.quick)
    run = Run(a, device)
    for length in a.lengths:
        torch.manual_seed(0)  # every rank has the whole problem
        shapes = [(1, heads, length, a.head_dim) for heads in (a.heads, a.kv_heads, a.kv_heads, a.heads)]
        dtype = torch.float32 if a.quick else torch.bfloat16
        given = [(factor * torch.randn(shape, device=device)).to(dtype) for shape, factor in zip(shapes, (a.temperature, 1, 1, 1))]
        for measure in (entmax, softmax):
            measure(run, length, given)
    if dist.get_rank() == 0:
        write(run, device)


def write(run: Run, device: torch.device) -> None:
    machine = {"torch": torch.__version__, "python": platform.python_version(), "ranks": dist.get_world_size()}
    if device.type == "cuda":
        machine |= {"gpu": torch.cuda.get_device_name(device), "cudnn": torch.backends.cudnn.version(), "nccl": list(torch.cuda.nccl.version())}
    told = {"machine": machine, "settings": {**vars(run.a), "out": str(run.a.out)}, "results": run.results}
    run.a.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=run.a.out.parent, delete=False) as file:
        json.dump(told, file, indent=1)
    os.replace(file.name, run.a.out)


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # behind main, whose graphs hold it
