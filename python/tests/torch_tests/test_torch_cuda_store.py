"""What forward leaves for backward on a GPU: it is read as it was written, whatever happens in between, or refused."""

from __future__ import annotations

import pytest
from gpu_inputs import GPU, HOST, close, inputs, leaves, torch
from torch.utils.checkpoint import checkpoint

from splash_attention import AdaptiveSplashAttention, splash_attention
from splash_attention.backends.torch import cuda, operators

OPS = torch.ops.splash_attention
PLAIN = operators.Problem(None, 1.5, False, 0.0, 0, 0)
BROAD = {"scale": 0.02, "dim": 256}  # every key of every row has a part, and all of them are stored


@pytest.fixture(autouse=True)
def nothing_is_known():
    cuda._needed.clear()
    yield
    cuda._needed.clear()


def gradients_of(out, sources):
    return torch.autograd.grad(out.float().square().sum(), sources)


def same(mine, reference):
    assert all(torch.equal(a, b) for a, b in zip(mine, reference, strict=True))


def layers(q, k, v, count=4):
    """Of the same shapes, with supports that differ: the first ones broad, so that stores grow in backward."""
    out = q
    for i in range(count):
        out = out + splash_attention(out * (0.01 if i < 2 else 1.0), k, v, causal=True)
    return out


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("wide", [BROAD, {"dim": 64}])
def test_activation_checkpoints(reentrant, wide):
    q, k, v = leaves(inputs(**wide), GPU)
    expected = gradients_of(layers(q, k, v), (q, k, v))

    def checkpointed(out):
        out.float().square().sum().backward()  # what reentrant checkpoints need
        same([t.grad for t in (q, k, v)], expected)
        q.grad = k.grad = v.grad = None

    for known in (False, True):  # whether such stores grew before
        if not known:
            cuda._needed.clear()
        out = q
        for i in range(4):
            layer = lambda x, k, v, i=i: x + splash_attention(x * (0.01 if i < 2 else 1.0), k, v, causal=True)
            out = checkpoint(layer, out, k, v, use_reentrant=reentrant)
        checkpointed(out)
        checkpointed(checkpoint(layers, q, k, v, use_reentrant=reentrant))


def test_a_wrapped_module_is_recomputed_as_fsdp_does_it():
    wrapper = pytest.importorskip("torch.distributed.algorithms._checkpoint.checkpoint_wrapper")

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = AdaptiveSplashAttention(64, num_heads=4, alpha=1.4, learn_alpha=True, causal=True)

        def forward(self, q, k, v):
            return q + self.attention(q, k, v)

    given = inputs(kv_heads=4)
    results = []
    for wrap in (lambda layer: layer, wrapper.checkpoint_wrapper):
        torch.manual_seed(0)
        model = torch.nn.ModuleList(wrap(Layer()) for _ in range(3)).to(GPU)
        q, k, v = leaves(given, GPU)
        out = q
        for layer in model:
            out = layer(out, k, v)
        out.float().square().sum().backward()
        results.append([q.grad, k.grad, v.grad, *(p.grad for p in model.parameters() if p.grad is not None)])
    same(*results)


def test_saved_tensors_on_the_host_and_back():
    q, k, v = leaves(inputs(**BROAD), GPU)
    expected = gradients_of(splash_attention(q, k, v), (q, k, v))
    with torch.autograd.graph.save_on_cpu(pin_memory=True):
        out = splash_attention(q, k, v)
    same(gradients_of(out, (q, k, v)), expected)


@pytest.mark.parametrize("wide", [BROAD, {"dim": 64}])
def test_backward_twice_on_one_forward(wide):
    q, k, v = leaves(inputs(**wide), GPU)
    out = splash_attention(q, k, v)
    first = torch.autograd.grad(out.float().square().sum(), (q, k, v), retain_graph=True)
    same(gradients_of(out, (q, k, v)), first)


def test_stores_grow_between_a_forward_and_its_backward():
    q, k, v = leaves(inputs(dim=256), GPU)
    out = splash_attention(q, k, v)
    expected = torch.autograd.grad(out.float().square().sum(), (q, k, v), retain_graph=True)
    before = cuda.capacity_for(q, k)
    broad = leaves(inputs(**BROAD), GPU)
    gradients_of(splash_attention(*broad), broad)
    assert cuda.capacity_for(q, k) > before
    same(gradients_of(out, (q, k, v)), expected)


def test_several_streams():
    problems = [leaves(inputs(q_len=1500, kv_len=1500, scale=scale), GPU) for scale in (0.02, 0.5, 2.0, 8.0)]
    expected = [gradients_of(splash_attention(*problem, causal=True), problem) for problem in problems]
    cuda._needed.clear()
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in problems]
    for _ in range(5):
        outs, mine = [], []
        for problem, stream in zip(problems, streams):
            with torch.cuda.stream(stream):
                outs.append(splash_attention(*problem, causal=True))
        for i, (problem, out) in enumerate(zip(problems, outs)):  # backward from another stream than forward's
            other = streams[(i + 1) % len(streams)]
            other.wait_stream(streams[i])
            with torch.cuda.stream(other):
                mine.append(gradients_of(out, problem))
        torch.cuda.synchronize()
        for some, others in zip(mine, expected):
            same(some, others)


