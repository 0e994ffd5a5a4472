"""Attention with one α for each batch entry and head is that of each entry apart."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import splash_attention  # noqa: E402

BATCH, HEADS, KV_HEADS, ROWS, KEYS, DIM = 3, 4, 2, 7, 11, 5
ALPHA = 1.1 + torch.rand(BATCH, HEADS, dtype=torch.float64)


def tensors():
    shapes = ((BATCH, HEADS, ROWS, DIM), (BATCH, KV_HEADS, KEYS, DIM), (BATCH, KV_HEADS, KEYS, DIM))
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def positions(*shape):
    return torch.randint(0, 9, (*shape, ROWS)), torch.randint(0, 9, (*shape, KEYS))


MASKS = {
    "causal": {"causal": True},
    "k_keep of heads": {"k_keep": [2, 0, 5, 3]},
    "k_keep": {"k_keep": 3},
    "positions": dict(zip(("q_positions", "k_positions"), positions())),
    "positions of the batch": dict(zip(("q_positions", "k_positions"), positions(BATCH))),
    "positions of the heads": dict(zip(("q_positions", "k_positions"), positions(BATCH, HEADS))),
    "packed": {"cu_seqlens_q": [0, 3, ROWS], "cu_seqlens_k": [0, 4, KEYS]},
}


@pytest.mark.parametrize("mask", MASKS)
def test_it_is_that_of_each_entry_apart(mask):
    q, k, v = tensors()
    alpha = ALPHA.clone().requires_grad_()
    out, aux = splash_attention(q, k, v, alpha=alpha, return_aux=True, **MASKS[mask])
    gradients = torch.autograd.grad(out.square().sum(), (q, k, v, alpha))
    for b in range(BATCH):
        inputs = [part.detach()[b : b + 1].requires_grad_() for part in (q, k, v)]
        of_entry = ALPHA[b].clone().requires_grad_()
        own = {n: t[b : b + 1] if n.endswith("positions") and t.dim() > 1 else t for n, t in MASKS[mask].items()}
        one, of_one = splash_attention(*inputs, alpha=of_entry, return_aux=True, **own)
        torch.testing.assert_close(out[b : b + 1], one)
        torch.testing.assert_close(aux.tau[b : b + 1], of_one.tau)
        assert torch.equal(aux.support[b : b + 1], of_one.support)
        expected = torch.autograd.grad(one.square().sum(), (*inputs, of_entry))
        for mine, reference in zip(gradients, (*expected[:3], expected[3][None])):
            torch.testing.assert_close(mine[b : b + 1], reference.reshape(mine[b : b + 1].shape))
    arrays = [part.detach().numpy() for part in (q, k, v)]
    same, of_arrays = splash_attention(*arrays, alpha=ALPHA[..., None, None].numpy(), return_aux=True, **{
        name: table.numpy() if isinstance(table, torch.Tensor) else table for name, table in MASKS[mask].items()
    })  # fmt: skip
    torch.testing.assert_close(torch.from_numpy(same), out.detach())
    assert of_arrays.support.tolist() == aux.support.tolist() and of_arrays.sparsity_by_token == aux.sparsity_by_token
    torch.testing.assert_close(splash_attention(q, k, v, alpha=ALPHA[..., None, None], **MASKS[mask]), out)


def test_other_shapes_are_refused():
    q, k, v = tensors()
    for alpha in (ALPHA.T, ALPHA[:2], ALPHA[..., None]):
        for inputs, given in ((q, k, v), alpha), ([part.detach().numpy() for part in (q, k, v)], alpha.numpy()):
            with pytest.raises(ValueError, match=r"alpha has \d+ entries; allowed: 1, or 4 \(one a query head\), or the shape \[3, 4\]"):
                splash_attention(*inputs, alpha=given)
