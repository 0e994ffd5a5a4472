"""Entmax attention inside models of transformers, small and randomly initialised."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
transformers = pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import hugging_face  # noqa: E402
from splash_attention.backends.torch import modified  # noqa: E402
from splash_attention.hugging_face import masks  # noqa: E402

WORDS = 97


@pytest.fixture(autouse=True)
def registered():
    transformers.logging.set_verbosity_error()
    hugging_face.register()
    torch.manual_seed(0)
    torch._dynamo.reset()  # a function is compiled a limited number of times, and each test brings models of its own


def config(kind, **changes):
    return kind(
        vocab_size=WORDS, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, **changes,
    )  # fmt: skip


def llama(implementation="splash", **changes):
    values = config(transformers.LlamaConfig, num_key_value_heads=2, **changes)
    return transformers.LlamaForCausalLM._from_config(values, attn_implementation=implementation).eval()


def words(length=17):
    return torch.randint(0, WORDS, (2, length))


def padded(text, left=True):
    """(text with three words of padding, its attention mask)."""
    fill, ones = torch.zeros(2, 3, dtype=torch.long), torch.ones_like(text)
    parts = ([fill, text], [fill, ones]) if left else ([text, fill], [ones, fill])
    return tuple(torch.cat(part, 1) for part in parts)


def test_words_see_those_before_them_and_no_padding():
    model, text = llama(), words()
    logits = model(text).logits
    changed = text.clone()
    changed[:, 10:] = 5
    torch.testing.assert_close(model(changed).logits[:, :10], logits[:, :10])
    longer, mask = padded(text)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    again = model(longer, attention_mask=mask, position_ids=positions).logits[:, 3:]
    torch.testing.assert_close(again, logits, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_generation_with_a_cache_is_that_without(cache):
    model, text = llama(), words(7)
    slow = text
    for _ in range(5):
        slow = torch.cat([slow, model(slow).logits[:, -1].argmax(-1, keepdim=True)], 1)
    options = {"max_new_tokens": 5, "do_sample": False, "pad_token_id": 0, "eos_token_id": WORDS + 1}
    if cache == "static":
        options["cache_implementation"] = "static"
    assert torch.equal(model.generate(text, **options), slow)
    longer, mask = padded(text)
    assert torch.equal(model.generate(longer, attention_mask=mask, **options)[:, 3:], slow)


def test_an_encoder_sees_both_sides_and_no_padding():
    values = config(transformers.BertConfig)
    model = transformers.BertModel._from_config(values, attn_implementation="splash").eval()
    text = words()
    states = model(text).last_hidden_state
    changed = text.clone()
    changed[:, -1] = (text[:, -1] + 1) % WORDS
    assert not torch.allclose(model(changed).last_hidden_state[:, 0], states[:, 0])
    longer, mask = padded(text, left=False)
    torch.testing.assert_close(model(longer, attention_mask=mask).last_hidden_state[:, :17], states, atol=1e-5, rtol=1e-4)


def test_alpha_of_the_configuration_and_of_a_layer():
    text = words()
    model = llama()
    logits = model(text).logits
    model.config.splash_alpha = 1.9
    assert not torch.allclose(model(text).logits, logits)
    for layer in model.model.layers:
        layer.self_attn.splash_alpha = torch.nn.Parameter(torch.full((4,), 1.5))
    torch.testing.assert_close(model(text).logits, logits, atol=1e-6, rtol=1e-5)
    model.train()(text, labels=text).loss.backward()
    assert all(layer.self_attn.splash_alpha.grad.abs().sum() > 0 for layer in model.model.layers)


def test_it_learns():
    model = llama().train()
    text = torch.arange(12).repeat(2, 1) % 4
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(30):
        loss = model(text, labels=text).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 < losses[0]


@pytest.mark.parametrize("cache", [True, False])
def test_a_model_compiles_whole_without_a_mask(cache):
    """Without a cache transformers cannot tell while it traces whether sequences are packed."""
    model, text = llama().train(), words()
    expected = model(text, labels=text, use_cache=cache)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    out = compiled(text, labels=text, use_cache=cache)
    torch.testing.assert_close(out.logits, expected.logits, atol=1e-5, rtol=1e-4)
    gradients = (torch.autograd.grad(o.loss, model.lm_head.weight)[0] for o in (out, expected))
    torch.testing.assert_close(*gradients, atol=1e-5, rtol=1e-4)
    if not cache:
        packed = torch.tensor([[*range(9), *range(8)]]).expand(2, -1)
        usual = torch.arange(17).expand(2, -1)
        torch.testing.assert_close(compiled(text, position_ids=usual, use_cache=False).logits, expected.logits, atol=1e-5, rtol=1e-4)
        with pytest.raises(RuntimeError, match="set config.splash_any_mask to True before you compile"):
            compiled(text, position_ids=packed, use_cache=False)
        apart = torch.cat([model(text[:, :9]).logits, model(text[:, 9:]).logits], 1)
        torch.testing.assert_close(model(text, position_ids=packed, use_cache=False).logits, apart, atol=1e-5, rtol=1e-4)
        model.config.splash_any_mask = True
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(text, position_ids=packed, use_cache=False).logits, apart, atol=1e-5, rtol=1e-4)


def test_masks_of_ones_own():
    text, model = words(), llama()
    expected = model(text).logits
    mask = torch.ones(17, 17, dtype=torch.bool).tril()[None, None]
    added = torch.zeros(2, 1, 17, 17).masked_fill(~mask, torch.finfo(torch.float32).min)
    for own in (mask, mask.expand(2, -1, -1, -1), added):
        torch.testing.assert_close(model(text, attention_mask=own).logits, expected, atol=1e-5, rtol=1e-4)
    for wrong in (torch.ones(2, 1, 17, 17, dtype=torch.int64), torch.ones(2, 1, 17, 17, dtype=torch.int32)):
        with pytest.raises(NotImplementedError, match=r"takes no mask of shape \[2, 1, 17, 17\] and int"):
            model(text, attention_mask=wrong)


def test_attentions_are_the_sparse_probabilities():
    text, model = words(), llama(splash_alpha=2.0, splash_factor=30.0)
    longer, mask = padded(text)
    for given, told in ((text, None), (longer, mask)):
        done = model(given, attention_mask=told, output_attentions=True)
        torch.testing.assert_close(done.logits, model(given, attention_mask=told).logits, atol=1e-5, rtol=1e-4)
        assert len(done.attentions) == 2
        for p in done.attentions:
            sums = p.sum(-1)
            assert p.shape == (2, 4, given.shape[1], given.shape[1]) and (p == 0).float().mean() > 0.5
            torch.testing.assert_close(sums[..., -17:], torch.ones(2, 4, 17))
            assert told is None or (p[..., :3] == 0).all()


def test_packed_lengths_stay_on_the_kernels(monkeypatch):
    monkeypatch.setattr(modified, "_told", set())
    text, model = words()[:1], llama()
    apart = torch.cat([model(text[:, :9]).logits, model(text[:, 9:]).logits], 1)
    ends = torch.tensor([0, 9, 17], dtype=torch.int32)
    given = {"position_ids": torch.tensor([[*range(9), *range(8)]]), "use_cache": False}
    out = model(text, **given, cu_seq_lens_q=ends, cu_seq_lens_k=ends, max_length_q=9, max_length_k=9).logits
    torch.testing.assert_close(out, apart, atol=1e-5, rtol=1e-4)
    assert not modified._told
    torch.testing.assert_close(model(text, **given).logits, apart, atol=1e-5, rtol=1e-4)
    assert not modified._told


def mistral(implementation="splash", **changes):
    values = config(transformers.MistralConfig, num_key_value_heads=2, sliding_window=5, **changes)
    return transformers.MistralForCausalLM._from_config(values, attn_implementation=implementation).eval()


def test_windows_stay_on_the_kernels(monkeypatch):
    """Padded and not, with either cache, compiled, of packed lengths."""
    monkeypatch.setattr(modified, "_told", set())
    text, model = words(), mistral()
    expected = model(text).logits
    changed = text.clone()
    changed[:, 0] = (text[:, 0] + 1) % WORDS
    both = model(changed).logits  # two layers see four words back each
    assert torch.equal(both[:, 9:], expected[:, 9:]) and not torch.equal(both[:, 8], expected[:, 8])
    assert not torch.allclose(llama()(text).logits, expected)
    longer, mask = padded(text)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    again = model(longer, attention_mask=mask, position_ids=positions).logits[:, 3:]
    torch.testing.assert_close(again, expected, atol=1e-5, rtol=1e-4)
    for cache in (True, False):
        compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
        torch.testing.assert_close(compiled(text, use_cache=cache).logits, expected, atol=1e-5, rtol=1e-4)
        again = compiled(longer, attention_mask=mask, position_ids=positions, use_cache=cache).logits[:, 3:]
        torch.testing.assert_close(again, expected, atol=1e-5, rtol=1e-4)
    packed = torch.tensor([[*range(9), *range(8)]])
    with pytest.raises(RuntimeError, match="set config.splash_any_mask to True before you compile"):
        compiled(text, position_ids=packed.expand(2, -1), use_cache=False)
    ends = torch.tensor([0, 9, 17], dtype=torch.int32)
    apart = torch.cat([model(text[:1, :9]).logits, model(text[:1, 9:]).logits], 1)
    given = {"position_ids": packed, "use_cache": False, "cu_seq_lens_q": ends, "cu_seq_lens_k": ends}
    out = model(text[:1], **given, max_length_q=9, max_length_k=9).logits
    torch.testing.assert_close(out, apart, atol=1e-5, rtol=1e-4)
    two = torch.cat([packed, torch.tensor([[*range(2), *range(15)]])])
    other = torch.cat([model(text[1:, :2]).logits, model(text[1:, 2:]).logits], 1)
    out = model(text, position_ids=two, use_cache=False).logits
    torch.testing.assert_close(out, torch.cat([apart, other]), atol=1e-5, rtol=1e-4)
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0, "eos_token_id": WORDS + 1}
    slow = model.generate(text, use_cache=False, **options)
    assert torch.equal(model.generate(text, **options), slow)
    assert torch.equal(model.generate(longer, attention_mask=mask, **options)[:, 3:], slow)
    assert not modified._told
    assert torch.equal(model.generate(text, cache_implementation="static", **options), slow)


@pytest.mark.parametrize("window", [None, 3, 64])
def test_packed_position_ids_stay_on_the_kernels(monkeypatch, window):
    """Of several batch entries, under chunks too; the mask's lengths are found once."""
    monkeypatch.setattr(modified, "_told", set())
    starts = torch.tensor([[0, 4, 5, 20], [0, 0, 11, 12]])
    sequences = (torch.arange(24)[None, :, None] >= starts[:, None]).sum(-1)
    masks = transformers.masking_utils
    causal = masks.causal_mask_function if window is None else masks.sliding_window_causal_mask_function(window)
    local = {} if window is None else {"local_size": window, "config": transformers.MistralConfig(sliding_window=window)}
    form = hugging_face.key_positions(
        2, 24, 24, mask_function=masks.and_masks(causal, masks.packed_sequence_mask_function(sequences)), allow_is_causal_skip=False, **local
    )
    assert form.dtype == torch.int32 and form.shape == (2, 1, 5 if window == 3 else 4, 24)
    keys = torch.arange(24)
    seen = (sequences[:, :, None] == sequences[:, None]) & (keys <= keys[:, None]) & (keys > keys[:, None] - (window or 24))
    q, k, v = (torch.randn(2, heads, 24, 8, dtype=torch.float64, requires_grad=True) for heads in (4, 2, 2))
    module, d_out = torch.nn.Module(), torch.randn(2, 24, 4, 8, dtype=torch.float64)
    found = []
    for mask in (form, seen[:, None]):
        out, _ = hugging_face.attention_forward(module, q, k, v, mask, sliding_window=window)
        found.append((out, *torch.autograd.grad(out, (q, k, v), d_out)))
        assert not modified._told
    for mine, exact in zip(*found):
        torch.testing.assert_close(mine, exact, atol=1e-9, rtol=1e-7)
    lengths = form._splash_lengths
    assert lengths.tolist() == [0, 4, 5, 20, 24, 35, 36, 48]
    assert hugging_face.masks.packed_lengths(form) == (() if window == 3 else (0, 4, 5, 20, 24, 35, 36, 48))
    _, p = hugging_face.attention_forward(module, q, k, v, form, sliding_window=window, output_attentions=True)
    assert form._splash_lengths is lengths and bool((p[~seen[:, None].expand_as(p)] == 0).all())
    torch.testing.assert_close(p.sum(-1), torch.ones(2, 4, 24, dtype=torch.float64))
    module.is_causal = False
    for named in (window, 3):  # what the layer says beside its mask counts for nothing
        out, _ = hugging_face.attention_forward(module, q, k, v, form, sliding_window=named)
        torch.testing.assert_close(out, found[1][0], atol=1e-9, rtol=1e-7)
    if window == 3:  # a layer that does not name the window of its mask
        out, _ = hugging_face.attention_forward(module, q, k, v, form)
        torch.testing.assert_close(out, found[1][0], atol=1e-9, rtol=1e-7)


