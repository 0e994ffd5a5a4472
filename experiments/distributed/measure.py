"""Times exact entmax attention over one GPU and over several, beside PyTorch's dense softmax on one and by its context_parallel.

It is the worker of the kind gpu-distributed (`./splash run experiments/distributed`), whose ranks it is. By hand:

    torchrun --standalone --nproc-per-node 2 experiments/distributed/measure.py --out report.json

Causal attention over one sequence, q ~ T · N(0, 1), k, v ~ N(0, 1). A sample is a pass over all ranks from a barrier to the last rank's end, by
CUDA events: the time of the slowest rank. Of several calls, one behind the other, it is their time over their number: then GPUs do not wait for
the host, as in a model. One GPU is rank 0, while the others wait. Outputs and supports of all ranks are compared with one GPU's
before anything is timed. A case that fails (out of memory, heads that do not divide) says why, on every rank; a rank that dies
ends all. --device cpu tries it with gloo, where times mean nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parents[2] / "python"))  # after an installed package

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import Tensor  # noqa: E402

from splash_attention import splash_attention  # noqa: E402
from splash_attention.distributed import ring_splash_attention, shard  # noqa: E402
from splash_attention.files.whole_file import whole_file  # noqa: E402
from splash_laboratory.distributed_model import Problem, received_bytes  # noqa: E402

PASSES = ("forward", "forward_backward")
ALONE = ("entmax", "softmax")  # on one GPU
MODES = {"entmax-gather": "gather", "entmax-heads": "heads", "entmax-auto": "auto"}
IMPLEMENTATIONS = (*MODES, "softmax-context-parallel", *ALONE)
LEAST = 3  # samples, of what takes longer than the budget
TIMEOUT = datetime.timedelta(minutes=5)  # of an exchange whose other rank died
Job = dict[str, Any]  # the parameters of the kind gpu-distributed


class Ranks:
    """This rank among the others."""

    def __init__(self, device: str) -> None:
        on_gpus = device == "cuda"
        self.device = torch.device(device, int(os.environ["LOCAL_RANK"])) if on_gpus else torch.device(device)
        if on_gpus:
            torch.cuda.set_device(self.device)
        dist.init_process_group("nccl" if on_gpus else "gloo", timeout=TIMEOUT)
        self.rank, self.count = dist.get_rank(), dist.get_world_size()
        self.control = dist.new_group(backend="gloo", timeout=datetime.timedelta(days=1))  # rank 0 may wait for its next job
        self.expected: dict[str, tuple[Tensor, Tensor | None]] = {}  # this rank's part of one GPU's output and support
        self.link = self._link_rate() if self.count > 1 else None

    def told(self, thing: Any) -> Any:
        """Rank 0's, on every rank."""
        held = [thing]
        dist.broadcast_object_list(held, 0, group=self.control)
        return held[0]

    def largest(self, values: list[float]) -> list[float]:
        """Of all ranks, one by one."""
        most = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=self.control)
        return most.tolist()

    def sum(self, value: float) -> float:
        total = torch.tensor(value, dtype=torch.float64)
        dist.all_reduce(total, group=self.control)
        return total.item()

    def first_error(self, error: str) -> str:
        told: list[str] = [""] * self.count
        dist.all_gather_object(told, error, group=self.control)
        return next(filter(None, told), "")

    def seconds(self, call: Callable[[], Any], count: int, alone: bool = False) -> list[float]:
        """Of each call, from a barrier on; the slowest rank's, unless rank 0 works alone."""
        found = []
        for _ in range(count):
            if not alone:
                dist.barrier()
            found.append(self._seconds_of(call))
        return found if alone else self.largest(found)

    def samples(self, call: Callable[[], Any], most: int, budget: float, alone: bool = False) -> list[float]:
        """As many as the budget, in seconds, allows. The first call is not among them."""
        once = self.seconds(call, 1, alone)[0]
        if once < 0.1:
            once = self.seconds(call, 2, alone)[1]
        return self.seconds(call, max(LEAST, min(most, int(budget / max(once, 1e-6)))), alone)

    def peak_bytes(self, call: Callable[[], Any]) -> float | None:
        """Of PyTorch's allocator during the call, beyond what was held before. None on a CPU."""
        if self.device.type != "cuda":
            call()
            return None
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return float(torch.cuda.max_memory_allocated() - before)

    def name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "CPU"

    def _seconds_of(self, call: Callable[[], Any]) -> float:
        if self.device.type != "cuda":
            begin_s = time.perf_counter()
            call()
            return time.perf_counter() - begin_s
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        call()
        end.record()
        end.synchronize()
        return 1e-3 * begin.elapsed_time(end)

    def _link_rate(self) -> float:
        """Bytes a second that a rank receives in an all-gather."""
        part = torch.zeros((256 if self.device.type == "cuda" else 1) << 20, dtype=torch.uint8, device=self.device)
        whole = part.new_empty(self.count * part.numel())
        return (self.count - 1) * part.numel() / min(self.seconds(lambda: dist.all_gather_into_tensor(whole, part), 6)[1:])


