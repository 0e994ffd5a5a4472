"""Anybody's tensors through the program: a NumPy file gives the numbers that the same tensors give in HDF5."""

from __future__ import annotations

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from conftest import Splash, reproducible
from hostile_files import SECRET
from splash_attention.tensor_files import convert

ACCURACY = """\
title = "K_KEEP on my own heads"
kind = "attention-accuracy"
[fixed]
input = "{}"
k_keep = 4
[axes]
layer = [2, 5]
head = [0, 3]
"""
WORKLOAD = """\
title = "How sparse my own heads are"
kind = "workload"
[fixed]
input = "{}"
layer = 5
length = 40
[axes]
head = [0, 1, 2, 3]
"""


@pytest.fixture
def peers(tmp_path: Path) -> dict[str, str]:
    return {"SPLASH_PEER_PYTHON": sys.executable, "XDG_CACHE_HOME": str(tmp_path / "cache")}


def made_up(path: Path) -> Path:
    random = np.random.default_rng(1)
    shapes = {"q": (1, 4, 48, 16), "k": (1, 2, 48, 16), "v": (1, 2, 48, 16)}
    np.savez(path, **{f"layers.{layer}.{name}": random.standard_normal(shape, np.float32) for layer in (2, 5) for name, shape in shapes.items()})
    return path


def cases_of(splash: Splash, definition: str, file: str, peers: dict[str, str]) -> list[dict]:
    name = splash.write(f"{Path(file).suffix[1:]}.toml", definition.format(file))
    out = name.with_suffix(".out.h5")
    done = splash("run", name, "--out", out, env=peers)
    assert done.returncode == 0, done.stderr
    cases = reproducible(splash.json("show", out, "--results"))
    return [{k: v for k, v in case.items() if k not in ("case_id", "experiment", "input")} for case in cases]


@pytest.mark.parametrize("definition", [ACCURACY, WORKLOAD], ids=["accuracy", "workload"])
def test_a_numpy_file_gives_what_the_same_tensors_give_in_hdf5(splash: Splash, tmp_path: Path, peers: dict[str, str], definition: str) -> None:
    convert(made_up(tmp_path / "heads.npz"), tmp_path / "same.h5")
    of_numpy, of_hdf5 = (cases_of(splash, definition, file, peers) for file in ("heads.npz", "same.h5"))
    assert len(of_numpy) == 4 and of_numpy == of_hdf5
    told = "token_sparsity" if definition is WORKLOAD else "mse_vs_softmax"
    assert len({case[told] for case in of_numpy}) == 4, "heads and layers are told apart"
    assert {case["length"] for case in of_numpy} == {48 if definition is ACCURACY else 40}
    assert {case["scale"] for case in of_numpy} == {0.25}


def test_a_changed_file_is_run_again(splash: Splash, tmp_path: Path, peers: dict[str, str]) -> None:
    definition, out = splash.write("w.toml", WORKLOAD.format("heads.npz")), tmp_path / "w.h5"
    made_up(tmp_path / "heads.npz")
    assert splash("run", definition, "--out", out, env=peers).returncode == 0
    before = {case["case_id"] for case in splash.json("show", out, "--results")["cases"]}
    with np.load(tmp_path / "heads.npz") as file:
        np.savez(tmp_path / "heads.npz", **{name: 2 * file[name] for name in file.files})
    assert splash("run", definition, "--out", tmp_path / "again.h5", env=peers).returncode == 0
    assert before.isdisjoint(case["case_id"] for case in splash.json("show", tmp_path / "again.h5", "--results")["cases"])


