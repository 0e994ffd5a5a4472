"""Files of tensors that PyTorch wrote, and what reads a file of any format."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")

from splash_attention import read_capture  # noqa: E402
from splash_attention.tensor_files import convert  # noqa: E402
from splash_laboratory import bench  # noqa: E402


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def heads(seed=0, dtype=torch.float32, length=17):
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(1, count, length, 8, generator=generator).to(dtype) for name, count in (("q", 4), ("k", 2), ("v", 2))}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_pt_file_comes_back_to_the_bit(tmp_path, dtype):
    path = tmp_path / "x.pt"
    torch.save(heads(dtype=dtype), path)
    *found, scale, causal = read_capture(path, layer=0)
    assert scale == 8**-0.5 and causal is False
    for tensor, expected in zip(found, heads(dtype=dtype).values()):
        assert torch.equal(tensor, expected.float() if dtype == torch.bfloat16 else expected)


@pytest.mark.parametrize(
    "form",
    [
        lambda first, second: {"layers": {"0": first, "1": second}},
        lambda first, second: {f"{layer}.{name}": x for layer, held in enumerate((first, second)) for name, x in held.items()},
        lambda first, second: [tuple(first.values()), tuple(second.values())],
        lambda first, second: [first, second],
    ],
)
def test_layers_of_dicts_and_lists(tmp_path, form):
    path = tmp_path / "x.pt"
    torch.save(form(heads(0), heads(1)), path)
    for layer in (0, 1):
        q, k, v, _, _ = read_capture(path, layer=layer)
        assert all(torch.equal(a, b) for a, b in zip((q, k, v), heads(layer).values()))


class Harmful:
    def __reduce__(self):
        return (open, ("unpickled", "w"))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (Harmful(), "cannot be read as pt"),
        ({"q": torch.zeros(2, 3, dtype=torch.int32)}, "q is of int32"),
        ({"q": torch.eye(3).to_sparse()}, "q is no array of numbers"),
        (torch.zeros(3), "none is called q, k, v"),
        (3, "holds no arrays"),
        ({"a": {"b": {"c": {"d": {"e": {"f": {"g": {"h": {"q": torch.zeros(2, 2)}}}}}}}}}, "nested more than 8 deep"),
    ],
)
def test_what_is_not_taken(tmp_path, monkeypatch, content, said):
    monkeypatch.chdir(tmp_path)
    torch.save(content, tmp_path / "x.pt")
    with pytest.raises(ValueError, match=said) as refused:
        convert(tmp_path / "x.pt", tmp_path / "x.h5")
    assert "\n" not in str(refused.value) and not Path("unpickled").exists() and not (tmp_path / "x.h5").exists()


@pytest.mark.parametrize("ending", [".npz", ".safetensors", ".pt"])
def test_the_benchmark_takes_every_format(tmp_path, capsys, ending):
    from safetensors.torch import save_file

    path = tmp_path / f"x{ending}"
    {
        ".npz": lambda: np.savez(path, **{name: x.numpy() for name, x in heads().items()}),
        ".safetensors": lambda: save_file(heads(), path),
        ".pt": lambda: torch.save(heads(), path),
    }[ending]()
    assert bench.main(["--device", "cpu", "--samples", "3", "--only", "splash", "--inputs", str(path)]) == 0
    assert "splash" in capsys.readouterr().out
    assert bench.main(["--device", "cpu", "--inputs", str(path), "--layer", "2"]) == 2
    assert "holds the layers [0], not 2" in capsys.readouterr().err
    with h5py.File(next((tmp_path / "cache").rglob("*.h5"))) as file:
        assert torch.equal(torch.from_numpy(file["call-0/q"][0]), heads()["q"])
