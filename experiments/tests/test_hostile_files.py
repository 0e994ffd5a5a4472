"""Files that others made: they print nothing of this machine, crash nothing, and obey nobody's terminal."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import resource
from pathlib import Path

import h5py
import pytest

from conftest import ROOT, Splash
from hostile_files import HOSTILE, SECRET, make_hostile
from splash_laboratory import ReportError, open_report
from splash_laboratory.page.cli import main as page
from splash_attention.files.seal import Seal, check_seal, seal, unsealed

CEILINGS = ROOT / "data" / "reports" / "ceilings-h200.h5"
LADDERS = ROOT / "data" / "reports" / "ladders-h200.h5"
MUTATIONS = int(os.environ.get("SPLASH_TEST_MUTATIONS", "60"))
ESCAPE = "\x1b]0;owned\x07\x1b[31m\x9b31m\u202eevil\r"


@pytest.mark.parametrize("sealed", [False, True])
@pytest.mark.parametrize("name", HOSTILE)
def test_what_reaches_beyond_the_file_is_refused_in_both_readers(
    splash: Splash, tmp_path: Path, capfd: pytest.CaptureFixture, name: str, sealed: bool
) -> None:
    path = make_hostile(name, CEILINGS, tmp_path)
    if sealed:  # anyone can compute the checksum
        seal(path)
    said = f"{path}: {HOSTILE[name][1]}" if HOSTILE[name][1] else "more than a file of"
    refusal = splash.refused("show", path, "--results", env={"HDF5_PLUGIN_PATH": str(tmp_path)})
    assert said in refusal
    with pytest.raises(ReportError) as refused:
        open_report(path)
    assert f"splash: {refused.value}" == refusal
    assert page([str(path), "--out", str(tmp_path / "page.html")]) == 2
    assert not (tmp_path / "page.html").exists()
    assert SECRET not in "".join(capfd.readouterr()) + refusal


def test_captures_are_refused_likewise(splash: Splash, tmp_path: Path) -> None:
    captures = make_hostile("external link", CEILINGS, tmp_path)
    definition = splash.write("w.toml", 'title = "w"\nkind = "workload"\n[fixed]\ninput = "minilm"\n')
    refusal = splash.refused("run", definition, env={"SPLASH_CAPTURES": str(captures)})
    assert "is a link to another file" in refusal


def mutated(whole: bytes, chance: random.Random) -> bytes:
    """A few bytes changed; half of the time among the first, where HDF5 keeps its heads."""
    content = bytearray(whole)
    for _ in range(chance.choice((1, 1, 2, 8))):
        at = chance.randrange(len(content) if chance.random() < 0.5 else 8192)
        content[at] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return bytes(content)


def test_no_mutation_crashes_or_hangs_the_program(splash: Splash, tmp_path: Path) -> None:
    """Sealed again, so that the checksum does not stand in front of HDF5. SPLASH_TEST_MUTATIONS: how many."""
    chance, path, outcomes = random.Random(7), tmp_path / "mutated.h5", {}
    whole = unsealed(CEILINGS.read_bytes())
    for number in range(MUTATIONS):
        path.write_bytes(mutated(whole, chance))
        if number % 2:
            seal(path)
        done = splash("show", path)
        assert done.returncode in (0, 2), (number, done.returncode, done.stderr)
        assert len(done.stderr.splitlines()) == (1 if done.returncode else 0), (number, done.stderr)
        outcomes[done.returncode] = outcomes.get(done.returncode, 0) + 1
    assert outcomes.get(2, 0) > 0, "no mutation was noticed"


def test_memory_is_bounded_by_the_file(splash: Splash, tmp_path: Path) -> None:
    path = make_hostile("huge", CEILINGS, tmp_path)
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    splash.refused("show", path)
    assert max(0, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss - before) < 200_000  # kB


def test_sealing_a_changed_report(splash: Splash, tmp_path: Path) -> None:
    path = tmp_path / "edited.h5"
    path.write_bytes(CEILINGS.read_bytes())
    with h5py.File(path, "r+") as file:
        file.attrs["title"] = "edited"
    assert check_seal(path.read_bytes()) is Seal.ABSENT
    assert splash("show", path).returncode == 0, "a report without its line is read, in a process of its own first"
    other = tmp_path / "sealed.h5"
    assert splash("seal", path, "--out", other).returncode == 0
    assert check_seal(path.read_bytes()) is Seal.ABSENT
    assert check_seal(other.read_bytes()) is Seal.INTACT
    assert other.read_bytes().startswith(path.read_bytes())
    assert splash("seal", path).returncode == 0
    assert path.read_bytes() == other.read_bytes()
    assert splash("seal", path).returncode == 0
    assert path.read_bytes() == other.read_bytes(), "a seal is not sealed again"
    assert splash.json("show", path)["title"] == open_report(path).title == "edited"
    whole = path.read_bytes()
    path.write_bytes(whole[:99] + bytes([whole[99] ^ 1]) + whole[100:])
    refusal = splash.refused("seal", path)
    assert "is damaged, its checksum does not match its content" in refusal
    with pytest.raises(ReportError) as refused:
        open_report(path)
    assert f"splash: {refused.value}" == refusal
    assert "no such file" in splash.refused("seal", tmp_path / "nowhere.h5")


@pytest.fixture
def talking(tmp_path: Path) -> Path:
    """The recorded ladders, with texts that speak to terminals and spreadsheets."""
    path = tmp_path / "talking.h5"
    path.write_bytes(LADDERS.read_bytes())
    with h5py.File(path, "r+") as file:
        for name in ("title", "run_id", "status"):
            file.attrs[name] = f"{ESCAPE}\nstatus complete"
        results = file["results"]
        results["time_median"].attrs["long_name"] = ESCAPE
        for name in ("implementation", "warning", "experiment", "finding", "idea", "diagnosis", "verdict"):
            values = results[name].asstr()[:]
            values[:] = [f"{value}{ESCAPE}" for value in values]
            results[name][:] = values
        kernels = results["kernel"].asstr()[:]
        kernels[:] = [f"=HYPERLINK({value})\t{ESCAPE}" for value in kernels]
        results["kernel"][:] = kernels
        for group, names in {"claims": ("claim", "reason", "theirs"), "ceilings": ("name", "method")}.items():
            for name in names:
                values = file[group][name].asstr()[:]
                values[:] = [f"{value}{ESCAPE}\n" for value in values]
                file[group][name][:] = values
        for name in ("commit", "argv", "host", "gpu", "experiment_toml"):
            file["provenance"][name][()] = ESCAPE
    return path


@pytest.mark.parametrize(
    "words",
    [
        ["show", "{}"],
        ["show", "{}", "--claims"],
        ["show", "{}", "--results"],
        ["show", "{}", "--provenance"],
        ["show", "{}", "--json"],
        ["compare", "{}", "{}"],
        ["compare", "{}", str(LADDERS)],
        ["analyze", "{}"],
        ["diagnose", "{}"],
        ["counters", "{}"],
        ["what-if", "{}", "wmma/8"],
        ["analyze", "{}", "--kernels", "nope"],
    ],
    ids=lambda words: " ".join(words[:1] + words[2:]).replace("/", "-")[-40:],
)
def test_no_command_lets_a_report_speak_to_the_terminal(splash: Splash, talking: Path, words: list[str]) -> None:
    done = splash(*[word.format(talking) for word in words])
    for stream in (done.stdout, done.stderr):
        heard = {letter for letter in stream if ord(letter) < 32 or 0x7F <= ord(letter) <= 0x9F or letter == "\u202e"}
        assert heard <= {"\n", "\t"}, (heard, done.stdout[:300])
    if words[-1] == "--json":
        assert json.loads(done.stdout)["title"] == f"{ESCAPE}\nstatus complete", "JSON is exact"
    elif done.returncode != 2:
        assert "owned" in done.stdout, "what is told is still told"
    if words == ["show", "{}"]:
        assert not any(line.startswith("status complete") for line in done.stdout.splitlines())


def test_no_cell_of_the_results_is_a_formula(splash: Splash, talking: Path) -> None:
    done = splash("show", talking, "--results")
    rows = list(csv.DictReader(io.StringIO(done.stdout, newline=""), dialect="excel-tab"))
    recorded = open_report(LADDERS).results
    assert len(rows) == recorded.sizes["case"]
    assert all(None not in row and None not in row.values() for row in rows), "a cell has split its row"
    assert all(row["kernel"].startswith("'=HYPERLINK(") for row in rows)
    for row, median in zip(rows, recorded["time_median"].values.tolist(), strict=True):
        assert (float(row["time_median"]) if row["time_median"] else None) == (median if median == median else None)
