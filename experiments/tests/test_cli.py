"""The manners of the command line: help, exit codes, one sentence for bad input, data on stdout."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import subprocess

import pytest

from conftest import ROOT, Splash

COMMANDS = ["list", "run", "sweep", "recount", "reproduce", "merge", "show", "compare", "analyze", "diagnose"]
COMMANDS += ["bench", "table", "paper", "plot", "page", "counters", "ceilings", "entmax", "import", "judge", "kascade", "doctor", "migrate", "seal", "tune", "new", "test"]


def test_help_names_every_subcommand(splash: Splash):
    done = splash("--help")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("Examples:\n")
    listed = re.findall(r"^  (\w+) {3,}\S", done.stdout.split("Subcommands:")[1], re.M)
    assert sorted(listed) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_every_subcommand_opens_with_examples(splash: Splash, command: str):
    done = splash(command, "--help")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.startswith("Examples:\n  ")
    assert f"splash {command}" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 130
    assert splash("help", command).stdout == done.stdout


@pytest.mark.parametrize("command", COMMANDS[:-1])  # the words after `test` go to ctest
def test_unknown_option(splash: Splash, command: str):
    sentence = splash.refused(command, "--jsn")
    assert "--jsn" in sentence


def test_no_words_and_unknown_words(splash: Splash):
    assert splash().returncode == 2
    assert "did you mean 'reproduce'?" in splash.refused("reprodcue")
    assert "did you mean 'run'?" in splash.refused("rnu")
    assert "allowed: list, run" in splash.refused("xyzzyx")
    assert "did you mean --json" not in splash.refused("list", "experimnts")
    assert "did you mean 'experiments'?" in splash.refused("list", "experimnts")
    assert "./splash test" in splash.refused("test")
    assert splash("--version").stdout.startswith("splash ")


# --- entmax ---


def entmax(scores: list[float], alpha: float) -> tuple[float, list[float]]:
    """By bisection, in Python alone."""
    z = [(alpha - 1) * s for s in scores]
    low, high = max(z) - 1, max(z)
    power = 1 / (alpha - 1)

    def probabilities(tau: float) -> list[float]:
        return [max(x - tau, 0) ** power for x in z]

    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(probabilities(middle)) > 1 else (low, middle)
    return low, probabilities(low)


@pytest.mark.parametrize("alpha", [1.05, 1.25, 1.5, 2, 2.7, 4])
@pytest.mark.parametrize("solver", ["bisection", "sorting", "newton", "halley_bisection", "histogram"])
def test_entmax_numbers(splash: Splash, alpha: float, solver: str):
    scores = [1.0, 2.0, 3.0, -0.5, 2.9]
    takes = {"sorting": alpha in (1.5, 2), "newton": alpha <= 2, "histogram": alpha <= 2}.get(solver, True)
    if not takes:
        assert solver in splash.refused("entmax", "--alpha", alpha, "--solver", solver, *scores)
        return
    result = splash.json("entmax", "--alpha", alpha, "--solver", solver, *scores)
    tau, expected = entmax(scores, alpha)
    assert result["tau"] == pytest.approx(tau, abs=1e-12)
    assert result["probabilities"] == pytest.approx(expected, abs=1e-10)
    assert result["support"] == [i for i, p in enumerate(result["probabilities"]) if p > 0]
    assert result["residual"] < 1e-10
    assert isinstance(result["iterations"], int)


@pytest.mark.parametrize("alpha", [1.000001, 1.001, 1.5, 2, 3, 10, 64])
@pytest.mark.parametrize("scores", [[0.0, 0, 1], [2, 1.9, 1.5], [0.1] + 2000 * [0.0], [1e308, -1e308], [5e-324, 0]])
def test_entmax_adds_up_to_1_at_any_alpha(splash: Splash, alpha: float, scores: list[float]):
    result = splash.json("entmax", "--alpha", alpha, input=" ".join(map(str, scores)))
    p = result["probabilities"]
    assert abs(math.fsum(p) - 1) <= 1e-12 and result["residual"] <= 1e-12
    a, positive = alpha - 1, [i for i, x in enumerate(p) if x > 0]
    for i in positive[:2] + positive[-1:]:  # two keys of a support: (p_i^a - p_0^a) / a = s_i - s_0
        first = positive[0]
        gap = (math.expm1(a * math.log(p[i])) - math.expm1(a * math.log(p[first]))) / a
        assert gap == pytest.approx(scores[i] - scores[first], rel=1e-9, abs=1e-9)


def test_entmax_takes_negative_scores_masked_keys_and_stdin(splash: Splash):
    result = splash.json("entmax", "-1", "-2.5e-1", "-inf", "--alpha", "2")
    assert result["support"] == [0, 1]
    assert result["probabilities"] == pytest.approx([0.125, 0.875, 0])
    assert splash.json("entmax", "--alpha", "2", input="-1 -0.25\n-inf") == result
    masked = splash.json("entmax", "-inf", "-inf")
    assert masked["support"] == [] and masked["probabilities"] == [0, 0]
    text = splash("entmax", "--alpha", "1.5", "1.0", "2.0", "3.0").stdout
    assert "support 2 of 3" in text and "tau " in text


def test_entmax_refuses(splash: Splash):
    assert "NaN" in splash.refused("entmax", "1", "nan")
    assert "+inf" in splash.refused("entmax", "1", "inf")
    assert "'abc' is not a number" in splash.refused("entmax", "1", "abc")
    assert "no scores" in splash.refused("entmax")
    assert "does not fit" in splash.refused("entmax", "1e999")
    for alpha in ("1", "1.0000009", "64.01", "1e308", "0.5", "-2", "nan", "inf", "x"):
        assert "--alpha" in splash.refused("entmax", "--alpha", alpha, "1", "2")
    assert "newton" in splash.refused("entmax", "--solver", "newtn", "1", "2")


# --- list, doctor ---


@pytest.mark.parametrize("what", ["experiments", "kinds", "claims", "solvers", "workloads"])
def test_list(splash: Splash, what: str):
    entries = splash.json("list", what)
    assert entries and all("error" not in entry for entry in entries)
    text = splash("list", what).stdout
    for entry in entries:
        assert entry.get("name", entry.get("id")) in text
    assert splash.json("list")[what] == entries


def test_a_broken_definition_does_not_hide_the_others(splash: Splash):
    root = {"SPLASH_ROOT": str(splash.folder)}
    splash.tiny("experiments/definitions/good.toml")
    splash.write("experiments/definitions/broken.toml", "title = 'x'\nkind = 'entmax-solver'\nfoo = 1\n")
    broken, good = splash.json("list", "experiments", env=root)
    assert "unknown key 'foo'" in broken["error"]
    assert good["cases"] == 18


def test_doctor(splash: Splash):
    findings = splash.json("doctor")
    assert {"CPU", "memory", "GPU", "Python", "captured Q/K/V"} <= {f["name"] for f in findings}
    assert all(f["ok"] or f["advice"] for f in findings)
    assert splash("doctor").returncode == 0


# --- bad definitions ---

BAD = {
    "[fixd]\nn = 8\n": "did you mean 'fixed'?",
    "[fixed]\nn = 'many'\n": "type integer",
    "[fixed]\nn = 0\n": "n is 0; it must be at least 1",
    "[fixed]\nalpha = 1.0\n": "alpha",
    "[fixed]\nsolver = 'neuton'\n": "did you mean 'newton'?",
    "[axes]\nn = []\n": "is empty",
    "[zip]\nn = [1, 2]\nrows = [1]\n": "equal length",
    "[[expect]]\nclaim = 'S99.9'\ncolumn = 'residual_max'\n": "names claim 'S99.9'",
    "[[expect]]\nclaim = 'S0.1'\ncolumn = 'residual'\n": "did you mean 'residual_max'?",
    "[fixed]\nn = = 3\n": "not valid TOML",
}


@pytest.mark.parametrize("body", BAD)
def test_bad_definition(splash: Splash, body: str):
    splash.write("bad.toml", "title = 'bad'\nkind = 'entmax-solver'\n" + body)
    sentence = splash.refused("run", "bad.toml", "--out", "bad.h5")
    assert BAD[body] in sentence and "bad.toml" in sentence
    assert sorted(p.name for p in splash.folder.iterdir()) == ["bad.toml"]


def test_bad_run_words(splash: Splash):
    splash.tiny()
    assert "did you mean 'accuracy'?" in splash.refused("run", "acuracy")
    assert "cannot read" in splash.refused("run", "missing.toml")
    (splash.folder / "nothing").mkdir()
    assert "holds no *.toml" in splash.refused("run", "nothing")
    assert "k_keep" in splash.refused("run", "accuracy", "--set", "k_keep=0")
    assert "alpha" in splash.refused("run", "accuracy", "--set", "alpha=1")
    assert "type integer" in splash.refused("run", "tiny.toml", "--set", "n=1.5")
    assert "parameter=value" in splash.refused("run", "tiny.toml", "--set", "n")
    assert "not both" in splash.refused("run", "tiny.toml", "--resume", "--restart")
    for shard in ("0/2", "3/2", "1", "a/b", "1/0"):
        assert "i/N" in splash.refused("run", "tiny.toml", "--shard", shard)
    assert not (splash.folder / "out").exists()


# --- places that cannot be written, files that cannot be read ---


def test_unwritable_places(splash: Splash):
    splash.tiny()
    splash.write("file", "x")
    (splash.folder / "folder").mkdir()
    assert "file" in splash.refused("run", "tiny.toml", "--out", "file/r.h5")
    assert "folder" in splash.refused("run", "tiny.toml", "--out", "folder")
    assert "cannot" in splash.refused("run", "tiny.toml", "--out", "/proc/r.h5")
    if os.geteuid() != 0:
        (splash.folder / "folder").chmod(0o555)
        assert "folder/r.h5" in splash.refused("run", "tiny.toml", "--out", "folder/r.h5")


@pytest.mark.parametrize("limit", [0, 100, 3000, 9000])
def test_full_disk_leaves_no_partial_report(splash: Splash, limit: int):
    splash.tiny()

    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    splash.refused("run", "tiny.toml", "--out", "r.h5", preexec_fn=small_files)
    left = {p.name for p in splash.folder.iterdir()} - {"tiny.toml"}
    assert left <= {"r.h5.journal"}
    resume = ["--resume"] if left else []
    assert splash("run", "tiny.toml", "--out", "r.h5", *resume).returncode == 0


def test_truncated_and_foreign_reports(splash: Splash):
    splash.tiny()
    assert splash("run", "tiny.toml", "--out", "r.h5").returncode == 0
    whole = (splash.folder / "r.h5").read_bytes()
    for length in (0, 1, 7, 100, 2000, len(whole) // 2, len(whole) - 1):
        (splash.folder / "cut.h5").write_bytes(whole[:length])
        assert "cut.h5" in splash.refused("show", "cut.h5")
    assert "cut.h5" in splash.refused("compare", "r.h5", "cut.h5")
    assert "cut.h5" in splash.refused("merge", "r.h5", "cut.h5", "-o", "all.h5")
    assert not (splash.folder / "all.h5").exists()
    assert "nothing.h5" in splash.refused("show", "nothing.h5")
    splash.refused("show", ROOT / "data/captures/minilm.h5")


def test_a_full_or_closed_stdout(splash: Splash):
    with open("/dev/full", "w") as full:
        done = subprocess.run([splash.program, "list", "kinds"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 2 and done.stderr.count("\n") == 1
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([splash.program, "list", "--json"], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.returncode == 0 and done.stderr == ""


# --- show ---


def test_show(splash: Splash):
    splash.tiny()
    splash("run", "tiny.toml", "--out", "r.h5")
    report = splash.json("show", "r.h5")
    assert report["status"] == "complete" and len(report["cases"]) == 18
    assert [c["name"] for c in report["columns"]][:3] == ["experiment", "case_id", "case_index"]
    assert report["provenance"]["experiment_toml"].endswith((splash.folder / "tiny.toml").read_text())
    assert set(splash.json("show", "r.h5", "--claims")) == {"title", "run_id", "status", "history", "claims"}
    header, *rows = splash("show", "r.h5", "--results").stdout.splitlines()
    assert header.startswith("experiment\tcase_id\tcase_index") and len(rows) == 18
    assert "tiny" in splash("show", "r.h5", "--provenance").stdout
    assert "Solvers on small rows" in splash("show", "r.h5").stdout
    residuals = [case["residual_max"] for case in report["cases"]]
    assert all(math.isfinite(r) and r < 1e-3 for r in residuals)


# --- claims and reproduce, in a project of our own ---

CLAIM = """\
[[claim]]
id = "T.1"
source = "a test"
text = "newton leaves a residual below {bound}"
theirs = "< {bound}"
theirs_value = {bound}
relation = "below"
method = "cpu"
reproduced = "it is {{ours}}"
refuted = "it is {{ours}}, above {{theirs}}"
expected_verdict = "{expected}"
"""
EXPECT = '[[expect]]\nclaim = "T.1"\ncolumn = "residual_max"\nwhere = { solver = "newton" }\nstatistic = "max"\n'


@pytest.mark.parametrize(
    "bound, expected, verdict, code",
    [("1e-3", "reproduced", "reproduced", 0), ("1e-30", "refuted", "refuted", 0), ("1e-30", "reproduced", "refuted", 1)],
)
def test_reproduce(splash: Splash, bound: str, expected: str, verdict: str, code: int):
    root = {"SPLASH_ROOT": str(splash.folder), "SPLASH_PYTHON": "/nowhere/python"}
    splash.tiny("experiments/definitions/tiny.toml", more=EXPECT)
    text = (splash.folder / "experiments/definitions/tiny.toml").read_text()
    splash.write("experiments/definitions/tiny.toml", "reproduce = true\n" + text)
    splash.write("data/claims/test.toml", CLAIM.format(bound=bound, expected=expected))
    done = splash("reproduce", "--out", "study", env=root)
    assert done.returncode == code, done.stderr
    assert "plots: " in done.stderr and "report.html: " in done.stderr
    assert verdict in done.stdout and "T.1" in done.stdout and "study/report.h5" in done.stdout
    assert verdict in (splash.folder / "study/claims.md").read_text()
    if code:
        assert "where this project recorded reproduced" in done.stderr
    again = splash("reproduce", "--out", "study", "--json", env=root)
    result = json.loads(again.stdout)
    assert result["cases"] == 18 and result["claims"][0]["verdict"] == verdict
    assert result["plots"] is None and result["page"] is None
    (shown,) = splash.json("show", "study/report.h5", "--claims", env=root)["claims"]
    assert shown["id"] == "T.1" and shown["verdict"] == verdict
    # `run` judges the claims that the definition names, with the same code.
    assert splash("run", "tiny", env=root).returncode == code


def test_a_check_that_does_not_hold(splash: Splash):
    splash.tiny(more='[[expect]]\ncheck = "exact"\nbelow = 1e-30\ncolumn = "residual_max"\nstatistic = "max"\n')
    done = splash("run", "tiny.toml")
    assert done.returncode == 1
    assert "tiny/exact" in done.stderr and "refuted" in done.stdout


def test_several_runs_are_judged_together(splash: Splash):
    check = '[[expect]]\ncheck = "exact"\nbelow = 1e-6\ncolumn = "residual_max"\nstatistic = "max"\n'
    splash.tiny(more=check)
    for name in ("a.h5", "b.h5"):
        splash("run", "tiny.toml", "--out", name)
    done = splash("judge", "a.h5", "--runs", "b.h5", "--out", "both.h5")
    assert done.returncode == 0, done.stderr
    (shown,) = splash.json("show", "both.h5", "--claims")["claims"]
    assert shown["verdict"] == "reproduced" and "median of 2 runs" in shown["reason"]
    again = splash("judge", "a.h5", "--runs", "a.h5", "--out", "both.h5")
    assert again.returncode == 2 and "runs must differ" in again.stderr
    splash.tiny("same.toml", more=check)  # another name is no other experiment
    splash("run", "same.toml", "--out", "c.h5")
    assert splash("judge", "a.h5", "--runs", "b.h5", "c.h5", "--out", "three.h5").returncode == 0
    assert "median of 3 runs" in splash.json("show", "three.h5", "--claims")["claims"][0]["reason"]
    splash.tiny("other.toml", n=32)
    splash("run", "other.toml", "--out", "c.h5")
    other = splash("judge", "a.h5", "--runs", "c.h5", "--out", "both.h5")
    assert other.returncode == 2 and "has none of the experiments tiny" in other.stderr


def test_compare(splash: Splash):
    splash.tiny()
    splash("run", "tiny.toml", "--out", "a.h5")
    splash("run", "tiny.toml", "--out", "b.h5")
    same = splash("compare", "a.h5", "b.h5", "--json")
    assert same.returncode == 0 and json.loads(same.stdout)["matched_cases"] == 18
    assert re.search(r"^results: \d+ SAME$", splash("compare", "a.h5", "b.h5").stdout, re.M)
    assert re.search(r"^residual_max +SAME ", splash("compare", "a.h5", "b.h5", "--all").stdout, re.M)
    splash("run", "tiny.toml", "--out", "c.h5", "--set", "alpha=1.5")
    less = splash("compare", "a.h5", "c.h5")
    assert less.returncode == 1 and "12 cases only before:" in less.stdout
    splash("run", "tiny.toml", "--out", "d.h5", "--set", "n=32")
    assert "no case in common" in splash("compare", "a.h5", "d.h5").stderr
    assert "--tolerance" in splash.refused("compare", "a.h5", "b.h5", "--tolerance", "-1")
    assert "--threshold" in splash.refused("compare", "a.h5", "b.h5", "--threshold", "inf")
    assert "--confidence" in splash.refused("compare", "a.h5", "b.h5", "--confidence", "1")


def test_compare_of_some_cases_and_of_several_runs(splash: Splash):
    splash.tiny(more='[[expect]]\ncheck = "exact"\nbelow = 1e-6\ncolumn = "residual_max"\nstatistic = "max"\n')
    for name in ("a", "b", "c"):
        splash("run", "tiny.toml", "--out", f"{name}.h5", "--set", "samples=7")
    splash("run", "tiny.toml", "--out", "d.h5", "--set", "samples=7", "--set", "alpha=1.5")
    part = splash("compare", "a.h5", "d.h5", "--where", "alpha=1.5", "--where", 'solver=["newton"]', "--threshold", "1000")
    assert part.returncode == 0 and part.stdout.startswith("2 cases on both sides\n"), part.stdout
    assert "there are 1.25, 1.5 and 2" in splash.refused("compare", "a.h5", "b.h5", "--where", "alpha=3")
    both = splash.json("compare", "a.h5", "b.h5", "--before-runs", "c.h5", "--after-runs", "d.h5", "--threshold", "1000")
    assert {tuple(t["runs"]) for t in both["times"] if "alpha=1.5" in t["case"]} == {(2, 2)}
    assert {tuple(t["runs"]) for t in both["times"] if "alpha=2" in t["case"]} == {(1, 1)}
    assert "must differ" in splash.refused("compare", "a.h5", "b.h5", "--before-runs", "a.h5")


def test_a_report_names_no_folder_of_the_machine(splash: Splash):
    report = splash.folder / "r.h5"
    assert splash("run", "solver-tolerance", "--quick", "--out", str(report)).returncode == 0
    provenance = splash("show", str(report), "--provenance").stdout
    assert "splash run solver-tolerance --quick --out r.h5" in provenance
    assert str(splash.folder) not in provenance
