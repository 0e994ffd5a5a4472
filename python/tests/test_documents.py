"""Every command and example of the documents and help texts works as it stands.

It is run, or, where that takes a GPU, a network or minutes, its names, options and files are looked up. `pytest -rP`
tells which was done and why.
"""

from __future__ import annotations

import functools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from splash_laboratory.reports import open_report

from documented import ROOT, Found, code, commands, examples_of_help, options_of
from forks import Forks

PROGRAM = Path(os.environ.get("SPLASH_BIN") or ROOT / "build/release/bin/splash")
REPORTS = ROOT / "data" / "reports"
needs_program = pytest.mark.skipif(not PROGRAM.is_file(), reason="SPLASH_BIN names no built splash")

SWEEP = """\
title = "A sweep"
kind = "entmax-solver"
[fixed]
n = 64
rows = 2
samples = 1
[axes]
seed = [1, 2, 3, 4, 5, 6, 7, 8]
"""
HEADS = """\
title = "My own heads"
kind = "workload"
[fixed]
input = "out/mine.npz"
[axes]
head = [0, 7]
"""
# The recorded kernel whose counters the reader has.
PROFILED, CASE = "wmma/10-warp-specialised", "e180e8c79520b2b0"
# Names that stand for the reader's own.
STANDS_FOR = {
    "FILE": "report.h5",
    "REPORT": "report.h5",
    "KERNEL": "wmma/9",
    "NAME=VALUE": "tile_q=64",
    "…": "",
    "build/release/bin/splash": str(PROGRAM),
    ".venv/bin/python": sys.executable,
    "python": sys.executable,
}
# Recorded reports, under the names that the documents' readers have theirs.
REPORTS_OF_READERS = {
    "report.h5": "ladders-h200",
    "with-counters.h5": "ladders-h200",
    "a.h5": "reproduce-quick",
    "before.h5": "cpu-speed",
    "after.h5": "cpu-speed",
    "out/sweep.h5": "cpu-memory",
    "out/keys.h5": "reproduce-quick",
    "out/accuracy.h5": "reproduce-quick",
    "out/iterations.h5": "reproduce-quick",
    "edited.h5": "cpu-speed",
    "out/reproduce/report.h5": "reproduce-quick",
    "ceilings.h5": "ceilings-h200",
}
# Words that begin a command which is not run, and why. What follows each is looked up: see `look_up`.
NOT_RUN = {
    "./splash test": "it runs this test",
    "./splash import profile.ncu-rep": "it needs ncu; test_import.py has one",
    "splash import profile.ncu-rep": "it needs ncu; test_import.py has one",
    "ncu ": "it needs a GPU",
    "./splash bench my_kernel": "the file is the reader's; test_bench.py has some",
    "splash bench my_": "the file is the reader's; test_bench.py has some",
    "./splash bench examples/bench/saxpy.cu": "it needs a GPU",
    "./splash bench examples/bench/polynomial_triton.py": "it needs a GPU",
    "./splash bench examples/bench/flashinfer": "it needs PyTorch; test_bench.py does it",
    "splash bench definition.json": "the files are the reader's; test_bench.py has some",
    "./splash kascade": "it needs a capture of a whole model; test_kascade.py has one",
    "splash kascade": "it needs a capture of a whole model; test_kascade.py has one",
    "./splash plot similarity.h5": "test_kascade.py draws it",
    "./splash docs": "docs/tests build the site",
    "./splash plot out/keys.h5": "test_pictures_as_asked.py draws such",
    "./splash build": "it builds, for minutes",
    "./splash format": "continuous integration runs it",
    "./splash lint": "continuous integration runs it",
    ".ci/run": "it runs this test",
    "build/release/bin/gpu_bench": "it needs a build with CUDA and a GPU",
    "build/release/gpu/": "a test program, which needs a build with CUDA; ctest runs it",
    "build/fuzz/": "the preset fuzz builds it",
    "cmake --preset": "it configures a build, for minutes of compilation",
    "ninja -C build/": "it builds, for minutes",
    "compute-sanitizer": "needs a GPU",
    "for ": "part of a loop around what needs a GPU",
    "done": "part of a loop",
    "export ": "sets what the next lines need",
    "sh profile.sh": "needs a GPU",
    "parallel ": "needs GNU parallel",
    "splash sweep accuracy --slurm --shards 64 --submit": "needs Slurm; test_sweep_jobs.py has one",
    "splash sweep accuracy --mpi --shards 8 --set": "needs MPI; test_sweep_jobs.py has one",
    "./splash run distributed": "it needs two GPUs; test_distributed.py does its quick profile on a CPU",
    "./splash run experiments/distributed": "it needs two GPUs; test_distributed.py does its quick profile on a CPU",
    "./splash run many": "it needs eight GPUs; test_sweeps.py lists its cases",
    "./splash table distributed.h5": "the report takes two GPUs; test_distributed.py has a small one",
    "./splash plot distributed.h5": "the report takes two GPUs; test_scaling.py draws a made-up one",
    "python -m splash_laboratory.scaling": "the report takes two GPUs; test_scaling.py has a made-up one",
    "torchrun ": "it starts several processes; torch_tests/test_distributed_documents.py does it",
    "pip install": "needs a network, and minutes",
    "python data/captures/": "data/captures/tests run it",
    "python -m pytest": "it is a test",
    "jupytext": "test_notebooks.py runs it",
    "python -m splash_laboratory.bench": "its letters stand for numbers; torch_tests run it",
    "./splash run entmax-converted": "it needs a GPU and a capture of a whole model; kinds_tests have the shipped one",
    "./splash run model": "it fetches a model and texts; test_language_kinds runs it on small ones",
    "python -m splash_attention.language": "its models and texts are fetched by the user; torch_tests run it on small ones",
    "splash test": "the front door's",
    "./splash new": "it writes into the project's own folders; test_new.py does it in a copy",
    "splash new": "it writes into the project's own folders; test_new.py does it in a copy",
    "./splash recount": "it simulates every recorded kernel, for minutes; test_analyze.py does it for some",
    "splash recount": "it simulates every recorded kernel, for a minute; test_analyze.py does it for some",
    "build/release/bin/splash": "the built program's place",
    "./splash run cpu-": "its first case alone takes long",
    "python -m splash_laboratory.documents.ladder_tables": "test_document_tables.py does it",
    "python -m splash_laboratory.documents.peer_tables": "test_document_tables.py does it",
    "python -m splash_laboratory.documents.claim_tables": "test_document_tables.py does it",
    "python -m splash_laboratory.documents.milestone_tables": "test_document_tables.py does it",
    "python -m splash_laboratory.documents.verdicts": "test_verdicts.py does it",
    "python -m splash_laboratory.documents.printed": "test_printed.py does it",
    "python -m splash_laboratory.documents.figures": "test_figures.py does it",
    "./splash compare b1.h5": "it needs several runs; test_cli.py has them",
    "splash compare b1.h5": "it needs several runs; test_cli.py has them",
    "./splash judge REPORT --runs": "it needs a second run; the program's tests have one",
    "splash judge REPORT --runs": "it needs a second run; the program's tests have one",
}
RUN_BEFORE: set[tuple[str, ...]] = set()  # modules of the Python package, with their options
TREATED: dict[str, str] = {}  # what became of a command that stands in several places


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository as a reader has it, and reports of the reader's own."""
    folder = tmp_path_factory.mktemp("reader")
    for entry in ROOT.iterdir():
        if entry.name not in ("docs", "out", "build", ".git", "data", "README.md"):
            (folder / entry.name).symlink_to(entry)
    for written in ("docs", "data"):
        shutil.copytree(ROOT / written, folder / written)
    shutil.copy(ROOT / "README.md", folder)
    for name, recorded in REPORTS_OF_READERS.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPORTS / f"{recorded}.h5", folder / name)
    (folder / "my-sweep.toml").write_text(SWEEP)
    (folder / "my-heads.toml").write_text(HEADS)
    shapes = {"q": (8, 64, 32), "k": (2, 64, 32), "v": (2, 64, 32)}
    mine = {name: np.random.default_rng(0).standard_normal(shape, np.float32) for name, shape in shapes.items()}
    np.savez(folder / "out/mine.npz", **mine)
    theirs = {f"layers.3.{word}": mine[name].transpose(1, 0, 2) for name, word in (("q", "query"), ("k", "key"), ("v", "value"))}
    np.savez(folder / "out/theirs.npz", **theirs)
    for shard in (1, 2):
        for name in (f"out/sweep.{shard}-of-2.h5", f"shard-{shard}.h5"):
            run(folder, [str(PROGRAM), "run", "my-sweep.toml", "--shard", f"{shard}/2", "--out", name])
    for name in (
        "raw.csv",
        f"{PROFILED.replace('/', '-')}-{CASE}.csv",
        f"folder/{PROFILED.replace('/', '-')}-{CASE}.csv",
    ):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(profiled_table())
    for name in ("ncu.csv", "before.csv", "after.csv"):
        shutil.copy(ROOT / "analysis/tests/data/ncu-raw.csv", folder / name)
    run(folder, [str(PROGRAM), "import", "ncu.csv", "--gpu", "NVIDIA H200", "--out", "my.h5"])
    return folder


