"""The commands and examples that documents and help texts hold, as they stand there."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCED = re.compile(r"^```(?P<language>[^\n`]*)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
INLINE = re.compile(r"`((?:\./)?(?:splash [a-z]|python -m |\.ci/run|build/release/)[^`]{0,100})`")
COMMENT = re.compile(r"(?:^|\s+)#\s.*$|\s{3,}\S.*$")


@dataclass(frozen=True)
class Found:
    where: str
    text: str


def documents() -> list[Path]:
    """Every Markdown file of the tree but the change log, which tells of commands that were."""
    built = {"build", ".venv", "out"}
    found = [path for path in ROOT.rglob("*.md") if not built & set(path.relative_to(ROOT).parts)]
    return sorted(path for path in found if path.name != "CHANGELOG.md" and ".pytest_cache" not in path.parts)


def code(languages: tuple[str, ...]) -> list[Found]:
    """The fenced blocks in these languages."""
    return [
        Found(str(path.relative_to(ROOT)), match["code"])
        for path in documents()
        for match in FENCED.finditer(path.read_text())
        if match["language"] in languages
    ]


def commands() -> list[Found]:
    """Of fenced blocks for a shell and of code in the text; a line that ends with a backslash goes on."""
    found = [Found(block.where, line) for block in code(("sh", "bash", "console", "")) for line in _lines(block.text)]
    for path in documents():
        text = FENCED.sub("", path.read_text())
        found += [
            Found(str(path.relative_to(ROOT)), _bare(" ".join(match[1].split()))) for match in INLINE.finditer(text)
        ]
    return list(dict.fromkeys(found))


def examples_of_help(program: Path) -> list[Found]:
    """The examples that open `splash --help` and that of each subcommand."""
    found = []
    main = _help(program)
    names = re.findall(r"^  ([a-z][a-z-]*) {2,}\S", main.split("Subcommands:")[1], re.MULTILINE)
    for name in ["", *names]:
        text = main if not name else _help(program, name)
        block = re.search(r"^Examples:\n((?:  .*\n)+)", text, re.MULTILINE)
        assert block, f"splash {name} --help has no examples"
        found += [Found(f"splash {name} --help".replace("  ", " "), line) for line in _lines(block[1])]
    return found


def options_of(program: Path, subcommand: str) -> set[str]:
    return set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", _help(program, subcommand)))


def _help(program: Path, *words: str) -> str:
    return subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout


def _lines(block: str) -> list[str]:
    lines = re.sub(r"\\\n\s*", "", block).splitlines()
    return [_bare(line) for line in lines if _bare(line)]


def _bare(line: str) -> str:
    """Without the comment behind it, or the remark of a help text."""
    return COMMENT.sub("", line.rstrip()).strip().removesuffix(" …")
