"""Small random models of transformers over several ranks, inside context_parallel, against one rank."""

from __future__ import annotations

import pytest

from ranks import dist, error_of, run, torch

transformers = pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
from splash_attention import hugging_face, language  # noqa: E402
from splash_attention.distributed import context_parallel, position_ids, shard, sum_gradients, unshard  # noqa: E402

WORDS, LENGTH = 97, 24


def model_of(kind="Llama", **changes):
    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=WORDS, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        max_position_embeddings=128, initializer_range=0.3, **changes,
    )  # fmt: skip
    model = getattr(transformers, f"{kind}ForCausalLM")._from_config(config, attn_implementation="splash").double().train()
    return hugging_face.learn_alpha(model, alpha=[1.3, 1.5, 1.8, 1.9])


def text():
    return torch.randint(0, WORDS, (2, LENGTH + 1), generator=torch.Generator().manual_seed(3))


def loss_of(logits, labels):
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")


def on_one_rank(model, places=None):
    words = text()
    logits = model(words[:, :-1], position_ids=places, use_cache=False).logits
    loss_of(logits, words[:, 1:]).backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    return logits.detach(), gradients


def on_all(model, kind="zigzag", mode="auto", places=None, given=None, **context):
    words, labels = (shard(part, shard=kind) for part in (text()[:, :-1], text()[:, 1:]))
    places = position_ids(LENGTH, shard=kind)[None] if places is None else shard(places, shard=kind)
    with context_parallel(shard=kind, mode=mode, **context):
        logits = model(words, position_ids=places, use_cache=False, **(given or {})).logits
        loss_of(logits, labels).backward()
    sum_gradients(model.parameters())
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    model.zero_grad()
    return unshard(logits, shard=kind), gradients


def compare(one, mine):
    torch.testing.assert_close(mine[0], one[0], atol=1e-9, rtol=1e-9)
    assert any("splash_heads" in name and gradient.abs().sum() > 0 for name, gradient in one[1].items())
    for name, gradient in one[1].items():
        bound = 1e-6 if "splash_heads" in name else 1e-8  # alphas' are rounded to float32 where a call ends
        torch.testing.assert_close(mine[1][name], gradient, atol=bound, rtol=bound)


def models_as_on_one_rank():
    model = model_of()
    one = on_one_rank(model)
    for kind, mode in (("zigzag", "gather"), ("contiguous", "heads"), ("striped", "auto")):
        compare(one, on_all(model, kind, mode))
    model.gradient_checkpointing_enable()  # backward computes forward again, inside
    compare(one, on_all(model, given={"attention_mask": torch.ones(2, LENGTH // 2, dtype=torch.int64)}))
    windowed = model_of("Mistral", sliding_window=5)
    compare(on_one_rank(windowed), on_all(windowed))
    model = model_of()
    packed = torch.tensor([[*range(9), *range(15)]])
    compare(on_one_rank(model, packed), on_all(model, places=packed, cu_seqlens=[0, 9, 24]))
    outside = on_one_rank(model)  # a context leaves nothing behind
    torch.testing.assert_close(outside[0], one[0])


def test_models_as_on_one_rank():
    run(2, models_as_on_one_rank)


def refused():
    model = model_of()
    words, places = shard(text()[:, :-1]), position_ids(LENGTH)[None]
    mask = torch.ones_like(words)
    mask[0, 0] = 0
    told = []
    with context_parallel():
        for given in (
            {"attention_mask": mask},
            {"attention_mask": torch.ones(2, 1, LENGTH // 2, LENGTH // 2, dtype=torch.bool)},
            {"output_attentions": True},
            {"cu_seq_lens_q": torch.tensor([0, 12]), "cu_seq_lens_k": torch.tensor([0, 12])},
        ):
            told.append(error_of(model, words, position_ids=places, use_cache=False, **given))
        model.config.attention_dropout = 0.1
        for layer in model.model.layers:
            layer.self_attn.attention_dropout = 0.1
        told.append(error_of(model, words, position_ids=places, use_cache=False))
        cache = transformers.DynamicCache(config=model.config)
        model.eval()(words, position_ids=places, past_key_values=cache)
        told.append(error_of(model, words, position_ids=places, past_key_values=cache))
        language.apply(model, language.Method.parse("softmax"))
        told.append(error_of(model, words, position_ids=places, use_cache=False))
    return told


def test_what_a_context_does_not_serve():
    for told in run(2, refused):
        sentences = (
            "context_parallel takes no padding in attention_mask; pass whole sequences, or packed ones by cu_seqlens",
            "LlamaAttention inside context_parallel takes no mask of one's own, nor a window that the layer does not name",
            "LlamaAttention inside context_parallel takes no output_attentions",
            "LlamaAttention inside context_parallel takes no cu_seq_lens_q (pass context_parallel cu_seqlens of the whole sequence)",
            "attention over several ranks takes no dropout; pass 0",
            "q has 12 tokens and k 24; a rank's shard has the same tokens of both",
            'a method attends on one rank; context_parallel takes attn_implementation="splash"',
        )
        assert [said for _, said in told] == list(sentences)
        assert [kind for kind, _ in told] == ["NotImplementedError"] * 5 + ["ValueError", "NotImplementedError"]
    assert not dist.is_initialized()
