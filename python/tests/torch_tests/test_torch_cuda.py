"""The operators on a GPU against those on the CPU, which have their own tests, on the same rounded inputs."""

from __future__ import annotations

import pytest

from gpu_inputs import BOUND, GPU, HOST, close, inputs, leaves, torch

from splash_attention import AdaptiveSplashAttention, entmax, splash_attention
from splash_attention.backends.torch import cuda


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dim", [32, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("scale", [0.1, 2.0])  # nearly dense, and sparse
def test_both_passes(dtype, dim, scale):
    given = inputs(dtype, q_len=290, kv_len=333, dim=dim, scale=scale)
    alpha = torch.tensor([1.2, 1.5, 1.8, 2.0])
    d_out = torch.randn(given[0].shape)
    results = []
    for device, kind in ((GPU, dtype), (HOST, torch.float64)):
        q, k, v = leaves(given, device, kind)
        a = alpha.to(device).requires_grad_()
        out, aux = splash_attention(q, k, v, alpha=a, causal=True, return_aux=True)
        out.backward(d_out.to(device, kind))
        results.append((out, q.grad, k.grad, v.grad, a.grad, aux))
    for mine, reference in zip(*(result[:5] for result in results)):
        close(mine, reference, dtype)
    mine, reference = results[0][5], results[1][5]
    torch.testing.assert_close(mine.tau.cpu().double(), reference.tau, atol=2e-5, rtol=2e-5)
    assert (mine.support.cpu() - reference.support).abs().double().mean() < 0.05


@pytest.mark.parametrize("n", [1, 2, 5, 64, 65, 129])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_a_query_that_sees_one_key_has_no_gradient(dtype, n):
    """Its probability is 1 whatever its score."""
    q, k, v = leaves(inputs(dtype, q_len=n, kv_len=n), GPU)
    splash_attention(q, k, v, causal=True).float().square().sum().backward()
    assert not q.grad[:, :, 0].any()


def test_training_and_inference_give_the_same_output():
    q, k, v = (t.to(GPU) for t in inputs())
    inference = splash_attention(q, k, v)
    assert torch.equal(inference, splash_attention(q.requires_grad_(), k, v))
    assert torch.equal(inference, splash_attention(q, k, v, return_aux=True)[0])


@pytest.mark.skipif(
    not hasattr(torch.Tensor, "__dlpack_c_exchange_api__"), reason="before PyTorch 2.10 C code cannot look at its tensors"
)
@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("gradient", [False, True])
def test_a_call_like_one_before_is_not_checked_again(gradient, learned, monkeypatch):
    class Checked(Exception):
        pass

    def check(*inputs):
        raise Checked

    q, k, v = (t.to(GPU).requires_grad_(gradient) for t in inputs())
    alpha = torch.full((4,), 1.7, device=GPU, requires_grad=gradient) if learned else 1.7
    known = {"alpha": alpha, "causal": True, "scale": 0.1, "k_keep": None, "window": 70}
    expected = splash_attention(q, k, v, **known)
    more = torch.randn_like(v)
    of_more = splash_attention(q, k, more, return_aux=True, **known)[0]
    with monkeypatch.context() as patched:
        patched.setattr(cuda, "_problem_of", check)
        assert torch.equal(splash_attention(q, k, v, **known), expected)
        last = splash_attention(q, k, more, **known)
        assert torch.equal(last, of_more) and last.requires_grad == gradient
        for other in ({"alpha": 1.6}, {"alpha": torch.ones(1, device=GPU)}, {"causal": False, "window": None}, {"scale": 0.2}, {"scale": None}, {"k_keep": 9}, {"window": 71}):
            with pytest.raises(Checked):
                splash_attention(q, k, v, **{**known, **other})
        for others in ([t[:, :, :-1] for t in (k, v)], [t.half() for t in (k, v)], [k, v[..., ::2]], [k.cpu(), v]):
            with pytest.raises((Checked, TypeError, ValueError)):
                splash_attention(q, *others, **known)
    across = q.detach().transpose(1, 2).contiguous().transpose(1, 2).requires_grad_(gradient)  # other strides
    shifted = torch.empty(q.numel() + 1, dtype=q.dtype, device=GPU)[1:].view_as(q).copy_(q.detach())  # not aligned
    for same in (across, shifted.requires_grad_(gradient)):
        assert torch.equal(splash_attention(same, k, v, **known), expected)
    if gradient:
        sources = [q, k, alpha] if learned else [q, k]
        for mine, other in zip(*(torch.autograd.grad(out.sum(), sources) for out in (last, of_more))):
            close(mine, other.cpu(), torch.bfloat16)
    with pytest.raises(NotImplementedError, match="a negated view"):  # of the same memory as k
        splash_attention(q, torch._neg_view(k), v, **known)
    if learned:  # its values are looked at in every call
        for value in (2.0, 1.0):
            out = splash_attention(q, k, v, **{**known, "alpha": torch.full((4,), value, device=GPU)})
            assert out.isnan().all() if value == 1 else torch.equal(out, splash_attention(q, k, v, **{**known, "alpha": 2.0}))