@pytest.mark.parametrize("window", [None, 4])
def test_a_mask_that_hides_nothing_is_none(window):
    function = transformers.masking_utils.sliding_window_causal_mask_function(4) if window else transformers.masking_utils.causal_mask_function
    local = {} if window is None else {"local_size": 4, "config": transformers.MistralConfig(sliding_window=4)}

    def form(attention_mask, queries=20, keys=20):
        return hugging_face.key_positions(
            2, queries, keys, keys - queries, mask_function=function, attention_mask=attention_mask, allow_is_causal_skip=True, **local
        )

    mask = torch.ones(2, 20, dtype=torch.bool)
    whole, none = form(mask), form(None)
    assert (whole is None and none is None) if window is None else torch.equal(whole, none)
    assert form(mask, keys=24) is not None  # not all there yet
    assert form(mask[:, :16], 16, 16) is not None  # may be a step of decoding, which asks nothing of the device
    mask[0, 0] = False
    assert form(mask) is not None and (window is None or form(mask).shape != whole.shape)


@pytest.mark.parametrize("window", [None, 4])
def test_whole_sequences_are_not_looked_at(window):
    """As transformers asks while a graph is captured: whether sequences are packed it cannot tell."""
    make = transformers.masking_utils
    function = make.causal_mask_function if window is None else make.sliding_window_causal_mask_function(window)
    unknown = make.and_masks(function, make.packed_sequence_mask_function(torch.zeros(2, 20, dtype=torch.int64)))
    local = {} if window is None else {"local_size": 4, "config": transformers.MistralConfig(sliding_window=4)}

    def form(function, skip, attention_mask=None):
        return hugging_face.key_positions(2, 20, 20, mask_function=function, attention_mask=attention_mask, allow_is_causal_skip=skip, **local)

    wanted = form(function, True)
    with hugging_face.whole_sequences():
        whole = form(unknown, False)
        padded = torch.ones(2, 20, dtype=torch.bool)
        padded[0, 0] = False
        with pytest.raises(NotImplementedError, match="no padding"):
            form(unknown, False, padded)
    assert whole is wanted is None if window is None else torch.equal(whole, wanted)
    assert form(unknown, False) is not None


