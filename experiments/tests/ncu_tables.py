"""Tables as Nsight Compute prints them with --csv (the layout of 2022.1 to 2025.3), of kernels whose cause is known."""

from __future__ import annotations

import csv
import io

LAUNCH = ("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Context", "Stream", "Block Size", "Grid Size")
LAUNCH += ("Device", "CC")
SAXPY = "saxpy(int, float, const float *, float *)"
TRANSPOSE = "void transpose<(int)32>(float *, const float *)"

Metrics = dict[str, tuple[str, str]]  # name: (unit, value)


def launch(name: str = SAXPY, at: int = 0, process: int = 4711, grid: int = 65536, cc: str = "9.0") -> list[str]:
    return [str(at), str(process), "app", "127.0.0.1", name, "1", "7", "(256, 1, 1)", f"({grid}, 1, 1)", "0", cc]


def metrics(us: str = "181.25", **shares: str) -> Metrics:
    """A kernel that DRAM bounds; `shares` of dram, l2, l1 and sm in percent."""
    told = {"dram": "92.10", "l2": "40.12", "l1": "25.04", "sm": "12.01"} | shares
    peak = "throughput.avg.pct_of_peak_sustained_elapsed"
    return {
        "gpu__time_duration.sum": ("us", us),
        "sm__cycles_elapsed.avg.per_second": ("Ghz", "1.75"),
        "dram__bytes_read.sum": ("Mbyte", "536.87"),
        "dram__bytes_write.sum": ("Mbyte", "268.13"),
        f"dram__{peak}": ("%", told["dram"]),
        f"lts__{peak}": ("%", told["l2"]),
        f"l1tex__{peak}": ("%", told["l1"]),
        f"sm__{peak}": ("%", told["sm"]),
        "smsp__inst_executed.sum": ("inst", "5,767,168"),
        "smsp__sass_thread_inst_executed_op_ffma_pred_on.sum": ("inst", "16,777,216"),
        "launch__registers_per_thread": ("register/thread", "16"),
        "launch__shared_mem_per_block_dynamic": ("byte/block", "0"),
        "launch__shared_mem_per_block_static": ("byte/block", "0"),
        "launch__sm_count": ("SM", "132"),
    }


def stalls(**ratios: str) -> Metrics:
    before, after = "smsp__average_warps_issue_stalled_", "_per_issue_active.ratio"
    listed = {f"{before}{reason}{after}": ("inst", ratio) for reason, ratio in ratios.items()}
    return listed | {"smsp__average_warp_latency_per_inst_issued.ratio": ("inst", "20.00")}


def text(rows: list[list[str]], separator: str = ",") -> str:
    out = io.StringIO()
    csv.writer(out, quoting=csv.QUOTE_ALL, lineterminator="\n", delimiter=separator).writerows(rows)
    return out.getvalue()


def raw(launches: list[tuple[list[str], Metrics]], separator: str = ",") -> str:
    names = list(launches[0][1])
    rows = [[*LAUNCH, *names], [""] * len(LAUNCH) + [unit for unit, _ in launches[0][1].values()]]
    return text([*rows, *([*who, *(value for _, value in told.values())] for who, told in launches)], separator)


def summary(name: str, us: tuple[str, str, str], told: Metrics, launches: int) -> str:
    """`us`: minimum, maximum and average."""
    own = ("Process ID", "Process Name", "Host Name", "Kernel Name", "Block Size", "Grid Size", "Device", "CC", "Invocations")
    header = [*own, "Section Name", "Metric Name", "Metric Unit", "Minimum", "Maximum", "Average"]
    who = ["1", "app", "127.0.0.1", name, "(256, 1, 1)", "(65536, 1, 1)", "0", "9.0", str(launches), "Section"]
    rows = [[*who, metric, unit, value, value, value] for metric, (unit, value) in told.items()]
    times = next(row for row in rows if row[len(who)] == "gpu__time_duration.sum")
    times[-3:] = us
    return text([header, *rows])