def dtype_of(job: Job, device: torch.device) -> torch.dtype:
    given = job["dtype"]
    return getattr(torch, given) if given != "auto" else torch.bfloat16 if device.type == "cuda" else torch.float32


def tensors(job: Job, device: torch.device, cut: Callable[[Tensor], Tensor] = lambda x: x) -> list[Tensor]:
    """q, k, v and d_out, or what `cut` leaves of each; the same on all ranks."""
    given = []
    for at, (heads, factor) in enumerate(zip(("heads", "kv_heads", "kv_heads", "heads"), (job["temperature"], 1, 1, 1))):
        generator = torch.Generator(device).manual_seed(4 * job["seed"] + at)
        x = torch.randn(1, job[heads], job["length"], job["head_dim"], device=device, generator=generator)
        given.append(cut(x.mul_(factor).to(dtype_of(job, device))))
    return given


def one_pass(call: Callable[[], Tensor], d_out: Tensor, leaves: list[Tensor], direction: str) -> Callable[[], None]:
    def run() -> None:
        if direction == "forward":
            with torch.no_grad():
                call()
            return
        for x in leaves:
            x.grad = None
        call().backward(d_out)

    return run


def dense(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    grouped = {"enable_gqa": True} if q.shape[1] != k.shape[1] else {}
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, **grouped)


def cudnn(device: torch.device) -> Any:
    """PyTorch's own choice on a CPU."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel(SDPBackend.CUDNN_ATTENTION) if device.type == "cuda" else contextlib.nullcontext()


def measure(ranks: Ranks, job: Job) -> dict[str, Any]:
    """The answer, on rank 0; of one GPU's cases there alone."""
    implementation, direction, device = job["implementation"], job["pass"], ranks.device
    alone, options = implementation in ALONE, {"causal": True, "alpha": job["alpha"]}
    numbers: dict[str, float | None] = {}
    texts: dict[str, str] = {}
    with contextlib.ExitStack() as stack:
        if alone:
            *leaves, d_out = tensors(job, device)
            attend = (lambda *qkv: splash_attention(*qkv, **options)) if implementation == "entmax" else dense
        elif implementation in MODES:
            numbers |= compare(ranks, job)
            *leaves, d_out = tensors(job, device, lambda x: shard(x, dim=2))
            options |= {"mode": MODES[implementation], "heads_at_once": job["heads_at_once"] or None, "check": job["check"]}
            attend = lambda *qkv: ring_splash_attention(*qkv, **options)  # noqa: E731
        else:
            *leaves, d_out = stack.enter_context(context_parallel(ranks, tensors(job, device)))
            attend = dense
        if implementation not in MODES and implementation != "entmax":
            stack.enter_context(cudnn(device))
        leaves = [x.requires_grad_() for x in leaves]
        if implementation in MODES:
            texts["mode"] = mode = "heads" if "ByHeads" in type(attend(*leaves).grad_fn).__name__ else "gather"
            problem = Problem(job["length"], job["heads"], job["kv_heads"], job["head_dim"], leaves[0].element_size())
            numbers["received_bytes"] = received_bytes(problem, mode, direction, ranks.count)
        call = one_pass(lambda: attend(*leaves), d_out, leaves, direction)
        peak = ranks.peak_bytes(call)
        sample = ranks.samples(lambda: [call() for _ in range(job["calls"])], job["samples"], job["budget"], alone)
        seconds = [one / job["calls"] for one in sample]
    numbers["peak_memory_bytes"] = peak if alone or peak is None else ranks.largest([peak])[0]
    numbers["link_rate"] = None if alone else ranks.link
    return {"seconds": seconds, "numbers": {name: value for name, value in numbers.items() if value is not None}, "texts": texts}


