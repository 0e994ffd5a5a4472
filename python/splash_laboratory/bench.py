"""python -m splash_laboratory.bench: exact entmax attention beside PyTorch's dense attention and, where they are installed,
the packages adasplash and entmax, on the same inputs in one run.

Times on stdout; with --out a report (docs/report-format.md) too. Implementations take turns, so that a clock that falls
falls for all. Caches are warm: the inputs of one call are those of the next.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import platform
import sys
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from splash_attention import splash_attention
from splash_attention.files.whole_file import prepare_place

USAGE = 2
CHECKED_QUERIES = 64  # the last ones of each head, against float64
EXAMPLES = """\
examples:
  python -m splash_laboratory.bench --shape 1,16,16,16384,16384,64 --causal --backward
  python -m splash_laboratory.bench --device cpu --shape 1,8,8,2048,2048,64 --dtype float32 --out bench.h5
  python -m splash_laboratory.bench --inputs heads.h5 --layer 12     (of splash_attention.capture)
"""
Call = Callable[[Tensor, Tensor, Tensor], Tensor]


def implementations(words: argparse.Namespace) -> dict[str, Call]:
    """Name -> what computes attention of (q, k, v)."""
    causal, alpha, scale = words.causal, words.alpha, words.scale

    def dense(backend: SDPBackend) -> Call:
        def call(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            with sdpa_kernel(backend):
                return scaled_dot_product_attention(q, k, v, is_causal=causal, scale=scale, enable_gqa=q.shape[1] != k.shape[1])

        return call

    calls: dict[str, Call] = {"splash": lambda q, k, v: splash_attention(q, k, v, alpha=alpha, causal=causal, scale=scale)}
    backends = ["FLASH_ATTENTION", "MATH"] + (["CUDNN_ATTENTION", "EFFICIENT_ATTENTION"] if words.device == "cuda" else [])
    for name in backends:
        calls["torch-" + name.split("_")[0].lower()] = dense(getattr(SDPBackend, name))
    with contextlib.suppress(ImportError):
        import entmax

        row = {1.5: entmax.entmax15, 2.0: entmax.sparsemax}.get(alpha, lambda x, dim: entmax.entmax_bisect(x, alpha, dim))

        def unfused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            group = q.shape[1] // k.shape[1]
            scores = q @ k.repeat_interleave(group, 1).transpose(-1, -2) * scale
            if causal:
                hidden = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device)
                scores = scores.masked_fill(hidden.triu(scores.shape[-1] - scores.shape[-2] + 1), -torch.inf)
            return row(scores, dim=-1) @ v.repeat_interleave(group, 1)

        calls["entmax"] = unfused
    if words.device == "cuda" and scale == words.shape[-1] ** -0.5:  # adasplash has no other
        with contextlib.suppress(ImportError):
            from adasplash import adasplash

            calls["adasplash"] = lambda q, k, v: adasplash(q, k, v, alpha=alpha, is_causal=causal)
    return {name: call for name, call in calls.items() if not words.only or name in words.only}


def inputs(words: argparse.Namespace) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q of the given variance, k, v and dO of variance 1; or those of a capture."""
    batch, q_heads, kv_heads, q_len, kv_len, dim = words.shape
    generator = torch.Generator(words.device).manual_seed(words.seed)

    def normal(heads: int, length: int, variance: float = 1.0) -> Tensor:
        values = torch.randn(batch, heads, length, dim, generator=generator, device=words.device)
        return (values * variance**0.5).to(getattr(torch, words.dtype))

    if words.captured:
        q, k, v = (t.to(words.device, getattr(torch, words.dtype)).detach() for t in words.captured)
        return q, k, v, normal(q_heads, q_len)
    return normal(q_heads, q_len, words.query_variance), normal(kv_heads, kv_len), normal(kv_heads, kv_len), normal(q_heads, q_len)