def profiled_table() -> str:
    """As `ncu --csv` prints one kernel of the ladders' record."""
    results = open_report(REPORTS / "ladders-h200.h5").results
    case = results.isel(case=int(np.flatnonzero(results["case_id"].values == CASE)[0]))
    metrics = {
        "dram__bytes_read.sum": (case["dram_bytes_counted"], "byte"),
        "dram__bytes_write.sum": (0, "byte"),
        "launch__registers_per_thread": (case["registers"], "register/thread"),
        "launch__shared_mem_per_block_dynamic": (case["shared_bytes"], "byte/block"),
        "launch__shared_mem_per_block_static": (0, "byte/block"),
    }
    launch = {
        "ID": "0",
        "Kernel Name": "void unnamed>::attention<__nv_bfloat16, 64>(Problem, Maps)",
        "Block Size": f"({int(case['threads'])}, 1, 1)",
        "Grid Size": f"({int(case['blocks'])}, 1, 1)",
    }
    rows = [
        [*launch, *metrics],
        [""] * len(launch) + [unit for _, unit in metrics.values()],
        [*launch.values(), *(f"{float(value):g}" for value, _ in metrics.values())],
    ]
    return "".join(",".join(f'"{field}"' for field in row) + "\n" for row in rows)


def environment_of_readers(**more: str) -> dict[str, str]:
    environment = {**os.environ, "NO_COLOR": "1", "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", **more}
    return environment | {"PYTHONPATH": str(ROOT / "python"), "SPLASH_PYTHON": sys.executable}


