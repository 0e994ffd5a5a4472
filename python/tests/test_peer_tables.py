"""The tables of peers in the documents."""

from pathlib import Path

import numpy as np
import pytest
import xarray as xr

from splash_laboratory.documents.ladder_tables import LadderError
from splash_laboratory.documents.peer_tables import fill
from splash_laboratory.reports import Report

DOCUMENT = "# Peers\n\n<!-- peers toy: toy/0-first -->\nold words\n<!-- end of peers -->\n\nthe end\n"


def report():
    case = lambda *values: ("case", list(values))  # noqa: E731
    results = xr.Dataset(
        {
            "experiment": case(*["toy"] * 5),
            "implementation": case("toy/0-first", "torch-cudnn", "torch-cudnn", "toy/0-first", "torch-flash"),
            "batch": case(1.0, 1.0, 4.0, 4.0, 4.0),
            "q_heads": case(*[16.0] * 5),
            "q_len": case(16384.0, 16384.0, 1000.0, 1000.0, 1000.0),
            "kv_len": case(16384.0, 16384.0, 1000.0, 1000.0, 1000.0),
            "head_dim": case(*[64.0] * 5),
            "mask": case("causal", "causal", "none", "none", "none"),
            "query_variance": case(6.0, 6.0, 1.0, 1.0, 1.0),
            "support_mean": case(6.93, np.nan, np.nan, 20.4, np.nan),
            "block_sparsity_64": case(0.0803, np.nan, np.nan, 0.0, np.nan),
            "time_median": case(1e-3, 1.25e-3, 0.5e-3, 1e-3, np.nan),
        }
    )
    return Report(Path("r.h5"), {}, "", results, xr.Dataset(), xr.Dataset(), {})


def test_a_table_is_written_between_its_markers():
    text = fill(DOCUMENT, report())
    assert "old words" not in text and text.endswith("the end\n")
    assert [line for line in text.splitlines() if line.startswith("|")] == [
        "| problem | keys a row | empty tiles | ours, ms | cudnn, ms; times ours |",
        "| --- | --- | --- | --- | --- |",
        "| 16 heads, 16k, d 64, causal, T 2.449 | 6.93 | 8.03 % | 1.000 | 1.250; **1.25** |",
        "| 4 × 16 heads, 1000, d 64, full, T 1 | 20.4 | 0 % | 1.000 | 0.500; 0.5 |",
    ]
    assert fill(text, report()) == text


def test_a_marker_chooses_among_the_cases():
    text = fill(DOCUMENT.replace("first -->", "first kv_len=1000 mask=none -->"), report())
    rows = [line for line in text.splitlines() if line.startswith(("| 16", "| 4"))]
    assert rows == ["| 4 × 16 heads, 1000, d 64, full, T 1 | 20.4 | 0 % | 1.000 | 0.500; 0.5 |"]
    with pytest.raises(LadderError, match="no case with kv_len=7"):
        fill(DOCUMENT.replace("first -->", "first kv_len=7 -->"), report())


def test_captured_heads_and_both_passes_are_problems_of_their_own():
    captured = report()
    passes = ["forward", "forward_backward"] * 2 + ["forward"]
    implementations = ["toy/0-first"] * 2 + ["torch-cudnn"] * 3
    cases = captured.results.isel(case=[0] * 5).assign(
        {
            "pass": ("case", passes),
            "input": ("case", ["gpl-3"] * 5),
            "implementation": ("case", implementations),
            "time_median": ("case", [1e-3, 2e-3, 3e-3, 5e-3, np.nan]),
        }
    )
    text = fill(DOCUMENT, Report(Path("r.h5"), {}, "", cases, xr.Dataset(), xr.Dataset(), {}))
    assert [line for line in text.splitlines() if line.startswith("| 16")] == [
        "| 16 heads, 16k, d 64, causal, MiniLM on gpl-3, forward | 6.93 | 8.03 % | 1.000 | 3.000; **3** |",
        "| 16 heads, 16k, d 64, causal, MiniLM on gpl-3, both passes | 6.93 | 8.03 % | 2.000 | 5.000; **2.5** |",
    ]


def test_layers_of_a_file_are_problems_of_their_own_and_heads_are_grouped():
    columns = {"input": ["heads.h5"] * 5, "layer": [0.0, 0.0, 4.0, 4.0, -1.0], "q_heads": [9.0] * 5, "kv_heads": [3.0] * 5}
    columns |= {"implementation": ["toy/0-first", "torch-cudnn"] * 2 + ["toy/0-first"], "time_median": [1e-3, 2e-3, 3e-3, 9e-3, 5e-3]}
    cases = report().results.isel(case=[0] * 5).assign({name: ("case", values) for name, values in columns.items()})
    text = fill(DOCUMENT, Report(Path("r.h5"), {}, "", cases, xr.Dataset(), xr.Dataset(), {}))
    assert [line for line in text.splitlines() if line.startswith("| 9")] == [
        "| 9/3 heads, 16k, d 64, causal, layer 0 | 6.93 | 8.03 % | 1.000 | 2.000; **2** |",
        "| 9/3 heads, 16k, d 64, causal, layer 4 | 6.93 | 8.03 % | 3.000 | 9.000; **3** |",
        "| 9/3 heads, 16k, d 64, causal, heads.h5 | 6.93 | 8.03 % | 5.000 |  |",
    ]


