"""Runs that are killed, interrupted and split give the report of an undisturbed run."""

from __future__ import annotations

import random
import signal
import time

from conftest import Splash, reproducible

MANY = list(range(1, 9))  # 72 cases


def test_killed_at_random_moments(splash: Splash):
    splash.tiny(n=20000, seeds=MANY)
    began = time.monotonic()
    assert splash("run", "tiny.toml", "--out", "whole.h5").returncode == 0
    duration = time.monotonic() - began
    expected = splash.json("show", "whole.h5")

    chance = random.Random(5)
    kills = 0
    for round_ in range(4):
        out = f"r{round_}.h5"
        for _ in range(30):
            process = splash.start("run", "tiny.toml", "--out", out, "--resume")
            time.sleep(chance.uniform(0, 0.6 * duration))
            process.send_signal(signal.SIGKILL)
            process.communicate()
            if process.returncode == 0:
                break
            kills += 1
            # The file is whole or absent, never partial.
            if (splash.folder / out).exists():
                assert splash("show", out).returncode == 0
        assert splash("run", "tiny.toml", "--out", out, "--resume").returncode == 0
        found = splash.json("show", out)
        assert reproducible(found) == reproducible(expected)
        assert found["columns"] == expected["columns"]
        assert found["title"] == expected["title"] and found["status"] == "complete"
        assert not (splash.folder / (out + ".journal")).exists()
    assert kills > 0


def test_interrupted(splash: Splash):
    splash.tiny(n=100000, seeds=MANY)
    for number in (signal.SIGINT, signal.SIGTERM):
        journal = splash.folder / "r.h5.journal"
        journal.unlink(missing_ok=True)
        process = splash.start("run", "tiny.toml", "--out", "r.h5")
        deadline = time.monotonic() + 30
        while not journal.exists() or journal.read_bytes().count(b"\n") < 3:
            assert time.monotonic() < deadline and process.poll() is None
            time.sleep(0.002)
        process.send_signal(number)
        _, errors = process.communicate(timeout=30)
        assert process.returncode == 130
        assert "splash run tiny.toml --out r.h5 --resume" in errors
        assert not (splash.folder / "r.h5").exists() and journal.exists()
    assert "--resume" in splash.refused("run", "tiny.toml", "--out", "r.h5")
    done = splash("run", "tiny.toml", "--out", "r.h5", "--resume")
    assert done.returncode == 0 and "resuming run" in done.stderr
    assert "nothing to resume" in splash("run", "tiny.toml", "--out", "r.h5", "--resume").stderr


def killed_in_the_middle(splash: Splash) -> None:
    process = splash.start("run", "tiny.toml", "--out", "r.h5")
    journal = splash.folder / "r.h5.journal"
    while not journal.exists() or journal.read_bytes().count(b"\n") < 5:
        assert process.poll() is None
        time.sleep(0.002)
    process.kill()
    process.communicate()


def test_what_is_done_so_far_makes_a_report(splash: Splash):
    splash.tiny(n=20000, seeds=MANY)
    assert "no case is done" in splash.refused("run", "tiny.toml", "--out", "r.h5", "--resume", "--so-far")
    assert "--so-far takes --resume" in splash.refused("run", "tiny.toml", "--out", "r.h5", "--so-far")
    killed_in_the_middle(splash)
    assert splash("run", "tiny.toml", "--out", "r.h5", "--resume", "--so-far").returncode == 0
    some = splash.json("show", "r.h5")
    assert some["status"] == "partial" and 4 <= len(some["cases"]) < 72 and (splash.folder / "r.h5.journal").exists()
    done = splash("run", "tiny.toml", "--out", "r.h5", "--resume")
    assert done.returncode == 0 and "resuming run" in done.stderr
    whole = splash.json("show", "r.h5")
    assert whole["status"] == "complete" and len(whole["cases"]) == 72 and not (splash.folder / "r.h5.journal").exists()
    assert splash("run", "tiny.toml", "--out", "again.h5").returncode == 0
    assert reproducible(whole) == reproducible(splash.json("show", "again.h5"))


def test_resume_says_why_a_case_is_run_again(splash: Splash):
    splash.tiny(n=20000, seeds=MANY)
    killed_in_the_middle(splash)
    done = splash("run", "tiny.toml", "--out", "r.h5", "--resume", "--set", "n=64")
    assert "because its parameters are new" in done.stderr


def test_one_run_at_a_time(splash: Splash):
    splash.tiny(n=100000, seeds=MANY)
    process = splash.start("run", "tiny.toml", "--out", "r.h5")
    journal = splash.folder / "r.h5.journal"
    while not journal.exists() or not journal.stat().st_size:
        time.sleep(0.002)
    process.send_signal(signal.SIGSTOP)  # it holds its lock and cannot finish before the test asks about it
    assert "another run" in splash.refused("run", "tiny.toml", "--out", "r.h5", "--resume")
    process.kill()
    process.communicate()


def test_shards_merge_to_the_whole(splash: Splash):
    check = '[[expect]]\ncheck = "sane"\nbelow = 1e-3\ncolumn = "residual_max"\nstatistic = "max"\n'
    splash.tiny(more=check)
    assert splash("run", "tiny.toml", "--out", "whole.h5").returncode == 0
    whole = splash.json("show", "whole.h5")
    for i in (1, 2, 3):
        splash("run", "tiny.toml", "--shard", f"{i}/3")
    shards = [f"out/tiny.{i}-of-3.h5" for i in (1, 2, 3)]
    assert splash.json("show", shards[0])["status"] == "partial"

    done = splash("merge", *reversed(shards), "-o", "deep/all.h5")
    assert done.returncode == 0, done.stderr
    merged = splash.json("show", "deep/all.h5")
    assert merged["status"] == "complete"
    assert reproducible(merged) == reproducible(whole)
    assert [c["verdict"] for c in merged["claims"]] == [c["verdict"] for c in whole["claims"]] == ["reproduced"]
    assert merged["claims"][0]["ours"] == whole["claims"][0]["ours"]
    assert splash("compare", "whole.h5", "deep/all.h5").returncode == 0

    partial = splash("merge", *shards[:2], "-o", "some.h5")
    assert partial.returncode == 0 and "6 cases are still missing" in partial.stderr
    assert splash.json("show", "some.h5")["status"] == "partial"
    splash.tiny("other.toml", seeds=[3])
    splash("run", "other.toml", "--out", "other.h5")
    splash.refused("merge", shards[0], "other.h5", "-o", "no.h5")
