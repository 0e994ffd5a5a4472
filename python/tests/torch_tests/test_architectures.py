"""Entmax in every architecture of the table in docs/, against the same model with dense attention of bisections in float64."""

from __future__ import annotations

from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
transformers = pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
import architectures  # noqa: E402
import bisection  # noqa: E402
from architectures import ALL, build, counted, inputs  # noqa: E402

from splash_attention import hugging_face  # noqa: E402,F401
from splash_attention.backends.torch import modified  # noqa: E402
from splash_attention.hugging_face.cache import as_argument  # noqa: E402

PAGE = Path(__file__).parents[3] / "docs" / "questions" / "does-it-work-with-my-model.md"
slow = pytest.mark.slow
KIND = {name: row[0] for name, row in ALL.items()}
WORDS = [name for name, kind in KIND.items() if kind in ("decoder", "encoder", "both")]
CACHES = [name for name, kind in KIND.items() if kind in ("decoder", "both", "sound")]
DECODERS = [name for name, kind in KIND.items() if kind == "decoder"]


def dense_entmax(
    module, query, key, value, attention_mask, dropout=0.0, scaling=None, is_causal=None, softcap=None, position_bias=None, s_aux=None,
    **others,
):  # fmt: skip
    """transformers' interface, with sdpa's boolean masks."""
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask = attention_mask
    if mask is None and causal and query.shape[2] > 1:
        mask = torch.ones(query.shape[2], key.shape[2], dtype=torch.bool).tril(key.shape[2] - query.shape[2])
    out, p = bisection.attention(
        query, key, value, scale=scaling, mask=mask, bias=position_bias, softcap=softcap, sinks=s_aux,
    )  # fmt: skip
    return out.transpose(1, 2).contiguous().to(query.dtype), p


@pytest.fixture(scope="module", autouse=True)
def registered():
    transformers.logging.set_verbosity_error()
    transformers.AttentionInterface.register("dense_entmax", dense_entmax)
    masks = transformers.masking_utils.AttentionMaskInterface
    masks.register("dense_entmax", transformers.masking_utils.sdpa_mask)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # tensors are tiny
    yield
    torch.set_num_threads(threads)


def close(mine, other):
    assert other.std() > 1e-3
    torch.testing.assert_close(mine, other, atol=2e-4, rtol=1e-3)


def paddings(name):
    """Left and right, where the model has positions for both."""
    return (None, "left", "right") if name in WORDS else (None,)


def table():
    """Of the page in docs/: architecture to padding, cache and what computes it."""
    lines = PAGE.read_text(encoding="utf-8").split("| architecture |")[1].split("\n\n")[0].splitlines()[2:]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {row[0]: row[1:] for row in rows}


def test_the_page_has_what_is_tested():
    of_page = {name: row[:2] for name, row in table().items()}
    assert of_page == {
        name: ["left, right" if name in WORDS else "has none", "yes" if name in CACHES else "has none"] for name in ALL
    }


@pytest.mark.filterwarnings("ignore:splash attention has no kernel")
@pytest.mark.parametrize("name", ALL)
def test_eval(name, monkeypatch):
    """And what is told to be slower is what the page says."""
    monkeypatch.setattr(modified, "_told", set())
    mine, dense = build(name, "splash"), build(name, "dense_entmax")
    softmax = build(name, "eager")
    given = inputs(name, paddings(name)[-1])
    with torch.no_grad():
        other = counted(name, given, dense(**given).logits)
        close(counted(name, given, mine(**given).logits), other)
        assert (", ".join(sorted(modified._told)) or "the kernels") == table()[name][2]
        assert not torch.allclose(counted(name, given, softmax(**given).logits), other, atol=1e-2), "softmax gives the same"