def test_a_store_that_is_too_small_grows():
    given = inputs(scale=0.02, dim=256)  # every key of every row, stored
    cuda._needed.clear()
    q, k, v = leaves(given, GPU)
    splash_attention(q, k, v).square().sum().backward()
    assert cuda._needed
    wide = leaves(given, HOST, torch.float64)
    splash_attention(*wide).square().sum().backward()
    for mine, reference in zip((q, k, v), wide):
        close(mine.grad, reference.grad, torch.bfloat16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])  # Hopper's path, and the portable one
def test_a_gradient_that_is_to_be_differentiated_is_the_same_and_refuses(dtype):
    q, k, v = leaves(inputs(dtype), GPU)
    gradients = torch.autograd.grad(splash_attention(q, k, v).square().sum(), (q, k, v))
    again = torch.autograd.grad(splash_attention(q, k, v).square().sum(), (q, k, v), create_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(gradients, again))
    with pytest.raises(NotImplementedError, match="second derivative"):
        again[0].sum().backward()


def test_gradients_have_the_same_bits_every_time():
    given = inputs(q_len=700, kv_len=700)
    results = []
    for _ in range(20):
        q, k, v = leaves(given, GPU)
        splash_attention(q, k, v, causal=True).square().sum().backward()
        results.append((q.grad, k.grad, v.grad))
    assert all(torch.equal(a, b) for other in results for a, b in zip(other, results[0]))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [1, 7, 1000, 20000])
def test_entmax_of_rows(dtype, n):
    x = (3 * torch.randn(9, n)).to(dtype)
    x[0, 0] = -torch.inf
    if n > 1:
        x[1, 1:] = -torch.inf
        x[2] = x[2, 0]
        x[3] = -torch.inf
        x[4, 1] = torch.nan
        x[5, 0] = torch.inf
    alpha = torch.tensor([1.5, 1.2, 1.5, 2.0, 1.5, 2.0, 2.5, 1.9, 4.0], dtype=torch.float64)
    d_p = torch.randn(9, n).to(dtype)
    results = []
    for device, kind in ((GPU, dtype), (HOST, torch.float64)):
        row, a = x.to(device, kind).requires_grad_(), alpha.to(device).requires_grad_()
        p = entmax(row, a)
        p.backward(d_p.to(device, kind))
        results.append([t.detach().cpu().double() for t in (p, row.grad, a.grad)])
    steep = {torch.float64: 1e-4, torch.float32: 5e-3}.get(dtype, 5e-2)  # alpha 4: p is infinitely steep where it begins
    (p, dx, da), (ref_p, ref_dx, ref_da) = results
    torch.testing.assert_close(p[:8], ref_p[:8], atol=max(1e-6, BOUND[dtype]), rtol=0, equal_nan=True)
    torch.testing.assert_close(p[8], ref_p[8], atol=steep, rtol=0)
    if dtype in (torch.float64, torch.float32):
        tolerance = 1e-8 if dtype == torch.float64 else 2e-4
        torch.testing.assert_close(dx[:6], ref_dx[:6], atol=tolerance, rtol=tolerance, equal_nan=True)
        torch.testing.assert_close(da[:6], ref_da[:6], atol=10 * tolerance, rtol=10 * tolerance, equal_nan=True)


