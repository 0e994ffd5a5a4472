"""Of studies on a CPU: accuracy, solvers, sparsity, speed."""

from __future__ import annotations

import re

from recorded import ALPHA, FULL_PROFILE, RECORDS, times, to_the_end


def what_it_takes() -> list[float | str]:
    return ["a wall time, by hand"] * 1 + ["du, by hand"] + ["a wall time, by hand"] * 2 + ["du, by hand"] * 2


def cpu_speed() -> list[float | str]:
    def ms(implementation: str, pass_: str = "forward") -> float:
        where = {"implementation": implementation, "pass": pass_, "threads": 2}
        return 1e3 * RECORDS.one("cpu-speed", "cpu-speed", "time_median", **where)

    def told(column: str) -> float:
        return RECORDS.one("cpu-speed", "cpu-speed", column, implementation="screened", pass_="forward", threads=2)

    forward, both = ms("screened"), ms("screened", "forward+backward")
    return [
        *(
            told("threads"),
            "the batch of every case",
            told("heads"),
            told("n"),
            told("head_dim"),
            told("query_variance"),
        ),
        ALPHA,
        *(forward, *times(ms("torch-softmax"), forward)),
        *(both, *times(ms("torch-softmax", "forward+backward"), both)),
        *(forward, *times(ms("torch-entmax15"), forward)),
        *(forward, *times(ms("torch-entmax-bisect"), forward)),
    ]


def cpu_speed_and_memory() -> list[float | str]:
    def of(
        column: str, implementation: str, pass_: str = "forward", report: str = "cpu-speed", threads: int = 2
    ) -> float:
        where = {"implementation": implementation, "pass": pass_, "threads": threads}
        return RECORDS.one(report, report, column, **where)

    def interval(implementation: str, pass_: str, scale: float) -> list[float]:
        return [scale * of(f"time_{end}", implementation, pass_) for end in ("median", "low", "high")]

    def row(implementation: str) -> list[float]:
        both = [ms for pass_ in ("forward", "forward+backward") for ms in interval(implementation, pass_, 1e3)]
        return [*both, 1e-6 * of("peak_memory_bytes", implementation)]

    def version(of_package: str, implementation: str) -> float:
        held = RECORDS.values("cpu-speed", "cpu-speed", "version", implementation=implementation)
        return float(re.search(rf"{of_package} (\d+\.\d+)", str(held[0]))[1])

    def ratio(implementation: str, pass_: str = "forward") -> float:
        return of("time_median", implementation, pass_) / of("time_median", "screened", pass_)

    torch, package = version("torch", "torch-softmax"), version("entmax", "torch-entmax15")
    single = of("time_median", "screened", threads=1)
    settings = (of(column, "screened") for column in ("heads", "n", "head_dim", "query_variance", "support_mean"))
    memory = (
        1e-6 * of("peak_memory_bytes", name, report="cpu-memory")
        for name in ("screened", "torch-entmax15", "torch-entmax-bisect")
    )
    return [
        *(ALPHA, "the batch of every case", *settings, "p > 0", of("threads", "screened"), "95 % intervals"),
        of("threads", "screened"),
        *row("screened"),
        *(torch, *row("torch-softmax")),
        *(torch, *row("torch-softmax-unfused")),
        *("k of the implementation", package, *row("torch-entmax15-k100")),
        *row("torch-entmax15"),
        *row("torch-entmax-bisect"),
        *row("reference"),
        *(ratio("torch-entmax15"), ratio("torch-entmax-bisect"), ratio("torch-softmax")),
        *(ratio("torch-softmax", "forward+backward"), 1e3 * single, single / of("time_median", "screened")),
        of("nmse", "screened"),
        *(of("n", "screened", report="cpu-memory"), of("heads", "screened", report="cpu-memory"), *memory),
    ]


def k_keep() -> list[float | str]:
    percent = {"mass_kept", "token_sparsity"}
    columns = "mse_vs_entmax nmse_vs_entmax mass_kept mse_vs_softmax nmse_vs_softmax token_sparsity".split()

    def of(column: str, scope: str, k: int) -> float:
        value = RECORDS.median("reproduce-quick", "accuracy", column, alpha=1.5, scope=scope, k_keep=k)
        return 100 * value if column in percent else value

    def row(scope: str, k: int) -> list[float]:
        return [of(column, scope, k) for column in columns]

    where = {"alpha": 1.5, "scope": "all", "k_keep": 1}
    heads = RECORDS.values("reproduce-quick", "accuracy", "mass_kept", **where).size
    tokens = RECORDS.one("reproduce-quick", "accuracy", "length", **where)
    a_row = [figure for k in (1, 2, 4, 8, 16) for figure in (k, *row("row", k))]
    a_block = [figure for k in (2, 4, 8) for figure in (k, *row("block", k))]
    block = RECORDS.one("reproduce-quick", "accuracy", "block", scope="block")
    return [heads, tokens, ALPHA, *a_row, 32, 64, *row("row", 32), 1, block, *row("block", 1), *a_block, *row("all", 1)]


