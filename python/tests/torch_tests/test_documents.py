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
        said = capsys.readouterr().out
        assert re.search(r"\d+% of the weights are zero; \d+\.\d keys a query are not", said)
        assert "0.0000, 0.1693, 0.8307" in said
