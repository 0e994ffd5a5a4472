"""scaled_dot_product_attention with entmax: PyTorch's own sample inputs and other shapes, against a dense computation in float64."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import types
import unittest
import warnings

import dense
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import scaled_dot_product_attention, splash_attention  # noqa: E402
from splash_attention.backends.torch import modified  # noqa: E402

BOUNDS = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 4e-2}


@pytest.fixture(autouse=True)
def nothing_to_tell(monkeypatch):
    monkeypatch.setattr(modified, "tell_once", lambda what: None)


def probabilities(query, key, attn_mask=None, is_causal=False, scale=None, enable_gqa=False, alpha=1.5):
    """float64 [..., q_len, kv_len], by entmax of tests/dense.py; alpha broadcasts to [..., q_heads, q_len]."""
    query, key = query.detach().double(), key.detach().double()
    if enable_gqa:
        key = key.repeat_interleave(query.shape[-3] // key.shape[-3], -3)
    scores = query @ key.transpose(-1, -2) * (scale or query.shape[-1] ** -0.5)
    if is_causal:
        scores = scores.masked_fill(~torch.ones(scores.shape[-2:], dtype=torch.bool).tril(), -torch.inf)
    if attn_mask is not None:
        attn_mask = attn_mask.detach()
        scores = scores.masked_fill(~attn_mask, -torch.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return torch.from_numpy(dense.entmax(scores.numpy(), np.asarray(alpha)))


def expected(query, key, value, enable_gqa=False, **call):
    value = value.detach().double()
    if enable_gqa:
        value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3)
    return probabilities(query, key, enable_gqa=enable_gqa, **call) @ value


def assert_close(out, reference, dtype):
    assert out.dtype == dtype and out.shape == reference.shape
    torch.testing.assert_close(out.double(), reference, atol=4 * BOUNDS[dtype], rtol=BOUNDS[dtype])


def assert_slope(gradients, inputs, d_out, call):
    """The gradients against differences of the dense computation, along one direction."""
    along, step = [torch.randn_like(x) for x in inputs], 1e-6
    ahead, behind = (expected(*(x.detach() + sign * step * d for x, d in zip(inputs, along)), **call) for sign in (1, -1))
    slope = ((ahead - behind) / (2 * step) * d_out).sum()
    torch.testing.assert_close(sum((g * d).sum() for g, d in zip(gradients, along)), slope, atol=1e-5, rtol=1e-5)


@pytest.fixture
def sample_inputs(monkeypatch):
    """PyTorch's own, whose module asks for a package of its tests that the samples do not use, and freezes torch.backends."""
    if importlib.util.find_spec("expecttest") is None:
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase
        monkeypatch.setitem(sys.modules, "expecttest", stand_in)
    monkeypatch.setattr(torch.backends, "__allow_nonbracketed_mutation_flag", True)
    try:
        module = importlib.import_module("torch.testing._internal.common_methods_invocations")
    except ImportError as error:
        pytest.skip(f"this PyTorch has no sample inputs: {error}")
    return module.sample_inputs_scaled_dot_product_attention


@pytest.mark.parametrize("dtype", BOUNDS, ids=str)
def test_pytorchs_sample_inputs(dtype, sample_inputs):
    """All of them, those with dropout against what the drawn probabilities make of the values."""
    count, kept_of_all = 0, torch.zeros(2)
    for sample in sample_inputs(None, "cpu", dtype, requires_grad=True):
        (query, (key, value), call) = sample.input, sample.args, dict(sample.kwargs)
        dropout = call.pop("dropout_p")
        torch.manual_seed(count)
        out = scaled_dot_product_attention(query, key, value, dropout_p=dropout, **call)
        if not dropout:
            assert_close(out, expected(query, key, value, **call), dtype)
        else:
            unit = torch.eye(key.shape[-2], dtype=dtype).expand(*key.shape[:-2], -1, -1)
            torch.manual_seed(count)
            drawn = scaled_dot_product_attention(query, key, unit, dropout_p=dropout, **call).detach()
            kept, p = drawn > 0, probabilities(query, key, **call)
            assert_close(drawn, torch.where(kept, p / (1 - dropout), 0), dtype)
            kept_of_all += torch.tensor([kept.sum(), (p > 0).sum()])
            assert_close(out, drawn.double() @ value.detach().double(), dtype)
        d_out = torch.randn_like(out)
        gradients = torch.autograd.grad(out, (query, key, value), d_out)
        assert all(d.shape == x.shape and d.isfinite().all() for d, x in zip(gradients, (query, key, value)))
        of_value, of_out = ((a.double() * b.double()).sum() for a, b in ((gradients[2], value), (d_out, out)))  # out is linear in value
        torch.testing.assert_close(of_value, of_out, atol=100 * BOUNDS[dtype], rtol=BOUNDS[dtype])
        if dtype == torch.float64 and not dropout:
            assert_slope(gradients, (query, key, value), d_out, call)
        count += 1
    assert count == 25 and 0.3 < kept_of_all[0] / kept_of_all[1] < 0.7


