"""Tensors that others wrote, made captures: every format to the bit, and what is not taken."""

from __future__ import annotations

import io
import json
import struct
import zipfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from safetensors.numpy import save_file

from splash_attention import captures
from splash_attention.files import apart
from splash_attention.tensor_files import cached_capture, convert, write_heads

BATCH, Q_HEADS, KV_HEADS, LENGTH, DIM = 2, 4, 2, 9, 8


def heads(seed: int = 0, dtype: type = np.float32) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        name: random.standard_normal((BATCH, count, LENGTH, DIM)).astype(dtype)
        for name, count in (("q", Q_HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
    }


def held(path: Path, call: str = "call-0") -> dict[str, np.ndarray]:
    with h5py.File(path) as file:
        assert file.attrs["schema"] == "splash capture 1"
        return {name: data[()] for name, data in file[call].items()} | {"layer": file["layer"][()], "causal": file[call].attrs["causal"]}


def npz(path: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(path, **arrays)
    return path


def refusal(path: Path, **options) -> str:
    out = path.with_suffix(".out.h5")
    with pytest.raises(ValueError) as refused:
        convert(path, out, **options)
    assert not out.exists() and "\n" not in str(refused.value)
    return str(refused.value)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("ending", [".npz", ".safetensors"])
def test_a_file_comes_back_to_the_bit(tmp_path: Path, ending: str, dtype: type) -> None:
    arrays, path, out = heads(dtype=dtype), tmp_path / f"x{ending}", tmp_path / "x.h5"
    np.savez(path, **arrays) if ending == ".npz" else save_file(arrays, path)
    assert convert(path, out) == []
    found = held(out)
    for name, array in arrays.items():
        assert found[name].dtype == dtype and found[name].shape == (1, *array.shape)
        assert found[name][0].tobytes() == array.tobytes()
    assert found["scale"].tolist() == [DIM**-0.5] and found["layer"].tolist() == [0] and not found["causal"]
    with h5py.File(out) as file:
        assert file.attrs["source"] == path.name and len(file.attrs["source_sha256"]) == 64


def test_heads_are_stored_as_hdf5_itself_compresses_them(tmp_path: Path) -> None:
    tensor = np.random.default_rng(3).standard_normal((2, 5, 9, 70, 8)).astype(np.float16)  # more heads than are held at a time
    with h5py.File(tmp_path / "ours.h5", "w") as file:
        write_heads(file, [(layer, layer, layer) for layer in tensor], [1.0, 1.0], causal=True)
    with h5py.File(tmp_path / "ours.h5") as file, h5py.File(tmp_path / "theirs.h5", "w") as other:
        theirs = other.create_dataset("q", data=tensor, chunks=(1, 1, 1, 70, 8), shuffle=True, compression="gzip")
        for name in "qkv":
            ours = file[name]
            assert ours.dtype == np.float16 and ours[()].tobytes() == tensor.tobytes()
            assert ours.shuffle and ours.compression == "gzip" and ours.chunks == theirs.chunks
            for at in np.ndindex(tensor.shape[:3]):
                assert ours.id.read_direct_chunk((*at, 0, 0)) == theirs.id.read_direct_chunk((*at, 0, 0))


def test_bfloat16_of_safetensors_is_kept_as_float32(tmp_path: Path) -> None:
    bits = {name: (array.view(np.uint32) >> 16).astype("<u2") for name, array in heads().items()}
    header, data = {}, b""
    for name, array in bits.items():
        header[name] = {"dtype": "BF16", "shape": array.shape, "data_offsets": [len(data), len(data) + array.nbytes]}
        data += array.tobytes()
    words = json.dumps(header).encode()
    (tmp_path / "x.safetensors").write_bytes(struct.pack("<Q", len(words)) + words + data)
    convert(tmp_path / "x.safetensors", tmp_path / "x.h5")
    for name, array in bits.items():
        assert (held(tmp_path / "x.h5")[name][0] == (array.astype(np.uint32) << 16).view(np.float32)).all()


def test_names_layers_layouts_and_scale(tmp_path: Path) -> None:
    arrays = {}
    for layer in (3, 11):
        for name, word in (("q", "query"), ("k", "key"), ("v", "value")):
            arrays[f"model.layers.{layer}.self_attn.{word}"] = heads(layer)[name].transpose(0, 2, 1, 3)
    path = npz(tmp_path / "x.npz", arrays | {"step": np.zeros(3)})
    words = [str(path), str(tmp_path / "x.h5"), "--names", "q=query,k=self_attn.key,v=value", "--layout", "bnhd"]
    assert captures.main([*words, "--causal", "--scale", "0.25"]) == 0
    found = held(tmp_path / "x.h5")
    assert found["layer"].tolist() == [3, 11] and found["scale"].tolist() == [0.25, 0.25] and found["causal"]
    assert (found["k"][1] == heads(11)["k"]).all() and (found["q"][0] == heads(3)["q"]).all()
    assert convert(npz(tmp_path / "y.npz", heads() | {"step": np.zeros(3)}), tmp_path / "y.h5") == [
        f"{tmp_path / 'y.npz'}: passed over step"
    ]


@pytest.mark.parametrize(
    ("layout", "form"),
    [("hnd", lambda x: x[0]), ("nhd", lambda x: x[0].transpose(1, 0, 2)), ("nd", lambda x: x[0, 0]), (None, lambda x: x[0, 0])],
)
def test_fewer_dimensions(tmp_path: Path, layout: str | None, form) -> None:
    path = npz(tmp_path / "x.npz", {f"5/{name}": form(array) for name, array in heads().items()})
    convert(path, tmp_path / "x.h5", layout=layout)
    found, one = held(tmp_path / "x.h5"), layout in ("nd", None)
    assert found["layer"].tolist() == [5]
    assert (found["k"][0, 0] == heads()["k"][0, : 1 if one else KV_HEADS]).all()


def test_doubles_are_rounded_and_said_so(tmp_path: Path) -> None:
    doubles = {name: array + 1e-12 for name, array in heads(dtype=np.float64).items()}
    path = npz(tmp_path / "x.npz", doubles)
    assert convert(path, tmp_path / "x.h5") == [f"{path}: float64 is rounded to float32"]
    assert (held(tmp_path / "x.h5")["q"][0] == doubles["q"].astype(np.float32)).all()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda x: x.pop("v"), "holds no v of layer 0; each layer needs q, k, v"),
        (lambda x: x.clear(), "holds no arrays; none is called q, k, v"),
        (lambda x: x.update(q=x["q"].astype(int)), "q is of int64; allowed are float16, bfloat16, float32, float64"),
        (lambda x: x.update(q=x["q"].astype(complex)), "q is of complex128"),
        (lambda x: x.update(k=x["k"][:, :, :, :4]), "k has shape [2, 2, 9, 4]; with these q and k it must be [2, 2, 9, 8]"),
        (lambda x: x.update(v=x["v"][:, :, :5]), "v has shape [2, 2, 5, 8]"),
        (lambda x: x.update(q=x["q"][:, :3]), "q has 3 heads and k 2"),
        (lambda x: x.update(q=x["q"][None]), "q has 5 dimensions; allowed are [batch, heads, n, d]"),
        (lambda x: x.update(q=x["q"][:, :, :0]), "every extent must be at least 1"),
        (lambda x: x["v"].fill(np.nan), "v holds values that are not finite in float32"),
        (lambda x: x.update(k=np.full(x["k"].shape, 1e300)), "k holds values that are not finite in float32"),
        (lambda x: x.update({"0/q": x["q"]}), "holds q of layer 0 twice"),
        (lambda x: x.update({"1.2.q": x["q"]}), "'1.2.q' names no one layer"),
        (lambda x: x.update({"1234567890.q": x["q"]}), "names no one layer"),
        (lambda x: x.update({"1.q": x["q"]}), "holds no k of layer 1"),
        (lambda x: x.update({f"1.{name}": array[:1] for name, array in x.items()}), "differ in number or size"),
    ],
)
def test_what_does_not_fit_is_said_in_one_sentence(tmp_path: Path, change, said: str) -> None:
    arrays = heads()
    change(arrays)
    assert said in refusal(npz(tmp_path / "x.npz", arrays))


