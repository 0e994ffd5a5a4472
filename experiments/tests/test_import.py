"""splash import: from a table of Nsight Compute about any kernel to a report that every command reads."""

from __future__ import annotations

import ncu_tables as tables
import pytest
from conftest import ROOT, Splash

H200 = ("--gpu", "NVIDIA H200")


def imported(splash: Splash, table: str, *words: str, out: str = "my.h5") -> dict:
    splash.write("ncu.csv", table)
    return splash.json("import", "ncu.csv", "--out", out, *(words or H200))


def diagnosed(splash: Splash, report: str = "my.h5") -> dict[str, dict]:
    return {kernel["implementation"]: kernel for kernel in splash.json("diagnose", report)["kernels"]}


def test_a_table_becomes_a_report_that_is_diagnosed(splash: Splash):
    streams = tables.metrics() | tables.stalls(long_scoreboard="14.00", barrier="0.50", selected="1.00")
    conflicts = tables.metrics("500.00", dram="33.00", l1="96.20", sm="30.00") | tables.stalls(
        long_scoreboard="3.00", barrier="0.50", selected="1.00"
    )
    waits = tables.metrics("2,000.00", dram="8.40", l1="9.00", l2="12.00") | tables.stalls(
        long_scoreboard="6.00", barrier="12.00", selected="1.00"
    )
    launches = [
        (tables.launch(), streams),
        (tables.launch(tables.TRANSPOSE, 1), conflicts),
        (tables.launch("void a::softmax<float>(float *)", 2), waits),
    ]
    found = imported(splash, "==PROF== Connected\n" + tables.raw(launches))
    assert found["gpu"] == "NVIDIA H200" and [k["impossible"] for k in found["kernels"]] == ["", "", ""]
    verdicts = diagnosed(splash)
    assert {name: kernel["findings"][0]["cause"] for name, kernel in verdicts.items()} == {
        "saxpy": "DRAM",
        "transpose": "L1",
        "softmax": "latency",
    }
    assert "at barriers of their block (barrier, 60 % of their cycles)" in verdicts["softmax"]["findings"][0]["sentence"]
    assert verdicts["saxpy"]["warp_stalls"]["long_scoreboard"] == pytest.approx(0.7)
    table = splash("diagnose", "my.h5").stdout
    named = [line.split()[0] for line in table.splitlines() if line.split()[:1] and line.split()[0] in verdicts]
    assert named == ["softmax", "transpose", "saxpy"], "worst first"
    said = splash("diagnose", "my.h5", "--details").stdout
    assert "seen: warps wait for data of L1, L2 or DRAM (long scoreboard, 70 % of their cycles)" in said
    analysed = splash.json("analyze", "my.h5")["kernels"][0]
    assert analysed["floor_seconds"]["DRAM"] == pytest.approx(805e6 / 4.8e12)
    assert {r["unit"]: r["share"] for r in analysed["resources"]}["DRAM"] == pytest.approx(0.921)
    cases = splash.json("show", "my.h5", "--results")["cases"]
    assert [case["verdict"] for case in cases] == ["DRAM", "L1", "latency"], "the page tells them"
    assert "saxpy" in splash("analyze", "my.h5").stdout and "saxpy" in splash("show", "my.h5", "--results").stdout


@pytest.mark.parametrize("page", ["set-full", "details"])
def test_what_ncu_printed_of_kernels_of_known_cause_on_an_h100(splash: Splash, page: str):
    """Of tables of ncu 2025.3, of examples/bench under `--set full`. The details page tells neither shared memory nor float32 units apart."""
    table = str(ROOT / f"analysis/tests/data/ncu-{page}.csv")
    found = splash.json("import", table, "--gpu", "NVIDIA H100 80GB HBM3", "--out", "my.h5")
    assert [kernel["impossible"] for kernel in found["kernels"]] == [""] * 5
    assert {name: kernel["findings"][0]["cause"] for name, kernel in diagnosed(splash).items()} == {
        "saxpy": "DRAM",
        "transpose": "shared memory" if page == "set-full" else "L1",
        "gemm": "too little parallelism",
        "softmax": "latency",
        "horner": "products" if page == "set-full" else "issue slots",
    }


