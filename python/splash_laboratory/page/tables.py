"""The results as the page holds them: a table an experiment, by columns, in as few letters as their digits need."""

from __future__ import annotations

import numpy as np
import xarray as xr

from splash_laboratory.plots.data import levels
from splash_laboratory.reports import Report, without_missing

# Who a case is about, where several do the same work.
SUBJECTS = ("implementation", "solver")
# Parameters of the case or of its measurement, not of the problem.
NO_PROBLEM = {*SUBJECTS, "samples", "checked_rows", "experiment", "kind", "case_id", "case_index"}
# What a problem of the kind gpu-attention says of itself only where it is not this.
USUAL = {"input": "gaussian", "mask": "none", "normalizer": "softmax", "selection": "all", "method": "events", "cache": "warm"}
SHAPE = {"q_len", "kv_len", "q_heads", "kv_heads", "head_dim", "batch", "dtype"}
# What PyTorch's dense attention has of its own: it solves the dense problem where others solve the asked one.
OF_DENSE = ("normalizer", "selection", "alpha", "k_keep", "block", "share")
DIGITS = 7


def tables(report: Report) -> list[tuple[str, xr.Dataset]]:
    """(experiment, its cases without what is missing in all of them), in the order they ran."""
    if report.results.sizes.get("case", 0) == 0:
        return []
    if not report.experiments:
        return [("all cases", without_missing(report.results))]
    return [(name, report.experiment(name)) for name in report.experiments]


def encoded_table(name: str, cases: xr.Dataset) -> dict:
    """One experiment for the page's script. Columns with a second dimension, such as raw samples, stay in the HDF5."""
    columns = [column for column in cases.data_vars.values() if column.dims == ("case",)]
    return {
        "experiment": name,
        "rows": cases.sizes["case"],
        "columns": [
            {
                "name": str(column.name),
                "units": _units(column),
                "about": _about(column),
                "role": str(column.attrs.get("role", "")),
                "data": encoded(column.values),
            }
            for column in columns
        ],
        "problem": encoded(np.array(problems(cases), dtype=object)),
    }


def encoded(values: np.ndarray) -> list | dict:
    """A column: a list, or {"same": value}, or for text {"words": [...], "codes": [...]}. Missing is null."""
    if values.dtype.kind in "OUS":
        texts = [str(value) for value in values.tolist()]
        words = list(dict.fromkeys(texts))
        if len(words) == 1:
            return {"same": words[0]}
        at = {word: code for code, word in enumerate(words)}
        return {"words": words, "codes": [at[text] for text in texts]}
    numbers = [number(value) for value in values.tolist()]
    return {"same": numbers[0]} if numbers and all(value == numbers[0] for value in numbers) else numbers


def number(value: float) -> float | int | str | None:
    """A number for JSON: whole numbers whole, others to seven digits; infinity as the text that JavaScript reads."""
    value = float(value)
    if value != value:
        return None
    if value in (np.inf, -np.inf):
        return "Infinity" if value > 0 else "-Infinity"
    if value == int(value) and abs(value) < 2**53:
        return int(value)
    return float(f"{value:.{DIGITS}g}")


def subject(cases: xr.Dataset) -> str | None:
    """The column that tells who did the work."""
    return next((name for name in SUBJECTS if name in cases), None)


def problems(cases: xr.Dataset) -> list[str]:
    """What each case was about, in words: equal words, equal work. Dense softmax in PyTorch stands beside the one problem
    that others solve on the same inputs."""
    words = _problems(cases)
    if not SHAPE <= set(cases.data_vars) or "implementation" not in cases:
        return words
    alike = _problems(cases.drop_vars([name for name in OF_DENSE if name in cases]))
    dense = [name.startswith("torch-") for name in cases["implementation"].values]
    dense = [peer and held == "softmax" for peer, held in zip(dense, _texts(cases, "normalizer"), strict=True)]
    solved: dict[str, set[str]] = {}
    for like, word, peer in zip(alike, words, dense, strict=True):
        if not peer:
            solved.setdefault(like, set()).add(word)
    only = {like: next(iter(found)) for like, found in solved.items() if len(found) == 1}
    return [only.get(like, word) if peer else word for like, word, peer in zip(alike, words, dense, strict=True)]


def _texts(cases: xr.Dataset, name: str) -> list[str]:
    return cases[name].values.tolist() if name in cases else [""] * cases.sizes["case"]


def _problems(cases: xr.Dataset) -> list[str]:
    attention = SHAPE <= set(cases.data_vars)
    worded = [name for name in (*sorted(SHAPE), *USUAL, "k_keep", "share") if name in cases] if attention else []
    varying = [
        str(name)
        for name, column in cases.data_vars.items()
        if column.attrs.get("role") == "parameter"
        and name not in {*NO_PROBLEM, *worded}
        and column.dims == ("case",)
        and len(levels(cases, str(name))) > 1
    ]
    found = []
    for known, rest in zip(_rows(cases, worded), _rows(cases, varying), strict=True):
        words = [_attention(dict(zip(worded, known, strict=True)))] if attention else []
        words += [_words(name, value) for name, value in zip(varying, rest, strict=True) if not _missing(value)]
        found.append(", ".join(words))
    return found


def _rows(cases: xr.Dataset, names: list[str]) -> list[tuple]:
    if not names:
        return [()] * cases.sizes["case"]
    return list(zip(*(cases[name].values.tolist() for name in names), strict=True))


def _attention(held: dict) -> str:
    """As `splash analyze` words it (analysis/roofline.cpp)."""
    kv_heads = "" if held["kv_heads"] == held["q_heads"] else f"/{held['kv_heads']:g}"
    text = f"{held['dtype']}, {held['batch']:g} × {held['q_heads']:g}{kv_heads} heads, "
    text += f"{held['q_len']:.0f} × {held['kv_len']:.0f}, d {held['head_dim']:.0f}"
    for name, usual in USUAL.items():
        value = held.get(name, usual)
        if value in (usual, ""):
            continue
        text += f", {value}"
        if name == "selection" and str(value).startswith("top_k"):
            text += f" {held.get('k_keep', np.nan):g}"
        if name == "selection" and value == "shared_keys":
            text += f" {100 * held.get('share', np.nan):g} %"
    return text


def _words(name: str, value: object) -> str:
    return f"{name} {value:g}" if isinstance(value, (int, float)) else str(value)


def _missing(value: object) -> bool:
    return value == "" or value != value


def _units(column: xr.DataArray) -> str:
    units = str(column.attrs.get("units", ""))
    return "" if units in ("1", "none", "text") else units


def _about(column: xr.DataArray) -> str:
    """What the column's own attributes say of it, for the one who points at its heading."""
    parts = [str(column.attrs.get(name, "")).rstrip(".") for name in ("long_name", "formula")]
    return ": ".join(part for part in parts if part)
