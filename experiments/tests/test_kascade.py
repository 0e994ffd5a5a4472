"""splash kascade plan: from captures to a plan, a report and a picture."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from conftest import Splash
from splash_attention.tensor_files import convert

ORDERS = ([0, 1, 2], [2, 0, 1], [0, 1, 2], [1, 2, 0], [1, 1, 0])  # layers 2 to 4 are layer 2's heads, 0 and 1 layer 0's
WORDS = ("--budget", 0.2, "--least-keys", 12, "--tile", 8, "--out", "plan.toml")


def captured(path: Path, seed: int, importance: list[float] | None = None, layers: int = 5, causal: bool = True) -> Path:
    """A model's text whose layers have the heads of others, in another order."""
    random, tensors = np.random.default_rng(seed), {}
    for layer, order in enumerate(ORDERS[:layers]):
        if layer in (0, 2):
            q, k = 3 * random.standard_normal((1, 6, 96, 8), np.float32), random.standard_normal((1, 3, 96, 8), np.float32)
        tensors[f"layers.{layer}.q"] = q.reshape(1, 3, 2, 96, 8)[:, order].reshape(1, 6, 96, 8)
        tensors[f"layers.{layer}.k"] = tensors[f"layers.{layer}.v"] = k[:, order]
    np.savez(path.with_suffix(".npz"), **tensors)
    convert(path.with_suffix(".npz"), path, causal=causal)
    if importance is not None:
        with h5py.File(path, "r+") as file:
            file["call-0/importance"] = importance
    return path


def test_captures_become_a_plan_a_report_and_a_picture(splash: Splash, tmp_path: Path) -> None:
    texts = [captured(tmp_path / f"{seed}.h5", seed, [0.5, 0.1, 0.3, 0.2, seed / 10]) for seed in (1, 2)]
    told = splash.json("kascade", "plan", *texts, "--anchors", 2, *WORDS, "--report", "similarity.h5", "--model", "planted")
    assert told["anchors"] == [0, 2] and [layer["heads"] for layer in told["layers"]] == [list(order) for order in ORDERS]
    assert [layer["importance"] for layer in told["layers"]] == pytest.approx([0.5, 0.1, 0.3, 0.2, 0.15])
    assert told["identities"] == pytest.approx(1 / 9)  # of the reusing layers 1, 3 and 4
    plan = (tmp_path / "plan.toml").read_text()
    assert 'model = "planted"' in plan and 'made_by = "2 texts of 96 tokens"' in plan and "anchors = [0, 2]" in plan

    shown = splash("show", "similarity.h5")
    assert shown.returncode == 0 and "5 anchors" not in shown.stdout and "2 anchors of 5 layers" in shown.stdout
    with h5py.File(tmp_path / "similarity.h5") as report:
        held = report["attachments/layer-0"]
        pairs, of_layers = held["similarity"][()], held["layer_similarity"][()]
        assert pairs.shape == (5, 3, 5, 3)
        for a in range(5):
            for b in range(a + 1, 5):
                assert of_layers[a, b] == pytest.approx(pairs[a, :, b].max(0).mean())
        assert report["results/anchor"][()].tolist() == [0, 0, 2, 2, 2]
        assert report["results/anchor_head"][()].astype(int).tolist() == [list(order) for order in ORDERS]
        assert report["results/similarity"][4] == pytest.approx(of_layers[2, 4]) and (of_layers[3, :3] == 0).all()
    from splash_laboratory import open_report
    from splash_laboratory.plots import FIGURES

    assert "2 anchors of 5 layers" in " ".join(FIGURES["kascade-plan"](open_report(tmp_path / "similarity.h5")).texts[0].get_text().split())
    table = splash("kascade", "plan", *texts, "--anchors", 2, *WORDS)
    assert table.stdout.startswith("anchors 0, 2 of 5 layers\n11 % of the reusing heads take their own number\n")
    from splash_attention.kascade import read_plan

    assert read_plan(tmp_path / "plan.toml").anchors == [0, 2]


def test_without_importances_all_layers_count_the_same(splash: Splash, tmp_path: Path) -> None:
    done = splash("kascade", "plan", captured(tmp_path / "a.h5", 1), "--anchors", 2, *WORDS, "--entmax", 1.5, "--over-tiles", "minimum", "--tiles", 4)
    assert done.returncode == 0 and "hold no importances" in done.stderr and "anchors 0, 2" in done.stdout
    plan = (tmp_path / "plan.toml").read_text()
    assert 'normalizer = "entmax"' in plan and 'over_tiles = "minimum"' in plan and "all layers of importance 1" in plan


def test_what_does_not_fit_is_told(splash: Splash, tmp_path: Path) -> None:
    text, cut = captured(tmp_path / "text.h5", 1), captured(tmp_path / "cut.h5", 1, layers=4)
    open_text = captured(tmp_path / "open.h5", 1, causal=False)
    (tmp_path / "damaged.h5").write_bytes(text.read_bytes()[:5000])
    refused = lambda *words: splash.refused("kascade", "plan", *words)
    assert "anchors is 6; it must be from 1 to 5, the layers" in refused(text, "--anchors", 6, *WORDS)
    assert "anchors is 0" in refused(text, "--anchors", 0, *WORDS)
    assert "budget is 2; it must be above 0 and at most 1" in refused(text, "--anchors", 2, "--budget", 2, "--out", "plan.toml")
    assert "tiles are joined by 'most'" in refused(text, "--anchors", 2, "--over-tiles", "most", *WORDS)
    assert "holds 5 layers and" in refused(text, cut, "--anchors", 2, *WORDS)
    assert "not causal; a plan needs causal calls" in refused(open_text, "--anchors", 2, *WORDS)
    assert "holds the layers 3, 7" in refused(_of_layers(tmp_path / "some.h5"), "--anchors", 1, *WORDS)
    assert "damaged.h5" in refused("damaged.h5", "--anchors", 2, *WORDS)
    assert "--anchors" in refused(text, "--out", "plan.toml")
    assert "splash kascade plan" in splash.refused("kascade")
    assert not (tmp_path / "plan.toml").exists()


def _of_layers(path: Path) -> Path:
    random = np.random.default_rng(1)
    np.savez(path.with_suffix(".npz"), **{f"layers.{layer}.{name}": random.standard_normal((1, 2, 8, 4), np.float32) for layer in (3, 7) for name in "qkv"})
    convert(path.with_suffix(".npz"), path, causal=True)
    return path