def test_what_if_knows_another_gpu_and_more_of_the_same_work(splash: Splash):
    imported(splash, tables.raw([(tables.launch(), tables.metrics())]))
    there = splash.json("what-if", "my.h5", "saxpy", "--gpu", "NVIDIA L4")
    assert there["predicted"]["seconds"] == pytest.approx(181.25e-6 * 4.8e12 / 300e9, rel=0.05)
    twice = splash.json("what-if", "my.h5", "saxpy", "batch=2")
    assert twice["predicted"]["blocks"] == 131072
    assert twice["predicted"]["seconds"] == pytest.approx(2 * 181.25e-6, rel=0.02)
    same = splash.json("what-if", "my.h5", "saxpy")
    assert same["answered_by"] == "measurement" and same["predicted"]["seconds"] == pytest.approx(181.25e-6)
    assert "tells nothing of tiles" in splash.refused("what-if", "my.h5", "saxpy", "tile_q=64")
    assert "q_len is not in a profiler's table" in splash.refused("what-if", "my.h5", "saxpy", "q_len=64")


def test_launches_have_a_median_and_a_spread(splash: Splash):
    launches = [(tables.launch(at=at), tables.metrics(us)) for at, us in enumerate(("180.00", "1,900.00", "190.00"))]
    (kernel,) = imported(splash, tables.raw(launches))["kernels"]
    assert kernel["launches"] == 3
    assert [kernel[name] for name in ("least_seconds", "seconds", "most_seconds")] == pytest.approx([180e-6, 190e-6, 1900e-6])
    (case,) = splash.json("show", "my.h5", "--results")["cases"]
    assert case["time"] == pytest.approx([180e-6, 1900e-6, 190e-6])
    splash.write("s.csv", tables.summary(tables.SAXPY, ("180.00", "1,900.00", "756.67"), tables.metrics(), 3))
    done = splash("import", "s.csv", "--out", "s.h5", *H200)
    assert done.returncode == 0 and "of 3 launches of saxpy the table has the average, no median" in done.stderr


def test_every_way_to_write_one_table_gives_one_report(splash: Splash):
    launches = [(tables.launch(at=at, process=process), tables.metrics()) for process in (7, 99) for at in range(3)]
    plain = tables.raw(launches)
    expected = imported(splash, plain)
    assert len(expected["kernels"]) == 2 and "process 99" in expected["kernels"][1]["problem"]
    commas = {name: (unit, value.translate(str.maketrans(",.", ".,"))) for name, (unit, value) in tables.metrics().items()}
    german = tables.raw([(who, commas) for who, _ in launches])
    ways = {
        "utf-16": plain.encode("utf-16"),
        "utf-16-le": plain.encode("utf-16-le"),
        "utf-8 with a mark": plain.encode("utf-8-sig"),
        "semicolons": tables.raw(launches, ";").encode(),
        "decimal commas": german.encode(),
        "rows upside down": "\n".join([plain.splitlines()[0], *plain.splitlines()[:0:-1]]).encode(),
    }
    for way, written in ways.items():
        (splash.folder / "ncu.csv").write_bytes(written)
        assert splash.json("import", "ncu.csv", "--out", "my.h5", *H200) == expected, way


def test_what_cannot_be_is_said_and_is_no_verdict(splash: Splash):
    table = tables.raw([(tables.launch(), tables.metrics("18.12", dram="9210.00"))])
    (kernel,) = imported(splash, table)["kernels"]
    assert "DRAM, share of its peak: 9210 % is more than all of it; likely the notation" in kernel["impossible"]
    assert "are 44.4 TB/s where NVIDIA H200 reaches 4.8 TB/s" in kernel["impossible"]
    assert diagnosed(splash)["saxpy"]["findings"][0]["cause"] != "DRAM"
    for command in ("diagnose", "analyze"):
        assert "impossible" in splash(command, "my.h5").stdout
    assert "impossible in saxpy" in splash("import", "ncu.csv", "--out", "my.h5", *H200).stdout
    splash.write("ncu.csv", tables.raw([(tables.launch(), tables.metrics() | {"dram__bytes_read.sum": ("Mbyte", "-5.00")})]))
    assert "is below zero" in splash("import", "ncu.csv", "--out", "my.h5", *H200).stdout


def test_a_gpu_that_no_file_describes_is_diagnosed_by_the_profilers_shares(splash: Splash):
    splash.write("ncu.csv", tables.raw([(tables.launch(cc="10.0"), tables.metrics())]))
    done = splash("import", "ncu.csv", "--gpu", "Example GPU", "--out", "my.h5")
    assert done.returncode == 0 and "no file of data/machines describes Example GPU: its peaks are not known" in done.stderr
    kernel = diagnosed(splash)["saxpy"]
    assert kernel["findings"][0]["cause"] == "DRAM"
    assert splash("analyze", "my.h5").returncode == 0
    assert "tells the peaks of Example GPU" in splash.refused("what-if", "my.h5", "saxpy", "--gpu", "NVIDIA L4")


