"""scaled_dot_product_attention, one alpha a batch entry and head, and losses on a GPU, against the same in float64 on the CPU."""

from __future__ import annotations

import pytest
from gpu_inputs import BOUND, GPU, close, torch

from splash_attention import entmax, entmax15_loss, scaled_dot_product_attention, splash_attention

CASES = {
    "grouped heads": (((2, 4, 70, 64), (2, 2, 90, 64), (2, 2, 90, 64)), {"enable_gqa": True}),
    "three dimensions": (((3, 70, 64), (90, 64), (3, 90, 64)), {}),
    "causal, more keys": (((2, 4, 70, 64), (2, 4, 90, 64), (2, 4, 90, 64)), {"is_causal": True}),
    "causal, more queries": (((2, 4, 90, 64), (2, 4, 70, 64), (2, 4, 70, 64)), {"is_causal": True}),
    "narrower values": (((2, 4, 70, 64), (2, 4, 90, 64), (2, 4, 90, 20)), {}),
    "wider values, a width that the kernels do not take": (((2, 4, 70, 36), (2, 4, 90, 36), (2, 4, 90, 44)), {"scale": 0.2}),
    "padding": (((2, 4, 70, 64), (2, 4, 90, 64), (2, 4, 90, 64)), {"attn_mask": torch.arange(90) < torch.tensor([60, 90]).view(2, 1, 1, 1)}),
    "any mask": (((2, 4, 70, 64), (2, 4, 90, 64), (2, 4, 90, 64)), {"attn_mask": torch.rand(4, 70, 90) < 0.5}),
    "no keys": (((2, 4, 70, 64), (2, 4, 0, 64), (2, 4, 0, 64)), {}),
}
DTYPES = [torch.bfloat16, torch.float32]


def both(call, tensors, dtype):
    """Outputs and gradients of the GPU held to those of the CPU in float64."""
    host = [t.to(dtype).double().requires_grad_() for t in tensors]
    device = [t.to(GPU, dtype).requires_grad_() for t in tensors]
    reference, mine = call(*host), call(*device)
    assert mine.dtype == dtype and mine.shape == reference.shape
    d_out = torch.randn(reference.shape).to(dtype)
    gradients = torch.autograd.grad(mine, device, d_out.to(GPU)), torch.autograd.grad(reference, host, d_out.double())
    for a, b in ((mine, reference), *zip(*gradients)):
        if b.numel() and b.any():
            close(a, b, dtype)
        else:
            assert not a.any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_it_is_the_cpus(name, dtype):
    shapes, arguments = CASES[name]

    def call(query, key, value):
        given = {n: a.to(query.device) if isinstance(a, torch.Tensor) else a for n, a in arguments.items()}
        return scaled_dot_product_attention(query, key, value, **given)

    both(call, [2 * torch.randn(shapes[0]), *map(torch.randn, shapes[1:])], dtype)


def sides_are_clear(q, k, v, alpha):
    """Whether float32 tells which scores exceed tau. The closer alpha is to 2, the more a gradient jumps where one does."""
    tau = splash_attention(q.double(), k.double(), v.double(), alpha=alpha.double(), causal=True, return_aux=True)[1].tau
    z = (q.double() @ k.double().repeat_interleave(q.shape[1] // k.shape[1], 1).mT) * q.shape[-1] ** -0.5 * (alpha - 1)[..., None, None]
    return bool(((z - tau[..., None]).abs()[alpha > 1.7] > 1e-5).all())


def test_one_alpha_of_each_batch_entry_and_head():
    while True:
        tensors = [2 * torch.randn(3, 4, 130, 64), torch.randn(3, 2, 130, 64), torch.randn(3, 2, 130, 64), 1.2 + 0.8 * torch.rand(3, 4)]
        if sides_are_clear(*tensors):
            break
    both(lambda q, k, v, alpha: splash_attention(q, k, v, alpha=alpha, causal=True), tensors, torch.float32)


def test_losses_and_thresholds():
    target = torch.randint(0, 500, (64,))
    both(lambda x: entmax15_loss(x, target.to(x.device)), [2 * torch.randn(64, 500)], torch.float32)
    x = 2 * torch.randn(64, 500)
    (_, on_gpu), (_, on_host) = entmax(x.to(GPU), return_aux=True), entmax(x.double(), return_aux=True)
    torch.testing.assert_close(on_gpu.tau.double().cpu(), on_host.tau, atol=BOUND[torch.float32], rtol=BOUND[torch.float32])
    assert (on_gpu.support.cpu() - on_host.support).abs().max() <= 1
