"""AdaptiveSplashAttention."""

from __future__ import annotations

import dense
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import AdaptiveSplashAttention, splash_attention  # noqa: E402

B, H, N, D = 2, 4, 33, 16
POSITIONS = torch.arange(N).expand(B * H, N).contiguous()


def inputs(grad=False, scale=2.0, dtype=torch.float32):
    return tuple((scale * torch.randn(B, H, N, D, dtype=dtype)).requires_grad_(grad) for _ in range(3))


def test_the_call_of_the_source_document():
    Q, K, V = inputs(grad=True)
    attention = AdaptiveSplashAttention(head_dim=D, alpha=1.5, k_keep=8, adaptive_threshold=True, sm_scale=0.125)
    out = attention(Q, K, V, POSITIONS, POSITIONS)
    torch.testing.assert_close(out, splash_attention(Q, K, V, scale=0.125, k_keep=8, causal=True))
    out.sum().backward()
    assert Q.grad.abs().sum() > 0
    assert attention.support.shape == (B, H, N) and attention.support.max() <= 8
    assert 0 < attention.sparsity_by_token < 1
    assert attention.probabilities().shape == (B * H * N, N)


@pytest.mark.parametrize("mask", ["positions", "causal", "none", "k_keep"])
def test_the_threshold_loss_is_its_formula(mask):
    Q, K, V = inputs(dtype=torch.float64)
    alpha = [1.2, 1.5, 1.8, 2.0]
    module = AdaptiveSplashAttention(
        D, alpha, num_heads=H, causal=mask == "causal", k_keep=5 if mask == "k_keep" else None
    ).double()
    with torch.no_grad():
        module.threshold_weight.normal_()
        module.threshold_bias.normal_()
    order = torch.randperm(N)
    out = module(Q, K, V, *((POSITIONS[:, order], POSITIONS) if mask == "positions" else ()))
    visible = {"causal": dense.causal(N, N), "positions": order.numpy()[:, None] >= np.arange(N)[None, :]}.get(mask)
    a = np.array(alpha).reshape(1, H, 1)
    scores = (Q @ K.transpose(-1, -2)).numpy() * D**-0.5
    scores = scores if visible is None else np.where(visible, scores, -np.inf)
    keys = np.isfinite(scores).sum(-1)
    if mask == "k_keep":
        scores = np.where(scores >= np.sort(scores, -1)[..., -5:-4], scores, -np.inf)
        keys = np.minimum(keys, 5)
    z = (a[..., None] - 1) * scores
    p = dense.entmax(scores, a)
    largest = z.max(-1)
    tau = largest - p.max(-1) ** (a - 1)
    logit = (Q * module.threshold_weight[:, None]).sum(-1) + module.threshold_bias[:, None]
    guess = largest - 1 + torch.sigmoid(logit).detach().numpy() * (1 - keys ** (1.0 - a))
    assert module.threshold_loss.item() == pytest.approx(((guess - tau) ** 2).mean(), rel=1e-6)
    torch.testing.assert_close(module.tau, torch.from_numpy(tau))
    assert out.shape == Q.shape


def test_the_loss_trains_the_predictor_and_nothing_else():
    module = AdaptiveSplashAttention(D, num_heads=H)
    Q, K, V = inputs(grad=True)
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    losses = []
    for _ in range(60):
        module(Q, K, V, POSITIONS, POSITIONS)
        optimizer.zero_grad()
        module.threshold_loss.backward()
        optimizer.step()
        losses.append(module.threshold_loss.item())
    assert losses[-1] < losses[0] / 4
    assert Q.grad is None
    module.eval()
    module(Q, K, V, POSITIONS, POSITIONS)
    assert module.threshold_loss == 0