def test_measured_ceilings_take_the_data_sheets_place(splash: Splash):
    measured = str(ROOT / "data" / "reports" / "ceilings-h200.h5")
    launches = [(tables.launch(), tables.metrics())]
    imported(splash, tables.raw(launches), *H200, "--ceilings", measured)
    assert splash.json("analyze", "my.h5")["kernels"][0]["floor_seconds"]["DRAM"] > 805e6 / 4.7e12
    words = ("import", "ncu.csv", "--out", "my.h5", "--gpu", "NVIDIA H100 80GB HBM3", "--ceilings", measured)
    assert "are of NVIDIA H200, and the table is of NVIDIA H100" in splash.refused(*words)


def test_tables_before_and_after_stay_apart_and_two_reports_compare(splash: Splash):
    for name, us in (("before", "181.25"), ("after", "90.00")):
        splash.write(f"{name}.csv", tables.raw([(tables.launch(at=at), tables.metrics(us)) for at in range(6)]))
        splash.json("import", f"{name}.csv", "--out", f"{name}.h5", *H200)
    both = splash.json("import", "before.csv", "after.csv", "--out", "both.h5", *H200)["kernels"]
    assert [kernel["process"] for kernel in both] == ["4711 of before.csv", "4711 of after.csv"]
    assert "1 case on both sides" in splash("compare", "before.h5", "after.h5").stdout
    assert splash("compare", "after.h5", "before.h5").returncode == 1  # slower


def test_refusals_say_why_and_leave_the_report_as_it_was(splash: Splash):
    plain = tables.raw([(tables.launch(), tables.metrics())])
    imported(splash, plain)
    before = (splash.folder / "my.h5").read_bytes()
    words = ("import", "ncu.csv", "--out", "my.h5")
    for table, why in {
        plain[:-20]: "cut off",
        "hello\n": "no line names its columns",
        "": "is empty",
        "==ERROR== ERR_NVGPUCTRPERM - no permission\n": "ncu says: ERR_NVGPUCTRPERM",
        plain.replace("gpu__time_duration.sum", "other.sum"): "tells no kernel's time",
        plain.replace('"Mbyte"', '""'): "comes in the unit ''",
        plain.replace('"536.87"', '"much"'): "'much' of the metric dram__bytes_read.sum is no number",
        plain.replace('"(65536, 1, 1)"', '""'): "does not tell the grid and block of saxpy",
    }.items():
        splash.write("ncu.csv", table)
        assert why in splash.refused(*words, *H200)
    splash.write("ncu.csv", plain)
    assert "is of a GPU of compute capability 9.0, and NVIDIA L4 has 8.9" in splash.refused(*words, "--gpu", "NVIDIA L4")
    splash.write("ncu.csv", plain.replace("launch__sm_count", "other"))
    assert "name it with --gpu" in splash.refused(*words)
    with (splash.folder / "ncu.csv").open("wb") as file:
        file.truncate(1 << 31)  # a hole: larger than any table, and nothing on the disk
    assert "holds more than the allowed 1073741824 bytes" in splash.refused(*words, *H200)
    assert (splash.folder / "my.h5").read_bytes() == before


def test_ncus_own_format_is_read_where_ncu_is(splash: Splash):
    splash.write("profile.ncu-rep", "NVR")
    words = ("import", "profile.ncu-rep", "--out", "my.h5", *H200)
    done = splash(*words, env={"PATH": "/nowhere"})
    assert done.returncode == 2 and "there is no ncu on the PATH" in done.stderr and "--page raw > table.csv" in done.stderr
    table = splash.write("table.csv", tables.raw([(tables.launch(), tables.metrics())]))
    program = splash.folder / "ncu"
    program.write_text(f'#!/bin/sh\n[ "$*" = "--import profile.ncu-rep --csv --page raw" ] && cat "{table}"\n')
    program.chmod(0o755)
    path = {"PATH": f"{splash.folder}:/usr/bin:/bin"}
    assert splash(*words, env=path).returncode == 0
    program.write_text("#!/bin/sh\necho '==ERROR== cannot be opened'\nexit 1\n")
    done = splash(*words, env=path)
    assert done.returncode == 2 and "profile.ncu-rep: ncu could not read it: ==ERROR== cannot be opened" in done.stderr

