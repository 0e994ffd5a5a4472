"""Another run beside the page's own, as `splash compare` finds it: what changed of times, results and claims."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
from collections.abc import Callable
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

from splash_laboratory.page.head import cell, number_cell, table_of, where_recorded, with_prefix
from splash_laboratory.reports import Report, ReportError

ANSWERS = (0, 1)  # exit codes: nothing changed for the worse; something did
SECONDS = partial(with_prefix, units="s", digits=4)
KINDS = {"SLOWER": "refuted", "DIFFERENT": "refuted", "FASTER": "reproduced", "SAME": "reproduced"}  # the verdicts' colours


def compared(before: str | Path, after: str | Path) -> dict[str, Any]:
    """What `splash compare BEFORE AFTER --json` prints. Raises ReportError with the program's sentence where it refuses."""
    program = os.environ.get("SPLASH_BIN") or shutil.which("splash")
    if program is None:
        raise ReportError("two runs are compared by the program: splash page REPORT --beside BEFORE, or name it in SPLASH_BIN")
    try:
        done = subprocess.run([program, "compare", str(before), str(after), "--json"], stdin=subprocess.DEVNULL, capture_output=True, text=True)
    except OSError as error:
        raise ReportError(f"{program}: cannot be started ({error.strerror})") from None
    if done.returncode not in ANSWERS:
        raise ReportError(done.stderr.strip().removeprefix("splash: ") or f"{program} compare ended with {done.returncode}")
    return json.loads(done.stdout)


def beside(found: dict[str, Any], before: Report) -> str:
    """The section's tables, those of changes first; what both runs have alike is left to `splash compare --all`."""
    alone = (("only_before", "of that run alone"), ("only_after", "of this one alone"))
    only = "".join(f"; {words}: {len(found[name])}" for name, words in alone if found[name])
    said = f"Cases of both runs: {found['matched_cases']}{only}. That run: {where_recorded(before)}."
    times = sorted((one for one in found["times"] if one["change"] != "SAME"), key=_rank)
    return f'<p class="words">{escape(said)}</p>' + _times(times) + _results(found["columns"]) + _claims(found["claims"])


def drawn(found: dict[str, Any]) -> dict[str, list]:
    """For the script: a mark a case, by columns; empty without times."""
    times = [one for one in found["times"] if one["ratio"]]
    names = ("case", "change", "before", "after", "ratio", "note")
    return {name: [one[name] for one in times] for name in names} if times else {}


def _rank(one: dict[str, Any]) -> tuple[int, float]:
    return {"SLOWER": 0, "FASTER": 1}.get(one["change"], 2), -abs(math.log(one["ratio"] or 1))


def _number(value: float | None, say: Callable[[float], str]) -> str:
    """None is missing, as JSON has it."""
    return number_cell(math.nan if value is None else value, say)


def _change(word: str) -> str:
    return f'<td class="verdict {KINDS.get(word, "")}">{escape(word)}</td>'


def _times(times: list[dict[str, Any]]) -> str:
    rows = [
        (
            one["change"],
            [cell(one["case"]), *(_number(one[side], SECONDS) for side in ("before", "after")), _number(one["ratio"], "{:.3f}".format)]
            + [_change(one["change"]), cell("a peer" if one["peer"] else ""), cell(one["note"])],
        )
        for one in times
    ]
    return table_of("times", "Times beside the other run", ("case", "that run", "this run", "this / that", "change", "whose", "note"), rows)


def _results(columns: list[dict[str, Any]]) -> str:
    rows = [
        (
            one["change"],
            [cell(one["column"]), _change(one["change"]), cell(f"{one['differing']} of {one['cases']}")]
            + [_number(one["max_relative_difference"], "{:.2g}".format), cell(one["worst_case"])],
        )
        for one in columns
        if one["change"] != "SAME"
    ]
    return table_of("differences", "Results beside the other run", ("result", "change", "cases", "largest difference", "where"), rows)


def _claims(claims: list[dict[str, Any]]) -> str:
    rows = [("", [cell(one["id"]), cell(one["before"]), cell(one["after"])]) for one in claims]
    return table_of("claims-beside", "Claims whose verdict changed", ("claim", "that run", "this run"), rows)
