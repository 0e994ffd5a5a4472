"""Rooflines for the page: a panel a level and dtype, and for each point above its roof the check that tells why."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import xarray as xr

from splash_laboratory.page.tables import number
from splash_laboratory.plots.data import present
from splash_laboratory.plots.roofline import CPU, UNIT_WORDS, Level, levels_of, rate_name, units_of
from splash_laboratory.reports import Report

NEEDED = ("implementation", "executed_flops", "time_median", "math_unit")
# What is nearer than a level, and the ceiling that tells whether it is fast enough.
NEARER = {"DRAM": "L2", "L2": "shared memory", "DRAM of the CPU": "L2", "L2 of the CPU": "L1"}
SERVED_BY = {
    "DRAM": ("l2 read",),
    "L2": ("shared read",),
    "DRAM of the CPU": ("cpu l2 read",),
    "L2 of the CPU": ("cpu l1 read",),
}
# What the page shows of a recorded report's kernels beside a run.
OF_RECORDED = (
    *("implementation", "executed_flops", "time_median", "time_low", "time_high", "verdict", "diagnosis", "finding"),
    *("dram_bytes_counted", "l2_bytes_counted", "math_unit", "dtype", "exponentials"),
)


@dataclass(frozen=True)
class Ceiling:
    """One row of /ceilings. Where nothing was measured, the data sheet's figure stands for it."""

    name: str
    measured: float
    datasheet: float
    method: str
    is_measured: bool = True

    def told(self, name: str) -> dict:
        """As the page has it; `unmeasured` where it is the data sheet's."""
        told = {"name": name, "measured": number(self.measured), "datasheet": number(self.datasheet)}
        return told if self.is_measured else told | {"unmeasured": True}

    @property
    def clock(self) -> float:
        """Hz of the multiprocessors while it was measured, as its method says; NaN where it does not."""
        found = re.search(r"at (\d+) MHz", self.method)
        return 1e6 * float(found[1]) if found else np.nan


@dataclass(frozen=True)
class Point:
    """A kernel in a panel, and what the checks ask of it."""

    rate: float  # FLOP/s executed
    slowest: float  # at the upper end of the time's interval
    flops: float
    bytes: float
    seconds: float
    useful_flops: float = np.nan
    cache: str = "warm"
    clock: float = np.nan

    @property
    def intensity(self) -> float:
        return self.flops / self.bytes


def rooflines(report: Report, tables: list[tuple[str, xr.Dataset]]) -> list[dict]:
    """Panels in the order they are drawn; empty where the report holds no kernels or no ceilings."""
    panels = []
    units = [unit for unit in UNIT_WORDS if _rate(report, unit)]
    for unit in units:
        for level in levels_of(report, unit.startswith(CPU)):
            slopes = [found for name in level.ceilings if (found := ceiling(report, name))]
            if slopes:
                slope = max(slopes, key=lambda found: found.measured)
                panels += _panel(report, tables, unit, level, slope)
    return panels


def recorded_rooflines(report: Report, tables: list[tuple[str, xr.Dataset]], first: int) -> dict:
    """Panels of a recorded report whose tables stand from place `first` on among the page's, or {} without any."""
    panels = rooflines(report, tables)
    for panel in panels:
        panel["table"] = [first + table for table in panel["table"]]
    ran_on = str(report.provenance.get("gpu") or report.provenance.get("cpu", ""))
    return {"title": report.title, "machine": ran_on, "panels": panels} if panels else {}


def _panel(
    report: Report, tables: list[tuple[str, xr.Dataset]], unit: str, kind: Level, slope: Ceiling
) -> list[dict]:
    """[the panel], or nothing where no kernel belongs in it."""
    level, column = kind.title, kind.column
    flat = _rate(report, unit)
    points = []
    for table, (_, cases) in enumerate(tables):
        if not {*NEEDED, column} <= set(cases.data_vars):
            continue
        drawn = present(cases["executed_flops"]) & present(cases["time_median"]) & (cases[column].values > 0)
        here = np.array(units_of(cases)) == unit
        for row in np.flatnonzero(drawn & here):
            point = point_of(cases, int(row), column)
            roof = min(flat.measured, point.intensity * slope.measured)
            points.append(
                {
                    "table": table,
                    "row": int(row),
                    "intensity": number(point.intensity),
                    "share": number(point.rate / roof),
                    **({"above": check(report, point, level, unit, slope, flat)} if point.rate > roof else {}),
                }
            )
    if not points:
        return []
    named, rate = slope.told(slope.name), flat.told(UNIT_WORDS[unit])
    columns = {name: [point.get(name) for point in points] for name in ("table", "row", "intensity", "share")}
    above = {str(at): point["above"] for at, point in enumerate(points) if "above" in point}
    axis = {"words": kind.words, "units": kind.units}
    return [
        {"level": level, "unit": unit, "axis": axis, "bandwidth": named, "rate": rate, **columns, "above": above}
    ]