@contextlib.contextmanager
def context_parallel(ranks: Ranks, given: list[Tensor]) -> Iterator[list[Tensor]]:
    """This rank's parts, inside PyTorch's own."""
    from torch.distributed.tensor.experimental import context_parallel as of_torch

    mesh = dist.device_mesh.init_device_mesh(ranks.device.type, (ranks.count,))
    with of_torch(mesh, buffers=given, buffer_seq_dims=[2] * len(given), no_restore_buffers=set(given)):
        yield [x.detach() for x in given]


def compare(ranks: Ranks, job: Job) -> dict[str, float | None]:
    """What differs from one GPU, which every rank asks; nothing where one GPU cannot hold the problem."""
    key = json.dumps([job[name] for name in ("length", "heads", "kv_heads", "head_dim", "alpha", "temperature", "seed", "dtype")])
    options = {"causal": True, "alpha": job["alpha"], "return_aux": True}
    with torch.no_grad():
        if key not in ranks.expected:
            ranks.expected[key] = expected(ranks, job, options)
        parts = [shard(x, dim=2) for x in tensors(job, ranks.device)[:3]]
        out, aux = ring_splash_attention(*parts, **options, mode=MODES[job["implementation"]], heads_at_once=job["heads_at_once"] or None)
        keys = ranks.sum(aux.support.double().mean().item()) / ranks.count
        wanted, support = ranks.expected[key]
        if support is None:
            return {"support_mean": keys}
        wanted = wanted.to(ranks.device)
        squares = [ranks.sum((x.double() ** 2).sum().item()) for x in (out.float() - wanted.float(), wanted.float())]
        differing = ranks.sum((aux.support != support.to(ranks.device)).sum().item())
    return {"support_mean": keys, "relative_error": (squares[0] / squares[1]) ** 0.5, "differing_supports": differing}