def step_of(call: Call, words: argparse.Namespace) -> tuple[Callable[[], Any], Tensor]:
    """(one measured step, its output)."""
    q, k, v, d_out = inputs(words)
    if not words.backward:
        with torch.no_grad():
            out = call(q, k, v)

        def forward() -> None:
            with torch.no_grad():
                call(q, k, v)

        return forward, out
    leaves = [t.requires_grad_() for t in (q, k, v)]
    return lambda: torch.autograd.grad(call(*leaves), leaves, d_out), call(*leaves).detach()


def seconds(step: Callable[[], Any], device: str) -> float:
    if device == "cpu":
        begin = time.perf_counter()
        step()
        return time.perf_counter() - begin
    events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
    torch.cuda.synchronize()
    events[0].record()
    step()
    events[1].record()
    torch.cuda.synchronize()
    return events[0].elapsed_time(events[1]) / 1e3


def error_of(out: Tensor, words: argparse.Namespace) -> float:
    """nmse of the last queries of the first head against entmax in float64, on the CPU."""
    q, k, v, _ = inputs(words)
    last = min(CHECKED_QUERIES, q.shape[2])
    exact = splash_attention(
        *(t[:1, :1].double().cpu() for t in (q[:, :, -last:], k, v)), alpha=words.alpha, causal=words.causal, scale=words.scale
    )
    difference = out[:1, :1, -last:].double().cpu() - exact
    return float(difference.square().sum() / exact.square().sum())


