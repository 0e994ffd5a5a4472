"""The kind gpu-distributed, on two ranks of a CPU, by gloo: the quick profile of experiments/distributed."""

from __future__ import annotations

import importlib.util
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import h5py
import pytest

from conftest import ROOT, Splash

if importlib.util.find_spec("torch") is None:  # an import takes seconds
    pytest.skip("PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0", allow_module_level=True)
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")

TINY = 'title = "As it is"\nkind = "gpu-distributed"\n'
OVER_SEVERAL = ["entmax-gather", "entmax-heads", "entmax-auto"]


@pytest.fixture(scope="module")
def reported(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, list]]:
    """The columns of a run; its ranks start once. Heads do not divide over the ranks in the second experiment."""
    splash = Splash(program, tmp_path_factory.mktemp("distributed"))
    definition = (ROOT / "experiments/distributed/two-gpus.toml").read_text()
    splash.write("runs/a.toml", definition)
    splash.write("runs/b.toml", definition.split("[[expect]]")[0].replace("kv_heads = 4", "kv_heads = 1").replace('"entmax", "softmax"]', '"entmax"]'))
    done = splash("run", "runs", "--quick", "--out", "out.h5", env={"SPLASH_PEER_PYTHON": sys.executable, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    assert "the check holds" in done.stdout
    with h5py.File(splash.folder / "out.h5") as file:
        columns = {name: column[:].tolist() for name, column in file["results"].items() if "units" in column.attrs and name != "sample"}
        yield {name: [one.decode() if isinstance(one, bytes) else one for one in column] for name, column in columns.items()}


def rows(reported: dict[str, list], experiment: str) -> list[dict]:
    return [dict(zip(reported, row, strict=True)) for row in zip(*reported.values(), strict=True) if row[list(reported).index("experiment")] == experiment]


def test_a_report_holds_times_bytes_and_how_exact_it_is(reported: dict[str, list]) -> None:
    cases = rows(reported, "a")
    assert [(case["implementation"], case["pass"]) for case in cases] == [
        (name, direction) for name in (*OVER_SEVERAL, "entmax", "softmax") for direction in ("forward", "forward_backward")
    ]
    for case in cases:
        several = case["implementation"] in OVER_SEVERAL
        assert case["ranks"] == (2 if several else 1) and 3 <= sum(not math.isnan(x) for x in case["time"]) <= 5
        assert case["time_low"] <= case["time_median"] <= case["time_high"] and case["device_name"] == "CPU" and case["computed_in"] == "float32"
        assert math.isnan(case["peak_memory_bytes"]) and case["version"].startswith("torch ")
        measured = [case[name] for name in ("link_rate", "support_mean", "relative_error", "differing_supports")]
        assert any(map(math.isnan, measured)) == all(map(math.isnan, measured)) == (not several)
        if several:
            assert 2 < case["support_mean"] < 10 and case["relative_error"] < 1e-5 and case["differing_supports"] == 0
    tensor = 4 * 256 * 32 * 4  # bytes of a rank's q: 4 heads, 256 tokens, 32 numbers of 4 bytes
    assert [case["received_bytes"] / tensor for case in cases[:4]] == [2, 6, 2, 4]
    assert [case["mode"] for case in cases[:4]] == ["gather", "gather", "heads", "heads"] and cases[4]["mode"] in ("gather", "heads")


def test_a_case_that_fails_says_why_and_the_others_go_on(reported: dict[str, list]) -> None:
    for case in rows(reported, "b"):
        if case["implementation"] == "entmax-heads":
            assert case["version"].startswith("not run: ValueError: mode is 'heads', but kv_heads, which is 1,") and math.isnan(case["time_median"])
        else:
            assert case["version"].startswith("torch ") and case["time_median"] > 0


# A worker that is started without torchrun: it notes that, then answers jobs with their place, and dies of those that ask it to. It finds one GPU.
WORKER = """\
import json, os, sys
open("started", "a").write("x")
ranks = int(os.environ["RANKS"])
refused = "cuda" in sys.argv and ranks > 1
print(json.dumps({"unavailable": f"{ranks} ranks take as many GPUs, and PyTorch finds 1"} if refused else {}), flush=True)
if not refused:
    for place, line in enumerate(sys.stdin):
        if json.loads(line)["pass"] == "death":
            raise RuntimeError("a rank is gone")
        print(json.dumps({"numbers": place}), flush=True)
"""


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """torch_distributed.py with that worker, in a folder of its own."""
    path = ROOT / "experiments/peers/torch_distributed.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "experiments/distributed").mkdir(parents=True)
    (tmp_path / "experiments/distributed/measure.py").write_text(WORKER)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "torchrun", lambda ranks: ["env", f"RANKS={ranks}", sys.executable])
    yield module


def job(implementation: str = "entmax-auto", ranks: int = 2, device: str = "cpu", direction: str = "forward") -> dict:
    return {"implementation": implementation, "ranks": ranks, "device": device, "pass": direction}


def test_ranks_stay_for_jobs_of_as_many_and_of_one_gpu(peer: ModuleType) -> None:
    server = peer.Peer()
    jobs = [job(), job("entmax", 1), job("softmax", 1), job(ranks=4), job(ranks=4), job()]
    assert [server.answer(one)["numbers"] for one in jobs] == [0, 1, 2, 0, 1, 0]
    server.end()
    assert Path("started").read_text() == "xxx"


def test_without_gpus_a_case_says_how_many_it_takes(peer: ModuleType) -> None:
    server = peer.Peer()
    for _ in range(3):
        assert server.answer(job(device="cuda")) == {"unavailable": "2 ranks take as many GPUs, and PyTorch finds 1"}
    assert Path("started").read_text() == "x" and server.answer(job("entmax", 2)) == {"numbers": 0}
    server.end()


def test_one_gpus_cases_run_where_there_are_too_few_for_the_others(peer: ModuleType) -> None:
    server = peer.Peer()
    jobs = [job(ranks=8, device="cuda"), job("entmax", 8, "cuda"), job("softmax", 8, "cuda"), job(ranks=8, device="cuda")]
    answers = [server.answer(one) for one in jobs]
    assert [one.get("numbers") for one in answers] == [None, 0, 1, None]
    assert {one["unavailable"] for one in answers if "unavailable" in one} == {"8 ranks take as many GPUs, and PyTorch finds 1"}
    server.end()


def test_ranks_that_die_are_a_jobs_result_and_the_next_job_starts_others(peer: ModuleType) -> None:
    server = peer.Peer()
    assert server.answer(job()) == {"numbers": 0}
    assert server.answer(job(direction="death")) == {"unavailable": "the 2 ranks ended: RuntimeError: a rank is gone"}
    assert server.answer(job()) == {"numbers": 0}
    server.end()


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        ("ranks=0", "ranks is 0; it must be at least 1"),
        ("kv_heads=3", "heads is 16; it must be a multiple of kv_heads, 3"),
        ("ranks=3", "length is 32768; a zigzag over 3 ranks takes a multiple of 6"),
        ("alpha=1", "alpha is 1; it must be above 1 and at most 2"),
        ("temperature=0", "temperature is 0; it must be above 0"),
        ("heads_at_once=-1", "heads_at_once is -1; it must be at least 1, or 0, which chooses"),
        ("implementation=entmax-head", "did you mean 'entmax-heads'?"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_any_case(splash: Splash, setting: str, sentence: str) -> None:
    assert sentence in splash.refused("run", str(ROOT / "experiments/distributed/two-gpus.toml"), "--set", setting)
    assert list(splash.folder.iterdir()) == []


def test_a_peer_without_pytorch_says_so(splash: Splash) -> None:
    splash.write("a.toml", TINY)
    splash.write("python", '#!/bin/sh\nexec "$REAL" -S "$@"\n').chmod(0o755)  # -S: no packages
    done = splash("run", "a.toml", "--out", "a.h5", env={"SPLASH_PEER_PYTHON": str(splash.folder / "python"), "REAL": sys.executable, "PYTHONPATH": ""})
    assert done.returncode == 0, done.stderr
    with h5py.File(splash.folder / "a.h5") as file:
        assert "has no torch; SPLASH_PEER_PYTHON must name a Python that has torch and splash_attention" in file["results/version"][0].decode()
