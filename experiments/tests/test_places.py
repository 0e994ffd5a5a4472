"""Places to write to are looked at before the work; what is not a file is never waited for, replaced or written to."""

from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path

import pytest

from conftest import ROOT, Splash

LADDERS = ROOT / "data" / "reports" / "ladders-h200.h5"
SLOW = {"n": 100000, "seeds": list(range(1, 9))}  # a run of it takes seconds
QUICK = 1.0  # an error before the work comes sooner than a case of SLOW


def outputs(splash: Splash) -> dict[str, list[object]]:
    """Every command that writes, without what it is to write to."""
    splash.tiny("slow.toml", **SLOW)
    splash.tiny()
    assert splash("run", "tiny.toml", "--out", "r.h5").returncode == 0
    return {
        "run": ["run", "slow.toml", "--out"],
        "merge": ["merge", "r.h5", "--out"],
        "recount": ["recount", LADDERS, "--out"],
    }


def test_places_that_take_no_file_are_refused_before_the_work(splash: Splash):
    commands = outputs(splash)
    os.mkfifo(splash.folder / "pipe")
    (splash.folder / "folder").mkdir()
    (splash.folder / "nowhere").symlink_to("no/such/file")
    before = {path: path.lstat().st_mode for path in splash.folder.iterdir()}
    for place in ("/dev/null", "pipe", "folder", "nowhere", "r.h5/x.h5", "/proc/x.h5"):
        for command, words in commands.items():
            began = time.monotonic()
            sentence = splash.refused(*words, place)
            assert time.monotonic() - began < 20 * QUICK, command
            assert place.split("/x.h5")[0] in sentence, (command, sentence)
            assert not (splash.folder / f"{place}.journal").exists()
    assert before == {path: path.lstat().st_mode for path in splash.folder.iterdir()}
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


@pytest.mark.parametrize("name", ["report.h5", "claims.md", "report.html", "plots"])
def test_reproduce_looks_at_each_of_its_places_first(splash: Splash, name: str):
    (splash.folder / "out").mkdir()
    os.mkfifo(splash.folder / "out" / name)
    assert name in splash.refused("reproduce", "--out", "out")
    assert stat.S_ISFIFO((splash.folder / "out" / name).stat().st_mode)
    assert not (splash.folder / "out" / "report.h5.journal").exists()


def test_a_journal_that_is_no_file(splash: Splash):
    splash.tiny()
    os.mkfifo(splash.folder / "r.h5.journal")
    for more in ([], ["--resume"], ["--restart"]):
        assert "r.h5.journal: it is not a regular file" in splash.refused("run", "tiny.toml", "--out", "r.h5", *more)


def test_inputs_that_are_no_files_are_not_waited_for(splash: Splash):
    os.mkfifo(splash.folder / "pipe")
    os.mkfifo(splash.folder / "pipe.toml")
    splash.tiny()
    assert "pipe.toml: it is not a regular file" in splash.refused("run", "pipe.toml", "--out", "r.h5")
    assert "not a regular file" in splash.refused("run", "/dev/zero", "--out", "r.h5")
    for command in ("show", "analyze", "diagnose", "counters"):
        assert "pipe" in splash.refused(command, "pipe")
    assert "pipe" in splash.refused("compare", LADDERS, "pipe")
    assert "pipe" in splash.refused("counters", LADDERS, "--ncu", "pipe")
    words = ["run", "accuracy-captures", "--quick", "--out", "r.h5"]
    names = {entry["name"] for entry in splash.json("list", "experiments")}
    captured = next(name for name in ("captured-sparsity", "attention-map") if name in names)
    words[1] = captured
    assert "pipe" in splash.refused(*words, env={"SPLASH_CAPTURES": str(splash.folder / "pipe")})


def test_every_definition_is_listed(splash: Splash):
    made = {file.stem for file in (ROOT / "experiments").rglob("*.toml")}
    assert made and made <= {entry["name"] for entry in splash.json("list", "experiments")}