def interval(samples: np.ndarray) -> tuple[float, float]:
    """Of the median, some 95 %, from order statistics."""
    ordered, n = np.sort(samples), len(samples)
    reach = int(np.ceil(0.98 * n**0.5))
    return float(ordered[max(0, (n - 1) // 2 - reach)]), float(ordered[min(n - 1, n // 2 + reach)])


def measure(words: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A case an implementation; those that refuse the problem are named on stderr."""
    steps, errors = {}, {}
    for name, call in implementations(words).items():
        try:
            steps[name], out = step_of(call, words)
        except (RuntimeError, NotImplementedError, ValueError, TypeError) as error:
            print(f"skipped {name}: {str(error).splitlines()[0]}", file=sys.stderr)
            continue
        errors[name] = None if name.startswith("torch-") else error_of(out, words)
        for _ in range(2):
            steps[name]()
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(words.samples):
        for name, step in steps.items():
            times[name].append(seconds(step, words.device))
    for name, samples in times.items():
        low, high = interval(np.array(samples))
        yield {
            "implementation": name, "time": samples, "time_median": float(np.median(samples)), "time_low": low,
            "time_high": high, "nmse": errors[name],
        }  # fmt: skip


def write(cases: list[dict[str, Any]], words: argparse.Namespace, started: str) -> None:
    from splash_laboratory.report_writer import Table, write_report

    parameters = dict(zip(("batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim"), words.shape))
    parameters |= {"dtype": words.dtype, "alpha": words.alpha, "causal": int(words.causal)}
    parameters |= {"pass": "forward+backward" if words.backward else "forward"}
    if words.captured:
        parameters |= {"inputs": words.inputs.name, "layer": words.layer, "scale": words.scale}
    else:
        parameters |= {"query_variance": words.query_variance}
    described = {name: ("text" if isinstance(value, str) else "1", name, "set by the run") for name, value in parameters.items()}
    described |= {
        "experiment": ("text", "experiment", "python -m splash_laboratory.bench"),
        "case_id": ("text", "identifier of the case", "its number"),
        "implementation": ("text", "who computed", "torch-: softmax of PyTorch's backends; others: entmax"),
        "time": ("s", "time of one call", "wall clock on a CPU, events on a GPU; caches warm"),
        "time_median": ("s", "median time of one call", "median of time"),
        "time_low": ("s", "lower end of the median's 95 % interval", "order statistics of time"),
        "time_high": ("s", "upper end of the median's 95 % interval", "order statistics of time"),
        "nmse": ("1", "error of the output", f"against entmax in float64, last {CHECKED_QUERIES} queries of the first head"),
    }
    results = Table("results", "case", described, {*parameters, "implementation"})
    for at, case in enumerate(cases):
        results.add(experiment="bench", case_id=str(at), **parameters, **{k: v for k, v in case.items() if v is not None})
    gpu = torch.cuda.get_device_name() if words.device == "cuda" else "none"
    packages = ("splash-attention", "torch", "adasplash", "entmax")
    provenance = {
        "argv": " ".join(["python -m splash_laboratory.bench", *words.given]),
        "seed": words.seed,
        "cpu": platform.processor() or platform.machine(),
        "threads": torch.get_num_threads(),
        "gpu": gpu,
        "toolchain": ", ".join(f"{name} {_version(name)}" for name in packages),
        "started": started,
        "finished": _now(),
    }
    readme = "Times of exact entmax attention and its peers.\n\nimport xarray\nxarray.open_dataset(FILE, group='results', engine='h5netcdf')\n"
    samples = {"time": ("sample", np.arange(words.samples))}
    write_report(words.out, "Entmax attention beside its peers", readme, [results], samples, provenance)


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed as a package"


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def _shape(text: str) -> tuple[int, ...]:
    extents = tuple(int(part) for part in text.split(","))
    if len(extents) != 6 or min(extents) < 1:
        raise ValueError
    return extents


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m splash_laboratory.bench", description="Exact entmax attention beside its peers, in one run.",
        epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--shape", type=_shape, default=(1, 8, 8, 2048, 2048, 64), metavar="B,H,Hkv,Nq,Nk,d")
    parser.add_argument("--dtype", choices=("float32", "bfloat16", "float16"), help="default: bfloat16 on a GPU, else float32")
    parser.add_argument("--alpha", type=float, default=1.5)
    parser.add_argument("--causal", action="store_true")
    parser.add_argument("--backward", action="store_true", help="both passes")
    parser.add_argument("--query-variance", type=float, default=6.0, help="6: sparse; towards 0: every key has a weight")
    parser.add_argument("--samples", type=int, default=15)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", action="append", metavar="NAME", help="one implementation; may be given again")
    parser.add_argument("--inputs", type=Path, metavar="FILE.h5", help="a model's heads, in place of --shape and --causal: splash_attention.capture")
    parser.add_argument("--layer", type=int, default=0, help="of --inputs")
    parser.add_argument("--out", type=Path, metavar="FILE.h5", help="write a report")
    return parser


def main(arguments: list[str] | None = None) -> int:
    """Returns 0, or 2 where nothing could be measured."""
    words = _parser().parse_args(arguments)
    words.given = sys.argv[1:] if arguments is None else arguments
    words.dtype = words.dtype or ("bfloat16" if words.device == "cuda" else "float32")
    started = _now()
    words.captured, words.scale = (), words.shape[-1] ** -0.5
    if words.inputs:
        from splash_attention.captures import read_capture

        try:
            *words.captured, words.scale, words.causal = read_capture(words.inputs, layer=words.layer)
        except (OSError, ValueError) as error:
            print(f"error: {error}", file=sys.stderr)
            return USAGE
        q, k, _ = words.captured
        words.shape = (*q.shape[:2], k.shape[1], q.shape[2], k.shape[2], q.shape[3])
    if words.out:
        try:
            prepare_place(words.out)
        except OSError as error:
            print(f"error: {words.out}: cannot be written ({error.strerror or error})", file=sys.stderr)
            return USAGE
    cases = sorted(measure(words), key=lambda case: case["time_median"])
    if not cases:
        print("error: no implementation could be measured", file=sys.stderr)
        return USAGE
    ours = next((case["time_median"] for case in cases if case["implementation"] == "splash"), None)
    print(f"{'implementation':18} {'ms':>10} {'95 % interval':>21} {'its time / ours':>16} {'nmse':>9}")
    for case in cases:
        ratio = f"{case['time_median'] / ours:.2f}" if ours else ""
        error = "" if case["nmse"] is None else f"{case['nmse']:.1e}"
        low, high = 1e3 * case["time_low"], 1e3 * case["time_high"]
        print(f"{case['implementation']:18} {1e3 * case['time_median']:10.3f} {low:10.3f} {high:10.3f} {ratio:>16} {error:>9}")
    if words.out:
        write(cases, words, started)
        print(words.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