def test_what_is_wrong_with_a_file_is_one_sentence(splash: Splash, tmp_path: Path, peers: dict[str, str]) -> None:
    definition = splash.write("w.toml", WORKLOAD.format("heads.npz"))
    assert f"there is none at {tmp_path / 'heads.npz'}" in splash.refused("run", definition, env=peers)
    np.savez(tmp_path / "heads.npz", q=np.zeros((4, 8), np.float32))
    assert "heads.npz holds no k of layer 0; each layer needs q, k, v" in splash.refused("run", definition, env=peers)
    splash.write("lacks/h5py.py", "raise ModuleNotFoundError(\"No module named 'h5py'\")\n")
    for without in ({"SPLASH_PEER_PYTHON": "no-such-python"}, {"PYTHONPATH": str(tmp_path / "lacks")}):
        refusal = splash.refused("run", definition, env=peers | without)
        assert "set SPLASH_PEER_PYTHON to a Python that has numpy and h5py" in refusal
        assert "run `python -m splash_attention.captures heads.npz OUT.h5`" in refusal
    made_up(tmp_path / "heads.npz")
    refusal = splash.refused("run", definition, "--set", "layer=3", env=peers)
    assert "layer is 3; heads.npz holds the layers 2 and 5" in refusal


SPEED = """\
title = "How fast my own layer is"
kind = "attention-speed"
[fixed]
input = "late.h5"
layer = 5
threads = 1
samples = 1
[axes]
implementation = ["screened", "torch-softmax", "torch-entmax15"]
"""


def test_every_implementation_computes_the_files_own_attention(splash: Splash, tmp_path: Path, peers: dict[str, str]) -> None:
    """Grouped heads, a few last queries, a causal mask that is aligned at the end, and a scale that is not 1/sqrt(head_dim)."""
    pytest.importorskip("entmax", reason="PyTorch's entmax is not installed")
    made_up(tmp_path / "heads.npz")
    with np.load(tmp_path / "heads.npz") as file:
        np.savez(tmp_path / "late.npz", **{name: file[name][:, :, -9:] if name.endswith("q") else file[name] for name in file.files})
    convert(tmp_path / "late.npz", tmp_path / "late.h5", causal=True, scale=0.7)
    done = splash("run", splash.write("speed.toml", SPEED), "--out", tmp_path / "speed.h5", env=peers)
    assert done.returncode == 0, done.stderr
    cases = splash.json("show", tmp_path / "speed.h5", "--results")["cases"]
    assert [case["implementation"] for case in cases] == ["screened", "torch-softmax", "torch-entmax15"]
    assert all(case["nmse"] < 1e-11 for case in cases), cases
    assert cases[0]["support_mean"] == cases[2]["support_mean"] < cases[1]["support_mean"] == 44, "means of what 40 to 48 keys are seen"


def _bomb(file: h5py.File, secret: Path) -> None:
    del file["call-0/v"]
    file.create_dataset("call-0/v", (2, 1, 2, 2**30, 16), "f4", chunks=(1, 1, 1, 1024, 16), compression="gzip")


def _stolen(file: h5py.File, secret: Path) -> None:
    del file["call-0/v"]
    file["call-0"].create_dataset("v", (secret.stat().st_size,), "S1", external=[(str(secret), 0, secret.stat().st_size)])


def _linked(file: h5py.File, secret: Path) -> None:
    del file["layer"]
    file["layer"] = h5py.ExternalLink(str(secret), "/layer")


def _text(file: h5py.File, secret: Path) -> None:
    del file["call-0/scale"]
    file["call-0/scale"] = np.array([b"a", b"b"])


def _nan(file: h5py.File, secret: Path) -> None:
    file["call-0/q"][1, 0, 0, 3, 3] = np.nan


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (_bomb, "claims 68719476736 elements"),
        (_stolen, "keeps its data in other files"),
        (_linked, "is a link to another file"),
        (_text, "/call-0/scale holds text, where numbers were expected"),
        (_nan, "/call-0/q holds nan; every value must be finite in float32"),
    ],
)
def test_hostile_captures_are_refused(splash: Splash, tmp_path: Path, change, said: str) -> None:
    secret, path = tmp_path / "secret.txt", tmp_path / "heads.h5"
    secret.write_text(SECRET)
    convert(made_up(tmp_path / "heads.npz"), path)
    with h5py.File(path, "r+") as file:
        change(file, secret)
    refusal = splash.refused("run", splash.write("w.toml", WORKLOAD.format("heads.h5")))
    assert said in refusal and SECRET not in refusal
