"""What a conversion tells while it trains: log.csv, TensorBoard's events, and a line now and then."""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from splash_attention.language.conversion import Converted
from splash_attention.language.support_penalty import Keys

_COLUMNS = ("step", "loss", "rate", "seconds", "alpha", "factor", "keys_median", "keys_p95", "keys_largest")
_SAID = 25  # steps a line


class Log:
    """log.csv, from the step that a run begins with: nll of the step's windows, seconds of the step, means of alpha and factor, and
    over heads the median, 95th percentile and largest of their mean keys a query, at the steps that counted them."""

    def __init__(self, folder: Path, done: int, steps: int, said: Callable[[str], None] | None) -> None:
        path = folder / "log.csv"
        before = list(csv.reader(path.open())) if path.is_file() and done else [list(_COLUMNS)]
        self.file = path.open("w", newline="")
        self.rows = csv.writer(self.file)
        self.rows.writerows(before[: done + 1])
        self.steps, self.said, self.recent, self.keys = steps, said, [], ""
        self.board = _board(folder)

    def write(self, step: int, loss: float, rate: float, seconds: float, converted: Converted, keys: Keys | None) -> None:
        """keys: where they were counted in this step."""
        told: dict[str, float] = {"loss": loss}
        if converted.heads:
            told |= {name: converted.of_heads(name).mean().item() for name in ("alpha", "factor")}
        if keys is not None:
            counts = keys.log_keys.exp()
            values = counts.flatten().quantile(torch.tensor([0.5, 0.95, 1.0], device=counts.device)).tolist()
            told |= dict(zip(_COLUMNS[-3:], values))
            self.keys = "; keys {:.1f} in the median head, {:.1f} in the 95th percentile, {:.1f} in the largest".format(*values)
        first = (step, f"{loss:.6f}", f"{rate:.3e}", f"{seconds:.3f}")
        self.rows.writerow([*first, *(f"{told[name]:.4f}" if name in told else "" for name in _COLUMNS[4:])])
        self.file.flush()
        if self.board is not None:
            for name, value in told.items():
                self.board.add_scalar(name, value, step)
        self._say(step, loss, seconds, told)

    def _say(self, step: int, loss: float, seconds: float, told: dict[str, float]) -> None:
        self.recent.append((loss, seconds))
        if self.said is None or ((step + 1) % _SAID and step + 1 != self.steps):
            return
        losses, times = zip(*self.recent)
        heads = f"; alpha {told['alpha']:.3f}, factor {told['factor']:.3f}" if "alpha" in told else ""
        loss, seconds = statistics.fmean(losses), statistics.median(times)
        perplexity = math.exp(min(loss, 100.0))
        self.said(f"step {step + 1} of {self.steps}: nll {loss:.4f} (perplexity {perplexity:.2f}), {seconds:.3f} s a step{heads}{self.keys}")
        self.recent = []

    def __enter__(self) -> Log:
        return self

    def __exit__(self, *_: Any) -> None:
        self.file.close()
        if self.board is not None:
            self.board.close()


def _board(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        return None
    return SummaryWriter(str(folder))
