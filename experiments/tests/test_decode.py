"""The experiments of decoding, as far as they go without a GPU; their counters, of a report that is made up."""

from __future__ import annotations

import csv
import shlex

import h5py
import numpy as np
import pytest

from conftest import ROOT, Splash
from splash_laboratory.report_writer import Table

DECODE = str(ROOT / "experiments" / "decode")
PARAMETERS = {"batch": 2, "q_heads": 8, "kv_heads": 2, "q_len": 1, "kv_len": 1000, "head_dim": 64, "page_size": 32, "alpha": 1.5}
PARAMETERS |= {"query_variance": 6.0, "seed": 3, "dtype": "bfloat16"}


def test_the_experiments_wait_for_a_gpu(splash: Splash):
    planned = splash("run", DECODE, "--dry-run")
    assert planned.returncode == 0, planned.stderr
    for name in ("decode/0-no-copy", "decode/1-eight-bits", "decode/2-four-bits", "torch-cudnn", "torch-flash"):
        assert f"kv_len=32768 head_dim=128 implementation={name}" in planned.stdout
    assert "decode-captured layer=24 implementation=decode/2-four-bits" in planned.stdout
    if "no CUDA device" in splash("ceilings").stderr:
        run = splash("run", DECODE, "--out", "report.h5")
        assert run.returncode == 3 and "no CUDA device" in run.stderr
    refusal = splash.refused("run", DECODE, "--set", "implementation=torch-math", "--out", "report.h5")
    assert "parameter 'implementation' cannot be \"torch-math\"" in refusal
    assert planned.stdout == splash("run", "decode", "--dry-run").stdout


@pytest.fixture
def report(splash: Splash) -> str:
    """One step of two kernels, and a peer."""
    described = {name: ("1", name, "set by the run") for name in PARAMETERS | {"implementation": ""}}
    described |= {
        name: ("1", name, "made up") for name in ("experiment", "case_id", "keys_screened", "dram_bytes_counted", "bits", "launches")
    }
    described["time_median"] = ("s", "median time", "made up")
    table = Table("results", "case", described, {*PARAMETERS, "implementation"})
    common = {"experiment": "decode", **PARAMETERS}
    step = {"case_id": "a0", "implementation": "decode/2-four-bits", "keys_screened": 2000.0, "bits": 4.0, "launches": 2.0}
    table.add(**common, **step, time_median=1e-4, dram_bytes_counted=2e6)
    table.add(**common, case_id="a1", implementation="torch-cudnn", time_median=3e-4, dram_bytes_counted=5e6)
    assert splash("run", splash.tiny(), "--out", "steps.h5").returncode == 0
    with h5py.File(splash.folder / "steps.h5", "r+") as file:
        del file["results"]
        table.write(file, {})
    assert splash("seal", "steps.h5").returncode == 0
    return "steps.h5"


def test_the_command_profiles_one_step(splash: Splash, report: str):
    done = splash("counters", report, "--command")
    (profile,) = map(shlex.split, done.stdout.splitlines())  # not the peer
    bench = profile[profile.index("build/release/bin/gpu_bench") + 1 :]
    options = dict(zip(bench[1::2], bench[2::2]))
    assert bench[0] == "--profile" and options == {
        "--shape": "2,8,2,1,1000,64",
        "--dtype": "bfloat16",
        "--decode": "4",
        "--page-size": "32",
        "--alpha": "1.5",
        "--query-variance": "6",
        "--seed": "3",
    }
    declared = (ROOT / "experiments" / "bench" / "gpu_bench.cpp").read_text()
    assert all(f'"{option}"' in declared for option in options)


def test_a_profiled_step_stands_beside_what_was_counted(splash: Splash, report: str):
    metrics = {"dram__bytes_read.sum": ("1,000,000", "byte"), "dram__bytes_write.sum": ("20,000", "byte")}
    kernels = [{"ID": str(i), "Kernel Name": name, "Block Size": "(256, 1, 1)", "Grid Size": "(7, 1, 1)"} for i, name in enumerate("ab")]
    names = [*kernels[0], *metrics]
    with (splash.folder / "raw.csv").open("w", newline="") as file:
        rows = [names, [metrics.get(name, ("", ""))[1] for name in names]]
        rows += [[kernel.get(name) or metrics[name][0] for name in names] for kernel in kernels]
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    (found,) = splash.json("counters", report, "--ncu", "raw.csv", "--write", "with.h5")["kernels"]
    (level,) = found["levels"]
    assert level["level"] == "DRAM" and level["counted"] == 2e6 and np.isclose(level["counter"], 2.04e6) and level["within_15_percent"]
    assert splash.json("counters", "with.h5")["kernels"] == [found]
    assert "DRAM: counted within 15 % of the counter for 1 of 1\n" in splash("counters", report, "--ncu", "raw.csv").stdout