def test_alphas_that_entmax_does_not_take_become_nan():
    x = torch.randn(3, 50, device=GPU)
    p = entmax(x, torch.tensor([1.0, torch.nan, 1.5], device=GPU))
    assert p[:2].isnan().all() and not p[2].isnan().any()
    q, k, v = leaves(inputs(), GPU)
    alpha = torch.tensor([1.5, 2.0, torch.nan, 2.5], device=GPU, requires_grad=True)
    out, aux = splash_attention(q, k, v, alpha=alpha, return_aux=True)
    out.sum().backward()
    for result, heads in ((out, 2), (aux.tau, 2), (q.grad, 2), (k.grad, 1), (v.grad, 1), (alpha.grad[None], 2)):
        assert not result[:, :heads].isnan().any() and result[:, heads:].isnan().all()
    p = aux.probabilities().to_dense().view(2, 4, 300, 300)
    assert not p[:, :2].isnan().any() and p[:, 2:].isnan().any(-1).all()
    assert splash_attention(q, k, v, alpha=torch.tensor([0.5], device=GPU)).isnan().all()


def test_probabilities_are_those_of_the_cpu():
    given = inputs(q_len=100, kv_len=90)
    _, aux = splash_attention(*(t.to(GPU) for t in given), causal=True, return_aux=True)
    _, reference = splash_attention(*(t.double() for t in given), causal=True, return_aux=True)
    mine, expected = aux.probabilities(), reference.probabilities()
    torch.testing.assert_close(mine.to_dense().cpu().double(), expected.to_dense(), atol=5e-3, rtol=0)
    assert aux.sparsity_by_token == pytest.approx(reference.sparsity_by_token, abs=1e-3)
    assert aux.sparsity_by_block(16) == pytest.approx(reference.sparsity_by_block(16), abs=1e-2)


def test_the_callers_stream_is_used():
    q, k, v = (t.to(GPU) for t in inputs(q_len=2000, kv_len=2000))
    expected = splash_attention(q, k, v)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(50_000_000)
        late = q * 1
        out = splash_attention(late, k, v)
    stream.synchronize()
    assert torch.equal(out, expected)


@pytest.mark.parametrize("library", ["cupy", "jax.numpy"])
def test_arrays_of_other_libraries(library, monkeypatch):
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")  # JAX would take most of the memory
    there = pytest.importorskip(library)
    given = inputs(torch.float16)
    q, k, v = (there.asarray(t.numpy()) for t in given)
    expected, reference = splash_attention(*(t.to(GPU) for t in given), causal=True, return_aux=True)
    for _ in range(3):
        out, aux = splash_attention(q * 1, k, v, causal=True, return_aux=True)  # as soon as q is under way
        assert type(out) is type(q) and type(aux.tau) is type(q)
        assert torch.equal(torch.from_dlpack(out * 1), expected) and torch.equal(torch.from_dlpack(aux.tau), reference.tau)
    p = entmax(q, alpha=2.0, dim=2)
    assert type(p) is type(q) and torch.equal(torch.from_dlpack(p), entmax(given[0].to(GPU), alpha=2.0, dim=2))


def test_compiles_and_replays_as_a_graph():
    given = inputs()
    q, k, v = leaves(given, GPU)
    expected = splash_attention(q, k, v, causal=True)
    expected.sum().backward()
    gradient, q.grad = q.grad, None
    out = torch.compile(lambda *t: splash_attention(*t, causal=True), fullgraph=True)(q, k, v)
    out.sum().backward()
    assert torch.equal(out, expected) and torch.equal(q.grad, gradient)
    with torch.no_grad():
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            replayed = splash_attention(q, k, v, causal=True)
        graph.replay()
        assert torch.equal(replayed, expected)


