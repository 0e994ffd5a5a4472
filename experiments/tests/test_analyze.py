"""splash analyze and diagnose: recorded kernels below the ceilings, and why, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from conftest import Splash

REPORTS = Path(__file__).parents[2] / "data" / "reports"
LADDERS = str(REPORTS / "ladders-h200.h5")


def test_every_kernel_stands_below_its_roof(splash: Splash):
    analysed = splash.json("analyze", LADDERS)
    assert analysed["gpu"] == "NVIDIA H200"
    kernels = analysed["kernels"]
    assert len(kernels) > 100 and not any(k["implementation"].startswith("torch") for k in kernels)
    for kernel in kernels:
        assert kernel["floor_seconds"]["products"] <= kernel["seconds"]
        assert kernel["nearest_share"] == max(kernel["floor_seconds"].values()) / kernel["seconds"]
        assert 0 < kernel["wave_yield"] <= 1 and 0 < kernel["warps_share"] <= 1
    # Document 003's question: at head_dim 8192 its kernel has four blocks for 132 multiprocessors.
    question = "1 x 4 heads, 16 x 16, d 8192"
    asked = [k for k in kernels if k["implementation"] == "large_dims/0-one-query" and question in k["problem"]]
    assert asked and all(k["waves"] < 0.5 for k in asked)


def test_tables_are_by_problem(splash: Splash):
    lines = splash("analyze", LADDERS, "--kernels", "wmma/").stdout.splitlines()
    assert lines[0].startswith("NVIDIA H200, commit ")
    assert any("16384 x 16384" in line for line in lines)
    assert any(line.startswith("wmma/10") and "registers" in line for line in lines)
    assert not any(line.startswith("kascade") for line in lines)


def test_simulated_caches_are_asked_what_was_counted(splash: Splash):
    kernels = splash.json("analyze", LADDERS)["kernels"]
    simulated = [k for k in kernels if "simulated" in k]
    assert len(simulated) > 0.9 * len(kernels)
    for kernel in simulated:
        s = kernel["simulated"]
        # In whole sectors of 32 bytes, where ranges may begin and end between them.
        asked = s["l1_hit_bytes_simulated"] + s["l2_bytes_simulated"]
        assert kernel["l2_bytes_counted"] <= asked <= 1.2 * kernel["l2_bytes_counted"]
        assert s["l2_hit_bytes_simulated"] + s["dram_read_bytes_simulated"] <= s["l2_bytes_simulated"]
        assert 0 < s["block_working_set"] <= s["wave_working_set"]
    # Ordinary loads find in L1 what another block of the multiprocessor has read; asynchronous copies pass it by.
    hits = {rung: [k["simulated"]["l1_hit_bytes_simulated"] for k in simulated if f"wmma/{rung}-" in k["implementation"]] for rung in (7, 8)}
    assert max(hits[7]) > 0 and max(hits[8]) == 0


def test_l2_holds_keys_head_after_head_but_not_of_all_heads_at_once(splash: Splash):
    kernels = splash.json("analyze", LADDERS, "--kernels", "wmma/9")["kernels"]
    causal, full = (next(k for k in kernels if k["problem"].endswith(end)) for end in ("16384, d 64, causal", "16384, d 64"))
    assert causal["simulated"]["l2_holds_keys"] < 16384 <= full["simulated"]["l2_holds_keys"]
    assert causal["simulated"]["dram_read_bytes_simulated"] > 2 * full["simulated"]["dram_read_bytes_simulated"]
    text = splash("analyze", LADDERS, "--kernels", "wmma/9").stdout
    assert "L2 holds" in text and f"{causal['simulated']['l2_holds_keys']:g} keys" in text


def test_recounting_what_is_counted_changes_nothing(splash: Splash):
    if "wmma/10" not in splash("list", "variants").stdout:
        refusal = splash.refused("recount", LADDERS, "--out", "again.h5")
        assert "this build has no CUDA parts" in refusal
        return
    small = splash.folder / "small.h5"
    splash("recount", LADDERS, "--kernels", "large_dims/4", "--out", small)
    assert splash.json("analyze", small, "--kernels", "large_dims/4") == splash.json("analyze", LADDERS, "--kernels", "large_dims/4")


def test_a_diagnosis_names_causes_and_what_was_ruled_out(splash: Splash):
    kernels = splash.json("diagnose", LADDERS)["kernels"]
    assert len(kernels) == len(splash.json("analyze", LADDERS)["kernels"])
    for kernel in kernels:
        assert kernel["findings"] and all(f["gain"] >= 1 and f["sentence"] for f in kernel["findings"])
    text = splash("diagnose", LADDERS, "--kernels", "large_dims/0").stdout
    assert "too little parallelism, up to" in text and "  not " in text


def test_what_if_predicts_what_was_measured_and_says_how_far_it_may_be_off(splash: Splash):
    if "wmma/10" not in splash("list", "variants").stdout:
        pytest.skip("a build without CUDA has no declarations to count by")
    long = ["q_len=16384", "kv_len=16384", "head_dim=128", "batch=1", "q_heads=16", "kv_heads=16"]
    same = splash.json("what-if", LADDERS, "wmma/10", "dtype=bfloat16", "mask=causal", *long)
    assert same["predicted"]["seconds"] == pytest.approx(same["measured"]["seconds"])
    twice = splash.json("what-if", LADDERS, "wmma/10", "mask=causal", *long, "q_len=32768", "kv_len=32768")
    ratio = twice["predicted"]["seconds"] / same["measured"]["seconds"]
    assert 3.4 < ratio < 4.6 and twice["predicted"]["executed_flops"] / same["measured"]["executed_flops"] > 3.9
    assert twice["predicted"]["low"] < twice["predicted"]["seconds"] < twice["predicted"]["high"]
    slower = splash.json("what-if", LADDERS, "wmma/8", "--gpu", "NVIDIA L4")
    assert slower["predicted"]["seconds"] > 2 * slower["measured"]["seconds"]
    text = splash("what-if", LADDERS, "splash/6", "k_keep=4").stdout
    assert "predicted" in text and "held-out cases" in text


def test_what_if_refuses_what_it_cannot_tell(splash: Splash):
    assert "begins more than one kernel" in splash.refused("what-if", LADDERS, "wmma/")
    assert "is not NAME=VALUE" in splash.refused("what-if", LADDERS, "wmma/8", "tile=64")
    assert "no kernel whose id starts with 'nope'" in splash.refused("what-if", LADDERS, "nope")
    assert "describes the GPU 'Voodoo'" in splash.refused("what-if", LADDERS, "wmma/8", "--gpu", "Voodoo")
    if "wmma/10" in splash("list", "variants").stdout:
        refusal = splash.refused("what-if", LADDERS, "wmma/10", "--gpu", "NVIDIA L4")
        assert "compute capability" in refusal
        assert "head_dim" in splash.refused("what-if", LADDERS, "wmma/8", "head_dim=40000")


@pytest.mark.parametrize("command", ["analyze", "diagnose"])
def test_refusals(splash: Splash, command: str):
    assert "no kernel whose id starts with 'nope'" in splash.refused(command, LADDERS, "--kernels", "nope")
    assert "holds no cases of the kind gpu-attention" in splash.refused(command, str(REPORTS / "cpu-speed.h5"))
    assert "no such file" in splash.refused(command, "nowhere.h5")
    assert "report" in splash.refused(command).lower()
