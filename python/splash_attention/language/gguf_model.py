"""A Llama of a GGUF file: its configuration, its dequantised weights, its tokenizer.

The rows of the query and key projections stand in GGUF in the order of rotations of neighbouring pairs; transformers rotates the
first half of a head against the second, so they are put back into that order. transformers' own loader does the same, but needs the
package accelerate, and computes its map of names anew for each version.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf.quants import dequantize
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_OF_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_DIGITS_ALONE = ("smollm",)  # tokenizer.ggml.pre whose digits are tokens of their own
_BYTE_LEVEL = ("gpt-2", "default", *_DIGITS_ALONE)


def open_gguf(path: Path) -> gguf.GGUFReader:
    """Raises ValueError for what is no GGUF file, or holds a model that is not served."""
    try:
        reader = gguf.GGUFReader(path)
    except (ValueError, IndexError, KeyError, UnicodeDecodeError, OverflowError, MemoryError) as error:
        raise ValueError(f"{path} cannot be read as a GGUF file ({error})") from error
    architecture = _value(reader, "general.architecture")
    if architecture != "llama":
        raise ValueError(f"{path} holds a model of architecture {architecture!r}; allowed is 'llama' (others: a folder of safetensors)")
    scaled = _value(reader, "llama.rope.scaling.type", "none")
    if scaled != "none" or any(tensor.name == "rope_freqs.weight" for tensor in reader.tensors):
        raise ValueError(f"{path} stretches its rotations ({scaled}); allowed are plain ones (others: a folder of safetensors)")
    return reader


def llama_of(reader: gguf.GGUFReader, dtype: torch.dtype) -> LlamaForCausalLM:
    """The model with the file's weights, dequantised in float32, then in dtype; in eval mode, on the CPU."""
    config = config_of(reader)
    with torch.device("meta"):
        model = LlamaForCausalLM._from_config(config, attn_implementation="sdpa")
    model.to_empty(device="cpu")
    weights = {}
    for tensor in reader.tensors:
        name = _name_of(tensor.name)
        values = torch.from_numpy(np.array(dequantize(tensor.data, tensor.tensor_type), np.float32))
        if ".q_proj" in name or ".k_proj" in name:
            heads = config.num_attention_heads if ".q_proj" in name else config.num_key_value_heads
            values = values.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2).contiguous()
        weights[name] = values
    if config.tie_word_embeddings:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    model.load_state_dict(weights, strict=True)
    # Buffers are no weights: to_empty left the rotations' frequencies without values.
    model.model.rotary_emb = type(model.model.rotary_emb)(config=config)
    model.tie_weights()
    return model.to(dtype).eval()


def config_of(reader: gguf.GGUFReader) -> LlamaConfig:
    def of(key: str, otherwise: Any = None) -> Any:
        return _value(reader, f"llama.{key}", otherwise)

    width, heads = of("embedding_length"), of("attention.head_count")
    names = {tensor.name for tensor in reader.tensors}
    embedding = next(tensor for tensor in reader.tensors if tensor.name == "token_embd.weight")
    return LlamaConfig(
        vocab_size=int(embedding.shape[1]),
        hidden_size=width,
        intermediate_size=of("feed_forward_length"),
        num_hidden_layers=of("block_count"),
        num_attention_heads=heads,
        num_key_value_heads=of("attention.head_count_kv", heads),
        head_dim=of("attention.key_length", of("rope.dimension_count", width // heads)),
        max_position_embeddings=of("context_length"),
        rms_norm_eps=of("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": float(of("rope.freq_base", 10000.0))},
        tie_word_embeddings="output.weight" not in names,
        bos_token_id=_value(reader, "tokenizer.ggml.bos_token_id", None),
        eos_token_id=_value(reader, "tokenizer.ggml.eos_token_id", None),
        pad_token_id=_value(reader, "tokenizer.ggml.padding_token_id", None),
    )


def tokenizer_of(reader: gguf.GGUFReader) -> PreTrainedTokenizerFast | None:
    """None where the file holds none. Raises ValueError for kinds that are not served."""
    kind, cut = _value(reader, "tokenizer.ggml.model", None), _value(reader, "tokenizer.ggml.pre", "default")
    if kind is None:
        return None
    if kind != "gpt2" or cut not in _BYTE_LEVEL:
        raise ValueError(f"the file's tokenizer is {kind!r} with {cut!r}; allowed are 'gpt2' with {', '.join(map(repr, _BYTE_LEVEL))}")
    words, merges = _value(reader, "tokenizer.ggml.tokens"), _value(reader, "tokenizer.ggml.merges")
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, pairs))
    steps = [pre_tokenizers.Digits(individual_digits=True)] if cut in _DIGITS_ALONE else []
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*steps, pre_tokenizers.ByteLevel(add_prefix_space=False)])
    tokenizer.decoder = decoders.ByteLevel()
    control = gguf.TokenType.CONTROL
    special = [word for word, of in zip(words, _value(reader, "tokenizer.ggml.token_type", [])) if of == control]
    named = {
        f"{name}_token": words[number]
        for name, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("unk", "unknown"))
        if (number := _value(reader, f"tokenizer.ggml.{key}_token_id", None)) is not None
    }
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, additional_special_tokens=special, **named)
    made.chat_template = _value(reader, "tokenizer.chat_template", None)
    return made


def facts_of(reader: gguf.GGUFReader) -> dict[str, Any]:
    """For provenance: name, licence, and in which types the weights are stored."""
    stored = Counter[str]()
    for tensor in reader.tensors:
        stored[tensor.tensor_type.name] += int(tensor.n_elements)
    return {
        "name": _value(reader, "general.name", ""),
        "licence": _value(reader, "general.license", ""),
        "quantisation": f"{stored.most_common(1)[0][0]} weights",
        "weights_by_type": dict(stored.most_common()),
    }


_NO_DEFAULT = object()


def _value(reader: gguf.GGUFReader, key: str, otherwise: Any = _NO_DEFAULT) -> Any:
    field = reader.fields.get(key)
    if field is not None:
        return field.contents()
    if otherwise is _NO_DEFAULT:
        raise ValueError(f"the GGUF file has no {key}")
    return otherwise


def _name_of(name: str) -> str:
    """transformers' name of a GGUF tensor."""
    parts = name.removesuffix(".weight").split(".")
    if len(parts) == 1 and parts[0] in _OUTSIDE:
        return f"{_OUTSIDE[parts[0]]}.weight"
    if len(parts) == 3 and parts[0] == "blk" and parts[2] in _OF_LAYER:
        return f"model.layers.{parts[1]}.{_OF_LAYER[parts[2]]}.weight"
    raise ValueError(f"the GGUF file holds the tensor {name!r}, which a Llama does not have")
