"""Both passes on a GPU at every shape of every recorded table, of real models, and on captured heads: against float64 on
the CPU for the last queries of each head, whose rows see all keys."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gpu_inputs import BOUND, GPU, close, leaves, torch

from splash_attention import splash_attention

ROOT = Path(__file__).resolve().parents[3]
CHECKED = 8  # queries of each head
EXTENTS = ("batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim")
# (batch, query heads, key heads, queries, keys, head_dim), dtype, causal, standard deviation of the queries, alpha
MODELS = [
    ((1, 9, 3, 8192, 8192, 64), "bfloat16", True, 2.4, 1.5),  # SmolLM2-135M
    ((4, 9, 3, 8192, 8192, 64), "bfloat16", True, 2.4, 1.25),
    ((8, 9, 3, 2048, 2048, 64), "bfloat16", True, 2.4, 1.5),
    ((1, 32, 8, 8192, 8192, 128), "bfloat16", True, 2.0, 1.5),  # Llama-3.1-8B
    ((2, 32, 8, 8192, 8192, 128), "float16", True, 2.0, 1.5),
    ((1, 7, 7, 12345, 12345, 96), "bfloat16", True, 2.0, 1.5),  # lengths that no tile divides
    ((1, 6, 2, 5000, 5000, 64), "float16", False, 1.7, 1.5),
    ((1, 4, 4, 9001, 9001, 256), "bfloat16", True, 2.0, 1.5),
    ((1, 8, 8, 10007, 10007, 64), "float32", True, 2.0, 1.5),
    ((1, 32, 8, 16, 20011, 128), "bfloat16", True, 2.0, 1.5),  # few queries, many keys
]


def recorded():
    """The entmax problems of the recorded reports, each once."""
    h5py = pytest.importorskip("h5py", reason="h5py is not installed; ./splash test installs it")
    found = {}
    for path in sorted((ROOT / "data" / "reports").glob("*.h5")):
        with h5py.File(path) as file:
            results = file["results"]
            if not {"q_heads", "mask", "selection"} <= set(results):  # decoding has neither
                continue
            read = lambda name: results[name].asstr()[:] if results[name].dtype.kind == "O" else results[name][:]
            columns = {name: read(name) for name in (*EXTENTS, "dtype", "mask", "normalizer", "selection", "alpha", "query_variance")}
        for i, normalizer in enumerate(columns["normalizer"]):
            case = {name: values[i] for name, values in columns.items()}
            if normalizer != "entmax" or case["selection"] != "all" or case["mask"] not in ("none", "causal"):
                continue
            shape = tuple(int(case[name]) for name in EXTENTS)
            variance = case["query_variance"]
            spread = float(np.sqrt(variance)) if np.isfinite(variance) else 2.0
            found[shape, case["dtype"], case["mask"] == "causal", spread, float(case["alpha"])] = None
    assert found, "the recorded reports hold no entmax problem"
    return list(found)


def name_of(problem):
    shape, dtype, causal, spread, alpha = problem
    return f"{'x'.join(map(str, shape))}-{dtype}-{'causal' if causal else 'full'}-T{spread:.3g}-a{alpha}"


def check_both_passes(q, k, v, causal, alpha, scale=None):
    """The last rows, of which d_out is not zero in a first backward pass; then all rows, on the same forward."""
    dtype, rows = q.dtype, min(CHECKED, q.shape[2])
    d_last = torch.zeros(q.shape, device=GPU, dtype=dtype)
    d_last[:, :, -rows:] = torch.randn(*q.shape[:2], rows, q.shape[3], device=GPU).to(dtype)
    mine = leaves((q, k, v), GPU)
    out = splash_attention(*mine, alpha=alpha, causal=causal, scale=scale)
    assert torch.equal(out, splash_attention(q, k, v, alpha=alpha, causal=causal, scale=scale))  # without gradients
    gradients = torch.autograd.grad(out, mine, d_last, retain_graph=True)
    wide = leaves((q[:, :, -rows:], k, v), torch.device("cpu"), torch.float64)
    reference = splash_attention(*wide, alpha=alpha, causal=causal, scale=scale)
    expected = torch.autograd.grad(reference, wide, d_last[:, :, -rows:].double().cpu())
    close(out[:, :, -rows:], reference, dtype)
    close(gradients[0][:, :, -rows:], expected[0], dtype)
    for gradient, wanted in zip(gradients[1:], expected[1:]):
        close(gradient, wanted, dtype)
    d_all = torch.randn(q.shape, device=GPU).to(dtype)
    d_all[:, :, -rows:] = d_last[:, :, -rows:]
    again = torch.autograd.grad(out, mine, d_all)
    assert torch.equal(again[0][:, :, -rows:], gradients[0][:, :, -rows:])
    assert all(gradient.isfinite().all() for gradient in again)
    # Each row's probabilities sum to 1, so over the keys dV sums to what d_out sums to over the rows, of all rows.
    group = q.shape[1] // k.shape[1]
    of_rows = d_all.double().sum(2).unflatten(1, (-1, group)).sum(2)
    d_v = again[2].double()
    left = (d_v.sum(2) - of_rows).norm() / d_v.norm(dim=2).norm()
    assert left < BOUND[dtype], float(left)


@pytest.mark.parametrize("problem", recorded() + MODELS, ids=name_of)
def test_both_passes_at_the_shapes_of_tables_and_models(problem):
    (batch, q_heads, kv_heads, q_len, kv_len, dim), dtype, causal, spread, alpha = problem
    kind = getattr(torch, dtype)
    q = (spread * torch.randn(batch, q_heads, q_len, dim, device=GPU)).to(kind)
    k, v = (torch.randn(batch, kv_heads, kv_len, dim, device=GPU).to(kind) for _ in range(2))
    check_both_passes(q, k, v, causal, alpha)


@pytest.mark.parametrize("text", ["gpl-3", "gfdl-1.3"])
@pytest.mark.parametrize("alpha", [1.25, 1.5, 2.0])
@pytest.mark.parametrize("causal", [False, True])
def test_captured_heads(text, alpha, causal):
    h5py = pytest.importorskip("h5py", reason="h5py is not installed; ./splash test installs it")
    with h5py.File(ROOT / "data" / "captures" / "minilm.h5") as file:
        q, k, v = (torch.from_numpy(file[text][name][:].astype(np.float16)).to(GPU) for name in "qkv")
    for kind in (torch.float16, torch.bfloat16, torch.float32):
        check_both_passes(q.to(kind), k.to(kind), v.to(kind), causal, alpha)
        check_both_passes(q[:, :8].to(kind), k[:, :2].to(kind), v[:, :2].to(kind), causal, alpha)


@pytest.mark.parametrize("problem", [problem for problem in MODELS if problem[0][3] > 4096], ids=name_of)
def test_a_compiled_call_is_told_the_same_sizes(problem):
    (batch, q_heads, kv_heads, q_len, kv_len, dim), dtype, causal, spread, alpha = problem
    kind = getattr(torch, dtype)
    q = (spread * torch.randn(batch, q_heads, q_len, dim, device=GPU)).to(kind).requires_grad_()
    k, v = (torch.randn(batch, kv_heads, kv_len, dim, device=GPU).to(kind).requires_grad_() for _ in range(2))
    call = lambda *inputs: splash_attention(*inputs, alpha=alpha, causal=causal)
    expected = torch.autograd.grad(call(q, k, v).square().sum(), (q, k, v))
    for dynamic in (False, True):
        torch.compiler.reset()
        compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
        for mine, reference in zip(torch.autograd.grad(compiled(q, k, v).square().sum(), (q, k, v)), expected):
            assert torch.equal(mine, reference)


def test_every_run_gives_the_same_bits_where_most_warps_hold_a_slot():
    """Supports are broad, so lists of nearly all warps go on in the workspace, and those of the sparse rows stay when others outgrow it."""
    random = torch.Generator(GPU).manual_seed(7)
    q, k, v = (torch.randn(1, 9, 32768, 64, device=GPU, generator=random) for _ in range(3))
    q *= 0.5
    q[:, :, ::37] *= 5
    q, k, v = (x.bfloat16() for x in (q, k, v))
    first, *others = (splash_attention(q, k, v, causal=True, return_aux=True) for _ in range(40))
    differing = [not (torch.equal(out, first[0]) and torch.equal(aux.tau, first[1].tau)) for out, aux in others]
    assert sum(differing) == 0
