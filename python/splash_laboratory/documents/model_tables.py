"""Writes tables of language models with another attention into the documents, from a recorded report.

    python -m splash_laboratory.documents.model_tables data/reports/model-perplexity-h100.h5 docs/questions/*.md

A table stands between two markers; the word of the first is the experiment, perplexity, kascade, kascade-8-bits,
conversion, conversion-long, conversion-held or straight-through:

    <!-- model perplexity -->
    ...
    <!-- end of model -->
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable

import xarray as xr

from splash_attention.language.intervals import mean_interval
from splash_attention.language.plan import Plan
from splash_laboratory.documents.ladder_tables import markdown_table, number, text, write_tables
from splash_laboratory.reports import Report


def fill(document: str, report: Report) -> str:
    """The document with every table of the report's experiments written anew."""
    held = tables(report)

    def table(match: re.Match[str]) -> str:
        if match["experiment"] not in held:
            return match[0]
        headings, *rows = held[match["experiment"]]
        return match[1] + markdown_table(headings, rows) + match[3]

    return MARKER.sub(table, document)


def tables(report: Report) -> dict[str, list[list[str]]]:
    """By experiment: headings and rows, words in Markdown. Cases that were not run have none, nor has an experiment of another kind."""
    held = {}
    for experiment in set(report.results["experiment"].values) & set(ROWS):
        results = report.experiment(experiment)
        measured = [case for case in (results.isel(case=i) for i in range(results.sizes["case"])) if known(case, "perplexity")]
        if measured:  # a ladder is called kascade, too
            held[experiment] = ROWS[experiment](measured)
    return held


def known(case: xr.Dataset, name: str) -> bool:
    return math.isfinite(number(case, name))


def of_methods(cases: list[xr.Dataset]) -> list[list[str]]:
    """A row a method: against softmax on the same windows."""
    rows = [["method", "perplexity", "more than softmax", "keys: mean; median / 95 % / largest head", "nmse of a layer's output, median"]]
    for case in cases:
        method = text(case, "method")
        more = "" if method == "softmax" else share(*(number(case, f"perplexity_ratio{end}") for end in ("", "_low", "_high")))
        divergence = "" if method == "softmax" else f"{number(case, 'layer_nmse_median'):.2g}"
        rows.append([f"`{method}`", f"{number(case, 'perplexity'):.2f}", more, keys(case), divergence])
    return rows


def of_plans(cases: list[xr.Dataset]) -> list[list[str]]:
    """A row an arm: against softmax as it was, and against softmax trained alike, window by window."""
    plans = [Plan.parse(text(case, "plan")) for case in cases]
    trained = {alike(plan): case for plan, case in zip(plans, cases, strict=True) if plan.kind == "softmax"}
    headings = ["training", "perplexity", "softmax untrained", "more than softmax trained alike", "keys: mean; median / 95 % / largest head"]
    rows = [[*headings, "seconds a step"]]
    for plan, case in zip(plans, cases, strict=True):
        beside = trained.get(alike(plan))
        more = ""
        if beside is not None and beside is not case:
            pairs = zip(case["nll"].values.tolist(), beside["nll"].values.tolist(), strict=True)
            more = share(*(math.exp(end) for end in mean_interval([ours - theirs for ours, theirs in pairs if math.isfinite(ours)])))
        after, ratio, step = (number(case, name) for name in ("perplexity", "perplexity_ratio", "step_seconds_median"))
        rows.append([f"`{text(case, 'plan')}`", f"{after:.2f}", f"{after / ratio:.2f}", more, keys(case), f"{step:.2f}"])
    return rows


def alike(plan: Plan) -> tuple[float, ...]:
    """What a plan shares with the training of softmax that it is compared with."""
    return plan.rank, plan.rate, plan.steps, plan.batch, plan.length, plan.seed


ROWS: dict[str, Callable[[list[xr.Dataset]], list[list[str]]]] = {
    "perplexity": of_methods, "kascade": of_methods, "kascade-8-bits": of_methods, "conversion": of_plans, "conversion-long": of_plans,
    "conversion-held": of_plans, "straight-through": of_plans,
}  # fmt: skip
MARKER = re.compile(rf"(<!-- model (?P<experiment>{'|'.join(ROWS)}) -->\n).*?(<!-- end of model -->)", re.DOTALL)


def share(ratio: float, low: float, high: float) -> str:
    middle, *ends = (f"{100 * (value - 1):.3g}" for value in (ratio, low, high))
    return f"{middle} % [{', '.join(ends)}]"


def keys(case: xr.Dataset) -> str:
    counts = (number(case, f"support_{name}") for name in ("mean", "median", "p95", "largest"))
    mean, *heads = (f"{count:.3g}" if count < 100 else f"{count:.0f}" for count in counts)
    return f"{mean}; {' / '.join(heads)}"


def main(arguments: list[str]) -> int:
    return write_tables("model_tables", fill, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
