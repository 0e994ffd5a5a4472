"""Bad input to the lab's commands: one clear sentence and exit code 2."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import pytest

from conftest import ROOT, Splash
from splash_attention.files.seal import seal

LADDERS = ROOT / "data" / "reports" / "ladders-h200.h5"
MACHINES = ROOT / "data" / "machines"
NCU = ROOT / "analysis" / "tests" / "data"
COMMANDS = {
    "analyze": ["analyze", "{report}"],
    "diagnose": ["diagnose", "{report}"],
    "what-if": ["what-if", "{report}", "wmma/8"],
    "counters": ["counters", "{report}"],
}


def words(command: str, report: object) -> list[str]:
    return [word.format(report=report) for word in COMMANDS[command]]


@pytest.fixture
def another_schema(tmp_path: Path) -> Path:
    """The recorded ladders, as a later version of the program might have written them."""
    path = tmp_path / "another.h5"
    shutil.copy(LADDERS, path)
    with h5py.File(path, "r+") as file:
        file.attrs["schema_version"] = 7
    return path


@pytest.mark.parametrize("command", [*COMMANDS, "recount", "show", "compare", "compare after"])
def test_a_report_of_another_schema_version(splash: Splash, another_schema: Path, command: str):
    asked = {
        "recount": ["recount", another_schema, "--out", "again.h5"],
        "show": ["show", another_schema],
        "compare": ["compare", another_schema, LADDERS],
        "compare after": ["compare", LADDERS, another_schema],
    }.get(command) or words(command, another_schema)
    refusal = splash.refused(*asked)
    assert "is a report of schema 7, this program reads schema 1" in refusal and "another.h5" in refusal


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_selection(splash: Splash, command: str):
    if command == "what-if":
        assert "no kernel whose id starts with 'nope'" in splash.refused("what-if", LADDERS, "nope")
        assert "whose id starts with 'zz'" in splash.refused("what-if", LADDERS, "wmma/8", "--case", "zz")
        return
    assert "no kernel whose id starts with 'nope'" in splash.refused(*words(command, LADDERS), "--kernels", "nope")
    if command != "analyze":
        assert "whose id starts with 'zz'" in splash.refused(*words(command, LADDERS), "--case", "zz")


UNKNOWN = "Example GPU"


@pytest.fixture
def unknown_gpu(tmp_path: Path) -> Callable[..., Path]:
    """The recorded ladders, as if run on a GPU that no file describes, with numbers that the run recorded of it."""

    def made(**numbers: int) -> Path:
        path = tmp_path / "unknown.h5"
        shutil.copy(LADDERS, path)
        with h5py.File(path, "r+") as file:
            provenance = file["provenance"]
            attributes = dict(provenance["gpu"].attrs)
            for name, value in {"gpu": UNKNOWN, **numbers}.items():
                if name in provenance:
                    del provenance[name]
                provenance[name] = value
                provenance[name].attrs.update(attributes)
        seal(path)
        return path

    return made


HOPPER = {"compute_capability": 90, "multiprocessors": 132, "l2_bytes": 60 << 20}


@pytest.mark.parametrize("command", ["analyze", "diagnose", "what-if"])
def test_a_gpu_that_no_file_describes(splash: Splash, unknown_gpu: Callable[..., Path], command: str):
    path = unknown_gpu(**HOPPER)
    done = splash(*words(command, path), *(["tile_q=64"] if command == "what-if" else []))
    assert done.returncode == 0, done.stderr
    (told,) = done.stderr.splitlines()
    assert f"no file of data/machines describes {UNKNOWN}: the report tells its 132 multiprocessors of" in told
    assert "compute capability 9.0 and its ceilings; missing are a data sheet's peaks" in told
    assert UNKNOWN in done.stdout


def test_an_unknown_gpu_gets_the_verdicts_of_its_described_twin(splash: Splash, unknown_gpu: Callable[..., Path]):
    path = unknown_gpu(**HOPPER)
    for command in ("analyze", "diagnose"):
        theirs, ours = (splash.json(command, report, "--kernels", "wmma/") for report in (LADDERS, path))
        assert len(ours["kernels"]) > 20
        for kernel in (*theirs["kernels"], *ours["kernels"]):
            for step in kernel.get("try", []):
                del step["command"]  # it names the report
        assert ours == {**theirs, "gpu": UNKNOWN}


def test_what_is_missing_of_an_unknown_gpu(splash: Splash, unknown_gpu: Callable[..., Path]):
    path = unknown_gpu()
    for command in ("analyze", "diagnose", "what-if"):
        refusal = splash.refused(*words(command, path))
        assert f"describes the GPU '{UNKNOWN}', and the report does not tell its multiprocessors" in refusal
    refusal = splash.refused("diagnose", unknown_gpu(**HOPPER | {"compute_capability": 131}))
    assert "what a multiprocessor of its compute capability 13.1 holds is not known" in refusal
    refused = splash("what-if", unknown_gpu(**HOPPER), "wmma/8", "--gpu", "NVIDIA L4")
    assert refused.returncode == 2 and f"tells the peaks of {UNKNOWN}, so nothing can be scaled" in refused.stderr


def test_counters_of_another_kernel(splash: Splash, tmp_path: Path):
    table = tmp_path / "other.csv"
    table.write_text(
        '"ID","Kernel Name","Grid Size","Block Size","dram__bytes_read.sum"\n'
        '"","","","","byte"\n'
        '"0","another_kernel(int)","(7, 1, 1)","(96, 1, 1)","1,024"\n'
    )
    refusal = splash.refused("counters", LADDERS, "--ncu", table)
    assert "the counters are of another kernel: another_kernel" in refusal
    assert "7" in refusal and "96" in refusal


def root_with(folder: Path, line: str, instead: str) -> Path:
    """A project whose description of the H200 reads otherwise."""
    root = folder / "root"
    shutil.copytree(MACHINES, root / "data" / "machines")
    shutil.copytree(ROOT / "experiments" / "definitions", root / "experiments" / "definitions")
    path = root / "data" / "machines" / "h200-sxm.toml"
    text = path.read_text()
    assert line in text
    path.write_text(text.replace(line, instead, 1))
    return root


@pytest.mark.parametrize(
    ("line", "instead", "said"),
    [
        ("warps = 64", "", "warps"),
        ("warps = 64", "warps = 0", "warps"),
        ("registers = 65536", "registers = -1", "registers"),
        ("shared_bytes = 233472", 'shared_bytes = "much"', "shared_bytes"),
        ("value = 4.8e12", "value = 0", "value"),
        ("value = 4.8e12", "value = inf", "value"),
        ('ceiling = "dram"', 'ceiling = "tape"', "tape"),
        ("bytes = 62914560", "bytes = -5", "bytes"),
    ],
)
@pytest.mark.parametrize("command", ["analyze", "diagnose", "what-if"])
def test_a_gpu_file_with_missing_or_impossible_values(
    splash: Splash, tmp_path: Path, command: str, line: str, instead: str, said: str
):
    root = root_with(tmp_path, line, instead)
    refusal = splash.refused(*words(command, LADDERS), env={"SPLASH_ROOT": str(root)})
    assert "h200-sxm.toml" in refusal and said in refusal


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_report(splash: Splash, tmp_path: Path, command: str):
    text = tmp_path / "notes.h5"
    text.write_text("not HDF5")
    assert "notes.h5" in splash.refused(*words(command, text))
    assert "no such file" in splash.refused(*words(command, tmp_path / "nowhere.h5"))
    assert "gpu-attention" in splash.refused(*words(command, ROOT / "data" / "reports" / "cpu-speed.h5"))
    assert splash.refused(*words(command, ROOT / "data" / "reports" / "ceilings-h200.h5"))


IMPOSSIBLE = [
    ("warps = 64\n", "", "[multiprocessors] lacks 'warps'"),
    ("l1_bytes = 262144", "l1_bytes = 0", "'l1_bytes' must be a whole number from 1"),
    ("l1_bytes = 262144", "l1_bytes = 131072", "'l1_bytes' is 131072, less than 'shared_bytes', which it includes"),
    ("count = 132", "count = -132", "'count' must be a whole number from 1"),
    ("partitions = 2", "partitions = 4", "'partitions' must be a whole number from 1 to 2"),
    ("value = 4.8e12", "value = 4.8", "no GPU has such a peak"),
    ('units = "bytes/s"', 'units = "GB/s"', "'units' cannot be \"GB/s\""),
    ('source = "NVIDIA H200 Tensor', 'sourced = "NVIDIA H200 Tensor', "[[peak]] lacks 'source'"),
    ('devices = ["NVIDIA H200"]', 'devices = ["NVIDIA H201"]', "no file of data/machines describes the GPU 'NVIDIA H200'"),
]


@pytest.mark.parametrize(("old", "new", "sentence"), IMPOSSIBLE)
def test_what_a_gpu_file_is_refused_for(splash: Splash, tmp_path: Path, old: str, new: str, sentence: str):
    refusal = splash.refused("analyze", LADDERS, env={"SPLASH_ROOT": str(root_with(tmp_path, old, new))})
    assert sentence in refusal
