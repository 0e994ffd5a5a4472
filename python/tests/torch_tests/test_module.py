"""AdaptiveSplashAttention."""

from __future__ import annotations

import copy
import io
import pickle

import dense
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import AdaptiveSplashAttention, splash_attention  # noqa: E402
from splash_attention.language import Attention, Method  # noqa: E402

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


@pytest.mark.parametrize("mask", ["positions", "causal", "window", "both sides", "none", "k_keep"])
def test_the_threshold_loss_is_its_formula(mask):
    Q, K, V = inputs(dtype=torch.float64)
    alpha = [1.2, 1.5, 1.8, 2.0]
    module = AdaptiveSplashAttention(
        D, alpha, num_heads=H, causal=mask in ("causal", "window"), window=3 if mask in ("window", "both sides") else None,
        k_keep=5 if mask == "k_keep" else None,
    ).double()  # fmt: skip
    with torch.no_grad():
        module.threshold_weight.normal_()
        module.threshold_bias.normal_()
    order = torch.randperm(N)
    out = module(Q, K, V, *((POSITIONS[:, order], POSITIONS) if mask == "positions" else ()))
    visible = {
        "causal": dense.causal(N, N), "window": dense.causal(N, N, 3), "both sides": dense.near(N, N, 3),
        "positions": order.numpy()[:, None] >= np.arange(N)[None, :],
    }.get(mask)  # fmt: skip
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


def trained(**options):
    """A module behind a forward and a backward pass of training, and what it saw."""
    module = AdaptiveSplashAttention(D, num_heads=H, **options)
    tensors = inputs(grad=True)
    (module(*tensors).sum() + module.threshold_loss).backward()
    return module, tensors


MADE = {
    "number": {"alpha": 1.2}, "heads": {"alpha": [1.2, 1.4, 1.6, 2.5]}, "learned": {"learn_alpha": True}, "direct": {"threshold_mode": "direct"},
}  # fmt: skip


@pytest.mark.parametrize("options", MADE.values(), ids=MADE)
def test_a_copy_is_of_the_module_and_not_of_the_data_it_saw(options):
    fresh = len(pickle.dumps(AdaptiveSplashAttention(D, num_heads=H, **options)))
    module, (Q, K, V) = trained(**options)
    loss = module.threshold_loss
    for parameter in module.parameters():
        parameter.grad = None
    saved = io.BytesIO()
    torch.save(module, saved)
    saved.seek(0)
    assert len(pickle.dumps(module)) < fresh + 200
    copies = (copy.deepcopy(module), copy.copy(module), pickle.loads(pickle.dumps(module)), torch.load(saved, weights_only=False))
    for other in copies:
        with pytest.raises(RuntimeError, match="call the module first"):
            other.tau
        assert other.threshold_loss == 0
        torch.testing.assert_close(other(Q, K, V), module(Q, K, V), rtol=0, atol=0)
        assert type(other._alpha_now()) is type(module._alpha_now())
    assert module.threshold_loss == loss  # the module itself still tells of its last call


def test_averaged_models():
    from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

    for buffers in (False, True):
        model = torch.nn.Sequential(trained(alpha=1.2)[0])
        average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.5), use_buffers=buffers)
        model[0].alpha = 1.6
        with torch.no_grad():
            model[0].threshold_bias.fill_(1.0)
        average.update_parameters(model)
        average.update_parameters(model)
        assert average.module[0].threshold_bias.eq(0.5).logical_or(average.module[0].threshold_bias.eq(1)).all()
        Q, K, V = inputs()
        expected = splash_attention(Q, K, V, alpha=average.module[0].alpha.item())  # whatever the average made of it
        torch.testing.assert_close(average.module[0](Q, K, V), expected)


@pytest.mark.parametrize("saved, made", [(1.2, 2.0), ([1.2, 1.3, 1.4, 2.5], [2.0, 2.0, 2.0, 2.0])])
def test_a_fixed_alpha_is_saved_and_loaded(saved, made):
    Q, K, V = inputs()
    module = torch.nn.Sequential(AdaptiveSplashAttention(D, saved, num_heads=H))
    state = io.BytesIO()
    torch.save(module.state_dict(), state)
    state.seek(0)
    for assign in (False, True):
        other = torch.nn.Sequential(AdaptiveSplashAttention(D, made, num_heads=H))
        state.seek(0)
        other.load_state_dict(torch.load(state), assign=assign)
        np.testing.assert_array_equal(other[0].alpha, np.atleast_1d(saved))
        assert torch.equal(other[0](Q, K, V), splash_attention(Q, K, V, alpha=saved))
    one = torch.nn.Sequential(AdaptiveSplashAttention(D, 2.0 if isinstance(saved, list) else [2.0] * H, num_heads=H))
    with pytest.raises(RuntimeError, match="size mismatch for 0.fixed_alpha"):
        one.load_state_dict(module.state_dict())
    learned = torch.nn.Sequential(AdaptiveSplashAttention(D, num_heads=H, learn_alpha=True))
    with pytest.raises(RuntimeError, match="alpha_logit"):
        learned.load_state_dict(module.state_dict())


