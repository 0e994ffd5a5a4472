"""Includes go one way: which room includes which others, read from the C++ sources."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# room -> the rooms that it may include besides itself. The rooms stand in order: what stands below uses what stands above.
# The longest name that a file's path begins with is its room.
GPU = {"gpu", "gpu/engine", "gpu/benchmark", "gpu/ceilings", "gpu/entmax", "gpu/decode", "gpu/kascade"}
ALLOWED = {
    "core": set(),
    "cpu_ref": {"core"},
    "gpu": {"core"},
    "gpu/arch": {"core", "gpu"},
    "gpu/engine": {"core", "gpu"},
    "gpu/benchmark": {"core", "gpu", "gpu/engine"},
    "gpu/ceilings": {"core", "gpu", "gpu/arch", "gpu/engine", "gpu/benchmark"},
    "gpu/entmax": {"core", "gpu", "gpu/arch", "gpu/engine"},
    "gpu/decode": {"core", "gpu", "gpu/arch", "gpu/engine", "gpu/entmax"},
    "gpu/kascade": {"core", "gpu", "gpu/arch", "gpu/engine", "gpu/entmax"},
    "gpu/ladders": {"core", "gpu", "gpu/arch", "gpu/engine", "gpu/kascade"},
    "report": {"core"},
    "analysis": {"core", "report"},
    "experiments/runner": {"core", "cpu_ref", *GPU, "report", "analysis"},
    "experiments/claims": {"core", "report", "analysis", "experiments/runner"},
    "experiments/foreign": {"core", "report", "analysis", "experiments/runner"},
    "experiments/kinds/support": {"core", "cpu_ref", *GPU, "report", "analysis", "experiments/runner"},
    "experiments/kinds": {"core", "cpu_ref", *GPU, "report", "analysis", "experiments/runner", "experiments/kinds/support"},
    "experiments/tuning": {"core", *GPU, "analysis", "experiments/runner", "experiments/kinds/support"},
    "experiments/bench": {"core", *GPU, "analysis"},
    "experiments/cli": {
        *("core", "cpu_ref", *GPU, "report", "analysis"),
        *("experiments/runner", "experiments/claims", "experiments/foreign", "experiments/kinds/support", "experiments/tuning"),
    },
    "python": {"core", "cpu_ref", *GPU},
    "fuzz": {"core", *GPU, "report", "analysis", "experiments/runner", "experiments/claims"},
}
TESTS_MAY_ALSO = {  # of the tests of a room, whose helpers stand in tests/ too
    "gpu": {*GPU, "gpu/arch", "gpu/ladders", "cpu_ref", "analysis"},  # oracles, and how far a kernel is from them
    "experiments": {"core", "cpu_ref", *GPU, "report", "analysis", "experiments/runner", "experiments/claims"}
    | {"experiments/foreign", "experiments/kinds/support", "experiments/kinds", "experiments/tuning"},
    "fuzz": {"report", "analysis"},  # seeds are the examples of the tests
}
SOURCES = {".h", ".cuh", ".cpp", ".cu"}
TOP = sorted({room.split("/")[0] for room in ALLOWED})


def room_of(path: str) -> str | None:
    return max((room for room in ALLOWED if path.startswith(f"{room}/")), key=len, default=None)


def includes(text: str) -> list[str]:
    return re.findall(r'^#include "([^"]+)"', text, re.MULTILINE)


def wrong_includes(path: str, text: str) -> list[str]:
    """The includes of a file of the project that its room does not allow, each as 'path includes header'."""
    top, room = path.split("/")[0], room_of(path)
    is_test = "tests" in path.split("/") or top == "fuzz"
    allowed = ALLOWED.get(room, set()) | (TESTS_MAY_ALSO.get(top, set()) if is_test else set())
    wrong = []
    for header in includes(text):
        if header.split("/")[0] not in TOP:
            continue  # generated, or beside the file
        if "/tests/" in header and is_test and header.split("/")[0] in {top, *allowed}:  # helpers of tests
            continue
        other = room_of(header)
        if "/tests/" in header or (other != room and other not in allowed):
            wrong.append(f"{path} includes {header}")
    return wrong


def test_includes_go_one_way():
    files = [path for top in TOP for path in (ROOT / top).rglob("*") if path.suffix in SOURCES]
    assert len(files) > 500
    wrong = [line for path in files for line in wrong_includes(path.relative_to(ROOT).as_posix(), path.read_text())]
    assert not wrong, "includes against the table of this file:\n" + "\n".join(sorted(wrong))


def test_the_rooms_stand_in_order():
    rooms = list(ALLOWED)
    for room, allowed in ALLOWED.items():
        assert all(rooms.index(other) < rooms.index(room) for other in allowed), f"{room} uses a room below it"


@pytest.mark.parametrize(
    ("path", "header"),
    [
        ("report/read.cpp", "analysis/statistics.h"),
        ("analysis/counters.cpp", "gpu/device.h"),
        ("core/text.cpp", "report/report.h"),
        ("gpu/engine/trace.cpp", "experiments/runner/kind.h"),
        ("gpu/engine/engine_none.cpp", "gpu/entmax/attention.h"),
        ("experiments/runner/run.cpp", "experiments/kinds/support/timing.h"),
        ("experiments/kinds/support/timing.cpp", "experiments/kinds/gradient.h"),
        ("report/read.cpp", "report/tests/example_report.h"),
        ("core/tests/text_test.cpp", "report/report.h"),
    ],
)
def test_an_include_the_other_way_is_found(path, header):
    assert wrong_includes(path, f'#include "{header}"\n') == [f"{path} includes {header}"]


def test_kinds_alone_stand_in_the_folder_of_kinds():
    files = [path for path in (ROOT / "experiments/kinds").iterdir() if path.is_file()]
    assert len(files) > 10
    for path in files:
        assert path.suffix == ".cpp" and "KindRegistration" in path.read_text(), f"{path.name} belongs into kinds/support"
