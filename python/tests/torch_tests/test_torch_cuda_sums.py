"""Each row's probabilities sum to 1 on a GPU, whatever alpha, length and scores are: read off an output whose values are 1,
beside float64 on the CPU for values that differ."""

from __future__ import annotations

import pytest
from gpu_inputs import GPU, torch

from splash_attention import entmax, splash_attention

ALPHAS = [1.01, 1.02, 1.05, 1.25, 1.5, 1.75, 2.0]  # that attention takes on a GPU
QUERIES, DIM = 40, 64


def keys_of(pattern, n):
    """[1, 1, n, DIM], of which the first channel times a query of ones is the score, about; and how large queries are."""
    k = torch.zeros(1, 1, n, DIM, dtype=torch.float64)
    if pattern == "ties":
        return k + 0.25, 1.0
    if pattern == "near-equal":
        return 0.25 + 1e-6 * torch.randn_like(k), 1.0
    if pattern == "sink":
        k[:, :, 0] = 1.0
        return k + 0.01 * torch.randn_like(k), 2.0
    if pattern == "huge":
        return 100 * torch.randn_like(k), 10.0
    return torch.randn_like(k), {"broad": 0.05, "sparse": 3.0}[pattern]


def attention_case(pattern, n, dtype):
    k, spread = keys_of(pattern, n)
    if pattern in ("ties", "near-equal", "sink"):
        q = torch.full((1, 2, QUERIES, DIM), spread / DIM**0.5, dtype=torch.float64)
        q = q * torch.linspace(0.5, 2, QUERIES)[:, None]
    else:
        q = spread * torch.randn(1, 2, QUERIES, DIM, dtype=torch.float64)
    v = torch.randn(1, 1, n, DIM, dtype=torch.float64)
    v[..., 0] = 1
    return [t.to(dtype) for t in (q, k, v)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pattern", ["ties", "near-equal", "sink", "broad", "sparse", "huge"])
@pytest.mark.parametrize("n", [1, 300, 5000, 200_000])
def test_of_attention(pattern, n, dtype):
    given = attention_case(pattern, n, dtype)
    rounding = {torch.float32: 0.0, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}[dtype]
    wrong = []
    for alpha in ALPHAS:
        mine = [t.to(GPU).requires_grad_() for t in given]
        out, aux = splash_attention(*mine, alpha=alpha, return_aux=True)
        plain = splash_attention(*mine, alpha=alpha)
        gradient = torch.autograd.grad(plain[..., 1:].float().square().sum(), mine)
        for result in (out, plain):
            off = (result[..., 0].double() - 1).abs().max().item()
            if not off <= 1e-5 + rounding:
                wrong.append(f"alpha {alpha}: the sum is off by {off:.2g}")
        if n <= 5000:
            p = aux.probabilities().to_dense().double().sum(-1)
            off = (p - 1).abs().max().item()
            if not off <= 1e-5 + 20 * rounding:
                wrong.append(f"alpha {alpha}: the probabilities' sum is off by {off:.2g}")
        few = [given[0][:, :, ::8], *given[1:]]
        wide = [t.double().requires_grad_() for t in few]
        reference = splash_attention(*wide, alpha=alpha)
        error = (plain[:, :, ::8].double().cpu() - reference).norm() / reference.norm()
        # Scores in float32 are known to 10^-7, and 200,000 keys that are nearly equal have p of 5·10^-6 at alpha 2.
        if not error <= (3e-4 if pattern == "near-equal" else 1e-4) + 2 * rounding:
            wrong.append(f"alpha {alpha}: out's error is {error:.2g}")
        if pattern not in ("broad", "sparse") or n == 1:
            continue  # where keys are equal, or one has it all, dQ is a sum of which nothing is left
        # A row's gradient depends on that row alone.
        (d_q,) = torch.autograd.grad(reference[..., 1:].square().sum(), wide[:1])
        compared = clear_of_threshold(few, alpha, "cpu") if alpha == 2 else 1
        error = (compared * (gradient[0][:, :, ::8].double().cpu() - d_q)).norm() / d_q.norm()
        if not error <= 2e-3 + 20 * rounding:
            wrong.append(f"alpha {alpha}: dQ's error is {error:.2g}")
    assert not wrong, "; ".join(wrong)


def clear_of_threshold(given, alpha, device=GPU):
    """[1, 2, queries, 1]: whether float32 tells of each key if it exceeds the row's tau. At alpha 2 a row's gradient jumps where a
    key enters the support: by a hundredth and more of dQ, where no row has more than some hundred keys."""
    q, k, v = (t.to(device, torch.float64) for t in given)
    z = (alpha - 1) * DIM**-0.5 * (q @ k.mT)
    tau = splash_attention(q, k, v, alpha=alpha, return_aux=True)[1].tau
    clear = ((z - tau[..., None]).abs() > 2.0**-18 * z.abs().amax(-1, keepdim=True)).all(-1, keepdim=True)
    assert clear.double().mean() > 0.75
    return clear


# Where keys are equal, or one has all of a row, dQ or dK is a sum of which nothing is left.
COMPARED = {"ties": "dk dv", "near-equal": "dv", "sink": "dq dk dv", "broad": "dq dk dv", "sparse": "dq dk dv"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("pattern", COMPARED)
@pytest.mark.parametrize("n", [300, 5000, 200_000])
def test_of_gradients(pattern, n, dtype):
    """Beside float64 in three steps (dense.py), on the same GPU."""
    given = attention_case(pattern, n, dtype)
    all_rows = torch.randn(1, 2, QUERIES, DIM).to(GPU, dtype)
    # In float32 a score is known to 10^-7: much where 200,000 keys have p of 5 * 10^-6 each.
    bound = {torch.float32: 2e-2 if pattern == "near-equal" else 1e-3, torch.float16: 1e-2, torch.bfloat16: 6e-2}[dtype]
    wrong = []
    for alpha in ALPHAS:
        results, d_out = [], all_rows
        if alpha == 2 and "dq" in COMPARED[pattern]:
            d_out = all_rows * clear_of_threshold(given, alpha)
        for kind in (dtype, torch.float64):
            inputs = [t.to(GPU, kind).requires_grad_() for t in given]
            out = splash_attention(*inputs, alpha=alpha)
            results.append(torch.autograd.grad(out, inputs, d_out.to(kind)))
        least = {}
        if pattern == "sink" and alpha == 2 and dtype != torch.float32:  # where each row has one key, dQ is 0: of terms known to 16 bits
            of_k, of_v = (t.double().norm(dim=-1).max() for t in given[1:])
            least["dq"] = (d_out.double().norm().cpu() * of_k * of_v).item() * DIM**-0.5 / 512
        for name, mine, exact in zip(("dq", "dk", "dv"), *results):
            rounded = exact.to(dtype).double()  # float16 has nothing below 6 * 10^-8
            # Where each row has one key, dQ and dK are 0.
            error = ((mine.double() - rounded).norm() / exact.norm().clamp(min=least.get(name, 1e-6))).item()
            if name in COMPARED[pattern] and not error <= bound:
                wrong.append(f"alpha {alpha}: {name}'s error is {error:.2g}")
    assert not wrong, "; ".join(wrong)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("n", [1, 2, 3, 1000, 8192, 20_000, 1_000_000])
def test_of_rows(n, dtype):
    patterns = {
        "ties": torch.zeros(n),
        "near-equal": 1e-6 * torch.randn(n),
        "one above": torch.cat([torch.full((1,), 0.1), torch.zeros(n - 1)]),
        "sink": torch.cat([torch.full((1,), 0.9), torch.zeros(n - 1)]),
        "spread": 3 * torch.randn(n),
        "huge": 1e4 * torch.randn(n),
    }
    x = torch.stack(list(patterns.values())).to(dtype)
    bound = {torch.float64: 1e-9, torch.float32: 1e-5, torch.bfloat16: 1e-2}[dtype]
    wrong = []
    for alpha in [1.000001, 1.0001, *ALPHAS, 2.5, 4.0, 10.0, 64.0]:
        p = entmax(x.to(GPU), alpha).cpu().double()
        reference = entmax(x.double(), alpha)
        for name, mine, exact in zip(patterns, p, reference):
            off, error = (mine.sum() - 1).abs().item(), (mine - exact).abs().max().item()
            if not (off <= bound and error <= bound):
                wrong.append(f"{name}, alpha {alpha}: the sum is off by {off:.2g}, p by {error:.2g}")
    assert not wrong, "; ".join(wrong)
