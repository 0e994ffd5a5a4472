"""What the program prints, in the documents."""

import os
from pathlib import Path

import pytest

from splash_laboratory.documents.printed import MARKER, PrintedError, fill, main

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted(path for folder in ("questions", "tutorials") for path in (ROOT / "docs" / folder).glob("*.md"))
DOCUMENT = "# A page\n\n<!-- splash {words} -->\nold words\n<!-- end of splash -->\n\nthe end\n"


@pytest.fixture
def program(tmp_path: Path) -> str:
    """A stand-in that prints its words, or refuses them."""
    path = tmp_path / "splash"
    path.write_text('#!/bin/sh\n[ "$1" = refuse ] && { echo "splash: not so" >&2; exit 2; }\n[ "$1" = differ ] && { echo worse; exit 1; }\nprintf "%s\\n" "$@" "" ""\n')
    path.chmod(0o755)
    return str(path)


def test_output_is_written_between_its_markers(program: str):
    text = fill(DOCUMENT.format(words="show 'two words'"), program)
    assert "```text\nshow\ntwo words\n```\n<!-- end of splash -->" in text
    assert "old words" not in text and text.endswith("the end\n")
    assert fill(text, program) == text


def test_a_difference_is_an_answer(program: str):
    assert "```text\nworse\n```" in fill(DOCUMENT.format(words="differ"), program)


def test_a_refused_command_is_told(program: str, tmp_path: Path, capsys):
    with pytest.raises(PrintedError, match="splash refuse this: splash: not so"):
        fill(DOCUMENT.format(words="refuse this"), program)
    page = tmp_path / "page.md"
    page.write_text(DOCUMENT.format(words="refuse this"))
    assert main([program, str(page)]) == 2 and "not so" in capsys.readouterr().err
    assert "old words" in page.read_text()
    assert main([program]) == 2


def test_the_documents_hold_what_the_program_prints():
    program = os.environ.get("SPLASH_BIN", "")
    if not Path(program).is_file():
        pytest.skip("SPLASH_BIN names no built splash")
    os.chdir(ROOT)
    outputs = 0
    for document in DOCUMENTS:
        text = document.read_text()
        outputs += len(MARKER.findall(text))
        assert fill(text, program) == text, f"{document.name}: python -m splash_laboratory.documents.printed writes it anew"
    assert outputs >= 4