def tensors(*shapes, dtype=torch.float64):
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


ONES = torch.ones(7, 11, dtype=torch.bool)
CASES = {
    "two dimensions": (((7, 8), (11, 8), (11, 8)), {}),
    "three dimensions, keys of two": (((3, 7, 8), (11, 8), (1, 11, 8)), {}),
    "five dimensions": (((2, 1, 4, 7, 8), (3, 1, 11, 8), (2, 3, 4, 11, 8)), {}),
    "one head of keys": (((2, 4, 7, 8), (2, 1, 11, 8), (2, 1, 11, 8)), {}),
    "grouped heads": (((2, 4, 7, 8), (2, 2, 11, 8), (2, 2, 11, 8)), {"enable_gqa": True}),
    "values of other groups": (((2, 4, 7, 8), (2, 2, 11, 8), (2, 1, 11, 8)), {"enable_gqa": True}),
    "narrower values": (((2, 4, 7, 8), (2, 4, 11, 8), (2, 4, 11, 3)), {}),
    "wider values": (((2, 4, 7, 8), (2, 4, 11, 8), (2, 4, 11, 13)), {"scale": 0.7}),
    "wider values, causal": (((2, 4, 7, 8), (2, 4, 11, 8), (2, 4, 11, 13)), {"is_causal": True}),
    "causal, more queries": (((2, 4, 11, 8), (2, 4, 7, 8), (2, 4, 7, 8)), {"is_causal": True}),
    "causal, as many": (((2, 4, 7, 8), (2, 4, 7, 8), (2, 4, 7, 8)), {"is_causal": True}),
    "padding": (((2, 4, 7, 8), (2, 4, 11, 8), (2, 4, 11, 5)), {"attn_mask": torch.rand(2, 1, 1, 11) < 0.5}),
    "padding of heads": (((2, 4, 7, 8), (2, 4, 11, 8), (2, 4, 11, 8)), {"attn_mask": torch.rand(4, 1, 11) < 0.5}),
    "padding of all": (((2, 4, 7, 8), (2, 4, 11, 8), (2, 4, 11, 8)), {"attn_mask": torch.arange(11)[None] % 3 > 0}),
    "no visible key": (((2, 7, 8), (2, 11, 8), (2, 11, 8)), {"attn_mask": torch.zeros(2, 1, 11, dtype=torch.bool)}),
    "mask of queries": (((2, 4, 7, 8), (2, 4, 11, 8), (2, 4, 11, 5)), {"attn_mask": ONES.triu(2)}),
    "mask of everything": (((2, 4, 7, 8), (2, 4, 11, 8), (2, 4, 11, 8)), {"attn_mask": torch.rand(2, 4, 7, 11) < 0.5}),
    "mask of five dimensions": (
        ((2, 3, 4, 7, 8), (2, 3, 4, 11, 8), (2, 3, 4, 11, 8)), {"attn_mask": torch.rand(3, 1, 7, 11) < 0.5}
    ),
    "float mask": (((2, 4, 7, 8), (2, 4, 11, 8), (2, 4, 11, 5)), {"attn_mask": torch.randn(4, 7, 11, dtype=torch.float64)}),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_shapes_masks_and_gradients(name):
    shapes, call = CASES[name]
    query, key, value = tensors(*shapes)
    out = scaled_dot_product_attention(query, key, value, **call)
    assert out.shape == torch.nn.functional.scaled_dot_product_attention(query, key, value, **call).shape
    assert_close(out, expected(query, key, value, **call), torch.float64)
    d_out = torch.randn_like(out)
    assert_slope(torch.autograd.grad(out, (query, key, value), d_out), (query, key, value), d_out, call)


def test_a_float_mask_has_a_gradient():
    query, key, value, attn_mask = tensors((2, 4, 7, 8), (2, 4, 11, 8), (2, 4, 11, 5), (4, 1, 11))
    out = scaled_dot_product_attention(query, key, value, attn_mask)
    d_out, along, step = torch.randn_like(out), torch.randn_like(attn_mask), 1e-6
    (d_mask,) = torch.autograd.grad(out, attn_mask, d_out)
    ahead, behind = (expected(query, key, value, attn_mask=attn_mask.detach() + sign * step * along) for sign in (1, -1))
    slope = ((ahead - behind) / (2 * step) * d_out).sum()
    torch.testing.assert_close((d_mask * along).sum(), slope, atol=1e-5, rtol=1e-5)


def test_the_kernels_take_padding_and_causality(monkeypatch):
    monkeypatch.setattr(modified, "attention", None)
    for name in ("padding", "padding of heads", "padding of all", "causal, more queries", "wider values, causal", "five dimensions"):
        shapes, call = CASES[name]
        scaled_dot_product_attention(*tensors(*shapes), **call)


def test_causality_is_top_left_here_and_bottom_right_there():
    query, key, value = tensors((1, 2, 4, 8), (1, 2, 6, 8), (1, 2, 6, 8))
    square = [x[:, :, :4] for x in (query, key, value)]
    torch.testing.assert_close(
        scaled_dot_product_attention(query, key, value, is_causal=True), splash_attention(*square, causal=True)
    )
    lower_right = torch.ones(4, 6, dtype=torch.bool).tril(2)
    masked = scaled_dot_product_attention(query, key, value, attn_mask=lower_right)
    torch.testing.assert_close(masked, splash_attention(query, key, value, causal=True))


@pytest.mark.parametrize("shapes", [
    ((0, 4, 7, 8), (0, 4, 11, 8), (0, 4, 11, 5)), ((2, 4, 0, 8), (2, 4, 11, 8), (2, 4, 11, 5)),
    ((2, 4, 7, 8), (2, 4, 0, 8), (2, 4, 0, 5)), ((2, 4, 7, 8), (2, 4, 11, 8), (2, 4, 11, 0)),
], ids=str)  # fmt: skip
def test_what_is_empty_gives_what_pytorch_gives(shapes):
    inputs = tensors(*shapes)
    for call in ({}, {"is_causal": True}, {"attn_mask": torch.ones(shapes[0][-2], shapes[1][-2], dtype=torch.bool)}):
        out = scaled_dot_product_attention(*inputs, **call)
        assert torch.equal(out, torch.nn.functional.scaled_dot_product_attention(*inputs, **call))
        gradients = torch.autograd.grad(out.sum(), inputs)
        assert all(d.shape == x.shape and not d.any() for d, x in zip(gradients, inputs))


@pytest.mark.parametrize("masked", [False, True])
def test_alpha_in_all_its_kinds(masked):
    query, key, value = tensors((3, 4, 7, 8), (3, 2, 11, 8), (3, 2, 11, 8))
    call = {"enable_gqa": True, **({"attn_mask": torch.rand(3, 1, 7, 11) < 0.7} if masked else {})}
    of_heads = [1.2, 1.5, 1.8, 2.0]
    of_batch = 1.1 + torch.rand(3, 4, dtype=torch.float64)
    for alpha, plain in (
        (np.float32(1.25), 1.25), (np.array(1.25), 1.25), (2, 2.0), (torch.tensor(1.25), 1.25), ([1.25], 1.25),
        (of_heads, np.array(of_heads)[:, None]), (np.array(of_heads), np.array(of_heads)[:, None]),
        (tuple(of_heads), np.array(of_heads)[:, None]), (of_batch, of_batch[..., None].numpy()),
        (of_batch[..., None, None].numpy(), of_batch[..., None].numpy()),
    ):  # fmt: skip
        out = scaled_dot_product_attention(query, key, value, alpha=alpha, **call)
        torch.testing.assert_close(out, expected(query, key, value, alpha=plain, **call), atol=1e-7, rtol=1e-7)
    learned, along, step = of_batch.clone().requires_grad_(), torch.randn(3, 4, dtype=torch.float64), 1e-6
    out = scaled_dot_product_attention(query, key, value, alpha=learned, **call)
    d_out = torch.randn_like(out)
    ahead, behind = (
        expected(query, key, value, alpha=(of_batch + sign * step * along)[..., None].numpy(), **call) for sign in (1, -1)
    )
    (d_alpha,) = torch.autograd.grad(out, learned, d_out)
    slope = ((ahead - behind) / (2 * step) * d_out).sum()
    torch.testing.assert_close((d_alpha * along).sum(), slope, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("mask", ["padding", "any"])
def test_it_compiles_without_a_graph_break_and_an_annealed_alpha_twice(mask):
    from torch._dynamo.testing import CompileCounterWithBackend

    counter = CompileCounterWithBackend("eager")
    query, key, value = (x.detach() for x in tensors((2, 4, 7, 8), (2, 4, 11, 8), (2, 4, 11, 5)))
    attn_mask = torch.rand((2, 1, 1, 11) if mask == "padding" else (2, 4, 7, 11)) < 0.7

    def layer(query, alpha):
        return scaled_dot_product_attention(query, key, value, attn_mask=attn_mask, alpha=alpha)

    compiled = torch.compile(layer, fullgraph=True, backend=counter)
    for alpha in np.linspace(2.0, 1.1, 5).tolist():
        torch.testing.assert_close(compiled(query, alpha), layer(query, alpha))
    assert counter.frame_count <= 2  # 1 where the compiler has seen it change before


@pytest.mark.parametrize("masked", [False, True])
def test_dropout_draws_alike_under_one_seed_and_masks_of_ones_own_tell_themselves_once(monkeypatch, masked):
    monkeypatch.undo()
    monkeypatch.setattr(modified, "_told", set())
    inputs = tensors((2, 4, 7, 8), (2, 4, 11, 8), (2, 4, 11, 8))
    outs = []
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for seed in (1, 1, 2):
            torch.manual_seed(seed)
            outs.append(scaled_dot_product_attention(*inputs, torch.randn(7, 11) if masked else None, dropout_p=0.3))
    assert len(told) == masked and all("no kernel for this attn_mask" in str(warning.message) for warning in told)
    assert torch.equal(outs[0], outs[1]) and not torch.equal(outs[0], outs[2])


def query_key_value():
    return tensors((2, 4, 7, 8), (2, 4, 11, 8), (2, 4, 11, 8))


REFUSED = [
    ({"is_causal": True, "attn_mask": ONES}, ValueError, "attn_mask and is_causal are both given"),
    ({"attn_mask": torch.ones(3, 7, 11, dtype=torch.bool)}, ValueError, "attn_mask has shape [3, 7, 11]; it must broadcast to [2, 4, 7, 11]"),
    ({"attn_mask": torch.ones(7, 11, dtype=torch.int32)}, TypeError, "attn_mask is of int32; it must be bool"),
    ({"attn_mask": [[True]]}, TypeError, "attn_mask is a list; it must be a torch tensor"),
    ({"dropout_p": 1.0}, ValueError, "dropout_p is 1.0; it must be at least 0 and below 1"),
    ({"scale": 0.0}, ValueError, "scale is 0.0"),
    ({"alpha": 1.0}, ValueError, "alpha is 1"),
    ({"enable_gqa": 1}, TypeError, "enable_gqa is a int; it must be True or False"),
    ({"key": torch.zeros(2, 3, 11, 8, dtype=torch.float64), "enable_gqa": True}, ValueError, "query has 4 heads and key 3"),
    ({"key": torch.zeros(2, 2, 11, 8, dtype=torch.float64)}, ValueError, "must broadcast (or enable_gqa"),
    ({"key": torch.zeros(2, 4, 11, 6, dtype=torch.float64)}, ValueError, "query has head_dim 8 and key 6"),
    ({"value": torch.zeros(2, 4, 9, 8, dtype=torch.float64)}, ValueError, "key has 11 rows and value 9"),
    ({"value": torch.zeros(2, 4, 11, 8)}, TypeError, "query is of float64 and value of float32"),
    ({"query": torch.zeros(8, dtype=torch.float64)}, ValueError, "query has 1 dimensions; it must have at least 2"),
    ({"query": np.zeros((2, 4, 7, 8))}, TypeError, "query is a NumPy array; it must be a torch tensor"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "kind", "sentence"), REFUSED, ids=[sentence[:40] for *_, sentence in REFUSED])
def test_bad_input_gets_one_sentence(change, kind, sentence):
    with pytest.raises(kind) as caught:
        scaled_dot_product_attention(**{**dict(zip(("query", "key", "value"), query_key_value())), **change})
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
