"""splash counters: what a profiler saw beside what was counted; the tables of ncu are made up from a recorded report."""

from __future__ import annotations

import csv
import json
import re
import shlex
from pathlib import Path

import pytest

from conftest import ROOT, Splash

REPORTS = ROOT / "data" / "reports"
LADDERS = str(REPORTS / "ladders-h200.h5")
OF_ANOTHER_KERNEL = str(ROOT / "analysis" / "tests" / "data" / "ncu-raw.csv")
VARIANT = "wmma/10-warp-specialised"


@pytest.fixture
def case(splash: Splash) -> dict:
    """A recorded case of one launch, without counters."""
    cases = splash.json("show", LADDERS, "--results")["cases"]
    return next(
        c for c in cases if c["implementation"] == VARIANT and c["launches"] == 1 and not c.get("kernel_counter")
    )


def metrics_of(case: dict, **changes: tuple[str, str]) -> dict[str, tuple[str, str]]:
    """Name: (value, unit), of a kernel that reads half as much again as is counted, and writes its result once."""
    written = 2 * case["batch"] * case["q_heads"] * case["q_len"] * case["head_dim"]
    read = 1.5 * (case["dram_bytes_counted"] - written)
    return {
        "dram__bytes_read.sum": (f"{read / 1e6:.6f}", "Mbyte"),
        "dram__bytes_write.sum": (f"{written / 1e6:.6f}", "Mbyte"),
        "lts__t_sectors_srcunit_tex.sum": (f"{case['l2_bytes_counted'] / 32:,.0f}", "sector"),
        "launch__registers_per_thread": (f"{case['registers']:g}", "register/thread"),
        "launch__shared_mem_per_block_dynamic": (f"{case['shared_bytes'] / 1000:.6f}", "Kbyte/block"),
        "launch__shared_mem_per_block_static": ("0", "byte/block"),
        "gpu__time_duration.sum": ("1.25", "ms"),
    } | changes


def launch_of(case: dict) -> dict[str, str]:
    return {
        "ID": "0",
        "Kernel Name": "void scope::attention<__nv_bfloat16, 64>(Problem, Maps)",
        "Block Size": f"({case['threads']:g}, 1, 1)",
        "Grid Size": f"({case['blocks']:g}, 1, 1)",
    }


def write_table(splash: Splash, rows: list[list[str]], name: str = "raw.csv") -> Path:
    path = splash.folder / name
    with path.open("w", newline="") as file:
        csv.writer(file, quoting=csv.QUOTE_ALL).writerows(rows)
    return path


def raw(splash: Splash, case: dict, metrics: dict[str, tuple[str, str]], **options: str) -> Path:
    launch = launch_of(case)
    header = [*launch, *metrics]
    units = [""] * len(launch) + [unit for _, unit in metrics.values()]
    values = [*launch.values(), *(value for value, _ in metrics.values())]
    return write_table(splash, [header, units, values], **options)


def details(splash: Splash, case: dict, metrics: dict[str, tuple[str, str]]) -> Path:
    launch = launch_of(case)
    header = [*launch, "Metric Name", "Metric Unit", "Metric Value"]
    return write_table(splash, [header, *([*launch.values(), n, unit, value] for n, (value, unit) in metrics.items())])


def one_kernel(found: dict) -> tuple[dict, dict[str, dict]]:
    (kernel,) = found["kernels"]
    return kernel, {level["level"]: level for level in kernel["levels"]}


@pytest.mark.parametrize("form", [raw, details])
def test_both_forms_of_ncu_tell_the_same(splash: Splash, case: dict, form):
    table = form(splash, case, metrics_of(case))
    found = splash.json("counters", LADDERS, "--case", case["case_id"], "--ncu", table)
    kernel, levels = one_kernel(found)
    assert kernel["case_id"] == case["case_id"] and kernel["function"] == "attention"
    dram = levels["DRAM"]
    refetched = dram["parts"].pop("refetched tiles")
    assert refetched == pytest.approx(dram["counter"] - dram["counted"], abs=2)
    assert dram["within_15_percent"] is False and dram["parts"] == {"unexplained": pytest.approx(0, abs=2)}
    assert levels["L2"]["within_15_percent"] is True and levels["L2"]["simulated_within_15_percent"] is True
    assert dram["simulated"] > 0 and levels["products"]["simulated"] is None
    assert levels["products"]["counter"] is None and levels["products"]["within_15_percent"] is None
    assert levels["products"]["padding"] == case["executed_flops"] - case["useful_flops"]
    assert kernel["counters"]["time_counter"] == pytest.approx(1.25e-3)


