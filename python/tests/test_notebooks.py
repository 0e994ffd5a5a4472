"""Every notebook runs from top to bottom, on the sample report and on the recorded one."""

from __future__ import annotations

from pathlib import Path

import pytest

jupytext = pytest.importorskip("jupytext")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))
REPORT_READERS = [path for path in NOTEBOOKS if "recorded_report" in path.read_text(encoding="utf-8")]
RECORDED = ROOT / "data" / "reports" / "reproduce-quick.h5"


def execute(notebook: Path, report: Path | None, monkeypatch: pytest.MonkeyPatch):
    """Runs a notebook beside its own file; returns it with its outputs."""
    if "import torch" in notebook.read_text(encoding="utf-8"):
        pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
    if report is None:
        monkeypatch.delenv("SPLASH_REPORT", raising=False)
    else:
        monkeypatch.setenv("SPLASH_REPORT", str(report))
    monkeypatch.setenv("SPLASH_TRAIN_STEPS", "20")
    read = jupytext.read(notebook)
    client = nbclient.NotebookClient(
        read, timeout=300, kernel_name="python3", resources={"metadata": {"path": notebook.parent}}
    )
    return client.execute()


def outputs(notebook) -> list:
    return [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]


def test_there_are_notebooks() -> None:
    assert len(NOTEBOOKS) >= 3


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_on_the_sample_report(notebook: Path, sample_report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = outputs(execute(notebook, sample_report, monkeypatch))
    assert any("image/png" in output.get("data", {}) for output in shown), "no figure"
    said = [output["data"]["text/markdown"] for output in shown if "text/markdown" in output.get("data", {})]
    assert said and all("nan" not in words for words in said)
    assert not [output for output in shown if output.output_type == "stream" and output.name == "stderr"]


@pytest.mark.parametrize("notebook", REPORT_READERS, ids=lambda path: path.stem)
def test_on_the_recorded_report(notebook: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not RECORDED.exists():
        pytest.skip("no report is recorded yet")
    execute(notebook, None, monkeypatch)


def test_without_a_report_the_notebook_says_how_to_make_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="no such file"):
        execute(REPORT_READERS[0], tmp_path / "nowhere.h5", monkeypatch)
