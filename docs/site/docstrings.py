"""Docstrings are plain text; Sphinx reads reStructuredText. This is what turns one into the other."""

from __future__ import annotations

import inspect
import re
from typing import Any

ARGUMENTS = re.compile(r"(\*{0,2}[A-Za-z_]\w*(?:, \*{0,2}[A-Za-z_]\w*)*): (\S.*)")


def names_of(object_: Any) -> set[str]:
    """Of a function's arguments, or of a class's arguments and fields."""
    names = set(getattr(object_, "__annotations__", {}))
    try:
        names |= set(inspect.signature(object_).parameters)
    except (TypeError, ValueError):
        pass  # mocked, or built in
    return names


def as_restructured_text(app: Any, what: str, name: str, object_: Any, options: Any, lines: list[str]) -> None:
    """Lines that begin with arguments ("q, k: …") become a list of definitions, indented lines a literal block."""
    known, written, indent, literal = names_of(object_), [], "", False
    for line in lines:
        found = ARGUMENTS.fullmatch(line)
        if found and {word.strip("* ") for word in found[1].split(",")} <= known:
            names = ", ".join(f"``{word.strip()}``" for word in found[1].split(","))
            written += ["", names, f"   {escaped(found[2])}"]
            indent = "   "
            continue
        if not line.strip():
            indent = ""
        if line.startswith("    ") and written and not written[-1].strip() and not literal:
            written += ["::", ""]
            literal = True
        if line.strip() and not line.startswith(" "):
            if literal:
                written.append("")
            literal = False
        written.append(line if literal else f"{indent}{escaped(line.strip() if indent else line)}")
    lines[:] = written


def escaped(text: str) -> str:
    """Stars and words that end with an underscore are themselves, but in code."""
    parts = re.split(r"(`+[^`]*`+)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*|])|(?<=\w)_(?!\w)", lambda m: f"\\{m[0]}", part) for part in parts)