def test_alpha_is_learned_by_head():
    module = AdaptiveSplashAttention(D, alpha=1.4, num_heads=H, learn_alpha=True, causal=True)
    torch.testing.assert_close(module.alpha, torch.full((H,), 1.4))
    Q, K, V = inputs()
    weight = torch.randn(B, H, N, D)
    (module(Q, K, V) * weight).sum().backward()
    analytic = module.alpha_logit.grad.clone()
    for head in range(H):
        step = torch.zeros(H)
        step[head] = 1e-2
        sums = []
        for sign in (1, -1):
            with torch.no_grad():
                module.alpha_logit += sign * step
                sums.append((module(Q.double(), K.double(), V.double()) * weight).sum().item())
                module.alpha_logit -= sign * step
        assert analytic[head].item() == pytest.approx((sums[0] - sums[1]) / 2e-2, rel=2e-2, abs=2e-2)


def test_direct_thresholds_are_straight_through():
    module = AdaptiveSplashAttention(D, num_heads=H, threshold_mode="direct")
    Q, K, V = inputs(grad=True)
    out = module(Q, K, V, POSITIONS, POSITIONS)
    p = module.probabilities().to_dense().view(B, H, N, N)
    torch.testing.assert_close(p.sum(-1), torch.ones(B, H, N))
    assert (p.triu(1) == 0).all()
    torch.testing.assert_close(out, p @ V)
    # Where the predictor is right, direct is exact: tau put where it belongs.
    exact, aux = splash_attention(Q, K, V, causal=True, return_aux=True)
    z = (0.5 * (Q @ K.transpose(-1, -2)) * D**-0.5).masked_fill(torch.ones(N, N).triu(1).bool(), -torch.inf)
    offset = aux.tau - z.amax(-1)
    module._predicted = lambda *_: offset
    torch.testing.assert_close(module(Q, K, V, POSITIONS, POSITIONS), exact)
    out.sum().backward()
    assert Q.grad.isfinite().all() and Q.grad.abs().sum() > 0
    assert module.threshold_weight.grad is None


def test_state_is_saved_and_the_module_compiles():
    module = AdaptiveSplashAttention(D, num_heads=H, learn_alpha=True)
    other = AdaptiveSplashAttention(D, alpha=1.3, num_heads=H, learn_alpha=True)
    other.load_state_dict(module.state_dict())
    torch.testing.assert_close(other.alpha, module.alpha)
    Q, K, V = inputs()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(Q, K, V, POSITIONS, POSITIONS), other(Q, K, V, POSITIONS, POSITIONS))
    assert module.sparsity_by_token == other.sparsity_by_token
    torch.testing.assert_close(module.threshold_loss, other.threshold_loss)


REFUSED = [
    (lambda: AdaptiveSplashAttention(D, 1.0), "alpha is 1; entmax "),
    (lambda: AdaptiveSplashAttention(D, [1.5, 1.6], num_heads=4), "alpha has 2 entries; allowed: 1, or num_heads, which is 4"),
    (lambda: AdaptiveSplashAttention(D, 2.0, learn_alpha=True), "where it is learned it must start between 1.05 and 2.0"),
    (lambda: AdaptiveSplashAttention(0), "head_dim is 0"),
    (lambda: AdaptiveSplashAttention(D, k_keep=0), "k_keep is 0"),
    (lambda: AdaptiveSplashAttention(D, threshold_mode="exact"), "threshold_mode is 'exact'"),
    (lambda: AdaptiveSplashAttention(D, k_keep=4, threshold_mode="direct"), "takes no k_keep"),
    (lambda: AdaptiveSplashAttention(8)(*inputs()), "Q has head_dim 16; this module was made for 8"),
    (lambda: AdaptiveSplashAttention(D, num_heads=2)(*inputs()), "Q has 4 heads; this module was made for 2"),
    (lambda: AdaptiveSplashAttention(D)(*inputs(), POSITIONS), "only Q_idx is given; K_idx is needed too"),
]  # fmt: skip


@pytest.mark.parametrize("call, sentence", REFUSED, ids=[sentence[:40] for _, sentence in REFUSED])
def test_bad_input_gets_one_sentence(call, sentence):
    with pytest.raises(ValueError) as caught:
        call()
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_statistics_before_a_call():
    with pytest.raises(RuntimeError, match="call the module first"):
        AdaptiveSplashAttention(D).tau