@slow
@pytest.mark.filterwarnings("ignore:splash attention has no kernel")
@pytest.mark.parametrize("name", ALL)
def test_train(name):
    """Output and gradients of all parameters, padded left, right and not."""
    mine, dense = build(name, "splash").train(), build(name, "dense_entmax").train()
    for padding in paddings(name):
        given = inputs(name, padding)
        generator, both = torch.Generator(), []
        for model in (mine, dense):
            model.zero_grad()
            logits = counted(name, given, model(**given).logits)
            both.append(logits)
            (logits * torch.randn(logits.shape, generator=generator.manual_seed(3))).sum().backward()
        close(*both)
        other = dict(dense.named_parameters())
        for key, weight in mine.named_parameters():
            there = other[key].grad
            if there is None:
                assert weight.grad is None or not weight.grad.any(), key
                continue
            assert (weight.grad - there).norm() <= 2e-3 * there.norm() + 1e-4, key


@slow
@pytest.mark.filterwarnings("ignore:splash attention has no kernel")
@pytest.mark.parametrize("name", CACHES)
def test_cache(name):
    """Words chosen one by one, with a cache and without, and by dense attention."""
    texts = []
    for implementation, cache in (("splash", True), ("splash", False), ("dense_entmax", True)):
        model = build(name, implementation)
        for padding in (None, "left") if name in DECODERS else (None,):
            given = inputs(name, padding)
            given.pop("decoder_input_ids", None)
            texts.append(
                model.generate(**given, max_new_tokens=8, min_new_tokens=8, do_sample=False, use_cache=cache, pad_token_id=0)
            )
    count = len(texts) // 3
    for one, two, three in zip(texts[:count], texts[count : 2 * count], texts[2 * count :]):
        assert torch.equal(one, two) and torch.equal(one, three)


@slow
@pytest.mark.filterwarnings("ignore:splash attention has no kernel")
@pytest.mark.parametrize("name", DECODERS)
def test_splash_cache(name):
    """The same words with a cache of pages, which grows or not, where the model has one head_dim."""
    model, given = build(name, "splash"), inputs(name, "left")
    options = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(**given, **options)
    for capacity in (None, 40):
        cache = hugging_face.SplashCache(model.config, capacity, page_size=16)
        if name == "DeepSeek-V3":
            with pytest.raises(NotImplementedError, match="keys and values of one head_dim, not of 16 and 4"):
                model.generate(**given, **options, **as_argument(model, cache))
        else:
            assert torch.equal(model.generate(**given, **options, **as_argument(model, cache)), expected)


@slow
@pytest.mark.filterwarnings("ignore:splash attention has no kernel")
@pytest.mark.parametrize("name", ALL)
def test_compiled(name):
    """One graph, forward and backward, padded; without a mask: test_hugging_face.py."""
    torch._dynamo.reset()
    model = build(name, "splash").train()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    more = {"use_cache": False} if name in CACHES else {}
    given = {**inputs(name, paddings(name)[-1]), **more}
    expected, out = model(**given).logits, compiled(**given).logits
    close(counted(name, given, out), counted(name, given, expected))
    weight = next(p for key, p in model.named_parameters() if p.dim() == 2 and "embed" not in key)
    gradients = [torch.autograd.grad(counted(name, given, x).square().sum(), weight, allow_unused=True)[0] for x in (out, expected)]
    if gradients[1] is not None:
        torch.testing.assert_close(*gradients, atol=1e-3, rtol=1e-3)


@slow
@pytest.mark.filterwarnings("ignore:splash attention has no kernel")
@pytest.mark.parametrize("name", ALL)
def test_attentions(name):
    mine, dense = build(name, "splash"), build(name, "dense_entmax")
    given = inputs(name)
    with torch.no_grad():
        mine, dense = (model(**given, output_attentions=True) for model in (mine, dense))
    compared = 0
    for key in ("attentions", "encoder_attentions", "decoder_attentions", "cross_attentions"):
        theirs = getattr(dense, key, None)
        if not theirs:  # a decoder without an encoder has no cross_attentions
            continue
        assert len(theirs) == len(getattr(mine, key))
        compared += len(theirs)
        for p, other in zip(getattr(mine, key), theirs):
            torch.testing.assert_close(p, other.float(), atol=1e-4, rtol=1e-3)
    assert compared >= 2
