"""`splash new`: what it writes is read, compiled and run as it stands; what is there is left alone."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT, Splash

FOLDERS = ["experiments/skeletons", "experiments/kinds", "experiments/tests", "experiments/definitions"]
FOLDERS += ["data/claims", "data/machines", "gpu/ladders"]


class Project:
    """A copy of the folders that `splash new` reads and writes."""

    def __init__(self, splash: Splash):
        self.splash, self.root = splash, splash.folder / "project"
        for folder in FOLDERS:
            shutil.copytree(ROOT / folder, self.root / folder)

    def files(self) -> dict[str, str]:
        return {str(p.relative_to(self.root)): p.read_text() for p in self.root.rglob("*") if p.suffix in (".cpp", ".cu", ".toml")}

    def new(self, *words: str) -> list[str]:
        """The files that are printed, which are those that changed, and no other is touched."""
        before = self.files()
        done = self.splash("new", *words, env={"SPLASH_ROOT": str(self.root)})
        assert done.returncode == 0, done.stderr
        assert done.stderr.startswith("splash: next: ") and done.stderr.count("\n") == 1
        after = self.files()
        assert sorted(done.stdout.split()) == sorted(p for p in after if after[p] != before.get(p))
        assert all(after[p].startswith(text) for p, text in before.items())
        assert not any(re.search("@[A-Z]+@", after[p]) for p in done.stdout.split())
        return done.stdout.split()

    def refused(self, *words: str) -> str:
        before = self.files()
        sentence = self.splash.refused("new", *words, env={"SPLASH_ROOT": str(self.root)})
        assert self.files() == before
        return sentence


@pytest.fixture
def project(splash: Splash) -> Project:
    return Project(splash)


def compile_as_neighbour(program: Path, neighbour: str, source: Path, root: Path) -> None:
    """Compiles a file with the command of the build's first file whose object's path holds `neighbour`."""
    commands = json.loads((program.parents[1] / "compile_commands.json").read_text())
    found = [entry for entry in commands if neighbour in entry["command"]]
    if not found:
        pytest.skip(f"this build compiles nothing of {neighbour}")
    entry = found[0]
    words = shlex.split(entry["command"])
    words = [str(source) if word == entry["file"] else word for word in words]
    words[words.index("-o") + 1] = str(source.with_suffix(".o"))
    compiler = next(i for i, word in enumerate(words) if Path(word).name != "ccache")
    words[compiler + 1 : compiler + 1] = [f"-I{root}"]
    words += ["-O0"] * (source.suffix == ".cpp")  # compiles faster
    done = subprocess.run(words, cwd=entry["directory"], text=True, capture_output=True, timeout=300)
    assert done.returncode == 0 and "warning" not in done.stderr, done.stderr
    assert source.with_suffix(".o").stat().st_size > 1000


def formatted(path: Path) -> bool:
    tool = shutil.which("clang-format-14")
    if tool is None:
        return True
    style = f"--style=file:{ROOT / '.clang-format'}"
    return subprocess.run([tool, style, "--dry-run", "--Werror", str(path)], capture_output=True).returncode == 0


def test_a_rung_takes_the_next_number_of_its_ladder_and_compiles(project: Project, program: Path):
    numbers = [int(p.name.split("_")[0]) for p in (ROOT / "gpu/ladders/wmma").glob("[0-9]*_*.cu")]
    [path] = project.new("rung", "wmma/one-row")
    assert path == f"gpu/ladders/wmma/{max(numbers) + 1}_one_row.cu"
    text = (project.root / path).read_text()
    assert f".rung = {max(numbers) + 1}," in text and '.ladder = "wmma",' in text and '.name = "one-row",' in text
    assert project.new("rung", "a_new_one/first") == ["gpu/ladders/a_new_one/0_first.cu"]
    assert project.new("rung", "a_new_one/second") == ["gpu/ladders/a_new_one/1_second.cu"]
    assert formatted(project.root / path)
    compile_as_neighbour(program, "splash_ladder_wmma_80.dir", project.root / path, project.root)


def test_a_kind_compiles_with_its_test(project: Project, program: Path):
    files = project.new("kind", "row-support-2")
    assert files == [
        "experiments/kinds/row_support_2.cpp",
        "experiments/tests/kinds_row_support_2_test.cpp",
        "experiments/definitions/row-support-2.toml",
    ]
    assert all(formatted(project.root / path) for path in files[:2])
    both = project.root / "both.cpp"
    both.write_text("".join(f'#include "{path}"\n' for path in files[:2]))
    compile_as_neighbour(program, "splash_kinds.dir", both, project.root)
    names = project.splash.json("list", "experiments", env={"SPLASH_ROOT": str(project.root)})
    # This program was built without the new kind, so its definition is listed with that error.
    assert "row-support-2" in next(e["error"] for e in names if e["name"] == "row-support-2")


def test_a_claim_goes_to_the_file_of_its_source(project: Project):
    def claims() -> dict[str, dict]:
        listed = project.splash.json("list", "claims", env={"SPLASH_ROOT": str(project.root)})
        return {claim["id"]: claim for claim in listed}

    before = claims()
    assert project.new("claim", "S4.99z") == ["data/claims/004-adaptive.toml"]
    assert project.new("claim", "Q7.1") == ["data/claims/q7.toml"]
    assert project.new("claim", "Q7.2") == ["data/claims/q7.toml"]
    assert set(claims()) - set(before) == {"S4.99z", "Q7.1", "Q7.2"}
    assert "S4.99z" in project.refused("claim", "S4.99z")


def test_a_machine_is_read_once_every_value_is_filled_in(project: Project):
    def fault() -> str:
        words = ["what-if", ROOT / "data/reports/ladders-h200.h5", "wmma/9", "--gpu", "NVIDIA L4"]
        done = project.splash(*words, env={"SPLASH_ROOT": str(project.root)})
        return done.stderr if done.returncode == 2 else ""

    assert fault() == ""
    [path] = project.new("machine", "my-gpu")
    file = project.root / path
    zeros = re.findall(r"^\w+ = 0(?= |$)", file.read_text(), re.M)
    assert len(zeros) == 9
    for table in ("multiprocessors", "l2", "peak"):  # each error names the line of the first missing value
        at = int(re.search(rf"{re.escape(path)}:(\d+): ", fault()).group(1)) - 1
        lines = file.read_text().splitlines()
        assert re.search(r'= (0|"")( |$)', lines[at])
        assert next(line for line in reversed(lines[:at]) if line.startswith("[")).split("#")[0].strip(" []") == table
        while at < len(lines) and lines[at]:
            number = "1_000_000_000" if lines[at].startswith("value") else "90"
            lines[at] = re.sub('""', '"a data sheet"', re.sub(r"= 0\b", f"= {number}", lines[at]))
            at += 1
        file.write_text("\n".join(lines) + "\n")
    assert fault() == "" and not re.search('= 0\\b|""', file.read_text().split("\n", 1)[1])


@pytest.mark.parametrize(
    "words, said",
    [
        (("rung", "one-row"), "LADDER/NAME"),
        (("rung", "wmma/One"), "LADDER/NAME"),
        (("rung", "../wmma/one"), "LADDER/NAME"),
        (("rung", "wmma/eight-warps"), "gpu/ladders/wmma/4_eight_warps.cu"),
        (("rung", "entmax/one"), "flagship"),
        (("kind", "Row_Support"), "joined by -"),
        (("kind", "../row"), "joined by -"),
        (("kind", "gradient"), "taken by a kind"),
        (("kind", "workload-sparsity"), "experiments/kinds/workload_sparsity.cpp is there already"),
        (("claim", "S4"), "such as P5.1a"),
        (("claim", "F2.1"), "taken by a claim"),
        (("machine", "H100"), "joined by -"),
        (("machine", "h100-sxm"), "data/machines/h100-sxm.toml is there already"),
        (("kid", "row"), "did you mean 'kind'?"),
        (("kind",), "NAME is required"),
    ],
)
def test_what_is_taken_or_malformed_is_refused(project: Project, words: tuple[str, ...], said: str):
    assert said in project.refused(*words)
