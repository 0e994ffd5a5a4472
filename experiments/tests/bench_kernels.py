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
  bench.flops({flops});
  bench.run([=] {{ kernel(n, x, y, z); }});
  bench.reference(z, [=](int64_t i) {{ return 2.0 * x[i] + y[i]; }});
  {more}
}}
"""
HONEST = "for (int64_t i = 0; i < n; ++i) z[i] = 2 * x[i] + y[i];"


def kernel(body: str = HONEST, before: str = "", more: str = "", n: int = 4000, flops: str = "2.0 * n") -> str:
    return FRAME.format(body=body, before=before, more=more, n=n, flops=flops)


SLOW = """static void work(int64_t n, const float* x, const float* y, float* z) {
  for (volatile int turn = 0; turn < 300; ++turn)
    for (int64_t i = 0; i < n; ++i) z[i] = 2 * x[i] + y[i] + 0.0f * static_cast<float>(turn);
}
"""

# name -> (source, what is to be found against it: one of these)
CHEATS = {
    "a no-op": (kernel(body="(void)n, (void)x, (void)y, (void)z;"), {"not written"}),
    "half of the work": (kernel(body=HONEST.replace("i < n", "i < n - 3")), {"not written"}),
    "constant work": (kernel(body="for (int64_t i = 0; i < n; ++i) z[i] = 0 * x[i] * y[i];"), {"wrong"}),
    "a cached result": (
        kernel(
            before="#include <vector>",
            body="static std::vector<float> first; if (first.empty()) {" + HONEST + " first.assign(z, z + n); }"
            "std::copy(first.begin(), first.end(), z);",
        ),
        {"wrong"},
    ),
    "the reference's memory": (  # what lies in the shared memory where the checked values would
        kernel(
            before="#include <sys/stat.h>",
            body="struct stat file; fstat(4, &file);"
            "auto* all = static_cast<float*>(mmap(nullptr, file.st_size, PROT_READ, MAP_SHARED, 4, 0));"
            "for (int64_t i = 0; i < n; ++i) z[i] = all[2 * ((n + 63) / 64 * 64) + i]; (void)x, (void)y;"
            "munmap(all, file.st_size);",
        ),
        {"not written", "wrong"},
    ),
    "a timer overwritten": (
        kernel(
            before=SLOW + "#include <sys/syscall.h>\n#include <ctime>\n"
            'extern "C" int clock_gettime(clockid_t clock, timespec* now) noexcept {\n'
            "  const long failed = syscall(SYS_clock_gettime, clock, now);\n"
            "  const long nanoseconds = (now->tv_sec % 1000 * 1000000000L + now->tv_nsec) / 100;\n"
            "  now->tv_sec = nanoseconds / 1000000000L;\n  now->tv_nsec = nanoseconds % 1000000000L;\n"
            "  return static_cast<int>(failed);\n}",
            body="work(n, x, y, z);",
        ),
        {"contradicts the clock outside"},
    ),
    "another thread": (
        kernel(
            before="#include <thread>\n" + SLOW,
            body="std::thread([=] { work(n, x, y, z); }).detach();",
            n=40000,
        ),
        {"not written", "wrong", "contradicts the clock outside"},
    ),
    "work before the clock": (
        kernel(
            before="#include <thread>\n" + SLOW,
            body="static std::thread busy([] { for (volatile bool on = true; on;) {} }); work(n, x, y, z);",
        ),
        {"computes while it is to wait"},
    ),
    "a blind check": (kernel(body="for (int64_t i = 0; i < n; ++i) z[i] = 0; (void)x, (void)y;", more="bench.tolerance(0, 10);"), {"check tells nothing"}),
    "more FLOPs than there are": (kernel(flops="1e15"), {"below the floor"}),
}
