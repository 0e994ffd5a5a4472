"""The C++ headers, as Doxygen and Breathe are to see them.

A header's comments are plain: `//` at its head, above declarations and behind them. for_doxygen marks them as Doxygen's, and their
text as reStructuredText, as docstrings.py does with Python's. read_by_doxygen leaves XML whose classes read as their header does."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from xml.etree import ElementTree

from docstrings import escaped

INCLUDE = re.compile(r'^```c\+\+\n#include "([^"]+)".*\n```$', re.MULTILINE)
ALONE = re.compile(r"( *)// ?(.*)")
BEHIND = re.compile(r"( *[^ /#].*?) +// (.*)")  # code; not an #include
END_OF_NAMESPACE = re.compile(r" *} +// namespace")
SETTINGS = {
    "GENERATE_XML": "YES", "GENERATE_HTML": "NO", "GENERATE_LATEX": "NO", "XML_PROGRAMLISTING": "NO", "RECURSIVE": "YES",
    "EXTRACT_ALL": "YES", "MACRO_EXPANSION": "YES", "PREDEFINED": "SPLASH_HOST_DEVICE=", "QUIET": "YES", "WARN_AS_ERROR": "YES",
}  # fmt: skip
# Members that a class has to have, of which a reader learns nothing.
OF_COURSE = re.compile(r"~|operator=|\S*\(\)=default|.*=delete|.*&&\s*other\)")


def as_restructured_text(lines: list[str]) -> str:
    """Indented lines are code."""
    written: list[str] = []
    code = False
    for line in lines:
        indented = line.startswith("  ")
        if indented and not code and not (written and written[-1]):
            written += [".. code-block:: cpp", ""]
            code = True
        if code and line and not indented:
            written.append("")
            code = False
        written.append(line if code else escaped(line.strip()))
    return "\n".join(written)


def head_of(header: str) -> str:
    """What stands below `#pragma once`, as reStructuredText."""
    lines = header.partition("#pragma once\n")[2].split("\n")
    head = [ALONE.fullmatch(line) for line in lines]
    return as_restructured_text([line[2] for line in head[: head.index(None)]])


def for_doxygen(header: str) -> str:
    lines = header.splitlines()
    written: list[str] = []
    at = 0

    def comment(opening: str, text: list[str]) -> str:
        return f"/**{opening} \\verbatim embed:rst\n{as_restructured_text(text)}\n\\endverbatim */".replace("*/", "* /", text.count("*/"))

    def take(column: int) -> list[str]:
        """The text of the lines from `at` on that hold a comment alone, in this column."""
        nonlocal at
        taken = []
        while at < len(lines) and (found := ALONE.fullmatch(lines[at])) and len(found[1]) == column:
            taken.append(found[2])
            at += 1
        return taken

    while at < len(lines):
        line = lines[at]
        if found := ALONE.fullmatch(line):
            text = take(len(found[1]))
            if at < len(lines) and lines[at].strip():  # else of no declaration
                written.append(comment("", text))
        elif (found := BEHIND.fullmatch(line)) and not END_OF_NAMESPACE.match(line):
            at += 1
            text = [found[2], *take(line.index("// " + found[2]))]
            # Behind an opening brace it would be the body's.
            written += [comment("", text), found[1]] if found[1].endswith("{") else [f"{found[1]} {comment('<', text)}"]
        else:
            written.append(line)
            at += 1
    return "\n".join(written) + "\n"


def tidy(xml: Path) -> None:
    """A class tells its public members in one list, in the header's order; without what goes without saying."""
    for path in xml.glob("*.xml"):
        tree = ElementTree.parse(path)
        for compound in tree.iter("compounddef"):
            for member in compound.iter("memberdef"):
                member.set("inline", "no")
                for initializer in member.findall("initializer"):
                    if initializer.text == "{}":
                        member.remove(initializer)
            for derived in compound.findall("derivedcompoundref"):  # the page says it beside each
                compound.remove(derived)
            sections = [section for section in compound.findall("sectiondef") if section.get("kind", "").startswith("public-")]
            members = [
                member for section in sections for member in section.findall("memberdef")
                if not OF_COURSE.match(member.findtext("name", "") + member.findtext("argsstring", ""))
            ]  # fmt: skip
            for section in sections[1:]:
                compound.remove(section)
            if sections:
                sections[0][:] = sorted(members, key=lambda member: int(member.find("location").get("line")))
        tree.write(path, encoding="utf-8")


def read_by_doxygen(root: Path, page: str, work: Path) -> str:
    """Of the headers that the page includes: XML in work/xml. Returns the page, with what stands at the head of each below its #include."""
    shutil.rmtree(work, ignore_errors=True)
    texts = {name: (root / name).read_text(encoding="utf-8") for name in INCLUDE.findall(page)}
    for name, text in texts.items():
        place = work / "headers" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(for_doxygen(text), encoding="utf-8")
    settings = "".join(f"{name} = {value}\n" for name, value in {**SETTINGS, "INPUT": "headers"}.items())
    subprocess.run(["doxygen", "-"], cwd=work, input=settings, text=True, check=True)
    tidy(work / "xml")
    return INCLUDE.sub(lambda found: f"{found[0]}\n\n~~~{{eval-rst}}\n{head_of(texts[found[1]])}\n~~~", page)
