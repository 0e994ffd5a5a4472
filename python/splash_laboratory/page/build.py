"""The page: what Python writes as HTML, and what the script draws from the data beside it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path

from splash_laboratory.page.beside import beside, drawn
from splash_laboratory.page.head import ceilings_table, claims_table, facts, notes, verdict_count
from splash_laboratory.page.ladders import ladders
from splash_laboratory.page.language import language_models
from splash_laboratory.page.predicted import predicted
from splash_laboratory.page.rooflines import OF_RECORDED, recorded_rooflines, rooflines
from splash_laboratory.page.tables import encoded_table, tables
from splash_laboratory.page.tradeoff import tradeoffs
from splash_laboratory.reports import Report

ASSETS = Path(__file__).parent
SCRIPTS = ("plot.js", "table.js", "figures.js", "page.js")

# id: heading, and a sentence below it.
SECTIONS = {
    "beside": ("Beside another run", "A mark is the time of a case in both runs. Below the line this run is faster."),
    "rooflines": (
        "Rooflines",
        "Executed FLOP/s over FLOPs a byte, and an exponential where their ceiling was measured. A point is one kernel on "
        "one problem.",
    ),
    "recorded": ("Rooflines recorded on GPUs", "The same of reports that the project keeps, not of this run."),
    "language": ("Language models recorded on GPUs", "What another attention costs them: of reports that the project keeps."),
    "predicted": (
        "Predicted against measured",
        "A mark is one kernel on one problem, predicted from other problems of that kernel. On the line they agree.",
    ),
    "ladders": ("Time on the same problem", "A mark is a median, its whiskers the interval. Left is faster."),
    "tradeoffs": ("Error beside speed", "A mark is one case. Its colour is the share of pairs that take no part."),
    "claims": ("Claims", ""),
    "results": ("Results", "Every case, with its parameters and what was found."),
    "ceilings": ("Ceilings", "What this machine was measured to reach, beside its data sheet."),
}


def page_of(
    report: Report, recorded: Sequence[Report] = (), title: str | None = None, columns: Sequence[str] = (),
    other: tuple[Report, dict] | None = None,
) -> str:  # fmt: skip
    """The whole page as one HTML document. What the report does not hold is left out. Of `recorded`, reports of other runs,
    the rooflines are shown, and language models' tables and plots. title: in place of the report's own. columns: those that
    the tables of results show, in this order; the page holds the others for its plots and as CSV. other: a run to compare with, and what
    beside.compared found."""
    data = page_data(report, recorded, columns) | {"beside": drawn(other[1]) if other else {}}
    style, script = _asset("page.css"), "\n".join(_asset(name) for name in SCRIPTS)
    written = {"claims": claims_table(report), "ceilings": ceilings_table(report), "language": language_models(recorded)}
    if other:
        written["beside"] = beside(other[1], other[0])
    words = {name: words for name, (_, words) in SECTIONS.items()} | {"claims": verdict_count(report)}
    sections = []
    for name, (heading, _) in SECTIONS.items():
        inside = f'<div class="box" data-draw="{name}"></div>' if data.get(name) else ""
        inside += written.get(name, "")
        if inside:
            sections.append((name, heading, section(name, heading, words[name], inside)))
    parts = {
        "title": escape(title or report.title),
        "run": escape(report.run_id),
        "status": escape(str(report.attributes["status"])),
        "file": escape(report.path.name),
        "schema": escape(str(report.attributes["schema_version"])),
        "facts": facts(report),
        "notes": notes(report),
        "links": "".join(f'<a href="#{name}">{heading}</a>' for name, heading, _ in sections),
        "sections": "\n".join(text for *_, text in sections),
        "style": style,
        "script": script,
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "data": in_script(data),
    }
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], _asset("page.html"))


def page_data(report: Report, recorded: Sequence[Report] = (), columns: Sequence[str] = ()) -> dict:
    """What the script draws. Tables of recorded reports stand behind the report's own, are marked, and hold what their points
    say."""
    held = tables(report)
    data = {
        "name": report.path.stem,
        "columns": list(columns),
        "results": [encoded_table(name, cases) for name, cases in held],
        "rooflines": rooflines(report, held),
        "predicted": predicted(held),
        "ladders": ladders(held),
        "tradeoffs": tradeoffs(held),
        "recorded": [],
    }
    for other in recorded:
        of_other = tables(other)
        found = recorded_rooflines(other, of_other, len(data["results"]))
        if not found:
            continue
        data["recorded"].append(found)
        for name, cases in of_other:
            table = encoded_table(name, cases)
            table["columns"] = [column for column in table["columns"] if column["name"] in OF_RECORDED]
            data["results"].append({**table, "recorded": True})
    return data


def in_script(data: dict) -> str:
    """JSON that no text of a report can end: the letters with a meaning in HTML are written as escapes."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for letter in "<>&\u2028\u2029":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return text


def section(name: str, heading: str, words: str, inside: str) -> str:
    title = f'<h2 id="{name}-heading">{heading}</h2><p class="words">{words}</p>'
    return f'<section id="{name}" aria-labelledby="{name}-heading">{title}{inside}</section>'


def _asset(name: str) -> str:
    return (ASSETS / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    """What the page's content security policy allows: this text and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
