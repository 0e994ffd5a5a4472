"""The site of the documents is built without a warning, and holds what it says."""

from __future__ import annotations

import html
import os
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace

import pytest
from docstrings import as_restructured_text
from headers import for_doxygen, head_of
from sentences import pages, sentences

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = os.environ.get("SPLASH_BIN", "")


def rewritten(docstring: str, object_: object) -> str:
    lines = docstring.splitlines()
    as_restructured_text(None, "function", "name", object_, None, lines)
    return "\n".join(lines)


def test_arguments_become_definitions_and_code_a_literal_block() -> None:
    def function(x, kv_len, *, tail_): ...

    text = "Says *what*.\n\nx, kv_len: a number,\n  or two.\nother: no argument.\n\n    code(x)\n\nReturns `x_`, kv_ and more."
    assert rewritten(text, function) == (
        "Says \\*what\\*.\n\n\n``x``, ``kv_len``\n   a number,\n   or two.\n   other: no argument.\n\n::\n\n    code(x)\n\n\nReturns `x_`, kv\\_ and more."
    )


def test_a_class_tells_its_fields() -> None:
    assert rewritten("tau: its threshold.", SimpleNamespace(__annotations__={"tau": float})).endswith("``tau``\n   its threshold.")


HEADER = """\
#pragma once
// Rows of `T`,
// 2 * 3.
//
//   code(a_);

#include <span>  // not told

namespace splash {

// Of no declaration.

// A row.
struct Row {
  double tau = 0,
      sum = 0;  // at most 1,
                // or 0
  // Above.
  bool any() const {  // false for none
    return sum > 0;
  }
};

}  // namespace splash
"""


def test_comments_become_doxygens() -> None:
    def told(text: str, behind: str = "") -> str:
        return f"/**{behind} \\verbatim embed:rst\n{text}\n\\endverbatim */\n"

    assert head_of(HEADER) == "Rows of `T`,\n2 \\* 3.\n\n.. code-block:: cpp\n\n  code(a_);"
    assert for_doxygen(HEADER) == (
        "#pragma once\n\n#include <span>  // not told\n\nnamespace splash {\n\n\n"
        + told("A row.")
        + "struct Row {\n  double tau = 0,\n      sum = 0; "
        + told("at most 1,\nor 0", "<")
        + told("Above.")
        + told("false for none")
        + "  bool any() const {\n    return sum > 0;\n  }\n};\n\n}  // namespace splash\n"
    )


def test_without_doxygen_the_page_says_so_but_in_continuous_integration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("jupytext")
    from build import cpp

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CI", raising=False)
    cpp(tmp_path / "cpp.md", tmp_path)
    assert (tmp_path / "cpp.md").read_text() == "# C++\n\nThe reference of C++ is left out, because doxygen is not installed.\n"
    assert capsys.readouterr().err == "splash: The reference of C++ is left out, because doxygen is not installed.\n"
    monkeypatch.setenv("CI", "true")
    with pytest.raises(SystemExit, match="doxygen is not installed"):
        cpp(tmp_path / "cpp.md", tmp_path)


def test_sentences_are_those_of_the_prose() -> None:
    page = "# A title\n\nOne [two](a.b). Three `four. five` six!\n- seven eight\n- nine\n  ten: 1.5 more\n\n| a | b |\n\n```sh\nnot this. Nor\n```\nEnd of it.\n"
    assert [len(words) for words in sentences(page)] == [2, 4, 2, 4, 3]
    assert len(pages()) > 35


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("sphinx", reason="Sphinx is not installed; ./splash test installs it, with Python 3.11 or newer")
    if not Path(PROGRAM).is_file():
        pytest.skip("SPLASH_BIN names no built splash")
    from build import build

    os.environ["SPLASH_DOCS_NOTEBOOKS"] = "off"  # test_notebooks.py runs them
    out = tmp_path_factory.mktemp("site")
    assert build(out / "site", out, PROGRAM) == 0, "Sphinx's warnings are above"
    return out / "site"


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id":
                self.ids.add(value)
            elif name in ("href", "src") and value and not re.match(r"[a-z]+:", value):
                self.links.append(value)


def test_every_link_inside_the_site_leads_somewhere(site: Path) -> None:
    pages = {}
    for path in site.rglob("*.html"):
        pages[path] = Links()
        pages[path].feed(path.read_text(encoding="utf-8"))
    assert len(pages) > 100
    broken = []
    for path, page in pages.items():
        for link in page.links:
            file, _, anchor = link.partition("#")
            target = (path.parent / file.partition("?")[0]).resolve() if file else path
            if not target.exists() or (anchor and target in pages and anchor not in pages[target].ids):
                broken.append(f"{path.relative_to(site)}: {link}")
    assert broken == []


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert not re.search(r"<(?:script|img|iframe)[^>]* src=\"https?:|<link[^>]* rel=\"stylesheet\"[^>]* href=\"https?:", path.read_text(encoding="utf-8")), path


def test_what_the_program_tells_of_itself_is_there(site: Path) -> None:
    words = (site / "docs/reference/command-line.html").read_text(encoding="utf-8")
    assert "splash what-if" in words and "--statistic NAME" in words
    kinds = (site / "docs/reference/experiments.html").read_text(encoding="utf-8")
    assert "gpu-attention" in kinds and "nmse_vs_entmax" in kinds and "sum of exact p over the selected keys" in kinds
    python = (site / "docs/reference/python.html").read_text(encoding="utf-8")
    assert all(f'id="splash_attention.{name}"' in python for name in ("entmax", "splash_attention", "AdaptiveSplashAttention", "decode"))


def test_the_reference_of_cpp_tells_what_examples_use(site: Path) -> None:
    if not shutil.which("doxygen"):
        pytest.skip("doxygen is not installed")
    page = (site / "docs/reference/cpp.html").read_text(encoding="utf-8")
    text = html.unescape(re.sub(r"<[^>]+>", "", page))
    for path in (ROOT / "examples/cpp").glob("*.cpp"):
        for header in re.findall(r'#include "(.*)"', path.read_text(encoding="utf-8")):
            assert f'#include "{header}"' in text, f"{path.name} includes {header}"
    assert "attention.forward(q, k, v, out);" in text  # of the head of gpu/entmax/attention.h
    assert "scores are scale * <q, k>; 0 means 1/sqrt(head_dim)" in text  # behind a member
    assert "backward waits" in text and "most_entries_" not in text  # private
    assert all(f'id="_CPPv4N6splash{name}E"' in page for name in ("13AttentionSpec", "7cpu_ref15ScreenedForward", "6report6Report"))