def test_tables_and_summary(splash: Splash, case: dict):
    done = splash("counters", LADDERS, "--case", case["case_id"], "--ncu", raw(splash, case, metrics_of(case)))
    assert done.returncode == 0 and done.stderr == ""
    assert re.search(r"^DRAM .* refetched tiles \+", done.stdout, re.M)
    assert re.search(r"^L2 .* 1 +[0-9.]+", done.stdout, re.M)
    assert "attention: 1250 us" in done.stdout
    assert re.search(r"\nL2: counted within 15 % of the counter for 1 of 1, simulated for [01] of 1\n", done.stdout)
    assert re.search(r"\nDRAM: counted within 15 % of the counter for 0 of 1, simulated for [01] of 1\n$", done.stdout)


def test_a_report_keeps_imported_counters(splash: Splash, case: dict):
    choice = ["--case", case["case_id"]]
    table = raw(splash, case, metrics_of(case))
    imported = splash.json("counters", LADDERS, *choice, "--ncu", table, "--write", "with.h5")
    assert splash.json("counters", "with.h5", *choice) == imported
    shown = splash.json("show", "with.h5", "--results")
    column = next(c for c in shown["columns"] if c["name"] == "dram_read_bytes_counter")
    assert column["units"] == "bytes" and not column["reproducible"]
    row = next(c for c in shown["cases"] if c["case_id"] == case["case_id"])
    assert row["kernel_counter"] == "attention"
    assert row["dram_read_bytes_counter"] == imported["kernels"][0]["counters"]["dram_read_bytes_counter"]
    counters = {c["case_id"]: c.get("dram_read_bytes_counter") for c in shown["cases"]}
    before = splash.json("show", LADDERS, "--results")["cases"]
    assert all(counters[c["case_id"]] == c.get("dram_read_bytes_counter") for c in before if c["case_id"] != row["case_id"])


def test_without_counters_what_is_counted_is_shown_and_said_to_be(splash: Splash, case: dict):
    done = splash("counters", LADDERS, "--case", case["case_id"])
    assert done.returncode == 0 and "no counters of these kernels; what is shown is counted alone" in done.stderr
    assert re.search(r"^DRAM +\S+ MB +\S+ MB +- +- +-", done.stdout, re.M)
    assert "of the counter" not in done.stdout
    said = "==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access the counters\n"
    log = splash.write("ncu.log", "==PROF== Connected to process 7\n" + said)
    done = splash("counters", LADDERS, "--case", case["case_id"], "--ncu", log)
    assert done.returncode == 0 and "ncu says: ERR_NVGPUCTRPERM" in done.stderr and "DRAM" in done.stdout
    assert "ERR_NVGPUCTRPERM" in splash.refused("counters", LADDERS, "--ncu", log, "--write", "with.h5")


def test_the_commands_leave_a_folder_of_tables_to_import(splash: Splash, case: dict):
    done = splash("counters", LADDERS, "--command", "--case", case["case_id"])
    (profile,) = map(shlex.split, done.stdout.splitlines())
    assert profile[:3] == ["ncu", "--profile-from-start", "off"]
    asked = profile[profile.index("--metrics") + 1].split(",")
    assert {"dram__bytes_read.sum", "lts__t_sectors_srcunit_tex.sum", "launch__registers_per_thread"} <= set(asked)
    bench = profile[profile.index("build/release/bin/gpu_bench") :]
    assert bench[bench.index("--variants") + 1] == VARIANT
    assert bench[bench.index("--dtype") + 1] == case["dtype"]
    assert bench[bench.index("--shape") + 1].split(",")[3:] == [
        f"{case[n]:g}" for n in ("q_len", "kv_len", "head_dim")
    ]
    declared = (ROOT / "experiments" / "bench" / "gpu_bench.cpp").read_text()
    every = splash("counters", LADDERS, "--command").stdout
    options = {o for bench in re.findall(r"gpu_bench (.*)", every) for o in re.findall(r"--[a-z-]+", bench)}
    assert {"--profile", "--causal", "--positions", "--alpha", "--k-keep", "--share"} <= options
    assert all(f'"{option}"' in declared for option in options)
    assert "--csv" in profile
    assert "holds no table of the" in splash.refused("counters", LADDERS, "--ncu", ".")
    table = raw(splash, case, metrics_of(case), name=profile[profile.index("--log-file") + 1])
    told = splash.json("counters", LADDERS, "--ncu", ".")
    assert told == splash.json("counters", LADDERS, "--case", case["case_id"], "--ncu", table)
    table.write_text("==ERROR== ERR_NVGPUCTRPERM - no permission\n")
    assert "ERR_NVGPUCTRPERM" in splash.refused("counters", LADDERS, "--ncu", ".")


def test_no_command_profiles_other_inputs_than_a_cases_own(splash: Splash):
    flagship = str(REPORTS / "flagship-h200.h5")
    cases = splash.json("show", flagship, "--results")["cases"]
    of_models = [one["case_id"] for one in cases if one["implementation"].startswith("entmax") and one["input"] != "gaussian"]
    assert of_models
    said = splash.refused("counters", flagship, "--command", "--case", of_models[0])
    assert "takes q, k and v of g" in said and "gpu_bench makes Gaussian ones" in said
    done = splash("counters", flagship, "--command", "--kernels", "entmax")
    left_out, chosen = map(int, re.search(r"(\d+) of (\d+) cases left out", done.stderr).groups())
    assert done.returncode == 0 and 0 < left_out < chosen == left_out + len(done.stdout.splitlines())
    assert not any(case in done.stdout for case in of_models)