def test_heads_of_a_method_file(tmp_path):
    alpha, factor = (1.25, 1.5, 1.75, 2.0), (0.3, 0.5, 1.0, 2.0)
    method = Method(Attention("entmax", alpha=1.3, factor=0.5), {1: Attention("entmax", alpha=alpha, factor=factor, k_keep=(0, 5, 9, 0))})
    method.write(tmp_path / "tuned.json")
    Q, K, V = inputs(grad=True)
    attention = AdaptiveSplashAttention.from_method(tmp_path / "tuned.json", 1, D, causal=True)
    scaled = Q * torch.tensor(factor)[:, None, None]
    wanted = splash_attention(scaled, K, V, alpha=list(alpha), k_keep=[0, 5, 9, 0], causal=True)
    out = attention(Q, K, V)
    torch.testing.assert_close(out, wanted)
    torch.testing.assert_close(*(torch.autograd.grad(part.square().sum(), Q, retain_graph=True)[0] for part in (out, wanted)))
    assert attention.support[:, 1].max() == 5 and attention.support[:, 0].max() > 9
    assert "factor=[0.3, 0.5, 1.0, 2.0]" in repr(attention).replace("0.30000001192092896", "0.3")
    again = AdaptiveSplashAttention(D, factor=[1.0] * 4, num_heads=4, causal=True, k_keep=[0, 5, 9, 0])
    again.fixed_alpha = torch.zeros(4, dtype=torch.float64)
    again.load_state_dict(attention.state_dict())
    assert torch.equal(again(Q, K, V), out)
    halved = copy.deepcopy(attention).bfloat16()
    assert torch.equal(halved.head_factor, attention.head_factor)
    assert halved(*(x.bfloat16() for x in (Q, K, V))).dtype == torch.bfloat16
    for scale in (None, 0.1):  # one number for all heads
        one = AdaptiveSplashAttention.from_method(method, 0, D, causal=True, sm_scale=scale)
        wanted = splash_attention(Q, K, V, alpha=1.3, scale=0.5 * (scale or D**-0.5), causal=True)
        torch.testing.assert_close(one(Q, K, V), wanted)
    for wrong, options, sentence in (
        (Method(), {}, "layer 1 of the method is {'kind': 'softmax', 'factor': 1.0}; it must be entmax without block"),
        (method, {"num_heads": 3}, "alpha of layer 1 has 4 entries; the layer has 3 query heads"),
    ):
        with pytest.raises(ValueError) as error:
            AdaptiveSplashAttention.from_method(wrong, 1, D, **options)
        assert str(error.value) == sentence
    with pytest.raises(ValueError, match="Q has 2 heads; this module was made for 4"):
        attention(Q[:, :2], K[:, :2], V[:, :2])
    for factor, sentence in ((0.0, "factor is 0.0; it must be finite"), ([1.0] * 3, "factor has 3 entries; allowed: 1, or num_heads")):
        with pytest.raises(ValueError, match=sentence):
            AdaptiveSplashAttention(D, factor=factor, num_heads=4)


def test_checkpoints_from_before_alpha_was_saved():
    Q, K, V = inputs()
    old = torch.nn.Sequential(AdaptiveSplashAttention(D, 1.2)).state_dict()
    del old["0.fixed_alpha"]
    plain = dict(old)  # of a format without versions, such as safetensors
    old._metadata["0"]["version"] = 1
    for state in (old, plain):
        module = torch.nn.Sequential(AdaptiveSplashAttention(D, 1.4))
        with pytest.warns(UserWarning, match=r"older than 0.fixed_alpha: alpha stays \[1.4\]"):
            module.load_state_dict(state)
        assert torch.equal(module[0](Q, K, V), splash_attention(Q, K, V, alpha=1.4))
    lost = torch.nn.Sequential(AdaptiveSplashAttention(D, 1.2)).state_dict()
    del lost["0.fixed_alpha"]
    with pytest.raises(RuntimeError, match="Missing key.*fixed_alpha"):
        module.load_state_dict(lost)


