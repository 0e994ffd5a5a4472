"""entmax and splash_attention of torch tensors: values, gradients, compiler, transforms, and what is refused."""

from __future__ import annotations

import dense
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import AdaptiveSplashAttention, entmax, entmax15, sparsemax, splash_attention  # noqa: E402
from splash_attention.backends.torch.functional import problem_of  # noqa: E402
from splash_attention.backends.torch.operators import TABLES  # noqa: E402

OPS = torch.ops.splash_attention
ALPHA = [1.2, 1.5, 1.8, 2.0]  # a head


def tensors(q_len=5, kv_len=7, dtype=torch.float32, grad=True, batch=2, dim=8, heads=4):
    shapes = ((batch, heads, q_len, dim), (batch, 2, kv_len, dim), (batch, 2, kv_len, dim))
    return tuple(torch.randn(shape, dtype=dtype, requires_grad=grad) for shape in shapes)


def problem(q, k, v, alpha=1.5, causal=False, **tables):
    return problem_of(q, k, v, alpha, causal, None, None, None, {**dict.fromkeys(TABLES), **tables})


MASKS = {
    "all keys": {},
    "causal": {"causal": True},
    "window": {"causal": True, "window": 3},
    "window to both sides": {"window": 2},
    "packed window": {
        "causal": True, "window": 2, "cu_seqlens_q": torch.tensor([0, 2, 5]), "cu_seqlens_k": torch.tensor([0, 4, 7])
    },
    "positions": {"q_positions": torch.tensor([3, 0, 5, 2, 9]), "k_positions": torch.tensor([1, 4, 0, 2, 8, 3, 9])},
    "packed": {"causal": True, "cu_seqlens_q": torch.tensor([0, 2, 5]), "cu_seqlens_k": torch.tensor([0, 4, 7])},
    "k_keep": {"k_keep": 3},
}


@pytest.mark.parametrize("mask", MASKS)
def test_attention_gradients_are_the_differences(mask):
    q, k, v = tensors(dtype=torch.float64, batch=1, dim=3)
    alpha = torch.tensor(ALPHA, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda q, k, v, alpha: splash_attention(q, k, v, alpha=alpha, **MASKS[mask]), (q, k, v, alpha)
    )


def test_entmax_gradients_are_the_differences():
    x = torch.randn(3, 5, 4, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor([1.2, 1.5, 2.0], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, alpha: entmax(x, alpha[:, None], dim=1), (x, alpha))
    one = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, alpha: entmax(x, alpha, dim=0), (x, one))


@pytest.mark.parametrize("dtype, bound", [(torch.float32, 1e-5), (torch.bfloat16, 2e-2), (torch.float16, 3e-3)])
def test_attention_is_the_dense_one_in_every_dtype(dtype, bound):
    q, k, v = tensors(70, 90, dtype, grad=False, dim=32)
    out = splash_attention(q, k, v, alpha=torch.tensor(ALPHA), causal=True)
    assert out.dtype == dtype and out.is_contiguous()
    expected, _ = dense.attention(*(t.double().numpy() for t in (q, k, v)), np.array(ALPHA), dense.causal(70, 90))
    np.testing.assert_allclose(out.double().numpy(), expected, atol=bound)


def test_gradients_in_low_precision_are_those_of_its_values():
    q, k, v = tensors(30, 30, torch.bfloat16, dim=16)
    wide = [t.detach().double().requires_grad_() for t in (q, k, v)]
    for inputs in ((q, k, v), wide):
        out = splash_attention(*inputs, causal=True)
        out.backward(torch.ones_like(out))
    for narrow, reference in zip((q, k, v), wide):
        assert narrow.grad.dtype == torch.bfloat16
        torch.testing.assert_close(narrow.grad.double(), reference.grad, atol=5e-2, rtol=2e-2)


def test_agrees_with_the_entmax_package():
    package = pytest.importorskip("entmax", reason="the entmax package is not installed; ./splash test installs it")
    x = 3 * torch.randn(40, 200)
    torch.testing.assert_close(entmax15(x), package.entmax15(x), atol=1e-5, rtol=0)
    torch.testing.assert_close(sparsemax(x, dim=0), package.sparsemax(x, dim=0), atol=1e-5, rtol=0)
    for alpha in (1.2, 1.8):
        theirs = package.entmax_bisect(x, alpha, n_iter=60)
        torch.testing.assert_close(entmax(x, alpha), theirs, atol=1e-5, rtol=0)