def test_wrong_words(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = npz(tmp_path / "x.npz", heads())
    assert "layout is 'dnh'; allowed are bhnd" in refusal(path, layout="dnh")
    assert "q has 4 dimensions; the layout hnd has 3" in refusal(path, layout="hnd")
    assert "names gives o; it names q, k and v" in refusal(path, names={"o": "out"})
    assert "scale is 0" in refusal(path, scale=0)
    assert "no such file" in refusal(tmp_path / "none.npz")
    (tmp_path / "x.csv").write_text("1")
    assert "ends with none of .npz, .safetensors, .pt" in refusal(tmp_path / "x.csv")
    assert captures.main([str(tmp_path / "none.npz"), str(tmp_path / "x.h5")]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'none.npz'}: no such file\n"


class Pickled:
    """Were it unpickled, a file would appear."""

    def __reduce__(self):
        return (open, ("unpickled", "w"))


def test_hostile_npz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.savez(tmp_path / "x.npz", q=np.array([Pickled()], object))
    assert "cannot be read as npz" in refusal(tmp_path / "x.npz") and not Path("unpickled").exists()
    (tmp_path / "text.npz").write_bytes(b"not a zip")
    assert "cannot be read as npz" in refusal(tmp_path / "text.npz")
    for name, header in {
        "claims": "{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,)}",
        "long": "{'descr': '<f4', 'fortran_order': False, 'shape': (1,)" + " " * 2**20 + "}",
        "code": "__import__('os').system('touch unpickled')",
    }.items():
        text = header.encode() + b"\n"
        with zipfile.ZipFile(tmp_path / f"{name}.npz", "w", zipfile.ZIP_DEFLATED) as file:
            file.writestr("q.npy", b"\x93NUMPY\x02\x00" + struct.pack("<I", len(text)) + text)
        said = refusal(tmp_path / f"{name}.npz")
        assert "cannot be read as npz" in said or "claims more memory" in said
    assert not Path("unpickled").exists()


def test_a_zip_bomb_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "BYTES", 1 << 24)  # or the bomb would have to be as large as what a small file may take
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": "<f4", "fortran_order": False, "shape": (2**26,)})
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_DEFLATED) as file, file.open("q.npy", "w", force_zip64=True) as member:
        member.write(buffer.getvalue())
        for _ in range(2**4):
            member.write(bytes(2**24))
    assert "claims more memory than a file of its size may" in refusal(tmp_path / "x.npz")


def test_hostile_safetensors(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    whole = {"q": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}
    for length, words in ((2**60, b""), (2**31, b"{}"), (None, b"not json"), (None, json.dumps(whole).encode()), (None, b"{" * 9999)):
        path.write_bytes(struct.pack("<Q", len(words) if length is None else length) + words + bytes(4))
        assert "cannot be read as safetensors" in refusal(path)


def test_a_cached_capture_is_made_once_for_each_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    first = cached_capture(npz(tmp_path / "a.npz", heads()))
    written = first.stat().st_mtime_ns
    (tmp_path / "b.npz").write_bytes((tmp_path / "a.npz").read_bytes())
    assert cached_capture(tmp_path / "b.npz") == first and first.stat().st_mtime_ns == written
    assert cached_capture(npz(tmp_path / "a.npz", heads(1))) != first
    first.write_bytes(first.read_bytes()[:-1] + b"x")  # damaged: made again
    assert (held(cached_capture(tmp_path / "b.npz"))["q"][0] == heads()["q"]).all()
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    with pytest.raises(ValueError, match="cannot be kept as"):
        cached_capture(tmp_path / "a.npz")
