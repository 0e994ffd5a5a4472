"""splash bench: kernels of others are timed and checked from outside, cheats are caught, and every command reads the report."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path

import bench_kernels as kernels
import pytest
from conftest import ROOT, Splash

QUICK = ("--samples", "6", "--flag=-O0")


@pytest.fixture(scope="session")
def ceilings(program: Path, tmp_path_factory) -> Path:
    """Measured once, not in every test."""
    folder = tmp_path_factory.mktemp("ceilings")
    done = Splash(program, folder)("ceilings", "--cpu", "--out", "ceilings.h5")
    assert done.returncode == 0, done.stderr
    return folder / "ceilings.h5"


def benched(splash: Splash, ceilings: Path, source: str, *words: object, code: int = 0, cache: str = "warm") -> dict:
    splash.write("mine.cpp", source)
    done = splash("bench", "mine.cpp", *QUICK, "--cache", cache, "--ceilings", ceilings, "--json", *words)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)["cases"][0]


def against(case: dict) -> set[str]:
    assert not case["believed"] and case["seconds"] is None and case["findings"] == []
    return {found["kind"] for found in case["against"]}


def test_a_kernel_on_the_cpu_becomes_a_report_that_every_command_reads(splash: Splash, ceilings: Path):
    source = kernels.kernel(n=200000)
    case = benched(splash, ceilings, source, "--out", "my.h5", "--set", "n=100000", cache="cold")
    assert case["believed"] and case["against"] == [] and case["problem"] == "n 100000"
    assert case["floor_seconds"] < case["seconds"] < 0.1
    assert case["outside_seconds"] >= 0  # 0 where other programs slowed the run without calls by more than the calls take
    assert case["flops"] == 2e5 and case["bytes"] == 3 * 4 * 1e5
    assert case["calls_checked"] >= 6 + 1 and case["elements_checked"] == 4096 * case["calls_checked"]
    assert 0 < case["max_absolute_error"] < 1e-6
    shown = splash.json("show", "my.h5", "--results")["cases"][0]
    assert shown["method"] == "bench" and shown["cache"] == "cold" and shown["math_unit"] == "cpu float32"
    assert shown["time_median"] == case["seconds"] and len(shown["time"]) == 6 and not shown["warning"].startswith("a call")
    analysed = splash.json("analyze", "my.h5")["cpu_cases"][0]
    assert analysed["seconds"] == case["seconds"] and analysed["floor_seconds"]["DRAM"] > 0
    (told,) = splash.json("diagnose", "my.h5")["cpu_cases"]
    assert told["findings"][0]["cause"] == case["findings"][0]["cause"] and told["problem"] == "n 100000"
    assert "mine" in splash("analyze", "my.h5").stdout and told["case_id"] in splash("diagnose", "my.h5").stdout
    assert splash("compare", "my.h5", "my.h5").returncode == 0


def test_several_sizes_are_cases_of_one_report(splash: Splash, ceilings: Path):
    splash.write("mine.cpp", kernels.kernel())
    done = splash.json("bench", "mine.cpp", *QUICK, "--ceilings", ceilings, "--set", "n=64,4096", "--out", "my.h5")
    assert [case["problem"] for case in done["cases"]] == ["n 64", "n 4096"]
    assert [c["problem"] for c in splash.json("diagnose", "my.h5")["cpu_cases"]] == ["n 64", "n 4096"]


def test_cheats_are_caught(splash: Splash, ceilings: Path):
    splash.write("cheats.cpp", kernels.cheats())
    numbers = ",".join(str(i) for i in range(1, len(kernels.CHEATS) + 1))
    done = splash("bench", "cheats.cpp", *QUICK, "--cache", "warm", "--ceilings", ceilings, "--set", f"cheat={numbers}", "--json")
    assert done.returncode == 1, done.stderr
    for (name, (_, expected)), case in zip(kernels.CHEATS.items(), json.loads(done.stdout)["cases"], strict=True):
        found = against(case)
        assert found & expected, (name, case["against"])


def test_what_was_not_believed_has_no_time_in_the_report(splash: Splash, ceilings: Path):
    case = benched(splash, ceilings, kernels.kernel(body=kernels.NOTHING), "--out", "my.h5", code=1)
    assert "4000 of 4000 elements of 'z' were not written" in case["against"][0]["sentence"]
    shown = splash.json("show", "my.h5", "--results")["cases"][0]
    assert shown["time_median"] is None and "were not written" in shown["warning"]
    assert "no kernel that was run" in splash.refused("diagnose", "my.h5")


def test_what_cannot_be_run_is_told_in_a_sentence(splash: Splash, ceilings: Path):
    fails = """cheat = bench.size("cheat", 1);
  if (cheat == 4) bench.output<double>("w", {1});"""
    body = "if (cheat == 1) std::abort(); if (cheat == 2) for (;;) pause();" + kernels.NOTHING
    splash.write("mine.cpp", kernels.kernel(before="static int64_t cheat = 0;", body=body, more=fails))

    def refused(*words: object) -> str:
        return splash.refused("bench", "mine.cpp", *QUICK, "--ceilings", ceilings, *words)

    assert "the process of the kernel ended: by signal 6" in refused()
    assert "the kernel did not answer within 0.5 s" in refused("--timeout", "0.5", "--set", "cheat=2")
    assert "there is no size 'm'" in refused("--set", "m=4")
    assert "the output 'w' has no bench.reference" in refused("--set", "cheat=4")
    assert "'n=x' sets no size" in refused("--set", "n=x")
    assert "is no kernel to bench" in splash.refused("bench", splash.write("mine.f90", ""))
    assert "nowhere.cu" in splash.refused("bench", "nowhere.cu")
    assert "of flashinfer-bench" in refused("--traces", "t.jsonl")


def in_python(splash: Splash) -> dict[str, str]:
    """The environment in which the program finds a Python with PyTorch, that of the tests."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("there is no PyTorch here")
    return {"SPLASH_PEER_PYTHON": sys.executable, "OMP_NUM_THREADS": "2"}