@pytest.mark.parametrize(
    "key",
    [
        ".".join("a" * 200000),
        ".".join(["'a b'"] * 100000),
        " . ".join("a" * 17),
        "fixed = {" + ".".join("a" * 20000),
        'fixed = {x = """ " # \\""" """"", ' + ".".join("a" * 20000),  # after what looks like a comment
        "fixed = {x = \"'\", y = '\"', " + ".".join("a" * 20000),
    ],
)
def test_a_key_of_very_many_parts(splash: Splash, key: str):
    for text in (f"{key} = 1\n", f"[{key}]\n", f"[[{key}]]\n"):
        splash.write("deep.toml", "title = 'deep'\n" + text)
        assert "deep.toml:2: a key of more than 16 dotted parts" in splash.refused("run", "deep.toml")


def test_a_definition_of_very_many_bytes(splash: Splash):
    splash.tiny("large.toml", more="# more and more\n" * 70000)
    assert "large.toml: it holds more than the allowed" in splash.refused("run", "large.toml")


def test_nested_values(splash: Splash):
    for text in ("[" * 100000, "{a=" * 100000, "[[" * 50000):
        splash.write("deep.toml", f"title = 'deep'\nx = {text}\n")
        assert "deep.toml" in splash.refused("run", "deep.toml")


def test_many_dots_that_are_no_key(splash: Splash):
    words = "Many. dots. " * 30 + "1.5, " * 30 + "a.b/" * 30
    more = f"[quick.axes]\nalpha = [{', '.join(['1.5'] * 50)}]\n# {words}\n"
    path = splash.tiny(more=more)
    path.write_text(f'description = """\n{words}\n"{words}\n# """\n' + path.read_text())
    assert splash("run", "tiny.toml", "--out", "r.h5").returncode == 0


def test_a_run_beside_a_live_one_is_told_so(splash: Splash):
    splash.tiny(**SLOW)
    process = splash.start("run", "tiny.toml", "--out", "r.h5")
    journal = splash.folder / "r.h5.journal"
    while not journal.exists() or journal.read_bytes().count(b"\n") < 2:
        assert process.poll() is None
        time.sleep(0.002)
    process.send_signal(signal.SIGSTOP)  # so that it stays alive while the test asks about it
    for more in ([], ["--resume"], ["--restart"]):
        sentence = splash.refused("run", "tiny.toml", "--out", "r.h5", *more)
        assert "another run is writing this report" in sentence and "interrupted" not in sentence
    process.kill()
    process.communicate()
    assert "left by an interrupted run" in splash.refused("run", "tiny.toml", "--out", "r.h5")


def test_nothing_to_resume_leaves_nothing(splash: Splash):
    splash.tiny()
    for _ in range(2):
        assert splash("run", "tiny.toml", "--out", "r.h5", "--resume").returncode == 0
    assert {path.name for path in splash.folder.iterdir()} == {"tiny.toml", "r.h5"}


@pytest.mark.parametrize("mask", [0o022, 0o002, 0o077])
def test_reports_have_the_permissions_of_the_umask(splash: Splash, mask: int):
    splash.tiny(n=20000)
    assert splash("run", "tiny.toml", "--out", "deep/r.h5", umask=mask).returncode == 0
    assert stat.S_IMODE((splash.folder / "deep" / "r.h5").stat().st_mode) == 0o666 & ~mask
    assert stat.S_IMODE((splash.folder / "deep").stat().st_mode) == 0o777 & ~mask


def test_a_temporary_file_of_somebody_else_is_left_alone(splash: Splash, tmp_path: Path):
    """Links under the names that a process might take: the report must not be written through one."""
    splash.tiny()
    target = tmp_path / "precious"
    target.write_text("precious")
    ours = os.getpid()
    for pid in range(ours, ours + 3000):
        (splash.folder / f".r.h5.tmp.{pid}.0").symlink_to(target)
    assert splash("run", "tiny.toml", "--out", "r.h5").returncode == 0
    assert target.read_text() == "precious"
    assert not (splash.folder / "r.h5").is_symlink()
