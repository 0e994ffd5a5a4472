"""Writes the verdicts of recorded reports behind the claims that a document names.

    python -m splash_laboratory.documents.verdicts docs/questions/what-of-the-documents-is-built.md data/reports/*.h5

Between two markers, every id of a claim gets the verdict of the report that judges it, or "not judged":

    <!-- verdicts -->
    | ... | S0.3b refuted, S0.3a refuted |
    <!-- end of verdicts -->
"""

from __future__ import annotations

import re
import sys

from splash_laboratory.documents.rewrite import rewrite
from splash_laboratory.reports import Report, open_report

MARKER = re.compile(r"(?<=<!-- verdicts -->\n).*?(?=<!-- end of verdicts -->)", re.DOTALL)
CLAIM = re.compile(r"\b(?P<id>[SP]\d\.\d+[a-z]?)\b(?: (?:reproduced|refuted|unsure|not judged))?(?=,| \||$)", re.MULTILINE)


def of_reports(reports: list[Report]) -> dict[str, str]:
    """Of each claim the verdict; where several reports judge it, the last one's. Those that none judges are left out."""
    found: dict[str, str] = {}
    for report in reports:
        if report.claims:
            judged = zip(report.claims["id"].values, report.claims["verdict"].values, strict=True)
            found |= {id_: verdict for id_, verdict in judged if verdict != "not comparable"}
    return found


def fill(document: str, verdicts: dict[str, str]) -> str:
    """The document with every verdict written anew."""

    def named(match: re.Match[str]) -> str:
        return f"{match['id']} {verdicts.get(match['id'], 'not judged')}"

    return MARKER.sub(lambda table: CLAIM.sub(named, table[0]), document)


def main(arguments: list[str]) -> int:
    if len(arguments) < 2:
        print("usage: python -m splash_laboratory.documents.verdicts DOCUMENT REPORT...", file=sys.stderr)
        return 2
    verdicts = of_reports([open_report(path) for path in arguments[1:]])
    rewrite(arguments[:1], lambda text: fill(text, verdicts), "verdicts")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
