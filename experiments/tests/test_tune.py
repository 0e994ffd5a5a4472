"""`splash tune kernels` without a GPU: what is cached is listed, and what is asked for is checked."""

from __future__ import annotations

import json
import os
import re

import pytest

from conftest import ROOT, Splash

VERSION = re.search(r"project\(adaptive_splash VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text())[1]
ENTRY = {
    "library": VERSION,
    "gpu": "Some GPU",
    "driver": "13.0",
    "runtime": "13.0",
    "subject": "entmax-forward",
    "problem": "1x8x8x512x512x64, bfloat16, causal, entmax 1.5, all",
    "choice": "sampled_keys=2048",
    "inputs": "gaussian, variance 6, seed 1",
    "measured": "2025-01-31T12:00:00Z",
    "seconds": 0.000125,
    "default_seconds": 0.00015,
}
TABLE = {"format": "adaptive-splash tuned kernels 1", "entries": [ENTRY]}


def test_a_missing_file_lists_nothing(splash: Splash):
    assert splash.json("tune", "kernels", "--list", "--out", "none.json")["entries"] == []
    assert splash("tune", "kernels", "--list", "--out", "none.json").stdout == "none.json: nothing is tuned\n"
    assert not (splash.folder / "none.json").exists()


def test_any_json_of_the_format_is_listed(splash: Splash):
    splash.write("tuned.json", json.dumps(TABLE))
    listed = splash.json("tune", "kernels", "--list", env={"SPLASH_TUNED": "tuned.json"})
    assert listed == {"file": "tuned.json", "entries": [ENTRY | {"counts_here": False}]}
    text = splash("tune", "kernels", "--list", "--out", "tuned.json", env={"COLUMNS": "300"}).stdout
    assert "sampled_keys=2048" in text and "Some GPU" in text and " 125 " in text and "no" in text.split()


def test_the_users_cache_folder_is_the_place(splash: Splash):
    splash.write("cache/adaptive-splash/tuned.json", json.dumps(TABLE))
    place = {"SPLASH_TUNED": "", "XDG_CACHE_HOME": str(splash.folder / "cache")}
    assert len(splash.json("tune", "kernels", "--list", env=place)["entries"]) == 1
    assert splash.json("tune", "kernels", "--list", env={"SPLASH_TUNED": "off"}) == {"file": None, "entries": []}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected '{'"),
        ("[" * 100_000, "expected '{'"),
        ("\0" * 100, "expected '{'"),
        (" " * (1 << 20) + "{}", "more than the allowed"),
        (json.dumps(TABLE | {"format": "x"}), "its format is 'x'"),
        (json.dumps(TABLE).replace("Some GPU", "\\u001b[31m"), "without escapes"),
        (json.dumps(TABLE).replace("0.000125", "NaN"), "expected a number"),
        (json.dumps(TABLE).replace("Some GPU", "x" * 401), "more than 400 characters"),
        (json.dumps(TABLE)[:-1], "expected '}'"),
    ],
)
def test_a_file_that_is_none_is_refused_in_one_sentence(splash: Splash, text: str, why: str):
    splash.write("bad.json", text)
    assert why in splash.refused("tune", "kernels", "--list", "--out", "bad.json")


def test_pipes_and_folders_are_refused(splash: Splash):
    os.mkfifo(splash.folder / "pipe")
    assert "not a regular file" in splash.refused("tune", "kernels", "--list", "--out", "pipe")
    assert "a folder" in splash.refused("tune", "kernels", "--list", "--out", ".")


def test_what_cannot_be_tuned_is_refused(splash: Splash):
    assert "tune kernels" in splash.refused("tune")
    assert splash.json("tune", "kernels", "--out", "none.json")["entries"] == []
    assert "the budget is 0 s" in splash.refused("tune", "kernels", "flagship", "--budget", "0")
    assert "the budget is nan s" in splash.refused("tune", "kernels", "flagship", "--budget", "nan")
    gpu = next(check for check in json.loads(splash("doctor", "--json").stdout) if check["name"] == "GPU")
    if not gpu["ok"]:
        assert "no CUDA device" in splash.refused("tune", "kernels", "flagship", code=3)


def test_what_if_goes_by_what_was_tuned_on_the_gpu_it_is_asked_about_and_says_so(splash: Splash):
    words = ("what-if", ROOT / "data/reports/ladders-h200.h5", "large_dims/7", "head_dim=1024")
    by_rule = splash(*words)
    if "no CUDA" in by_rule.stderr:
        pytest.skip("a build without CUDA has no declarations")
    assert by_rule.stderr == "" and "16 x 64" in by_rule.stdout
    entry = ENTRY | {"gpu": "NVIDIA H200", "subject": "large_dims/7-chosen"}
    entry |= {"problem": "1x4x4x64x64x1024, float32, no mask, softmax, all"}

    def with_choice(choice: str, gpu: str = "NVIDIA H200"):
        table = TABLE | {"entries": [entry | {"choice": choice, "gpu": gpu}]}
        splash.write("tuned.json", json.dumps(table))
        return splash(*words, env={"SPLASH_TUNED": "tuned.json"})

    tuned = with_choice("large_dims/6-wgmma")
    assert "large_dims/7-chosen takes large_dims/6-wgmma, as tuned on" in tuned.stderr
    assert tuned.returncode == 0 and tuned.stdout != by_rule.stdout and "128 x" in tuned.stdout
    for ignored in (with_choice("large_dims/6-wgmma", gpu="NVIDIA H100 PCIe"), splash(*words)):
        assert (ignored.stdout, ignored.stderr) == (by_rule.stdout, "")
    hostile = with_choice("../../elsewhere")
    assert hostile.stdout == by_rule.stdout
    assert hostile.stderr.splitlines() == [
        "splash: what was tuned for large_dims/7-chosen is not used: '../../elsewhere' is none of its candidates"
    ]
    splash.write("tuned.json", "[]")
    broken = splash(*words, env={"SPLASH_TUNED": "tuned.json"})
    assert broken.stdout == by_rule.stdout
    assert "nothing tuned is used: tuned.json is no file of tuned kernels" in broken.stderr
    assert len(broken.stderr.splitlines()) == 1
