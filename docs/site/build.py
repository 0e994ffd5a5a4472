"""Builds the site: python docs/site/build.py. `./splash docs` is its front door.

Lays the pages out under build/docs/source as they lie in the repository, so that their links hold, writes the pages that the
program tells of itself beside them, and runs Sphinx, whose warnings are errors. The site is out/docs, and opens from files.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import jupytext
from headers import read_by_doxygen

ROOT = Path(__file__).resolve().parents[2]
PAGES = ("*.md", "docs/**/*.md", "docs/conf.py", "docs/site/static/*", "examples/*.md", "notebooks/*.md", "data/*/README.md")
LINK = re.compile(r"\]\(([^)\s#]+)[^)]*\)")


def lay_out(source: Path) -> None:
    """Every page, every file that a page links to, and the notebooks."""
    shutil.rmtree(source, ignore_errors=True)
    pages = [path for pattern in PAGES for path in ROOT.glob(pattern) if path.is_file()]
    linked = [
        (page.parent / link).resolve() for page in pages if page.suffix == ".md" for link in LINK.findall(page.read_text(encoding="utf-8"))
    ]
    for path in {*pages, *(path for path in linked if path.is_file() and ROOT in path.parents)}:
        place = source / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, place)
    for path in ROOT.glob("notebooks/*.py"):
        place = source / path.relative_to(ROOT).with_suffix(".ipynb")
        jupytext.write(jupytext.read(path), place)
        shutil.copystat(path, place)  # unchanged, to Sphinx


def told(program: str, *words: str) -> str:
    return subprocess.run([program, *words], check=True, stdout=subprocess.PIPE, text=True, timeout=60).stdout


def command_line(program: str) -> str:
    """Every word's --help."""
    main = told(program, "--help")
    words = re.findall(r"^  ([a-z][a-z-]*) {2,}\S", main.split("Subcommands:")[1], re.MULTILINE)
    page = ["# The command line", "What `splash --help` and the help of each of its words print.", "```text", main.rstrip(), "```"]
    for word in words:
        page += [f"## splash {word}", "```text", told(program, word, "--help").rstrip(), "```"]
        below = told(program, word, "--help").partition("Subcommands:")[2]
        for inner in re.findall(r"^  ([a-z][a-z-]*) {2,}\S", below, re.MULTILINE):
            page += [f"### splash {word} {inner}", "```text", told(program, word, inner, "--help").rstrip(), "```"]
    return "\n".join(page) + "\n"


def table(head: list[str], rows: list[list[object]]) -> list[str]:
    def cell(value: object) -> str:
        return re.sub(r"([|*_<>\[\]$~])", r"\\\1", str(value)).replace("\n", " ")

    lines = [head, ["---"] * len(head), *([f"`{row[0]}`", *map(cell, row[1:])] for row in rows)]
    return ["", *("| " + " | ".join(line) + " |" for line in lines), ""]


def meaning(parameter: dict) -> str:
    allowed = [*parameter["allowed"], *(f"FILE{ending}" for ending in parameter.get("file_endings", []))]
    return parameter["long_name"] + (f" ({', '.join(allowed)})" if allowed else "")


def experiments(program: str) -> str:
    """What a definition of an experiment may set, kind by kind, and what its report then holds."""
    page = [
        "# Experiments: kinds, parameters and columns",
        "A definition is a TOML file: `title`, `kind`, `[fixed]`, `[axes]` (their product), `[zip]` (lists that step together), `[quick]`",
        "(what the quick profile overrides) and `[[expect]]` (claims that it judges). `[fixed]`, `[axes]` and `[zip]` set the parameters of",
        "the kind, below. [How do I sweep?](../questions/how-do-i-spread-a-sweep.md) tells how to change them without a file.",
    ]
    for kind in json.loads(told(program, "list", "kinds", "--json")):
        page += ["", f"## {kind['name']}", "", f"{kind['summary'][:1].upper()}{kind['summary'][1:]}."]
        rows = [[one["name"], one["type"], one["default"], meaning(one)] for one in kind["parameters"]]
        page += table(["parameter", "type", "default", "what it is"], rows)
        rows = [[one["name"], one["units"], one["long_name"], one["formula"]] for one in kind["columns"]]
        page += table(["column", "unit", "what it is", "formula"], rows)
    page += ["## The experiments that there are", *table(["experiment", "kind", "title"], [
        [one["name"], one["kind"], one["title"]] for one in json.loads(told(program, "list", "experiments", "--json"))
    ])]  # fmt: skip
    return "\n".join(page) + "\n"


def cpp(page: Path, work: Path) -> None:
    """The reference of C++; without Doxygen the page says so, but in continuous integration."""
    if shutil.which("doxygen"):
        page.write_text(read_by_doxygen(ROOT, page.read_text(encoding="utf-8"), work), encoding="utf-8")
        return
    missing = "The reference of C++ is left out, because doxygen is not installed."
    if os.environ.get("CI"):
        raise SystemExit(f"splash: {missing}")
    print(f"splash: {missing}", file=sys.stderr)
    page.write_text(f"# C++\n\n{missing}\n", encoding="utf-8")


def build(out: Path, work: Path, program: str, *options: str) -> int:
    source = work / "source"
    lay_out(source)
    (source / "docs/reference/command-line.md").write_text(command_line(program), encoding="utf-8")
    (source / "docs/reference/experiments.md").write_text(experiments(program), encoding="utf-8")
    cpp(source / "docs/reference/cpp.md", work / "doxygen")
    environment = {**os.environ, "SPLASH_ROOT": str(ROOT), "SPLASH_DOCS_CACHE": str(work / "notebooks"), "SPLASH_DOCS_DOXYGEN": str(work / "doxygen/xml")}
    words = ["-m", "sphinx", "-W", "--keep-going", "-q", "-c", str(source / "docs"), "-d", str(work / "doctrees"), *options]
    html = work / "html"  # beside it myst-nb leaves what notebooks drew
    done = subprocess.run([sys.executable, *words, str(source), str(html)], env=environment, stdin=subprocess.DEVNULL, check=False)
    if done.returncode == 0:
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(html, out)
        (out / "index.html").write_text('<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n', encoding="utf-8")
    return done.returncode


if __name__ == "__main__":
    out = ROOT / "out" / "docs"
    code = build(out, ROOT / "build" / "docs", os.environ["SPLASH_BIN"])
    print(f"splash: the site is {out / 'index.html'}" if code == 0 else "splash: the site has errors (above)", file=sys.stderr)
    sys.exit(code)
