"""Out of memory is MemoryError, and a forked child goes on to work: each tried in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PRELUDE = """
import os, resource, sys
os.environ["OPENBLAS_NUM_THREADS"] = "1"  # a child would have the stacks of its threads for ours
import numpy as np
from splash_attention import entmax, splash_attention

rng = np.random.default_rng(1)
q, k, v = (rng.standard_normal((1, 4, 384, 64)).astype(np.float32) for _ in range(3))
scores = rng.standard_normal((64, 20000))

def compute(kind, q=q, k=k, v=v, scores=scores):
    if kind == "rows":
        return entmax(scores, alpha=1.5)
    dtype = np.float64 if kind == "plain" else np.float32
    return splash_attention(q.astype(dtype), k.astype(dtype), v.astype(dtype), alpha=1.5, causal=True)
"""

# Each limit in a child that has not computed before: the threads are still to come.
SWEEP = """
kind = sys.argv[1]
compute(kind, q[:, :1, :1], k[:, :1, :1], v[:, :1, :1], scores[:1, :9])  # loads everything, on one thread
pages = int(open("/proc/self/statm").read().split()[0])
refused = done = 0
for kilobytes in [*range(0, 30000, 150), 60000, 100000, 200000]:
    child = os.fork()
    if child == 0:
        limit = pages * resource.getpagesize() + 1024 * kilobytes
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        try:
            compute(kind)
        except MemoryError:
            os._exit(10)
        os._exit(20)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in (10, 20):
        sys.exit(f"{kilobytes} kB more: the process ended with {code}")
    refused, done = refused + (code == 10), done + (code == 20)
print(refused, done)
"""

FORKS = """
import multiprocessing
kinds = ["rows", "plain", "screened"]
expected = [compute(kind) for kind in kinds]

def check(_):
    return all(np.array_equal(compute(kind), e) for kind, e in zip(kinds, expected))

with multiprocessing.get_context("fork").Pool(2) as pool:
    print(all(pool.map(check, range(4), 1)) and check(0))
"""


def run(script: str, *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + script, *words], capture_output=True, text=True, timeout=120,
        stdin=subprocess.DEVNULL, env=os.environ | {"OMP_NUM_THREADS": "2"},
    )  # fmt: skip
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="a limit on the address space is Linux's")
@pytest.mark.parametrize("kind", ["rows", "plain", "screened"])
def test_every_lack_of_memory_is_a_memory_error(kind: str) -> None:
    refused, done = map(int, run(SWEEP, kind).split())
    assert refused >= 2 and done >= 2


def test_a_forked_child_goes_on_to_work() -> None:
    assert run(FORKS).strip() == "True"
