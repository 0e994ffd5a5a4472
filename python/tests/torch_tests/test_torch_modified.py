"""Attention of modified scores against bisection in float64, with gradients."""

from __future__ import annotations

import warnings

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
import bisection  # noqa: E402

from splash_attention import splash_attention  # noqa: E402
from splash_attention.backends.torch import dense, modified  # noqa: E402

BATCH, HEADS, KV_HEADS, ROWS, KEYS, DIM, WIDTH = 2, 4, 2, 9, 13, 8, 5
ALPHAS = [1.2, 1.5, 1.7, 2.0]


@pytest.fixture(autouse=True)
def some_rows_at_once(monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(dense, "SCORES_AT_ONCE", 4 * BATCH * HEADS * KEYS)


def leaf(*shape, dtype=torch.float64, factor=1.0):
    return (factor * torch.randn(shape, dtype=torch.float64)).to(dtype).requires_grad_()


def inputs(dtype=torch.float64):
    return [leaf(BATCH, HEADS, ROWS, DIM, dtype=dtype, factor=2), leaf(BATCH, KV_HEADS, KEYS, DIM, dtype=dtype),
            leaf(BATCH, KV_HEADS, KEYS, WIDTH, dtype=dtype)]  # fmt: skip


def causal_mask():
    return torch.ones(ROWS, KEYS, dtype=torch.bool).tril(KEYS - ROWS)


def gradients(out, leaves, d_out):
    return torch.autograd.grad((out.double() * d_out).sum(), leaves)


def case(name):
    """(arguments, the oracle's, leaves)."""
    starts = modified.window_starts(4, ROWS, KEYS)
    window = causal_mask() & (torch.arange(KEYS) >= starts[:, None])
    if name == "window":
        return {"causal": True, "first_keys": starts}, {"mask": window}, []
    if name == "mask of heads":
        mask = torch.rand(1, HEADS, ROWS, KEYS) < 0.4
        mask[0, 1, 3] = False  # a row that sees nothing
        return {"mask": mask}, {"mask": mask}, []
    if name == "padding":
        mask = torch.arange(KEYS) < torch.tensor([5, 13])[:, None, None, None]
        return {"mask": mask}, {"mask": mask}, []
    if name in ("bias", "bias of keys"):
        bias = leaf(*((BATCH, HEADS, ROWS, KEYS) if name == "bias" else (HEADS, 1, KEYS)))
        return {"bias": bias, "causal": True}, {"bias": bias, "mask": causal_mask()}, [bias]
    if name == "softcap":
        return {"softcap": 2.0, "scale": 0.9}, {"softcap": 2.0, "scale": 0.9}, []
    if name == "sinks":
        sinks = leaf(HEADS)
        return {"sinks": sinks, "causal": True}, {"sinks": sinks, "mask": causal_mask()}, [sinks]
    if name == "k_keep":
        keep = [3, 0, 1, 20]
        return {"k_keep": keep, "causal": True}, {"k_keep": keep, "mask": causal_mask()}, []
    bias, sinks = leaf(BATCH, 1, ROWS, KEYS), leaf(HEADS)
    given = {"bias": bias, "sinks": sinks, "softcap": 3.0, "k_keep": [2, 5, 0, 4]}
    return {**given, "causal": True, "first_keys": starts}, {**given, "mask": window}, [bias, sinks]


CASES = ["window", "mask of heads", "padding", "bias", "bias of keys", "softcap", "sinks", "k_keep", "all"]


@pytest.mark.parametrize("name, learned", [*((name, True) for name in CASES), ("all", False)])
def test_it_is_bisections(name, learned):
    q, k, v = inputs()
    given, theirs, leaves = case(name)
    alpha = torch.tensor(ALPHAS, dtype=torch.float64, requires_grad=True) if learned else 1.5
    out, p = modified.attention(q, k, v, alpha=alpha, return_probabilities=True, **given)
    expected, theirs_p = bisection.attention(q, k, v, alpha=alpha, **theirs)
    torch.testing.assert_close(out, expected, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(p, theirs_p, atol=1e-9, rtol=1e-9)
    leaves, d_out = [q, k, v, *leaves, *([alpha] if learned else [])], torch.randn_like(out)
    for mine, other in zip(gradients(out, leaves, d_out), gradients(expected, leaves, d_out), strict=True):
        torch.testing.assert_close(mine, other, atol=2e-7, rtol=2e-7)


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 2e-5), (torch.float16, 3e-3), (torch.bfloat16, 2e-2)])
def test_narrower_types(dtype, bound):
    q, k, v = inputs(dtype)
    given, theirs, leaves = case("all")
    out, expected = modified.attention(q, k, v, **given), bisection.attention(q, k, v, **theirs)[0]
    assert out.dtype == dtype
    d_out = torch.randn_like(expected)
    mine, other = (gradients(o, [q, k, v, *leaves], d_out) for o in (out, expected))
    for a, b in zip((out, *mine), (expected, *other)):
        assert (a.double() - b.double()).norm() < bound * b.double().norm()


def test_the_same_where_kernels_take_it():
    q, k, v = inputs()
    v = k.detach() + 1
    for call in ({"causal": True}, {"k_keep": 2, "scale": -0.4, "alpha": ALPHAS}):
        torch.testing.assert_close(modified.attention(q, k, v, **call), splash_attention(q, k, v, **call))