def run(folder: Path, words: list[str], **more: str) -> subprocess.CompletedProcess:
    environment = environment_of_readers(**more)
    return subprocess.run(
        words, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )


def words_of(command: str, folder: Path) -> tuple[dict[str, str], list[str]]:
    """What a command sets, and its words up to a pipe or a redirection, with readers' own names filled in."""
    words = shlex.split(re.split(r"\s[|>]\s?(?=[\w.])", command)[0])
    environment = {}
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        name, _, value = words.pop(0).partition("=")
        environment[name] = value
    words = [STANDS_FOR.get(word, word) for word in words]
    words = [word for word in words if word]
    if words[0] in ("splash", "./splash"):
        words[0] = str(PROGRAM)
    globbed = [
        [str(path.relative_to(folder)) for path in sorted(folder.glob(word))] if "*" in word else [] for word in words
    ]
    return environment, [found for word, names in zip(words, globbed, strict=True) for found in names or [word]]


def begin(folder: Path, words: list[str], environment: dict[str, str]) -> str:
    """Starts a run and stops it when its first case is kept, or when it ends by itself."""
    begun = folder / "begun"
    shutil.rmtree(begun, ignore_errors=True)
    out = str(begun if words[1] == "reproduce" else begun / "report.h5")
    if "--out" in words:
        words[words.index("--out") + 1] = out
    else:
        words += ["--out", out]
    started = subprocess.Popen(
        words,
        cwd=folder,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "SPLASH_PYTHON": sys.executable, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + 100
    while started.poll() is None and time.monotonic() < until:
        if any(journal.read_bytes().count(b"\n") > 1 for journal in begun.glob("*.journal")):
            started.send_signal(signal.SIGINT)
            break
        time.sleep(0.01)
    _, errors = started.communicate(timeout=100)
    if started.returncode == 3:
        return "run: names, options and definitions are right, and it asks for a GPU"
    assert started.returncode in (0, 1, 130), errors
    return "run, and stopped when its first case was kept" if started.returncode == 130 else "run to its end"


@functools.cache
def options_of_language(name: str) -> set[str]:
    words = [sys.executable, "-m", "splash_attention.language", name, "--help"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "python")}
    told = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env=environment).stdout
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", told))


