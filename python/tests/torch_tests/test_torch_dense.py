"""Attention by a matrix of scores, on the CPU, against the library's own: it is what a GPU falls back on."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention.backends.host_arrays import make_spec  # noqa: E402
from splash_attention.backends.torch import operators  # noqa: E402
from splash_attention.backends.torch import dense as torch_dense  # noqa: E402

BATCH, HEADS, KV_HEADS, ROWS, KEYS, DIM = 2, 4, 2, 23, 37, 12
SEQUENCES = ([0, 5, 5, 23], [0, 11, 14, 37])
NAMES = ("out", "tau", "support", "peak", "dq", "dk", "dv", "dalpha")
MASKS = ["full", "causal", "positions", "positions of heads", "packed", "packed causal", "window", "packed window", "window and positions", "window to both sides", "nothing seen"]


def masked(mask: str) -> tuple[bool, int, list]:
    """causal, the window, and the operator's tables."""
    window = 6 if "window" in mask else 0
    if mask.startswith("packed"):
        return mask.endswith(("causal", "window")), window, [None, None, *(torch.tensor(part) for part in SEQUENCES)]
    if mask == "nothing seen":
        return True, 0, [torch.zeros(ROWS, dtype=torch.int64), torch.full((KEYS,), 9), None, None]
    if mask.endswith(("positions", "positions of heads")):
        shape = (BATCH, HEADS) if mask.endswith("heads") else (BATCH,)
        return window > 0, window, [torch.randint(0, 30, (*shape, ROWS)), torch.randint(0, 40, (*shape, KEYS)), None, None]
    return mask in ("causal", "window"), window, [None] * 4


def problem_of(alpha, causal, scale, k_keep, tables, window=0):
    """As cuda.py makes it, and the operator's arguments."""
    values, number = (alpha, 0.0) if isinstance(alpha, torch.Tensor) else (None, alpha)
    *positions, cu_q, cu_k = tables
    ranges = None
    if cu_q is not None:
        spec = make_spec((BATCH, HEADS, KV_HEADS, ROWS, KEYS, DIM), [1.5], causal, 0.0, 0, window, [None, None, cu_q.numpy(), cu_k.numpy()])
        ranges = torch.from_numpy(spec.key_ranges())
    dense = torch_dense.Problem(values, number, causal, scale or DIM**-0.5, k_keep, window, ranges, *positions)
    return dense, operators.Problem(values, number, causal, scale, k_keep, window, 0.0, 0.0, 0, *tables)


def inputs(dtype=torch.float64, factor=3.0):
    q = factor * torch.randn(BATCH, HEADS, ROWS, DIM)
    k, v = (torch.randn(BATCH, KV_HEADS, KEYS, DIM) for _ in range(2))
    return [x.to(dtype) for x in (q, k, v)]


def both(given, dense, problem, exact=torch.float64):
    """(mine, the library's): out, tau, support, peak, dq, dk, dv, dalpha."""
    d_out = torch.randn(given[0].shape).to(given[0].dtype)
    precise = [x.to(exact) for x in given]
    mine = (*torch_dense.forward(*given, dense), *torch_dense.backward(d_out, *given, dense))
    nothing = torch.empty(0, dtype=torch.uint8)
    theirs = (
        *operators.attention_cpu(*precise, *problem, True, True, -1)[:4],
        *operators.attention_backward_cpu(d_out.to(exact), *precise, *problem, nothing)[:4],
    )
    return mine, theirs


@pytest.fixture(autouse=True)
def some_rows_at_once(monkeypatch):
    monkeypatch.setattr(torch_dense, "SCORES_AT_ONCE", 9 * BATCH * HEADS * KEYS)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("k_keep", [0, 3])
@pytest.mark.parametrize("alpha", [1.000001, 1.005, 1.5, 2.5, 64.0, "of each head"])
def test_it_is_the_librarys(alpha, k_keep, mask):
    alpha = torch.tensor([1.005, 1.3, 2.0, 5.0], dtype=torch.float64) if alpha == "of each head" else alpha
    causal, window, tables = masked(mask)
    dense, problem = problem_of(alpha, causal, 0.7, k_keep, tables, window)
    given = inputs()
    mine, theirs = both(given, dense, problem)
    for name, a, b in zip(NAMES, mine, theirs):
        assert a.dtype == b.dtype and a.shape == b.shape, name
        # The library gets dL/dalpha from tau, this from the rows' p: near 1 both lose digits.
        bound = 1e-4 if name == "dalpha" else 1e-9
        torch.testing.assert_close(a, b, atol=bound, rtol=bound, msg=lambda text, name=name: f"{name}: {text}")
    offsets, columns, values = torch_dense.probabilities(*given[:2], dense)
    expected = torch.ops.splash_attention.probabilities(*given[:2], *problem)
    assert torch.equal(offsets, expected[0]) and torch.equal(columns, expected[1])
    torch.testing.assert_close(values, expected[2])


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 2e-5), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)])
def test_narrower_types_and_other_scales(dtype, bound):
    for scale in (0.0, -0.3):
        # Not above 1.5: a gradient weighs a key that is u above tau by u^((2 - alpha) / (alpha - 1)), which then is ever steeper near 0.
        dense, problem = problem_of(1.5, True, scale, 0, [None] * 4)
        mine, theirs = both(inputs(dtype), dense, problem)
        for a, b in zip((mine[0], *mine[4:7]), (theirs[0], *theirs[4:7])):
            assert a.dtype == dtype and (a.double() - b).norm() < bound * b.norm()


def test_what_is_not_finite_stays_where_it_counts():
    q, k, v = inputs()
    q[0, 0, 4] = torch.nan
    k[0, 1, 6:9] = torch.inf
    k[1, 0, 20] = torch.nan  # hidden but for the last rows
    v[1, 1, 5] = torch.nan
    v[1, 0, 36] = torch.inf
    dense, problem = problem_of(2.5, True, 0.7, 0, [None] * 4)
    mine, theirs = both((q, k, v), dense, problem)
    for name, a, b in zip(NAMES, mine, theirs):
        assert torch.equal(a.isfinite(), b.isfinite()), name
        torch.testing.assert_close(a[a.isfinite()], b[b.isfinite()])


def test_huge_scores_and_ties():
    dense, problem = problem_of(3.0, False, 0.0, 5, [None] * 4)
    for factor in (0.0, 1e4):
        mine, theirs = both(inputs(factor=factor), dense, problem)
        for a, b in zip(mine, theirs):
            torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)
    assert np.isfinite(mine[0].numpy()).all()
