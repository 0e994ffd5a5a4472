"""Thresholds that select, a k_keep for each head, and a k_keep that adapts (AdaptiveSplashAttention)."""

from __future__ import annotations

import copy
import io

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import AdaptiveSplashAttention, splash_attention  # noqa: E402

B, H, KV, N, D = 2, 4, 2, 37, 8
K_KEEP = {"all": None, "number": 5, "heads": [1, None, 4, 30]}


def inputs(dtype=torch.float64, n=N, scale=2.0):
    return tuple(scale * torch.randn(B, heads, n, D, dtype=dtype) for heads in (H, KV, KV))


def drawn(module):
    """With predictions of all sizes."""
    with torch.no_grad():
        module.threshold_weight.normal_()
        module.threshold_bias.normal_()
    return module


def written_out(module, Q, K, V, alpha, fixed=None):
    """Direct mode as its documentation has it, of matrices of scores. fixed: (largest scores, kept keys, offsets) of a call
    before, for differences; returned too."""
    scores = Q @ K.repeat_interleave(H // KV, 1).transpose(-1, -2) * D**-0.5
    scores = scores.masked_fill(torch.ones(N, N).triu(1).bool(), -torch.inf)
    a = alpha.view(1, H, 1, 1)
    if fixed is None:
        k_keep = module.k_keep if isinstance(module.k_keep, torch.Tensor) else torch.tensor([module.k_keep or 0])
        k_keep = torch.where(k_keep < 1, N, k_keep).view(1, -1, 1, 1)
        order = scores.argsort(dim=-1, descending=True, stable=True).argsort(-1)
        keys = torch.minimum(torch.arange(1, N + 1).view(1, 1, N, 1), k_keep)
        logit = (Q * module.threshold_weight[:, None]).sum(-1, keepdim=True) + module.threshold_bias[:, None, None]
        offsets = torch.sigmoid(logit) * (1 - keys ** (1 - a)) - 1
        fixed = scores.amax(-1, keepdim=True).detach(), order < k_keep, offsets.detach()
    largest, kept, offsets = fixed
    counts = kept & scores.isfinite()
    u = torch.where(counts, (a - 1) * torch.where(counts, scores - largest, 0) - offsets, 0).clamp(min=0)
    w = torch.where(u > 0, u, 1) ** (1 / (a - 1)) * (u > 0)
    return w / w.sum(-1, keepdim=True) @ V.repeat_interleave(H // KV, 1), fixed


@pytest.mark.parametrize("k_keep", K_KEEP.values(), ids=K_KEEP)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_direct_is_what_it_says_and_so_are_its_gradients(dtype, k_keep):
    alpha = [1.25, 1.5, 1.8, 1.1]
    module = drawn(AdaptiveSplashAttention(D, alpha, k_keep, num_heads=H, threshold_mode="direct", causal=True)).double()
    exact = [t.requires_grad_() for t in inputs()]
    learned = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    d_out = torch.randn(B, H, N, D, dtype=torch.float64)
    expected, fixed = written_out(module, *exact, learned)
    expected.backward(d_out)
    given = [t.detach().to(dtype).requires_grad_() for t in exact]
    mine = torch.tensor(alpha, dtype=torch.float64, requires_grad=True)
    module = module.to(dtype)
    module._alpha_now = lambda: mine  # with a gradient
    out = module(*given)
    out.backward(d_out.to(dtype))
    bound = {"rtol": 1e-8, "atol": 1e-8} if dtype == torch.float64 else {"rtol": 2e-3, "atol": 2e-3}
    for a, b in zip((out, *(t.grad for t in (*given, mine))), (expected, *(t.grad for t in (*exact, learned)))):
        torch.testing.assert_close(a.double(), b, **bound)
    p = module.probabilities().to_dense().view(B, H, N, N)
    torch.testing.assert_close(p @ given[2].repeat_interleave(H // KV, 1), out, rtol=1e-4, atol=1e-5)
    assert module.support.eq((p > 0).sum(-1)).all() and module.threshold_weight.grad is None
    largest = (torch.tensor(alpha, dtype=torch.float64).view(1, H, 1) - 1) * fixed[0].squeeze(-1)
    torch.testing.assert_close(module.tau.double(), largest + fixed[2].squeeze(-1), rtol=1e-4, atol=1e-4)


def test_direct_gradients_are_central_differences_of_what_is_not_held_constant():
    module = drawn(AdaptiveSplashAttention(D, 1.4, [3, 0, 8, 1], num_heads=H, threshold_mode="direct", causal=True)).double()
    given = [t.requires_grad_() for t in inputs(scale=1.0)]
    d_out = torch.randn(B, H, N, D, dtype=torch.float64)
    alpha = torch.full((H,), 1.4, dtype=torch.float64)
    _, fixed = written_out(module, *given, alpha)
    module(*given).backward(d_out)
    for tensor in given:
        step = torch.randn_like(tensor)
        sums = []
        for sign in (1e-6, -1e-6):
            moved = [t.detach() + sign * step if t is tensor else t.detach() for t in given]
            sums.append((written_out(module, *moved, alpha, fixed)[0] * d_out).sum())
        assert (tensor.grad * step).sum().item() == pytest.approx((sums[0] - sums[1]).item() / 2e-6, rel=1e-4)


def test_direct_of_nasty_rows():
    """Ties, a row of one key, none, -inf, huge scores, and predictions of NaN."""
    module = AdaptiveSplashAttention(D, num_heads=H, k_keep=3, threshold_mode="direct")
    Q, K, V = inputs(torch.float32)
    K[:, :, 5:9] = K[:, :, 4:5]
    K[:, :, 20] = -torch.inf
    Q[:, :, 3] = 0
    Q, K = Q.abs(), torch.where(K == -torch.inf, K, K.abs())
    Q[:, :, 6] *= 1e6
    queries, keys = torch.arange(N), torch.arange(N)
    queries[0], keys[0] = -1, 0
    out = module(Q, K, V, queries, keys)
    assert out.isfinite().all() and (out[:, :, 0] == 0).all() and (module.support[:, :, 1:] >= 1).all()
    assert (module.support <= 3).all() and torch.isinf(module.tau[:, :, 0]).all()
    with torch.no_grad():
        module.threshold_bias[2] = torch.nan
    out = module(Q, K, V, queries, keys)
    assert out[:, 2, 1:].isnan().all() and (out[:, 2, 0] == 0).all() and out[:, [0, 1, 3]].isfinite().all()


def test_direct_stores_no_scores():
    """At a length whose scores, of all heads, would take 6 GB."""
    length = 14000
    module = AdaptiveSplashAttention(D, num_heads=1, threshold_mode="direct", causal=True).eval()
    Q = 12 * torch.randn(8, 1, 1, D)
    K, V = torch.randn(8, 1, length, D), torch.randn(8, 1, length, D)
    with torch.no_grad():
        rows = torch.full((1,), length)
        out = module(Q, K, V, rows, torch.arange(length))
    assert out.shape == Q.shape and module.support.max() < length / 4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_k_keep_a_head_is_that_k_keep_for_each_head_apart(dtype):
    tensors = [t.requires_grad_() for t in inputs(dtype, scale=0.5)]
    kept = [2, 0, 7, 30]
    results = []
    for form in (kept, [2, None, 7, 30], torch.tensor(kept), torch.tensor(kept, dtype=torch.uint8).numpy()):
        out, aux = splash_attention(*tensors, k_keep=form, return_aux=True)
        results.append((out, *torch.autograd.grad(splash_attention(*tensors, k_keep=form).square().sum(), tensors)))
        assert (aux.support.amax((0, 2)) <= torch.tensor([2, N, 7, 30])).all()
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))
    out = results[0][0]
    for head, one in enumerate(kept):
        assert torch.equal(out[:, head], splash_attention(*tensors, k_keep=one or None)[:, head])
    numpy = splash_attention(*(t.detach().numpy() for t in tensors), k_keep=kept)
    assert torch.equal(torch.from_numpy(numpy), out)
    one = splash_attention(*tensors, k_keep=torch.tensor([3]))
    assert torch.equal(one, splash_attention(*tensors, k_keep=3))
    compiled = torch.compile(splash_attention, fullgraph=True, backend="eager")
    assert torch.equal(compiled(*tensors, k_keep=torch.tensor(kept)), out)


@pytest.mark.parametrize("k_keep, error, sentence", [
    ([1, 2], ValueError, "k_keep has 2 entries; allowed: 1, or 4 (one a query head)"),
    ([1, 2, 3, -4], ValueError, "k_keep has -4"),
    (torch.tensor([1, 2, 3, -4]), ValueError, "k_keep has -4"),
    ([1, 2, 3, 4.0], TypeError, "k_keep has a float; its entries must be integers"),
    (torch.ones(4), TypeError, "k_keep is of float32; it must be of an integer dtype"),
    ("8", TypeError, "k_keep is a str; it must be an integer"),
])  # fmt: skip
@pytest.mark.parametrize("numpy", [False, True])
def test_bad_k_keep_gets_one_sentence(k_keep, error, sentence, numpy):
    tensors = [t.numpy() for t in inputs()] if numpy else inputs()
    if numpy and isinstance(k_keep, torch.Tensor):
        k_keep = k_keep.numpy()
    with pytest.raises(error) as caught:
        splash_attention(*tensors, k_keep=k_keep)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def known_support(supports, rows=64):
    """Q, K, V of one query head a support: each row attends to so many keys, alike."""
    heads, keys = len(supports), 2 * max(supports)
    Q = torch.zeros(1, heads, rows, D)
    Q[..., 0] = 40
    K = torch.zeros(1, heads, keys, D)
    for head, support in enumerate(supports):
        K[0, head, torch.randperm(keys)[:support], 0] = 1
    return Q, K, torch.randn(1, heads, keys, D)


@pytest.mark.parametrize("mode", ["warm_start", "direct"])
@pytest.mark.parametrize("start", [None, 1, [4, 90, 0]])
def test_k_keep_comes_to_what_keeps_the_target(mode, start):
    supports = [1, 10, 40]
    module = AdaptiveSplashAttention(D, 1.5, start, num_heads=3, threshold_mode=mode, k_keep_target=0.9, k_keep_bounds=(1, 30))
    for _ in range(3):
        module(*known_support(supports))
        module.adapt_k_keep()
    assert module.k_keep.tolist() == [1, 9, 30]  # the last one's 36 lie beyond the bounds
    module(*known_support(supports))
    assert (module.support.amax((0, 2)) <= torch.tensor([1, 9, 30])).all()
    for _ in range(30):  # the inputs change, and it follows
        module(*known_support([20, 10, 5]))
        module.adapt_k_keep()
    assert module.k_keep.tolist() == [18, 9, 5]


def test_one_k_keep_for_all_heads_keeps_the_target_of_them_together():
    module = AdaptiveSplashAttention(D, k_keep_target=0.75)
    module(*known_support([4, 12]))
    module.adapt_k_keep()
    # Of k keys the heads keep min(k / 4, 1) and k / 12: 0.75 of both on average from k = 6.
    assert module.k_keep.tolist() == [6]


def test_the_share_that_is_kept_is_the_target():
    torch.manual_seed(5)
    Q, K, V = inputs(torch.float32, scale=1.0)
    module = AdaptiveSplashAttention(D, 1.3, num_heads=H, k_keep_target=0.95, causal=True)
    module(Q, K, V)
    ranked = module.probabilities().to_dense().view(B, H, N, N).sort(-1, descending=True)[0].sum((0, 2))
    module.adapt_k_keep()
    share = ranked.cumsum(-1) / ranked.sum(-1, keepdim=True)
    for head, k_keep in enumerate(module.k_keep.tolist()):
        assert share[head, k_keep - 1] >= 0.95 - 1e-6 and (k_keep == 1 or share[head, k_keep - 2] < 0.95)


def test_a_checkpoint_resumes_to_the_bit_and_evaluation_changes_nothing():
    def made():
        return AdaptiveSplashAttention(D, 1.4, 8, num_heads=H, k_keep_target=0.97, causal=True)

    def train(module, seeds):
        for seed in seeds:
            torch.manual_seed(seed)
            module(*inputs(torch.float32, scale=1 + seed / 5))
            module.adapt_k_keep()

    through, first, resumed = made(), made(), made()
    train(through, range(6))
    train(first, range(3))
    saved = io.BytesIO()
    torch.save(first.state_dict(), saved)
    saved.seek(0)
    resumed.load_state_dict(torch.load(saved))
    duplicate = copy.deepcopy(first)
    for module in (resumed, duplicate):
        train(module, range(3, 6))
        assert torch.equal(module.k_keep, through.k_keep) and torch.equal(module.rank_mass, through.rank_mass)
    assert through.k_keep.unique().numel() > 1 and not torch.equal(first.k_keep, through.k_keep)
    state = copy.deepcopy(through.eval().state_dict())
    given = inputs(torch.float32)
    out = through(*given)
    through.adapt_k_keep()
    assert all(torch.equal(value, state[name]) for name, value in through.state_dict().items())
    assert torch.equal(out, through(*given))
    assert torch.equal(out, splash_attention(*given, alpha=1.4, causal=True, k_keep=through.k_keep))
    half = through.half()
    assert half.rank_mass.dtype == torch.float64 and half.k_keep.dtype == torch.int32
    with pytest.raises(AttributeError, match="k_keep is adapted here"):
        through.k_keep = 4


def test_what_has_no_probability_says_nothing():
    module = AdaptiveSplashAttention(D, k_keep=7, num_heads=H, k_keep_target=0.9)
    with pytest.raises(RuntimeError, match="call the module first"):
        module.adapt_k_keep()
    Q, K, V = inputs(torch.float32)
    module(Q, K, V, torch.full((N,), -1), torch.zeros(N, dtype=torch.int64))  # no row sees a key
    module.adapt_k_keep()
    assert module.k_keep.tolist() == [7] * H and (module.rank_mass == 0).all()
    Q[:, 1] = torch.nan
    module(Q, K, V)
    module.adapt_k_keep()
    assert module.k_keep[1] == 7 and module.rank_mass.isfinite().all() and (module.rank_mass[0] > 0).any()


def test_k_keep_may_be_set():
    module = AdaptiveSplashAttention(D, k_keep=4, num_heads=H)
    given = inputs(torch.float32)
    for k_keep in (3, [1, 2, 3, 4], torch.tensor([4, 3, 0, 1]), None):
        module.k_keep = k_keep
        assert torch.equal(module(*given), splash_attention(*given, k_keep=k_keep))
    assert "head_k_keep" not in module.state_dict()
