"""What a model's attention works on, captured from small random models of transformers."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
transformers = pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")
from torch.nn.functional import scaled_dot_product_attention  # noqa: E402

from splash_attention import capture, read_capture  # noqa: E402
from splash_laboratory import bench  # noqa: E402

WORDS, LAYERS = 97, 3


def llama(implementation="sdpa", **changes):
    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    config = transformers.LlamaConfig(
        vocab_size=WORDS, hidden_size=64, intermediate_size=64, num_hidden_layers=LAYERS, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=128, **changes,
    )  # fmt: skip
    return transformers.LlamaForCausalLM._from_config(config, attn_implementation=implementation).eval()


def text(length=33, batch=1):
    return torch.randint(0, WORDS, (batch, length), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_a_capture_is_what_attention_was_given(implementation, tmp_path):
    model, path = llama(implementation), tmp_path / "heads.h5"
    outputs = []
    attention = model.model.layers[1].self_attn
    hook = attention.o_proj.register_forward_pre_hook(lambda _, given: outputs.append(given[0]))
    plain = model(text(batch=2)).logits
    with torch.no_grad(), capture(model, path, layers=[1, 2]):
        captured = model(text(batch=2)).logits
    hook.remove()
    torch.testing.assert_close(captured, plain, atol=1e-5, rtol=1e-5)
    assert model.config._attn_implementation == implementation
    q, k, v, scale, causal = read_capture(path, layer=1)
    assert q.shape == (2, 4, 33, 16) and k.shape == v.shape == (2, 2, 33, 16) and causal and scale == 16**-0.5
    out = scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=scale)
    torch.testing.assert_close(out.transpose(1, 2).reshape(2, 33, -1), outputs[-1].detach(), atol=1e-5, rtol=1e-5)
    with h5py.File(path) as file:
        assert file["layer"][()].tolist() == [1, 2] and (file["call-0/token_id"][()] == text(batch=2).numpy()).all()
        assert file.attrs["model_class"] == "LlamaForCausalLM" and file.attrs["weights_dtype"] == "float32"
        assert file.attrs["attn_implementation"] == implementation and len(file.attrs["config_sha256"]) == 64


def test_calls_with_a_cache_and_half_of_the_size(tmp_path):
    model, path = llama(), tmp_path / "heads.h5"
    with torch.no_grad(), capture(model, path, dtype="float16"):
        first = model(text(20), use_cache=True)
        model(text(1), past_key_values=first.past_key_values)
    q, k, _, _, causal = read_capture(path, layer=0, call=1)
    assert q.shape[2] == 1 and k.shape[2] == 21 and q.dtype == torch.float16 and causal
    _, before, *_ = read_capture(path, layer=0, call=0)
    assert torch.equal(k[:, :, :20], before)


def test_captures_within_captures_and_what_is_left_behind(tmp_path):
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    model, other = llama(), llama()
    known = list(ALL_ATTENTION_FUNCTIONS)
    paths = [tmp_path / name for name in ("a.h5", "b.h5", "c.h5")]
    with torch.no_grad(), capture(model, paths[0]), capture(other, paths[1], layers=[1]), capture(model, paths[2], layers=[2]):
        model(text(20))
        other(text(9))
    assert read_capture(paths[0], layer=0)[0].shape[2] == 20 and read_capture(paths[1], layer=1)[0].shape[2] == 9
    assert torch.equal(read_capture(paths[0], layer=2)[1], read_capture(paths[2], layer=2)[1])
    assert known == list(ALL_ATTENTION_FUNCTIONS)
    assert model.config._attn_implementation == other.config._attn_implementation == "sdpa"


def test_an_encoder_sees_all(tmp_path):
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
    )  # fmt: skip
    torch.manual_seed(0)
    model, path = transformers.BertModel._from_config(config, attn_implementation="sdpa").eval(), tmp_path / "heads.h5"
    with torch.no_grad(), capture(model, path):
        model(text(), attention_mask=torch.ones(1, 33, dtype=torch.long))
    assert [read_capture(path, layer=layer)[4] for layer in (0, 1)] == [False, False]


def test_what_it_does_not_take_leaves_no_file_and_the_model_as_it_was(tmp_path):
    model, path = llama(), tmp_path / "heads.h5"
    padded = torch.tensor([[0, 0, *[1] * 31]])
    for call, kind, words in (
        (lambda: None, ValueError, "no layer was captured"),
        (lambda: model(text(), attention_mask=padded), NotImplementedError, "no padding"),
    ):
        with pytest.raises(kind, match=words), torch.no_grad(), capture(model, path):
            call()
        assert not path.exists() and not list(tmp_path.iterdir()) and model.config._attn_implementation == "sdpa"
    with pytest.raises(ValueError, match=r"layers \[7\] were not reached"), torch.no_grad(), capture(model, path, layers=[0, 7]):
        model(text())
    with pytest.raises(ValueError, match="float32"), capture(model, path, dtype="bfloat16"):
        pass
    with pytest.raises(OSError), capture(model, "/dev/full/heads.h5"):
        pass
    window = transformers.MistralConfig(
        vocab_size=WORDS, hidden_size=64, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4,
        num_key_value_heads=2, sliding_window=5,
    )  # fmt: skip
    slides = transformers.MistralForCausalLM._from_config(window, attn_implementation="sdpa").eval()
    with pytest.raises(NotImplementedError, match="a window"), torch.no_grad(), capture(slides, path):
        slides(text())
    both = transformers.BartConfig(
        vocab_size=WORDS, d_model=32, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=32, decoder_ffn_dim=32,
    )  # fmt: skip
    crosses = transformers.BartModel._from_config(both, attn_implementation="sdpa").eval()
    with pytest.raises(NotImplementedError, match="causal and some are not|attends more than once"), torch.no_grad():
        with capture(crosses, path):
            crosses(text())
    assert not path.exists()


def test_files_of_others(tmp_path):
    model, path = llama(), tmp_path / "heads.h5"
    with torch.no_grad(), capture(model, path, layers=[0]):
        model(text())
    with pytest.raises(ValueError, match=r"holds the layers \[0\], not 3"):
        read_capture(path, layer=3)
    with pytest.raises(ValueError, match="holds the calls 0 to 0, not 1"):
        read_capture(path, layer=0, call=1)
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    (tmp_path / "damaged.h5").write_bytes(damaged)
    with pytest.raises(ValueError, match="checksum"):
        read_capture(tmp_path / "damaged.h5", layer=0)
    other = tmp_path / "other.h5"
    with h5py.File(other, "w") as file:
        file["x"] = np.zeros(3)
    with pytest.raises(ValueError, match="is no capture"):
        read_capture(other, layer=0)
    with h5py.File(other, "w") as file:
        file.attrs["schema"] = "splash capture 1"
        file["layer"] = h5py.ExternalLink("/etc/hostname", "/layer")
    with pytest.raises(ValueError, match="link to another file"):
        read_capture(other, layer=0)
    other.write_bytes(b"not hdf5")
    with pytest.raises(ValueError, match="cannot be read as a capture"):
        read_capture(other, layer=0)


def test_the_benchmark_takes_a_capture(tmp_path, capsys):
    model, path = llama(), tmp_path / "heads.h5"
    with torch.no_grad(), capture(model, path, layers=[2]):
        model(text())
    words = ["--device", "cpu", "--samples", "3", "--inputs", str(path), "--layer", "2"]
    assert bench.main([*words, "--backward", "--out", str(tmp_path / "bench.h5")]) == 0
    assert "splash" in capsys.readouterr().out
    from splash_laboratory import open_report

    results = open_report(tmp_path / "bench.h5").results
    assert set(results["q_len"].values) == {33} and set(results["kv_heads"].values) == {2} and set(results["causal"].values) == {1}
    errors = dict(zip(results["implementation"].values, results["nmse"].values))
    assert errors["splash"] < 1e-9
    assert bench.main([*words[:-1], "0"]) == 2 and "holds the layers [2]" in capsys.readouterr().err
