"""What the lab's commands refuse, one clear sentence each: a report of another schema, a GPU file that cannot be, nothing chosen."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import pytest

from conftest import ROOT, Splash

LADDERS = ROOT / "data" / "reports" / "ladders-h200.h5"
COMMANDS = {
    "analyze": [],
    "diagnose": [],
    "counters": [],
    "what-if": ["wmma/8"],
    "recount": ["--out", "again.h5"],
    "compare": [str(LADDERS)],
}


@pytest.fixture
def other_schema(splash: Splash) -> Path:
    path = splash.folder / "other.h5"
    shutil.copy(LADDERS, path)
    with h5py.File(path, "r+") as report:
        report.attrs.modify("schema_version", 7)
    # What HDF5 wrote is no longer what the seal behind it says: drop it, as a program that edits a report does.
    content = path.read_bytes()
    seal = content.rfind(b"splash-report fnv1a64")
    path.write_bytes(content[:seal] if seal > 0 else content)
    return path


@pytest.mark.parametrize("command", COMMANDS)
def test_a_report_of_another_schema(splash: Splash, other_schema: Path, command: str):
    refusal = splash.refused(command, other_schema, *COMMANDS[command])
    assert "is a report of schema 7, this program reads schema 1" in refusal


@pytest.fixture
def root_with(splash: Splash):
    """A project whose description of the H200 reads otherwise."""

    def make(old: str, new: str) -> dict[str, str]:
        root = splash.folder / "root"
        shutil.copytree(ROOT / "data" / "machines", root / "data" / "machines")
        path = root / "data" / "machines" / "h200-sxm.toml"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new, 1))
        return {"SPLASH_ROOT": str(root)}

    return make


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
def test_a_gpu_file_with_missing_or_impossible_values(splash: Splash, root_with, old: str, new: str, sentence: str):
    refusal = splash.refused("analyze", LADDERS, env=root_with(old, new))
    assert sentence in refusal


@pytest.mark.parametrize("command", ["analyze", "diagnose", "counters"])
def test_an_empty_selection(splash: Splash, command: str):
    assert "no kernel whose id starts with 'nope'" in splash.refused(command, LADDERS, "--kernels", "nope")


def test_counters_of_another_kernel(splash: Splash):
    table = ROOT / "analysis" / "tests" / "data" / "ncu-raw.csv"
    refusal = splash.refused("counters", LADDERS, "--kernels", "wmma/10", "--ncu", table)
    assert "the counters are of another kernel" in refusal
