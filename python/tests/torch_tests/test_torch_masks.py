"""Any boolean mask of splash_attention: against bisection in float64, with gradients, compiled and with everything beside."""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
import bisection  # noqa: E402

from splash_attention import splash_attention  # noqa: E402

BATCH, HEADS, KV_HEADS, DIM = 2, 4, 2, 8
ALPHAS = [1.2, 1.5, 1.7, 2.0]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def inputs(dtype=torch.float64, rows=9, keys=150):
    q = 2 * torch.randn(BATCH, HEADS, rows, DIM, dtype=torch.float64)
    k, v = torch.randn(2, BATCH, KV_HEADS, keys, DIM, dtype=torch.float64)
    return [x.to(dtype).requires_grad_() for x in (q, k, v)]


def some(*shape):
    """Some tiles empty, some whole, and a row that sees nothing."""
    mask = torch.rand(shape) < 0.4
    mask[..., 10:90] = False
    mask[..., -6:] = True
    mask[..., 1, :] = False
    return mask


@pytest.mark.parametrize("dtype, bound", [(torch.float64, 1e-8), (torch.float32, 2e-5), (torch.bfloat16, 2e-2)])
@pytest.mark.parametrize("shape", [(9, 150), (HEADS, 9, 150), (BATCH, 1, 9, 150), (BATCH, HEADS, 9, 150)], ids=str)
@pytest.mark.parametrize("others", [False, True])
def test_a_mask_is_that_of_bisections(shape, others, dtype, bound):
    q, k, v = inputs(dtype)
    mask, alpha = some(*shape), torch.tensor(ALPHAS, dtype=torch.float64, requires_grad=True)
    given = {"softcap": 1.7, "sinks": torch.randn(HEADS), "k_keep": [2, 5, 0, 4]} if others else {}
    out = splash_attention(q, k, v, alpha=alpha, causal=others, mask=mask, **given)
    seen = mask & torch.ones(9, 150, dtype=torch.bool).tril(141) if others else mask
    expected = bisection.attention(q, k, v, alpha=alpha, mask=seen, **given)[0]
    d_out = torch.randn(out.shape, dtype=torch.float64)
    mine, other = (torch.autograd.grad((o.double() * d_out).sum(), [q, k, v, alpha]) for o in (out, expected))
    for a, b in zip((out, *mine), (expected, *other)):
        assert (a.double() - b.double()).norm() < bound * b.detach().double().norm()
    assert others or (out[:, :, 1] == 0).all()


@pytest.mark.parametrize("keys", [1, 63, 64, 65, 200])
def test_a_causal_mask_of_pairs_is_causal(keys):
    q, k, v = inputs(torch.float32, keys, keys)
    mask = torch.ones(keys, keys, dtype=torch.bool).tril()
    torch.testing.assert_close(splash_attention(q, k, v, mask=mask), splash_attention(q, k, v, causal=True))


def test_one_graph_serves_every_length():
    calls = []

    def backend(graph, example):
        calls.append(graph)
        return graph.forward

    def call(q, k, v, mask):
        return splash_attention(q, k, v, mask=mask)

    torch._dynamo.reset()
    compiled = torch.compile(call, fullgraph=True, backend=backend, dynamic=True)
    for rows in (5, 9, 12):
        given = (*inputs(torch.float32, rows, 12 * rows + 70), some(BATCH, 1, rows, 12 * rows + 70))
        torch.testing.assert_close(compiled(*given), call(*given))
    assert len(calls) == 1


def test_an_alpha_of_each_batch_entry_and_head_has_the_mask_of_the_entry():
    q, k, v = inputs()
    alpha, mask = 1.2 + 0.8 * torch.rand(BATCH, HEADS, dtype=torch.float64), some(BATCH, 1, 9, 150)
    out = splash_attention(q, k, v, alpha=alpha, mask=mask)
    apart = [splash_attention(q[b : b + 1], k[b : b + 1], v[b : b + 1], alpha=alpha[b], mask=mask[b]) for b in range(BATCH)]
    torch.testing.assert_close(out, torch.cat(apart))
    arrays = [t.detach().numpy() for t in (q, k, v)]
    torch.testing.assert_close(torch.from_numpy(splash_attention(*arrays, alpha=alpha.numpy(), mask=mask.numpy())), out.detach())


def test_aux_and_numpy_have_it():
    q, k, v = inputs(torch.float32)
    mask = some(BATCH, HEADS, 9, 150)
    arrays = [t.detach().numpy() for t in (q, k, v)]
    out, aux = splash_attention(q, k, v, mask=mask, return_aux=True)
    torch.testing.assert_close(torch.from_numpy(splash_attention(*arrays, mask=mask.numpy())), out.detach())
    np.testing.assert_array_equal(splash_attention(*arrays, mask=mask[0, 0].tolist()), splash_attention(*arrays, mask=mask[0, 0].numpy()))
    _, p = bisection.attention(q, k, v, mask=mask)
    torch.testing.assert_close(aux.probabilities().to_dense().view(p.shape).double(), p, atol=1e-5, rtol=1e-4)


REFUSED = [
    ({"mask": torch.ones(9, 150)}, TypeError, "mask is of float32; it must be bool, True where a query sees a key"),
    ({"mask": torch.ones(8, 150, dtype=torch.bool)}, ValueError, "mask has shape [8, 150]; it must broadcast to [2, 4, 9, 150]"),
    ({"mask": torch.ones(1, 1, 1, 9, 150, dtype=torch.bool)}, ValueError, "it must broadcast to [2, 4, 9, 150]"),
]


@pytest.mark.parametrize("call, kind, sentence", REFUSED)
def test_bad_input_gets_one_sentence(call, kind, sentence):
    with pytest.raises(kind) as caught:
        splash_attention(*inputs(), **call)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