def test_a_step_of_decoding_tells_its_keys_and_grouped_heads():
    steps = {"q_heads": [32.0] * 5, "kv_heads": [8.0] * 5, "q_len": [1.0, 1.0, 4.0, 4.0, 4.0]}
    cases = report().results.drop_vars("mask").assign({name: ("case", values) for name, values in steps.items()})
    text = fill(DOCUMENT, Report(Path("r.h5"), {}, "", cases, xr.Dataset(), xr.Dataset(), {}))
    problems = [line.split(" | ")[0] for line in text.splitlines() if "keys," in line]
    assert problems == ["| 1 × 32/8 heads, 16384 keys, d 64, T 2.449", "| 4 × 32/8 heads, 1000 keys, d 64, 4 queries, T 1"]


def test_dense_attention_stands_beside_every_step_of_its_shape():
    values = {
        "implementation": ["toy/0-first", "toy/0-first", "toy/0-first", "torch-cudnn", "torch-splash"],
        "input": ["gaussian", "gaussian", "smollm2", "", "gaussian"],
        "alpha": [1.5, 1.25, 1.5, np.nan, 1.25],
        "layer": [np.nan, np.nan, 4.0, np.nan, np.nan],
        "kv_heads": [16.0] * 5,
        "time_median": [1e-3, 2e-3, 4e-3, 4e-3, 2e-3],
    }
    cases = report().results.isel(case=[0] * 5).drop_vars("mask").assign({name: ("case", of) for name, of in values.items()})
    text = fill(DOCUMENT, Report(Path("r.h5"), {}, "", cases, xr.Dataset(), xr.Dataset(), {}))
    step = "| 1 × 16/16 heads, 16384 keys, d 64, 16384 queries, "
    assert [line.removeprefix(step) for line in text.splitlines() if "keys," in line] == [
        "T 2.449 | 6.93 | 8.03 % | 1.000 | 4.000; **4** |  |",
        "T 2.449, α 1.25 | 6.93 | 8.03 % | 2.000 | 4.000; **2** | 2.000; **1** |",
        "layer 4 | 6.93 | 8.03 % | 4.000 | 4.000; **1** |  |",
    ]


def test_windows_and_documents_are_problems_of_their_own():
    masks = {"mask": ["window"] * 4 + ["documents"], "window": [256.0, 256.0, 1024.0, 1024.0, np.nan], "documents": [""] * 4 + ["8x2048"]}
    cases = report().results.isel(case=[0] * 5).assign(
        {
            **{name: ("case", values) for name, values in masks.items()},
            "implementation": ("case", ["toy/0-first", "torch-flash"] * 2 + ["toy/0-first"]),
            "time_median": ("case", [1e-3, 2e-3, 3e-3, 3e-3, 5e-3]),
        }
    )
    text = fill(DOCUMENT, Report(Path("r.h5"), {}, "", cases, xr.Dataset(), xr.Dataset(), {}))
    assert [line for line in text.splitlines() if line.startswith("| 16")] == [
        "| 16 heads, 16k, d 64, window 256, T 2.449 | 6.93 | 8.03 % | 1.000 | 2.000; **2** |",
        "| 16 heads, 16k, d 64, window 1024, T 2.449 | 6.93 | 8.03 % | 3.000 | 3.000; **1** |",
        "| 16 heads, 16k, d 64, documents 8x2048, T 2.449 | 6.93 | 8.03 % | 5.000 |  |",
    ]


def test_heads_with_alphas_of_their_own_are_another_problem():
    cases = report().results.isel(case=[0] * 4).assign(
        {
            "implementation": ("case", ["toy/0-first", "torch-flash"] * 2),
            "alpha_of_file": ("case", [np.nan, np.nan, 1.0, 1.0]),
            "time_median": ("case", [1e-3, 2e-3, 3e-3, 3e-3]),
        }
    )
    text = fill(DOCUMENT, Report(Path("r.h5"), {}, "", cases, xr.Dataset(), xr.Dataset(), {}))
    assert [line.split(" % | ")[1] for line in text.splitlines() if line.startswith("| 16")] == [
        "1.000 | 2.000; **2** |",
        "3.000 | 3.000; **1** |",
    ]


def test_tables_of_other_reports_stay():
    other = DOCUMENT.replace("toy: toy", "game: toy")
    assert fill(other, report()) == other


def test_a_table_of_another_reports_cases_stays():
    other = DOCUMENT.replace("toy/0-first -->", "toy/0-first kv_len=7 -->")
    assert fill(other + DOCUMENT, report()) == other + fill(DOCUMENT, report())


def test_an_implementation_without_cases_is_refused():
    with pytest.raises(LadderError, match="toy has no case of toy/9-last"):
        fill(DOCUMENT.replace("toy/0-first", "toy/9-last"), report())
