"""The figures in the prose of the documents are those of the recorded reports."""

from __future__ import annotations

from pathlib import Path

import pytest

from splash_laboratory.documents import figures
from splash_laboratory.documents.figures import FigureError, fill, loose, main, written

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "docs" / "questions").glob("*.md"))]
PAGE = "Loose 5.\n\n<!-- figures speed -->\n{}\n<!-- end of figures -->\n"


@pytest.fixture(scope="module")
def told() -> dict:
    return figures.figures_of(ROOT / "docs" / "figures")()


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.stem)
def test_the_documents_hold_the_figures_of_the_records(document: Path, told: dict) -> None:
    text = document.read_text()
    assert fill(text, told) == text, "python -m splash_laboratory.documents.figures docs/figures DOCUMENT writes them anew"


def test_every_passage_that_is_told_of_stands_in_one_document(told: dict) -> None:
    named = [match["name"] for path in DOCUMENTS for match in figures.MARKER.finditer(path.read_text())]
    assert sorted(named) == sorted(told)


def test_the_readme_has_no_figure_outside_of_its_passages() -> None:
    assert loose((ROOT / "README.md").read_text()) == []


def test_numerals_are_written_with_their_own_decimals() -> None:
    page = PAGE.format("Ours 27.5 ms of `64` on fp32, AdaSplash-2 [1,000](page-3.md) µs; 8·10⁻⁴, alpha 1.5, 4×.")
    filled = fill(page, {"speed": [27.68, 1837.2, 9.06e-4, "alpha", 3.6]})
    assert "Ours 27.7 ms of `64` on fp32, AdaSplash-2 [1,837](page-3.md) µs; 9·10⁻⁴, alpha 1.5, 4×." in filled
    assert loose(page) == ["5"]
    assert (
        written(0.99996, "1.00") == "1.00"
        and written(9.97e-4, "9.0·10⁻⁴") == "1.0·10⁻³"
        and written(2e-13, "1e-12") == "2e-13"
    )


def test_a_figure_that_is_not_told_of_is_refused(tmp_path: Path, capsys) -> None:
    with pytest.raises(FigureError, match="speed has 2 numerals and 1 figures: 3, 4"):
        fill(PAGE.format("3 and 4"), {"speed": [3.0]})
    with pytest.raises(FigureError, match="nothing is told of the figures of speed"):
        fill(PAGE.format("3"), {})
    assert main([]) == 2 and "usage" in capsys.readouterr().err
    (tmp_path / "figures.py").write_text("def figures():\n    return {'speed': [2.0]}\n")
    (tmp_path / "page.md").write_text(PAGE.format("1"))
    assert main([str(tmp_path / "figures.py"), str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text() == PAGE.format("2")