def test_padding_on_the_left_is_told_by_a_mask():
    def told(hidden, queries=12, keys=12):
        mask = torch.ones(2, keys, dtype=torch.int64)
        for at in hidden:
            mask[at] = 0
        form = hugging_face.key_positions(2, queries, keys, keys - queries, attention_mask=mask)
        found = masks.left_padding(form, queries)
        assert found == masks.left_padding(form, queries) and hasattr(form, "_splash_left_padding")  # which the layers share
        return found

    assert told([]) == (0, 0) and told([(1, slice(5))]) == (0, 5) and told([(0, slice(11)), (1, slice(1))]) == (11, 1)
    assert told([(0, slice(11))], queries=3) == (11, 0) and told([(1, slice(4))], queries=1) == (0, 4)
    assert told([(1, slice(12))]) is None and told([(0, 3)]) is None and told([(0, slice(9, 12))]) is None  # all, a hole, the right
    assert told([(1, 5)], queries=3) is None and told([(1, slice(11, 12))], queries=1) is None
    assert masks.left_padding(torch.ones(2, 1, 12, 12, dtype=torch.bool), 12) is None
    static = hugging_face.key_positions(1, 1, 12, 6, attention_mask=torch.ones(1, 7, dtype=torch.int64))  # room for later keys
    assert masks.left_padding(static, 1) is None