def dropped(q, k, v):
    return modified.attention(q, k, v, causal=True, dropout=0.4, return_probabilities=True)


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_dropout_is_the_same_in_backward(compiled):
    q, k, v = inputs()
    call = torch.compile(dropped, fullgraph=True, backend="aot_eager") if compiled else dropped
    torch.manual_seed(5)
    out, p = call(q, k, v)
    torch.manual_seed(5)
    assert torch.equal(call(q, k, v)[0], out)
    whole = modified.attention(q, k, v, causal=True, return_probabilities=True)[1]
    kept = p > 0
    torch.testing.assert_close(p[kept], whole[kept] / 0.6)
    assert 0.2 < 1 - kept.sum() / (whole > 0).sum() < 0.6
    # out is p·v with the p of forward: what backward drew again shows in dL/dv.
    d_out = torch.randn_like(out)
    d_v = torch.autograd.grad(out, v, d_out)[0]
    expected = torch.einsum("bhqk,bhqd->bhkd", p, d_out).unflatten(1, (KV_HEADS, -1)).sum(2)
    torch.testing.assert_close(d_v, expected)


@pytest.mark.slow
def test_it_compiles_whole():
    given, _, leaves = case("all")
    q, k, v = inputs()
    alpha = torch.tensor(ALPHAS, dtype=torch.float64, requires_grad=True)

    def call(*tensors):
        return modified.attention(*tensors, alpha=alpha, **given)

    out, expected = torch.compile(call, fullgraph=True, backend="aot_eager")(q, k, v), call(q, k, v)
    torch.testing.assert_close(out, expected)
    leaves, d_out = [q, k, v, alpha, *leaves], torch.randn_like(out)
    for a, b in zip(gradients(out, leaves, d_out), gradients(expected, leaves, d_out)):
        torch.testing.assert_close(a, b)


def test_what_is_not_finite_stays_where_it_counts():
    q, k, v = inputs()
    with torch.no_grad():
        k[0, :, -1] = torch.nan  # the last query alone sees it
        v[1, :, -1, 2] = torch.inf
    out = modified.attention(q, k, v, causal=True)
    assert out[:, :, :-1].isfinite().all() and out[0, :, -1].isnan().all()
    assert out[1, :, -1, [0, 1, 3, 4]].isfinite().all()


def test_autocast_and_nothing_at_all():
    q, k, v = inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = modified.attention(q, k, v, softcap=3.0)
    torch.testing.assert_close(out, modified.attention(q.bfloat16(), k.bfloat16(), v.bfloat16(), softcap=3.0))
    out, p = modified.attention(q[:, :, :0], k, v, return_probabilities=True)
    assert out.shape == (BATCH, HEADS, 0, WIDTH) and p.shape == (BATCH, HEADS, 0, KEYS)
    out = modified.attention(q, k[:, :, :0], v[:, :, :0])
    assert torch.equal(out, torch.zeros(BATCH, HEADS, ROWS, WIDTH))


def test_bad_input_in_one_sentence():
    q, k, v = inputs()
    for wrong, error, sentence in (
        ({"mask": torch.ones(ROWS, KEYS)}, TypeError, "mask is of float32; it must be bool"),
        ({"mask": torch.ones(3, KEYS, dtype=torch.bool)}, ValueError, r"mask has shape \[3, 13\]; it must broadcast to \[2, 4, 9, 13\]"),
        ({"first_keys": torch.zeros(ROWS)}, TypeError, "first_keys is of float32"),
        ({"sinks": torch.zeros(2)}, ValueError, r"sinks has shape \[2\]; it must be \[4\]"),
        ({"softcap": 0.0}, ValueError, "softcap is 0.0; it must be above 0"),
        ({"dropout": 1.0}, ValueError, "dropout is 1.0; it must be at least 0 and below 1"),
    ):
        with pytest.raises(error, match=sentence):
            modified.attention(q, k, v, **wrong)
    with pytest.raises(ValueError, match=r"v is of shape \[2, 2, 12, 5\]"):
        modified.attention(q, k, v[:, :, 1:])


def test_it_says_once_that_it_is_slower(monkeypatch):
    monkeypatch.setattr(modified, "_told", set())
    with pytest.warns(UserWarning, match="no kernel for a sliding window yet"):
        modified.tell_once("a sliding window")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        modified.tell_once("a sliding window")


@pytest.mark.slow
def test_one_graph_serves_all_lengths_that_need_one_part(monkeypatch):
    monkeypatch.setattr(dense, "SCORES_AT_ONCE", 1 << 25)
    graphs = []

    def count(graph, _):
        graphs.append(graph)
        return graph

    call = torch.compile(lambda q, k, v: modified.attention(q, k, v, causal=True, softcap=3.0), fullgraph=True, backend=count)
    for length in (5, 7, 9, 11, 13):
        q, k, v = (leaf(1, 2, length, DIM) for _ in range(3))
        torch.testing.assert_close(call(q, k, v), modified.attention(q, k, v, causal=True, softcap=3.0))
    assert len(graphs) == 2  # of the first length, and of all
