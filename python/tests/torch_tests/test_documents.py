"""The Python examples of README and of the page on Python run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("transformers", minversion="5.0", reason="transformers 5 is not installed")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")

ROOT = Path(__file__).resolve().parents[3]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize("document", ["README.md", "docs/questions/how-do-i-use-it-from-python.md", "docs/questions/does-it-work-with-my-model.md"])
def test_examples_run(
    document: str, capsys: pytest.CaptureFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall((ROOT / document).read_text(encoding="utf-8"))
    assert blocks
    exec(compile("import torch\n" + "".join(blocks), document, "exec"), {})
    if document == "README.md":
        weights, triple = capsys.readouterr().out.splitlines()
        zeros, keys = map(float, re.findall(r"\d+(?:\.\d+)?", weights))  # in whatever words the page says them
        assert 50 < zeros < 100, weights
        assert 1 < keys < 256, weights
        (promised,) = re.findall(r"print\(entmax\(.*# \[(.*)\]", "".join(blocks))
        told = re.findall(r"\d\.\d+", triple)
        assert [f"{float(number):.2f}" for number in told] == promised.split(", ")
