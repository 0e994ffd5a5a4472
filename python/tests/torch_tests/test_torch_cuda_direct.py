"""Given thresholds and a k_keep for each head on a GPU, against the same on the CPU, which have their own tests."""

from __future__ import annotations

import pytest

from gpu_inputs import GPU, HOST, clear_rows, close, inputs, leaves, torch

from splash_attention import AdaptiveSplashAttention, splash_attention
from splash_attention.backends.torch.operators import Problem

OPS = torch.ops.splash_attention
K_KEEP = {"all": None, "number": 9, "heads": [1, 0, 40, 150]}


def problem(alpha, causal, k_keep, offsets, device):
    heads = torch.tensor(k_keep, dtype=torch.int32, device=device) if isinstance(k_keep, list) else None
    number = k_keep if isinstance(k_keep, int) else 0
    return Problem(alpha, 0.0, causal, 0.0, number, 0, tau_offsets=offsets, head_k_keep=heads)


def both_passes(tensors, d_out, device, dtype, alpha, causal, k_keep, offsets):
    """out, gradients of q, k, v and alpha, tau, support, peak."""
    q, k, v = leaves(tensors, device, dtype)
    a = torch.tensor(alpha, device=device).requires_grad_()
    kind = torch.float64 if dtype == torch.float64 else torch.float32
    values = problem(a, causal, k_keep, None if offsets is None else offsets.to(device, kind), device)
    capacity = 100 if device == GPU else -1  # too small: the store grows
    out, tau, support, peak, _ = OPS.attention(q, k, v, *values, True, True, capacity)
    out.backward(d_out.to(device, dtype))
    return out, q.grad, k.grad, v.grad, a.grad, tau, support, peak


@pytest.mark.parametrize("k_keep", K_KEEP.values(), ids=K_KEEP)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@pytest.mark.parametrize("dim, scale", [(64, 2.0), (64, 0.1), (32, 2.0), (128, 2.0), (136, 1.0), (256, 0.1)])
@pytest.mark.parametrize("given", [True, False])
def test_both_passes(given, dim, scale, dtype, k_keep):
    tensors = inputs(dtype, q_len=290, kv_len=333, dim=dim, scale=scale)
    offsets = -torch.rand(tensors[0].shape[:3]).sqrt() if given else None
    alpha = [1.2, 1.5, 1.4, 1.1]  # above 1.5 gradients jump where a key enters the support
    clear = clear_rows(*tensors[:2], k_keep)
    assert clear.double().mean() > 0.98
    d_out = torch.randn(tensors[0].shape) * clear
    mine = both_passes(tensors, d_out, GPU, dtype, alpha, True, k_keep, offsets)
    reference = both_passes(tensors, d_out, HOST, torch.float64, alpha, True, k_keep, offsets)
    close(mine[0] * clear.to(GPU), reference[0] * clear, dtype)
    for a, b in zip(mine[1:4], reference[1:4]):
        close(a, b, dtype)
    close(mine[4], reference[4], dtype, times=10)  # a sum over 580 rows whose terms cancel: 5.07 seen
    for a, b in zip((mine[5], mine[7]), (reference[5], reference[7])):
        torch.testing.assert_close(a.cpu().double(), b, atol=5e-5, rtol=5e-5)
    assert (mine[6].cpu() - reference[6]).abs().double().mean() < 0.05


@pytest.mark.parametrize("alpha", [1.5, 2.0, 1.75])
def test_rows_longer_than_any_list(alpha):
    """Low thresholds of nearly equal scores: every key takes part, by the kernel that holds no list."""
    tensors = inputs(torch.bfloat16, q_len=65, kv_len=3000, scale=0.01)
    offsets = torch.full(tensors[0].shape[:3], -0.9)
    d_out = torch.randn(tensors[0].shape)
    mine = both_passes(tensors, d_out, GPU, torch.bfloat16, [alpha] * 4, False, None, offsets)
    reference = both_passes(tensors, d_out, HOST, torch.float64, [alpha] * 4, False, None, offsets)
    assert (mine[6] == 3000).all()
    for a, b in zip(mine[:4], reference[:4]):
        close(a, b, torch.bfloat16)


def test_nan_out_of_the_bracket_and_hidden_rows():
    q, k, v = (t.to(GPU) for t in inputs())
    offsets = torch.full(q.shape[:3], -0.4, device=GPU)
    offsets[0, 1] = torch.nan
    offsets[1, 2], offsets[1, 3] = -3.0, 2.0  # held at the ends of tau's bracket
    positions = torch.arange(300, device=GPU)
    queries = positions - 1
    values = Problem(None, 1.5, False, 0.0, 0, 0, q_positions=queries, k_positions=positions, tau_offsets=offsets)
    out, tau, support, *_ = OPS.attention(q, k, v, *values, True, False, -1)
    assert out[0, 1, 1:].isnan().all() and tau[0, 1, 1:].isnan().all()
    assert (out[:, :, 0] == 0).all() and tau[:, :, 0].isinf().all() and (support[:, :, 0] == 0).all()
    offsets[1, 2], offsets[1, 3] = -7.0, 5.0
    further = OPS.attention(q, k, v, *values, True, False, -1)[0]
    assert torch.equal(out[1], further[1]) and out[1].isfinite().all()
    offsets[1, 2], offsets[1, 3] = -1.0, -(300**-0.5)  # the ends, as rounded here
    close(out[1], OPS.attention(q, k, v, *values, True, False, -1)[0][1].cpu(), torch.bfloat16)


