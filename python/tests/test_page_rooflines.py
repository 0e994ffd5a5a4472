"""The page's rooflines of exponentials, of a CPU, and of recorded reports."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from test_page import held, sections

from splash_laboratory import open_report
from splash_laboratory.page import page_of
from splash_laboratory.page.build import page_data

REPORTS = Path(__file__).resolve().parents[2] / "data" / "reports"


@pytest.fixture(scope="module")
def ladders():
    return open_report(REPORTS / "ladders-h200.h5")


def test_exponentials_have_a_panel_where_their_ceiling_was_measured(ladders) -> None:
    row = next(iter(ladders.ceilings.sizes))
    one = ladders.ceilings.isel({row: [0]}).copy(deep=True)
    rate = 16 * 132 * 1.98e9
    for name, value in (("name", "exponentials"), ("dtype", ""), ("measured", rate), ("datasheet", np.nan)):
        one[name].values[0] = value
    more = dataclasses.replace(ladders, ceilings=xr.concat([ladders.ceilings, one], row))
    data = page_data(more)
    panels = [panel for panel in data["rooflines"] if panel["level"] == "exponentials"]
    asked = ladders.results["exponentials"].values > 0
    assert sum(len(panel["row"]) for panel in panels) == (asked & np.isfinite(ladders.results["executed_flops"].values)).sum()
    for panel in panels:
        assert panel["axis"] == {"words": "executed FLOPs an exponential (counted)", "units": "1/s"}
        for table, row, share in zip(panel["table"], panel["row"], panel["share"], strict=True):
            work, took = held(data, table, "executed_flops")[row], held(data, table, "time_median")[row]
            roof = min(panel["rate"]["measured"], rate * work / held(data, table, "exponentials")[row])
            assert share == pytest.approx(work / took / roof, rel=1e-5)
    # A rate that no unit reaches is a wrong count, and said to be.
    one["measured"].values[0] = 1e9
    slow = page_data(dataclasses.replace(ladders, ceilings=xr.concat([ladders.ceilings, one], row_of(ladders))))
    told = [p for panel in slow["rooflines"] if panel["level"] == "exponentials" for p in panel["above"].values()]
    assert told and not any(point["explains"] for point in told)


def test_ceilings_that_were_not_measured_are_the_data_sheets(ladders) -> None:
    ceilings = ladders.ceilings.copy(deep=True)
    ceilings["measured"].values[:] = np.nan
    panels = page_data(dataclasses.replace(ladders, ceilings=ceilings))["rooflines"]
    assert {panel["level"] for panel in panels} == {"DRAM"}, "no data sheet tells the bandwidth of L2"
    for panel in panels:
        assert panel["bandwidth"]["unmeasured"] and panel["rate"]["unmeasured"]
        assert panel["bandwidth"]["measured"] == panel["bandwidth"]["datasheet"] == 4.8e12
    assert not any("unmeasured" in panel["rate"] for panel in page_data(ladders)["rooflines"])


def row_of(report) -> str:
    return next(iter(report.ceilings.sizes))


def test_a_run_on_a_cpu_has_its_rooflines_and_the_recorded_ones(ladders) -> None:
    on_cpu = cpu_run(ladders)
    data = page_data(on_cpu, [ladders, cpu_run(ladders, ceilings=False)])
    assert [(p["unit"], p["level"]) for p in data["rooflines"]] == [
        ("cpu float32", "DRAM of the CPU"),
        ("cpu float32", "L2 of the CPU"),
    ]
    (recorded,) = data["recorded"]  # a report without ceilings has none to show
    assert recorded["machine"] == "NVIDIA H200" and recorded["title"] == ladders.title
    alone = page_data(ladders)
    assert [p["share"] for p in recorded["panels"]] == [p["share"] for p in alone["rooflines"]]
    own = [table for table in data["results"] if not table.get("recorded")]
    assert len(own) == 1 and len(data["results"]) == 1 + len(alone["results"])
    panel = recorded["panels"][0]
    name = held(data, panel["table"][0], "implementation")[panel["row"][0]]
    assert name == held(alone, panel["table"][0] - 1, "implementation")[panel["row"][0]]
    assert sections(page_of(on_cpu, [ladders]))[:2] == ["rooflines", "recorded"]
    assert "recorded" not in sections(page_of(on_cpu))


def cpu_run(ladders, ceilings: bool = True):
    """Three recorded cases as if they were a CPU's."""
    counted = np.flatnonzero(np.isfinite(ladders.results["executed_flops"].values))[:3]
    results = ladders.results.isel(case=counted).drop_vars("dtype").copy(deep=True)
    results["math_unit"].values[:] = "cpu float32"
    measured = (("cpu fma", "float32", 2e11), ("cpu l2 read", "", 1e11), ("cpu dram copy", "", 2e10))
    held_ceilings = ladders.ceilings.isel({row_of(ladders): [0] * len(measured)}).copy(deep=True)
    for at, (name, dtype, rate) in enumerate(measured):
        for column, value in (("name", name), ("dtype", dtype), ("measured", rate)):
            held_ceilings[column].values[at] = value
    return dataclasses.replace(ladders, results=results, ceilings=held_ceilings if ceilings else xr.Dataset())
