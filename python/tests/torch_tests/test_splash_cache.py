"""SplashCache: a model that decodes over pages gives the logits and words that it gives without a cache."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
transformers = pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
core = pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from splash_attention import hugging_face  # noqa: E402
from splash_attention.decoding import stored_width  # noqa: E402
from splash_attention.hugging_face import SplashCache, cache  # noqa: E402
from splash_attention.hugging_face.cache import as_argument  # noqa: E402

if not hasattr(transformers.Cache, "get_query_offset"):
    pytest.skip("transformers is older than SplashCache needs", allow_module_level=True)
DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() and core.has_cuda else [])]
NEAR = {"atol": 2e-4, "rtol": 1e-3}
WORDS, PROMPT = 97, 40
GREEDY = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False, "pad_token_id": 0, "disable_compile": True}
on_gpu = pytest.mark.skipif("cuda" not in DEVICES, reason="no GPU, or a build without CUDA")


@pytest.fixture(autouse=True)
def usual():
    transformers.logging.set_verbosity_error()
    torch._dynamo.reset()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


def llama(device="cpu", dtype=None, **changes):
    torch.manual_seed(0)
    values = {"num_attention_heads": 6, "num_key_value_heads": 2, "head_dim": 64, "initializer_range": 0.1, **changes}
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=192, intermediate_size=64, num_hidden_layers=2, max_position_embeddings=512, **values
    )
    model = transformers.LlamaForCausalLM._from_config(config, attn_implementation="splash").eval()
    return model.to(device, dtype or (torch.bfloat16 if device == "cuda" else torch.float32))


def padded(device="cpu", left=True):
    """(words, mask) of three sequences, of which one has no padding and one is mostly padding."""
    words = torch.randint(1, WORDS, (3, PROMPT), generator=torch.Generator().manual_seed(1))
    mask = torch.ones_like(words)
    mask[1, :7], mask[2, : PROMPT - 3] = 0, 0
    mask = mask if left else mask.flip(1)
    return (words * mask).to(device), mask.to(device)


def follow(model, cache, words, mask, calls):
    """Logits of all words, in calls of so many, and the same without a cache."""
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    without = model(words, attention_mask=mask, position_ids=positions, use_cache=False).logits
    parts, first = [], 0
    for n in calls:
        new = slice(first, first + n)
        # The mask is of all words so far, as generate has it.
        parts.append(model(words[:, new], attention_mask=mask[:, : first + n], position_ids=positions[:, new], **as_argument(model, cache)).logits)
        first += n
    assert first == words.shape[1] and int(cache.get_seq_length()) == first
    return torch.cat(parts, 1), without


def close(mine, other, mask, device):
    mine, other = (logits.float()[mask.bool()] for logits in (mine, other))
    assert other.std() > 0.2
    if device == "cuda":  # in bfloat16 both are 0.02 to 0.03 from the exact logits
        assert (mine - other).norm() < 0.06 * other.norm()
    else:
        torch.testing.assert_close(mine, other, **NEAR)


@pytest.mark.parametrize("capacity", [None, PROMPT + 11])
@pytest.mark.parametrize("padding", [False, True])
def test_generate_writes_the_same_words(capacity, padding):
    model, (words, mask) = llama(), padded()
    given = {"attention_mask": mask if padding else torch.ones_like(mask), **GREEDY, "return_dict_in_generate": True, "output_logits": True}
    expected = model.generate(words, **given, use_cache=False)
    found = model.generate(words, **given, **as_argument(model, SplashCache(model.config, capacity)))
    assert torch.equal(found.sequences, expected.sequences)
    torch.testing.assert_close(torch.stack(found.logits), torch.stack(expected.logits), **NEAR)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("bits, page_size", [(4, 16), (0, 64)])
def test_calls_of_any_length(device, left, bits, page_size):
    """Prompts, single words, up to 16 words (decode) and more (keys gathered), and padding in the first or the last calls."""
    model, (words, mask) = llama(device), padded(device, left)
    for calls in ([PROMPT], [20, *[1] * 20], [17, 3, 1, 16, 3], [5, 1, 34], [1, 20, 19]):
        cache = SplashCache(model.config, 100, bits=bits, page_size=page_size)
        close(*follow(model, cache, words, mask, calls), mask, device)
        assert cache.layers[0].paged.lengths.tolist() == mask.sum(1).tolist()  # no page holds padding


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("head_dim", [24, 80])
def test_keys_are_stored_as_wide_as_a_gpu_needs(device, head_dim, monkeypatch):
    """In host memory nothing needs it; here it is made as on a GPU."""
    monkeypatch.setattr(cache, "stored_width", lambda head_dim, device: stored_width(head_dim, "cuda"))
    model, (words, mask) = llama(device, head_dim=head_dim), padded(device)
    for calls in ([PROMPT], [17, 3, 1, 16, 3], [1, 20, 19]):
        held = SplashCache(model.config)
        close(*follow(model, held, words, mask, calls), mask, device)
        assert held.layers[0].paged.keys.shape[3] == (64 if head_dim < 64 else 128)


def test_a_cache_in_float64_is_exact():
    model, (words, mask) = llama(dtype=torch.float64), padded()
    found, expected = follow(model, SplashCache(model.config), words, mask, [20, 1, 3, 16])
    torch.testing.assert_close(found[mask.bool()], expected[mask.bool()], atol=1e-8, rtol=1e-8)


@pytest.mark.parametrize("device", DEVICES)
def test_alpha_and_factor_of_each_head(device):
    words, mask = padded(device)
    alpha, factor = [1.2, 1.5, 2.0, 1.7, 1.4, 1.3], [0.5, 2.0, 1.0, 0.7, 1.2, 3.0]
    settings = llama(device, splash_alpha=alpha, splash_factor=factor)
    learned = hugging_face.learn_alpha(llama(device), alpha=[min(a, 1.95) for a in alpha], factor=factor)
    for model in (settings, learned):
        found, expected = follow(model, SplashCache(model.config, 64), words, mask, [20, *[1] * 20])
        close(found, expected, mask, device)
        assert not torch.allclose(found.float(), follow(llama(device), SplashCache(model.config, 64), words, mask, [PROMPT])[0].float(), atol=0.1)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("left", [None, True, False])
def test_crop_takes_back_words(device, left):
    """Also where some of them are padding."""
    model = llama(device)
    words, mask = padded(device, bool(left))
    if left is None:
        mask = torch.ones_like(mask)
    expected, other = model, words.flip(1).clamp(min=1)
    cache = SplashCache(model.config, 64, page_size=16)
    for kept in (30, 12, 0):
        follow(model, cache, words, mask, [20, *[1] * 4, 16])
        cache.crop(-(PROMPT - kept))
        assert int(cache.get_seq_length()) == kept
        mixed = torch.cat([words[:, :kept], other[:, kept:]], 1)
        seen = torch.cat([mask[:, :kept], torch.ones_like(mask[:, kept:])], 1)
        positions = (seen.cumsum(1) - 1).clamp(min=0)
        expected = model(mixed, attention_mask=seen, position_ids=positions, use_cache=False).logits
        found = model(mixed[:, kept:], attention_mask=seen, position_ids=positions[:, kept:], **as_argument(model, cache)).logits
        close(found, expected[:, kept:], seen[:, kept:], device)
        cache.reset()


def test_drafts_and_beams():
    model, (words, mask) = llama(), padded()
    one = words[:1, :9].repeat(1, 4)  # with passages to find again
    for words_of, given in ((one, {"prompt_lookup_num_tokens": 4}), (words, {"attention_mask": mask, "num_beams": 3, "num_return_sequences": 2})):
        expected = model.generate(words_of, **GREEDY, **given)
        for capacity in (None, 64):
            assert torch.equal(model.generate(words_of, **GREEDY, **given, **as_argument(model, SplashCache(model.config, capacity))), expected)


@pytest.mark.parametrize("device", DEVICES)
def test_sequences_are_chosen_and_repeated(device):
    model, (words, mask) = llama(device), padded(device)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    for choose, chosen in (
        (lambda cache: cache.batch_select_indices(torch.tensor([2, 0])), [2, 0]),
        (lambda cache: cache.batch_select_indices(torch.tensor([True, False, True])), [0, 2]),
        (lambda cache: cache.batch_repeat_interleave(2), [0, 0, 1, 1, 2, 2]),
        (lambda cache: cache.reorder_cache(torch.tensor([2, 2, 1])), [2, 2, 1]),
    ):
        cache = SplashCache(model.config, 64, page_size=16)
        follow(model, cache, words, mask, [20, 20])
        choose(cache)
        next_words, place = (words + 1)[chosen, :3].clamp(max=WORDS - 1), positions[chosen, -1:] + torch.arange(1, 4, device=device)
        found = model(next_words, position_ids=place, **as_argument(model, cache)).logits
        longer = torch.cat([words[chosen], next_words], 1)
        seen = torch.cat([mask[chosen], torch.ones_like(next_words)], 1)
        expected = model(longer, attention_mask=seen, position_ids=(seen.cumsum(1) - 1).clamp(min=0), use_cache=False).logits[:, -3:]
        close(found, expected, torch.ones_like(next_words), device)


@pytest.mark.parametrize("device", DEVICES)
def test_it_grows(device):
    model = llama(device)
    words = torch.randint(1, WORDS, (2, 300), generator=torch.Generator().manual_seed(3)).to(device)
    cache = SplashCache(model.config, page_size=16)
    cache.sequences.first_capacity = 32
    close(*follow(model, cache, words, torch.ones_like(words), [30, *[1] * 40, 200, 16, 14]), torch.ones_like(words), device)
    assert cache.get_max_length() == -1 and cache.layers[1].paged.block_table.shape[1] * 16 >= 300


@pytest.mark.parametrize("padding", [False, True])
def test_a_step_compiles_once_for_all_lengths(padding):
    model, (words, mask) = llama(), padded()
    mask = mask if padding else torch.ones_like(mask)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    expected = model(words, attention_mask=mask, position_ids=positions, use_cache=False).logits
    cache, graphs = SplashCache(model.config, 64, page_size=16), []
    model(words[:, :25], attention_mask=mask[:, :25], position_ids=positions[:, :25], **as_argument(model, cache))
    step = torch.compile(model, fullgraph=True, backend=lambda graph, inputs: graphs.append(graph) or graph)
    for i in range(25, PROMPT):
        given = {"attention_mask": mask[:, i : i + 1].clone()} if padding else {}
        found = step(words[:, i : i + 1], **given, position_ids=positions[:, i : i + 1], **as_argument(model, cache)).logits
        close(found, expected[:, i : i + 1], mask[:, i : i + 1], "cpu")
    assert len(graphs) == 1 and int(cache.get_seq_length()) == PROMPT
    assert "decode" in graphs[0].code and not any(size in graphs[0].code for size in ("searchsorted", "softmax"))


@pytest.mark.parametrize("padding", [False, True])
def test_a_step_asks_nothing_of_the_device_and_sends_nothing_to_it(padding):
    """What a CUDA graph could not capture, told by the operators that run; none of them makes a tensor as long as the text."""
    called, long = set(), set()

    class Seen(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, types, arguments=(), named=None):
            out = function(*arguments, **(named or {}))
            called.add(str(function))
            if any(4096 in getattr(x, "shape", ()) for x in (out if isinstance(out, tuple) else (out,))):
                long.add(str(function))
            return out

    model, (words, mask) = llama(), padded()
    cache = SplashCache(model.config, 4096)
    given = {"attention_mask": mask[:, :1], "position_ids": torch.full((3, 1), PROMPT), **as_argument(model, cache)}
    model(words, attention_mask=mask if padding else None, **as_argument(model, cache))
    if not padding:
        del given["attention_mask"]
    with Seen():
        model(words[:, :1], **given)
    assert "splash_attention.decode.default" in called
    assert not [name for name in called if any(part in name for part in ("local_scalar_dense", "lift", "nonzero", "masked_select", "equal"))]
    assert long == ({"aten.index_copy_.default"} if padding else set())  # writes which column is padding


@on_gpu
@pytest.mark.parametrize("padding", [False, True])
def test_a_graph_of_a_step_writes_on(padding):
    model, (words, mask) = llama("cuda"), padded("cuda")
    mask = mask if padding else torch.ones_like(mask)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    expected = model(words, attention_mask=mask, position_ids=positions, use_cache=False).logits
    cache, start = SplashCache(model.config, 64, page_size=16), 20
    seen = mask[:, start : start + 1].clone()
    given = {"attention_mask": seen} if padding else {}
    model(words[:, :start], attention_mask=mask[:, :start], position_ids=positions[:, :start], **as_argument(model, cache))
    word, place = words[:, start : start + 1].clone(), positions[:, start : start + 1].clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        model(word, **given, position_ids=place, **as_argument(model, cache))
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        logits = model(word, **given, position_ids=place, **as_argument(model, cache)).logits
    cache.crop(-1)
    for i in range(start, PROMPT):
        word.copy_(words[:, i : i + 1])
        place.copy_(positions[:, i : i + 1])
        seen.copy_(mask[:, i : i + 1])
        graph.replay()
        close(logits, expected[:, i : i + 1], mask[:, i : i + 1], "cuda")
    assert int(cache.get_seq_length()) == PROMPT


@on_gpu
@pytest.mark.slow
def test_generate_compiles_its_steps_on_a_gpu():
    model, (words, mask) = llama("cuda"), padded("cuda")
    given = {**GREEDY, "attention_mask": mask, "return_dict_in_generate": True, "output_logits": True}
    expected = model.generate(words, **given, **as_argument(model, SplashCache(model.config, 64)))
    found = model.generate(words, **{**given, "disable_compile": False}, **as_argument(model, SplashCache(model.config, 64)))
    assert (found.sequences[:, : PROMPT + 2] == expected.sequences[:, : PROMPT + 2]).all()
    close(found.logits[1][:, None], expected.logits[1][:, None], torch.ones_like(words[:, :1]), "cuda")


def refused(kind, match):
    return pytest.raises(kind, match=match)


def test_what_does_not_fit_is_refused_in_a_sentence():
    model, (words, mask) = llama(), padded()
    cache = SplashCache(model.config, 50)
    model(words, **as_argument(model, cache))
    with refused(ValueError, "max_cache_len is 50; this call needs room for 51 tokens of each sequence"):
        model(words[:, :11], **as_argument(model, cache))
    with refused(ValueError, "the cache is of 3 sequences, this call of 2; a new batch needs a cache of its own"):
        model(words[:2, :10], **as_argument(model, cache))
    model(words[:, :10], **as_argument(model, cache))  # what was refused left no trace
    assert cache.layers[1].paged.lengths.tolist() == [50, 50, 50]
    with pytest.raises(Exception, match="give SplashCache max_cache_len"):
        torch.compile(model, fullgraph=True, backend="eager")(words, **as_argument(model, SplashCache(model.config)))
    with refused(ValueError, "tokens_to_remove is 3; it must be 0, or minus the number of tokens to drop"):
        cache.crop(3)
    with refused(ValueError, "max_cache_len is 0; it must be at least 1"):
        SplashCache(model.config, 0)
    with refused(NotImplementedError, r"takes the tokenizer's attention_mask \[batch, length\], not one of shape \[3, 1, 4, 4\]"):
        model(words[:, :4], attention_mask=torch.ones(3, 1, 4, 4, dtype=torch.bool), **as_argument(model, SplashCache(model.config)))
    with refused(ValueError, r"alpha is 1.001; it must lie in \[1.01, 2\]"):
        llama(splash_alpha=1.001)(words, **as_argument(model, SplashCache(model.config)))
    with torch.enable_grad(), refused(RuntimeError, "decoding has no gradients: call the model under torch.no_grad()"):
        model(words[:, :2], **as_argument(model, SplashCache(model.config)))
    with refused(NotImplementedError, "serves decoders; is_encoder_decoder is True"):
        SplashCache(transformers.BartConfig())
    model.set_attn_implementation("sdpa")
    with refused(TypeError, 'serves models under attn_implementation="splash"'):
        model(words, **as_argument(model, SplashCache(model.config)))


@on_gpu
def test_what_the_kernels_do_not_take_is_refused():
    words, _ = padded("cuda")
    for changes, dtype, match in (({"head_dim": 264}, torch.bfloat16, "head_dim 64, 128 and 256, not 264"), ({}, torch.float32, "not float32")):
        model = llama("cuda", dtype, **changes)
        with refused(NotImplementedError, match):
            model(words, **as_argument(model, SplashCache(model.config)))


def test_attentions_and_k_keep_are_computed_over_gathered_keys():
    model, (words, mask) = llama(), padded()
    cache = SplashCache(model.config)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    model(words[:, :30], attention_mask=mask[:, :30], position_ids=positions[:, :30], **as_argument(model, cache))
    given = {"attention_mask": mask, "position_ids": positions[:, 30:], **as_argument(model, cache)}
    found = model(words[:, 30:], **given, output_attentions=True)
    expected = model(words, attention_mask=mask, position_ids=positions, use_cache=False, output_attentions=True)
    close(found.logits, expected.logits[:, 30:], mask[:, 30:], "cpu")
    for mine, whole in zip(found.attentions, expected.attentions):
        torch.testing.assert_close(mine[0], whole[0, :, 30:], **NEAR)  # without padding
        torch.testing.assert_close(mine[1, :, :, :33], whole[1, :, 30:, 7:], **NEAR)  # its keys lie without it
    few = llama(splash_k_keep=3)
    close(*follow(few, SplashCache(few.config), words, mask, [30, *[1] * 10]), mask, "cpu")