def test_refusals(splash: Splash, case: dict):
    choice = ["counters", LADDERS, "--case", case["case_id"], "--ncu"]
    assert "of another kernel: forward_kernel (2048 blocks x 256" in splash.refused(*choice, OF_ANOTHER_KERNEL)
    good = metrics_of(case)
    launch_only = {name: value for name, value in good.items() if name.startswith("launch__")}
    assert "no counters of bytes or FLOPs" in splash.refused(*choice, raw(splash, case, launch_only))
    unit = metrics_of(case, **{"dram__bytes_read.sum": ("1", "furlong")})
    assert "unit 'furlong'" in splash.refused(*choice, raw(splash, case, unit))
    value = metrics_of(case, **{"dram__bytes_read.sum": ("much", "byte")})
    assert "'much' of the metric dram__bytes_read.sum is no number" in splash.refused(*choice, raw(splash, case, value))
    assert "no line names its columns" in splash.refused(*choice, splash.write("no.csv", "a,b\n1,2\n"))
    assert "cannot read ncu's table nowhere.csv: No such file" in splash.refused(*choice, "nowhere.csv")
    table = raw(splash, case, good)
    assert "starts with 'zz'" in splash.refused("counters", LADDERS, "--case", "zz", "--ncu", table)
    assert "starts with 'nope'" in splash.refused("counters", LADDERS, "--kernels", "nope", "--ncu", table)
    assert "gpu-attention" in splash.refused("counters", str(REPORTS / "cpu-speed.h5"), "--ncu", table)
    assert "--ncu" in splash.refused("counters", LADDERS, "--write", "with.h5")
    assert "--command" in splash.refused("counters", LADDERS, "--ncu", table, "--command")


def test_counters_that_fit_several_cases_need_a_case(splash: Splash):
    cases = splash.json("show", LADDERS, "--results")["cases"]
    launches: dict[tuple, list[dict]] = {}
    for c in cases:
        if c["launches"] == 1:
            key = tuple(c[n] for n in ("implementation", "blocks", "threads", "registers", "shared_bytes"))
            launches.setdefault(key, []).append(c)
    twins = next(cases for cases in launches.values() if len(cases) > 1)
    table = raw(splash, twins[0], metrics_of(twins[0]))
    words = ["counters", LADDERS, "--kernels", twins[0]["implementation"], "--ncu", table]
    assert "name one with --case" in splash.refused(*words)
    assert splash(*words, "--case", twins[1]["case_id"]).returncode == 0


def test_launches_of_a_call_speak_of_the_times_that_a_profiler_saw(splash: Splash):
    chosen = "splash/0-three-launches"
    rows = splash.json("show", LADDERS, "--results")["cases"]
    case = next(c for c in rows if c["implementation"] == chosen and c.get("all_launches"))
    launches, times = json.loads(case["all_launches"]), (40.0, 900.0, 60.0)
    metrics = metrics_of(case)
    header = [*launch_of(case), *metrics]
    table = [header, [""] * 4 + [unit for _, unit in metrics.values()]]
    for at, (launch, us) in enumerate(zip(launches, times, strict=True)):
        own = metrics | {"gpu__time_duration.sum": (f"{1e-3 * us}", "ms")}
        if launch["kernel"] != case["kernel"]:
            own |= {"launch__registers_per_thread": ("200", "register/thread")}
        shape = (f"({launch['threads']}, 1, 1)", f"({launch['blocks']}, 1, 1)")
        table.append([str(at), f"void scope::{launch['kernel']}(P)", *shape, *(value for value, _ in own.values())])
    raw_table = write_table(splash, table)
    choice = ["--case", case["case_id"]]
    found = splash.json("counters", LADDERS, *choice, "--ncu", raw_table, "--write", "with.h5")
    assert found["kernels"][0]["launch_seconds"] == pytest.approx([1e-6 * us for us in times])
    assert splash.json("counters", "with.h5", *choice) == found
    before, after = (
        next(k for k in splash.json("analyze", report, "--kernels", chosen)["kernels"] if k["case_id"] == case["case_id"])
        for report in (LADDERS, "with.h5")
    )
    assert {launch["seconds_from"] for launch in before["kernels"]} == {"estimate"}
    assert {launch["seconds_from"] for launch in after["kernels"]} == {"counters"}
    assert after["kernel"] == launches[1]["kernel"]
    shares = [launch["seconds"] / after["kernels"][1]["seconds"] for launch in after["kernels"]]
    assert shares == pytest.approx([us / times[1] for us in times])