def test_alpha_may_be_set_and_is_what_the_buffer_holds():
    Q, K, V = inputs()

    def check(module, alpha):
        assert torch.equal(module(Q, K, V), splash_attention(Q, K, V, alpha=alpha))

    module = AdaptiveSplashAttention(D, 1.2, num_heads=H)
    for alpha in (1.7, np.float32(1.25), 3, [1.5, 1.2, 1.1, 2.0], torch.full((H,), 1.75), 1.3):
        module.alpha = alpha
        check(module, alpha)
    module.fixed_alpha.fill_(1.6)  # behind the module's back
    check(module, 1.6)
    for narrow in (module.half, module.bfloat16, module.float, module.double):
        narrow()
        assert module.alpha.dtype == torch.float64 and module.alpha.item() == 1.6
    out = torch.func.functional_call(module, {"fixed_alpha": torch.tensor([1.9], dtype=torch.float64)}, (Q, K, V))
    assert torch.equal(out, splash_attention(Q, K, V, alpha=1.9))
    empty = AdaptiveSplashAttention(D, 1.2).to("meta").to_empty(device="cpu")
    empty.load_state_dict(AdaptiveSplashAttention(D, 1.8).state_dict())
    check(empty, 1.8)
    with pytest.raises(ValueError, match="alpha is 1; entmax "):
        module.alpha = 1.0
    with pytest.raises(AttributeError, match="alpha is learned here"):
        AdaptiveSplashAttention(D, learn_alpha=True).alpha = 1.5


@pytest.mark.parametrize("mode", ["warm_start", "direct"])
def test_autocast_lowers_what_it_may(mode):
    module = AdaptiveSplashAttention(D, num_heads=H, threshold_mode=mode)
    Q, K, V = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        assert module(Q, K.bfloat16(), V).dtype == torch.bfloat16  # as what Linear layers hand on
        assert module.double()(Q.double(), K.double(), V.double()).dtype == torch.float64


def test_direct_thresholds_of_large_scores():
    """Finite scores that alpha - 1 would carry out of float32's range."""
    for alpha in (1.5, 3.0, 20.0):
        module = AdaptiveSplashAttention(1, alpha, num_heads=1, threshold_mode="direct", sm_scale=1.0, causal=True)
        Q, K = torch.full((1, 1, 4, 1), 1e19), torch.tensor([3e19, -3e19, 3e19, 1.0]).view(1, 1, 4, 1)
        p = module(Q, K, torch.eye(4)[None, None, :, :1].expand(1, 1, 4, 1)), module.probabilities().to_dense()
        torch.testing.assert_close(p[1], torch.tensor([[1.0, 0, 0, 0], [1, 0, 0, 0], [0.5, 0, 0.5, 0], [0.5, 0, 0.5, 0]]))


REFUSED = [
    (lambda: AdaptiveSplashAttention(D, 1.0), "alpha is 1; entmax "),
    (lambda: AdaptiveSplashAttention(D, [1.5, 1.6], num_heads=4), "alpha has 2 entries; allowed: 1, or num_heads, which is 4"),
    (lambda: AdaptiveSplashAttention(D, 2.0, learn_alpha=True), "where it is learned it must start between 1.05 and 2.0"),
    (lambda: AdaptiveSplashAttention(0), "head_dim is 0"),
    (lambda: AdaptiveSplashAttention(D, k_keep=0), "k_keep is 0"),
    (lambda: AdaptiveSplashAttention(D, threshold_mode="exact"), "threshold_mode is 'exact'"),
    (lambda: AdaptiveSplashAttention(D, adaptive_threshold=False, threshold_mode="direct"), "needs adaptive_threshold"),
    (lambda: AdaptiveSplashAttention(D, k_keep=[1, 2], num_heads=4), "k_keep has 2 entries; allowed: 1, or 4 (one a query head)"),
    (lambda: AdaptiveSplashAttention(D, k_keep=[1, -2], num_heads=2), "k_keep has -2"),
    (lambda: AdaptiveSplashAttention(D, k_keep_target=0.0), "k_keep_target is 0.0; it must be above 0 and at most 1"),
    (lambda: AdaptiveSplashAttention(D, k_keep_target=0.9, k_keep_bounds=(9, 8)), "k_keep_bounds is (9, 8)"),
    (lambda: AdaptiveSplashAttention(D).adapt_k_keep(), "k_keep_target is None"),
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