def look_up(command: str, folder: Path, why: str) -> str:
    """Names, options, files and experiments of a command that is not run."""
    for path in re.findall(r"(?<![\w/-])(?:data|docs|experiments|notebooks|python|gpu)/[\w./-]+\.\w+", command):
        assert (ROOT / path).exists(), f"there is no {path}"
    for module in re.findall(r"-m (splash_(?:attention|laboratory)[\w.]*)", command):
        place = ROOT / "python" / module.replace(".", "/")
        assert place.with_name(f"{place.name}.py").exists() or (place / "__main__.py").exists(), module
    if spoken := re.search(r"-m splash_attention\.language ([\w-]+)(.*)", command):
        unknown = set(re.findall(r"--[a-z-]+", spoken[2])) - options_of_language(spoken[1])
        assert not unknown, f"splash_attention.language {spoken[1]} has no {unknown}"
    for target in re.findall(r"build/release/bin/(\w+)", command):
        assert re.search(rf"\b{target}\b", (ROOT / "experiments/CMakeLists.txt").read_text()), f"experiments/ builds no {target}"
    if re.search(r"gpu_bench ", command):
        source = (ROOT / "experiments/bench/gpu_bench.cpp").read_text()
        for option in re.findall(r"--[a-z-]+", command):
            assert f'"{option}"' in source or f"{option}" in source, option
    if front := re.match(r"(?:\S+=\S+ )*\./splash (test|docs|build|format|lint)\b", command):
        assert re.search(rf"\b{front[1]}\b", (ROOT / "splash").read_text())
    inner = re.search(r"(?:\./)?splash (run|merge|sweep) (\S+) (.*)", command)
    if inner:
        unknown = set(re.findall(r"--[a-z-]+", inner[3])) - options_of(PROGRAM, inner[1])
        assert not unknown, f"splash {inner[1]} has no {unknown}"
        definitions = list((ROOT / "experiments").rglob("*.toml"))
        known = {path.stem for path in definitions} | {path.parent.name for path in definitions}  # or a folder of them
        assert inner[2] in known, f"there is no experiment {inner[2]}"
    return f"looked up only: {why}"


def treat(command: str, folder: Path) -> str:
    """Runs or looks up one command, once; says which."""
    key = command.replace("'", '"')
    if key not in TREATED:
        TREATED[key] = treated(command, folder)
    return TREATED[key]


