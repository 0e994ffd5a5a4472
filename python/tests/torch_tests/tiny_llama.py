"""A small random Llama, and the same as a GGUF file, for the tests of splash_attention.language."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
transformers = pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")

WORDS = 320


@pytest.fixture(autouse=True)
def one_thread():
    """Such small models lose more to a second thread than they gain, most of all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def config(**changes):
    values = {
        "vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "tie_word_embeddings": True,
        "initializer_range": 0.3, "bos_token_id": 1, "eos_token_id": 2,
    }  # fmt: skip
    return transformers.LlamaConfig(**{**values, **changes})


def llama(seed=0, **changes):
    torch.manual_seed(seed)
    return transformers.LlamaForCausalLM._from_config(config(**changes), attn_implementation="sdpa").eval()


def windows(count=3, length=40):
    return torch.randint(0, WORDS, (count, length), generator=torch.Generator().manual_seed(5))


def bytes_as_words():
    """GPT-2's letters for the 256 bytes."""
    from tokenizers import pre_tokenizers

    return sorted(pre_tokenizers.ByteLevel.alphabet())


def write_gguf(path, model, architecture="llama"):
    """The model's weights as llama.cpp writes them: projections in Q4_1, the table in Q8_0. Returns {GGUF's name: the values that
    are in the file}, rows still in transformers' order."""
    import gguf
    from gguf.quants import dequantize, quantize

    of, kinds = model.config, gguf.GGMLQuantizationType
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_name("tiny")
    writer.add_license("apache-2.0")
    writer.add_block_count(of.num_hidden_layers)
    writer.add_context_length(of.max_position_embeddings)
    writer.add_embedding_length(of.hidden_size)
    writer.add_feed_forward_length(of.intermediate_size)
    writer.add_head_count(of.num_attention_heads)
    writer.add_head_count_kv(of.num_key_value_heads)
    writer.add_key_length(of.head_dim)
    writer.add_layer_norm_rms_eps(of.rms_norm_eps)
    writer.add_rope_freq_base(of.rope_parameters["rope_theta"])
    letters = bytes_as_words()
    words = ["<|endoftext|>", "<|start|>", "<|end|>", *letters, "th", "the"]
    words += [f"<unused{at}>" for at in range(of.vocab_size - len(words))]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list(words)
    writer.add_token_types([3 if word.startswith("<") else 1 for word in words])
    writer.add_token_merges(["t h", "th e"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    names = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
             "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}  # fmt: skip
    layers = range(of.num_hidden_layers)
    names = {f"model.layers.{n}.{ours}.weight": f"blk.{n}.{theirs}.weight" for n in layers for ours, theirs in names.items()}
    names |= {"model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight"}
    kept = {}
    for name, theirs in names.items():
        values = model.state_dict()[name].float().numpy()
        kind = kinds.F32 if values.ndim == 1 else kinds.Q8_0 if "embed" in name else kinds.Q4_1
        stored = values
        if "q_proj" in name or "k_proj" in name:  # a head's halves become neighbours
            stored = values.reshape(-1, 2, of.head_dim // 2, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
        packed = stored if kind == kinds.F32 else quantize(stored, kind)
        writer.add_tensor(theirs, packed, raw_dtype=kind)
        kept[name] = torch.from_numpy(values if kind == kinds.F32 else dequantize(quantize(values, kind), kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return kept


def write_texts(folder):
    """Documents, as a command's --text takes them."""
    folder.mkdir()
    for at in range(99):
        (folder / f"{at}.txt").write_text(f"the document of the number {at}\n" * 4)


def model_and_texts(folder, monkeypatch, device):
    """A small model and texts in a folder, as words for a command of splash_attention.language."""
    monkeypatch.setenv("SPLASH_CACHE", str(folder / "cache"))
    write_gguf(folder / "tiny.gguf", llama(head_dim=64))
    write_texts(folder / "texts")
    return [str(folder / "tiny.gguf"), "--text", str(folder / "texts"), "--device", device]