def test_a_number_alpha_is_not_rounded():
    x = torch.randn(5, 9, dtype=torch.float64)
    np.testing.assert_array_equal(entmax(x, 1.2).numpy(), entmax(x.numpy(), 1.2))


def test_compiles_without_a_graph_break():
    q, k, v = tensors()
    alpha = torch.tensor(ALPHA, requires_grad=True)

    def layer(q, k, v, alpha):
        return entmax(splash_attention(q, k, v, alpha=alpha, causal=True) * 2, 1.3).sum()

    splash_attention(*(x.detach().numpy() for x in (q, k, v)))  # what that leaves behind must not be in the way
    expected = torch.autograd.grad(layer(q, k, v, alpha), (q, k, v, alpha))
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for mine, reference in zip(torch.autograd.grad(compiled(q, k, v, alpha), (q, k, v, alpha)), expected):
        torch.testing.assert_close(mine, reference)


def test_annealing_alpha_compiles_no_more_than_twice():
    """Once for the first number, once for all others; a module's alpha is a buffer, so once."""
    from torch._dynamo.testing import CompileCounterWithBackend

    q, k, v = tensors()
    module = AdaptiveSplashAttention(8, 2.0, num_heads=4)

    def layer(q, k, v, alpha):
        return entmax(splash_attention(q, k, v, alpha=alpha, causal=True), alpha)

    counters = [CompileCounterWithBackend("aot_eager") for _ in range(2)]
    compiled = torch.compile(layer, fullgraph=True, backend=counters[0])
    compiled_module = torch.compile(module, fullgraph=True, backend=counters[1])
    with torch._dynamo.config.patch(recompile_limit=2, fail_on_recompile_limit_hit=True):
        for alpha in np.linspace(2.5, 1.02, 24).tolist():
            out, expected = compiled(q, k, v, alpha), layer(q, k, v, alpha)
            torch.testing.assert_close(out, expected)
            mine, reference = (torch.autograd.grad(p.square().sum(), (q, k, v)) for p in (out, expected))
            torch.testing.assert_close(mine, reference)
            module.alpha = alpha
            torch.testing.assert_close(compiled_module(q, k, v), splash_attention(q, k, v, alpha=alpha))
    assert [counter.frame_count for counter in counters] == [2, 1]
    with pytest.raises(ValueError, match="alpha is 0.5"):
        compiled(q, k, v, 0.5)


@pytest.mark.parametrize("alpha", [3, np.float32(1.5), [1.25, 1.5, 1.75, 2.0]], ids=repr)
def test_other_kinds_of_alpha_compile_too(alpha):
    q, k, v = tensors(grad=False)
    compiled = torch.compile(lambda q: splash_attention(q, k, v, alpha=alpha), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(q), splash_attention(q, k, v, alpha=alpha))


def test_autocast_computes_attention_in_its_dtype_and_entmax_in_float():
    q, k, v = tensors(grad=False)
    with torch.autocast("cpu", torch.bfloat16):
        assert splash_attention(q, k, v).dtype == torch.bfloat16
        assert splash_attention(q.bfloat16(), k, v.half()).dtype == torch.bfloat16
        assert entmax(q.bfloat16()).dtype == torch.float32
        # What PyTorch's own autocast leaves as it is: doubles, and what is no floating-point number at all.
        out = splash_attention(q.double(), k.double(), v.double())
        assert out.dtype == entmax(q.double()).dtype == torch.float64
        with pytest.raises(TypeError, match="q is of float64 and k of float32"):
            splash_attention(q.double(), k, v)
        with pytest.raises(TypeError, match="q is of int64; allowed are"):
            splash_attention(q.long(), k.long(), v.long())
    torch.testing.assert_close(out, splash_attention(q.double(), k.double(), v.double()), rtol=0, atol=0)


def test_activation_checkpointing():
    q, k, v = tensors()
    expected = torch.autograd.grad(splash_attention(q, k, v).square().sum(), (q, k, v))
    out = torch.utils.checkpoint.checkpoint(splash_attention, q, k, v, use_reentrant=False)
    for mine, reference in zip(torch.autograd.grad(out.square().sum(), (q, k, v)), expected):
        torch.testing.assert_close(mine, reference)