def test_the_module_learns_on_a_gpu():
    module = AdaptiveSplashAttention(64, num_heads=4, alpha=1.4, learn_alpha=True, causal=True).to(GPU)
    q, k, v = (t.to(GPU) for t in inputs(kv_heads=4))
    optimizer = torch.optim.Adam(module.parameters(), lr=0.05)
    losses = []
    for _ in range(40):
        out = module(q, k, v)
        loss = module.threshold_loss + 1e-3 * out.float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(module.threshold_loss.item())
    assert losses[-1] < losses[0] / 3
    host = AdaptiveSplashAttention(64, num_heads=4, alpha=1.4, learn_alpha=True, causal=True)
    host.load_state_dict({name: t.cpu() for name, t in module.state_dict().items()})
    module(q, k, v), host(q.cpu(), k.cpu(), v.cpu())
    assert module.threshold_loss.item() == pytest.approx(host.threshold_loss.item(), rel=1e-2)
    assert module.eval()(q, k, v).shape == q.shape and 0 < module.sparsity_by_token < 1


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize(
    "dtype, dim, known",
    [
        (torch.float64, 64, {}),
        (torch.float32, 64, {"alpha": 1.000001}),
        (torch.bfloat16, 64, {"alpha": 1.005}),
        (torch.bfloat16, 128, {"alpha": 2.5, "k_keep": 9}),
        (torch.float16, 64, {"alpha": [1.005, 1.5, 2.0, 3.0]}),
        (torch.float32, 20, {}),
        (torch.float16, 320, {}),
        (torch.float32, 64, {"scale": -0.2}),
    ],
)
def test_what_the_kernels_do_not_take_is_computed_all_the_same(dtype, dim, known, compiled):
    given = inputs(dtype, q_len=290, kv_len=333, dim=dim)
    call = torch.compile(splash_attention, fullgraph=True) if compiled else splash_attention
    d_out = torch.randn(given[0].shape)
    results = []
    for device, kind, function in ((GPU, dtype, call), (HOST, torch.float64, splash_attention)):
        q, k, v = leaves(given, device, kind)
        out = function(q, k, v, causal=True, **known)
        out.backward(d_out.to(device, kind))
        aux = splash_attention(q, k, v, causal=True, return_aux=True, **known)[1]
        results.append((out, q.grad, k.grad, v.grad, aux.probabilities().to_dense(), aux.tau))
    # Entmax of rows in float64 is exact to 1e-9; near alpha 1 float32 loses a digit.
    bound = {torch.float64: 1e-8, torch.float32: 1e-4}.get(dtype, BOUND[dtype])
    for mine, reference in zip(*results):
        assert mine.dtype == dtype or mine is results[0][5]
        error = (mine.detach().double().cpu() - reference.detach()).norm() / reference.detach().norm()
        assert error < bound, float(error)


def test_an_alpha_of_64_is_nearly_a_maximum():
    given = inputs(torch.float32)
    q, k, v = leaves(given, GPU)
    out = splash_attention(q, k, v, alpha=64.0, causal=True)
    out.sum().backward()
    close(out, splash_attention(*(t.double() for t in given), alpha=64.0, causal=True), torch.float32)
    assert all(t.grad.isfinite().all() for t in (q, k, v))


def test_a_modules_alphas_that_the_kernels_do_not_take():
    given = inputs(torch.float32)
    for alpha in (2.5, [1.5, 2.5, 1.005, 2.0]):
        attention = AdaptiveSplashAttention(64, alpha=alpha, num_heads=4, causal=True)
        expected = attention(*given)
        for module in (attention.to(GPU), AdaptiveSplashAttention(64, num_heads=4, causal=True).to(GPU)):
            module.alpha = alpha
            close(module(*(t.to(GPU) for t in given)), expected, torch.float32)


def test_large_problems_that_the_kernels_do_not_take():
    given = inputs(torch.float16, 4096, 4096, 64, heads=16, kv_heads=4, batch=1)
    q, k, v = leaves(given, GPU)
    torch.cuda.reset_peak_memory_stats()
    out = splash_attention(q, k, v, alpha=3.0, causal=True)
    out.sum().backward()
    assert torch.cuda.max_memory_allocated() < 2 << 30  # all scores in float32 are 1 GiB, and there are five such matrices
    rows = [0, 1, 2000, 4095]
    for row in rows:
        part = (t.double() for t in (given[0][:, :, row : row + 1], given[1][:, :, : row + 1], given[2][:, :, : row + 1]))
        close(out[:, :, row : row + 1], splash_attention(*part, alpha=3.0), torch.float16)


def test_what_the_gpu_does_not_take():
    q, k, v = (t.to(GPU) for t in inputs())
    for call, kind, sentence in (
        (lambda: splash_attention(q, k.cpu(), v), ValueError, "k is on cpu and q on cuda:0"),
        (lambda: splash_attention(q, k, v, alpha=1.0000001), ValueError, "alpha"),
        (lambda: splash_attention(q, k, v, alpha=[1.5, 65, 2, 2]), ValueError, "alpha"),
    ):
        with pytest.raises(kind, match=sentence):
            call()


def test_a_transformer_trains():
    transformers = pytest.importorskip("transformers", minversion="5.0")
    from splash_attention import hugging_face

    hugging_face.register()
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=512,
    )  # fmt: skip
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="splash").to(GPU)
    text = torch.arange(256, device=GPU).repeat(4, 1) % 7
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(40):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(text, labels=text).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 < losses[0]