@pytest.mark.parametrize("options", [{"dtype": torch.float64}, {"dim": 20}], ids=str)
def test_what_the_kernels_do_not_take_is_computed_without_them(options):
    options = {"dtype": torch.float32, "dim": 32, **options}
    tensors = inputs(options["dtype"], q_len=60, kv_len=80, dim=options["dim"])
    offsets, d_out = -torch.rand(tensors[0].shape[:3]).sqrt(), torch.randn(tensors[0].shape)
    call = (options["dtype"], [1.5] * 4, True, [3, 0, 9, 70], offsets)
    results = [both_passes(tensors, d_out, device, *call)[:4] for device in (GPU, HOST)]
    for mine, reference in zip(*results):
        close(mine, reference, options["dtype"])


def test_the_module_trains_at_a_length_whose_scores_would_not_fit():
    length = 1 << 16  # scores of 16 heads in float32: 275 GB
    module = AdaptiveSplashAttention(
        64, num_heads=16, threshold_mode="direct", causal=True, k_keep=64, k_keep_target=0.99, learn_alpha=True
    ).to(GPU)
    q, k, v = ((scale * torch.randn(1, 16, length, 64, device=GPU)).bfloat16().requires_grad_() for scale in (3, 1, 1))
    torch.cuda.reset_peak_memory_stats()
    out = module(q, k, v)
    (out.float().square().mean() + module.threshold_loss).backward()
    module.adapt_k_keep()
    assert torch.cuda.max_memory_allocated() < 40 << 30
    for gradient in (q.grad, k.grad, v.grad, module.alpha_logit.grad, module.threshold_weight.grad):
        assert gradient.isfinite().all() and gradient.abs().sum() > 0
    assert module.k_keep.shape == (16,) and (module.k_keep >= 1).all() and (module.support <= 64).all()


def test_the_module_is_the_same_as_on_the_cpu():
    tensors = inputs(torch.float32, kv_heads=4)
    options = {"threshold_mode": "direct", "causal": True, "k_keep": [4, 0, 20, 3], "k_keep_target": 0.9}
    module = AdaptiveSplashAttention(64, num_heads=4, **options)
    with torch.no_grad():
        module.threshold_weight.normal_(std=0.1)
    results = []
    for device in (HOST, GPU):
        here = AdaptiveSplashAttention(64, num_heads=4, **options)
        here.load_state_dict(module.state_dict())
        here.to(device)
        out = here(*(t.to(device) for t in tensors))
        loss = here.threshold_loss
        for _ in range(2):
            here.adapt_k_keep()
        results.append((out, loss, here.k_keep, here.probabilities().to_dense()))
    close(results[1][0], results[0][0], torch.float32)
    torch.testing.assert_close(results[1][1].cpu(), results[0][1], rtol=1e-3, atol=1e-6)
    assert (results[1][2].cpu() - results[0][2]).abs().max() <= 1
    close(results[1][3], results[0][3], torch.float32)


def test_every_run_gives_the_same_bits():
    q, k, v = (t.to(GPU) for t in inputs(kv_len=900, scale=0.3))
    offsets = -torch.rand(q.shape[:3], device=GPU)
    kept = torch.tensor([0, 3, 60, 300], dtype=torch.int32, device=GPU)
    values = Problem(None, 1.5, False, 0.0, 0, 0, tau_offsets=offsets, head_k_keep=kept)
    first = OPS.attention(q, k, v, *values, True, True, 1 << 20)
    for _ in range(5):
        assert all(torch.equal(a, b) for a, b in zip(first[:4], OPS.attention(q, k, v, *values, True, True, 1 << 20)))


def test_a_k_keep_a_head_is_that_k_keep_for_each_head_apart():
    q, k, v = (t.to(GPU) for t in inputs(scale=0.3))
    out = splash_attention(q, k, v, k_keep=[3, 0, 50, 200])
    for head, k_keep in enumerate([3, None, 50, 200]):
        close(out[:, head], splash_attention(q, k, v, k_keep=k_keep)[:, head].cpu(), torch.bfloat16)
    assert torch.equal(out, splash_attention(q, k, v, k_keep=torch.tensor([3, 0, 50, 200], device=GPU)))
