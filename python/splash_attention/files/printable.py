"""Text that others wrote, on its way to a terminal: what core/text.h does in C++."""

from __future__ import annotations

import unicodedata

PICTURES, PICTURE_OF_DELETE, REPLACEMENT = 0x2400, "\u2421", "\ufffd"


def printable(text: str) -> str:
    """The text without what a terminal obeys: control characters become their pictures (ESC is U+241B), characters
    that turn the direction of writing U+FFFD. Line ends and tabs stay."""
    return "".join(letter if letter in "\n\t" else _shown(letter) for letter in text)


def one_line(text: str) -> str:
    """The same on one line: line ends and tabs become pictures too."""
    return "".join(map(_shown, text))


def _shown(letter: str) -> str:
    if letter < " ":
        return chr(PICTURES + ord(letter))
    if letter == "\x7f":
        return PICTURE_OF_DELETE
    odd = unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(letter) in BIDI
    return REPLACEMENT if odd or letter in MARKS else letter


BIDI = {"LRE", "RLE", "LRO", "RLO", "PDF", "LRI", "RLI", "FSI", "PDI"}
MARKS = "\u200e\u200f\u061c"