PATCHED_TIMER = """
import time
import torch
from splash_laboratory.kernels import declare

real = time.perf_counter
time.perf_counter = lambda: real() / 100

@declare(inputs={"x": ("float32", [1000])}, outputs={"y": ("float32", [1000])}, reference=lambda x: 2 * x)
def doubled(x):
    time.sleep(0.002)
    return 2 * x
"""


def test_a_python_callable_with_a_patched_timer_is_caught(splash: Splash, ceilings: Path):
    splash.write("mine.py", PATCHED_TIMER)
    done = splash("bench", "mine.py", "--samples", "3", "--cache", "warm", "--ceilings", ceilings, "--json", env=in_python(splash))
    assert done.returncode == 1, done.stderr
    case = json.loads(done.stdout)["cases"][0]
    assert case["implementation"] == "doubled" and against(case) == {"contradicts the clock outside"}


def test_flashinfer_benchs_files_are_run_and_traces_written(splash: Splash, ceilings: Path):
    example = ROOT / "examples/bench/flashinfer"
    splash.write("workloads.jsonl", (example / "workloads.jsonl").read_text().splitlines()[0] + "\n")
    words = ("--solution", example / "solution.json", "--workloads", "workloads.jsonl", "--traces", "traces.jsonl")
    words += ("--samples", "3", "--ceilings", ceilings, "--out", "my.h5")
    done = splash("bench", example / "definition.json", *words, env=in_python(splash))
    assert done.returncode == 0, done.stderr
    (trace,) = map(json.loads, (splash.folder / "traces.jsonl").read_text().splitlines())
    assert (trace["definition"], trace["solution"]) == ("scaled_add_n256", "scaled_add_torch")
    assert trace["workload"] == json.loads((splash.folder / "workloads.jsonl").read_text())
    evaluation = trace["evaluation"]
    assert evaluation["status"] == "PASSED" and evaluation["correctness"]["max_absolute_error"] < 1e-6
    performance = evaluation["performance"]
    assert performance["latency_ms"] > 0
    assert performance["speedup_factor"] == pytest.approx(performance["reference_latency_ms"] / performance["latency_ms"])
    assert evaluation["environment"]["libs"]["torch"] and evaluation["timestamp"].endswith("Z")
    assert trace["workload"]["uuid"] in splash.json("diagnose", "my.h5")["cpu_cases"][0]["problem"]


def test_files_of_flashinfer_bench_that_are_none_are_refused(splash: Splash):
    example = ROOT / "examples/bench/flashinfer"
    words = ("bench", example / "definition.json", "--solution", example / "solution.json", "--workloads")
    assert "w.jsonl:2 is no workload" in splash.refused(*words, splash.write("w.jsonl", '\n{"uuid": "a", "axes": {}}\n'))
    assert "holds no workload" in splash.refused(*words, splash.write("w.jsonl", "\n"))
    assert "needs --solution and --workloads" in splash.refused("bench", example / "definition.json")


FAKE = {"SPLASH_PEER_PYTHON": str(Path(__file__).parent / "bench_fake_worker.py")}
H200 = ("--samples", "6", "--ceilings", ROOT / "data/reports/ceilings-h200.h5")


def test_a_report_of_a_gpu_is_read_by_every_command(splash: Splash):
    done = splash("bench", splash.write("mine.py", ""), *H200, "--out", "my.h5", env=FAKE)
    assert done.returncode == 0, done.stderr
    assert "mine  n 1000, cold cache, on NVIDIA H200" in done.stdout
    assert "too little parallelism, up to 8.25x: its 16 blocks leave 116 of 132 multiprocessors idle" in done.stdout
    (kernel,) = splash.json("diagnose", "my.h5")["kernels"]
    assert "too little parallelism" in [found["cause"] for found in kernel["findings"]] and kernel["problem"] == "n 1000"
    told = splash("diagnose", "my.h5").stdout
    assert "by a profiler's table" not in told and "of the measured ceiling" in told and "by counters" not in told
    assert "not counted: special functions" in told
    analysed = splash.json("analyze", "my.h5")["kernels"][0]
    assert analysed["blocks"] == 16 and analysed["dram_bytes_counted"] == 8e3
    there = splash.json("what-if", "my.h5", "mine", "--gpu", "NVIDIA H100 NVL")
    assert there["predicted"]["gpu"].startswith("NVIDIA H100 NVL")
    assert splash("page", "my.h5", "--out", "my.html").returncode == 0
    shown = splash.json("show", "my.h5", "--results")["cases"][0]
    assert shown["verdict"] == kernel["findings"][0]["cause"] and shown["registers"] == 20


