"""Tiny random models of the architectures that users of transformers have, and what they are called with."""

from __future__ import annotations

import torch
import transformers

WORDS = 61
_SMALL = dict(
    vocab_size=WORDS, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=256,
    pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_WIDE = {**_GROUPED, "head_dim": 8}  # those whose head_dim is not hidden_size / num_attention_heads
_WINDOWS = {"sliding_window": 6, "layer_types": ["sliding_attention", "full_attention"]}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 2}
_LATENT = dict(
    q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=6, n_routed_experts=4, n_group=2, topk_group=2,
    num_experts_per_tok=2, moe_intermediate_size=16, first_k_dense_replace=1,
)  # fmt: skip
_BART = dict(
    vocab_size=WORDS, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4, decoder_attention_heads=4,
    encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2,
    decoder_start_token_id=1,
)  # fmt: skip
_T5 = dict(vocab_size=WORDS, d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, pad_token_id=0, decoder_start_token_id=0)
_VIT = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, image_size=16, patch_size=4, num_labels=3)
_WHISPER = {**_BART, "num_mel_bins": 8, "max_source_positions": 16, "max_target_positions": 32, "suppress_tokens": None}

# name: (kind of inputs, name of transformers' classes, task, configuration)
ALL = {
    "Llama": ("decoder", "Llama", "ForCausalLM", _GROUPED),
    "Qwen2": ("decoder", "Qwen2", "ForCausalLM", _GROUPED),
    "Qwen3": ("decoder", "Qwen3", "ForCausalLM", _WIDE),
    "Mistral": ("decoder", "Mistral", "ForCausalLM", {**_GROUPED, "sliding_window": None}),
    "Mistral with a window": ("decoder", "Mistral", "ForCausalLM", {**_GROUPED, "sliding_window": 6}),
    "Mixtral": ("decoder", "Mixtral", "ForCausalLM", {**_GROUPED, **_EXPERTS}),
    "Phi3": ("decoder", "Phi3", "ForCausalLM", _GROUPED),
    "Gemma": ("decoder", "Gemma", "ForCausalLM", _WIDE),
    "Gemma2": ("decoder", "Gemma2", "ForCausalLM", {**_WIDE, **_WINDOWS, "query_pre_attn_scalar": 8, "attn_logit_softcapping": 2.0}),
    "Gemma3": ("decoder", "Gemma3", "ForCausalLM", {**_WIDE, **_WINDOWS, "query_pre_attn_scalar": 8}),
    "GPT-OSS": ("decoder", "GptOss", "ForCausalLM", {**_WIDE, **_WINDOWS, **_EXPERTS}),
    "GPT-NeoX": ("decoder", "GPTNeoX", "ForCausalLM", _SMALL),
    "OPT": ("decoder", "OPT", "ForCausalLM", {**_SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "GPT-2": ("decoder", "GPT2", "LMHeadModel", _SMALL),
    "BERT": ("encoder", "Bert", "ForMaskedLM", _SMALL),
    "RoBERTa": ("encoder", "Roberta", "ForMaskedLM", _SMALL),
    "DistilBERT": ("encoder", "DistilBert", "ForMaskedLM", dict(vocab_size=WORDS, dim=32, n_layers=2, n_heads=4, hidden_dim=48)),
    "Electra": ("encoder", "Electra", "ForMaskedLM", {**_SMALL, "embedding_size": 32}),
    "ModernBERT": ("encoder", "ModernBert", "ForMaskedLM", {**_SMALL, "local_attention": 32, "cls_token_id": 1, "sep_token_id": 2}),
    "DeepSeek-V3": ("decoder", "DeepseekV3", "ForCausalLM", {**_SMALL, "num_key_value_heads": 4, **_LATENT}),
    "BART": ("both", "Bart", "ForConditionalGeneration", _BART),
    "T5": ("both", "T5", "ForConditionalGeneration", _T5),
    "ViT": ("images", "ViT", "ForImageClassification", _VIT),
    "Whisper": ("sound", "Whisper", "ForConditionalGeneration", _WHISPER),
}
DROPOUTS = ("attention_dropout", "attn_pdrop", "attention_probs_dropout_prob", "dropout_rate", "dropout", "hidden_dropout_prob")
DROPOUTS += ("hidden_dropout", "resid_pdrop", "embd_pdrop", "activation_dropout")


def build(name, implementation, **changes):
    """In eval, weights large enough that attention is sparse and differs from uniform."""
    _, family, task, values = ALL[name]
    config = getattr(transformers, {"Gemma3": "Gemma3TextConfig"}.get(family, f"{family}Config"))(**{**values, **changes})
    for key in DROPOUTS:  # in training they are drawn elsewhere in the two implementations
        if isinstance(getattr(config, key, None), float):
            setattr(config, key, 0.0)
    torch.manual_seed(0)
    model = getattr(transformers, f"{family}{task}")._from_config(config, attn_implementation=implementation).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.dim() == 2 and "embed" not in key:
                weight.copy_(torch.randn(weight.shape, generator=generator) * 1.5 * weight.shape[1] ** -0.5)
    return model


def length_of(name):
    return 200 if name == "ModernBERT" else 17


def inputs(name, padding=None):
    """padding: None, "left" or "right": four words of it in the first of two rows."""
    kind, _, _, values = ALL[name]
    generator = torch.Generator().manual_seed(2)
    if kind == "images":
        return {"pixel_values": torch.randn(2, 3, 16, 16, generator=generator)}
    text = torch.randint(3, WORDS, (2, length_of(name)), generator=generator)
    if kind == "sound":
        return {"input_features": torch.randn(2, 8, 32, generator=generator), "decoder_input_ids": text}
    given = {"input_ids": text}
    if kind == "both":
        given["decoder_input_ids"] = torch.randint(3, WORDS, (2, 9), generator=generator)
    if padding:
        mask = torch.ones_like(text)
        mask[0, :4] = 0
        mask = mask if padding == "left" else mask.flip(1)
        given["input_ids"], given["attention_mask"] = text * mask, mask
    return given


def counted(name, given, logits):
    """The logits of words that are none of padding."""
    mask = given.get("attention_mask")
    return logits if mask is None or ALL[name][0] == "both" else logits[mask.bool()]
