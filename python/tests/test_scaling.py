"""The model of time over many GPUs, and what stands beside it: bytes by hand, limits, and a made-up report of which the model is true."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import xarray as xr

from made_up import distributed_cases
from splash_laboratory import ReportError, scaling
from splash_laboratory.distributed_model import Problem, Rates, best, modelled, received_bytes, serves
from splash_laboratory.plots import FIGURES, NotInReport

P = Problem(length=1 << 15, heads=16, kv_heads=16, head_dim=128)
BOTH = "forward_backward"


def test_bytes_are_those_of_the_decision():
    """0059: two ranks, 16/16 heads, D 128, 32k tokens, bfloat16: both 134 MB forward; backward 268 MB and 134 MB."""
    assert received_bytes(P, "gather", "forward", 2) == received_bytes(P, "heads", "forward", 2) == 2**27
    assert received_bytes(P, "gather", BOTH, 2) == 3 * 2**27 and received_bytes(P, "heads", BOTH, 2) == 2**28
    grouped = dataclasses.replace(P, heads=32, kv_heads=8)
    assert received_bytes(grouped, "gather", "forward", 8) == 7 / 8 * 2**15 * 2 * 8 * 128 * 2
    assert received_bytes(grouped, "heads", "forward", 8) == 7 / 8 * 2**15 / 8 * 2 * (32 + 8) * 128 * 2
    assert received_bytes(dataclasses.replace(P, width=4), "gather", BOTH, 2) == 6 * 2**27


def test_one_host_is_shared_out_and_its_bytes_travel():
    model = modelled(8.0, P, "gather", "forward", 8, Rates(link=1e8))
    assert model.computing == 1.0 and model.exchanging == received_bytes(P, "gather", "forward", 8) / 1e8
    assert model.in_turn == model.computing + model.exchanging and model.hidden == max(model.computing, model.exchanging)


def test_between_hosts_gathered_keys_come_once_and_exchanges_to_each():
    rates = Rates(link=1e30, network=1e8, gpus_a_host=4)
    of_others = received_bytes(P, "gather", "forward", 8) * 4 / 7
    assert modelled(1.0, P, "gather", "forward", 8, rates).exchanging == pytest.approx(of_others / 4 / 1e8)
    assert modelled(1.0, P, "heads", "forward", 8, rates).exchanging == pytest.approx(received_bytes(P, "heads", "forward", 8) * 4 / 7 / 1e8)
    assert modelled(1.0, P, "heads", "forward", 4, rates).exchanging < 1e-20  # all in one host
    slow_inside = dataclasses.replace(rates, link=1.0)
    assert modelled(1.0, P, "gather", "forward", 8, slow_inside).exchanging == received_bytes(P, "gather", "forward", 8)


def test_the_mode_is_one_that_serves():
    assert serves(P, "heads", 16) and not serves(P, "heads", 32) and serves(P, "gather", 1024) and not serves(P, "gather", 1 << 15)
    assert best(1.0, P, BOTH, 16).mode == "heads" and best(1.0, P, BOTH, 32).mode == "gather"
    assert best(1.0, dataclasses.replace(P, heads=64, kv_heads=2), "forward", 2).mode == "gather"  # few keys, many queries
    with pytest.raises(ValueError, match="32768 tokens do not make 65536 equal chunks"):
        best(1.0, P, "forward", 1 << 15)


def test_one_gpus_times_and_those_of_more_may_stand_in_two_reports(monkeypatch):
    results = distributed_cases()
    one = np.isin(results["implementation"].values, ("entmax", "softmax"))
    parts = {"one.h5": results.isel(case=one), "more.h5": results.isel(case=~one)}
    monkeypatch.setattr(scaling, "open_report", lambda name: type("Held", (), {"results": parts[name]}))
    cases = scaling.together(["more.h5", "one.h5"])
    assert scaling.times_of(cases) == scaling.times_of(scaling.cases_of(results)) and scaling.rates_of(cases) == Rates(link=2e11)


def test_a_measurement_stands_beside_the_model_with_its_error():
    """The made-up ranks take a tenth longer than the model with nothing hidden."""
    cases = scaling.cases_of(distributed_cases())
    rates = scaling.rates_of(cases)
    assert rates == Rates(link=2e11)
    told = "\n".join(scaling.lines(cases, rates))
    assert "A model, not a measurement: 200 GB/s inside a host of 8 GPUs, 50 GB/s a GPU between hosts." in told
    both = told.split("forward_backward, 131072 tokens, 16/16 heads, head_dim 128: one GPU 80 ms")[1].split("\n\n")[0].splitlines()
    rows = {int(line.split()[0]): line for line in both[2:]}
    assert list(rows) == [2**i for i in range(1, 11)]
    exchanges = received_bytes(dataclasses.replace(P, length=1 << 17), "heads", BOTH, 2) / 2e11
    assert rows[2].split()[1:4] == ["heads", "40", "ms"] and f"{1e3 * exchanges:.3g} ms" in rows[2]
    assert rows[2].endswith(f"{1.1e3 * (0.04 + exchanges):.3g} ms     -9%") and "%" not in rows[8] and "gather" in rows[1024]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--link", "fast"], "argument --link: 'fast'; it takes a rate in GB/s above 0"),
        (["--network", "0"], "it takes a rate in GB/s above 0"),
        (["--gpus-a-host", "0"], "it takes a number of GPUs from 1 on"),
        ([], "no such file"),
    ],
)
def test_what_is_refused(words: list[str], sentence: str, capsys: pytest.CaptureFixture) -> None:
    try:
        code = scaling.main(["gone.h5", *words])
    except SystemExit as end:
        code = end.code
    heard = capsys.readouterr()
    assert code == 2 and sentence in heard.err and heard.err.count("\n") == 1 and heard.out == ""


def test_a_report_of_something_else_is_told(real_report, capsys: pytest.CaptureFixture) -> None:
    assert scaling.main([str(real_report)]) == 2
    assert "holds no case of the kind gpu-distributed that ran" in capsys.readouterr().err
    none = distributed_cases()
    none["time_median"][:] = np.nan
    with pytest.raises(ReportError, match="no case"):
        scaling.cases_of(none)


def drawn_dots(name: str, results: xr.Dataset) -> dict[str, list[list[tuple[float, float]]]]:
    """Of each panel, the dots of each curve."""
    report = type("Held", (), {"results": results})()
    figure = FIGURES[name](report)
    dots = lambda axes: [[(x, y) for x, y in line.get_xydata() if y == y] for line in axes.lines if line.get_marker() == "o"]  # noqa: E731
    return {axes.get_title(loc="left"): dots(axes) for axes in figure.axes}


def test_plots_show_speed_and_share():
    results = distributed_cases()
    time = {(row["implementation"], row["pass"], int(row["ranks"]), int(row["length"])): row["time_median"] for row in results.to_dataframe().to_dict("records")}
    strong = drawn_dots("strong-scaling", results)["Forward"]
    ours = time["entmax-heads", "forward", 2, 1 << 17]
    assert [curve for curve in strong if curve == [(2, pytest.approx(time["entmax", "forward", 1, 1 << 17] / ours))]]
    [weak] = drawn_dots("weak-scaling", results)["Forward"]
    assert weak == [(2, pytest.approx(2 * time["entmax", "forward", 1, 1 << 16] / ours))]
    with pytest.raises(NotInReport, match="one GPU and over several"):
        FIGURES["strong-scaling"](type("Held", (), {"results": results.isel(case=results["implementation"].values == "entmax")})())
