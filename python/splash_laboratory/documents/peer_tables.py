"""Writes tables of one implementation beside its peers into the documents, from a recorded report.

    python -m splash_laboratory.documents.peer_tables data/reports/flagship-h200.h5 docs/questions/*.md

A table stands between two markers; the words of the first are the experiment, of this report or of another, the
implementation, and what chooses among its cases, if anything does. Where a report has cases of one of an experiment's
tables, those that choose none of them are another report's.

    <!-- peers entmax-model: entmax/0-one-pass kv_len=8192 -->
    ...
    <!-- end of peers -->
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Sequence

import numpy as np
import xarray as xr

from splash_laboratory.documents.ladder_tables import LadderError, cells, chosen, number, text, write_tables
from splash_laboratory.reports import Report

MARKER = re.compile(r"(<!-- peers (?P<experiment>[\w-]+): (?P<ours>\S+)(?P<where>(?: \w+=\S+)*) -->\n).*?(<!-- end of peers -->)", re.DOTALL)
PROBLEM = (
    *("pass", "input", "layer", "batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim", "mask", "window", "documents"),
    *("query_variance", "alpha_of_file"),
)
STEP = ("batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim")  # of decoding: all that dense attention's time depends on
TEXTS = ("gpl-3", "gfdl-1.3")  # of MiniLM
PASSES = {"forward": "forward", "forward_backward": "both passes"}


def fill(document: str, report: Report) -> str:
    """The document with every table of the report's experiments written anew."""
    held = set(report.results["experiment"].values)
    written, missing = set(), {}

    def table(match: re.Match[str]) -> str:
        if match["experiment"] not in held:
            return match[0]
        try:
            rows = lines(chosen(report, match["experiment"], match["where"]), match["ours"])
        except LadderError as error:
            missing[match["experiment"]] = error
            return match[0]
        if not rows:
            raise LadderError(f"{report.path}: {match['experiment']} has no case of {match['ours']}")
        written.add(match["experiment"])
        return match[1] + "\n" + "\n".join(rows) + "\n\n" + match[5]

    filled = MARKER.sub(table, document)
    for experiment in missing.keys() - written:
        raise missing[experiment]
    return filled


def lines(cases: Sequence[xr.Dataset], ours: str) -> list[str]:
    """A row a problem that ours solved: its time, each peer's, and how many times ours that is, bold from 1 on. The share
    of empty 64 × 64 tiles where the report has it."""
    problems: dict[tuple[str, ...], dict[str, xr.Dataset]] = {}
    dense: dict[tuple[str, ...], dict[str, xr.Dataset]] = {}
    for case in cases:
        if math.isfinite(number(case, "time_median")):
            of_any_values = is_step(case) and not text(case, "input") and text(case, "implementation").startswith("torch-")
            group = dense.setdefault(values_of(case, STEP), {}) if of_any_values else problems.setdefault(problem_of(case), {})
            group[text(case, "implementation")] = case
    solved = [dense.get(values_of(group[ours], STEP), {}) | group for group in problems.values() if ours in group]
    if not solved:
        return []
    peers = sorted({name for group in solved for name in group if name.startswith("torch-")})
    named = [f"{name.removeprefix('torch-')}, ms; times ours" for name in peers]
    tiles = ["empty tiles"] if any(math.isfinite(number(group[ours], "block_sparsity_64")) for group in solved) else []
    headings = ["problem", "keys a row", *tiles, "ours, ms", *named]
    rows = [cells(headings), cells("---" for _ in headings)]
    passes = {text(group[ours], "pass") for group in solved}
    for group in solved:
        mine = group[ours]
        problem = label(mine) + (f", {PASSES[text(mine, 'pass')]}" if len(passes) > 1 else "")
        empty = [f"{100 * number(mine, 'block_sparsity_64'):.3g} %" for _ in tiles]
        row = [problem, f"{number(mine, 'support_mean'):.3g}", *empty, milliseconds(mine)]
        rows.append(cells([*row, *(beside(group[name], mine) if name in group else "" for name in peers)]))
    return rows


def is_step(case: xr.Dataset) -> bool:
    """Of decoding: the kind gpu-decode has no mask."""
    return not text(case, "mask")


def problem_of(case: xr.Dataset) -> tuple[str, ...]:
    return values_of(case, (*PROBLEM, "alpha") if is_step(case) else PROBLEM)


def values_of(case: xr.Dataset, names: Sequence[str]) -> tuple[str, ...]:
    return tuple(text(case, name) for name in names)


def label(case: xr.Dataset) -> str:
    if is_step(case):
        return step_label(case)
    batch, q_heads, length, dim = (int(number(case, name)) for name in ("batch", "q_heads", "q_len", "head_dim"))
    kv_heads = number(case, "kv_heads")
    heads = f"{q_heads}/{kv_heads:.0f}" if kv_heads < q_heads else str(q_heads)
    size = f"{length // 1024}k" if length % 1024 == 0 else str(length)
    mask = "full" if text(case, "mask") == "none" else text(case, "mask")
    if mask == "window":
        mask += f" {number(case, 'window'):.0f}"
    if mask == "documents":
        mask += f" {text(case, 'documents')}"
    heads_of = (f"{batch} × {heads}" if batch > 1 else heads) + (" head" if batch * q_heads == 1 else " heads")
    name, layer = text(case, "input"), number(case, "layer")
    inputs = f"MiniLM on {name}" if name in TEXTS else f"layer {layer:.0f}" if layer >= 0 else name
    if name in ("", "gaussian"):
        inputs = f"T {np.sqrt(number(case, 'query_variance')):.4g}"
    return f"{heads_of}, {size}, d {dim}, {mask}, {inputs}"


def step_label(case: xr.Dataset) -> str:
    batch, heads, kv_heads, queries, keys, dim = (
        int(number(case, name)) for name in ("batch", "q_heads", "kv_heads", "q_len", "kv_len", "head_dim")
    )
    drafts = f", {queries} queries" if queries > 1 else ""
    alpha, layer = number(case, "alpha"), number(case, "layer")
    other = "" if math.isnan(alpha) or alpha == 1.5 else f", α {alpha:.4g}"
    inputs = f"T {np.sqrt(number(case, 'query_variance')):.4g}" if math.isnan(layer) else f"layer {layer:.0f}"
    return f"{batch} × {heads}/{kv_heads} heads, {keys} keys, d {dim}{drafts}, {inputs}{other}"


def milliseconds(case: xr.Dataset) -> str:
    return f"{1e3 * number(case, 'time_median'):.3f}"


def beside(peer: xr.Dataset, mine: xr.Dataset) -> str:
    ratio = number(peer, "time_median") / number(mine, "time_median")
    times = f"{ratio:.3g}"
    return f"{milliseconds(peer)}; {f'**{times}**' if ratio >= 1 else times}"


def main(arguments: list[str]) -> int:
    return write_tables("peer_tables", fill, arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
