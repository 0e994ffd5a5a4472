"""The source documents' simple_sparsity_check.py: it runs as they call it, and what it prints was measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="PyTorch is not installed; ./splash test installs it unless SPLASH_TORCH=0")
pytest.importorskip("splash_attention._core", reason="the extension is not built; ./splash test builds it")

SCRIPT = Path(__file__).resolve().parents[2] / "simple_sparsity_check.py"


def expected(N: int, k_keep: int) -> tuple[float, float]:
    """The share of zeros and the MSE against softmax, from all scores in float64."""
    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    Q, K, V = (torch.randn(2, 8, N, 64, device=device).double() for _ in range(3))
    hidden = torch.ones(N, N, dtype=torch.bool, device=device).triu(1)
    scores = (Q @ K.mT * 0.125).masked_fill(hidden, -torch.inf)
    softmax = torch.softmax(scores, -1) @ V
    z = 0.5 * scores.topk(k_keep, -1).values  # alpha 1.5
    low, high = z[..., :1] - 1, z[..., :1]
    for _ in range(60):
        middle = (low + high) / 2
        above = (z - middle).clamp(min=0).square().sum(-1, keepdim=True) >= 1
        low, high = torch.where(above, middle, low), torch.where(above, high, middle)
    weights = (0.5 * scores - low).clamp(min=0).square()
    weights = torch.where(scores >= scores.topk(k_keep, -1).values[..., -1:], weights, 0)
    visible = 16 * N * (N + 1) / 2
    mse = (weights / weights.sum(-1, keepdim=True) @ V - softmax).square().mean().item()
    return 1 - (weights > 0).sum().item() / visible, mse


def test_it_runs_as_the_documents_call_it() -> None:
    run = subprocess.run(
        [sys.executable, "-c", f"exec(open('{SCRIPT.name}').read())"], cwd=SCRIPT.parent, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    assert lines[0].startswith("AdaptiveSplashAttention, B 2, H 8, N 1024, d 64, k_keep 8")
    assert len(lines) == 9 and "99.6 %" in lines[2]


@pytest.mark.parametrize("N, k_keep", [(128, 8), (192, 2)])
def test_what_it_prints_was_measured(N: int, k_keep: int, capsys: pytest.CaptureFixture[str]) -> None:
    held: dict[str, object] = {}
    exec(SCRIPT.read_text(encoding="utf-8").removesuffix("simple_sparsity_check()\n"), held)
    measured = held["simple_sparsity_check"](N=N, k_keep=k_keep)
    zeros, mse = expected(N, k_keep)
    assert measured["zeros"] == pytest.approx(zeros, abs=1e-4)
    assert measured["operations"] == pytest.approx(zeros / 2, abs=1e-4)
    assert measured["mse"] == pytest.approx(mse, rel=1e-3)
    assert measured["speed"] > 0 and measured["speed_fused"] > 0
    printed = capsys.readouterr().out
    assert f"N {N}, d 64, k_keep {k_keep}" in printed
    for value in (f"{measured['zeros']:.1%}", f"{measured['mse']:.1e}", f"{measured['speed']:.2f}x"):
        assert value in printed