def test_functional_transforms():
    q, k, v = (t.expand(3, *t.shape).contiguous() + torch.randn(3, 1, 1, 1, 1) for t in tensors(grad=False))

    def loss(q, k, v):
        return splash_attention(q, k, v, causal=True).square().sum()

    gradients = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(q, k, v)
    shared_keys = torch.func.vmap(loss, in_dims=(0, None, None))(q, k[0], v[0])
    for i in range(3):
        inputs = [t[i].clone().requires_grad_() for t in (q, k, v)]
        for mine, reference in zip(gradients, torch.autograd.grad(loss(*inputs), inputs)):
            torch.testing.assert_close(mine[i], reference)
        torch.testing.assert_close(shared_keys[i], loss(q[i], k[0], v[0]))
    x, alpha = torch.randn(3, 4, 6), torch.tensor([1.2, 1.5, 2.0])
    rows = torch.func.vmap(entmax)(x, alpha)
    torch.testing.assert_close(rows, entmax(x, alpha[:, None]))
    for call, sentence in (
        (lambda: torch.func.vmap(lambda a: splash_attention(q[0], k[0], v[0], alpha=a))(alpha), "vmap over alpha"),
        (lambda: torch.func.grad(lambda q: torch.func.grad(loss)(q, k[0], v[0]).sum())(q[0]), "second derivative"),
    ):
        with pytest.raises(NotImplementedError, match=sentence):
            call()


def test_the_second_derivative_is_refused():
    q, k, v = tensors()
    x = torch.randn(3, 4, requires_grad=True)
    for out, source in ((splash_attention(q, k, v), q), (entmax(x), x)):
        (gradient,) = torch.autograd.grad(out.square().sum(), source, create_graph=True)
        with pytest.raises(NotImplementedError, match="second derivative"):
            gradient.sum().backward()


def test_aux_is_torch_too():
    q, k, v = tensors(20, 20)
    q = 4 * q
    out, aux = splash_attention(q, k, v, causal=True, return_aux=True)
    p = aux.probabilities()
    assert p.layout == torch.sparse_csr and p.shape == (2 * 4 * 20, 20)
    values = v.detach().repeat_interleave(2, 1)
    torch.testing.assert_close(p.to_dense().view(2, 4, 20, 20) @ values, out.detach())
    torch.testing.assert_close(p.to_dense().sum(-1), torch.ones(160))
    assert aux.support.sum() == p.values().numel()
    assert not aux.tau.requires_grad
    assert 0 < aux.sparsity_by_block(2) < aux.sparsity_by_token < 1
    half = [t.detach().bfloat16() for t in (q, k, v)]  # a dtype that NumPy does not have
    exact = splash_attention(*(t.float() for t in half), causal=True, return_aux=True)[1]
    assert splash_attention(*half, causal=True, return_aux=True)[1].sparsity_by_block(2) == exact.sparsity_by_block(2)


def test_nan_rows_and_rows_without_keys():
    q, k, v = tensors(6, 4, grad=False)
    q[0, 1, 3] = torch.nan
    q.requires_grad_()
    out = splash_attention(q, k, v, causal=True)
    out.square().sum().backward()
    assert out[0, 1, 3].isnan().all() and q.grad[0, 1, 3].isnan().all()
    assert not out[0, 1, 4:].isnan().any() and not q.grad[0, 0].isnan().any()
    assert (out[:, :, :2] == 0).all() and (q.grad[:, :, :2] == 0).all()


REFUSED = [
    (lambda q, k, v: splash_attention(q, k.double(), v), TypeError, "q is of float32 and k of float64"),
    (lambda q, k, v: splash_attention(q, k.to("meta"), v), ValueError, "k is on meta and q on cpu; they must be on one device"),
    (lambda q, k, v: splash_attention(q, k, v[..., 1:]), ValueError, "v has shape [2, 2, 7, 7]"),
    (lambda q, k, v: splash_attention(q, k, v, alpha=torch.tensor(1)), ValueError, "alpha is 1; entmax "),
    (lambda q, k, v: splash_attention(q, k, v, alpha=torch.tensor([1.5, torch.nan, 2, 2])), ValueError, "alpha"),
    (lambda q, k, v: splash_attention(q, k, v, alpha=torch.ones(3)), ValueError, "alpha has 3 entries"),
    (lambda q, k, v: entmax(q, torch.ones(5, 5)), ValueError, "alpha has shape [5, 5]; it must broadcast to [2, 4, 5]"),
    (lambda q, k, v: entmax(q.int()), TypeError, "x is of int32"),
]  # fmt: skip


@pytest.mark.parametrize("call, kind, sentence", REFUSED, ids=[sentence[:40] for _, _, sentence in REFUSED])
def test_bad_input_gets_one_sentence(call, kind, sentence):
    with pytest.raises(kind) as caught:
        call(*tensors(grad=False))
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