def test_chunks_are_packed_sequences():
    chunked = transformers.masking_utils.chunked_causal_mask_function(5, torch.zeros(1, dtype=torch.int64))
    form = hugging_face.key_positions(1, 12, 12, mask_function=chunked, local_size=5, allow_is_causal_skip=False)
    assert form.shape == (1, 1, 4, 12) and form[0, 0, 3].tolist() == [0] * 5 + [5] * 5 + [10] * 2


def test_a_window_that_a_layer_does_not_name_is_a_mask_of_pairs(monkeypatch):
    monkeypatch.setattr(modified, "_told", set())
    q, k, v = (torch.randn(2, heads, 12, 8) for heads in (4, 2, 2))
    mask = torch.ones(2, 12, dtype=torch.bool)
    mask[0, :3] = False
    for given in (None, mask):
        masked = hugging_face.key_positions(
            2, 12, 12, mask_function=transformers.masking_utils.sliding_window_causal_mask_function(4), attention_mask=given,
            local_size=4, allow_is_causal_skip=True, config=transformers.MistralConfig(sliding_window=4),
        )  # fmt: skip
        module = torch.nn.Module()
        one, _ = hugging_face.attention_forward(module, q, k, v, masked, sliding_window=4)
        other, _ = hugging_face.attention_forward(module, q, k, v, masked)
        torch.testing.assert_close(one, other)
        assert not modified._told


def test_large_attentions_are_told(monkeypatch):
    from splash_attention.hugging_face import attention

    monkeypatch.setattr(attention, "_MANY", 2 * 4 * 16 * 17)
    with pytest.warns(UserWarning, match="makes a dense matrix of 2312 probabilities"):
        llama()(words(), output_attentions=True)