def point_of(cases: xr.Dataset, row: int, column: str) -> Point:
    """One case of a table, with the bytes of `column`."""

    def value(name: str) -> float:
        return float(cases[name].values[row]) if name in cases else np.nan

    flops, seconds, high = value("executed_flops"), value("time_median"), value("time_high")
    return Point(
        rate=flops / seconds,
        slowest=flops / (high if high == high else seconds),
        flops=flops,
        bytes=value(column),
        seconds=seconds,
        useful_flops=value("useful_flops"),
        cache=str(cases["cache"].values[row]) if "cache" in cases else "warm",
        clock=float(np.fmax(value("clock_before"), value("clock_after"))),
    )


def check(report: Report, point: Point, level: str, unit: str, slope: Ceiling, flat: Ceiling) -> dict:
    """Why a point lies above its roof: the first check that explains it, else the first that tells what is wrong."""
    roof = min(flat.measured, point.intensity * slope.measured)
    if point.slowest <= roof:
        return _said("interval", True, "the interval of its time reaches below the roof")
    return _flat_check(report, point, unit, flat) if point.rate > flat.measured else _slope_check(report, point, level)


def _slope_check(report: Report, point: Point, level: str) -> dict:
    """Above a bandwidth: served by what is nearer, if that is fast enough, or not to be explained."""
    if level not in NEARER:
        return _said("none", False, "it needs more exponentials a second than were measured: the count is wrong")
    nearer, needed = NEARER[level], point.bytes / point.seconds
    faster = [found.measured for name in SERVED_BY[level] if (found := ceiling(report, name))]
    if faster and needed <= max(faster) and not (level == "DRAM" and point.cache == "cold"):
        of_l2 = "L1 serves" if "CPU" in level else "L1 or shared memory serves"
        of_dram = "a cache still holds" if "CPU" in level else "L2 still holds"
        served = of_l2 if level.startswith("L2") else f"{of_dram} from the call before"
        return _said("scope", True, f"what {served} is counted as asked of {level}; {nearer} is fast enough for it")
    return _said(
        "scope", False, f"{needed / 1e12:.3g} TB/s is more than {nearer} was measured to give: the bytes are wrong"
    )


def _flat_check(report: Report, point: Point, unit: str, flat: Ceiling) -> dict:
    """Above a rate: a higher clock explains it; another precision or FLOPs of skipped pairs mean a wrong count."""
    excess = point.rate / flat.measured
    if point.clock / flat.clock >= excess:
        words = f"it ran at {point.clock / 1e6:.0f} MHz, the ceiling was measured at {flat.clock / 1e6:.0f} MHz"
        return _said("clock", True, words)
    if point.useful_flops < point.flops and point.rate * point.useful_flops / point.flops <= flat.measured:
        words = "its useful work stays below the roof: work on pairs that are not selected is counted as executed"
        return _said("sparsity convention", False, words)
    side = [other for other in UNIT_WORDS if other.startswith(CPU) == unit.startswith(CPU)]
    faster = [other for other in side if (found := _rate(report, other)) and found.measured >= point.rate]
    if faster:
        return _said("precision", False, f"{UNIT_WORDS[faster[0]]} units reach this, {UNIT_WORDS[unit]} ones do not")
    return _said("none", False, "neither interval, clock, sparsity convention nor precision explains it")


def _said(name: str, explains: bool, why: str) -> dict:
    return {"check": name, "explains": explains, "why": why}


def _rate(report: Report, unit: str) -> Ceiling | None:
    return ceiling(report, *rate_name(unit))


def ceiling(report: Report, name: str, dtype: str = "") -> Ceiling | None:
    """A ceiling of the report, measured or the data sheet's, if it holds it."""
    held = report.ceilings
    if not {"name", "dtype", "measured"} <= set(held.variables):
        return None
    measured = held["measured"].values
    datasheets = held["datasheet"].values if "datasheet" in held else np.full(measured.shape, np.nan)
    known = np.where(np.isnan(measured), datasheets, measured)
    found = np.flatnonzero((held["name"].values == name) & (held["dtype"].values == dtype) & (known > 0))
    if not found.size:
        return None
    at = int(found[0])
    method = str(held["method"].values[at]) if "method" in held else ""
    return Ceiling(name, float(known[at]), float(datasheets[at]), method, bool(measured[at] > 0))
