"""Kernels of tests for `splash bench`: z = 2 x + y on the CPU, and ways to cheat with it."""

from __future__ import annotations

FRAME = """\
#include "splash_bench.h"
{before}
static void kernel(int64_t n, const float* x, const float* y, float* z) {{
  {body}
}}

void declare(splash_bench::Bench& bench) {{
  const int64_t n = bench.size("n", {n});
  auto x = bench.input<float>("x", {{n}});
  auto y = bench.input<float>("y", {{n}});
  auto z = bench.output<float>("z", {{n}});
  bench.flops(2.0 * n);
  bench.run([=] {{ kernel(n, x, y, z); }});
  bench.reference(z, [=](int64_t i) {{ return 2.0 * x[i] + y[i]; }});
  {more}
}}
"""
HONEST = "for (int64_t i = 0; i < n; ++i) z[i] = 2 * x[i] + y[i];"


def kernel(body: str = HONEST, before: str = "", more: str = "", n: int = 4000) -> str:
    return FRAME.format(body=body, before=before, more=more, n=n)


NOTHING = "(void)n, (void)x, (void)y, (void)z;"

BEFORE = """\
#include <algorithm>
#include <ctime>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <thread>

static int64_t cheat = 0;

static void work(int64_t n, const float* x, const float* y, float* z) {  // some 10 ms
  volatile float sum = 0;
  for (int turn = 0; turn < 1000000; ++turn) sum = sum + x[turn % n];
  for (int64_t i = 0; i < n; ++i) z[i] = 2 * x[i] + y[i];
}

// The C++ clock asks here.
extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {
  const long failed = syscall(SYS_clock_gettime, clock, now);
  if (cheat == 6) {
    const long nanoseconds = (now->tv_sec % 1000 * 1000000000L + now->tv_nsec) / 100;
    *now = {nanoseconds / 1000000000L, nanoseconds % 1000000000L};
  }
  return static_cast<int>(failed);
}
"""
# name -> (what the kernel does, what is to be found against it: one of these); the cheat's number is its place, from 1
CHEATS = {
    "a no-op": ("", {"not written"}),
    "most of the work": ("for (int64_t i = 0; i < n - 3; ++i) z[i] = 2 * x[i] + y[i];", {"not written"}),
    "constant work": ("for (int64_t i = 0; i < n; ++i) z[i] = 0 * x[i] * y[i];", {"wrong"}),
    "a cached result": (
        "static std::vector<float> first; if (first.empty()) { work(n, x, y, z); first.assign(z, z + n); }"
        "std::copy(first.begin(), first.end(), z);",
        {"wrong"},
    ),
    "the reference's memory": (  # what lies where the checked values would lie
        "struct stat file; fstat(4, &file);"
        "auto* all = static_cast<float*>(mmap(nullptr, file.st_size, PROT_READ, MAP_SHARED, 4, 0));"
        "for (int64_t i = 0; i < n; ++i) z[i] = all[2 * ((n + 63) / 64 * 64) + i]; munmap(all, file.st_size);",
        {"not written", "wrong"},
    ),
    "a timer overwritten": ("work(n, x, y, z);", {"contradicts the clock outside"}),
    "another thread": (
        "std::thread([=] { work(n, x, y, z); }).detach();",
        {"not written", "wrong", "contradicts the clock outside", "computes while it is to wait"},
    ),
    "work before the clock": (
        "static auto& busy = *new std::thread([] { for (volatile bool on = true; on;) {} }); (void)busy; work(n, x, y, z);",
        {"computes while it is to wait"},
    ),
    "a blind check": ("for (int64_t i = 0; i < n; ++i) z[i] = 0; bool loose = true; (void)loose;", {"check tells nothing"}),
    "more FLOPs than there are": ("work(n, x, y, z);", {"below the floor"}),
}


def cheats() -> str:
    """One file with all of them; the size `cheat` says which."""
    cases = "".join(f"    case {i}: {{ {body} break; }}\n" for i, (body, _) in enumerate(CHEATS.values(), 1))
    more = """cheat = bench.size("cheat", 1);
  if (cheat == 9) bench.tolerance(0, 10);
  if (cheat == 10) bench.flops(1e15);"""
    return kernel(before=BEFORE, body=f"switch (cheat) {{\n{cases}  }}", more=more)