def treated(command: str, folder: Path) -> str:
    without_environment = re.sub(r"^(?:[A-Z_]+=\S* )*", "", command)
    for beginning, why in NOT_RUN.items():
        if without_environment.startswith(beginning):
            return look_up(command, folder, why)
    environment, words = words_of(command, folder)
    if words[0] == str(PROGRAM) and len(words) == 2 and not without_environment.startswith("./"):
        if words[1] not in ("list", "doctor", "ceilings", "reproduce"):
            assert options_of(PROGRAM, words[1])
            return "looked up only: the name of a subcommand"
    if words[0] == str(PROGRAM) and words[1] in ("run", "reproduce"):
        return begin(folder, words, environment)
    if (
        words[0] == str(PROGRAM)
        and words[-1].startswith("--")
        and words[1] in ("diagnose", "counters")
        and len(words) == 3
    ):
        assert words[-1] in options_of(PROGRAM, words[1])
        return "looked up only: the name of an option"
    module = (*words[:3], *(word for word in words if word.startswith("--"))) if words[1] == "-m" else None
    if module in RUN_BEFORE:  # takes seconds
        return "run before, with other files"
    if module is not None:
        RUN_BEFORE.add(module)
    given = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    done = run(folder, words, **given)
    for _ in range(4):  # a kernel on the CPU is not believed while other tests take its cores
        if "keep this machine busy" not in done.stdout:
            break
        time.sleep(5)
        done = run(folder, words, **given)
    if "no CUDA" in done.stderr:
        return "run: refused for want of a build with CUDA"
    if done.returncode == 3:
        return "run: it asks for a GPU"
    differs = [1] if "compare" in words else []
    assert done.returncode in [0, *differs], done.stderr or done.stdout
    return "run"


@needs_program
@pytest.mark.parametrize("found", commands(), ids=lambda found: f"{found.where}: {found.text}")
def test_a_command_of_the_documents(found: Found, folder: Path) -> None:
    print(treat(found.text, folder))


@needs_program
def test_the_examples_of_the_help_texts(folder: Path) -> None:
    for found in examples_of_help(PROGRAM):
        try:
            print(f"{found.where}: {found.text}: {treat(found.text, folder)}")
        except AssertionError as error:
            raise AssertionError(f"{found.where}: {found.text}: {error}") from error


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    forks = Forks(ROOT, environment_of_readers())
    yield forks
    forks.close()


@pytest.mark.parametrize("found", code(("python",)), ids=lambda found: found.where)
def test_an_example_in_python(found: Found, forks: Forks) -> None:
    """Run in the repository's folder; one that needs a package says so when it is not installed."""
    for package in re.findall(r"^(?:import|from) (torch|transformers)\b", found.text, re.MULTILINE):
        pytest.importorskip(package)
    if "splash_attention" in found.text:
        pytest.importorskip("splash_attention._core", reason="the extension is not built")
    brings_torch = re.search(r"^import torch", found.text, re.MULTILINE) or "torch." not in found.text
    text = found.text if brings_torch else f"import torch\n{found.text}"
    exit_code, said = forks.run(text)
    assert exit_code == 0, f"{found.text}\n{said}"


@pytest.mark.parametrize("found", code(("cpp",)), ids=lambda found: found.where)
def test_an_example_in_cpp(found: Found) -> None:
    """Compiled, as far as the compiler's checks go; a fragment is the body of a function of q, k, v and dout."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("there is no g++ here")
    source = found.text
    if "int main" not in source:
        includes = re.findall(r"^#include.*\n", source, re.MULTILINE)
        body = re.sub(r"^#include.*\n", "", source, flags=re.MULTILINE)
        tensors = ", ".join(f"const splash::Tensor<float>& {name}" for name in ("q", "k", "v", "dout"))
        source = "".join(includes) + f"void example({tensors}) {{\n{body}}}\n"
    words = [
        compiler,
        "-std=c++20",
        "-fsyntax-only",
        "-fopenmp",
        f"-I{ROOT}",
        "-I/usr/include/eigen3",
        "-x",
        "c++",
        "-",
    ]
    done = subprocess.run(words, input=source, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