@pytest.mark.parametrize(
    ("odd", "why"),
    [
        ('declare {"sizes": {}}', "two processes of the kernel declare different arrays"),
        ('declare {"arrays": []}', "declaration lacks 'sizes'"),
        ("declare [1]", "answers with what is no JSON object"),
        ("declare " + "[" * 100000, "answers with what is no JSON object"),
        ("declare " + "x" * (1 << 21), "answers with more than 1048576 bytes"),
        ('prepare {"error": "no memory\\u001b[2J"}', "the kernel: no memory\u241b[2J"),
        ("prepare SHRINK", "Operation not permitted"),  # of the memory that both share
    ],
)
def test_what_a_process_says_is_checked(splash: Splash, odd: str, why: str):
    assert why in splash.refused("bench", splash.write("mine.py", odd + "\n"), *H200, env=FAKE)


@pytest.mark.parametrize(
    ("odd", "kind"),
    [
        ('time {"seconds": []}', "impossible times"),
        ('time {"seconds": "none"}', "impossible times"),
        ('time {"seconds": [-1, 1, 1, 1, 1, 1]}', "impossible times"),
        ('time {"seconds": [1e-6, 1e-6, 1e-6, 1e-6, 1e-6, 1e-6]}', "contradicts the clock outside"),
        ("launches {}", None),
        ('launches {"launches": [{"blocks": -1, "threads": "x", "kernel": 7}, 3], "clock_hz": 1e99}', None),
    ],
)
def test_odd_answers_give_no_odd_report(splash: Splash, odd: str, kind: str | None):
    done = splash("bench", splash.write("mine.py", odd + "\n"), *H200, "--json", env=FAKE)
    if kind:
        assert "  not believed: " in splash("bench", "mine.py", *H200, env=FAKE).stdout
    case = json.loads(done.stdout)["cases"][0]
    assert done.returncode == (1 if kind else 0) and (not kind or against(case) == {kind}), case["against"]
    if not kind:
        assert case["launches"] == 0 and "how many warps are resident is not known" in case["findings"][0]["sentence"]


NVCC = shutil.which("nvcc") or next((str(p) for p in [Path("/usr/local/cuda/bin/nvcc")] if p.exists()), None)
CUDA_FILES = [*sorted((ROOT / "examples/bench").glob("*.cu")), ROOT / "experiments/tests/bench_cheats.cu"]
REWRITE = """
#include <iostream>
#include <iterator>
#include "experiments/foreign/ptx_counting.h"
int main() {
  const auto counting = splash::experiments::with_counting({std::istreambuf_iterator<char>(std::cin), {}});
  std::cout << counting.text;
  return counting.counts_shared && counting.counts_global ? 0 : 1;
}
"""


@pytest.mark.skipif(NVCC is None, reason="there is no nvcc here")
def test_the_examples_compile_and_so_do_their_counting_copies(tmp_path: Path):
    """As far as it goes without a GPU: PTX of every example, and an assembler that takes the copy that counts."""
    include = f"-I{ROOT / 'experiments/foreign'}"
    (tmp_path / "rewrite.cpp").write_text(REWRITE)
    rewrite = ["g++", "-std=c++20", "-DFMT_HEADER_ONLY", f"-I{ROOT}", "rewrite.cpp", ROOT / "experiments/foreign/ptx_counting.cpp"]
    jobs = [[NVCC, "-std=c++17", "-arch=compute_80", "-ptx", "-DSPLASH_BENCH_COUNT", include, file] for file in CUDA_FILES]
    started = [subprocess.Popen(job, cwd=tmp_path) for job in [*jobs, [*rewrite, "-o", "rewrite"]]]
    assert [process.wait(timeout=300) for process in started] == [0] * len(started)
    assert len(CUDA_FILES) == 5
    for file in CUDA_FILES:
        ptx = (tmp_path / file.name).with_suffix(".ptx")
        done = subprocess.run([tmp_path / "rewrite"], input=ptx.read_text(), text=True, capture_output=True, timeout=60)
        assert done.returncode == 0 and done.stdout.count("call splash_bench_global") >= 2, file.name
        ptx.write_text(done.stdout)
    assemble = [[Path(NVCC).with_name("ptxas"), "-arch=sm_80", file.with_suffix(".ptx").name, "-o", file.stem] for file in CUDA_FILES]
    started = [subprocess.Popen(job, cwd=tmp_path) for job in assemble]
    assert [process.wait(timeout=300) for process in started] == [0] * len(started)
