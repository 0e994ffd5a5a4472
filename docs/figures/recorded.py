"""The recorded reports, and what several passages say of them."""

from __future__ import annotations

import re
from pathlib import Path

from splash_laboratory.documents.figures import Records

ROOT = Path(__file__).resolve().parents[2]
RECORDS = Records(ROOT / "data" / "reports")
ALPHA = "alpha, as the definition sets it"
FULL_PROFILE = "of the full profile, which is not kept: the command on the page makes it again"


def times(other: float, ours: float) -> list[float]:
    """A table's last two figures: the other's time, in the table's unit, and how many times ours it is."""
    return [other, other / ours]


def to_the_end(solver: str) -> float:
    """Mean iterations until a float32 threshold stands still, at AdaSplash's problem."""
    where = {"solver": solver, "dtype": "float32", "n": 8192, "alpha": 1.5}
    return RECORDS.one("reproduce-quick", "solvers", "iterations_mean", **where)


def verdicts() -> list[float]:
    """How many claims of documents and papers there are, and how many the study judges by arithmetic and by measuring,
    and the GPUs' records."""
    claims = [
        path.read_text() for path in (ROOT / "data" / "claims").glob("*.toml") if not path.stem.startswith("project")
    ]
    ids = {found for text in claims for found in re.findall(r'^id = "([^"]+)"', text, re.MULTILINE)}

    def judged(*names: str, method: str | None = None) -> dict[str, str]:
        found = RECORDS.verdicts(*names, method=method)
        return {i: v for i, v in found.items() if i in ids and v != "not comparable"}

    arithmetic = judged("reproduce-quick", method="arithmetic")
    study = {i: v for i, v in judged("reproduce-quick").items() if i not in arithmetic}
    gpus = judged("ladders-h100", "ladders-h200", "flagship-h200", "papers-h200", "decode-h200", "kascade-h100")
    gpus = {i: v for i, v in gpus.items() if i not in study and i not in arithmetic}

    def count(verdicts: dict[str, str]) -> list[int]:
        return [list(verdicts.values()).count(v) for v in ("reproduced", "refuted", "unsure")]

    all_ = [count(verdicts) for verdicts in (arithmetic, study, gpus)]
    assert all_[0][2] == 0  # the sentence names none
    return [len(ids), sum(map(sum, all_)), sum(all_[0]), *all_[0][:2], sum(all_[1]), *all_[1], sum(all_[2]), *all_[2]]