def expected(ranks: Ranks, job: Job, options: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """This rank's part of one GPU's output and support, in host memory; (empty, None) where any rank lacks memory."""
    parts, error = (torch.empty(0), None), ""
    try:
        out, aux = splash_attention(*tensors(job, ranks.device)[:3], **options)
        parts = shard(out, dim=2).cpu(), shard(aux.support, dim=2).cpu()
    except torch.OutOfMemoryError:
        error = "too large"
    return (torch.empty(0), None) if ranks.first_error(error) else parts


def answer(ranks: Ranks, job: Job) -> dict[str, Any]:
    alone, error, found = job["implementation"] in ALONE, "", {}
    if alone and ranks.rank > 0:
        return {}
    try:
        found = measure(ranks, job)
    except Exception as failed:  # of any rank, it is the case's result
        error = f"{type(failed).__name__}: {(str(failed) or 'no reason given').splitlines()[0]}"
    if ranks.device.type == "cuda":
        torch.cuda.empty_cache()
    error = error if alone else ranks.first_error(error)
    if error:
        return {"unavailable": error}
    libraries = [f"torch {torch.__version__}"]
    if ranks.device.type == "cuda":
        libraries += [f"cuDNN {torch.backends.cudnn.version()}", f"NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}"]
    return {**found, "texts": {**found["texts"], "device_name": ranks.name(), "computed_in": str(dtype_of(job, ranks.device))[6:], "version": ", ".join(libraries)}}


def jobs_by_hand(a: argparse.Namespace) -> Iterator[Job]:
    ends = time.monotonic() + a.seconds
    names = "heads", "kv_heads", "head_dim", "alpha", "temperature", "samples", "budget", "heads_at_once", "check", "calls"
    named = {name: getattr(a, name) for name in names}
    for length in a.lengths:
        for implementation in IMPLEMENTATIONS:
            for direction in PASSES:
                if time.monotonic() < ends:
                    yield {**named, "implementation": implementation, "pass": direction, "length": length, "seed": 1, "dtype": "auto"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("--out", type=Path, help="the results as JSON")
    where.add_argument("--serve", action="store_true", help="rank 0 answers once when it starts, then a job a line, both JSON")
    parser.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto", help="auto: GPUs where there are some")
    parser.add_argument("--lengths", type=int, nargs="+", default=[1 << 15, 1 << 17, 1 << 18])
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--kv-heads", type=int, default=16)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--alpha", type=float, default=1.5)
    parser.add_argument("--temperature", type=float, default=2.449, help="T, the standard deviation of q")
    parser.add_argument("--heads-at-once", type=int, default=0, help="key heads that travel together; 0 chooses")
    parser.add_argument("--check", action="store_true", help="compare the ranks' arguments in each call")
    parser.add_argument("--calls", type=int, default=1, help="one behind the other in a sample, whose time is shared out")
    parser.add_argument("--samples", type=int, default=40, help="at most, of each time")
    parser.add_argument("--budget", type=float, default=0.6, help=f"seconds for each time; {LEAST} samples at least")
    parser.add_argument("--seconds", type=float, default=90, help="in all; what comes later is left out")
    a = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")  # NCCL and packages may print; only answers go to stdout
    os.dup2(2, 1)
    device, refused = device_of(a.device)
    if a.serve and os.environ.get("RANK") == "0":
        print(json.dumps({"unavailable": refused} if refused else {}), file=answers, flush=True)
    if refused:
        sys.exit(0 if a.serve else refused)
    ranks = Ranks(device)
    jobs = map(json.loads, sys.stdin) if a.serve else jobs_by_hand(a)
    results: list[dict[str, Any]] = []
    while job := ranks.told(next(jobs, None) if ranks.rank == 0 else None):
        found = answer(ranks, job)
        if ranks.rank > 0:
            continue
        if a.serve:
            print(json.dumps(found), file=answers, flush=True)
        else:
            results.append({**job, "ranks": 1 if job["implementation"] in ALONE else ranks.count, **found})
            told = f"{1e3 * statistics.median(found['seconds']):9.3f} ms of {len(found['seconds'])}" if "seconds" in found else found["unavailable"]
            print(f"{job['length']:>7} {job['implementation']:<25} {job['pass']:<17} {told}", file=answers, flush=True)
    if a.out and ranks.rank == 0:
        write(a.out, results)


def device_of(given: str) -> tuple[str, str]:
    """("cuda" or "cpu", why the ranks cannot start there, or "")."""
    if "RANK" not in os.environ:
        return given, "start it with torchrun, which says how many ranks there are: torchrun --standalone --nproc-per-node 2 …"
    found, ranks = torch.cuda.device_count(), int(os.environ["LOCAL_WORLD_SIZE"])
    device = given if given != "auto" else "cuda" if found else "cpu"
    if device == "cuda" and found < ranks:
        return device, f"{ranks} ranks take as many GPUs, and PyTorch finds {found or 'none'}"
    return device, ""


def write(path: Path, results: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as temporary:
        Path(temporary).write_text(json.dumps({"results": results}, indent=1))


if __name__ == "__main__":
    main()
    dist.destroy_process_group()  # behind main, whose graphs hold it
