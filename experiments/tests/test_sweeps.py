"""Sweeps from the command line: axes by --set, dry runs, and reports of one experiment under several names."""

from __future__ import annotations

import json

import pytest

from conftest import Splash

EXPECT = """
[[expect]]
check = "at alpha 1.5"
below = 1e-3
column = "residual_max"
where = { alpha = 1.5 }
statistic = "max"

[[expect]]
check = "everywhere"
below = 1e-3
column = "residual_max"
statistic = "max"
"""


def values(splash: Splash, report: str, *names: str) -> list[list]:
    return [[case[name] for name in names] for case in splash.json("show", report, "--results")["cases"]]


def test_set_makes_an_axis(splash: Splash):
    splash.tiny(seeds=[1])
    done = splash("run", "tiny.toml", "--out", "r.h5", "--set", "alpha=1.2,1.3", "--set", 'solver=["newton", "bisection"]')
    assert done.returncode == 0, done.stderr
    expected = [[alpha, solver] for alpha in (1.2, 1.3) for solver in ("newton", "bisection")]
    assert values(splash, "r.h5", "alpha", "solver") == expected
    assert 'set: alpha=1.2,1.3 solver=["newton","bisection"]' in splash("show", "r.h5", "--provenance").stdout


def test_what_set_refuses(splash: Splash):
    splash.tiny()
    run = ("run", "tiny.toml", "--set")
    assert "alpha=1.2,1.3,1.5" in splash.refused(*run, "alpha=1.2,1.3", "--set", "alpha=1.5")
    assert "needs a value" in splash.refused(*run, "alpha=1.2,")
    assert "TOML" in splash.refused(*run, "alpha=[1.2")
    assert "same parameters" in splash.refused(*run, "alpha=1.2,1.2")
    assert "several texts are a list" in splash.refused(*run, "solver=newton,bisection")
    assert "did you mean 'alpha'?" in splash.refused(*run, "alpa=1.5")


def test_dry_run(splash: Splash):
    splash.tiny(seeds=[1])
    run = ("run", "tiny.toml", "--out", "r.h5", "--set", "alpha=1.2,1.3", "--dry-run")
    done = splash(*run, "--shard", "2/3")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines() == [
        "       1 tiny alpha=1.2 solver=newton seed=1",
        "       4 tiny alpha=1.3 solver=newton seed=1",
        "r.h5: 2 cases of 6, shard 2/3, 0 recorded, 2 to run",
    ]
    assert [p.name for p in splash.folder.iterdir()] == ["tiny.toml"]
    assert splash(*run[:-1]).returncode == 0
    assert splash(*run, "--resume").stdout.endswith("(recorded)\nr.h5: 6 cases, 6 recorded, 0 to run\n")
    shown = splash.json(*run, "--resume")
    assert shown["of_all_shards"] == 6 and all(case["recorded"] for case in shown["cases"])
    assert [case["case_id"] for case in shown["cases"]] == [i for (i,) in values(splash, "r.h5", "case_id")]


@pytest.mark.parametrize("folder, cases", [("papers", ""), ("many", "116 cases, 0 recorded")])
def test_a_dry_run_needs_no_gpu(splash: Splash, folder: str, cases: str):
    done = splash("run", folder, "--dry-run", env={"CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stderr
    assert f"out/{folder}.h5: {cases}" in done.stdout.splitlines()[-1]
    assert list(splash.folder.iterdir()) == []


def test_what_set_excludes_is_not_missing(splash: Splash):
    splash.tiny(seeds=[1], more=EXPECT)
    checks = lambda report: [claim["id"] for claim in splash.json("show", report, "--claims")["claims"]]  # noqa: E731
    for i in (1, 2):
        done = splash("run", "tiny.toml", "--out", f"{i}.h5", "--shard", f"{i}/2", "--set", "alpha=1.2,1.3")
        assert done.returncode == 0 and "1.5" not in done.stdout
        assert checks(f"{i}.h5") == ["tiny/everywhere"]
    assert splash("merge", "1.h5", "2.h5", "-o", "all.h5").returncode == 0
    assert checks("all.h5") == ["tiny/everywhere"]
    assert splash("judge", "all.h5", "--out", "judged.h5").returncode == 0
    assert checks("judged.h5") == ["tiny/everywhere"]
    splash("run", "tiny.toml", "--out", "both.h5", "--set", "alpha=1.2,1.5")
    assert checks("both.h5") == ["tiny/at alpha 1.5", "tiny/everywhere"]


def test_the_name_of_the_file_does_not_matter(splash: Splash):
    splash.tiny("one.toml", seeds=[1])
    splash.write("two.toml", "# the same\n" + (splash.folder / "one.toml").read_text().replace("[1.25, 1.5, 2.0]", "[1.75]"))
    same = ("--set", "alpha=1.25,1.5,2")
    assert splash("run", "one.toml", "--out", "whole.h5").returncode == 0
    assert splash("run", "one.toml", "--out", "1.h5", "--shard", "1/2").returncode == 0
    assert splash("run", "two.toml", "--out", "2.h5", "--shard", "2/2", *same).returncode == 0
    merged = splash("merge", "1.h5", "2.h5", "-o", "all.h5")
    assert merged.returncode == 0 and "9 cases of 2 reports, complete" in merged.stdout, merged.stderr
    columns = ("experiment", "case_id", "case_index", "alpha", "solver", "residual_max")
    assert values(splash, "all.h5", *columns) == values(splash, "whole.h5", *columns)

    splash("run", "two.toml", "--out", "two.h5", *same)
    compared = splash("compare", "whole.h5", "two.h5", "--json")
    assert compared.returncode == 0 and json.loads(compared.stdout)["matched_cases"] == 9
    other = splash("run", "two.toml", "--out", "other.h5")
    assert other.returncode == 0
    assert "experiments differ" in splash.refused("merge", "1.h5", "other.h5", "-o", "no.h5")
