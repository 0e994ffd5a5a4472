"""PyTorch's counter of FLOPs counts attention as it counts scaled_dot_product_attention."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from torch.utils import flop_counter  # noqa: E402
from torch.utils.flop_counter import FlopCounterMode  # noqa: E402

from splash_attention import AdaptiveSplashAttention, entmax, splash_attention  # noqa: E402
from splash_attention.backends.torch import flops  # noqa: E402

BATCH, HEADS, ROWS, KEYS, DIM = 2, 4, 9, 13, 8
ONE_PRODUCT = 2 * BATCH * HEADS * ROWS * KEYS * DIM


def tensors(kv_heads):
    shapes = ((BATCH, HEADS, ROWS, DIM), (BATCH, kv_heads, KEYS, DIM), (BATCH, kv_heads, KEYS, DIM))
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


def counted(call):
    with FlopCounterMode(display=False) as counter:
        call()
    return counter.get_total_flops()


@pytest.mark.parametrize("kv_heads", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True])
def test_attention_counts_as_dense(kv_heads, causal):
    q, k, v = tensors(kv_heads)
    attention = AdaptiveSplashAttention(DIM, causal=causal)
    with torch.no_grad():
        assert counted(lambda: splash_attention(q, k, v, causal=causal)) == 2 * ONE_PRODUCT
    for call in (lambda: splash_attention(q, k, v, causal=causal), lambda: attention(q, k, v)):
        assert counted(call) == 2 * ONE_PRODUCT
        out = call()
        assert counted(lambda out=out: out.sum().backward()) == 5 * ONE_PRODUCT  # what was called outside counts too
        assert counted(lambda call=call: call().sum().backward()) == 7 * ONE_PRODUCT
    aux = splash_attention(q, k, v, return_aux=True)[1]
    assert counted(aux.probabilities) == ONE_PRODUCT


def test_it_is_what_pytorch_counts_for_its_own():
    q, k, v = tensors(HEADS)

    def both(attention):
        return counted(lambda: attention(q, k, v).sum().backward())

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):  # its formula counts no recomputed scores
        dense = both(torch.nn.functional.scaled_dot_product_attention)
    assert both(splash_attention) == dense + ONE_PRODUCT


def test_the_first_call_counts_though_nothing_was_registered_before(monkeypatch):
    """As in a process that made its counter before this package was imported."""
    for operator in flops._FORMULAS:
        monkeypatch.delitem(flop_counter.flop_registry, operator, raising=False)
    q, k, v = tensors(HEADS)
    out = splash_attention(q, k, v)
    assert not flops._FORMULAS.keys() & flop_counter.flop_registry.keys()
    assert counted(lambda: out.sum().backward()) == 5 * ONE_PRODUCT


def test_entmax_counts_none_as_softmax():
    x = torch.randn(5, 7, requires_grad=True)
    assert counted(lambda: entmax(x).square().sum().backward()) == 0
    assert counted(lambda: x.softmax(-1).square().sum().backward()) == 0