@pytest.mark.parametrize("counted", [False, True])
@pytest.mark.parametrize("with_peak", [False, True])
@pytest.mark.parametrize("capacity", [-5, -1, 0, 3, 100_000])
def test_the_operator_with_any_capacity(counted, with_peak, capacity):
    given = inputs(q_len=200, kv_len=230)
    q, k, v = leaves(given, GPU)
    poison = torch.full((1 << 24,), 255, dtype=torch.uint8, device=GPU)
    del poison  # what the allocator hands out next holds no zeros
    problem = PLAIN._replace(causal=True)
    out, tau, support, peak, store = OPS.attention(q, k, v, *problem, counted, with_peak, capacity)
    assert tau.numel() == support.numel() == (q[..., 0].numel() if counted else 0)
    assert peak.numel() == (q[..., 0].numel() if with_peak else 0)
    assert store.numel() == (operators.store_bytes(q.shape, capacity) if capacity >= 0 else 0)
    wide = leaves(given, HOST, torch.float64)
    reference, aux = splash_attention(*wide, causal=True, return_aux=True)
    close(out, reference, torch.bfloat16)
    if counted:
        torch.testing.assert_close(tau.cpu().double(), aux.tau, atol=2e-5, rtol=2e-5)
    for mine, expected in zip(gradients_of(out, (q, k, v)), gradients_of(reference, wide)):
        close(mine, expected, torch.bfloat16)


def test_a_store_of_another_forward_is_refused():
    q, k, v = (t.to(GPU) for t in inputs())
    problem = PLAIN
    *_, store = OPS.attention(q, k, v, *problem, False, False, 5000)
    backward = lambda store, q=q, problem=problem: OPS.attention_backward(torch.ones_like(q), q, k, v, *problem, store)
    assert all(gradient.isfinite().all() for gradient in backward(store)[:3])
    foreign = [store[:-8].clone(), torch.zeros_like(store), torch.full_like(store, 255)]
    for other in (*foreign, store[:100].clone()):
        with pytest.raises(ValueError, match="not what forward left"):
            backward(other)
    for others in ({"q": q[:, :, 1:]}, {"problem": PLAIN._replace(causal=True)}, {"problem": PLAIN._replace(scale=0.3)}):
        with pytest.raises(ValueError, match="not what forward left"):
            backward(store, **others)


def test_a_captured_graph_whose_store_is_too_small_says_so_in_its_gradients():
    static = leaves(inputs(dim=256), GPU)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            gradients_of(splash_attention(*static), static)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = splash_attention(*static)
        captured = gradients_of(out, static)
    expected = gradients_of(splash_attention(*static), static)
    graph.replay()
    same(captured, expected)
    with torch.no_grad():
        static[0].mul_(0.01)  # every key of every row, for which the graph's store has no room
    graph.replay()
    assert out.isfinite().all() and all(gradient.isnan().all() for gradient in captured)
    with torch.no_grad():
        static[0].mul_(100)
    graph.replay()
    assert all(gradient.isfinite().all() for gradient in captured)


def test_between_the_passes_only_the_store_is_kept():
    q, k, v = (t.to(GPU).requires_grad_() for t in inputs(q_len=8192, kv_len=8192, heads=8, kv_heads=8))
    splash_attention(q, k, v, causal=True)
    before = torch.cuda.memory_allocated()
    out = splash_attention(q, k, v, causal=True)
    kept = torch.cuda.memory_allocated() - before - out.numel() * out.element_size()
    assert kept <= operators.store_bytes(q.shape, cuda.capacity_for(q, k)) + 2048


@pytest.mark.parametrize("shared", [False, True])
def test_jacobians(shared):
    """vmap over backward alone (jacrev), and over both passes."""
    q, k, v = (t.to(GPU, torch.float32) for t in inputs(q_len=5, kv_len=7, dim=8, heads=2, kv_heads=2, batch=1))
    wide = [t.double().cpu() for t in (q, k, v)]
    call = lambda q, k, v: splash_attention(q, k, v).sum(-1)
    if shared:
        mine, expected = (torch.func.jacrev(call, argnums=(0, 1, 2))(*given) for given in ((q, k, v), wide))
    else:
        stacked = lambda given: [torch.stack([t, 2 * t, t.flip(2)]) for t in given]
        loss = lambda *given: call(*given).square().sum()
        mine, expected = (
            torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*stacked(given)) for given in ((q, k, v), wide)
        )
    for some, others in zip(mine, expected):
        close(some, others, torch.float32)