def decoder_k_keep() -> list[float | str]:
    study = ("reproduce-quick", "accuracy-decoder")
    percent = {"mass_kept", "token_sparsity"}
    columns = "mse_vs_entmax nmse_vs_entmax mass_kept mse_vs_softmax nmse_vs_softmax token_sparsity".split()

    def of(column: str, k: int, **where: object) -> float:
        value = RECORDS.median(*study, column, alpha=1.5, scope="row", k_keep=k, **where)
        return 100 * value if column in percent else value if value > 1e-20 else 0.0

    heads = RECORDS.values(*study, "mass_kept", k_keep=8).size
    rows = [figure for k in (2, 8, 32) for figure in (k, *(of(column, k) for column in columns))]
    lost = [100 - of("mass_kept", 8), 100 - of("mass_kept", 8, layer=0)]
    return [heads, RECORDS.one(*study, "length", k_keep=8), ALPHA, *rows, 8, lost[0], 0, lost[1]]


def iterations() -> list[float | str]:
    solvers = ("bisection", "newton", "halley_bisection", "histogram")

    def of(solver: str, tolerance: float, statistic: str = "mean") -> float:
        where = {"solver": solver, "tolerance": tolerance}
        return RECORDS.one("reproduce-quick", "solver-tolerance", f"iterations_{statistic}", **where)

    rows = [figure for power in range(1, 6) for figure in (10.0**-power, *(of(s, 10.0**-power) for s in solvers))]
    last = [of("bisection", 1e-6), of("newton", 1e-6)]
    last += [of(s, 1e-6, statistic) for s in solvers[2:] for statistic in ("mean", "max")]
    bins = RECORDS.one("reproduce-quick", "solver-tolerance", "histogram_bins", solver="histogram")
    return ["sum p - 1", bins, *rows, 1e-6, *last, *(to_the_end(s) for s in solvers)]


def sink() -> list[float | str]:
    cases = [(gap, spread) for gap in (0.5, 1.5) for spread in (0.1, 0.3)]

    def row(steps: int) -> list[float]:
        where = {"solver": "histogram", "max_iterations": steps}
        return [
            RECORDS.one("reproduce-quick", "solver-sink", "residual_max", gap=gap, spread=spread, **where)
            for gap, spread in cases
        ]

    bins = RECORDS.one("reproduce-quick", "solver-sink", "histogram_bins", solver="histogram")
    taken = RECORDS.values("reproduce-quick", "solver-sink", "iterations_max", solver="histogram", max_iterations=0)
    return [
        bins,
        *(figure for case in cases for figure in case),
        1,
        *row(1),
        2,
        *row(2),
        taken.min(),
        taken.max(),
        *row(0),
    ]


def captured_sparsity() -> list[float | str]:
    columns = {
        "token_sparsity": 100,
        "block_sparsity_64": 100,
        "block_sparsity_128": 100,
        "support_mean": 1,
        "support_max": 1,
    }

    def of(column: str, alpha: float, **where: object) -> float:
        return RECORDS.median("reproduce-quick", "captured-sparsity", column, alpha=alpha, **where)

    def row(alpha: float) -> list[float]:
        return [alpha, *(scale * of(column, alpha) for column, scale in columns.items())]

    heads = RECORDS.values("reproduce-quick", "captured-sparsity", "support_mean", alpha=1.5).size
    unrecorded = [FULL_PROFILE] * 6
    between = [of("support_mean", 1.5, layer=layer) for layer in range(1, 5)]
    return [
        *(heads, of("length", 1.5), *["of the tiles' names"] * 4),
        *(*unrecorded, *unrecorded, *row(1.25), *row(1.5), *unrecorded, *row(2.0)),
        *(0, of("support_mean", 1.5, layer=0), 1.5, of("support_mean", 1.25, layer=0), 1.25),
        *(1, 4, min(between), max(between)),
    ]


def workloads() -> list[float | str]:
    def of(column: str, workload: str) -> float:
        return RECORDS.one("reproduce-quick", "workloads", column, input=workload, alpha=1.5)

    rows = [
        (of("support_mean", name), 100 * of("block_sparsity_64", name))
        for name in ("gaussian", "clustered", "local", "sink", "ties")
    ]
    variance = of("query_variance", "gaussian")
    return [
        of("length", "gaussian"),
        ALPHA,
        variance,
        *["of the tiles' names"] * 2,
        *(figure for row in rows for figure in row),
    ]


def power() -> list[float | str]:
    columns = "mse_vs_entmax nmse_vs_entmax cosine_vs_entmax total_variation support_mean entmax_support_mean".split()

    def of(column: str, alpha: float) -> float:
        return RECORDS.median("reproduce-quick", "power", column, alpha=alpha, normalized=1)

    def row(alpha: float) -> list[float]:
        return [alpha, 1 / (alpha - 1), *(of(column, alpha) for column in columns)]

    golden = (1 + 5**0.5) / 2
    heads = RECORDS.values("reproduce-quick", "power", "mse_vs_entmax", alpha=1.5, normalized=1).size
    last = [heads, RECORDS.one("reproduce-quick", "power", "length", alpha=1.5, normalized=1)]
    rows = [figure for alpha in (1.25, 1.5, golden, 2.0) for figure in row(alpha)]
    return ["1/(alpha-1)", *[FULL_PROFILE] * 8, *rows, *last]
